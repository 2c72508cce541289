"""The layers of a job's steps stay mounted between the steps, and no longer than the job."""
import contextlib
import json
import os
import re

from cleanup_test import back_in_order
from cluster import kill_all
from command import await_true
from images import digest_of, with_probe
from harness import equal, expect, test

ON = ("-w", "node01")
BASE_LAYERS = 3

# The topmost mount at each place of held layers, seen by root in the namespace: name, device
# number.
LOOK = """
import ctypes, os
held = os.open("/run/spank-container/steps/held", os.O_RDONLY)
if ctypes.CDLL(None, use_errno=True).setns(held, 0x20000) != 0:
    raise OSError(ctypes.get_errno(), "setns")
for name in sorted(os.listdir("/")):
    if os.path.isdir("/" + name):
        print(name, os.major(os.stat("/" + name).st_dev), os.minor(os.stat("/" + name).st_dev))
"""


@contextlib.contextmanager
def job(cluster, user="alice"):
    """Starts an idle job on node01 and yields its number."""
    number = cluster.submit("#!/bin/sh\nexec sleep 60\n", *ON, user=user)
    try:
        cluster.await_state(number, "RUNNING")
        yield number
    finally:
        cluster.run("scancel", str(number), user=user)
        cluster.await_job(number)


def step(cluster, number, *command, **how):
    return cluster.srun(f"--jobid={number}", "--overlap", *(command or ("cat", "/workspace/replaced")), **how)


def shared(done):
    """Returns how many layers were mounted already, from --container-verbose."""
    return int(re.search(r"layers \((\d+) shared", done.err)[1])


def held(cluster):
    """By job: the loop device of one of its held layers."""
    found = {}
    for line in cluster.root("node01", "python3", "-c", LOOK).good().splitlines():
        name, major, minor = line.split()
        expect(major == "7", f"{line}: not on a loop device")
        found[int(name.split(".")[1])] = f"loop{minor}"
    return found


# --- within a job ------------------------------------------------------------------------------------------------------

@test
def second_step_of_job_finds_layers_mounted(cluster):
    with job(cluster) as number:
        first = step(cluster, number, "--container-verbose", "cat", "/workspace/replaced")
        first.good()
        equal(shared(first), 0, "layers that the first step finds mounted", first)
        await_true(lambda: held(cluster).keys() == {number}, 5, "the job holds nothing")
        loops, device = cluster.loops("node01"), held(cluster)[number]
        equal(len(loops), BASE_LAYERS, "loop devices between the steps")
        second = step(cluster, number, "--container-verbose", "cat", "/workspace/replaced")
        equal((second.good(), second.out), ("upper", first.out), "what the second step reads", second)
        equal(shared(second), BASE_LAYERS, "layers that the second step finds mounted", second)
        equal((cluster.loops("node01"), held(cluster)), (loops, {number: device}), "loop devices, and what is held, afterwards")
        expect(not cluster.processes("node01", "agent"), "a process holds the layers")
    cluster.must_be_quiet(within=2)


@test
def node_mount_table_hides_layers_held_by_a_job(cluster):
    before = cluster.mounts("node01")
    with job(cluster) as number:
        step(cluster, number).good()
        await_true(lambda: held(cluster).keys() == {number}, 5, "the job holds nothing")
        equal(cluster.mounts("node01"), before, "mount table")


def place_of_image(digest):
    """Of two images for the same place, a job holds only one."""
    return int(digest.removeprefix("sha256:")[:2], 16) % 8


@test
def job_holds_layers_of_several_images(cluster):
    with open(f"{cluster.base_layout}/index.json") as file:
        base = json.load(file)["manifests"][0]["digest"]
    images = (with_probe("held", [("data", b"x" * size)]) for size in range(1, 100))
    other = cluster.push(next(image for image in images if place_of_image(digest_of(image.parts()[0])) != place_of_image(base)))
    with job(cluster) as number:
        for image in ("base", other, "base", other):
            last = step(cluster, number, "--container-verbose", "/probe" if image == other else "true", image=image)
            last.good()
        expect(shared(last) > 0, "the second image was not held", last)
    cluster.must_be_quiet(within=2)


@test
def layer_removed_meanwhile_is_fetched_again(cluster):
    name = cluster.push(with_probe("held-evicted", [("data", os.urandom(1000))]))
    with job(cluster) as number:
        step(cluster, number, "/probe", image=name).good()
        await_true(lambda: held(cluster).keys() == {number}, 5, "the job holds nothing")
        store = cluster.store("node01")
        newest = max(os.scandir(f"{store}/records"), key=lambda entry: entry.stat().st_mtime)
        layers = open(newest.path, "rb").read()
        gone = [file for file in cluster.layers("node01") if bytes.fromhex(file.removesuffix(".sqsh")) in layers]
        expect(gone, "the record names no layer, the test is void")
        os.unlink(newest.path)
        for file in gone:
            os.unlink(f"{store}/layers/sha256/{file}")
        again = step(cluster, number, "--container-verbose", "/probe", image=name)
        again.good()
        equal(shared(again), 0, "layers of the new files that were mounted", again)
        equal(set(gone) - cluster.layers("node01"), set(), "layers that are missing")
    cluster.must_be_quiet(within=2)


