"""The tables that tutorials on containers in clusters print, without a container and in one:
ping-pong of two ranks, matrix product, all-reduce, and time per epoch over processes."""

import statistics

import bench_mpi
import on_cluster
from bench_ddp import BARE, unpack
from compare import Comparison
from machine import SOURCE, BenchmarkError, call, has, say, test_image
from on_cluster import SHARED
from report import number

PLACES = {"1x2": (1, "shared memory"), "2x1": (2, "TCP over a veth")}  # nodes x processes: two ranks
LAYOUTS = {"1x1": (1, 1), "1x2": (1, 2), "2x1": (2, 1), "2x2": (2, 2)}
PROGRAMS = ("benchmarks/tutorial/processes.py", "benchmarks/ddp/steps.py", "packaging/examples/train.py")


class Tables(Comparison):
    """A comparison that is also printed as the tutorials' tables. `tables`: title -> (columns of
    values, {row: names of pairs})."""

    def __init__(self, title):
        super().__init__(title)
        self.tables = {}

    def place(self, table, columns, row, names):
        self.tables.setdefault(table, (columns, {}))[1][row] = names

    def print_table(self, machine):
        super().print_table(machine)
        for title, (columns, rows) in self.tables.items():
            first, *values = columns
            print(f"\n{title}\n\n| {first} | " + " | ".join(f"{value}, {label}" for value in values for label in self.labels) + " |")
            print("|" + "---|" * (1 + 2 * len(values)))
            for row, names in rows.items():
                pairs = [self.pairs[name] for name in names]
                print(f"| {row} | " + " | ".join(number(statistics.median(side)) for pair in pairs for side in (pair.reference, pair.ours)) + " |")


def measure(work, build, quick):
    if not has("mpicc.openmpi"):
        raise BenchmarkError("there is no mpicc.openmpi (hint: packaging/install-deps)")
    tables = Tables("tutorial: the measurements of tutorials on containers in clusters, on processors")
    program = work / "pingpong"
    call("mpicc.openmpi", "-O2", "-o", program, SOURCE / "benchmarks/tutorial/pingpong.c")
    with on_cluster.cluster(work, build, 2) as cluster:
        ping_pong(cluster, tables, program, 3 if quick else 10)
        training(cluster, tables, quick)
    return tables


def ping_pong(cluster, tables, program, rounds):
    image = cluster.push(test_image("mpi"), "bench/mpi:1")
    (shared,) = cluster.share(program)
    tables.note(bench_mpi.versions(cluster, image))
    for place, (nodes, where) in PLACES.items():
        job = [f"-N{nodes}", "-n2"]
        step = ["srun", "--mpi=pmix", *job]
        ways = {"bare": [*step, shared],
                "container": [*step, f"--container-image={image}", f"--container-mounts={SHARED}:{SHARED}:ro", shared]}
        say(f"ping-pong {place}")
        cluster.turns("alice", job, ways, 1)
        for said in cluster.turns("alice", job, ways, rounds):
            for side, turn in said.items():
                for line in on_cluster.json_lines(turn.out):
                    add_message(tables, side, line, place, where, turn.quiet)


def add_message(tables, side, line, place, where, quiet):
    size = bench_mpi.text_of(line["bytes"])
    latency, bandwidth = (f"tutorial.pingpong.{place}.{kind}.{size}" for kind in ("latency", "bandwidth"))
    tables.pair(latency, "us", f"half a round trip of {size}, {where}").add(side, line["us"], quiet)
    tables.pair(bandwidth, "MB/s", f"{size}, {where}", better="higher").add(side, line["mbs"], quiet)
    tables.place(f"ping-pong of two ranks, nodes x processes {place}, {where}", ("message size", "us", "MB/s"), size, (latency, bandwidth))


def training(cluster, tables, quick):
    name = cluster.push(test_image("pytorch"), "bench/pytorch:1")
    cluster.share(*(SOURCE / program for program in PROGRAMS))
    unpack(cluster, name)
    command = ["/usr/bin/python3", "/workspace/processes.py", "2" if quick else "6"]
    variables = ["OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1"]
    for layout, (nodes, processes) in LAYOUTS.items():
        job = [f"-N{nodes}", f"--ntasks-per-node={processes}"]
        ways = {"bare": ["srun", *job, "unshare", "--mount", "sh", "-c", BARE, "sh", *variables, *command],
                "container": ["srun", *job, f"--container-image={name}", f"--container-mounts={SHARED}:/workspace", "/usr/bin/env",
                              "HOME=/tmp", *variables, *command]}
        say(f"training {layout}")
        cluster.turns("root", job, ways, 1)
        for said in cluster.turns("root", job, ways, 2 if quick else 10):
            lines = {side: on_cluster.json_lines(turn.out) for side, turn in said.items()}
            check_same_result(lines)
            for side, turn in said.items():
                for line in lines[side]:
                    add_line(tables, side, line, layout, turn.quiet)


def check_same_result(lines):
    ends = {(line["parameters"], line["torch"]) for of_side in lines.values() for line in of_side if line["name"] == "epoch"}
    if len(ends) != 1:
        raise BenchmarkError(f"the same training has other results in a container: {lines}")


def add_line(tables, side, line, layout, quiet):
    if line["name"] == "matmul":
        name = f"tutorial.matmul.{line['size']}"
        pair = tables.pair(name, "GFLOP/s", f"product of two {line['size']}x{line['size']} matrices, one thread", better="higher")
        tables.place("matrix product, one thread", ("matrix", "GFLOP/s"), f"{line['size']}x{line['size']}", (name,))
    elif line["name"] == "allreduce":
        name = f"tutorial.allreduce.{layout}"
        pair = tables.pair(name, "MB/s", f"bus bandwidth of 16 MiB, {line['ranks']} processes, gloo", better="higher")
        tables.place("all-reduce of 16 MiB, gloo: bus bandwidth", ("nodes x processes", "MB/s"), layout, (name,))
    else:
        name = f"tutorial.epoch.{layout}"
        pair = tables.pair(name, "s", f"an epoch of 8,192 samples over {line['ranks']} processes, torch {line['torch']}")
        tables.place("time per epoch, gloo", ("nodes x processes", "s"), layout, (name,))
    pair.add(side, line["value"], quiet)
