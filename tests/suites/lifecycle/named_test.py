"""Named containers: kept between steps, joined while they run, and private to their user."""
import contextlib
import json
import os
import re
import signal
import subprocess
import time

from cluster import kill_all
from command import await_true
from images import Image, with_probe
import local_files
from harness import equal, expect, same_as_golden, test
from plugstack import plugstack
from site_files import rules

ON = ("-w", "node01", "--overlap")


def run(cluster, name, script, *options, image=None, user="alice", **how):
    """Runs a step on node01 in the container of this name."""
    given = [f"--container-image={cluster.name_of(image)}"] if image else []
    return cluster.run("srun", *ON, f"--container-name={name}", *given, *options, "bash", "-euc", script, user=user, **how)


def start(cluster, name, script, *options, image=None, user="alice"):
    given = [f"--container-image={cluster.name_of(image)}"] if image else []
    return cluster.start("srun", *ON, f"--container-name={name}", *given, *options, "bash", "-euc", script, user=user)


def containers(cluster, node="node01"):
    """Returns the directories of root for them: USER/KEY."""
    top = os.path.join(cluster.store(node), "containers")
    return sorted(f"{user}/{key}" for user in os.listdir(top) if user != "trash" for key in os.listdir(os.path.join(top, user)))


def in_trash(cluster, node="node01"):
    """Returns alice's files that are still to be deleted."""
    trash = os.path.join(cluster.store(node), "containers/trash/2001")
    return os.listdir(trash) if os.path.exists(trash) else []


@test
def container_made_by_another_job_is_announced(cluster):
    """Only to the first node and task, and not in pyxis's words."""
    job = run(cluster, "announced", "echo $SLURM_JOB_ID", image="base").good()
    line = f'using container "announced" of job {job}, made N s ago'

    def said(done):
        return [re.sub(r"made \d+ s ago", "made N s ago", text) for text in done.messages()]

    equal(said(run(cluster, "announced", "true", "-n2", "-O", image="base")), [line], "messages")
    equal(said(run(cluster, "announced", "true")), [line], "messages without an image")
    both = cluster.run("salloc", "-Q", *ON, "sh", "-c", f"srun --container-name=announced:replace --container-image={cluster.name_of('base')} true; "
                       "srun --container-name=announced true", timeout=60)
    equal(said(both), [], "messages of the job that made it", both)
    with plugstack(cluster, "messages=pyxis"):
        expect("using container" not in run(cluster, "announced", "true").err, "pyxis has no such line")
    run(cluster, "announced:remove", "true").good()


@test
def named_container_keeps_changes_for_later_jobs(cluster):
    run(cluster, "kept", "echo changed >/etc/issue; rm -r /usr/share/perl5; perl -e 'rename(\"/etc/apt\", \"/etc/moved\") or die $!'", image="base").good()
    run(cluster, "kept", "cat /etc/issue; test ! -e /usr/share/perl5; test -d /etc/moved").good("changed")
    run(cluster, "kept", "echo more >>/etc/issue", image="base").good()
    run(cluster, "kept", "cat /etc/issue").good("changed\nmore")
    run(cluster, "other", "grep -c Debian /etc/issue", image="base").good("1")


@test
def container_of_another_node_is_named(cluster):
    run(cluster, "placed", "true", image="base").good()
    there = ("srun", "-w", "node02", "--container-name=placed")
    base = "--container-image=" + cluster.name_of("base")
    hint = "(hint: containers stay on their node, and node01 has it: -w node01)"
    done = cluster.run(*there, "true")
    equal(done.errors(), [f'a container with name "placed" does not exist, and --container-image is not set {hint}'], "error", done)
    done = cluster.run("srun", "-w", "node02", "--container-name=placed:remove", "true")
    equal(done.errors(), [f'--container-name: "remove" flag was passed: the container "placed" does not exist {hint}'], "error", done)
    done = cluster.run(*there, base, "true")
    warning = 'warning: a second container "placed" is made on this node: node01 has one (hint: to use that, -w node01)'
    equal((done.rc, [line for line in done.messages() if "second" in line]), (0, [warning]), "exit code and warning", done)
    expect("second" not in cluster.run(*there, base, "true").err, "a step that uses the second one warns")
    cluster.run("srun", "-N2", "--container-name=placed:remove", "true").good()


