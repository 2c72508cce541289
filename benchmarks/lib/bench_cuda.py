"""Programs on a GPU, without container and in one."""

import gpu
import on_cluster
from compare import Comparison
from machine import say, test_image

TITLE = "cuda: the same program by srun, without container and in one"


def measure(work, build, quick):
    program = build / "benchmarks/bench-cuda"
    gpu.must_be_there([program, "memcpy", "--size", "4096", "--iterations", "1"])
    with_mpi = build / "benchmarks/bench-cuda-mpi"
    comparison = Comparison(TITLE)
    with on_cluster.cluster(work, build, 1) as cluster:
        base = cluster.push(test_image("base"), "bench/base:1")
        (shared,) = cluster.share(program)
        rounds = 3 if quick else 10
        for arguments in (["nbody"], ["nbody", "--fp64"], ["memcpy"]):
            run(comparison, cluster, gpu.ways(base, 1, [shared, *arguments]), rounds)
        if with_mpi.exists():
            (shared,) = cluster.share(with_mpi)
            ranks = max(1, gpu.count())
            ways = gpu.ways(cluster.push(test_image("pytorch"), "bench/pytorch:1"), ranks, [shared, "reduce"])
            run(comparison, cluster, {name: [way[0], "--mpi=pmix", *way[1:]] for name, way in ways.items()}, rounds)
        else:
            run(comparison, cluster, gpu.ways(base, 1, [shared, "reduce"]), rounds)
            comparison.note("built without MPI: the reduction is that of one process")
    return comparison


def run(comparison, cluster, ways, rounds):
    say(f"running {' '.join(ways['bare'][2:])}")
    allocation = [ways["bare"][1], "--overcommit"]
    cluster.turns("alice", allocation, ways, 1)
    for said in cluster.turns("alice", allocation, ways, rounds):
        for side, text in said.items():
            for line in on_cluster.json_lines(text):
                what = f"{line['device']}, {line['ranks']} rank{'s' if line['ranks'] > 1 else ''}"
                pair = comparison.pair(line["name"], line["unit"], what, better="lower" if line["unit"] == "ms" else "higher")
                (pair.reference if side == "bare" else pair.ours).append(line["value"])
