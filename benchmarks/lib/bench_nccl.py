"""Collectives of NCCL, without a container and in one, with the same libnccl."""

from pathlib import Path

import gpu
import on_cluster
from compare import Comparison
from machine import say


def measure(work, build, quick):
    program = gpu.program_of(build, "bench-nccl")
    library = Path("/usr") if gpu.REHEARSAL else gpu.find_nccl()
    gpu.must_be_there([program, "--library", library, "--bytes", "8", "--iterations", "1"])
    ranks = max(1, gpu.count())
    comparison = Comparison(gpu.title(f"nccl: bus bandwidth of {ranks} rank{'s' if ranks > 1 else ''}, as nccl-tests count it"))
    if ranks == 1:
        comparison.note("one rank: bus bandwidth means nothing, the algorithm's is shown")
    with on_cluster.cluster(work, build, 1) as cluster:
        image = cluster.image("base")
        (shared,) = cluster.share(program)
        sizes = (8, 1 << 20) if gpu.REHEARSAL else (8, 1 << 20, 1 << 30)
        command = [shared, *(["--cpu", "2"] if gpu.REHEARSAL else ["--library", str(library), "--meeting", cluster.shared])]
        for size_ in sizes:
            command += ["--bytes", str(size_)]
        ways = gpu.ways(cluster, image, command, mounts=[] if gpu.REHEARSAL else [str(library.parent)])
        say("running the collectives")
        allocation = [f"-n{ranks}", "--overcommit"]
        cluster.turns("alice", allocation, ways, 1)
        for said in cluster.turns("alice", allocation, ways, 3 if quick else 10):
            for side, turn in said.items():
                for line in on_cluster.json_lines(turn.out):
                    add(comparison, side, line, turn.quiet)
    return comparison


def add(comparison, side, line, quiet):
    """Adds the latency of small sizes and the bandwidth of the others."""
    name = f"{line['name']}.{size(line['bytes'])}"
    if line["bytes"] < 1024:
        pair, value = comparison.pair(name, "us", line["device"]), line["us"]
    else:
        pair = comparison.pair(name, "GB/s", line["device"], better="higher")
        value = line["busbw"] if line["ranks"] > 1 else line["algbw"]
    pair.add(side, value, quiet)


def size(count):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{round(count / unit)}{name}"
    return f"{count}B"
