"""`enroot list|exec|export|remove` and `scontainer containers` show and change containers of
--container-name, also running ones."""
import json
import os

from command import await_true
from harness import equal, expect, test
from named_test import containers, in_trash, run, start
from plugstack import plugstack

NODE = ("-w", "node01", "--overlap")


def on_node(cluster, *command, user="alice", timeout=60):
    return cluster.run("srun", *NODE, *command, user=user, timeout=timeout)


def enroot(cluster, *words, **how):
    return on_node(cluster, "enroot", *words, **how)


def noted(cluster, user="alice"):
    """Returns the names noted in the user's home."""
    done = cluster.run("scontainer", "containers", "--json", user=user)
    return {one["name"]: one for one in json.loads(done.good())}


@test
def enroot_lists_and_removes_named_containers(cluster):
    run(cluster, "listed", "echo mine >/etc/issue", image="base").good()
    before = containers(cluster)
    expect("pyxis_listed" in enroot(cluster, "list").good().split(), "it is not listed")
    expect("pyxis_listed" not in enroot(cluster, "list", user="bob").good().split(), "bob sees it")
    refused = enroot(cluster, "remove", "-f", "pyxis_listed", user="bob")
    expect(refused.rc != 0 and "No such file or directory" in refused.err, "bob removes it", refused)
    enroot(cluster, "remove", "-f", "pyxis_listed").good("")
    expect("pyxis_listed" not in enroot(cluster, "list").good().split(), "it is still listed")
    expect(len(containers(cluster)) < len(before), "it is still in the store")
    gone = run(cluster, "listed", "true")
    equal(gone.errors(), ['a container with name "listed" does not exist, and --container-image is not set'], "error", gone)
    await_true(lambda: not in_trash(cluster), 10, "its files are still there")


@test
def container_with_lost_record_is_listed_after_next_step(cluster):
    run(cluster, "lost", "echo mine >/mine", image="base").good()
    noted_at = os.path.join(cluster.home, "alice/.local/share/spank-container/named")
    for file in os.listdir(noted_at):
        with open(os.path.join(noted_at, file)) as note:
            text = note.read()
        if "name=lost\0" in text:
            os.unlink(os.path.join(noted_at, file))
    expect("lost" not in noted(cluster), "it is noted still")
    run(cluster, "lost", "cat /mine").good("mine")
    one = noted(cluster)["lost"]
    equal((one["node"], one["image"]), ("node01", "registry:5000/suites/base:1"), "what is noted")
    cluster.run("scontainer", "containers", "rm", "lost", timeout=60).good("")


@test
def enroot_lists_enters_and_removes_running_container(cluster):
    before = containers(cluster)
    first = start(cluster, "busy", "echo up >/state; echo up; while test ! -e /end; do sleep 0.1; done; echo end", "-J", "busy", image="base")
    first.await_text("up")
    table = enroot(cluster, "list", "-f").good().splitlines()
    row = next(line.split() for line in table if line.startswith("pyxis_busy "))
    equal(row[2], "bash", "the command of the process")
    enroot(cluster, "exec", row[1], "cat", "/state").good("up")
    enroot(cluster, "exec", "-e", "WORD=two words", row[1], "sh", "-c", 'echo "$WORD" >/word; cat /word').good("two words")
    enroot(cluster, "remove", "-f", "pyxis_busy").good("")
    # The name is free at once, and the steps of the removed container keep its files, also after an epilog.
    run(cluster, "busy", "test ! -e /state; echo new >/state", image="base").good()
    await_true(lambda: len(in_trash(cluster)) == 1, 10, "not its files alone wait for their deletion")
    enroot(cluster, "exec", row[1], "sh", "-c", "cat /state; touch /end").good("up")
    first.end().good("up\nend")
    run(cluster, "busy", "cat /state").good("new")
    on_node(cluster, "scontainer", "containers", "rm", "busy").good("")
    await_true(lambda: containers(cluster) == before and not in_trash(cluster), 10, "it is still in the store")