@test
def remove_on_several_nodes_needs_the_container_on_one(cluster):
    run(cluster, "halved", "true", image="base").good()
    done = cluster.run("srun", "-N2", "--container-name=halved:remove", "true")
    equal((done.rc, done.messages()), (0, ['node02 has no container "halved" to remove']), "exit code and lines", done)
    done = cluster.run("srun", *ON, "--container-name=halved:remove", "true")
    equal((done.rc, len(done.errors())), (1, 1), "exit code and errors on a node without it", done)


@test
def joined_container_outlives_the_step_that_made_it(cluster):
    first = start(cluster, "shared", "readlink /proc/self/ns/mnt; echo one >/made; sleep 60", "-J", "first", image="base")
    first.await_text("mnt:")
    second = start(cluster, "shared", "readlink /proc/self/ns/mnt; cat /made; echo two >>/made; while test ! -e /end; do sleep 0.1; done")
    second.await_text("one")
    expect(first.said().split()[0] == second.said().split()[0], f"two namespaces: {first.said()} and {second.said()}")
    cluster.run("scancel", "-n", "first").good()
    first.end()
    run(cluster, "shared", "cat /made; touch /end").good("one\ntwo")
    second.end().good()
    cluster.must_be_quiet()
    run(cluster, "shared", "cat /made; test -e /end").good("one\ntwo")


def expect_files_served_after_first_step(cluster, name, image):
    """Each step has its own server: one in the first step's cgroups ends with them."""
    reads = "find /usr /etc -xdev -type f -readable -size -300k -exec cat {} + >/dev/null; echo read $?"
    first = start(cluster, name, "echo up; sleep 60", "-J", "first", f"--container-image={image}")
    first.await_text("up")
    equal(len(cluster.processes("node01", "fuse")), 1, "servers of the first step")
    second = start(cluster, name, f"echo up; {reads}; until test -e /end; do sleep 0.1; done; {reads}; perl -e 'print 7'")
    second.await_text("up")
    await_true(lambda: len(cluster.processes("node01", "fuse")) == 2, 5, "the second step has no server")
    cluster.run("scancel", "-n", "first").good()
    first.end()
    await_true(lambda: len(cluster.processes("node01", "fuse")) == 1, 5, "the first step's server has not ended")
    run(cluster, name, "cat /usr/bin/* | wc -c >/size; test $(cat /size) -gt 100000; touch /end").good("")
    second.end(60).good("up\nread 0\nread 0\n7")
    cluster.must_be_quiet(within=2)


@test
def joined_step_keeps_served_image_files_after_first_step(cluster):
    expect_files_served_after_first_step(cluster, "served", local_files.squashfs(cluster))


@test
def joined_step_keeps_served_layers_after_first_step(cluster):
    """All layers of an image have one server in each step."""
    image = Image("suites/served-layers", [[("etc/above", b"above\n")], [("usr/top", b"top\n")]], below=cluster.base_layout)
    cluster.faulty.publish(image)
    with rules(cluster, 'squashfs = "fuse"'):
        expect_files_served_after_first_step(cluster, "served-layers", f"{cluster.faulty.host}/suites/served-layers:1")


@test
def mounts_are_added_to_a_running_container(cluster):
    os.makedirs(os.path.join(cluster.shared, "extra"), exist_ok=True)
    open(os.path.join(cluster.shared, "extra", "file"), "w").write("added")
    first = start(cluster, "mounted", "echo up; while test ! -e /extra/file; do sleep 0.1; done; cat /extra/file", image="base")
    first.await_text("up")
    done = run(cluster, "mounted", "cat /extra/file", "--container-mounts=/home/shared/extra:/extra:ro")
    done.good("added")
    first.end().good("up\nadded")


@test
def step_is_joined_by_its_numbers(cluster):
    first = cluster.start_srun(*ON, "bash", "-c", "echo $SLURM_JOB_ID; echo here >/here; sleep 60")
    first.await_text("\n")
    job = first.said().split()[-1]
    run(cluster, f"{job}.0", "cat /here").good("here")
    run(cluster, f"{job}.0:exec", "cat /here").good("here")
    stranger = run(cluster, f"{job}.0", "true", user="bob")
    equal(stranger.errors(), [f'a container with name "{job}.0" does not exist, and --container-image is not set'], "bob's error", stranger)
    cluster.run("scancel", job).good()
    first.end()
    gone = run(cluster, f"{job}.0:exec", "true")
    equal(gone.errors(), [f'--container-name: "exec" flag was passed: the container "{job}.0" is not running'], "error", gone)


