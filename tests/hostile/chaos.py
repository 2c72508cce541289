"""Random jobs of three users on four nodes, while jobs are cancelled, nodes restart, the registry
fails, the disk is full and images are hostile. No node may be drained, nothing may be left behind,
and undisturbed jobs must have the right result."""
import os
import random
import re
import time

from cluster import NODES
from disk import Disk
from harness import Failed, expect
from images import Image, named, probe, special
from scene import Before, Store

FOUR = (*NODES, "node03", "node04")
USERS = ("alice", "bob", "2003")
AT_ONCE = 6
LONGEST = 120  # seconds for any job
NO_ROOM = re.compile(r" MB free, the image needs | MB and [0-9]+ inodes free\)")


class Job:
    """A job. `wanted`: its correct result: "good", "refused", or "any" if it was disturbed."""

    def __init__(self, title, wanted, step, out=""):
        self.title, self.wanted, self.step, self.out = title, wanted, step, out
        self.began = time.monotonic()

    def has_ended(self):
        return self.step.process.poll() is not None

    def is_late(self):
        return time.monotonic() - self.began > LONGEST

    def judge(self):
        done = self.step.end(1)
        if self.wanted == "any" or (self.wanted == "good" and done.rc == 0 and self.out in done.out):
            return
        # Nodes that report the same error later are listed in a separate line.
        reasons = {re.sub(r"^node\S+: ", "", line) for line in done.errors()}
        # The small store of the last node may be full of layers in use, or of layers that other
        # jobs pull. The node then reports that for any image, good or not, and the other nodes
        # repeat it.
        small = {reason for reason in reasons if self.may_be_on(FOUR[-1]) and NO_ROOM.search(reason)}
        others = reasons - small
        refused = done.rc != 0 and (len(others) == 1 if self.wanted == "refused" and others else bool(small) and not others)
        expect(refused, f"{self.title}: exit code {done.rc}, wanted: {self.wanted}", done)

    def name(self):
        return "chaos-" + self.step.command.partition("chaos-")[2].split()[0]

    def may_be_on(self, node):
        return "-N " in self.title or self.title.endswith(f"-w {node}")


