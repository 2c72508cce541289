"""Open MPI over PMIx between two ranks, without a container and in one: the same program and
library versions."""

import on_cluster
from compare import Comparison
from machine import SOURCE, BenchmarkError, call, has, say, test_image
from on_cluster import SHARED

SOURCE_FILE = SOURCE / "benchmarks/mpi/exchange.c"
UNITS = {"init": ("ms", "lower"), "latency": ("us", "lower"), "bandwidth": ("MB/s", "higher"), "allreduce": ("us", "lower")}
# Message sizes of the unnamed measurements.
CHOSEN = {"init": 0, "latency": 1, "bandwidth": 4 << 20, "allreduce": 8}
PLACES = {"": (1, "on one node, by shared memory"), ".nodes": (2, "on two nodes, TCP over a veth")}


def measure(work, build, quick):
    if not has("mpicc.openmpi"):
        raise BenchmarkError("there is no mpicc.openmpi (hint: packaging/install-deps)")
    program = work / "exchange"
    call("mpicc.openmpi", "-O2", "-o", program, SOURCE_FILE)
    comparison = Comparison("mpi: two ranks of Open MPI, sizes, windows and iterations as OSU's")
    with on_cluster.cluster(work, build, 2) as cluster:
        image = cluster.push(test_image("mpi"), "bench/mpi:1")
        (shared,) = cluster.share(program)
        comparison.note(versions(cluster, image))
        for suffix, (nodes, where) in PLACES.items():
            job = [f"-N{nodes}", "-n2"]
            step = ["srun", "--mpi=pmix", *job]
            ways = {"bare": [*step, shared],
                    "container": [*step, f"--container-image={image}", f"--container-mounts={SHARED}:{SHARED}:ro", shared]}
            say(f"two ranks {where}")
            cluster.turns("alice", job, ways, 1)
            for said in cluster.turns("alice", job, ways, 3 if quick else 10):
                for side, turn in said.items():
                    for line in on_cluster.json_lines(turn.out):
                        add(comparison, side, line, suffix, where, turn.quiet)
    return comparison


def versions(cluster, image):
    """Checks that both sides have the same MPI version. Otherwise the comparison would not measure
    the container."""
    query = ["dpkg-query", "-W", "-f", "${Package} ${Version}, ", "libopenmpi3", "libpmix2"]
    bare = cluster.call("as", "alice", "srun", "-n1", *query).strip(", \n")
    inside = cluster.call("as", "alice", "srun", "-n1", f"--container-image={image}", *query).strip(", \n")
    return f"both: {bare}" if bare == inside else f"NOT THE SAME: bare {bare}; in the container {inside}"


def add(comparison, side, line, suffix, where, quiet):
    unit, better = UNITS[line["name"]]
    name, size = f"mpi.{line['name']}{suffix}", line["bytes"]
    if size != CHOSEN[line["name"]]:
        name += f".{text_of(size)}"
    what = f"{text_of(size) + ', ' if size else 'MPI_Init and a barrier, '}{where}"
    comparison.pair(name, unit, what, better=better).add(side, line["value"], quiet)


def text_of(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit}{name}"
    return f"{size}B"
