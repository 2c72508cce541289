"""Resources that a user serves, stops and fills: root's processes neither wait for them without
limit nor grow with them, and nothing outlives the job. SPC_MANY_NAMES (default 30000) and
SPC_MANY_STEPS (default 20) set the amounts."""
import contextlib
import os
import re
import signal
import subprocess
import time

from cluster import kill_all
from command import WAITING, await_true
import local_files
from errors_test import Config
from harness import Failed, equal, expect, test
from images import with_probe

ON = ("-w", "node01")
NAMES = int(os.environ.get("SPC_MANY_NAMES", "30000"))
STEPS = int(os.environ.get("SPC_MANY_STEPS", "20"))


def memory_of(pid):
    """Returns its peak memory in MB."""
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["VmHWM"].split()[0]) / 1000
    except (OSError, KeyError):  # it has just ended
        return 0


@test
def many_names_are_removed_with_little_memory(cluster):
    config = os.path.join(cluster.etc, "spank-container/config.toml")
    before = open(config).read()
    trash = os.path.join(cluster.store("node01"), "containers/trash/2001")

    def left():
        return os.listdir(trash) if os.path.exists(trash) else []

    try:
        open(config, "w").write('container_scope = "job"\n' + before)
        job = cluster.submit(f"""#!/bin/bash
srun --container-name=full --container-image={cluster.name_of("base")} bash -c 'mkdir -p /many/deep; cd /many; seq -f %0250.0f {NAMES} | xargs mkfifo; cd deep; seq -f %0250.0f 1000 | xargs mkdir; ls .. | wc -l'
""", *ON)
        most, niceness = 0, 0
        fields, cleaner = {}, {}
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            agents = cluster.processes("node01", "agent")
            if not fields and not agents:
                fields = cluster.await_job(job, timeout=300)
            for pid in agents if fields else ():
                most = max(most, memory_of(pid))
                try:
                    niceness = os.getpriority(os.PRIO_PROCESS, pid)
                    with open(f"/proc/{pid}/status") as file:
                        cleaner = {line.split(":")[0]: line.split()[1:] for line in file}
                except OSError:
                    pass
            if fields and not agents and most and not left():
                break
            time.sleep(0.01)
    finally:
        open(config, "w").write(before)
    equal(open(os.path.join(cluster.home, f"alice/{job}.out")).read().split(), [str(NAMES + 1)], "names that were made")
    equal(left(), [], "what is left in the trash")
    print(f"    {NAMES} names: {most:.0f} MB", flush=True)
    expect(0 < most < 6, f"the cleaner took {most} MB")
    equal(niceness, 19, "the cleaner's niceness")
    # It has the user's access to files only, but is no process of the user: neither the user nor a
    # site's epilog can end it.
    equal([cleaner[key] for key in ("CapPrm", "CapEff", "NoNewPrivs", "Groups")], [["0" * 16], ["0" * 16], ["1"], []], "its rights")
    equal(cleaner["Uid"], ["0", "0", "0", "2001"], "its user IDs")


@test
def malicious_user_served_image_is_refused_without_delay(cluster):
    path, _ = local_files.shared(cluster, os.path.basename(local_files.squashfs(cluster, "served.sqsh")))
    content = "/home/shared/" + os.path.basename(path)
    for option in (("--container-image=/run/fuse/file",), (f"--container-image={cluster.name_of('base')}", "--container-mounts=/run/fuse/file:/mnt:sqsh")):
        with cluster.users_file_system(content):
            step = cluster.start("srun", *ON, *option, "true")
            done = step.end(20)
            expect(done.rc == 1 and "is on a FUSE file system" in done.err, "it was not refused", done)
            await_true(lambda: not cluster.processes("node01", "slurmstepd"), 10, "slurmstepd waits for the user's file system")
            cluster.must_be_well()
        cluster.must_be_quiet(within=5)


def step_without_agent(cluster, image):
    """Runs a step of node01 whose agent is killed while its task waits. Yields the step, and the
    PIDs of task and servers."""
    step = cluster.start_srun(*ON, "--overlap", "bash", "-c", "echo up $$; read -t 60 <> <(:)", image=image)
    step.await_text("up")
    kill_all(cluster.step_agents("node01"))
    servers = cluster.processes("node01", "fuse")
    expect(servers, "no server runs, the test is void")
    return step, int(re.search(r"up ([0-9]+)", step.said())[1]), servers