@test
def enroot_lists_and_enters_container_with_remapped_root(cluster):
    """The kernel shows neither the variables nor the root of its tasks to their user."""
    run(cluster, "rooted", "true", "--container-remap-root", image="base").good()
    made = noted(cluster)["rooted"]["made"]
    first = start(cluster, "rooted", "echo up >/state; echo up; while test ! -e /end; do sleep 0.1; done", "--container-remap-root", image="base")
    first.await_text("up")
    # Another step of the same container, and a container without a name.
    second = start(cluster, "rooted", "echo joined; while test ! -e /end; do sleep 0.1; done")
    second.await_text("joined")
    plain = cluster.start_srun(*NODE, "--container-remap-root", "sh", "-c", "echo $SLURM_JOB_ID.$SLURM_STEP_ID; sleep 100")
    plain.await_text(".0")
    name = "pyxis_" + plain.said().split()[-1]
    rows = [line.split() for line in enroot(cluster, "list", "-f").good().splitlines()]
    equal(sorted(row[0] for row in rows if row[0] in ("pyxis_rooted", name)), sorted(["pyxis_rooted", "pyxis_rooted", name]), f"names in {rows}")
    pid = next(row for row in rows if row[0] == "pyxis_rooted")[1]
    enroot(cluster, "exec", pid, "sh", "-c", "id -u; cat /state").good("0\nup")
    enroot(cluster, "exec", next(row for row in rows if row[0] == name)[1], "id", "-u").good("0")
    expect(noted(cluster)["rooted"]["made"] == made, "it is listed as made again")
    enroot(cluster, "exec", pid, "touch", "/end").good()
    first.end().good("up")
    second.end().good("joined")
    cluster.run("scancel", "-s", "KILL", name[6:]).good()
    plain.end()
    enroot(cluster, "remove", "-f", "pyxis_rooted").good("")


@test
def enroot_exports_named_container(cluster):
    run(cluster, "written", "echo exported >/etc/issue", image="base").good()
    file = os.path.join(cluster.home, "alice/written.sqsh")
    enroot(cluster, "export", "-o", "/home/alice/written.sqsh", "pyxis_written").good()
    cluster.run("srun", "--container-image=/home/alice/written.sqsh", "cat", "/etc/issue").good("exported")
    again = enroot(cluster, "export", "-o", "/home/alice/written.sqsh", "pyxis_written")
    expect(again.rc != 0 and "File already exists" in again.err, "it writes over a file", again)
    os.unlink(file)
    enroot(cluster, "remove", "-f", "pyxis_written").good()


@test
def containers_are_removed_from_allocation_shell_on_login_node(cluster):
    """As in pyxis's own tests. A new job would wait for the node."""
    before = containers(cluster)
    run(cluster, "by-shell", "true", image="base").good()
    run(cluster, "by-shell2", "true", image="base").good()
    script = "enroot list | grep by-shell | sort; enroot remove -f pyxis_by-shell pyxis_by-shell2; enroot list | grep -c by-shell"
    done = cluster.run("salloc", "-Q", "-w", "node01", "--exclusive", "sh", "-c", script, timeout=60)
    equal(done.out.split(), ["pyxis_by-shell", "pyxis_by-shell2", "0"], "output", done)
    equal(containers(cluster), before, "what is in the store", done)


@test
def job_scoped_names_are_listed_like_pyxis_and_end_with_job(cluster):
    before, known = containers(cluster), noted(cluster)
    with plugstack(cluster, "container_scope=job"):
        cluster.program("restart", "node01").good()
        script = ("srun --overlap --container-name=ours --container-image=registry:5000/suites/base:1 true\n"
                  "srun --overlap --container-name=stays --container-image=registry:5000/suites/base:1 true\n"
                  "enroot list | grep -c pyxis_${SLURM_JOB_ID}_\nenroot remove -f pyxis_${SLURM_JOB_ID}_ours\nenroot list | grep pyxis_${SLURM_JOB_ID}_ | sed s/$SLURM_JOB_ID/JOB/\n")
        cluster.batch("#!/bin/sh\n" + script, "-w", "node01").good("2\npyxis_JOB_stays")
        await_true(lambda: containers(cluster) == before, 10, "one is still in the store")
        equal(noted(cluster).keys(), known.keys(), "what is noted when the job has ended")
    cluster.program("restart", "node01").good()


