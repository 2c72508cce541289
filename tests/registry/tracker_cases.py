"""Nodes of a step meet at the library's side of srun, each through its own user-source. Only agent
and registry are simulated."""

import contextlib
import ctypes
import hashlib
import json
import os
import signal
import socket
import struct
import threading
import time

import agent
from peer_cases import ask, big_and_slow, new_relay, no_relay_left, relays
from relay_cases import Liar
from scene import big_image, config, new_store, registry, succeeds, wait_for
from shared_cases import fetched, slowly
from step import ADDRESS, JOIN, MORE, MOST, PLACE, RECORD, Node

LIBRARY = os.path.join(os.path.dirname(agent.IMPORT), "../runtime/api/libspank_container.so")
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Srun:
    def __init__(self, nodes):
        self.nodes, self.lines = nodes, []
        self.library = ctypes.CDLL(LIBRARY)
        self.tracker, variable = ctypes.c_void_p(), ctypes.c_char_p()
        assert self.library.spc_tracker_open(ctypes.byref(self.tracker), ctypes.byref(variable)) == 0
        self.variable = variable.value.decode()
        self.log = LOG(lambda level, line, arg: self.lines.append(line.decode()))
        self.library.spc_tracker_start(self.tracker, ctypes.c_uint32(nodes), b"app:1", self.log, None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        began = time.monotonic()
        self.library.spc_tracker_free(self.tracker)
        assert time.monotonic() - began < 0.3, "srun waits for its nodes at its end"

    def start(self, node, name, **options):
        store = new_store()
        environment = {"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_SCONTAINER_TRACKER": self.variable, "SLURM_NODEID": str(node),
                       "SLURMD_NODENAME": f"node{node:02}", "HOME": "/nonexistent", "PATH": os.environ["PATH"], **options.pop("variables", {})}
        run = agent.Import(store, f"{registry.name}/{name}:1", config=config(), environment=environment, more=[f"step_nodes={self.nodes}", "record=yes"], **options)
        run.result.store = store
        return run


def each_once(name, layers):
    # The tag is unresolved, so each node requests it.
    gets = [path for path in fetched(registry, name) if "blobs" in path]
    assert len(gets) == len(set(gets)) == layers + 1, gets


def test_eight_concurrent_nodes_pull_once():
    image = big_image(4, layers=3)
    registry.repository("tracker/app", image, slowly(0.2))
    with Srun(8) as srun:
        runs = [srun.start(node, "tracker/app") for node in range(8)]
        for run in runs:
            assert not succeeds(run.wait(), image).warnings
    each_once("tracker/app", 3)


def test_progress_of_all_nodes_is_reported_by_srun_only():
    image = big_image(8)
    hook, _ = big_and_slow(image)
    registry.repository("tracker/line", image, hook)
    with Srun(2) as srun:
        runs = [srun.start(node, "tracker/line") for node in range(2)]
        results = [succeeds(run.wait(), image) for run in runs]
        assert any(line.startswith("pulling app:1 on 2 nodes, slowest node0") and line.endswith("% of 8.4 MB") for line in srun.lines), srun.lines
        assert not any("registry" in line for line in srun.lines), srun.lines
    assert srun.lines[-3].startswith("pulled app:1 on 2 nodes: 8.4 MB in "), srun.lines
    assert srun.lines[-2].startswith("app:1 came to 2 of 2 nodes in ") and srun.lines[-2].endswith("): registry 1.00 x, nodes 1.00 x, shared store 0.00 x"), srun.lines
    told, size = json.loads(srun.lines[-1]), len(image.layers[0].blob)
    assert (told["nodes"], told["ready"], told["registry_bytes"], told["node_bytes"], told["pulled_bytes"]) == (2, 2, size, size, size), told
    records = [line.removeprefix("pull record: ").split() for result in results for line in result.progress if line.startswith("pull record: ")]
    assert sorted(record[1:8] for record in records) == [
        ["nodes=2", f"index={index}", "layers=1", "converted=1", f"registry_bytes={here}", "mirror_bytes=0", f"node_bytes={size - here}"] for index, here in ((0, size), (1, 0))], records
    assert not any(line.startswith("pulling ") for result in results for line in result.progress), [result.progress for result in results]


def test_seven_nodes_go_on_when_the_pulling_node_is_killed():
    image = big_image(10)
    hook, seen = big_and_slow(image, after=1)
    ports = []

    def whose(handler, kind, name):
        if name in (layer.digest for layer in image.layers):
            ports.append(handler.client_address[1])
        return hook(handler, kind, name)

    registry.repository("tracker/killed", image, whose)
    with no_relay_left(), Srun(8) as srun:
        runs = [srun.start(node, "tracker/killed") for node in range(8)]
        wait_for(lambda: seen)
        time.sleep(0.3)
        pulling = next(run for run in runs if has_port(run.process.pid, ports[0]))
        died = time.monotonic()
        pulling.kill()
        for run in runs:
            if run is not pulling:
                succeeds(run.wait(), image)
        assert time.monotonic() - died < 8
    assert len(seen) == 2 and seen[1].startswith("bytes="), seen


class Wire:
    """A connection between a node and srun. After a cut it forwards nothing and reports nothing."""

    def __init__(self, port):
        self.there, self.cut = ("127.0.0.1", port), threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                ends = self.listener.accept()[0], socket.create_connection(self.there)
                for one, other in (ends, ends[::-1]):
                    threading.Thread(target=self.passes, args=(one, other), daemon=True).start()

    def passes(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(4096):
                if not self.cut.is_set():
                    other.sendall(data)
            other.close()


def test_node_cut_off_from_all_others_continues_at_the_registry():
    image = big_image(10)
    hook, seen = big_and_slow(image, after=1)
    registry.repository("tracker/partition", image, hook)
    with no_relay_left(), Srun(2) as srun:
        before = set(relays())
        first = srun.start(0, "tracker/partition")
        relay = new_relay(before)
        wait_for(lambda: seen)
        wire = Wire(int(srun.variable.partition(":")[0]))
        cut_off = srun.start(1, "tracker/partition", variables={"SLURM_SCONTAINER_TRACKER": f"{wire.port}:{srun.variable.partition(':')[2]}"})
        wait_for(lambda: len(set(relays()) - before) == 2)
        time.sleep(0.5)  # it gets bytes
        assert len(seen) == 1 and cut_off.process.poll() is None
        wire.cut.set()
        os.kill(relay, signal.SIGSTOP)
        began = time.monotonic()
        succeeds(cut_off.wait(), image)
        assert time.monotonic() - began < 6, "2 s for the dead node, 1 s for srun, and the rest of the image"
        assert len(seen) == 2 and int(seen[1].removeprefix("bytes=").rstrip("-")) > 100_000, seen
        os.kill(relay, signal.SIGKILL)
        succeeds(first.wait(), image)


def has_port(pid, port):
    """Returns whether this process has a connection from that port."""
    with contextlib.suppress(OSError):
        sockets = {os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix("socket:[").removesuffix("]") for fd in os.listdir(f"/proc/{pid}/fd")}
        lines = [line.split() for line in open(f"/proc/{pid}/net/tcp").read().splitlines()[1:]]
        return any(fields[1].endswith(f":{port:04X}") and fields[9] in sockets for fields in lines)
    return False


def test_nodes_pull_each_when_srun_is_unreachable():
    image = big_image(1)
    registry.repository("tracker/alone", image)
    with Srun(2) as srun:
        for number, variables in enumerate(({"SLURM_SCONTAINER_TRACKER": "1:" + "0" * 32}, {"SLURM_SCONTAINER_TRACKER": ""},
                                            {"SLURM_SCONTAINER_TRACKER": srun.variable[:-1] + ("0" if srun.variable[-1] != "0" else "1")}), 1):
            began = time.monotonic()
            result = succeeds(srun.start(0, "tracker/alone", variables=variables).wait(), image)
            assert time.monotonic() - began < 4 and not result.warnings, result
            assert len([path for path in fetched(registry, "tracker/alone") if "blobs" in path]) == 2 * number


class Stranger:
    """A program of the user that knows the step's token."""

    def __init__(self, srun, name=b"node77"):
        port, token = srun.variable.split(":")
        self.srun = socket.create_connection(("127.0.0.1", int(port)), 5)
        self.srun.sendall(struct.pack("8s16s64s", b"spctrak3", bytes.fromhex(token), name))

    def say(self, kind, image=b"", port=0, indices=(), ip=b""):
        self.srun.sendall(RECORD.pack(kind, 0, 0, len(indices), image, 0, 0, ADDRESS.pack(ip, port), b"", struct.pack(f"{len(indices)}I", *indices), b"", 0, 0, 0, 0))
        place = self.srun.recv(RECORD.size, socket.MSG_WAITALL)
        return RECORD.unpack(place) if len(place) == RECORD.size else None


def order_of(image):
    return hashlib.sha256(f"{image.digest} linux/amd64".encode()).digest()


def test_forged_node_of_the_user_is_rejected():
    earlier, image = big_image(1), big_image(1, layers=2)
    registry.repository("tracker/earlier", earlier)
    registry.repository("tracker/false", image)
    liar = Liar(image)
    with Srun(4) as srun:
        succeeds(srun.start(0, "tracker/earlier").wait(), earlier)
        stranger = Stranger(srun)
        ip = ADDRESS.unpack_from(stranger.say(JOIN, order_of(earlier), 1)[8], 8)[0]
        place = stranger.say(JOIN, order_of(image), liar.server.port, ip=ip)
        assert place[:2] == (PLACE, 0), place
        for node in (1, 2):
            succeeds(srun.start(node, "tracker/false").wait(), image)
        layers = {layer.digest for layer in image.layers}
        assert any(name in layers for name, _ in liar.asked), "nobody has asked the false node"


def test_secrets_of_one_step_are_useless_in_another():
    image = big_image(1)
    registry.repository("tracker/replayed", image)
    with Srun(2) as earlier:
        succeeds(earlier.start(0, "tracker/replayed").wait(), image)
        overheard = Stranger(earlier).say(JOIN, order_of(image), 1)
    with Srun(2) as later:
        succeeds(later.start(0, "tracker/replayed").wait(), image)
        place = Stranger(later).say(JOIN, order_of(image), 1)
        _, ip, port = struct.unpack_from("I4x16sH", place[8])
        relay = Node(0, ip, port)
        path = f"/v2/any/blobs/{image.layers[0].digest}?node=1"
        assert ask(relay, path, place[10]).status == 200 and ask(relay, path, overheard[10]).status == 401
        later.variable = later.variable.partition(":")[0] + ":" + earlier.variable.partition(":")[2]
        with contextlib.suppress(OSError):
            assert Stranger(later).say(JOIN, order_of(image), 1) is None, "srun has answered who knows another step's token"


def test_step_with_endless_requests_exhausts_only_its_own_slots():
    image = big_image(1)
    registry.repository("tracker/flood", image)
    with Srun(2) as srun:
        for _ in range(30):
            with contextlib.suppress(OSError):
                stranger = Stranger(srun)
                while stranger.say(JOIN, order_of(image), 1):
                    pass
        for _ in range(3):
            with contextlib.suppress(OSError):
                while Stranger(srun).say(MORE, order_of(image), 1, range(MOST)):
                    pass
        succeeds(srun.start(0, "tracker/flood").wait(), image)