def parent_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"PPid:\s+(\d+)", file.read())[1])


def place_of(pid, controller):
    """Returns its cgroup's directory."""
    with open(f"/proc/{pid}/cgroup") as file:
        return f"/sys/fs/cgroup/{controller}" + re.search(rf":{controller}:(.*)", file.read())[1]


@test
def stopped_server_ends_with_step_after_agent_is_killed(cluster):
    """Only slurmstepd is left to end it, and Slurm tries only once to remove its cgroup."""
    logged = cluster.program("logs", "node01").out.count("task_g_post_step")
    step, task, servers = step_without_agent(cluster, local_files.squashfs(cluster, "stopped.sqsh"))
    place = place_of(servers[0], "devices")
    expect(os.path.basename(place) == "step_0", f"the server is in {place}, the test is void")
    try:
        kill_all(servers, signal.SIGSTOP)
        cluster.root("node01", "kill", "-9", str(task)).good()
        step.end(15)
        await_true(lambda: not cluster.processes("node01", "fuse"), 5, "a stopped server is left")
        await_true(lambda: not os.path.exists(place), 5, f"{place} is left")
    finally:
        kill_all(servers)
    equal(cluster.program("logs", "node01").out.count("task_g_post_step") - logged, 0, "complaints in slurmd's log")
    cluster.must_be_quiet(within=5)


@test
def server_that_outlives_its_step_leaves_no_cgroup(cluster):
    logged = cluster.program("logs", "node01").out.count("task_g_post_step")
    step, task, servers = step_without_agent(cluster, local_files.squashfs(cluster, "stopped.sqsh"))
    place = place_of(servers[0], "devices")
    with frozen(servers):
        cluster.root("node01", "kill", "-9", str(task)).good()
        time.sleep(0.4)
    step.end(15)
    await_true(lambda: not os.path.exists(place), 5, f"{place} is left")
    equal(cluster.program("logs", "node01").out.count("task_g_post_step") - logged, 0, "complaints in slurmd's log")
    cluster.must_be_quiet(within=5)


@test
def kept_mount_namespace_keeps_no_process_of_the_job(cluster):
    """The kernel keeps a process's open files until it ends: here the other container's mounts and
    files, like any deleted file."""
    for image, keeps in ((local_files.squashfs(cluster, "stopped.sqsh"), 0), ("base", 3)):
        step = cluster.start_srun(*ON, "--overcommit", "bash", "-c", "echo up $$; read -t 60 <> <(:)", image=image)
        step.await_text("up")
        task = re.search(r"up ([0-9]+)", step.said())[1]
        keeper = cluster.start("srun", *ON, "--overcommit", "-J", "keeper", "bash", "-c", f"exec 7</proc/{task}/ns/mnt && echo kept; sleep 60")
        try:
            keeper.await_text("kept")
            cluster.root("node01", "kill", "-9", task).good()
            step.end(15)
            await_true(lambda: not cluster.processes("node01", "fuse") and not cluster.step_agents("node01"), 10, "processes of the ended job are left")
            equal(len(cluster.loops("node01")), keeps, "loop devices that the keeper keeps")
        finally:
            cluster.run("scancel", "-n", "keeper")
            keeper.end(15)
        cluster.must_be_quiet(within=5)


@test
def server_stopped_by_its_job_does_not_outlive_it(cluster):
    image = local_files.squashfs(cluster, "stopped.sqsh")
    step = cluster.start_srun(*ON, "--overlap", "bash", "-c", "echo up; read -t 3 <> <(:); kill -9 $$", image=image)
    try:
        step.await_text("up")
        cluster.run("srun", *ON, "--overlap", "pkill", "-STOP", "-x", "fuse").good()
        stopped = cluster.processes("node01", "fuse")
        expect(stopped, "no server runs, the test is void")
        step.end(15)
        await_true(lambda: not cluster.processes("node01", "fuse"), 10, "a stopped server is left")
    finally:
        kill_all(cluster.processes("node01", "fuse"))
    cluster.must_be_quiet(within=5)


