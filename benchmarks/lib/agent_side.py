"""Acts as the agent for one run of `import`: protocol/import.hpp."""

import array
import fcntl
import os
import resource
import socket
import struct
import threading
import time
from dataclasses import dataclass

import node
from machine import BenchmarkError

OBJECT, PUBLISH, DONE, FAILED = 3, 4, 5, 6
RECORD, NAME, GRANT, WRITTEN = 9, 10, 11, 13
SERVE = 22
OBJECT_SOCKET, PUBLISHED, OBEYED, WRITER, ENDED = 16, 17, 19, 20, 21
# kind, digest, done and total, text; of the error: kind, errno, text, hint
MESSAGE = struct.Struct("<I32s4xQQ600sH2xi1000s400s")
PIECE = 4096  # ImportBytes
PIPE = 1 << 20  # kLayerPipe
LAYERS = node.STORE / "layers/sha256"
started = []  # processes of the service user, also ended ones


@dataclass
class Import:
    """Cost of one import."""
    wall: float    # s
    cpu: float     # s, of import, its children and the verifiers
    memory: float  # MiB: the highest sum of resident sets


def import_image(reference):
    """Imports into node.STORE as the service user."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    store = os.open(node.STORE, os.O_PATH | os.O_DIRECTORY)
    asks, source = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asks.send(request_of(reference))
    begin, cpu = time.monotonic(), children_cpu()
    child = start_import(theirs.fileno(), source.fileno(), store)
    os.close(store)
    theirs.close()
    source.close()
    asks.close()  # no user's side: every request of import for credentials is answered with "none"
    with ours, MemoryWatch() as memory:
        failure = serve(ours)
        wall = time.monotonic() - begin
        _, status = os.waitpid(child, 0)
    if failure is not None or status != 0:
        raise BenchmarkError(f"import of {reference} failed: {failure or f'status {status}'}")
    return Import(wall, children_cpu() - cpu, memory.peak / (1 << 20))


def children_cpu():
    """Returns the CPU time of all ended children and their descendants."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def request_of(reference):
    return "".join(f"{key}={value}\0" for key, value in (
        ("image", reference), ("platform", "linux/" + ("arm64" if os.uname().machine == "aarch64" else "amd64")),
        ("config", node.CONFIG / "config.toml"), ("uid", node.JOB_ID))).encode()


def start_import(channel, source, store):
    return start_as_service(["import"], channel, source, store)


def start_as_service(command, *descriptors):
    """Starts one of our programs with these descriptors from 3 on."""
    child = os.fork()
    if child > 0:
        started.append(child)
        return child
    try:
        os.setgroups([])
        os.setresgid(*[node.SERVICE_ID] * 3)
        os.setresuid(*[node.SERVICE_ID] * 3)
        null = os.open("/dev/null", os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        high = [os.dup2(descriptor, 100 + i) for i, descriptor in enumerate(descriptors)]
        for number, descriptor in enumerate(high, 3):
            os.dup2(descriptor, number)
        os.closerange(3 + len(high), 1024)
        os.execve(node.PROGRAMS / command[0], command, {})
    finally:
        os._exit(126)


def serve(channel):
    """Answers until the import is done. Returns the reason of its failure, or None. Each object has
    a publisher, as in the agent. No server is started: a layer in place waits in its socket."""
    publishers, layers = [], []
    try:
        while True:
            data = channel.recv(MESSAGE.size)
            if len(data) != MESSAGE.size:
                return "it ended unexpectedly"
            kind, _, _, _, text, _, _, why, _ = MESSAGE.unpack(data)
            if kind == OBJECT:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                send(channel, OBJECT_SOCKET, passed=[theirs.fileno()])
                theirs.close()
                publishers.append(threading.Thread(target=make_object, args=(ours, text.rstrip(b"\0").decode())))
                publishers[-1].start()
            elif kind == SERVE:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                send(channel, OBJECT_SOCKET, passed=[theirs.fileno()])
                theirs.close()
                layers.append(ours)
            elif kind == DONE:
                return None
            elif kind == FAILED:
                return why.rstrip(b"\0").decode()
    finally:
        for publisher in publishers:
            publisher.join()


def make_object(peer, order):
    with peer:
        if order:
            make_layer(peer, order)
        else:
            put_object(peer)


def make_layer(peer, order):
    """Starts the writer, passes its other ends, verifies its file and gives it the layer's name."""
    file = os.open(LAYERS, os.O_TMPFILE | os.O_RDWR, 0o444)
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE)
    report, report_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    below, below_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with report, report_end, below, below_end:
        writer = start_as_service(["layer-writer", order], file, report.fileno(), below.fileno(), read)
        os.close(read)
        send(peer, WRITER, passed=[write, report_end.fileno(), below_end.fileno()])
        os.close(write)
    if not peer.recv(MESSAGE.size):
        os.close(file)
        return
    _, status = os.waitpid(writer, 0)
    layer = os.open(f"/proc/self/fd/{file}", os.O_RDONLY)
    os.close(file)
    send(peer, ENDED, done=status, passed=[layer])
    asked = peer.recv(MESSAGE.size)
    if asked:
        digest = MESSAGE.unpack(asked)[1]
        verify(layer)
        os.fdatasync(layer)
        publish(layer, LAYERS, f"{digest.hex()}.sqsh")
        send(peer, PUBLISHED, digest)
    os.close(layer)


def put_object(peer):
    """Replaces a record, a name or a grant, or removes it if there are no bytes."""
    asked = peer.recv(MESSAGE.size)
    if not asked:
        return
    kind, digest, _, total, *_ = MESSAGE.unpack(asked)
    place = node.STORE / {RECORD: "records", NAME: "names", GRANT: "grants"}[kind]
    name = (f"{node.JOB_ID}." if kind == GRANT else "") + digest.hex()
    (place / name).unlink(missing_ok=True)
    if total > 0:
        file = os.open(LAYERS, os.O_TMPFILE | os.O_RDWR, 0o444)
        for left in range(total, 0, -PIECE):
            os.write(file, peer.recv(PIECE)[:left])
        if kind == RECORD:
            os.fdatasync(file)
        publish(file, place, name)
        os.close(file)
    send(peer, OBEYED, digest)


def send(channel, kind, digest=bytes(32), done=0, passed=()):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", passed))] if passed else []
    channel.sendmsg([MESSAGE.pack(kind, digest, done, 0, b"", 0, 0, b"", b"")], rights)


def verify(file):
    _, status = os.waitpid(start_as_service(["layer-verifier"], file), 0)
    if status != 0:
        raise BenchmarkError(f"layer-verifier: status {status}")


def publish(file, place, name):
    # os.link follows the symbolic link of /proc only with a directory descriptor.
    directory = os.open(place, os.O_PATH | os.O_DIRECTORY)
    try:
        os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)


class MemoryWatch:
    """Samples the resident sets of the started processes and their descendants. Shared pages are
    counted more than once."""

    INTERVAL_S = 0.02

    def __init__(self):
        self.first = len(started) - 1  # the import; its writers and verifiers follow
        self.peak = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def watch(self):
        while not self.ended.wait(self.INTERVAL_S):
            self.peak = max(self.peak, sum(resident(process) for root in started[self.first:] for process in family(root)))


def family(root):
    found = [root]
    for process in found:
        try:
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
                    found.extend(int(child) for child in file.read().split())
        except OSError:
            pass
    return found


def resident(process):
    try:
        with open(f"/proc/{process}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
