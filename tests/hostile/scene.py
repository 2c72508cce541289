"""Shared parts of the hostile tests: the cluster of the suites, the tracer, and checks that the
previous state is restored."""
import contextlib
import ctypes
import os
import re
import select
import stat
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests/suites/lib"), os.path.join(ROOT, "tests/fuzz")]

from cluster import name_of  # noqa: E402
from command import patience  # noqa: E402
from harness import Failed, expect  # noqa: E402

NODE = "node01"
ON = ("-w", NODE)
VERIFIER = "/usr/libexec/spank-container/layer-verifier"
CLONE_NEWNET = 0x40000000
PATIENCE = 30  # seconds for a step that fails


class Count:
    """Results of a part: number of attempts, wrong outcomes, and leftovers."""

    def __init__(self, title, say):
        self.title, self.say = title, say
        self.tried = self.wrong = self.left = 0

    def is_wrong(self, why):
        self.wrong += 1
        self.say(f"WRONG {self.title}: {why}")

    def is_left(self, why):
        self.left += 1
        self.say(f"LEFT {self.title}: {why}")

    def figures(self):
        return {"tried": self.tried, "wrong": self.wrong, "left": self.left}


class Budget:
    """Time limit of a part. `whole`: no limit."""

    def __init__(self, seconds, whole=False):
        self.seconds, self.whole = seconds, whole
        self.end = time.monotonic() + seconds

    def part(self, share):
        return Budget(self.seconds * share, self.whole)

    def is_short(self):
        return not self.whole and self.seconds < 60

    def is_spent(self):
        return not self.whole and time.monotonic() > self.end


# --- the tracer ---


