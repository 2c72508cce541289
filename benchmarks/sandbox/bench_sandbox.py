"""Sandboxes: creates a second, commands in them, and memory while idle."""

import concurrent.futures
import json
import os
import statistics
import subprocess
import time

import node
import registry
from machine import call, has, say, test_image
from report import Report
from step import Steps

AT_ONCE = 4


def measure(work, build, quick):
    return SandboxBenchmark(work, build, quick).measure()


class SandboxBenchmark:
    def __init__(self, work, build, quick):
        self.work, self.quick = work, quick
        self.many, self.rounds = (20, 2) if quick else (100, 3)
        self.steps = Steps(build)
        self.report = Report("sandbox: many idle containers of one user", f"image base; {AT_ONCE} creates at once; load {os.getloadavg()[0]:.1f}")

    def measure(self):
        self.prepare()
        ways = {"ours": Ours(self), **({"bwrap": Bubblewrap(self)} if has("bwrap") else {})}
        if not has("podman"):
            self.report.note("podman: not installed")
        for round_number in range(self.rounds):
            for name, way in ways.items():
                say(f"round {round_number + 1}: {name}")
                self.sample(name, way)
        self.report.sandboxes = {name: label for name, label in (("ours", "scontainer"), ("bwrap", "bwrap")) if name in ways}
        return self.report

    def prepare(self):
        self.image = registry.push(test_image("base"), "base")
        self.home = node.make(self.work / "home")
        self.runtime = node.make(self.work / "runtime")
        for directory in (self.home, self.runtime):
            os.chown(directory, node.JOB_ID, node.JOB_ID)
        node.add_user_programs(self.steps.build)
        self.scontainer = str(node.PROGRAMS / "scontainer")
        self.user("scontainer", "pull", "-q", self.image)
        self.user("scontainer", "export", self.image, f"{self.home}/base/")
        self.tree = self.home / "base"

    def user(self, *command):
        command = [self.scontainer if word == "scontainer" else str(word) for word in command]
        return subprocess.run(["setpriv", f"--reuid={node.JOB_ID}", f"--regid={node.JOB_ID}", "--clear-groups", *command],
                              env={"PATH": os.environ["PATH"], "HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.runtime)},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, text=True).stdout

    def sample(self, name, way):
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(way.create, range(self.many)))
        took = time.monotonic() - begin
        self.add(f"sandbox.{name}.rate", "/s", self.many / took, f"creates a second, {self.many}, {AT_ONCE} at once")
        times = []
        for number in range(self.many):
            begin = time.monotonic()
            way.execute(number)
            times.append((time.monotonic() - begin) * 1e3)
        self.add(f"sandbox.{name}.exec.p50", "ms", statistics.median(times), "one command, true, in one of them")
        self.add(f"sandbox.{name}.exec.p99", "ms", sorted(times)[int(len(times) * 0.99) - 1], "the same: 99 in 100 are faster")
        self.add(f"sandbox.{name}.memory", "kB", pss(way.processes()) / self.many, "PSS of all processes, for each sandbox")
        way.stop()

    def add(self, name, unit, value, text):
        self.report.samples(name, unit, text).add(value)


class Ours:
    def __init__(self, bench):
        self.bench = bench

    def create(self, number):
        self.bench.user("scontainer", "sandbox", "create", f"--name=s{number}", self.bench.image)

    def execute(self, number):
        self.bench.user("scontainer", "sandbox", "exec", f"s{number}", "true")

    def processes(self):
        listed = json.loads(self.bench.user("scontainer", "sandbox", "list", "--json"))
        images = [pid for pid in named("sandbox-idle") if words(pid)[0] == "sandbox-image"]
        return [one["pid"] for one in listed] + named("fuse") + images

    def stop(self):
        self.bench.user("scontainer", "sandbox", "stop", "--all")


class Bubblewrap:
    """The same with bubblewrap: an unpacked image, read-only, with a tmpfs; nsenter runs commands, and needs root here."""

    def __init__(self, bench):
        self.bench, self.started = bench, {}

    def create(self, number):
        reading, writing = os.pipe()
        command = ["setpriv", f"--reuid={node.JOB_ID}", f"--regid={node.JOB_ID}", "--clear-groups", "bwrap", "--unshare-user",
                   "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--info-fd", str(writing),
                   "--ro-bind", str(self.bench.tree), "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
                   "sleep", "100000"]
        process = subprocess.Popen(command, pass_fds=[writing], stdin=subprocess.DEVNULL)
        os.close(writing)
        with os.fdopen(reading) as file:
            self.started[number] = process, json.load(file)["child-pid"]

    def execute(self, number):
        call("nsenter", "-t", str(self.started[number][1]), "-U", "-m", "-p", "-i", "-u", "--preserve-credentials", "true")

    def processes(self):
        return [pid for process, child in self.started.values() for pid in (process.pid, child, *children(child))]

    def stop(self):
        for process, child in self.started.values():
            os.kill(child, 9)
            process.wait()
        self.started.clear()


def words(pid):
    with open(f"/proc/{pid}/cmdline") as file:
        return file.read().split("\0")


def named(name):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/comm") as file:
                if file.read().strip() == name:
                    found.append(int(pid))
        except OSError:
            pass
    return found


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(one) for one in file.read().split()]


def pss(pids):
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except ProcessLookupError:  # of the round before, ended and not yet awaited
            pass
    return total