class Chaos:
    def __init__(self, cluster, disk, count, seed):
        self.cluster, self.disk, self.count, self.chance = cluster, disk, count, random.Random(seed)
        self.is_full = False
        self.number = 0
        self.jobs = []

    def srun(self, title, wanted, *argv, image=None, out="", options=()):
        user = self.chance.choice(USERS)
        where = ("-w", self.chance.choice(FOUR)) if self.chance.random() < 0.7 else ("-N", str(self.chance.randint(1, 4)))
        name = self.cluster.name_of(image or "base")
        step = self.cluster.start("srun", *where, "-J", f"chaos-{self.number}", "--overcommit", f"-n{self.chance.choice((1, 1, 2, 4))}" if where[0] == "-w" else "--ntasks-per-node=1",
                                  f"--container-image={name}", *options, *argv, user=user)
        self.jobs.append(Job(f"{title} of {user} on {' '.join(where)}", wanted, step, out))

    # --- jobs ---

    def plain(self):
        self.srun("a plain job", "good", "cat", "/workspace/replaced", out="upper")

    def writer(self):
        self.srun("a job that writes", "good", "bash", "-c", "head -c 5M /dev/zero >/written && sync && echo wrote", out="wrote")

    def named(self):
        name = f"chaos-{self.chance.randint(1, 5)}"
        self.srun("a named container", "any", "sh", "-c", "echo x >>/kept", options=(f"--container-name={name}",))

    def remapped(self):
        self.srun("a remapped root", "good", "id", "-u", out="0", options=("--container-remap-root", "--container-unshare=ipc,uts"))

    def puller(self):
        layers = [[("probe", probe()), ("x", os.urandom(2000))], [("data", os.urandom(self.chance.choice((1000, 300000, 2000000))))]]
        name, digests = self.cluster.faulty.publish(Image(f"chaos/{self.number}", layers))
        wanted = "good"
        if self.chance.random() < 0.3:
            self.cluster.faulty.cut.add(digests[1])
            wanted = "refused"
        self.srun("a pull" + (" that breaks off" if wanted == "refused" else ""), wanted, "/probe", image=name, out="in /")

    def hostile_image(self):
        entries = [("../../../tmp/escaped", b"x"), ("a", "-> /etc"), ("a/passwd", b"x"), special("dev/sda", b"4", 8, 0), special("suid", b"0", mode=0o4755)]
        archive = [("probe", probe()), self.chance.choice(entries), (named("etc", "-> /proc/self/root/tmp"), b"")]
        name = self.cluster.faulty.publish(Image(f"chaos/hostile-{self.number}", [archive]))[0]
        self.srun("a hostile image", "any", "/probe", image=name)

    def damaged_image(self):
        name, digests = self.cluster.faulty.publish(Image(f"chaos/damaged-{self.number}", [[("probe", probe()), ("x", os.urandom(50))]]))
        blob = bytearray(self.cluster.faulty.blobs[digests[0]])
        blob[self.chance.randrange(20, len(blob))] ^= 0xff
        self.cluster.faulty.blobs[digests[0]] = bytes(blob)
        self.srun("a damaged layer", "refused", "/probe", image=name)

    def absent_image(self):
        self.srun("no such image", "refused", "true", image=f"{self.cluster.faulty.host}/chaos/none:1")

    def wrong_option(self):
        self.srun("a wrong mount", "refused", "true", options=("--container-mounts=/no/such/place:/x",))

    def leaves_processes(self):
        self.srun("a job that leaves processes", "any", "bash", "-c", "(setsid sleep 600 &) ; (nohup sleep 600 &); kill -9 $$")

    def fills_its_memory(self):
        self.srun("a job that fills its root", "any", "bash", "-c", "head -c 3M /dev/zero >/x", options=("--container-tmpfs-size=2M",))

    # --- disturbances ---

    def cancel_one(self):
        running = [job for job in self.jobs if not job.has_ended()]
        if running:
            job = self.chance.choice(running)
            job.wanted = "any"
            self.cluster.run("scancel", "-n", job.name(), user="root")

    def kill_one_agent(self):
        node = self.chance.choice(FOUR)
        found = [pid for name in ("agent", "import", "layer-writer", "leader", "fuse") for pid in self.cluster.processes(node, name)]
        if found:
            self.disturb()
            try:
                os.kill(self.chance.choice(found), 9)
            except ProcessLookupError:
                pass

    def restart_node(self):
        self.disturb()
        self.cluster.program("restart", self.chance.choice(FOUR))

    def fail_registry(self):
        self.cluster.faulty.answers["/v2/"] = (503, {"code": "UNAVAILABLE", "message": "busy"})
        self.disturb()
        time.sleep(0.3)
        self.cluster.faulty.answers.pop("/v2/")

    def fill_or_empty_disk(self):
        self.disturb()
        if self.is_full:
            self.disk.make_room()
        else:
            self.disk.fill()
        self.is_full = not self.is_full

    def disturb(self):
        for job in self.jobs:
            job.wanted = "any"

    # --- driver ---

    JOBS = (plain, plain, writer, named, remapped, puller, puller, hostile_image, damaged_image, absent_image, wrong_option, leaves_processes, fills_its_memory)
    TROUBLES = (cancel_one, cancel_one, kill_one_agent, restart_node, fail_registry, fill_or_empty_disk)

    def turn(self):
        while len(self.jobs) < AT_ONCE:
            self.number += 1
            self.count.tried += 1
            self.chance.choice(self.JOBS)(self)
            if self.is_full and self.jobs[-1].may_be_on(FOUR[-1]):
                self.jobs[-1].wanted = "any"
        if self.chance.random() < 0.15:
            self.chance.choice(self.TROUBLES)(self)
        self.collect()
        time.sleep(0.05)

    def collect(self):
        for job in list(self.jobs):
            if job.has_ended():
                self.jobs.remove(job)
                self.judge(job)
            elif job.is_late():
                self.jobs.remove(job)
                state = self.cluster.inquirer.ask(f"squeue -h -n {job.name()} -o '%T %r'")
                # Slurm 22.05 waits forever for the prolog of a slurmd that restarts during it.
                if job.wanted != "any" or state != ["RUNNING Prolog"]:
                    self.count.is_wrong(f"{job.title} does not end: {state}, wanted: {job.wanted}\n{job.step.said()}")
                    self.disturb()
                    self.cluster.recover()
                self.cluster.run("scancel", "-n", job.name(), user="root")

    def judge(self, job):
        try:
            job.judge()
        except Failed as failed:
            self.count.is_wrong(f"{failed.why}\n{failed.details()}")

    def finish(self):
        if self.is_full:
            self.fill_or_empty_disk()
        deadline = time.monotonic() + LONGEST
        while self.jobs and time.monotonic() < deadline:
            self.collect()
            time.sleep(0.05)
        self.must_have_no_drain()

    def must_have_no_drain(self):
        bad = [state for state in self.cluster.states() if any(word in state for word in ("drain", "down", "fail"))]
        if bad:
            self.count.is_wrong(f"a node is out of order: {', '.join(bad)}")
            self.cluster.recover()


def chaos(cluster, _options, count, budget, seed):
    with Disk(cluster, FOUR[-1]) as disk:
        one = Chaos(cluster, disk, count, seed)
        while not count.tried or time.monotonic() < budget.end:
            a_while_of(one, cluster, count, min(budget.end, time.monotonic() + 60))


def a_while_of(one, cluster, count, until):
    before = Before(cluster)
    while time.monotonic() < until:
        one.turn()
    one.finish()
    try:
        before.must_hold(within=10)
        for node in FOUR:
            Store(cluster, node).must_be_sound()
        cluster.await_idle()
    except Failed as failed:
        count.is_left(f"{failed.why}\n{failed.details()}")
        cluster.recover()
    one.must_have_no_drain()
