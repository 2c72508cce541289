"""Programs on a GPU, without a container and in one."""

import gpu
import on_cluster
from compare import Comparison
from machine import say

TITLE = "cuda: the same program by srun, without container and in one"


def measure(work, build, quick):
    program = gpu.program_of(build, "bench-cuda")
    gpu.must_be_there([program, "memcpy", "--size", "4096", "--iterations", "1"])
    with_mpi = gpu.program_of(build, "bench-cuda-mpi")
    comparison = Comparison(gpu.title(TITLE))
    with on_cluster.cluster(work, build, 1) as cluster:
        base = cluster.image("base")
        (shared,) = cluster.share(program)
        rounds = 3 if quick else 10
        on_cpu = ["--cpu", "--size", "2048"] if gpu.REHEARSAL else []
        for arguments in (["nbody"], ["nbody", "--fp64"], ["memcpy"]):
            run(comparison, cluster, 1, gpu.ways(cluster, base, [shared, *arguments, *on_cpu]), rounds)
        if with_mpi.exists():
            (shared,) = cluster.share(with_mpi)
            ranks = max(1, gpu.count())
            image = cluster.image("pytorch")
            run(comparison, cluster, ranks, gpu.ways(cluster, image, [shared, "reduce", *on_cpu], options=["--mpi=pmix"]), rounds)
        else:
            run(comparison, cluster, 1, gpu.ways(cluster, base, [shared, "reduce", *on_cpu]), rounds)
            comparison.note("built without MPI: the reduction is that of one process")
    return comparison


def run(comparison, cluster, ranks, ways, rounds):
    say(f"running {' '.join(ways['bare'])}")
    allocation = [f"-n{ranks}", "--overcommit"]
    cluster.turns("alice", allocation, ways, 1)
    for said in cluster.turns("alice", allocation, ways, rounds):
        for side, turn in said.items():
            for line in on_cluster.json_lines(turn.out):
                what = f"{line['device']}, {line['ranks']} rank{'s' if line['ranks'] > 1 else ''}"
                pair = comparison.pair(line["name"], line["unit"], what, better="lower" if line["unit"] == "ms" else "higher")
                pair.add(side, line["value"], turn.quiet)
