"""Time that a container adds to Slurm's steps and jobs, on a real cluster of four nodes, started
and stopped by this program."""

import json
import statistics
from pathlib import Path

import on_cluster
import step_phases
from compare import Comparison, quartiles
from machine import say, test_image

ONE = ["-N1", "-n1", "-w", "node01"]
STEPS, AT_ONCE, NODES = 200, 8, 4


def measure(work, build, quick):
    rounds = 5 if quick else 21
    comparison = Steps("srun /bin/true: bare, and in the image pytorch, which is in the nodes' stores")
    layout = test_image("pytorch")
    with on_cluster.cluster(work, build, NODES) as cluster:
        bench = Bench(cluster, comparison, cluster.push(layout, "bench/pytorch:1"), digest_of(layout))
        with step_phases.recorded(work / "trace") as steps:
            bench.later_steps(rounds)
        bench.add_phases("later step", steps)
        with step_phases.recorded(work / "trace") as steps:
            bench.first_steps(rounds)
        bench.add_phases("first step", steps)
        bench.two_nodes(rounds)
        bench.many_steps(1 if quick else 5)
        bench.many_jobs(1 if quick else 3)
    return comparison


class Steps(Comparison):
    """Adds the phases of single steps."""

    def __init__(self, title):
        super().__init__(title)
        self.phases = {}  # kind of step -> phase -> ms of each step

    def print_table(self, machine):
        super().print_table(machine)
        for kind, phases in self.phases.items():
            print(f"{kind}, ms: " + ", ".join(f"{phase} {statistics.median(took):.1f}" for phase, took in phases.items()))
        print("".join(f"  {phase}: {what}\n" for phase, what in step_phases.PHASES.items()), end="")

    def print_json(self):
        super().print_json()
        for kind, phases in self.phases.items():
            for phase, took in phases.items():
                first, third = quartiles(took)
                print(json.dumps({"name": f"start.srun.phase.{kind.split()[0]}.{phase}", "value": round(statistics.median(took), 4), "unit": "ms",
                                  "n": len(took), "q1": round(first, 4), "q3": round(third, 4)}))


def digest_of(layout):
    return json.loads((Path(layout) / "index.json").read_text())["manifests"][0]["digest"]


class Bench:
    def __init__(self, cluster, comparison, tag, digest):
        self.cluster, self.comparison = cluster, comparison
        self.option = f"--container-image={tag}"
        self.by_digest = f"--container-image={tag.rsplit(':', 1)[0]}@{digest}"

    def add(self, turns, ours, name, unit, what, value):
        pair = self.comparison.pair(f"start.srun.{name}", unit, what)
        for turn in turns:
            for side, way in (("bare", "bare"), ("container", ours)):
                pair.add(side, value(turn[way]), turn[way].quiet)

    def later_steps(self, rounds):
        say("later steps of a job")
        ways = {"bare": srun(), "tag": srun(self.option), "digest": srun(self.by_digest)}
        self.cluster.turns("alice", ONE, ways, 1)  # pulls the image
        turns = self.cluster.turns("alice", ONE, ways, rounds + 1)[1:]
        self.add(turns, "tag", "ratio.warm", "ms", "later steps of a job, one task, by tag", wall)
        self.add(turns, "digest", "ratio.digest", "ms", "the same by digest", wall)

    def add_phases(self, kind, steps):
        """Adds the phases. Steps without a container do not depend on those with one."""
        for in_container, phases in steps:
            for phase, took in phases.items():
                self.comparison.phases.setdefault(f"{kind} of a job" if in_container else "bare", {}).setdefault(phase, []).append(took)

    def first_steps(self, rounds):
        say("first steps of jobs")
        ways = {"none": srun(), "bare": srun(), "container": srun(self.option)}
        turns = [self.cluster.turns("alice", ONE, ways, 1)[0] for _ in range(rounds)]
        self.add(turns, "container", "ratio.first", "ms", "a job's first step in a container, by tag", wall)

    def two_nodes(self, rounds):
        say("two nodes, eight tasks each")
        job = ["-N2", "-n16", "-w", "node[01-02]"]
        ways = {"bare": srun(job=job), "container": srun(self.option, job=job)}
        turns = self.cluster.turns("alice", job, ways, rounds + 1)[1:]  # pulls the image on node02
        self.add(turns, "container", "ratio.n2x8", "ms", "two nodes, eight tasks each", wall)

    def many_steps(self, rounds):
        say(f"{STEPS} steps, {AT_ONCE} at a time")
        step = f"seq {STEPS} | xargs -P{AT_ONCE} -I_ sh -c 'exec srun --overlap -N1 -n1 -r$((_ % {NODES})) $0 /bin/true'"
        ways = {"bare": ["sh", "-c", step.replace("$0", "")], "container": ["sh", "-c", step.replace("$0", self.option)]}
        # Pulls the image on the other nodes.
        turns = self.cluster.turns("alice", [f"-N{NODES}"], ways, rounds + 1)[1:]
        self.add(turns, "container", "throughput", "s", f"{STEPS} steps of one task, {AT_ONCE} at a time, on {NODES} nodes",
                 lambda turn: turn.ms / 1000)
        self.add(turns, "container", "cpu", "ms", "processor time of the whole machine for each of these steps", lambda turn: turn.cpu / STEPS)

    def many_jobs(self, rounds):
        say(f"{STEPS} jobs of an array")
        job = ["sbatch", "--wait", "-n1", f"--array=1-{STEPS}", "-o/dev/null", "--wrap=/bin/true"]
        turns = self.cluster.turns("alice", None, {"bare": job, "container": [*job, self.option]}, rounds)
        self.add(turns, "container", "array", "s", f"{STEPS} jobs of one task, from an array", lambda turn: turn.ms / 1000)


def srun(*options, job=ONE):
    return ["srun", *job, *options, "/bin/true"]


def wall(turn):
    return turn.ms
