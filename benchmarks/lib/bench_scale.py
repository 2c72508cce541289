"""One image on eight nodes at once, from a registry behind a slow link: alone, and with a store that all nodes see. Many nodes: simulated."""

import json
from pathlib import Path

from endpoints import add_measured
from machine import say, test_image
from on_cluster import cluster
from report import Report
from simulated import add_simulated

NODES = 8
RATE = 10  # MB/s of the registry's link: slower than two processors convert for all nodes
ARRAY = 32
SHARED = "/home/shared/spank-container"
CONFIG = "/etc/spank-container/config.d/90-bench.toml"
STORE = "/var/lib/spank-container"
ALL = [f"node{number:02}" for number in range(1, NODES + 1)]


def measure(work, build, quick):
    report = Report(f"scale: an image that no node has, on up to {NODES} nodes; the registry's link has {RATE} MB/s", "warm")
    add_simulated(report, build, quick)
    add_measured(report, build, quick)
    layout = test_image("python")
    with cluster(work, build, NODES) as made:
        bench = Scale(made, report, made.push(layout, "bench/python:1"), size_of(layout))
        for _ in range(1 if quick else 3):
            bench.add("one", nodes=1)
            bench.add("shared", nodes=NODES, shared=True)
            bench.add_array(shared=True)
            if not quick:
                bench.add("alone", nodes=NODES)
    return report


def size_of(layout):
    """Bytes of the image's blobs, as a registry has them."""
    read = lambda digest: json.loads((Path(layout) / "blobs" / digest.replace(":", "/")).read_text())
    manifest = read(json.loads((Path(layout) / "index.json").read_text())["manifests"][0]["digest"])
    return sum(part["size"] for part in (manifest["config"], *manifest["layers"]))


class Scale:
    def __init__(self, made, report, image, size):
        self.cluster, self.report, self.image, self.size = made, report, image, size
        made.call("exec", "head", "tc", "qdisc", "add", "dev", "br0", "root", "tbf", "rate", f"{RATE * 8}mbit", "burst", "256kb", "latency", "400ms")
        self.report.note(f"the image has {size / 1e6:.0f} MB")

    def add(self, way, nodes, shared=False):
        say(f"{nodes} node{'s' if nodes > 1 else ''}{' with a shared store' if shared else ''}")
        step = ["srun", f"-N{nodes}", f"-n{nodes}", f"--container-image={self.image}", "true"]
        seconds, sent = self.sample(step, shared)
        of = ("one", "scale.ready.one") if way != "one" else None
        self.report.samples(f"scale.ready.{way}", "s", "until the task of the last node has ended", of=of).add(seconds)
        self.report.samples(f"scale.registry_bytes.{way}", "x image", "sent by the registry's machine").add(sent)

    def add_array(self, shared):
        say(f"an array of {ARRAY} jobs")
        job = ["sbatch", "--wait", "-Q", "-N1", "-n1", f"--array=1-{ARRAY}", "-o/dev/null", f"--container-image={self.image}", "--wrap=true"]
        seconds, sent = self.sample(job, shared)
        self.report.samples("scale.array", "s", f"{ARRAY} jobs of one node each").add(seconds)
        self.report.samples("scale.registry_bytes.array", "x image", "sent by the registry's machine").add(sent)

    def sample(self, command, shared):
        """Seconds, and how often the image was sent. No node, and no shared store, has anything of it."""
        self.everywhere("sh", "-c", f"cd {STORE} && find layers/sha256 records names grants images -type f -delete")
        self.cluster.call("exec", "head", "rm", "-rf", SHARED, CONFIG)
        if shared:
            self.cluster.call("exec", "node01", "install", "-d", "-o", "spank-container", "-g", "spank-container", "-m", "0700", SHARED)
            self.cluster.call("exec", "node01", "sh", "-c", f"mkdir -p $(dirname {CONFIG}) && printf '[shared]\\ndirectory = \"{SHARED}\"\\n' >{CONFIG}")
        before = self.sent()
        (turn,) = self.cluster.turns("alice", None, {"way": command}, 1)
        return turn["way"].ms / 1000, (self.sent() - before) / self.size

    def everywhere(self, *command):
        for node in ALL:
            self.cluster.call("exec", node, *command)

    def sent(self):
        return int(self.cluster.call("exec", "head", "cat", "/sys/class/net/br0/statistics/tx_bytes"))
