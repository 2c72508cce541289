"""Kill sweep and errno sweep: each system call of a start, a pull, a join or a save is once the
last of its process, or fails. Afterwards the step must have reported its end in one line or have
succeeded. Nothing may be left behind, and the next step must work."""
import errno
import os
import random
import threading
from collections import Counter
from dataclasses import dataclass

from cluster import kill_all, name_of
from harness import Failed, expect
from images import Image, probe
from scene import NODE, ON, PATIENCE, Before, CgroupsLeft, Store, Traced, system_calls

NAMES = system_calls()
# Errors of specific system calls, in addition to the common ones.
COMMON = ("ENOMEM", "EIO", "EPERM")
PLAUSIBLE = {
    "open": ("EMFILE", "ENFILE", "EACCES", "ENOSPC", "EROFS", "EINTR"), "openat": ("EMFILE", "ENFILE", "EACCES", "ENOSPC", "EROFS", "EINTR"),
    "openat2": ("EMFILE", "EACCES", "EAGAIN"), "open_tree": ("EMFILE", "EINVAL"), "socket": ("EMFILE", "ENOBUFS"), "socketpair": ("EMFILE",),
    "pipe2": ("EMFILE",), "dup2": ("EMFILE", "EINTR"), "fcntl": ("EMFILE", "EINTR", "EAGAIN", "ENOLCK"), "memfd_create": ("EMFILE",),
    "read": ("EINTR", "EAGAIN"), "pread64": ("EINTR",), "recvmsg": ("EINTR", "ECONNRESET", "EMFILE"), "sendmsg": ("EINTR", "EPIPE", "ENOBUFS"),
    "write": ("ENOSPC", "EDQUOT", "EFBIG", "EINTR"), "pwrite64": ("ENOSPC", "EDQUOT", "EFBIG", "EINTR"), "sendfile": ("ENOSPC", "EINTR"),
    "fsync": ("ENOSPC", "EDQUOT"), "fdatasync": ("ENOSPC", "EDQUOT"), "linkat": ("ENOSPC", "EDQUOT", "EMLINK", "EROFS"), "close": ("EINTR", "ENOSPC"),
    "renameat2": ("ENOSPC", "EXDEV"), "renameat": ("ENOSPC", "EXDEV"), "unlinkat": ("EBUSY", "EROFS"), "mkdirat": ("ENOSPC", "EDQUOT", "EROFS"),
    "mkdir": ("ENOSPC", "EROFS"), "ioctl": ("EBUSY", "EAGAIN", "ENXIO"), "mount": ("ENOSPC", "EBUSY"), "fsopen": ("EMFILE",),
    "fsconfig": ("EBUSY", "EINVAL"), "fsmount": ("EMFILE", "ENOSPC"), "move_mount": ("ENOSPC", "EBUSY"), "mount_setattr": ("EINVAL",), "pivot_root": ("EBUSY",),
    "unshare": ("ENOSPC", "EUSERS"), "setns": ("EINVAL",), "clone": ("EAGAIN", "ENOSPC"), "execve": ("EACCES", "ENOENT", "E2BIG"), "flock": ("EINTR", "ENOLCK", "EWOULDBLOCK"),
    "poll": ("EINTR",), "ppoll": ("EINTR",), "wait4": ("EINTR", "ECHILD"), "bind": ("EADDRINUSE", "EACCES"), "connect": ("ECONNREFUSED",), "fstat": (), "newfstatat": ("EACCES", "ENOENT"),
    "getsockopt": ("ENOBUFS",), "setresuid": ("EAGAIN",), "mmap": ("EAGAIN",), "fallocate": ("ENOSPC", "EDQUOT", "EINTR"), "ftruncate": ("ENOSPC", "EINTR"),
}
CANNOT_FAIL = {"exit", "exit_group", "rt_sigreturn", "getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "umask", "restart_syscall",
               "arch_prctl", "set_tid_address", "set_robust_list", "rseq", "alarm", "sched_yield",
               "kill"}  # of a child
