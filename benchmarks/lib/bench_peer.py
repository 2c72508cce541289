"""The same command lines on two clusters: one with pyxis, and one with this plugin. Only if pyxis
and enroot are installed."""

import shutil
from pathlib import Path

import on_cluster
from compare import Comparison
from machine import Skipped, call, has, say, test_image
from on_cluster import SHARED

ONE = ["-N1", "-n1", "-w", "node01"]
FILE = "pytorch.sqsh"
WHAT = {
    "first": "a job's first step, image by name; it has been pulled before",
    "later": "a later step, in the container that the first one made",
    "torch": "the same, import torch",
    "file": "a job's first step, image from a squashfs file",
}


def measure(work, build, quick):
    plugin = find_pyxis()
    if plugin is None:
        raise Skipped("there is no spank_pyxis.so in a directory of Slurm's plugins")
    if not has("enroot"):
        raise Skipped("pyxis is installed, but enroot is not")
    comparison = Comparison("peer: the same commands on a cluster with pyxis and enroot, and with spank-container", labels=("pyxis", "container"))
    image = test_image("pytorch")
    work_of = {"pyxis": work / "pyxis", "container": work / "ours"}
    for directory in work_of.values():
        directory.mkdir()
    with on_cluster.cluster(work_of["pyxis"], build, 1, f"required {plugin}") as peer, on_cluster.cluster(work_of["container"], build, 1) as ours:
        clusters = {"pyxis": peer, "container": ours}
        for cluster in clusters.values():
            cluster.push(image, "bench/pytorch:1")
        make_file(clusters)
        say("pulling")
        for cluster in clusters.values():
            one_round(cluster, "pull")
        say("starting containers")
        for number in range(2 if quick else 10):
            for side, cluster in sorted(clusters.items(), reverse=number % 2 == 1):
                for name, turn in one_round(cluster, f"round{number}").items():
                    comparison.pair(f"peer.{name}", "ms", WHAT[name]).add("bare" if side == "pyxis" else side, turn.ms, turn.quiet)
    return comparison


def find_pyxis():
    """Returns the path at which packages or its own Makefile install it."""
    places = [Path("/usr/local/lib/slurm"), Path("/usr/lib64/slurm"), Path("/usr/lib/slurm"), *Path("/usr/lib").glob("*/slurm"), *Path("/usr/lib").glob("*/slurm-wlm")]
    return next((place / "spank_pyxis.so" for place in places if (place / "spank_pyxis.so").exists()), None)


def make_file(clusters):
    """Makes one file that both can read."""
    ours = clusters["container"]
    say("writing the image to a file")
    ours.call("as", "alice", "srun", "--container-image=registry:5000/bench/pytorch:1", f"--container-save={SHARED}/{FILE}", "true")
    shutil.copy(ours.directory / "home/shared" / FILE, clusters["pyxis"].directory / "home/shared")


def one_round(cluster, name):
    """Runs two jobs with each command once."""
    step = ["srun", *ONE, f"--container-name={name}"]
    ways = {
        "first": [*step, "--container-image=registry:5000#bench/pytorch:1", "true"],
        "later": [*step, "true"],
        "torch": [*step, "python3", "-c", "import torch"],
    }
    (by_name,) = cluster.turns("alice", ONE, ways, 1)
    (by_file,) = cluster.turns("alice", ONE, {"file": ["srun", *ONE, f"--container-image={SHARED}/{FILE}", "true"]}, 1)
    # A site of pyxis may keep named containers after the job. The next round has its own, so this
    # one is not needed.
    call("rm", "-rf", *(cluster.directory / "home/alice/.local/share/enroot").glob("pyxis_*"))
    return {**by_name, **by_file}
