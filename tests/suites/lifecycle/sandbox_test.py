"""scontainer sandbox in a step: many at once, and nothing of them after the step."""

import json

from command import await_true
from harness import equal, expect, test

BASE = "registry:5000/suites/base:1"
MANY = 200
STATE = "/home/alice/sandboxes"
HERE = [f"XDG_RUNTIME_DIR={STATE}"]

CREATE = f"""
scontainer pull -q {BASE} >/dev/null
seq {MANY} | xargs -P 4 -I% scontainer sandbox create --name=s% --pids=10 {BASE} >/dev/null || exit 1
"""


def helpers(cluster):
    """Returns the idle processes of sandboxes and images, and the servers of images, on all nodes."""
    return cluster.everybody("sandbox-idle") + cluster.everybody("fuse")


def step(cluster, script, *options):
    return cluster.start("srun", "-w", cluster.nodes[0], *options, "bash", "-c", script, env=HERE)


def must_leave_nothing(cluster, mounts):
    await_true(lambda: not helpers(cluster), 20, "processes of sandboxes remain")
    equal(cluster.mounts(cluster.nodes[0]), mounts, "mounts")
    # the kill leaves records, which the next command removes
    listed = f"scontainer sandbox list --json; find {STATE} -type f ! -name '*.lock'; rm -r {STATE}"
    equal(step(cluster, listed).end().good(), "[]", "records")


@test
def step_runs_200_sandboxes(cluster):
    cluster.run("mkdir", STATE).good()
    mounts = cluster.mounts(cluster.nodes[0])
    lines = step(cluster, CREATE + f"""
seq {MANY} | xargs -P 4 -I% scontainer sandbox exec s% sh -c 'echo % >/mine; cat /mine; sleep 1000 >/dev/null 2>&1 &' | sort -n | tail -n 1
scontainer sandbox exec s7 cat /mine
scontainer sandbox list --json
""").end(120).good().splitlines()
    equal(lines[:2], [str(MANY), "7"], "the output of commands")
    found = json.loads(lines[2])
    equal(len(found), MANY, "sandboxes that are listed")
    expect(all(one["job"] and one["pids"] == 10 for one in found), "job and limits", found[0])
    # nothing was stopped: they end with the step
    must_leave_nothing(cluster, mounts)


@test
def cancelled_step_leaves_no_sandbox(cluster):
    cluster.run("mkdir", STATE).good()
    mounts = cluster.mounts(cluster.nodes[0])
    cancelled = step(cluster, CREATE + "sleep 1000", "-J", "sandboxes")
    try:
        await_true(lambda: len(helpers(cluster)) > MANY // 4, 60, "no sandboxes are made")
    finally:
        cluster.run("scancel", "-n", "sandboxes")
        cancelled.end(30)
    must_leave_nothing(cluster, mounts)