OURS = ("agent", "import", "layer-writer", "layer-verifier", "fuse", "save", "leader", "user-source", "relay")
EACH = 4  # run undisturbed work after one of so many points; with --whole after each
SERVICES = ("import", "layer-writer", "layer-verifier")
# Seconds until nodes that start together have joined; the registry then sends the second half of a
# layer.
JOINING = 0.8


@dataclass
class Scenario:
    """A kind of step. `start` returns a running step, made unique by the number. `is_right` checks
    one that succeeded. `nodes`: where it runs; faults are injected on the first. `pulls`: an image
    that no node has."""
    name: str
    roles: tuple
    start: object
    is_right: object
    root: tuple = ("agent", "agent+")
    nodes: int = 1
    pulls: bool = False
    set_up: object = lambda cluster: None
    take_down: object = lambda cluster: None


def start_known(cluster, _number):
    return cluster.start_srun(*ON, "-n2", "cat", "/workspace/replaced")


def image_of(cluster, number):
    layers = [[("probe", probe()), ("one", os.urandom(3000))], [("two", b"%d" % number), ("three", os.urandom(3000))]]
    return cluster.faulty.publish(Image(f"hostile/pull-{number}", layers))[0]


def start_pull(cluster, number):
    cluster.hostile_image = image_of(cluster, number)
    return cluster.start_srun(*ON, "/probe", "/two", image=cluster.hostile_image)


def start_on_nodes(cluster, number):
    """Starts the step. Each line of its output is prefixed with the number of its task, and so of
    the node."""
    layers = [[("probe", probe()), ("one", os.urandom(300_000))], [("two", b"%d" % number), ("three", os.urandom(300_000))]]
    cluster.hostile_image, digests = cluster.faulty.publish(Image(f"hostile/nodes-{number}", layers))
    gate = cluster.faulty.hold(digests[-1])
    timer = threading.Timer(JOINING, gate.set)
    timer.daemon = True
    timer.start()
    return cluster.start_srun("-N2", "-n2", "-l", "/probe", "/two", image=cluster.hostile_image)


def start_holder(cluster):
    cluster.hostile_holder = cluster.start_srun(*ON, "--overlap", "-J", "holder", "--container-name=hostile", "sh", "-c", "echo up; sleep 86400")
    cluster.hostile_holder.await_text("up")


def end_holder(cluster):
    cluster.run("scancel", "-n", "holder")
    cluster.hostile_holder.end(PATIENCE)


def start_join(cluster, _number):
    return cluster.start("srun", *ON, "--overlap", "--container-name=hostile", "--container-mounts=/home/shared:/mnt", "cat", "/workspace/replaced")


def start_save(cluster, _number):
    return cluster.start_srun(*ON, "--container-save=/home/alice/hostile.sqsh", "/probe", image=Image("hostile/save", [[("probe", probe())]]))


def start_file(cluster, _number):
    return cluster.start_srun(*ON, "/probe", image="/home/alice/hostile-image.sqsh")


def make_file(cluster):
    cluster.srun(*ON, "--container-save=/home/alice/hostile-image.sqsh", "/probe", image=Image("hostile/save", [[("probe", probe())]])).good()


def says_upper(cluster, done):
    return "upper" in done.out


def has_probed(cluster, done):
    return "uid 2001, in /" in done.out


def has_saved(cluster, done):
    path = os.path.join(cluster.home, "alice/hostile.sqsh")
    return has_probed(cluster, done) and os.path.getsize(path) > 4096


def tasks_that_probed(out):
    return sorted(line[0] for line in out.splitlines() if "uid 2001, in /" in line)


def both_have_probed(cluster, done):
    return tasks_that_probed(done.out) == ["0", "1"]


SCENARIOS = (
    Scenario("start", ("agent", "agent+", "leader", "slurmstepd+", "slurmstepd"), start_known, says_upper),
    Scenario("pull", ("agent", "agent+", *SERVICES, "leader"), start_pull, has_probed, pulls=True),
    Scenario("nodes", ("relay", "import"), start_on_nodes, both_have_probed, root=(), nodes=2, pulls=True),
    Scenario("join", ("agent", "agent+", "leader", "slurmstepd+"), start_join, says_upper, set_up=start_holder, take_down=end_holder),
    Scenario("file", ("fuse", "agent", "agent+", "leader"), start_file, has_probed, set_up=make_file),
    Scenario("save", ("save", "agent", "agent+", "leader", "slurmstepd+"), start_save, has_saved),
)