def system_calls():
    """Returns the names of system calls by number."""
    text = open("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read()
    return {int(number): name for name, number in re.findall(r"#define __NR_(\w+) (\d+)", text)}


def slurmd_of(cluster, node):
    """Returns slurmd's PID on this machine. Its forks briefly have the same name."""
    inside = open(cluster.inside(node, "/run/slurmd.pid")).read().strip()
    for pid in cluster.processes(node, "slurmd"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
            if re.search(rf"^NSpid:.*\t{inside}$", file.read(), re.MULTILINE):
                return pid
    raise Failed(f"there is no slurmd on {node}")


class Traced:
    """Traces everything that slurmd starts on the node, from enter to exit. See tracer.cpp for
    `what`."""

    def __init__(self, cluster, program, role, *what, node=NODE):
        self.argv = [program, str(slurmd_of(cluster, node)), role, *map(str, what)]
        self.lines, self.heard = [], []

    def __enter__(self):
        self.process = subprocess.Popen(self.argv, stdout=subprocess.PIPE, text=True)
        expect(self.process.stdout.readline() == "ready\n", f"the tracer does not start: {self.argv}")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.lines = [line.split() for line in [*self.heard, *self.process.stdout.read().splitlines()]]
        self.process.wait()

    def await_done(self, has_ended):
        """Returns whether the traced event happens before the step has ended."""
        lines = self.process.stdout
        while not has_ended():
            if select.select([lines], [], [], 0.1)[0]:
                self.heard.append(lines.readline())
                return True
        return False

    def calls(self):
        return [int(number) for word, _, number in self.lines if word == "call"]

    def done(self):
        """Returns the number of the system call that was made to fail, if any."""
        return next((int(number) for word, _, number in self.lines if word == "done"), None)


# --- what is left ---


def cgroups(cluster):
    """Returns the directories of jobs in the cgroups of this cluster's nodes."""
    found = []
    with open(f"/proc/{cluster.pid(NODE)}/cgroup") as file:
        places = [line.rstrip("\n").split(":", 2)[1:] for line in file if "/spc-cluster-" in line]
    for controllers, path in places:
        for top in {f"/sys/fs/cgroup/{controllers}{path}", f"/sys/fs/cgroup{path}"}:
            for where, directories, _ in os.walk(top):
                found += [os.path.join(where, name) for name in directories if name.startswith(("job_", "step_"))]
    return sorted(found)


def told_of(cluster, path):
    """Describes a leftover cgroup: its processes, and slurmd's log about its job."""
    node, job = re.search(r"slurm_(node[0-9]+)/.*job_([0-9]+)", path).groups()
    inside = []
    with contextlib.suppress(OSError), open(f"{path}/cgroup.procs") as file:
        inside = [f"{pid} {name_of(int(pid))}" for pid in file.read().split()]
    lines = [line for line in cluster.program("logs", node).out.splitlines() if re.search(rf"(\[|StepId=|job[ =_]?){job}\b", line)]
    state = cluster.inquirer.ask(f"squeue -h -j {job} -o %T") or ["ended"]
    return "\n".join([f"{path}{'' if os.path.isdir(path) else ' (gone by now)'}: job: {state[0]}; processes: {', '.join(inside) or 'none'}", *lines])


def files(cluster, node):
    """Returns the files in temporary directories, in /run and in the users' homes."""
    found = []
    for top in ("/tmp", "/var/tmp", "/dev/shm", "/run/spank-container"):
        for where, directories, names in os.walk(cluster.inside(node, top)):
            found += [os.path.join(where, name).partition("/root/")[2] for name in directories + names]
    return sorted(found)


class CgroupsLeft(Failed):
    """Only cgroups of a job are left."""


class Before:
    """Snapshot of the nodes. `must_hold` fails unless the same state returns soon."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.await_rest()
        cluster.quiet = {node: cluster.traces(node) for node in cluster.quiet}
        self.files = {node: files(cluster, node) for node in cluster.quiet}
        self.cgroups = cgroups(cluster)

    def await_rest(self):
        """Waits for the delayed clean-up of earlier steps."""
        since, seen = time.monotonic(), None
        deadline = since + PATIENCE
        while time.monotonic() < min(since + 1.5, deadline):
            now = [(self.cluster.traces(node), files(self.cluster, node)) for node in self.cluster.quiet]
            if now != seen:
                since, seen = time.monotonic(), now
            time.sleep(0.1)

    def must_hold(self, within=5, with_cgroups=True):
        """Waits until the state is restored. If slurmstepd was killed, the job's epilog runs after
        the last process and removes the agent's leftovers."""
        self.cluster.must_be_quiet(within=within)
        self.await_none(lambda: [f"{node}: {path}" for node, was in self.files.items() for path in set(files(self.cluster, node)) ^ set(was)],
                        within, "files are not as before")
        if with_cgroups:
            left = set()
            try:
                self.await_none(lambda: left.clear() or left.update(set(cgroups(self.cluster)) - set(self.cgroups)) or left, within, "cgroups are left")
            except Failed as failed:
                raise CgroupsLeft("\n".join([failed.why, *(told_of(self.cluster, path) for path in sorted(left))])) from None

    @staticmethod
    def await_none(find, within, what):
        deadline = time.monotonic() + patience(within)
        while found := find():
            if time.monotonic() > deadline:
                raise Failed(f"{what}: {', '.join(sorted(found)[:4])}")
            time.sleep(0.05)


def in_network_of(pid, work):
    """Returns the result of work(), run in a thread in this process's network."""
    results, errors = [], []

    def run():
        try:
            space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            expect(ctypes.CDLL(None).setns(space, CLONE_NEWNET) == 0, "a network cannot be joined")
            os.close(space)
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


# --- the store ---


class Store:
    """The layers of a node's store, each verified once."""

    def __init__(self, cluster, node=NODE):
        self.cluster, self.node, self.good = cluster, node, set()
        self.program = os.path.join(cluster.stage, VERIFIER.lstrip("/")) if cluster.stage else VERIFIER

    def must_be_sound(self):
        layers = os.path.join(self.cluster.store(self.node), "layers/sha256")
        for name in os.listdir(layers):
            path = os.path.join(layers, name)
            status = os.stat(path)
            if (name, status.st_ino) in self.good:
                continue
            expect(re.fullmatch(r"[0-9a-f]{64}\.sqsh", name), f"a strange name in the store: {name}")
            expect(stat.S_ISREG(status.st_mode) and status.st_uid == 0 and status.st_mode & 0o7777 == 0o444,
                   f"{name} in the store has mode {status.st_mode:o} and belongs to {status.st_uid}")
            expect(is_whole(self.program, path), f"{name} in the store is no whole layer")
            self.good.add((name, status.st_ino))


def is_whole(program, path):
    """Returns whether the verifier, which reads the layer from descriptor 3, accepts it."""
    with open(path, "rb") as file:
        return subprocess.run(["sh", "-c", 'exec "$0" 3<&0 0</dev/null', program], stdin=file, env={}, stderr=subprocess.DEVNULL).returncode == 0
