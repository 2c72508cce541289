"""Hostile messages to srun's tracker and to the relays of a running step. Senders are a stranger
without token and key, and a program of the step's user, which may know both. The step must end as
if undisturbed."""
import contextlib
import hashlib
import os
import random
import socket
import struct
import sys
import time

from harness import Failed, expect
from images import Image, probe
from scene import ROOT, in_network_of

sys.path.append(os.path.join(ROOT, "tests/registry"))
from step import ADDRESS, CUT_OFF, DONE, JOIN, LEFT, MORE, MOST, PLACE, PROGRESS, RECORD, SLOW  # noqa: E402

NUMBERS = (0, 1, 2, 11, 12, 13, 63, 64, 4095, 65535, 1 << 31, (1 << 32) - 1)
LONG = (0, 1, 1 << 20, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
PATIENCE = 3  # seconds for an answer
AT_ONCE = 500  # messages to one step: the registry waits for at most a minute
MOST_HELD = 40  # connections left open


def environment_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry)


class Step:
    """Two nodes that pull an image whose last layer stops in the middle until `go_on`."""

    def __init__(self, cluster, repository):
        self.cluster = cluster
        layers = [[("probe", probe()), ("content", b"same\n")], [("noise", os.urandom(400_000))]]
        self.name, digests = cluster.faulty.publish(Image(f"hostile/{repository}", layers))
        self.manifest = next(reference for reference in cluster.faulty.manifests if reference.startswith(f"hostile/{repository}@")).partition("@")[2]
        self.digests = digests
        self.gate = cluster.faulty.hold(digests[-1])
        self.running = cluster.start_srun("-N2", "-n2", "/probe", "/content", image=self.name)

    def await_relays(self):
        deadline = time.monotonic() + 20 * max(1, os.getloadavg()[0] / os.cpu_count())
        nodes = self.cluster.nodes
        while not all(self.cluster.processes(node, "relay") for node in nodes):
            expect(time.monotonic() < deadline and self.running.process.poll() is None, "the nodes do not meet")
            time.sleep(0.05)
        for pid in self.cluster.processes(nodes[0], "user-source"):
            with contextlib.suppress(KeyError, OSError):
                port, token = environment_of(pid)[b"SLURM_SCONTAINER_TRACKER"].decode().split(":")
                self.port, self.token = int(port), bytes.fromhex(token)
                return
        raise Failed("no user-source knows where srun listens")

    def end(self):
        self.gate.set()
        done = self.running.end(60)
        expect(done.rc == 0 and done.out.count("same") == 2, "the step does not end well", done)
        expect(not done.errors() and "hostile-node" not in done.err, "it said something", done)


# --- srun's tracker ---


class Talk:
    """A connection to srun's tracker."""

    def __init__(self, step, hello=True, name=b"hostile-node"):
        self.socket = socket.create_connection(("127.0.0.1", step.port), PATIENCE)
        if hello:
            self.socket.sendall(struct.pack("8s16s64s", b"spctrak3", step.token, name))

    def answer(self):
        try:
            data = self.socket.recv(RECORD.size, socket.MSG_WAITALL)
        except OSError:
            return None
        return RECORD.unpack(data) if len(data) == RECORD.size else None


def record(kind, image, count=0, indices=(), done=0, total=0, ip=bytes(16), port=0, came=(0, 0, 0, 0)):
    return RECORD.pack(kind, 0, 0, count, image, done, total, ADDRESS.pack(ip, port) * 2, b"", struct.pack(f"{len(indices)}I", *indices), b"", *came)


def order_of(step):
    return hashlib.sha256(f"{step.manifest} linux/amd64".encode()).digest()


def hostile_record(chance, image):
    data = bytearray(record(chance.choice((JOIN, JOIN, MORE, SLOW, PROGRESS, DONE, LEFT, CUT_OFF, PLACE, 0, (1 << 32) - 1)), chance.choice((image, image, chance.randbytes(32))), chance.choice(NUMBERS),
                            [chance.choice(NUMBERS) for _ in range(MOST)], chance.choice(LONG), chance.choice(LONG), chance.randbytes(16), chance.choice((0, 22, 1, 40000)), [chance.choice(LONG) for _ in range(4)]))
    for _ in range(chance.choice((0, 0, 1, 5))):
        struct.pack_into("<I", data, chance.randrange(0, len(data) - 4), chance.choice(NUMBERS))
    return bytes(data)