def is_stuck(task):
    """Returns whether the task waits for its server, or for a task that does."""
    with open(f"/proc/{task}/stat") as file, open(f"/proc/{task}/wchan") as function:
        return file.read().rpartition(")")[2].split()[0] == "D" or function.read() == "request_wait_answer"


@test
def task_with_stopped_server_can_be_killed(cluster):
    """The kernel waits without limit for a request that the server has read, and Slurm drains nodes
    whose tasks cannot be killed."""
    image, stuck = local_files.squashfs(cluster, "stopped.sqsh"), 0
    ask = "ask() { for ((i = 0;; i++)); do [[ -e /usr/bin/$1.$i ]]; done; }; for name in a b c; do ask $name & done; echo up; ask d"
    for moment in (0.05, 0.1, 0.15):
        step = cluster.start_srun(*ON, "--overlap", "bash", "-c", ask, image=image)
        try:
            step.await_text("up")
            time.sleep(moment)
            server, = cluster.processes("node01", "fuse")
            os.kill(server, signal.SIGSTOP)
            with contextlib.suppress(Failed):
                await_true(lambda: any(map(is_stuck, cluster.processes("node01", "bash"))), 2, "")
                stuck += 1
            cluster.run("scancel", "--me").good()
            step.end(10)
            await_true(lambda: not cluster.processes("node01", "slurmstepd"), 4, "slurmstepd waits for a task that hangs")
        finally:
            kill_all(cluster.processes("node01", "fuse"))
    expect(stuck > 0, "no task waited for its server, the test is void")
    cluster.must_be_well()
    cluster.must_be_quiet(within=5)


def asked_by_root(server):
    return [line.partition(": ")[2] for line in server.said().splitlines() if line.startswith("root: ")]


@test
def image_on_allowed_fuse_file_system_is_read_by_user(cluster):
    image = "--container-image=/run/fuse/file"
    content = "/home/shared/" + os.path.basename(local_files.shared(cluster, os.path.basename(local_files.squashfs(cluster, "served.sqsh")))[0])
    with Config(cluster, 'fuse_filesystems = ["test"]\n'):
        with cluster.users_file_system(content, shared="sites") as server:
            equal(cluster.run("srun", *ON, image, "cat", "/data/one").good(), "one", "a file of the image")
            await_true(lambda: not cluster.processes("node01", "slurmstepd"), 10, "slurmstepd waits for the file system")
            equal(asked_by_root(server), [], "what root asks for the image")
        with cluster.users_file_system(content, shared=True):
            done = cluster.run("srun", *ON, image, "true")
            expect(done.rc == 1 and "is on a FUSE file system" in done.err, "a user's file system of that name was not refused", done)
    cluster.must_be_quiet(within=5)


