"""One image on eight nodes at once, from a registry behind a slow link: without and with a shared
store, compared with `sbcast` of the same bytes. Many nodes: real endpoints in network namespaces,
and simulated ones."""

import json
import os
from pathlib import Path

from endpoints import add_measured
from machine import BenchmarkError, say, test_image
from on_cluster import cluster
from report import Report
from simulated import add_simulated

NODES = 8
RATE = 5  # MB/s of the registry's link: slower than two processors convert for all nodes
ARRAY = 32
SHARED = "/home/shared/spank-container"
CONFIG = "/etc/spank-container/config.d/90-bench.toml"
STORE = "/var/lib/spank-container"
ALL = [f"node{number:02}" for number in range(1, NODES + 1)]
# srun uses the user's proxy, so it cannot resolve the tag and knows that at once. Each node
# resolves it instead.
UNTOLD = ("env", "http_proxy=http://127.0.0.1:1", "HTTP_PROXY=http://127.0.0.1:1")


def measure(work, build, quick):
    report = Report(f"scale: an image that no node has, on up to {NODES} nodes; the registry's link has {RATE} MB/s", "warm")
    add_simulated(report, build, quick)
    add_measured(report, build, quick)
    try:
        add_cluster(report, work, build, quick)
    except BenchmarkError as error:  # the earlier measurements took minutes
        say(str(error))
        report.note(f"the cluster of {NODES} nodes: not all was measured: {str(error).splitlines()[0]}")
    return report


def add_cluster(report, work, build, quick):
    layout = test_image("python")
    with cluster(work, build, NODES) as made:
        bench = Scale(made, report, made.push(layout, "bench/python:1"), size_of(layout))
        for round_ in range(1 if quick else 3):
            bench.add("one", nodes=1)
            bench.add("peers", nodes=NODES)
            bench.add("shared", nodes=NODES, shared=True)
            if round_ == 0:  # minutes each
                bench.add_sbcast("sbcast", NODES)
            if not quick and round_ == 0:
                bench.add("apart", nodes=NODES, keys="[peers]\nenabled = false\n")
                bench.add_sbcast("sbcast.fanout-2", NODES, "--fanout=2")
        bench.add_ratio(f"ready_ratio.{NODES}", "x one node", f"{NODES} slurmd", "ready.peers", "ready.one")
        for keep in ("blobs", "layers"):
            bench.add_array(keep)
        bench.add_warm(3 if quick else 11)
        bench.add_ratio("warm_ratio", "x untold", f"{NODES} slurmd", "warm.told", "warm.untold")


def size_of(layout):
    """Returns the bytes of the image's blobs in a registry."""
    read = lambda digest: json.loads((Path(layout) / "blobs" / digest.replace(":", "/")).read_text())
    manifest = read(json.loads((Path(layout) / "index.json").read_text())["manifests"][0]["digest"])
    return sum(part["size"] for part in (manifest["config"], *manifest["layers"]))