@test
def scontainer_manages_containers_from_login_node(cluster):
    before = containers(cluster)
    run(cluster, "tools", "echo tool >/tool", image="base").good()
    one = noted(cluster)["tools"]
    equal((one["node"], one["image"], one["owner"], one["in_use"]), ("node01", "registry:5000/suites/base:1", "alice", False), "what is noted")
    expect("tools" not in noted(cluster, "bob"), "bob has it noted")
    (shown,) = json.loads(cluster.run("scontainer", "containers", "inspect", "tools").good())
    expect(shown["digest"].startswith("sha256:"), f"no digest: {shown}")
    cluster.run("scontainer", "containers", "export", "tools", "/home/alice/tools.sqsh", timeout=60).good()
    cluster.run("srun", "--container-image=/home/alice/tools.sqsh", "cat", "/tool").good("tool")
    os.unlink(os.path.join(cluster.home, "alice/tools.sqsh"))
    cluster.run("scontainer", "containers", "rm", "tools", timeout=60).good("")
    expect("tools" not in noted(cluster), "it is still noted")
    gone = cluster.run("scontainer", "containers", "rm", "tools")
    expect(gone.rc == 1 and 'no container "tools"' in gone.err, "another error", gone)
    equal(containers(cluster), before, "what is in the store")


@test
def root_manages_containers_of_all_users(cluster):
    before = containers(cluster)
    run(cluster, "of-both", "echo alice >/who", image="base").good()
    run(cluster, "of-both", "echo bob >/who", image="base", user="bob").good()
    busy = start(cluster, "of-bob", "echo up; sleep 60", "-J", "of-bob", image="base", user="bob")
    busy.await_text("up")
    listed = json.loads(cluster.root("node01", "scontainer", "containers", "--json").good())
    equal(sorted((one["owner"], one["name"], one["in_use"]) for one in listed if one["name"].startswith("of-")),
          [("alice", "of-both", False), ("bob", "of-bob", True), ("bob", "of-both", False)], "list")
    two = cluster.root("node01", "scontainer", "containers", "rm", "of-both")
    expect(two.rc == 1 and "choose one with USER/NAME" in two.err, "root need not choose", two)
    cluster.root("node01", "scontainer", "containers", "export", "bob/of-both", "/home/bob/of-both.sqsh").good()
    cluster.run("srun", "--container-image=/home/bob/of-both.sqsh", "cat", "/who", user="bob").good("bob")
    os.unlink(os.path.join(cluster.home, "bob/of-both.sqsh"))
    cluster.root("node01", "scontainer", "containers", "rm", "bob/of-both", "2001/of-both").good("")
    in_use = cluster.root("node01", "scontainer", "containers", "rm", "of-bob")
    expect(in_use.rc == 1 and "it is in use (hint: --force removes it; its steps go on)" in in_use.err, "another error", in_use)
    cluster.root("node01", "scontainer", "containers", "rm", "--force", "bob/of-bob").good("")
    cluster.run("scancel", "-n", "of-bob", user="bob").good()
    busy.end()
    await_true(lambda: containers(cluster) == before, 10, "one is still in the store")


@test
def remove_runs_in_every_task_and_is_never_explained(cluster):
    before = containers(cluster)
    run(cluster, "many", "true", image="base").good()
    run(cluster, "many:remove", "exit 3", "--container-explain=all").good()
    expect(containers(cluster) != before, "explaining has removed it")
    run(cluster, "many:remove", "exit 3", "-n3", "-O").good("")
    equal(containers(cluster), before, "what is in the store")
    again = run(cluster, "many:remove", "true")
    equal(again.errors(), ['--container-name: "remove" flag was passed: the container "many" does not exist'], "error", again)


@test
def root_export_reveals_nothing_of_root(cluster):
    script = "printf '#!/bin/sh\\nenv >/learnt\\n' >/usr/bin/true; chmod 755 /usr/bin/true"
    run(cluster, "curious", script, image="base", user="bob").good()
    file = os.path.join(cluster.home, "bob/curious.sqsh")
    cluster.root("node01", "env", "TOKEN=of-root", "scontainer", "containers", "export", "bob/curious", "/home/bob/curious.sqsh").good()
    learnt = cluster.run("srun", "--container-image=/home/bob/curious.sqsh", "cat", "/learnt", user="bob").good()
    expect("PATH=" in learnt and "HOME=/home/bob" in learnt, f"it has not run: {learnt}")
    expect("of-root" not in learnt and "=/root" not in learnt, f"it has learnt: {learnt}")
    os.unlink(file)
    cluster.root("node01", "scontainer", "containers", "rm", "bob/curious").good("")
