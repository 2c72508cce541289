"""Resources of a step that its user has stopped through Slurm: other users' steps do not wait for
them. scancel -s STOP reaches the agent and its helpers if proctrack signals whole process trees
(linuxproc). The tests stop them in the same way."""
import os
import signal
import time

from cluster import kill_all
from command import await_true
from errors_test import Config
from harness import equal, expect, test
from images import Image, probe, with_probe

ON = ("-w", "node01")
HOLD = "import fcntl, os, sys, time; places = [os.open(place, os.O_RDONLY) for place in sys.argv[1:]]; [fcntl.flock(place, fcntl.LOCK_EX) for place in places]; print('held', flush=True); time.sleep(600)"


class Held:
    """Root holds the locks of these files on node01, like a process stopped at that moment."""

    def __init__(self, cluster, *places):
        self.holder = cluster.enter("node01", "root", "python3", "-c", HOLD, *places)

    def __enter__(self):
        self.holder.await_text("held")

    def __exit__(self, *_):
        self.holder.process.kill()
        self.holder.process.wait()


def state_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def is_stopped(cluster, name):
    found = cluster.processes("node01", name)
    return bool(found) and all(state_of(pid) == "T" for pid in found)


def took(cluster, *argv, user="bob", **how):
    began = time.monotonic()
    cluster.srun(*ON, "--overcommit", *argv, user=user, timeout=90, **how).good()
    return time.monotonic() - began


@test
def stopped_pull_delays_no_other_pull(cluster):
    name, layers = cluster.faulty.publish(with_probe("stopped", [("data", os.urandom(100_000))]))
    gate = cluster.faulty.hold(layers[0])
    step = cluster.start_srun(*ON, "--overcommit", "-J", "stopped", "/probe", image=name)
    try:
        step.await_text("pulling")
        kill_all(cluster.strangers("node01"), signal.SIGSTOP)
        await_true(lambda: is_stopped(cluster, "import"), 10, "there is no pull that is stopped, the test is void")
        gate.set()
        seconds = took(cluster, "/probe", image=name)
        print(f"    a start of another user's beside it: {seconds:.1f} s", flush=True)
        expect(seconds < 22, f"another user waited {seconds:.0f} s for a pull that is stopped")
    finally:
        gate.set()
        cluster.run("scancel", "--me", "-n", "stopped")
        step.end(30)
    cluster.must_be_quiet(within=5)


@test
def start_stopped_at_loop_devices_delays_others_briefly(cluster):
    image = Image("stopped/many-layers", [[("probe", probe())]] + [[(f"layer-{number}", os.urandom(100))] for number in range(30)])
    usual = max(took(cluster, "/probe", image=image) for _ in range(2))
    with Held(cluster, "/dev/loop-control"):
        seconds = took(cluster, "/probe", image=image)
    print(f"    {seconds:.2f} s, else {usual:.2f} s", flush=True)
    expect(seconds < usual + 3, f"a start of 31 layers took {seconds:.1f} s, else {usual:.1f} s")


@test
def pull_stopped_at_store_directories_delays_others_briefly(cluster):
    store = "/var/lib/spank-container"
    with Config(cluster, "tag_ttl = 1\npublic_ttl = 60\n"):
        took(cluster, "true")
        time.sleep(1.1)  # the tag's note is about to be replaced
        with Held(cluster, f"{store}/names", f"{store}/images"):
            seconds = took(cluster, "true")
    expect(seconds < 10, f"a start took {seconds:.1f} s")
    equal([name for name in os.listdir(os.path.join(cluster.store("node01"), "images")) if name.startswith(".")], [], "what is left in images/")