class Scale:
    def __init__(self, made, report, image, size):
        self.cluster, self.report, self.image, self.size = made, report, image, size
        made.call("exec", "head", "tc", "qdisc", "add", "dev", "br0", "root", "tbf", "rate", f"{RATE * 8}mbit", "burst", "256kb", "latency", "400ms")
        report.note(f"the image has {size / 1e6:.0f} MB")

    def rows(self, name, unit, what, of=None):
        return self.report.samples(f"scale.{name}", unit, what, of=of)

    def add(self, way, nodes, shared=False, keys=""):
        say(f"{nodes} node{'s' if nodes > 1 else ''}: {way}")
        step = ["srun", f"-N{nodes}", f"-n{nodes}", f"--container-image={self.image}", "true"]
        self.empty(("blobs" if shared else None), keys)
        seconds, sent, asked = self.sample(step)
        of = ("one", "scale.ready.one") if way != "one" else None
        self.rows(f"ready.{way}", "s", "until the task of the last node has ended", of=of).add(seconds)
        self.rows(f"registry_bytes.{way}", "x image", "sent by the registry's machine").add(sent)
        self.rows(f"registry_requests.{way}", "GET", f"for manifests and blobs; HEAD: {asked.count('HEAD')}").add(asked.count("GET"))

    def add_sbcast(self, name, nodes, *options):
        """Copies the same number of bytes from the registry's machine to each node's disk."""
        say(name)
        file, there = Path(self.cluster.directory) / "home/shared/bytes", "/var/tmp/bytes"
        file.write_bytes(os.urandom(self.size))
        # Over such a link, the default blocks of 8 MiB to eight nodes at once exceed slurmd's
        # message time-out.
        step = ["salloc", "-Q", f"-N{nodes}", "sbcast", "--force", "--size=1m", *options, "/home/shared/bytes", there]
        seconds, sent, _ = self.sample(step)
        self.everywhere("rm", "-f", there)
        file.unlink()
        self.rows(name, "s", f"Slurm's own {' '.join(('sbcast', '--size=1m', *options))} of as many bytes to {nodes} nodes: nothing is converted, checked or started",
                  of=("one", "scale.ready.one")).add(seconds)
        self.rows(f"{name}_bytes", "x image", "sent by its machine").add(sent)

    def add_array(self, keep):
        say(f"an array of {ARRAY} jobs, shared store with {keep}")
        job = ["sbatch", "--wait", "-Q", "-N1", "-n1", f"--array=1-{ARRAY}", "-o/dev/null", f"--container-image={self.image}", "--wrap=true"]
        self.empty(keep)
        before = self.conversions()
        seconds, sent, asked = self.sample(job)
        self.rows(f"array.{keep}", "s", f"{ARRAY} jobs of one node each").add(seconds)
        self.rows(f"registry_bytes.array.{keep}", "x image", "sent by the registry's machine").add(sent)
        self.rows(f"registry_requests.array.{keep}", "GET", "for manifests and blobs").add(asked.count("GET"))
        self.rows(f"conversions.array.{keep}", "x image", f"converted by the {NODES} nodes").add(self.conversions() - before)

    def add_warm(self, rounds):
        """Measures with the image on all nodes: only the tag is resolved. Each run is a job, since
        a later step does not resolve it again."""
        say("known tags")
        self.empty(None)
        step = ["srun", f"-N{NODES}", f"-n{NODES}", f"--container-image={self.image}"]
        self.cluster.turns("alice", None, {"pull": [*step, "true"]}, 1)
        ways = {"told": [*step, "true"], "untold": [*UNTOLD, *step, "true"]}
        for way, expected in (("told", 1), ("untold", NODES)):
            before = len(self.requests())
            self.cluster.turns("alice", None, {way: ways[way]}, 1)
            asked = self.requests()[before:]
            self.rows(f"registry_requests.warm.{way}", "HEAD", f"of a start on {NODES} nodes that have the image; GET: {asked.count('GET')}").add(asked.count("HEAD"))
            if len(asked) != expected:
                raise BenchmarkError(f"known tags, {way}: {len(asked)} requests, not {expected}: nothing to compare")
        for turn in self.cluster.turns("alice", None, ways, rounds):
            for way in turn:
                self.rows(f"warm.{way}", "s", f"{NODES} nodes have the image; " + ("srun asks what the tag stands for" if way == "told" else "each node asks"),
                          of=("untold", "scale.warm.untold") if way == "told" else None).add(turn[way].ms / 1000)

    def add_ratio(self, name, unit, where, one, other):
        """Adds the ratio under the names of all sizes."""
        median = lambda of: self.report.rows[f"scale.{of}"].median
        self.rows(name, unit, f"measured: {where}, medians of {one} and {other}").values.append(median(one) / median(other))

    def empty(self, shared, keys=""):
        """Removes the image from all nodes and from the shared store."""
        self.everywhere("sh", "-c", f"cd {STORE} && find layers/sha256 records names grants images -type f -delete")
        self.cluster.call("exec", "head", "rm", "-rf", SHARED, CONFIG)
        if shared:
            self.cluster.call("exec", "node01", "install", "-d", "-o", "spank-container", "-g", "spank-container", "-m", "0700", SHARED)
            keys += f'[shared]\ndirectory = "{SHARED}"\nkeep = "{shared}"\n'
        self.cluster.call("exec", "node01", "sh", "-c", f"mkdir -p $(dirname {CONFIG}) && printf %s '{keys}' >{CONFIG}")

    def sample(self, command):
        """Returns seconds, how often the image was sent, and the methods of the requests."""
        before, asked = self.sent(), len(self.requests())
        (turn,) = self.cluster.turns("alice", None, {"way": command}, 1)
        return turn["way"].ms / 1000, (self.sent() - before) / self.size, self.requests()[asked:]

    def everywhere(self, *command):
        for node in ALL:
            self.cluster.call("exec", node, *command)

    def sent(self):
        return int(self.cluster.call("exec", "head", "cat", "/sys/class/net/br0/statistics/tx_bytes"))

    def requests(self):
        """Returns the methods of requests for the image, from the registry's own log."""
        log = self.cluster.call("exec", "head", "sh", "-c", "cat /var/log/registry-5000.log")
        return [line.partition('"')[2].split()[0] for line in log.splitlines() if " /v2/bench/python/" in line and line.partition('"')[2][:4] in ("GET ", "HEAD")]

    def conversions(self):
        """Returns the number of conversions of the image by all nodes so far, from their logs."""
        converted = layers = 0
        for node in ALL:
            for line in self.cluster.call("logs", node).splitlines():
                if " image=\"registry:5000/bench/python:1\" " in line and "spank-container: pull job=" in line:
                    words = dict(word.split("=", 1) for word in line.split() if "=" in word)
                    converted, layers = converted + int(words["converted"]), int(words["layers"])
        return converted / layers if layers else 0
