"""Cold start of a large image over shaped links."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import agent_side
import node
import quiet
import shaped
from machine import BenchmarkError, Skipped, call, say
from report import Report

MEGABYTES = 5000
QUICK_MEGABYTES = 300
LINKS = (1, 10, 25)    # Gb/s
LIMITED = (1, 0.1)     # a link, and the limit of each of its connections
IN_PLACE = 10          # Gb/s
LIKE_OURS = 4          # import converts one layer per core at the same time, at most this many


def measure(work, build, quick):
    return ColdBenchmark(work, build, quick).measure()


class ColdBenchmark:
    """Pulls the image over each link, and uses it in place on a second node."""

    def __init__(self, work, build, quick):
        megabytes = int(os.environ.get("SPC_BENCH_COLD_MB", QUICK_MEGABYTES if quick else MEGABYTES))
        self.image = Path.home() / f".cache/spank-container-tests/cold-{megabytes}"
        # the image, and the store with its contents uncompressed
        if shutil.disk_usage(work).free < megabytes * 1e6 * 5:
            raise Skipped(f"{work} needs {megabytes * 5 / 1000:.0f} GB free (hint: --megabytes 1000, or --work)")
        self.work = work
        self.floor = build / "benchmarks/bench-floor"
        self.megabytes = megabytes
        self.repeats = 2 if quick else 3
        self.report = Report(f"cold: an image of {megabytes} MB in 42 layers, two of them with 69 %, over shaped links",
                             "the registry's blobs warm, the store new")
        self.report.links = LINKS

    def measure(self):
        say(f"image of {self.megabytes} MB")
        shaped.make(self.image, self.megabytes)
        self.layers = shaped.layers(self.image)
        node.allow_registry(shaped.ADDRESS)
        call("sh", "-c", f"cat {self.image}/* >/dev/null")
        for rate in LINKS:
            with shaped.Link(self.image, rate):
                for _ in range(self.repeats if rate > 1 or self.megabytes <= 1000 else 1):
                    self.sample(f"{rate}g", f"{rate} Gb/s")
        rate, each = LIMITED
        with shaped.Link(self.image, rate, each):
            self.sample_limited(f"{rate} Gb/s, {each} Gb/s for each connection")
        with shaped.Link(self.image, IN_PLACE):
            self.sample_in_place(f"{IN_PLACE} Gb/s")
        self.report.note("a peer in the same run: curl, SHA-256 and ISA-L's inflate, one connection a layer, output discarded (floor)")
        return self.report

    def sample(self, name, link):
        quiet.pause()
        parallel = min(os.cpu_count(), LIKE_OURS)
        floor = json.loads(call(self.floor, parallel, *(f"http://{shaped.ADDRESS}{path}" for _, path in self.layers)))
        self.add(f"floor.cold.{name}", "s", f"GET, SHA-256, inflate, SHA-256 over {link}", floor["wall"])
        self.add(f"floor.cold.{name}.cpu", "CPU s", "the same", floor["cpu"])
        cost = self.pull()
        self.add(f"cold.{name}", "s", f"until the image can be mounted, over {link}", cost.wall, of=("floor", f"floor.cold.{name}"))
        self.add(f"cold.{name}.cpu", "CPU s", "import and its children", cost.cpu, of=("floor", f"floor.cold.{name}.cpu"))
        self.add(f"cold.{name}.memory", "MiB", "highest sum of resident sets, sampled", cost.memory)

    def sample_limited(self, link):
        quiet.pause()
        began = time.monotonic()
        for _, path in self.layers:
            subprocess.run(["curl", "-sSf", "-o", "/dev/null", f"http://{shaped.ADDRESS}{path}"], check=True)
        self.add("floor.cold.limited", "s", f"curl, one connection after the other, over {link}", time.monotonic() - began)
        cost = self.pull()
        self.add("cold.limited", "s", "until the image can be mounted, over that link", cost.wall, of=("one connection", "floor.cold.limited"))

    def sample_in_place(self, link):
        """One node converts the image into a shared store on this disk. Then a node with an empty
        store uses it in place."""
        shared = node.make(self.work / "shared")
        os.chown(shared, node.SERVICE_ID, node.SERVICE_ID)
        os.chmod(shared, 0o700)
        node.allow_registry(shaped.ADDRESS, more=f'[shared]\ndirectory = "{shared}"\nuse = "in-place"\n')
        self.add("cold.place.converts", "s", f"the node that fills the shared store, over {link}", self.pull().wall, of=("pull", f"cold.{IN_PLACE}g"))
        for _ in range(self.repeats):
            cost = self.pull()
            self.add("cold.place", "s", "the other nodes, layers in place in the shared store", cost.wall, of=("pull", f"cold.{IN_PLACE}g"))
            self.add("cold.place.cpu", "CPU s", "import and its children", cost.cpu)
        if node.layer_files():
            raise BenchmarkError("the node keeps layers of an image in place")
        shutil.rmtree(shared)

    def pull(self):
        node.empty_store()
        os.sync()
        quiet.pause()
        return agent_side.import_image(f"{shaped.ADDRESS}/cold:latest")

    def add(self, name, unit, what, value, of=None):
        self.report.samples(name, unit, what, of=of).add(value)