ALL = tuple(scenario.name for scenario in SCENARIOS)
IN_SHORT = ("start", "pull")  # scenarios of a run with few points


# --- one point of a sweep ---


class Sweep:
    def __init__(self, cluster, tracer, count):
        self.cluster, self.tracer, self.count = cluster, tracer, count
        self.store, self.number = Store(cluster), 0
        self.ends = Counter()

    def run(self, scenario, role, *what):
        """The traced step, and the tracer's output."""
        self.number += 1
        with Traced(self.cluster, self.tracer, role, *what) as traced:
            step = scenario.start(self.cluster, self.number)
            if role == "slurmstepd" and what[0] == "kill":
                done = self.end_without_slurmstepd(step)
            else:
                done = step.end(PATIENCE)
        return done, traced

    def end_without_slurmstepd(self, step):
        """Waits for the end after slurmstepd was killed. Slurm leaves its tasks alone: the user or
        the epilog ends them. Tasks in containers end on their own."""
        try:
            return step.end(10)
        except Failed as failed:
            return failed.done
        finally:
            self.cancel_steps()
            kill_all([pid for pid in self.cluster.strangers(NODE) if name_of(pid) not in OURS])

    def cancel_steps(self):
        for name in ("cat", "probe"):  # not the holder's
            self.cluster.run("scancel", "--me", "-n", name)

    def calls(self, scenario, role):
        done, traced = self.run(scenario, role, "list")
        expect(done.rc == 0 and scenario.is_right(self.cluster, done), f"{scenario.name} does not work under the tracer", done)
        return [NAMES.get(number, str(number)) for number in traced.calls()]

    def point(self, before, scenario, role, *what):
        """Tries one point and counts its result. Returns the leftovers that the next point must
        ignore."""
        self.count.tried += 1
        try:
            return self.try_once(before, scenario, role, *what)
        except CgroupsLeft as left:
            return self.try_again(left, scenario, role, *what)

    def try_again(self, left, scenario, role, *what):
        """Retries a point. Slurm's rmdir of a job's cgroup sometimes fails: a joined thread of
        slurmstepd stays in it for some milliseconds (34 of 20,000 times in a minimal program).
        Leftovers of this project appear again."""
        before = Before(self.cluster)
        try:
            for _ in range(2):
                before = self.try_once(before, scenario, role, *what)
        except CgroupsLeft as again:
            self.count.is_left(f"{self.title_of(scenario, role, what)}: twice in three tries: {again.why}\n{again.details()}")
            return self.begin_again(scenario)
        self.count.say(f"    {self.title_of(scenario, role, what)}: once in three tries: {left.why}")
        return before

    @staticmethod
    def title_of(scenario, role, what):
        return f"{scenario.name}: {role} {' '.join(map(str, what))}"

    def try_once(self, before, scenario, role, *what):
        title = self.title_of(scenario, role, what)
        try:
            done, traced = self.run(scenario, role, *what)
            title += f" ({NAMES.get(traced.done(), 'not reached')})"
            self.ends["not reached" if traced.done() is None else "survived" if done.rc == 0 else "ended with a line"] += 1
            self.must_be_right(scenario, role, done)
        except Failed as failed:
            self.count.is_wrong(f"{title}: {failed.why}\n{failed.details()}")
        return self.must_be_clean(title, before, scenario, role)

    def must_be_right(self, scenario, role, done):
        # srun itself ends with 0 if slurmstepd dies that early.
        aborted = role == "slurmstepd" and "aborted before step completely launched" in done.err
        if done.rc == 0 and not aborted:
            return expect(scenario.is_right(self.cluster, done), "it succeeded with a wrong result", done)
        if scenario.nodes > 1:
            expect(role != "relay", "a relay that is killed costs more than its place", done)
            expect("1" in tasks_that_probed(done.out), "the other node did not go on", done)
        if not role.startswith("slurmstepd"):
            # A running task without its server reports errors of its own.
            allowed = {"fuse": (0, 1)}.get(role, (1,))
            expect(len(done.errors()) in allowed, f"{len(done.errors())} lines of ours tell it", done)
        expect("core dumped" not in done.err and "terminate called" not in done.err, "a crash", done)

    def must_be_clean(self, title, before, scenario, role):
        try:
            # A killed slurmstepd cannot remove its cgroups.
            before.must_hold(with_cgroups=role != "slurmstepd")
            self.store.must_be_sound()
        except CgroupsLeft:
            raise
        except Failed as failed:
            self.count.is_left(f"{title}: {failed.why}\n{failed.details()}")
            return self.begin_again(scenario)
        bad = [state for state in self.cluster.states() if "drain" in state or "down" in state]
        if bad:
            self.count.is_wrong(f"{title}: a node is out of order: {', '.join(bad)}")
            return self.begin_again(scenario)
        return Before(self.cluster) if role == "slurmstepd" else before

    def begin_again(self, scenario):
        self.cluster.recover()
        scenario.take_down(self.cluster)
        scenario.set_up(self.cluster)
        return Before(self.cluster)

    def next_works(self, scenario):
        """Runs the same scenario undisturbed. For a pull, uses the image that was not pulled."""
        try:
            if scenario.pulls:
                where = ON if scenario.nodes == 1 else ("-N2", "-n2", "-l")
                done = self.cluster.srun(*where, "/probe", "/two", image=self.cluster.hostile_image)
            else:
                done = scenario.start(self.cluster, self.number).end(PATIENCE)
            expect(done.rc == 0 and scenario.is_right(self.cluster, done), "the next step does not work", done)
        except Failed as failed:
            self.count.is_wrong(f"after {scenario.name}: {failed.why}\n{failed.details()}")