@test
def name_of_the_form_of_a_step_is_refused_on_creation(cluster):
    there = containers(cluster)
    for name in ("99.0", "99.batch", "99.0:create"):
        done = run(cluster, name, "echo ran", image="base")
        word = name.partition(":")[0]
        equal(done.errors(), [f'--container-name: "{word}" has the form JOB.STEP, which names the container of a running step '
                              f'(hint: --container-name=job-{word})'], "error", done)
    equal(containers(cluster), there, "containers")


@test
def foreign_container_can_be_neither_joined_nor_seen(cluster):
    first = start(cluster, "mine", "readlink /proc/self/ns/mnt; sleep 60", "-J", "mine", image="base")
    first.await_text("mnt:")
    other = run(cluster, "mine", "readlink /proc/self/ns/mnt; ls /var/lib/spank-container 2>&1 || true", image="base", user="bob")
    expect(other.good().split()[0] != first.said().split()[0], "bob is in alice's container", other)
    for path in ("/var/lib/spank-container/containers", "/run/spank-container/steps"):
        refused = cluster.run("srun", *ON, "bash", "-c", f"ls {path} 2>&1 || echo refused", user="bob")
        expect(refused.good().endswith("refused") and "Permission denied" in refused.good(), f"bob can list {path}", refused)
    cluster.run("scancel", "-n", "mine").good()
    first.end()


@test
def name_flags_work_and_bad_combinations_are_refused(cluster):
    said = []

    def refused(name, *options, image=None):
        done = run(cluster, name, "true", *options, image=image)
        expect(done.rc == 1, "it was not refused", done)
        said.extend([f"{name}:"] + done.errors())

    second = cluster.name_of(Image("named-other", [[("file", b"other")]]))
    refused("flags")
    refused("flags:exec", image="base")
    run(cluster, "flags:create", "echo 1 >/one", image="base").good()
    refused("flags:create", image="base")
    run(cluster, "flags:no_exec", "cat /one").good("1")
    refused("flags", image=second)
    running = start(cluster, "flags", "echo up; sleep 60", "-J", "flags")
    running.await_text("up")
    run(cluster, "flags:exec", "cat /one").good("1")
    run(cluster, "flags:auto", "cat /one", image="base").good("1")
    refused("flags:no_exec")
    refused("flags:create", image="base")
    refused("flags:replace", image="base")
    refused("flags", image=second)
    cluster.run("scancel", "-n", "flags").good()
    running.end()
    refused("flags:replace")
    run(cluster, "flags:replace", "test ! -e /one", image="base").good()
    run(cluster, "flags", "test ! -e /one").good()
    for wrong in ("", ":auto", "x:y", "a/b", "a b", "x" * 65):
        done = run(cluster, wrong, "true", image="base")
        expect(done.rc == 1, "it was not refused", done)
        said.extend([f"{wrong}:"] + done.errors())
    twin = cluster.run("srun", *ON, "cat", "/one", env=["SCONTAINER_NAME=flags"])
    expect("No such file" in twin.err and not twin.errors(), "the twin did not lead into the container", twin)
    same_as_golden("names", "\n".join(said) + "\n")


@test
def container_is_reused_under_another_name_of_its_image(cluster):
    first, second, other = (Image("named-tags", [[("file", text)]], tag=tag, below=cluster.base_layout)
                            for tag, text in (("1", b"same"), ("2", b"same"), ("3", b"other")))
    run(cluster, "tags", "echo kept >/kept", image=first).good()
    for image in (second, other):
        # The node resolves the tag, not srun.
        cluster.srun(*ON, "--container-pull=missing", "true", image=image).good()
    run(cluster, "tags", "cat /kept", image=second).good("kept")
    refused = run(cluster, "tags", "true", image=other)
    expect(refused.rc == 1 and "was made from" in refused.err, "it was reused for another image", refused)


@test
def fifty_steps_over_five_names_share_five_containers(cluster):
    job = cluster.submit("""#!/bin/bash
for i in $(seq 50); do
    srun --overlap -n1 -N1 --mem=0 --container-name=many$((i % 5)) --container-image=IMAGE bash -c 'echo $0 >>/steps' $i &
done
wait
for i in 0 1 2 3 4; do
    srun --overlap -n1 -N1 --container-name=many$i sort -n /steps | xargs echo
done
""".replace("IMAGE", cluster.name_of("base")), "-w", "node01")
    cluster.await_job(job, 90)
    lines = open(os.path.join(cluster.home, "alice", f"{job}.out")).read().splitlines()
    wanted = [" ".join(str(i) for i in range(1, 51) if i % 5 == rest) for rest in range(5)]
    equal([line for line in lines if "spank-container: pull" not in line], wanted, "what the steps left")


