"""Training with PyTorch on two nodes: in a container, and from the same files without one."""

import on_cluster
from compare import Comparison
from machine import SOURCE, BenchmarkError, say, test_image
from on_cluster import SHARED

TREE = f"{SHARED}/tree"
# The image's files as the root directory of a plain process: no container, but the same Python,
# PyTorch and C library.
BARE = f"""
for name in dev proc sys; do mount --rbind /$name {TREE}/$name; done
mount --bind {SHARED} {TREE}/workspace
mount --bind /etc/hosts {TREE}/etc/hosts  # the ranks find each other by name
exec chroot --userspec="$(id -u alice):$(id -g alice)" {TREE} /usr/bin/env HOME=/tmp PATH=/usr/bin:/bin "$@"
"""


def measure(work, build, quick):
    comparison = Comparison("ddp: training steps a second, two nodes with two ranks each, gloo")
    image = test_image("pytorch")
    with on_cluster.cluster(work, build, 2) as cluster:
        name = cluster.push(image, "bench/pytorch:1")
        cluster.share(SOURCE / "benchmarks/ddp/steps.py", SOURCE / "packaging/examples/train.py")
        unpack(cluster, name)
        job = ["-N2", "--ntasks-per-node=2"]
        program = ["/usr/bin/python3", "/workspace/steps.py", "2" if quick else "12"]
        variables = ["OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1"]
        ways = {"bare": ["srun", *job, "unshare", "--mount", "sh", "-c", BARE, "sh", *variables, *program],
                # Also in a job of root, with processes of alice in both.
                "container": ["srun", *job, f"--container-image={name}", f"--container-mounts={SHARED}:/workspace", "/usr/bin/env",
                              "HOME=/tmp", *variables, *program]}
        say("training")
        cluster.turns("root", job, ways, 1)
        for said in cluster.turns("root", job, ways, 2 if quick else 10):
            add(comparison, {name: on_cluster.json_lines(turn.out)[-1] for name, turn in said.items()}, {name: turn.quiet for name, turn in said.items()})
    return comparison


def unpack(cluster, name):
    say("unpacking pytorch on the disk")
    copying = f"mkdir /copy/tree; tar -C / --one-file-system -c . 2>/dev/null | tar -C /copy/tree -x --no-same-owner; chmod 755 /copy/tree; touch /copy/tree/etc/hosts"
    cluster.call("as", "root", "srun", "-N1", f"--container-image={name}", f"--container-mounts={SHARED}:/copy", "sh", "-c", copying)


def add(comparison, results, quiet):
    bare, ours = results["bare"], results["container"]
    if bare["parameters"] != ours["parameters"] or bare["torch"] != ours["torch"]:
        raise BenchmarkError(f"the same training has other results in a container: {bare} and {ours}")
    pair = comparison.pair("ddp.steps", "1/s", f"steps of {bare['ranks']} ranks, torch {bare['torch']}", better="higher")
    for side, result in results.items():
        pair.add(side, result["steps"], quiet[side])