def points(one, scenario, role, points_of, chance):
    """Returns the points of this role. Records an undisturbed run first."""
    calls = one.calls(scenario, role)
    expect(calls, f"{scenario.name} has no {role}")
    for what in points_of(calls, chance):
        yield role, *what


def in_turn(sources):
    """Yields the first item of each list, then the second of each."""
    while sources:
        for source in list(sources):
            try:
                yield next(source)
            except StopIteration:
                sources.remove(source)


def sweep(cluster, options, count, budget, seed, roles_of, points_of, kind=Sweep):
    """Runs a sweep. `points_of(calls, chance)` returns the points for a role that makes these
    calls, in order."""
    chance = random.Random(seed)
    one = kind(cluster, options.tracer, count)
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in (options.scenario or IN_SHORT if budget.is_short() else options.scenario or ALL) and roles_of(scenario)]
    for scenario in scenarios:
        mine = budget.part(1 / len(scenarios))
        scenario.set_up(cluster)
        try:
            roles = [role for role in roles_of(scenario) if options.role in (None, role)]
            chance.shuffle(roles)
            before = Before(cluster)
            for number, point in enumerate(in_turn([points(one, scenario, role, points_of, chance) for role in roles])):
                before = one.point(before, scenario, *point)
                if budget.whole or number % EACH == 0:
                    one.next_works(scenario)
                if mine.is_spent():
                    break
        finally:
            scenario.take_down(cluster)
    count.say(f"    {count.title}: " + ", ".join(f"{number} {end}" for end, number in sorted(one.ends.items())))


def all_in_any_order(points, chance):
    points = list(points)
    chance.shuffle(points)
    return points


def kills(cluster, options, count, budget, seed):
    def points_of(calls, chance):
        return all_in_any_order((("kill", at) for at in range(1, len(calls) + 1)), chance)

    sweep(cluster, options, count, budget, seed, lambda scenario: scenario.roles, points_of)


def errnos(cluster, options, count, budget, seed):
    def points_of(calls, chance):
        return all_in_any_order((("fail", at, getattr(errno, name)) for at, call in enumerate(calls, 1) if call not in CANNOT_FAIL
                                 for name in (*COMMON, *PLAUSIBLE.get(call, ()))), chance)

    sweep(cluster, options, count, budget, seed, lambda scenario: scenario.root, points_of)
