"""packaging/examples/accept-node: a good node is accepted, and a bad one is not, with the row that says why."""
import contextlib
import json
import os
import re

import mpi_test
from command import await_true
from harness import equal, expect, test
from plugstack import plugins_of
from site_files import rules

PROGRAM = "/usr/share/doc/spank-container/examples/accept-node"
COMMAND = (PROGRAM, "-w", "node01", "--image", "registry:5000/suites/base:1")
SECONDS = 90
LAST_CHECK = "next container"  # of those that run in the job


def failed_rows(done):
    return re.findall(r"^(?:works|degrades|leaves) +(\S.*?) +FAILED +(.*)$", done.out, re.M)


def must_fail(done, *rows):
    """The node is not accepted; each row is (name, pattern of the detail)."""
    expect(done.rc == 1 and "node01: not accepted (" in done.out, "the node is accepted", done)
    found = failed_rows(done)
    equal([name for name, _ in found], [name for name, _ in rows], "failed rows", done)
    for (name, detail), (_, pattern) in zip(found, rows):
        expect(re.search(pattern, detail), f"{name} does not say {pattern!r}", done)


@contextlib.contextmanager
def fake_block_devices(cluster, *nodes):
    """Hides the loop devices of other clusters: all nodes of this machine share its kernel. The runner checks those of
    the nodes after each test. Yields a function that adds a loop device, by its file."""
    def add(path):
        cluster.root(nodes[0], "sh", "-c", f"mkdir -p /sys/block/loop7/loop; echo {path} >/sys/block/loop7/loop/backing_file").good()
    try:
        for node in nodes:
            cluster.root(node, "mount", "-t", "tmpfs", "fake", "/sys/block").good()
        yield add
    finally:
        for node in nodes:
            cluster.root(node, "umount", "/sys/block")


@contextlib.contextmanager
def checks_in_the_job(cluster):
    """Yields when the checks in the job have run. The caller makes the node bad; then the rest goes on."""
    run = cluster.start(*COMMAND)
    run.await_text(LAST_CHECK, SECONDS)
    yield run


@test
def node_is_accepted(cluster):
    with fake_block_devices(cluster, "node01"):
        done = cluster.run(*COMMAND, "--json", timeout=SECONDS)
        told = json.loads(done.good())
        equal((told["node"], told["accepted"]), ("node01", True), "the node", done)
        results = {row["name"]: row["result"] for row in told["checks"]}
        equal({name for name, result in results.items() if result != "ok"}, {"GPU", "MPI"}, "rows that are not ok", done)
        equal({row["group"] for row in told["checks"]}, {"works", "degrades", "leaves"}, "groups", done)
        details = {row["name"]: row["detail"] for row in told["checks"]}
        expect(re.search(r"exit status 1: spank-container: pull image .*\(hint: ", details["missing image"]), "no error with a hint", done)
        expect("nvidia-smi" in details["GPU"] and "mpi4py" in details["MPI"], "no reason for skipped rows", done)


@test
def node_is_accepted_by_root(cluster):
    with fake_block_devices(cluster, "node01", "node02"):
        done = cluster.root("head", *COMMAND, "--as-root", "alice")
        equal((done.rc, done.out.splitlines()[-1]), (0, "node01: accepted"), "last line", done)
        on_node = cluster.root("node02", PROGRAM, "-w", "node02", "--image", COMMAND[-1], "--as-root", "alice")
        equal((on_node.rc, on_node.out.splitlines()[-1]), (0, "node02: accepted"), "last line", on_node)


@test
def mpi_program_is_run_by_two_ranks(cluster):
    image = mpi_test.prepare(cluster)
    with fake_block_devices(cluster, "node01"):
        done = cluster.run(PROGRAM, "-w", "node01", "--image", image, "--mpi", "python3 -c 'from mpi4py import MPI; MPI.COMM_WORLD.size == 2 or exit(1)'",
                           timeout=SECONDS)
        expect(done.rc == 0 and re.search(r"^works +MPI +ok +pmix, 2 ranks$", done.out, re.M), "MPI is not ok", done)
        bad = cluster.run(PROGRAM, "-w", "node01", "--image", image, "--mpi", "exit 3", timeout=SECONDS)
        must_fail(bad, ("MPI", "exit status 3"))


