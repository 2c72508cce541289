"""Cold start, warm start and bytes on disk: this project, and the steps of pyxis with enroot and of
Apptainer."""

import json
import os
import subprocess
import time
from datetime import date
from pathlib import Path

import agent_side
import machine
import node
import quiet
import registry
from machine import Skipped, call, has, say, test_image
from report import Report
from step import Steps

NEEDED = ("skopeo", "zstd", "mksquashfs", "unsquashfs", "squashfuse_ll", "bwrap")
WAYS = {"ours": "spank-container", "enroot": "steps of pyxis + enroot", "apptainer": "steps of Apptainer"}
COLD = "registry to the end of /bin/true, nothing on the node"
WARM = "the same in a later job"
BYTES = "on disk after that"


def measure(work, build, quick):
    return ToolsBenchmark(work, build, quick).measure()


class ToolsBenchmark:
    """The peers' steps are those of enroot 4.1 (import, create, start) and Apptainer 1.3 (build,
    exec), done by the distribution's programs. bwrap replaces their own start, which in enroot is a
    script of 150 ms: the result favours the peers."""

    def __init__(self, work, build, quick):
        self.work, self.quick, self.steps = work, quick, Steps(build)
        self.report = Report("tools: cold start, warm start and bytes on disk of the image pytorch", "the registry's blobs warm")
        self.report.picture = f"pytorch image (482 MB compressed, 1.4 GB unpacked), registry on loopback; {date.today()}, {machine.describe()}"
        self.report.ways = WAYS

    def measure(self):
        missing = [program for program in NEEDED if not has(program)]
        if missing:
            raise Skipped(f"not installed: {' '.join(missing)}")
        self.image = registry.push(test_image("pytorch"), "pytorch")
        self.fetch(self.work / "warm-up")  # reads the registry's blobs into the page cache
        call("rm", "-rf", self.work / "warm-up")
        for _ in range(1 if self.quick else 3):
            self.sample_ours()
            self.sample_enroot()
            self.sample_apptainer()
        return self.report

    # --- this project ---

    def sample_ours(self):
        node.empty_store()
        os.sync()
        quiet.pause()
        imported = agent_side.import_image(self.image)
        first = self.steps.run_unshared("/bin/true", image=self.image)["whole"]
        self.add("ours", imported.wall + first / 1e3, [self.steps.run_unshared("/bin/true", image=self.image)["whole"] for _ in range(5)],
                 node.STORE)

    # --- other programs ---

    def sample_enroot(self):
        """import: fetch, recompress for the cache, extract, mksquashfs. create: unsquashfs. A later
        job with the file creates again."""
        home = node.make(self.work / "enroot")
        os.sync()
        quiet.pause()
        begin = time.monotonic()
        tree, squashfs, root = node.make(home / "tree"), home / "image.sqsh", home / "root"
        for blob in self.fetch(home / "fetched"):
            call("sh", "-c", 'gzip -dc "$0" | zstd -q -T0 -o "$0.zst" && rm "$0"', blob)
            call("sh", "-c", 'zstd -dcq "$0.zst" | tar -x -C "$1"', blob, tree)
        call("mksquashfs", tree, squashfs, "-all-root", "-no-progress", "-quiet", "-comp", "lzo", "-noD")
        call("rm", "-rf", tree)
        self.create_and_start(squashfs, root)
        cold = time.monotonic() - begin
        warm = []
        for _ in range(2):
            call("rm", "-rf", root)
            os.sync()
            quiet.pause()
            warm.append(self.timed(self.create_and_start, squashfs, root))
        self.add("enroot", cold, warm, home)
        call("rm", "-rf", home)

    def create_and_start(self, squashfs, root):
        call("unsquashfs", "-q", "-n", "-d", root, squashfs)
        self.start(root)

    def sample_apptainer(self):
        """build: fetch, extract, mksquashfs with gzip. exec: squashfuse_ll, then a mount namespace."""
        home = node.make(self.work / "apptainer")
        os.sync()
        quiet.pause()
        begin = time.monotonic()
        tree, squashfs = node.make(home / "tree"), home / "image.sif"
        for blob in self.fetch(home / "cache"):
            call("tar", "-x", "-z", "-C", tree, "-f", blob)
        call("mksquashfs", tree, squashfs, "-no-progress", "-quiet")
        call("rm", "-rf", tree)
        self.mount_and_start(squashfs)
        cold = time.monotonic() - begin
        self.add("apptainer", cold, [self.timed(self.mount_and_start, squashfs) for _ in range(5)], home)
        call("rm", "-rf", home)

    def mount_and_start(self, squashfs):
        mount = node.make(self.work / "mount")
        server = subprocess.Popen(["squashfuse_ll", "-f", "-o", "allow_other", squashfs, mount], stdin=subprocess.DEVNULL)
        while not (mount / "bin").exists():
            time.sleep(0.001)
        self.start(mount)
        call("umount", mount)
        server.wait()
        mount.rmdir()

    def fetch(self, directory):
        """Returns the paths of the layers' blobs, lowest first."""
        call("skopeo", "copy", "-q", "--src-tls-verify=false", f"docker://{self.image}", f"dir:{directory}")
        layers = json.loads((directory / "manifest.json").read_text())["layers"]
        return [directory / layer["digest"].removeprefix("sha256:") for layer in layers]

    def start(self, root):
        call("bwrap", "--ro-bind", root, "/", "--dev", "/dev", "--proc", "/proc", "/bin/true")

    # -----

    def timed(self, action, *arguments):
        begin = time.monotonic()
        action(*arguments)
        return (time.monotonic() - begin) * 1e3

    def add(self, way, cold, warm, directory):
        say(f"{WAYS[way]}: {cold:.1f} s, {min(warm):.0f} ms")
        self.report.samples(f"tools.cold.{way}", "s", COLD, of=("ours", "tools.cold.ours") if way != "ours" else None).add(cold)
        for value in warm:
            self.report.samples(f"tools.warm.{way}", "ms", WARM, of=("ours", "tools.warm.ours") if way != "ours" else None).add(value)
        stored = sum(file.stat().st_blocks * 512 for file in Path(directory).rglob("*") if file.is_file() and not file.is_symlink())
        self.report.samples(f"tools.bytes.{way}", "MB", BYTES, of=("ours", "tools.bytes.ours") if way != "ours" else None).add(stored / 1e6)