def hello(chance, token):
    return struct.pack("8s16s64s", chance.choice((b"spctrak3", b"spctrak3", b"spcerr1\0")), chance.choice((token, token, token, chance.randbytes(16))),
                       chance.choice((b"hostile-node", b"hostile-node", b"", b"\x1b[31m", b"n" * 64)))


def talk_to_srun(step, number, chance):
    """Checks srun's answers to clients without the token."""
    held, told = [], 0
    image = order_of(step)
    for _ in range(number):
        with contextlib.suppress(OSError):
            talk = Talk(step, hello=False)
            kind = chance.random()
            if kind < 0.2:
                talk.socket.sendall(chance.randbytes(chance.choice((1, 50, 88, 700, 5000))))
            elif kind < 0.3:
                talk.socket.sendall(struct.pack("8s16s64s", b"spctrak3", chance.randbytes(16), b"x") + record(JOIN, image, port=40000))
                talk.socket.settimeout(PATIENCE)
                told += talk.answer() is not None
            else:
                talk.socket.sendall(hello(chance, step.token))
                for _ in range(chance.choice((1, 1, 3, 20))):
                    data = hostile_record(chance, image)
                    talk.socket.sendall(data[:chance.choice((len(data), len(data), len(data), 1, len(data) - 1))])
            if chance.random() < 0.1:
                talk.socket.shutdown(socket.SHUT_WR)
            if chance.random() < 0.1 and len(held) < MOST_HELD:
                held.append(talk)  # it reads no answer
            else:
                talk.socket.close()
    for talk in held:
        talk.socket.close()
    return ["srun answered a stranger without the token"] if told else []


# --- relays ---


def relays_of(step):
    """Returns the relays' addresses and the key: values that a program of the step's user can find
    out."""
    talk = Talk(step)
    talk.socket.sendall(record(JOIN, order_of(step)))
    place = talk.answer()
    expect(place is not None and place[0] == PLACE and place[3] > 0, "srun has no place for a program of the user's")
    addresses = [ADDRESS.unpack_from(place[8], at + 8) for at in range(0, 32 * place[3], 32)]
    return [(socket.inet_ntop(socket.AF_INET6, ip).removeprefix("::ffff:"), port) for ip, port in addresses], place[10].hex()


RANGES = ("bytes=0-", "bytes=5-", "bytes=399999-", "bytes=99999999999999999999-", "bytes=18446744073709551615-", "bytes=-5", "bytes=9-3", "bytes=0-1,5-9", "bytes=5-\r\nRange: bytes=9-", "x", "bytes=" + "9" * 5000 + "-")
PATHS = ("/alive", "/", "*", "/v2/peer/blobs/{0}?node={1}", "/v2/peer/blobs/{0}?node={1}", "/v2/peer/manifests/{2}?node={1}", "/v2/peer/blobs/{0}", "/v2/peer/blobs/{0}?node=-1", "/v2/peer/blobs/sha256:" + "0" * 64 + "?node={1}",
         "/v2/../../etc/passwd?node={1}", "/v2/peer/blobs/%00{0}?node={1}", "/" + "a" * 40000, "http://169.254.169.254/?node={1}")