# --- others ------------------------------------------------------------------------------------------------------------

@test
def layers_held_by_a_job_are_released_at_its_end(cluster):
    with job(cluster, user="bob") as of_bob:
        with job(cluster) as first, job(cluster) as second:
            for number in (first, second):
                step(cluster, number).good()
            step(cluster, of_bob, user="bob").good()
            await_true(lambda: held(cluster).keys() == {first, second, of_bob}, 5, "not every job holds its layers")
            equal(len(cluster.loops("node01")), BASE_LAYERS, "loop devices of three jobs")
        await_true(lambda: held(cluster).keys() == {of_bob}, 5, "what a job held is left")
        step(cluster, of_bob, user="bob").good()
    cluster.must_be_quiet(within=2)


@test
def manual_pull_by_root_releases_no_held_layers(cluster):
    other = cluster.push(with_probe("held-by-hand", [("data", os.urandom(1000))]))
    with job(cluster) as number:
        step(cluster, number).good()
        await_true(lambda: held(cluster).keys() == {number}, 5, "the job holds nothing")
        before = held(cluster)
        cluster.root("node01", "scontainer", "pull", other).good()
        equal(held(cluster), before, "what is held after scontainer pull")
    cluster.must_be_quiet(within=2)


@test
def failure_to_hold_layers_is_only_logged_by_slurmd(cluster):
    told = "hold the layers for the job's later steps: invalid argument"
    held_there = "/run/spank-container/steps/held"
    logged = cluster.program("logs", "node01").out.count(told)
    with job(cluster) as number:
        cluster.root("node01", "mount", "--bind", "/etc/hostname", held_there).good()  # no namespace
        try:
            equal(step(cluster, number).good(), "upper", "what a step reads that cannot hold its layers")
            await_true(lambda: cluster.program("logs", "node01").out.count(told) == logged + 1, 5, "slurmd's log does not say so")
        finally:
            cluster.root("node01", "umount", held_there).good()
        step(cluster, number).good()
        await_true(lambda: held(cluster).keys() == {number}, 5, "the job holds nothing when it could again")
    cluster.must_be_quiet(within=2)


@test
def held_layers_are_unreachable_for_users(cluster):
    with job(cluster) as number:
        step(cluster, number).good()
        for path in ("held", "."):
            done = cluster.run("srun", f"--jobid={number}", "--overlap", "ls", f"/run/spank-container/steps/{path}")
            expect("Permission denied" in done.err, f"a user can read {path}", done)


# --- ends of every kind ------------------------------------------------------------------------------------------------

@test
def finished_job_leaves_nothing_mounted(cluster):
    cluster.batch("#!/bin/sh\nsrun --container-image=registry:5000/suites/base:1 true\n", *ON).good()
    cluster.must_be_quiet(within=2)


@test
def step_killed_at_start_leaves_nothing_mounted(cluster):
    with job(cluster) as number:
        for _ in range(5):
            running = cluster.start_srun(f"--jobid={number}", "--overlap", "sleep", "60")
            await_true(lambda: cluster.step_agents("node01"), 10, "the step does not begin")
            kill_all(cluster.step_agents("node01"))
            running.send(9)
            running.end(20)
        step(cluster, number).good()
    cluster.must_be_quiet(within=5)


@test
def job_with_killed_slurmstepds_leaves_nothing_mounted(cluster):
    with job(cluster) as number:
        step(cluster, number).good()
        await_true(lambda: held(cluster).keys() == {number}, 5, "the job holds nothing")
        kill_all(cluster.processes("node01", "slurmstepd"))
        cluster.run("scancel", str(number)).good()
        kill_all(cluster.strangers("node01"))
        await_true(lambda: not held(cluster), 30, "its layers are still mounted")
    cluster.must_be_quiet(within=5)
    back_in_order(cluster)


@test
def slurmd_start_releases_held_layers(cluster):
    with job(cluster) as number:
        step(cluster, number).good()
        await_true(lambda: held(cluster).keys() == {number}, 5, "the job holds nothing")
        cluster.program("restart", "node01").good()
        # The command may return before slurmd has started its plugins.
        await_true(lambda: not held(cluster) and not cluster.loops("node01"), 5, "layers are held, or loop devices are left")
        step(cluster, number).good()
        await_true(lambda: held(cluster).keys() == {number}, 5, "the job holds nothing after the restart")
    back_in_order(cluster)
    cluster.must_be_quiet(within=5)