@test
def node_without_plugin_is_not_accepted(cluster):
    with plugins_of(cluster, "node01"):
        done = cluster.run(*COMMAND, timeout=SECONDS)
    expect(done.rc == 1 and done.out.endswith("failed)\n"), "the node is accepted", done)
    expect("container" in dict(failed_rows(done)), "the row does not say so", done)


@test
def node_with_wrong_configuration_is_not_accepted(cluster):
    with fake_block_devices(cluster, "node01"):
        with rules(cluster, "writeable = true\n"):
            done = cluster.run(*COMMAND, timeout=SECONDS)
        expect(done.rc == 1, "the node is accepted", done)
        # Containers start by the last valid configuration.
        must_fail(done, ("doctor", "unknown key"))


@test
def leftovers_of_the_job_are_not_accepted(cluster):
    """A process of the user, a file, and a mount of the store appear while the job runs."""
    leave = ("setpriv --reuid 2001 --clear-groups setsid sleep 63 >/dev/null 2>&1 </dev/null & "
             "touch /tmp/left-by-accept-node; mkdir /run/spank-container/left && mount -t tmpfs left /run/spank-container/left")
    before = cluster.processes("node01", "sleep")
    with fake_block_devices(cluster, "node01") as add_loop_device:
        try:
            with checks_in_the_job(cluster) as run:
                cluster.root("node01", "sh", "-c", leave).good()
                add_loop_device("/var/lib/spank-container/layers/sha256/left.sqsh")
                done = run.end(SECONDS)
        finally:
            cluster.root("node01", "sh", "-c", "umount /run/spank-container/left; rmdir /run/spank-container/left; rm /tmp/left-by-accept-node")
            for process in set(cluster.processes("node01", "sleep")) - set(before):
                os.kill(process, 9)
        must_fail(done, ("no mounts", "/run/spank-container/left"), ("no loop devices", "left.sqsh"), ("no processes", "sleep 63"),
                  ("no files", "/tmp/left-by-accept-node"))


@test
def drained_node_is_not_accepted(cluster):
    try:
        with checks_in_the_job(cluster) as run:
            cluster.run("scontrol", "update", "nodename=node01", "state=drain", "reason=broken", user="root").good()
            await_true(lambda: "drain" in " ".join(cluster.states()), 10, "the node is not drained")
            done = run.end(SECONDS)
    finally:
        cluster.run("scontrol", "update", "nodename=node01", "state=resume", user="root")
    expect(done.rc == 1 and "broken" in dict(failed_rows(done)).get("node state", ""), "the row does not say so", done)


@test
def interrupted_run_ends_its_job(cluster):
    run = cluster.start("sh", "-c", f'echo "$$"; exec {" ".join(COMMAND)}')
    run.await_text("works    tasks", SECONDS)
    cluster.run("kill", "-TERM", run.said().split()[0])
    done = run.end(SECONDS)
    equal(done.rc, 130, "exit status", done)
    await_true(lambda: not cluster.inquirer.ask("squeue -h"), 10, "the job goes on")
    equal(cluster.root("node01", "sh", "-c", "ls -d /tmp/accept-node.* 2>/dev/null || true").out, "", "files on the node")


@test
def wrong_arguments_are_explained(cluster):
    for arguments, why in (((), "name one node: accept-node -w NODE"), (("-w", "a b"), "name one node"), (("--nope",), "unknown argument --nope"),
                           (("-w", "node01", "--as-root", "bob"), "--as-root is for root"), (("-w", "node09"), "cannot run a step on node09")):
        done = cluster.run(PROGRAM, *arguments)
        expect((done.rc, done.out) == (2, "") and why in done.err, f"{arguments}: not {why!r}", done)
    done = cluster.run(PROGRAM, "--help").good()
    expect("usage: accept-node -w NODE" in done and "--as-root USER" in done, "the help does not explain it")