@test
def container_stays_usable_after_agent_kill(cluster):
    first = start(cluster, "killed", "echo up >/up; echo up; sleep 60", "-J", "killed", image="base")
    first.await_text("up")
    kill_all(cluster.processes("node01", "agent"))
    late = run(cluster, "killed", "true")
    expect(late.rc == 1 and "still use the container" in late.err, "a second overlay was mounted", late)
    cluster.run("scancel", "-n", "killed").good()
    first.end()
    cluster.must_be_quiet()
    run(cluster, "killed", "cat /up").good("up")


@test
def container_stays_usable_after_cancelled_starts(cluster):
    for processes in (1, 2):  # the agent, then the agent and its builder
        step = start(cluster, "broken", "echo x | tee -a /x; sleep 60", "-J", "broken", image="base")
        await_true(lambda: len(cluster.step_agents("node01")) >= processes or "x" in step.said(), 10, "no agent")
        kill_all(cluster.step_agents("node01"))
        cluster.run("scancel", "-n", "broken")
        step.end()
    run(cluster, "broken", "echo fine >/fine", image="base").good()
    run(cluster, "broken", "cat /fine").good("fine")


@test
def job_scoped_containers_end_with_the_job(cluster):
    config = os.path.join(cluster.etc, "spank-container/config.toml")
    before = open(config).read()
    kept = containers(cluster)
    try:
        open(config, "w").write('container_scope = "job"\n' + before)
        done = cluster.batch(f"""#!/bin/bash
srun --container-name=ours --container-image={cluster.name_of("base")} bash -c 'mkdir -p /a/b/c; chmod 0 /a/b; echo 1 >/one; rm -r /usr/share/perl5'
srun --container-name=ours cat /one
""", "-w", "node01")
        done.good("1")
        alone = run(cluster, "ours", "true")
        expect(alone.rc == 1, "another job found it", alone)
    finally:
        open(config, "w").write(before)
    await_true(lambda: containers(cluster) == kept and not in_trash(cluster), 10, "the job's container is left")


@test
def number_of_containers_per_user_is_limited(cluster):
    config = os.path.join(cluster.etc, "spank-container/config.toml")
    before = open(config).read()
    run(cluster, "counted", "echo 1 >/one", image="base").good()
    there = containers(cluster)
    most = len([one for one in there if one.startswith("2001/")])
    try:
        open(config, "w").write(before + f"\n[store]\nmax_containers_per_user = {most}\n")
        for number in range(3):
            done = run(cluster, f"more{number}", "true", image="base")
            expect(done.rc == 1 and f"the user has {most} on this node (hint: " in done.err, "one more was made", done)
        run(cluster, "counted", "cat /one").good("1")
        run(cluster, "counted:replace", "test ! -e /one", image="base").good()
        equal(containers(cluster), there, "what is kept")
        run(cluster, "of-bob", "true", image="base", user="bob").good()
    finally:
        open(config, "w").write(before)
    run(cluster, "more", "true", image="base").good()


@contextlib.contextmanager
def job_on_node01(cluster):
    """Returns options for steps of a long job: only the job's end runs an epilog."""
    job = cluster.submit("#!/bin/bash\nsleep 100", "-w", "node01")
    cluster.await_state(job, "RUNNING")
    try:
        yield (f"--jobid={job}", "--overlap")
    finally:
        cluster.run("scancel", str(job)).good()
        cluster.await_job(job)


@test
def failed_start_leaves_nothing_under_its_name(cluster):
    run(cluster, "whole", "echo 1 >/one", image="base").good()
    there = containers(cluster)
    base = f"--container-image={cluster.name_of('base')}"
    failures = {"names-new:exec": [base],
                "names-new": ["--container-image=registry:5000/suites/there-is-none:1"],
                "names-target": [base, "--container-mounts=/etc/hosts:/sys/made"],
                "names-size": [base, "--container-tmpfs-size=none"],
                "whole:replace": ["--container-image=registry:5000/suites/there-is-none:1"]}
    with job_on_node01(cluster) as step:
        for name, options in failures.items():
            done = cluster.run("srun", *step, f"--container-name={name}", *options, "true")
            expect(done.rc == 1, f"{name} did not fail", done)
            await_true(lambda: containers(cluster) == there, 2, f"{name} left something")
        cluster.run("srun", *step, "--container-name=whole", "cat", "/one").good("1")
        cluster.run("srun", *step, "--container-name=names-explained", base, "--container-explain=all", "true").good()
    await_true(lambda: containers(cluster) == there and not in_trash(cluster), 10, "something is left after the job")


