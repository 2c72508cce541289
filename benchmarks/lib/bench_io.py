"""Speed of a program that reads its image."""

import os
import subprocess

import agent_side
import node
import registry
from machine import BenchmarkError, call, drop_caches, has, read_through, say, test_image
from report import Report
from step import Steps

TORCH = ("/usr/bin/python3", "-c", "import torch")
AGAIN = ("/usr/bin/python3", "-c", """
import subprocess, sys, time
for _ in range(2):
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
print(time.monotonic() - began, file=sys.stderr)
""")
WALK = ("/bin/sh", "-c", "find / -xdev -printf '%p %s %m\\n' >/dev/null")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def measure(work, build, quick):
    return IoBenchmark(work, build, quick).measure()


class IoBenchmark:
    def __init__(self, work, build, quick):
        self.work = work
        self.quick = quick
        self.steps = Steps(build)
        self.tree = work / "pytorch"
        self.places = {}
        self.report = Report("io: programs of the image pytorch, s from exec to end", "as each name says")

    def measure(self):
        self.image = registry.push(test_image("pytorch"), "pytorch")
        agent_side.import_image(self.image)
        say("unpacking pytorch on the disk")
        self.steps.unpack(self.image, self.tree)
        # name -> options of bench-step
        self.places = {"ext4": {"root": self.tree}, "": {"image": self.image}}
        if has("squashfuse_ll") and not self.quick:
            self.mount_squashfuse()
        add_host_trees(self.tree)
        self.measure_ready("io.ready.store", "task_init, layers in the node's store, not mounted, the registry asked", 3 if self.quick else 15)
        self.measure_warm(3 if self.quick else 9)
        self.measure_cold(2 if self.quick else 5)
        self.measure_in_place(2 if self.quick else 7)
        return self.report

    def measure_in_place(self, repeats):
        """Measures layers in a shared store on this disk, against layers in the node's store."""
        shared = node.make(self.work / "shared")
        os.chown(shared, node.SERVICE_ID, node.SERVICE_ID)
        os.chmod(shared, 0o700)
        in_place = f'[shared]\ndirectory = "{shared}"\nuse = "in-place"\n'
        node.allow_registry(registry.ADDRESS, more=in_place)
        node.empty_store()
        agent_side.import_image(self.image)
        node.empty_store()
        rows = {name: self.report.samples(f"io.torch.place.{name}", "s", f"import torch, layers in place, {what}", of=("ext4", f"ext4.torch.{of}"))
                for name, what, of in (("first", "their files in the page cache", "warm"), ("warm", "the second time in a step", "warm"),
                                       ("cold", "after drop_caches", "cold"))}
        self.steps.run(*TORCH, env=ENVIRONMENT, image=self.image)
        self.measure_ready("io.ready.place", "task_init, layers in place, the registry asked", 3 if self.quick else 15, of=("store", "io.ready.store"))
        for _ in range(repeats):
            rows["first"].add(self.steps.run(*TORCH, env=ENVIRONMENT, image=self.image)["ran"] / 1e3)
            rows["warm"].add(float(self.steps.run(*AGAIN, env=ENVIRONMENT, image=self.image)["stderr"].split()[-1]))
            self.sample("torch.warm", TORCH, "ext4")
            drop_caches()
            rows["cold"].add(self.steps.run(*TORCH, env=ENVIRONMENT, image=self.image)["ran"] / 1e3)
        if node.layer_files():
            raise BenchmarkError("the node keeps layers of an image in place")

    def mount_squashfuse(self):
        """Mounts the same tree as one file through FUSE, for programs without kernel mounts."""
        say("packing pytorch for squashfuse")
        image, mount = self.work / "pytorch.sqsh", node.make(self.work / "fuse")
        call("mksquashfs", self.tree, image, "-comp", "zstd", "-Xcompression-level", "1", "-quiet", "-no-progress")
        subprocess.Popen(["squashfuse_ll", "-f", "-o", "allow_other", image, mount], stdin=subprocess.DEVNULL)
        call("sh", "-c", f"for i in $(seq 50); do [ -e {mount}/usr ] && exit; sleep 0.1; done; exit 1")
        add_host_trees(mount)
        self.places["squashfuse_ll"] = {"root": mount}

    def measure_warm(self, repeats):
        """Measures while another step of the job keeps the layers mounted, as in a job of several
        steps."""
        read_through(*node.layer_files())
        with self.steps.hold(self.image):
            for name in self.places:
                self.sample("torch.warm", TORCH, name, keep=False)
                self.sample("walk.warm", WALK, name, keep=False)
            for _ in range(repeats):
                for name in self.places:
                    self.sample("torch.warm", TORCH, name)
                    self.sample("walk.warm", WALK, name)
        self.report.samples("io.torch.first", "s", "import torch, layers just mounted, their files in the page cache", of=("ext4", "ext4.torch.warm"))
        for _ in range(repeats):
            times = self.steps.run_unshared(*TORCH, env=ENVIRONMENT, image=self.image)
            self.report.rows["io.torch.first"].add(times["ran"] / 1e3)

    def measure_cold(self, repeats):
        for _ in range(repeats):
            for name in self.places:
                drop_caches()
                self.sample("torch.cold", TORCH, name)

    def measure_ready(self, name, what, repeats, of=None):
        row = self.report.samples(name, "ms", what, of=of)
        for _ in range(repeats):
            row.add(self.steps.run("/bin/true", image=self.image)["entered"])

    def sample(self, what, program, place, keep=True):
        times = self.steps.run(*program, env=ENVIRONMENT, **self.places[place])
        if keep:
            reference = f"ext4.{what}"
            texts = {"torch.warm": "import torch, read before", "torch.cold": "import torch after drop_caches",
                     "walk.warm": "find -xdev -printf over the whole tree, read before"}
            name = {"": f"io.{what}", "ext4": reference}.get(place, f"io.peer.{place}.{what}")
            self.report.samples(name, "s", texts[what], of=("ext4", reference) if name != reference else None).add(times["ran"] / 1e3)


def add_host_trees(root):
    """Adds host directories that programs in a chroot need. find -xdev does not enter them."""
    for name in ("dev", "proc"):
        call("mount", "--rbind", f"/{name}", root / name)
