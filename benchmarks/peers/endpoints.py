"""Real imports and relays that fetch one image from each other: each in a network namespace with
its own link, on one bridge.

Runs as a separate program in its own namespaces (add_measured() shows how), with the directory of
the programs, a number of nodes and optionally some of CASES. Prints one JSON object per line. With
SPC_KEEP_LOGS=DIRECTORY it keeps the output of each import there."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
TESTS = Path(__file__).resolve().parents[2] / "tests/registry"
NODES = 96
MEGABYTES = 16
# MB/s of the registry to one node: slow enough for two processors to run all the nodes
SOURCE = 0.5
# The kernel first splits data larger than a burst into packets of 1,500 bytes, which takes half of
# a relay's processor time. A network card does that in hardware.
SHAPE = "tbf rate 100mbit burst 256kb latency 100ms"
# Of a relay's sending: its children need eight times that.
SLOW = "tbf rate 1mbit burst 16kb latency 100ms"
# As fast as those links, for the cost of a relay.
FAST_NODES, FAST_MEGABYTES, FAST_SOURCE = 8, 64, 12
HEAD = "10.77.0.1"


def add_measured(report, build, quick):
    """Adds times of the real programs to those of the simulator for more nodes."""
    from machine import call, say
    if quick or not (TESTS / "step.py").exists() or not (build / "libexec/relay").exists():
        return report.note("real endpoints: skipped (--quick, or no relay was built)")
    say(f"{NODES} nodes on one bridge")
    lines = call("unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
                 sys.executable, __file__, build, NODES)
    report.endpoints = {}
    for line in map(json.loads, lines.splitlines()):
        if "waits" in line:
            report.endpoints[line["run"]] = line["waits"]
        else:
            report.samples(line["name"], line["unit"], line["what"]).values.append(line["value"])


# --- in the namespaces, which end with this process ---


def run(*command):
    subprocess.run([str(part) for part in command], check=True, stdin=subprocess.DEVNULL)


def make_network(nodes):
    run("mount", "-t", "tmpfs", "-o", "size=8g,mode=755", "tmpfs", "/run")
    tempfile.tempdir = "/run"
    lines = ["link set lo up", f"link add br0 address {hardware(-1)} type bridge", f"addr add {HEAD}/16 dev br0", "link set br0 up"]
    for node in range(nodes):
        run("ip", "netns", "add", f"n{node}")
        lines += [f"link add v{node} type veth peer name eth0 address {hardware(node)} netns n{node}", f"link set v{node} master br0 up"]
    batch("ip", lines + neighbours(range(nodes), "br0"))
    for node in range(nodes):
        others = [other for other in range(-1, nodes) if other != node]
        batch("ip", ["link set lo up", f"addr add {address(node)}/16 dev eth0", "link set eth0 up", *neighbours(others, "eth0")], "-n", f"n{node}")
        run("tc", "-n", f"n{node}", "qdisc", "add", "dev", "eth0", "root", *SHAPE.split())
        run("tc", "qdisc", "add", "dev", f"v{node}", "root", *SHAPE.split())


def address(node):
    return HEAD if node < 0 else f"10.77.{1 + node // 250}.{1 + node % 250}"


def hardware(node):
    return f"02:00:00:00:{(node + 1) >> 8:02x}:{(node + 1) & 255:02x}"


def neighbours(nodes, device):
    """Returns commands that add the nodes permanently to the neighbour table. All network
    namespaces of a machine share it (1,024 entries by default). If it is full, connections fail.
    Permanent entries do not count."""
    return [f"neigh add {address(node)} lladdr {hardware(node)} dev {device} nud permanent" for node in nodes]


def batch(program, lines, *options):
    subprocess.run([program, *options, "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


class Order:
    """The peer places that srun would assign: those of the real order, kept by bench-peers."""

    def __init__(self, build):
        self.process = subprocess.Popen([build / "benchmarks/bench-peers", "--order"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.joined, self.step = 0, None
        self.sources = {}  # by index

    def tell(self, *words):
        print(*words, file=self.process.stdin, flush=True)

    def __call__(self, index):
        if index == self.joined:
            self.joined += 1
            self.tell("join", index)
        else:
            self.tell(*self.step.question)
        self.sources[index] = [int(word) for word in self.process.stdout.readline().split()[1:]]
        return self.sources[index]


class OneOfStep:
    """Records which index its node got."""

    def __init__(self, step):
        self.step, self.index = step, None

    def answer(self, record):
        import step as protocol
        place = self.step.answer(record)
        if place and protocol.RECORD.unpack(record)[0] == protocol.JOIN:
            self.index = protocol.RECORD.unpack(place)[1]
        return place


class Bench:
    def __init__(self, build):
        self.build = build
        self.programs = Path(tempfile.mkdtemp())
        import scene
        from server import Server
        self.registry = Server(address=HEAD)
        self.registry.request_queue_size = 256
        self.image = scene.big_image(MEGABYTES)
        self.layer = self.image.layers[0]
        self.config = scene.config("[peers]\nenabled = true", self.registry)
        self.sent = 0
        self.source = SOURCE
        self.round = 0

    def serve(self, handler, _, name):
        """Serves the layer at the rate of the source, from any offset."""
        if name != self.layer.digest:
            return False
        blob = self.layer.blob
        wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        at = int(wanted[1]) if wanted else 0
        handler.send_response(206 if wanted else 200)
        handler.send_header("Content-Length", str(len(blob) - at))
        if wanted:
            handler.send_header("Content-Range", f"bytes {at}-{len(blob) - 1}/{len(blob)}")
        handler.end_headers()
        began, first = time.monotonic(), at
        with contextlib.suppress(OSError):
            while at < len(blob):
                piece = blob[at:at + 32768]
                handler.wfile.write(piece)
                at += len(piece)
                self.sent += len(piece)
                time.sleep(max(0, began + (at - first) / (self.source * 1e6) - time.monotonic()))
        handler.close_connection = True
        return True

    def program(self, node):
        """Returns the command of import on that node. `ip netns exec` becomes it."""
        file = self.programs / f"n{node}"
        file.write_text(f"#!/bin/sh\nexec {shutil.which('ip')} netns exec n{node} {self.build}/libexec/import\n")
        file.chmod(0o755)
        return str(file)

    def pull(self, nodes, harm=None, after=None):
        """Returns the seconds that each node needs, without those returned by `harm`. `harm` is
        called that long after the first one began, with the runs by index."""
        import agent
        import scene
        from step import OnNode, Step
        self.round += 1
        name = f"bench/{self.round}"
        self.registry.repository(name, self.image, self.serve)
        order = Order(self.build)
        order.step = step = Step(place=order)
        self.sent = 0
        runs, harmed = [], set()
        by_index = lambda: {one.index: (node, each) for node, (one, each) in enumerate(runs)}
        timer = threading.Timer(after or 0, lambda: harm and harmed.update(harm(by_index(), order)))
        timer.start()
        for node in range(nodes):
            one = OneOfStep(step)
            runs.append((one, agent.Import(scene.new_store(), f"{self.registry.name}/{name}:1", config=self.config, user=OnNode(one),
                                           more=[f"step_nodes={nodes}"], program=self.program(node))))
        timer.join()
        took, failed = [], []
        for one, each in runs:
            if one.index in harmed:
                continue
            result = each.wait(300)
            took.append(result.seconds)
            if result.done is None or result.warnings:
                failed.append(str(result)[:300])
        order.process.terminate()
        if logs := os.environ.get("SPC_KEEP_LOGS"):
            self.keep_logs(Path(logs) / str(self.round), runs)
        for _, each in runs:
            shutil.rmtree(each.store.path)
        if failed:
            print(f"{len(failed)} of {nodes} nodes: {failed[0]}", file=sys.stderr)
        self.requests = [method for method, path, _ in self.registry.seen(f"/v2/{name}/")]
        return sorted(took), self.sent / len(self.layer.blob)

    def keep_logs(self, directory, runs):
        directory.mkdir(parents=True, exist_ok=True)
        for node, (one, each) in enumerate(runs):
            came = one.step.came.get(one.index)
            (directory / f"{1000 + node if one.index is None else one.index:04}").write_text(f"node {node}, bytes from {came}\n{each.result}\n{each.result.seconds}")
        (directory / "step").write_text("\n".join(map(str, [runs[0][0].step.asked_for_more, runs[0][0].step.asked_for_faster])) + "\n")

    def end_relays(self):
        """Ends the relays. Returns their CPU seconds."""
        seconds = 0.0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == "relay":
                    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                    seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                    os.kill(int(pid), 9)
        return seconds


def kill_leader(runs, order):
    _, leader = runs[0]
    assert leader.process.poll() is None, "the leader has it already"
    leader.process.kill()
    with order.step.lock:
        order.tell("left", 0)  # srun sees its connection end
    return {0}


def cut_leader_off(runs, order):
    node, leader = runs[0]
    assert leader.process.poll() is None, "the leader has it already"
    run("ip", "link", "set", f"v{node}", "down")
    threading.Timer(20, leader.process.kill).start()
    return {0}


def relay_beside_leader(order):
    """Returns a node that fetches from the leader and serves others."""
    sources = order.sources
    return min(index for index, given in sources.items() if given[:1] == [0] and any(other[:1] == [index] for other in sources.values()))


def cut_relay_off(runs, order):
    relay = relay_beside_leader(order)
    node, one = runs[relay]
    run("ip", "link", "set", f"v{node}", "down")
    threading.Timer(20, one.process.kill).start()
    return {relay}


def slow_down(runs, order):
    """Limits the link in sending direction only."""
    node, _ = runs[relay_beside_leader(order)]
    run("tc", "-n", f"n{node}", "qdisc", "change", "dev", "eth0", "root", *SLOW.split())
    return set()


def most_sent(nodes, before=None):
    """Returns the bytes sent by each node. With earlier values: the maximum of one node since."""
    received = {line.split(":")[0].strip(): int(line.split(":")[1].split()[0]) for line in Path("/proc/net/dev").read_text().splitlines()[2:]}
    now = [received[f"v{node}"] for node in range(nodes)]  # at the bridge's end of its link
    return now if before is None else max(after - then for after, then in zip(now, before))


def row(name, value, unit, what):
    print(json.dumps({"name": f"scale.{name}", "value": value, "unit": unit, "what": what}), flush=True)


class Cases:
    """The cases: each is a pull by all nodes. Their baseline is pulled first."""

    def __init__(self, bench, nodes):
        self.bench, self.nodes, self.of = bench, nodes, f"{nodes} nodes in network namespaces of one machine"
        self.one = self.sound_s = None

    def alone(self):
        if self.one is None:
            (self.one,), _ = self.bench.pull(1)
            self.bench.end_relays()
            row("endpoint_s.1", self.one, "s", f"measured: {MEGABYTES} MB, registry {SOURCE} MB/s, links of 100 Mb/s; one node alone")
        return self.one

    def cost(self):
        measure_cost(self.bench)

    def sound(self):
        bench, nodes, one = self.bench, self.nodes, self.alone()
        if self.sound_s is not None:
            return self.sound_s
        before = most_sent(nodes)
        took, sent = bench.pull(nodes)
        self.sound_s = took[-1]
        waits("nothing fails", took)
        row(f"ready_ratio.{nodes}", took[-1] / one, "x one node", f"measured: {self.of}, real import and relay")
        row(f"p99_minus_p50.{nodes}", took[len(took) * 99 // 100] - took[len(took) // 2], "s", "measured: the same")
        row(f"registry_bytes.{nodes}", sent, "x image", "measured: the same; layers")
        row(f"registry_requests.{nodes}", bench.requests.count("GET"), "GET",
            f"measured: the same; and {bench.requests.count('HEAD')} HEAD, by which nodes ask for rights")
        row(f"egress_max.{nodes}", most_sent(nodes, before) / len(bench.layer.blob), "x image", "measured: the same; sent by the busiest node")
        row(f"relay_cpu.{nodes}", bench.end_relays() / ((nodes - 1) * len(bench.layer.blob) / 1e9), "core-s/GB",
            f"measured: the same, all relays; at {SOURCE} MB/s, a wake-up for each few KB")
        return self.sound_s

    def leader(self):
        self.more("leader_kill", kill_leader, "the leader's import is killed")

    def loss(self):
        self.more("node_loss", cut_leader_off, "the leader's link is cut")

    def more(self, name, harm, what):
        sound, nodes = self.sound(), self.nodes
        took, sent = self.harmed(harm, self.one / 2, what)
        row(f"{name}_s.{nodes}", took[-1] - sound, "s more", f"measured: {self.of}; {what} in the middle")
        row(f"{name}_registry_bytes.{nodes}", sent, "x image", "measured: the same")

    def slow(self):
        self.times("slow_relay", slow_down, 1 / 4, f"a relay beside the leader sends at {SLOW.split()[2]} from a quarter on")

    def relay(self):
        self.times("relays_lost", cut_relay_off, 1 / 4, f"a relay beside the leader, {1 / self.nodes:.0%} of the nodes, is cut off after a quarter")

    def times(self, name, harm, after, what):
        one, nodes = self.alone(), self.nodes
        took, sent = self.harmed(harm, one * after, what)
        row(f"{name}_ratio.{nodes}", took[-1] / one, "x one node", f"measured: {self.of}; {what}")
        row(f"{name}_registry_bytes.{nodes}", sent, "x image", "measured: the same")

    def harmed(self, harm, after, what):
        took, sent = self.bench.pull(self.nodes, harm, after)
        self.bench.end_relays()
        for node in range(self.nodes):
            run("ip", "link", "set", f"v{node}", "up")
            run("tc", "-n", f"n{node}", "qdisc", "change", "dev", "eth0", "root", *SHAPE.split())
        waits(what, took)
        return took, sent


CASES = ("cost", "sound", "leader", "loss", "relay", "slow")


def main(build, nodes, *cases):
    build = Path(build).resolve()
    os.environ["SPC_IMPORT"] = str(build / "libexec/import")
    sys.path[:0] = [str(TESTS)]
    make_network(nodes)
    measured = Cases(Bench(build), nodes)
    for case in cases or CASES:
        getattr(measured, case)()


def waits(run, took):
    print(json.dumps({"run": run, "waits": [round(one, 2) for one in took]}), flush=True)


def measure_cost(bench):
    """Measures the processor time of relays at the rate of their links: a slow link wakes them for
    every few bytes."""
    import scene
    image, layer, source = bench.image, bench.layer, bench.source
    bench.image = scene.big_image(FAST_MEGABYTES)
    bench.layer, bench.source = bench.image.layers[0], FAST_SOURCE
    bench.pull(FAST_NODES)
    sent = (FAST_NODES - 1) * len(bench.layer.blob) / 1e9
    row("relay_cpu", bench.end_relays() / sent, "core-s/GB", f"measured: all relays of {FAST_NODES} nodes, {FAST_MEGABYTES} MB, as fast as links of 100 Mb/s are")
    bench.image, bench.layer, bench.source = image, layer, source


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