@test
def killed_start_leaves_nothing_after_its_job(cluster):
    there = containers(cluster)
    name, layers = cluster.faulty.publish(with_probe("names-killed", [("data", os.urandom(1 << 20))]))
    gate = cluster.faulty.hold(layers[0])
    with job_on_node01(cluster) as step:
        start = cluster.start("srun", *step, "--container-name=begun", f"--container-image={name}", "/probe")
        await_true(lambda: cluster.processes("node01", "layer-writer"), 10, "the pull did not begin")
        equal(len(containers(cluster)), len(there) + 1, "containers during the pull")
        # Its epilog removes no container in use.
        other = cluster.run("srun", *ON, f"--container-image={cluster.name_of('base')}", "true")
        expect(other.rc == 0 and len(containers(cluster)) == len(there) + 1, "an epilog took the name away", other)
        kill_all(cluster.step_agents("node01"))
        expect(start.end(20).rc != 0, "the killed start succeeded")
        gate.set()
    await_true(lambda: containers(cluster) == there and not in_trash(cluster), 10, "something is left after the job")


def listed(cluster, node="node01"):
    """Returns root's list, by owner and name."""
    found = json.loads(cluster.root(node, "scontainer", "containers", "--json").good())
    return {(one["owner"], one["name"]): one for one in found}


def directory_of(cluster, name, uid=2001):
    top = os.path.join(cluster.store("node01"), f"containers/{uid}")
    notes = {key: os.path.join(top, key, "is/notes") for key in os.listdir(top)}
    return next(os.path.join(top, key) for key, path in notes.items() if f"name={name}\0".encode() in open(path, "rb").read())


@test
def root_sees_owners_and_sizes_of_containers(cluster):
    script = "mkdir -p /a/b; head -c 3M /dev/urandom >/a/b/file; ln /a/b/file /a/link; ln -s / /a/root; rm -r /usr/share/perl5; chmod 0 /a/b"
    run(cluster, "measured", script, image="base").good()
    run(cluster, "measured", "true", image="base", user="bob").good()
    of = listed(cluster)
    one = of["alice", "measured"]
    files = [os.path.join(directory_of(cluster, "measured"), "is", part) for part in ("up", "work")]
    counted = subprocess.run(["du", "-sc", "--block-size=1", *files], check=True, stdout=subprocess.PIPE, text=True).stdout
    equal(one["bytes"], int(counted.split()[-2]), "bytes")
    expect(one["bytes"] > 3 << 20 > of["bob", "measured"]["bytes"], "the sizes are not those of the containers")
    equal((one["image"], one["in_use"], one["uid"], one["bytes_complete"]), (cluster.name_of("base"), False, 2001, True), "the rest")
    expect(abs(one["last_used"] - time.time()) < 60, f"last used: {one['last_used']}")
    step = start(cluster, "measured", "echo up; sleep 60", "-J", "measured")
    step.await_text("up")
    expect(listed(cluster)["alice", "measured"]["in_use"], "it is not in use")
    expect(" in use " in cluster.root("node01", "scontainer", "containers").good(), "the table does not say so")
    cluster.run("scancel", "-n", "measured").good()
    step.end()
    told = json.loads(cluster.run("scontainer", "containers", "--json").good())
    mine = [(one["owner"], one["node"], one["in_use"], one.get("job")) for one in told if one["name"] == "measured"]
    equal(mine, [("alice", "node01", False, None)], f"what alice is told: {told}")


