"""Plays the agent for one run of `import`: protocol/import.hpp."""

import array
import os
import resource
import socket
import struct
import threading
import time
from dataclasses import dataclass

import node
from machine import BenchmarkError

NEW_LAYER, PUBLISH, DONE, FAILED = 3, 4, 5, 6
RECORD, NAME, GRANT = 9, 10, 11
LAYER_FILE, PUBLISHED, OBEYED = 16, 17, 19
# kind, digest, done and total, text; of the error: kind, errno, text, hint
MESSAGE = struct.Struct("<I32s4x16x600sIi1000s400s")
LAYERS = node.STORE / "layers/sha256"


@dataclass
class Import:
    """What one import cost."""
    wall: float    # s
    cpu: float     # s, of import, its children and the verifiers
    memory: float  # MiB: the highest sum of resident sets


def import_image(reference):
    """Imports into node.STORE as the service user."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    store = os.open(node.STORE, os.O_PATH | os.O_DIRECTORY)
    request = request_file(reference)
    begin, cpu = time.monotonic(), children_cpu()
    child = start_import(theirs.fileno(), request, store)
    os.close(request)
    os.close(store)
    theirs.close()
    with ours, MemoryWatch(child) as memory:
        failure = serve(ours)
        wall = time.monotonic() - begin
        _, status = os.waitpid(child, 0)
    if failure is not None or status != 0:
        raise BenchmarkError(f"import of {reference} failed: {failure or f'status {status}'}")
    return Import(wall, children_cpu() - cpu, memory.peak / (1 << 20))


def children_cpu():
    """Of all children that have ended, and theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def request_file(reference):
    text = "".join(f"{key}={value}\0" for key, value in (
        ("image", reference), ("platform", "linux/" + ("arm64" if os.uname().machine == "aarch64" else "amd64")),
        ("config", node.CONFIG / "config.toml"), ("uid", node.JOB_ID)))
    file = os.memfd_create("request", os.MFD_ALLOW_SEALING)
    os.write(file, text.encode())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def start_import(channel, request, store):
    return start_as_service("import", channel, request, store)


def start_as_service(program, *descriptors):
    """One of our programs with these descriptors from 3 on."""
    child = os.fork()
    if child > 0:
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
        os.execve(node.PROGRAMS / program, [program], {})
    finally:
        os._exit(126)


def serve(channel):
    """Answers until the import is done; returns why it failed, or None."""
    while True:
        data, ancillary, _, _ = channel.recvmsg(MESSAGE.size, 1024)
        descriptors = received_descriptors(ancillary)
        if len(data) != MESSAGE.size:
            return "it ended unexpectedly"
        kind, digest, _, _, _, why, _ = MESSAGE.unpack(data)
        if kind == NEW_LAYER:
            file = os.open(LAYERS, os.O_TMPFILE | os.O_RDWR, 0o444)
            channel.sendmsg([answer(LAYER_FILE, digest)],
                            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))])
            os.close(file)
        elif kind == PUBLISH:
            verify(descriptors[0])
            publish(descriptors[0], LAYERS, f"{digest.hex()}.sqsh")
            channel.send(answer(PUBLISHED, digest))
        elif kind in (RECORD, NAME, GRANT):
            put(kind, digest, descriptors)
            channel.send(answer(OBEYED, digest))
        elif kind == DONE:
            return None
        elif kind == FAILED:
            return why.rstrip(b"\0").decode()
        for descriptor in descriptors:
            os.close(descriptor)


def answer(kind, digest):
    return MESSAGE.pack(kind, digest, b"", 0, 0, b"", b"")


def verify(file):
    _, status = os.waitpid(start_as_service("layer-verifier", file), 0)
    if status != 0:
        raise BenchmarkError(f"layer-verifier: status {status}")


def put(kind, digest, descriptors):
    """Replaces a record, a name or a grant; without a descriptor it is removed."""
    place = node.STORE / {RECORD: "records", NAME: "names", GRANT: "grants"}[kind]
    name = (f"{node.JOB_ID}." if kind == GRANT else "") + digest.hex()
    (place / name).unlink(missing_ok=True)
    if descriptors:
        os.fchmod(descriptors[0], 0o444)
        publish(descriptors[0], place, name)


def publish(file, place, name):
    # os.link follows the symbolic link of /proc only where a directory is given.
    directory = os.open(place, os.O_PATH | os.O_DIRECTORY)
    try:
        os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)


def received_descriptors(ancillary):
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[:len(data) - len(data) % found.itemsize])
    return list(found)


class MemoryWatch:
    """Samples the resident sets of a process and its descendants. Pages they share are counted more than once."""

    INTERVAL_S = 0.02

    def __init__(self, root):
        self.root = root
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
            self.peak = max(self.peak, sum(resident(process) for process in family(self.root)))


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