def request(step, chance, key):
    path = chance.choice(PATHS).format(chance.choice(step.digests), chance.choice((0, 1, 2, 3, 77, 1 << 32)), step.manifest)
    lines = [f"{chance.choice(('GET', 'GET', 'GET', 'GET', 'HEAD', 'POST', 'CONNECT', 'BREW'))} {path} HTTP/{chance.choice(('1.1', '1.1', '1.1', '1.0', '9.9'))}", "Host: x"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if chance.random() < 0.5:
        lines.append(f"Range: {chance.choice(RANGES)}")
    if chance.random() < 0.2:
        lines += chance.choice((["Content-Length: 5"], ["Content-Length: 18446744073709551616"], ["Transfer-Encoding: chunked"], ["Expect: 100-continue", "Content-Length: 9"], ["X: y"] * 2000, ["Connection: close"]))
    return "\r\n".join([*lines, "", ""]).encode() + chance.choice((b"", b"", b"hello", b"ffffffffffffffff\r\n"))


def send_to_relay(step, chance, at, key):
    """Sends over one connection. Returns the answers to a stranger without the key, and the
    connection if it stays open."""
    stranger = chance.random() < 0.5
    shown = chance.choice((None, "", "0" * 64, key[:-1], key + "0", key[:-2] + ("00" if key[-2:] != "00" else "11"))) if stranger else key
    line = socket.create_connection(at, PATIENCE)
    line.setblocking(False)
    kind = chance.random()
    with contextlib.suppress(OSError):
        if kind < 0.1:
            line.send(chance.randbytes(chance.choice((1, 100, 40000))))
        elif kind < 0.2:
            line.send(request(step, chance, shown)[:chance.choice((1, 5, 30, 60))])
        else:
            line.send(b"".join(request(step, chance, shown) for _ in range(chance.choice((1, 1, 1, 3, 30)))))
        if chance.random() < 0.2:
            line.shutdown(socket.SHUT_WR)
    said = b""
    if stranger and chance.random() < 0.3:
        line.settimeout(0.1)
        with contextlib.suppress(OSError):
            said = line.recv(1 << 16)
    return said if stranger else b"", line


def is_alive(at, key):
    """Returns whether the relay answers. On a busy machine this takes time, as the relay first
    reads many connections."""
    with contextlib.suppress(OSError):
        line = socket.create_connection(at, 10 * PATIENCE)
        line.settimeout(10 * PATIENCE)
        line.sendall(f"GET /alive HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        return line.recv(4096).startswith(b"HTTP/1.1 200")
    return False


def talk_to_relays(step, number, chance):
    found, key = relays_of(step)
    wrong, held = set(), {at: [] for at in found}
    for round in range(number):
        at = found[round % len(found)]
        with contextlib.suppress(OSError):
            said, line = send_to_relay(step, chance, at, key)
            if b"HTTP/1.1 20" in said:
                wrong.add("a relay answers a stranger without the key")
            if chance.random() < 0.1 or len(held[at]) < MOST_HELD // 4:
                held[at].append(line)  # it reads nothing and sends nothing more
            else:
                line.close()
            while len(held[at]) > MOST_HELD:
                held[at].pop(0).close()
    if len(found) < 2:
        wrong.add(f"srun names {len(found)} relays of two")
    expect(step.running.process.poll() is None, "the step has ended before the attack")
    wrong.update(f"the relay at {at[0]} does not answer whoever has the key" for at in found if not is_alive(at, key))
    step.gate.set()  # while connections are open
    time.sleep(0.5)
    for line in (line for lines in held.values() for line in lines):
        line.close()
    return sorted(wrong)


def attacked(cluster, count, repository, attack, number, seed):
    """Runs `attack` in the network of the head, from which all nodes' ports can be reached."""
    count.tried += number
    step = Step(cluster, repository)
    try:
        step.await_relays()
        relays = {node: cluster.processes(node, "relay") for node in cluster.nodes}
        for why in in_network_of(cluster.pid("head"), lambda: attack(step, number, random.Random(seed))):
            count.is_wrong(f"{repository}, seed {seed}: {why}")
        if step.running.process.poll() is None:
            dead = [node for node, pids in relays.items() if not set(pids) & set(cluster.processes(node, "relay")) and cluster.processes(node, "import")]
            expect(not dead, f"the relay has died on {dead}")
        step.end()
    except Failed as failed:
        count.is_wrong(f"{repository}, seed {seed}: {failed.why}\n{failed.details()}")
    finally:
        step.gate.set()
        cluster.faulty.slow.clear()
        cluster.run("scancel", "--me")


def in_rounds(cluster, count, repository, attack, number, seed):
    for round, sent in enumerate(range(0, number, AT_ONCE)):
        attacked(cluster, count, f"{repository}-{round}", attack, min(AT_ONCE, number - sent), seed + round)


def at_tracker(cluster, count, number, seed):
    in_rounds(cluster, count, "tracker", talk_to_srun, number, seed)


def at_relays(cluster, count, number, seed):
    in_rounds(cluster, count, "relay", talk_to_relays, number, seed)