@test
def unused_containers_are_removed(cluster):
    config = os.path.join(cluster.etc, "spank-container/config.toml")
    before = open(config).read()

    def clean(*how):
        return json.loads(cluster.root("node01", "scontainer", "gc", "--json", *how).good())["containers"]

    def of_old():
        return {("alice", "old"), ("alice", "old-in-use")} & set(listed(cluster))

    for name in ("old", "old-in-use", "young"):
        run(cluster, name, "echo 1 >/one", image="base").good()
    step = start(cluster, "old-in-use", "echo up; sleep 60", "-J", "old")
    step.await_text("up")
    for name in ("old", "old-in-use"):
        for path in (directory_of(cluster, name), os.path.join(directory_of(cluster, name), "lock")):
            os.utime(path, (time.time() - 7200,) * 2)
    equal(clean("--yes"), 0, "removed without a limit")
    try:
        open(config, "w").write(before + "\n[store]\ncontainer_ttl = 3600\n")
        equal(clean("--yes"), 0, "removed while a step of their user runs")
        kill_all(cluster.step_agents("node01"))
        equal(clean("--yes"), 0, "removed while tasks use one whose agent was killed")
        cluster.run("scancel", "-n", "old").good()
        step.end()
        cluster.must_be_quiet()
        equal(clean(), 2, "that would be removed")
        equal(len(of_old()), 2, "containers that are still there")
        equal(clean("--yes"), 2, "removed")
        equal(of_old(), set(), "what is left of the old ones")
        await_true(lambda: not in_trash(cluster), 10, "their files are left")
        run(cluster, "young", "cat /one").good("1")
        run(cluster, "old", "test ! -e /one", image="base").good()
        equal(clean("--yes"), 0, "removed just after its use")
    finally:
        open(config, "w").write(before)


@test
def unremovable_name_does_not_drain_the_node(cluster):
    away = os.path.join(cluster.store("node01"), "containers")
    os.rename(away, away + ".away")
    try:
        cluster.run("srun", *ON, "true").good()
        cluster.await_idle()
        done = run(cluster, "none", "true", image="base")
        expect(done.rc == 1 and done.errors() and "restart slurmd" in done.errors()[0], "no error", done)
        cluster.await_idle()
    finally:
        os.rename(away + ".away", away)
    cluster.must_be_well()


@test
def source_file_of_a_container_must_stay_unchanged(cluster):
    image = local_files.squashfs(cluster, "of-a-name.sqsh")
    run(cluster, "file", "cat /data/one; echo new >/new", "--chdir=/home/shared", image="./of-a-name.sqsh").good("one")
    run(cluster, "file", "cat /new /data/two").good("new\ntwo")
    run(cluster, "file", "cat /new", image=image).good("new")
    os.utime(local_files.shared(cluster, "of-a-name.sqsh")[0], (1, 1))
    done = run(cluster, "file", "true")
    same_as_golden("name_of_changed_file", "\n".join(done.errors()) + "\n", done)


def join_at_once(cluster, disturb):
    """72 tasks of nine steps join the container while `disturb` is called; its creator is another job."""
    creator = start(cluster, "crowd", "echo made >/made; echo up; sleep 600", "-J", "creator", image="base")
    creator.await_text("up")
    step = "srun --overlap -N1 -n8 --mem=0 --container-name=crowd bash -c 'echo joined $SLURM_STEP_ID.$SLURM_PROCID: $(cat /made)'"
    job = cluster.submit(f"#!/bin/bash\nfor i in $(seq 0 8); do {step} || echo failed $? & done; wait\n", "-w", "node01", "-n8", "--overcommit")
    out = os.path.join(cluster.home, "alice", f"{job}.out")
    await_true(lambda: os.path.exists(out), 10, "the job has not begun")
    disturb(out)
    cluster.await_job(job, 60)
    cluster.run("scancel", "-n", "creator")
    creator.end()
    lines = open(out).read().splitlines()
    wanted = [f"joined {step}.{task}: made" for step in range(9) for task in range(8)]
    equal(sorted(line for line in lines if line.startswith(("joined", "failed"))), sorted(wanted), "what the tasks said\n" + "\n".join(lines))
    equal([line for line in lines if "spank-container" in line and ": using container " not in line], [], "messages")


@test
def joins_of_many_tasks_survive_the_end_of_the_creator(cluster):
    def cancel(*_):
        cluster.run("scancel", "-n", "creator").good()

    def after_first(out):
        await_true(lambda: "joined" in open(out).read(), 30, "no task has joined")
        cancel()

    for disturb in (lambda _: time.sleep(0.3) or cancel(), after_first):
        join_at_once(cluster, disturb)
    run(cluster, "crowd", "cat /made").good("made")


@test
def joins_of_many_tasks_wait_for_a_slow_node(cluster):
    def stop_agents(_):
        """Stops the node: the creator's agent, then those of the steps that join."""
        for _round in range(3):
            agents = cluster.step_agents("node01")
            kill_all(agents, signal.SIGSTOP)
            time.sleep(0.7)
            kill_all(agents, signal.SIGCONT)
            time.sleep(0.2)

    join_at_once(cluster, stop_agents)
    run(cluster, "crowd:replace", "true", image="base")
