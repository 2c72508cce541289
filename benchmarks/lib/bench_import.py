"""Time, memory and size of a pull from a registry into the store."""

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import agent_side
import node
import quiet
import registry
from machine import call, has, say, test_image
from report import Report

MANY = 8
LIKE_OURS = 4  # import converts one layer per core at the same time, at most this many


def measure(work, build, quick):
    return ImportBenchmark(work, build, quick).measure()


class ImportBenchmark:
    def __init__(self, work, build, quick):
        self.work = work
        self.floor = build / "benchmarks/bench-floor"
        self.quick = quick
        self.report = Report("import: the image pytorch from a registry on loopback into an empty store",
                             "the registry's blobs warm, the store new")

    def measure(self):
        self.image = registry.push(test_image("pytorch"), "pytorch")
        self.layers = registry.layers("pytorch")
        self.run_floor()  # reads the registry's blobs into the page cache
        self.make_variants()
        for _ in range(2 if self.quick else 7):
            self.sample_floor()
            self.sample_import()
            self.sample_warm()
            self.sample_top_layer()
            self.sample_many_layers()
            self.sample_many_images()
        if not self.quick:
            for _ in range(2):
                self.sample_peers()
        return self.report

    def run_floor(self):
        parallel = min(os.cpu_count(), LIKE_OURS)
        return json.loads(call(self.floor, parallel, *(url for _, url in self.layers)))

    def sample_floor(self):
        quiet.pause()
        floor = self.run_floor()
        self.add("floor.cold", "s", "GET, SHA-256, inflate, SHA-256; output discarded", floor["wall"])
        self.add("floor.cpu", "CPU s", "the same", floor["cpu"])
        self.add("compressed", "MB", "the layers in the registry", floor["compressed"] / 1e6)
        self.add("uncompressed", "MB", "their tars", floor["uncompressed"] / 1e6)

    def sample_import(self):
        node.empty_store()
        os.sync()
        quiet.pause()
        cost = agent_side.import_image(self.image)
        stored = sum(file.stat().st_blocks * 512 for file in node.layer_files())
        self.add("import.cold", "s", "until the image can be mounted", cost.wall, of=("floor", "floor.cold"))
        self.add("import.cpu", "CPU s", "import and its children", cost.cpu, of=("floor", "floor.cpu"))
        self.add("import.bytes", "MB", "in the store", stored / 1e6, of=("compressed", "compressed"))
        self.add("import.memory", "MiB", "highest sum of resident sets, sampled", cost.memory)

    def make_variants(self):
        """Makes MANY variants of the image, each with a different small layer on top."""
        self.variants = [registry.push_with_layer("pytorch", f"pytorch-{number}", f"layer {number}\n".encode()) for number in range(MANY)]
        self.many_layers = registry.push(test_image("layers-40"), "layers-40")

    def sample_warm(self):
        """Right after sample_import: only asks the registry whether the tag has moved."""
        for _ in range(5):
            quiet.pause()
            began = time.monotonic()
            registry.head("pytorch")
            answer = time.monotonic() - began
            cost = agent_side.import_image(self.image)
            self.add("import.warm", "ms", "the image is in the store; its registry is asked by tag", cost.wall * 1e3)
            self.add("import.warm.registry", "ms", "the registry's answer to one such question", answer * 1e3)

    def sample_top_layer(self):
        quiet.pause()
        cost = agent_side.import_image(self.variants[0])
        self.add("import.top-layer", "ms", "the image with a new layer of 10 kB on top, all others there", cost.wall * 1e3)

    def sample_many_layers(self):
        node.empty_store()
        quiet.pause()
        cost = agent_side.import_image(self.many_layers)
        self.add("import.layers-40", "s", "an image of 40 layers, 4 MB, into an empty store", cost.wall)

    def sample_many_images(self):
        """Runs MANY jobs at once, each with its own image. The images share all layers but one."""
        node.empty_store()
        os.sync()
        quiet.pause()
        began = time.monotonic()
        with ThreadPoolExecutor(MANY) as jobs:
            list(jobs.map(agent_side.import_image, self.variants))
        self.add(f"import.images-{MANY}", "s", f"{MANY} images at once that share all layers but one", time.monotonic() - began,
                 of=("floor", "floor.cold"))

    def sample_peers(self):
        """Does the same work with the distribution's programs, which fetch everything first."""
        if not has("skopeo"):
            return
        say("skopeo, tar and tar2sqfs")
        fetched, tree = self.work / "fetched", self.work / "tree"
        begin = time.monotonic()
        call("skopeo", "copy", "-q", "--src-tls-verify=false", f"docker://{self.image}", f"dir:{fetched}")
        copied = time.monotonic() - begin
        self.add("import.peer.skopeo", "s", "skopeo copy to a directory: the blobs only", copied, of=("floor", "floor.cold"))
        blobs = [fetched / layer["digest"].removeprefix("sha256:") for layer in json.loads((fetched / "manifest.json").read_text())["layers"]]

        node.make(tree)
        begin = time.monotonic()
        for blob in blobs:
            call("tar", "-x", "-z", "-C", tree, "-f", blob)
        self.add("import.peer.skopeo-tar", "s", "and then GNU tar -x, without whiteouts", copied + time.monotonic() - begin, of=("floor", "floor.cold"))
        call("rm", "-rf", tree)

        if has("tar2sqfs"):
            begin = time.monotonic()
            for blob in blobs:
                self.convert(blob)
            self.add("import.peer.skopeo-tar2sqfs", "s", "and then zcat | tar2sqfs -c zstd -X level=1 for each layer",
                     copied + time.monotonic() - begin, of=("floor", "floor.cold"))
        call("rm", "-rf", fetched)

    def convert(self, blob):
        with subprocess.Popen(["zcat", blob], stdout=subprocess.PIPE) as unpacked:
            call("tar2sqfs", "-q", "-f", "-c", "zstd", "-X", "level=1", f"{blob}.sqsh", stdin=unpacked.stdout)

    def add(self, name, unit, what, value, of=None):
        self.report.samples(name, unit, what, of=of).add(value)
