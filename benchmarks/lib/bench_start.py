"""Time until a task runs in its container."""

import os
import time

import agent_side
import node
import registry
from machine import BenchmarkError, call, drop_caches, has, read_through, say, test_image
from report import Report
from step import Steps


FLOOR = "start.peer.fork-exec"
BWRAP = ("bwrap", "start.peer.bwrap")


def measure(work, build, quick):
    return StartBenchmark(work, build, quick).measure()


class StartBenchmark:
    def __init__(self, work, build, quick):
        self.work = work
        self.quick = quick
        self.steps = Steps(build)
        self.report = Report("start: a task in its container", "warm, except start.cold-*: dropped before each sample")
        self.tree = work / "base"
        self.squashfs = work / "base.sqsh"

    def measure(self):
        self.import_images()
        self.unpack_for_peers()
        self.measure_warm(5 if self.quick else 31)
        self.measure_cold(2 if self.quick else 7)
        return self.report

    def import_images(self):
        self.image = {}
        for name in ("base", "pytorch", "layers-40"):
            self.image[name] = registry.push(test_image(name), name)
            agent_side.import_image(self.image[name])
        node.allow_registry(registry.ADDRESS, ask_again=False)
        self.image["one"] = f"{registry.ADDRESS}/one:latest"
        node.add_image_of_lowest_layer(self.image["base"], self.image["one"])
        node.check_store()
        self.report.note(f"layers: pytorch {len(node.layers_of(self.image['pytorch']))}, base {len(node.layers_of(self.image['base']))}")

    def unpack_for_peers(self):
        """Unpacks the `base` image for other programs: a directory and one squashfs file, both
        readable by the job's user."""
        say("unpacking base for the others")
        self.steps.unpack(self.image["base"], self.tree)
        call("mksquashfs", self.tree, self.squashfs, "-comp", "zstd", "-Xcompression-level", "1", "-quiet", "-no-progress")
        node.make(self.work / "mnt")
        self.peers = self.find_peers()
        self.starts_of_user = self.prepare_starts_of_user()

    def measure_warm(self, repeats):
        read_through(*node.layer_files(), self.squashfs, self.tree)
        for _ in range(repeats):
            self.sample_host()
            self.sample_mounted()
            self.sample_shared()
            self.sample_peers()
            self.sample_starts_of_user()
        for _ in range(3 if self.quick else 9):
            self.sample_tasks()
            self.sample_many_of_user()
        self.report.note(f"phases of the last start.mounted.3-layers: {self.phases}")

    def sample_host(self):
        times = self.steps.run("/bin/true")
        self.add(FLOOR, times["whole"], "fork, exec and end of /bin/true on the host")
        self.add_used(FLOOR, times)

    def sample_mounted(self):
        for name, image in (("", "pytorch"), (".3-layers", "base")):
            times = self.steps.run_unshared("/bin/true", image=self.image[image])
            self.add(f"start.mounted{name}", times["entered"], f"task_init, image {image}, nothing mounted")
            self.phases = times["timing"]
            self.add(f"start.mounted{name}.whole", times["whole"], "user_init until /bin/true has ended")
            if not name:
                self.add_used("start.mounted", times)

    def sample_shared(self):
        with self.steps.hold(self.image["pytorch"]):
            times = self.steps.run("/bin/true", image=self.image["pytorch"])
        self.add("start.shared", times["entered"], "task_init, another step has the same layers mounted")
        self.add("start.shared.whole", times["whole"], "user_init until /bin/true has ended")
        self.add_used("start.shared", times)

    def sample_peers(self):
        for name, command in list(self.peers.items()):
            try:
                times = self.steps.run(*command)
            except BenchmarkError as error:
                self.report.note(f"without {name}: {str(error).splitlines()[0]}")
                del self.peers[name]
            else:
                self.add(f"start.peer.{name}", times["whole"], " ".join(str(word).removeprefix(f"{self.work}/") for word in command))
                if name == "bwrap":
                    self.add_used("start.peer.bwrap", times)
        if has("unsquashfs") and not self.quick:
            target = self.work / "unpacked"
            self.add("start.peer.unsquashfs", timed(lambda: call("unsquashfs", "-q", "-n", "-d", target, self.squashfs)),
                     "unpacks the image base, before anything could start")
            call("rm", "-rf", target)

    def find_peers(self):
        peers = {}
        if has("bwrap"):
            peers["bwrap"] = ["bwrap", "--bind", self.tree, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "/bin/true"]
        if has("ch-run"):
            peers["ch-run"] = ["ch-run", self.tree, "--", "/bin/true"]
            peers["ch-run-squashfs"] = ["ch-run", "-m", self.work / "mnt", self.squashfs, "--", "/bin/true"]
        return peers

    # --- scontainer run ---

    def prepare_starts_of_user(self):
        """The same image for the job's user without Slurm: unpacked, as a file, and in the user's
        own store. bwrap gets the directory."""
        self.home = node.make(self.work / "home")
        os.chown(self.home, node.JOB_ID, node.JOB_ID)
        node.add_user_programs(self.steps.build)
        scontainer = node.PROGRAMS / "scontainer"
        self.steps.run(scontainer, "pull", "-q", self.image["base"], env={"HOME": str(self.home)})
        run = [scontainer, "run", "--pull=never"]
        return {"directory": [*run, self.tree, "/bin/true"], "squashfs": [*run, self.squashfs, "/bin/true"],
                "stored": [*run, self.image["base"], "/bin/true"]}

    def sample_starts_of_user(self):
        for name, command in self.starts_of_user.items():
            times = self.steps.run(*command, env={"HOME": str(self.home)})
            self.report.samples(f"start.user.{name}", "ms", "scontainer run, image base: " + name, of=BWRAP).add(times["whole"])
            self.add_used(f"start.user.{name}", times)

    def sample_many_of_user(self):
        """64 starts at once, in ms for all: the inverse of the rate."""
        if "bwrap" not in self.peers:
            return
        many = {"start.peer.bwrap.64": self.peers["bwrap"], **{f"start.user.{name}.64": command for name, command in self.starts_of_user.items()}}
        for name, command in many.items():
            times = self.steps.run(*command, tasks=64, env={"HOME": str(self.home)})
            self.report.samples(name, "ms", "64 at once", of=None if "peer" in name else ("64 bwrap", "start.peer.bwrap.64")).add(times["whole"])

    def sample_tasks(self):
        one = self.steps.run_unshared("/bin/true", image=self.image["pytorch"])
        many = self.steps.run_unshared("/bin/true", image=self.image["pytorch"], tasks=64)
        host = self.steps.run("/bin/true", tasks=64)
        self.add("start.tasks-64", many["entered"], "from the release of 64 tasks until all are inside")
        self.add("start.tasks-64.further", (many["entered"] - one["entered"]) / 63, "the same, for each further task")
        self.add("start.tasks-64.whole", many["whole"], "user_init until 64 x /bin/true have ended")
        self.add("start.tasks-64.host", host["whole"], "64 x /bin/true without container")

    def measure_cold(self, repeats):
        for _ in range(repeats):
            for name, image in (("cold-1", "one"), ("cold-40", "layers-40")):
                drop_caches()
                # Our programs are cached on any node in use. Only the image is cold.
                read_through(*(node.PROGRAMS / "agent",))
                self.steps.run("/bin/true")
                times = self.steps.run_unshared("/bin/true", image=self.image[image])
                self.add(f"start.{name}", times["entered"], f"task_init, image of {len(node.layers_of(self.image[image]))} layer(s), after drop_caches")
                self.add(f"start.{name}.whole", times["whole"], "user_init until /bin/true has ended")

    def add_used(self, name, times):
        """Adds the CPU time of a start's processes, which hardly depends on other load of the
        machine."""
        for what, unit, text in (("cpu", "ms", "processor time of all processes"), ("switches", "", "context switches"), ("faults", "", "page faults")):
            reference = (None if name == FLOOR else ("fork-exec", f"{FLOOR}.{what}"))
            self.report.samples(f"{name}.{what}", unit, text, of=reference).add(times[what])

    def add(self, name, value, what):
        self.report.samples(name, "ms", what, of=("fork-exec", FLOOR) if name != FLOOR else None).add(value)


def timed(action):
    begin = time.monotonic()
    action()
    return (time.monotonic() - begin) * 1e3