@test
def image_on_squashfuse_starts_if_site_allows_it(cluster):
    path = local_files.shared(cluster, os.path.basename(local_files.squashfs(cluster, "served.sqsh")))[0]
    outer = os.path.join(os.path.dirname(path), "outer.sqsh")
    subprocess.run(["mksquashfs", path, outer, "-noappend", "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL)
    image = f"--container-image=/run/outer/{os.path.basename(path)}"
    cluster.root("node01", "mkdir", "/run/outer").good()
    cluster.root("node01", "squashfuse", "-o", "allow_other", "/home/shared/outer.sqsh", "/run/outer").good()
    try:
        with Config(cluster, 'fuse_filesystems = ["fuse.squashfuse"]\n'):
            equal(cluster.run("srun", *ON, image, "cat", "/data/one").good(), "one", "a file of the image")
        done = cluster.run("srun", *ON, image, "true")
        expect(done.rc == 1 and "is on a FUSE file system" in done.err, "it was not refused", done)
    finally:
        cluster.root("node01", "umount", "/run/outer").good()
        cluster.root("node01", "rmdir", "/run/outer")
        os.unlink(outer)


@test
def unresponsive_file_system_is_never_accessed_by_root(cluster):
    """A file system of the site or the user that depends on a process or a network. Only the
    leader, a process of the user, accesses it."""
    content = "/home/shared/" + os.path.basename(local_files.shared(cluster, os.path.basename(local_files.squashfs(cluster, "served.sqsh")))[0])
    with cluster.users_file_system(shared=True) as server:
        with Config(cluster, 'mounts = ["/run/fuse:/mnt/site", "/run/fuse/file:/mnt/file"]\n'):
            done = cluster.srun(*ON, "cat", "/mnt/site/file", "/mnt/file", timeout=20)
        equal(done.good(), ("from a user's file system\n" * 2).strip(), "what the task reads", done)
        equal(asked_by_root(server), [], "what root asks for the site's mounts")
    with cluster.users_file_system(content, shared=True) as server:
        for option in (("--container-image=/run/fuse/file",), (f"--container-image={cluster.name_of('base')}", "--container-mounts=/run/fuse/file:/mnt:sqsh")):
            done = cluster.run("srun", *ON, *option, "true")
            expect(done.rc == 1 and "is on a FUSE file system (hint: copy it to a local disk" in done.err, "it was not refused", done)
        await_true(lambda: not cluster.processes("node01", "slurmstepd"), 10, "slurmstepd waits for the file system")
        equal(asked_by_root(server), [], "what root asks for images")
    cluster.must_be_quiet(within=5)


@test
def image_directory_is_read_as_root_by_the_builder_only(cluster):
    """Overlayfs reads it as the mounting process. The builder may wait as long as a task of the
    user, forever if the server does not answer. The agent and the plugin in slurmstepd do not wait
    for the builder."""
    with cluster.users_file_system(shared=True) as server:
        step = cluster.start("srun", *ON, "-J", "directory", "--container-image=/run/fuse", "true")
        await_true(lambda: asked_by_root(server), 10, "root does not ask the image directory's server, the test is void")
        agents = len(cluster.step_agents("node01"))
        equal((asked_by_root(server), agents), (["statfs"], 2), "what root asks, and how many processes agent and builder are")
        cluster.run("scancel", "-n", "directory").good()
        expect(step.end(10).rc != 0, "the cancelled step succeeded")
        await_true(lambda: len(cluster.step_agents("node01")) == 1, 10, "the agent still waits for the builder")
    cluster.must_be_quiet(within=10)
    cluster.must_be_well()


@test
def steps_leave_no_cgroups(cluster):
    logged = cluster.program("logs", "node01").out.count("task_g_post_step")
    job = cluster.submit(f"""#!/bin/bash
for i in $(seq {STEPS}); do srun --container-image={cluster.name_of("base")} true; done
for i in $(seq 50); do
  left=$(find /sys/fs/cgroup -type d -path "*/job_$SLURM_JOB_ID/step_[0-9]*" 2>/dev/null | wc -l)
  test $left = 0 && break
  sleep 0.1
done
echo $left
find /sys/fs/cgroup -type d -path "*/job_$SLURM_JOB_ID/step_[0-9]*" 2>/dev/null | head -3
""", *ON)
    cluster.await_job(job, timeout=20 + 2 * STEPS)
    said = open(os.path.join(cluster.home, f"alice/{job}.out")).read()
    equal(WAITING.sub("", said), "0\n", "directories of ended steps")
    equal(cluster.program("logs", "node01").out.count("task_g_post_step") - logged, 0, "complaints in slurmd's log")


@contextlib.contextmanager
def frozen(pids):
    """Until then they do not die either."""
    place = f"{place_of(pids[0], 'freezer')}/frozen"
    os.mkdir(place)
    try:
        for file, words in (("cgroup.procs", pids), ("freezer.state", ["FROZEN"])):
            for word in words:
                with open(f"{place}/{file}", "w") as out:
                    out.write(str(word))
        yield
    finally:
        with open(f"{place}/freezer.state", "w") as out:
            out.write("THAWED")
        await_true(lambda: open(f"{place}/cgroup.procs").read() == "", 10, "a killed process does not end")
        os.rmdir(place)


@test
def helpers_that_outlive_the_agent_leave_no_cgroup(cluster):
    """On a busy node a killed process takes a while to disappear, and Slurm tries only once to
    remove the step's cgroups."""
    logged = cluster.program("logs", "node01").out.count("task_g_post_step")
    name, layers = cluster.faulty.publish(with_probe("late", [("data", os.urandom(1 << 20))]))
    gate = cluster.faulty.hold(layers[0])
    step = cluster.start_srun(*ON, "/probe", image=name)
    await_true(lambda: cluster.processes("node01", "layer-writer"), 10, "the pull did not begin")
    agents = cluster.step_agents("node01")
    # The others are its publishers.
    (agent,) = (pid for pid in agents if parent_of(pid) not in agents)
    place = place_of(agent, "devices")
    expect(os.path.basename(place) == "step_0", f"the agent is in {place}, the test is void")
    with frozen(cluster.processes("node01", "import") + cluster.processes("node01", "layer-writer")):
        kill_all([agent])
        time.sleep(0.4)
    gate.set()
    step.end(15)
    await_true(lambda: not os.path.exists(place), 10, f"{place} is left")
    equal(cluster.program("logs", "node01").out.count("task_g_post_step") - logged, 0, "complaints in slurmd's log")
    cluster.must_be_quiet(within=5)


def bobs(path, mode, text=None):
    """Makes a directory of bob, or a file with this text."""
    if text is None:
        os.makedirs(path, exist_ok=True)
    else:
        open(path, "w").write(text)
    os.chown(path, 2002, 2002)
    os.chmod(path, mode)


@test
def image_directory_shows_files_readable_by_the_user_now(cluster):
    """Files that bob makes unreadable from the beginning, and while the step runs."""
    here, there = local_files.shared(cluster, "with-bobs")
    if not os.path.isdir(here):
        os.system(f"cp -a '{local_files.tree(cluster)}' '{here}' && chown -R 2001:2001 '{here}'")
    bobs(f"{here}/bobs", 0o755)
    bobs(f"{here}/bobs/open", 0o644, "open\n")
    bobs(f"{here}/bobs/writable", 0o666, "secret\n")
    bobs(f"{here}/bobs/shut", 0o600, "secret\n")
    bobs(f"{here}/bobs/shut-directory", 0o700)
    bobs(f"{here}/bobs/shut-directory/file", 0o644, "secret\n")
    bobs(f"{here}/data/bobs", 0o600, "secret\n")
    bobs(f"{here}/root-only", 0o600, "secret\n")
    os.chown(f"{here}/root-only", 0, 0)
    signs, _ = local_files.shared(cluster, "signs")
    os.makedirs(signs, exist_ok=True)
    os.chmod(signs, 0o777)
    for name in os.listdir(signs):
        os.unlink(os.path.join(signs, name))
    step = cluster.start_srun(*ON, "--container-mounts=/home/shared/signs:/signs", "bash", "-c", """
exec 2>/dev/null
tries() {
  for file in "$@"; do
    cat $file
    mv $file $file.moved && cat $file.moved
    ln $file /tmp/link && cat /tmp/link
    chmod 666 $file && cat $file
    chown $(id -u) $file && cat $file
    touch $file && cat $file
    cp $file /tmp/copy && cat /tmp/copy
    (exec 5<>$file && cat <&5)
    (echo x >>$file) && cat $file
    mv /data /tmp/moved && cat /tmp/moved/bobs
    mv /tmp/moved /data
  done
}
cat /bobs/open
tries /bobs/shut /bobs/shut-directory/file /data/bobs /root-only
ls /bobs/shut-directory
ls /bobs >/dev/null; cat /bobs/writable >/dev/null
: >/signs/seen
until test -e /signs/shut; do sleep 0.05; done
tries /bobs/writable
: >/signs/tried
until test -e /signs/shut-above; do sleep 0.05; done
ls /bobs
tries /bobs/open /bobs/later
echo end""", image=there)
    try:
        await_true(lambda: os.path.exists(f"{signs}/seen"), 20, "the step does not begin")
        bobs(f"{here}/bobs/writable", 0o600, "secret\n")
        open(f"{signs}/shut", "w").close()
        await_true(lambda: os.path.exists(f"{signs}/tried"), 20, "the step does not go on")
        bobs(f"{here}/bobs", 0o700)
        bobs(f"{here}/bobs/later", 0o644, "secret\n")
        open(f"{signs}/shut-above", "w").close()
        done = step.end()
    finally:
        for name in ("shut", "shut-above"):  # lets it end
            open(f"{signs}/{name}", "w").close()
    equal(done.out, "open\nend\n", "what the step could read", done)
    cluster.must_be_quiet()
