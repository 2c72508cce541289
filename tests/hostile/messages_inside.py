"""Sends malformed and forged messages to programs of the product. Runs as root on a node, with the
kind (agent, import or fuse), the number of messages and a seed. Prints the count of each way in
which a program ended. Forbidden ones are on a line that begins with "bad"."""
import array
import collections
import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time

PROGRAMS = "/usr/libexec/spank-container/"
STORE = "/var/lib/spank-container"
USER = 2001
SMALLEST, LARGEST = 1000, 8000  # bytes of a message
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 63, 255, 511, 512, 4095, 65535, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
JOIN = 1
MOST_MEMORY = 300 << 10  # KiB of a program under attack


class Ended(Exception):
    pass


def some_descriptors(chance):
    """Returns descriptors of every kind. The receiver gets copies."""
    kinds = (("/dev/null", os.O_RDWR), ("/", os.O_PATH), ("/tmp", os.O_RDONLY), ("/proc/self/ns/mnt", os.O_RDONLY), ("/proc/self/ns/user", os.O_RDONLY),
             ("/etc/passwd", os.O_RDONLY), ("/dev/fuse", os.O_RDWR), ("/proc/self/mem", os.O_RDONLY), (STORE, os.O_PATH))
    found = [os.open(*chance.choice(kinds)) for _ in range(chance.choice((0, 0, 1, 1, 2, 2, 2, 3, 5, 60)))]
    if chance.random() < 0.3:
        found.append(memory_file(chance.randbytes(chance.choice((0, 10, 200, 5000)))))
    return found


def memory_file(content):
    file = os.memfd_create("message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(file, content)
    return file


def hostile(chance, size, kinds, like=b""):
    """Returns a message of about this size, of one of these kinds or of an undefined one."""
    message = bytearray(like.ljust(size, b"\0")[:size])
    for _ in range(chance.choice((0, 1, 3, 10, 40))):
        where = chance.randrange(0, max(size - 8, 1)) & ~3
        struct.pack_into("<I", message, where, chance.choice(NUMBERS))
    if chance.random() < 0.1:
        message = bytearray(chance.randbytes(size))
    struct.pack_into("<I", message, 0, chance.choice(kinds) if chance.random() < 0.9 else chance.choice(NUMBERS))
    cut = chance.random()
    return bytes(message[:chance.randrange(size)]) if cut < 0.05 else bytes(message) + b"x" * 50 if cut < 0.08 else bytes(message)


def send(line, message, descriptors):
    try:
        line.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else [], socket.MSG_DONTWAIT)
    except BlockingIOError:
        pass
    except OSError:
        raise Ended from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def receive(line, patience=0.0):
    """Returns a message, or None if none arrives in time."""
    line.settimeout(patience or 0.000001)
    try:
        data, ancillary, _, _ = line.recvmsg(1 << 16, 1 << 12)
    except OSError:
        return b""
    for _, kind, passed in ancillary:
        if kind == socket.SCM_RIGHTS:
            for (descriptor,) in struct.iter_unpack("i", passed[:len(passed) & ~3]):
                os.close(descriptor)
    return data


def start(words, descriptors, uid=None):
    """Starts the program with these descriptors from 3 on, and no others."""
    def before_exec():
        high = [os.dup2(descriptor, 200 + number) for number, descriptor in enumerate(descriptors)]
        for number, descriptor in enumerate(high):
            os.dup2(descriptor, 3 + number)
        os.closerange(3 + len(high), 300)
        if uid is not None:
            os.setgroups([])
            os.setresgid(uid[1], uid[1], uid[1])
            os.setresuid(uid[0], uid[0], uid[0])

    return subprocess.Popen(words, env={}, close_fds=False, preexec_fn=before_exec, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def pair():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Agent:
    """A task of the user that talks to the agent of its step. The agent itself reports the length
    and form of a valid message."""
    like = b""

    def __init__(self, chance):
        self.chance = chance
        self.common, theirs = pair()
        self.program = start([PROGRAMS + "agent", "step", str(USER), str(USER), "0", "0"], [theirs.fileno()])
        theirs.close()
        self.lines = [self.join(len(Agent.like), 1) if Agent.like else self.find_size()]
        Agent.like = self.lead()

    def join(self, size, patience):
        """Returns the socket with which the agent answers, or None."""
        send(self.common, struct.pack("<I", JOIN).ljust(size, b"\0"), [])
        self.common.settimeout(patience)
        try:
            _, descriptors, _, _ = socket.recv_fds(self.common, 1, 1)
        except TimeoutError:
            return None
        except OSError:
            raise Ended from None
        if not descriptors:
            raise Ended
        return socket.socket(fileno=descriptors[0])

    def find_size(self):
        for size in range(SMALLEST, LARGEST, 8):
            line = self.join(size, 1 if size == SMALLEST else 0.003)
            if line:
                return line
        sys.exit("bad: the agent answers no message")

    def lead(self):
        """Passes the builder a mount namespace, as a task does before its leader begins. Returns
        the agent's message."""
        try:
            self.lines[0].settimeout(1)
            message, descriptors, _, _ = socket.recv_fds(self.lines[0], LARGEST, 8)
            mounts = socket.socket(fileno=descriptors.pop())
        except (AttributeError, IndexError, OSError):
            raise Ended from None
        for descriptor in descriptors:
            os.close(descriptor)
        send(mounts, b"\0", [os.open("/proc/self/ns/mnt", os.O_RDONLY)])
        mounts.close()
        return message

    def attack(self):
        if self.chance.random() < 0.2:
            self.lines += filter(None, [self.join(len(Agent.like), 1)])
        where = self.common if self.chance.random() < 0.1 else self.chance.choice(self.lines)
        send(where, hostile(self.chance, len(Agent.like), range(1, 21), Agent.like), some_descriptors(self.chance))
        for line in self.lines:
            receive(line)

    def end(self):
        for line in (*self.lines, self.common):
            line.close()


class Import:
    """Requests an image and answers the questions of `import`."""
    images = ("registry:5000/suites/base:1", "registry:5000/suites/none:1", "registry:5050/x/y:1", "oci:/tmp/x", "oci-archive:/tmp/x.tar", "docker-archive:/tmp/x",
              "dockerd://x", "podman://x", "registry:5001/x", "/x", "")

    def __init__(self, chance):
        self.chance = chance
        self.agent, agents_end = pair()
        self.user, users_end = pair()
        store = os.open(STORE, os.O_PATH)
        self.user.send(self.request())
        owner = os.stat(STORE + "/images")
        self.program = start([PROGRAMS + "import"], [agents_end.fileno(), users_end.fileno(), store], (owner.st_uid, owner.st_gid))
        for end in (agents_end, users_end):
            end.close()
        os.close(store)
        self.like = receive(self.agent, 0.3)
        self.users = receive(self.user, 0.05)

    def request(self):
        chance = self.chance
        records = [b"image=" + chance.choice(self.images).encode(), b"platform=linux/amd64", b"config=/etc/spank-container/config.toml", b"uid=2001"]
        if chance.random() < 0.5:
            records.append(chance.choice((b"pull=always", b"pull=never", b"verbose=yes", b"meter=yes", b"registry_user=alice", b"only_digest=yes")))
        if chance.random() < 0.2:
            records[chance.randrange(len(records))] = chance.choice((b"", b"=", b"image=\xff", b"uid=-1", b"uid=99999999999", b"platform=", b"x=y", b"image=" + b"a/" * 9000))
        return b"".join(record + b"\0" for record in records)

    def attack(self):
        if self.chance.random() < 0.5:
            send(self.agent, hostile(self.chance, len(self.like) or 2064, range(16, 22), self.like), some_descriptors(self.chance))
        else:
            send(self.user, hostile(self.chance, len(self.users) or 2320, range(16, 21), self.users), some_descriptors(self.chance))
        receive(self.agent)
        receive(self.user)
        if self.program.poll() is not None:
            raise Ended

    def end(self):
        self.agent.close()
        self.user.close()


class Fuse:
    """Acts as the kernel, or as a holder of its descriptor, with a damaged file."""
    image = None

    def __init__(self, chance):
        self.chance = chance
        if Fuse.image is None:
            Fuse.image = open(IMAGE, "rb").read()
        self.device, kernels = pair()
        self.status, agents = pair()
        data = bytearray(Fuse.image)
        for _ in range(chance.choice((0, 0, 1, 5, 50))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.flush()
            lent, loan = pair()
            if chance.random() < 0.2:  # it joins a server that does not exist
                given = chance.choice((some_descriptors(chance), [os.dup(kernels.fileno()), os.dup(file.fileno())]))
                send(lent, hostile(chance, 16, range(3)), given)
                file = loan
            self.program = start([PROGRAMS + "fuse", chance.choice(("0", "0", "0", "4096"))], [kernels.fileno(), file.fileno(), agents.fileno()], (USER, USER))
        for end in (kernels, agents, lent, loan):
            end.close()
        status = receive(self.status, 0.3)
        with contextlib.suppress(Ended):
            if status and not any(status[:4]):
                send(self.status, struct.pack("<I", 1), [])
                send(self.device, self.request(26, struct.pack("<IIII", 7, 31, 65536, 0)), [])
                receive(self.device, 0.1)

    def request(self, code, body):
        return struct.pack("<IIQQIIII", 40 + len(body), code, self.chance.randrange(1 << 32), self.chance.choice((0, 1, 2, 3, 99)), USER, USER, 1, 0) + body

    def attack(self):
        chance = self.chance
        if chance.random() < 0.1:
            send(self.status, hostile(chance, 4, range(5)), some_descriptors(chance))
        else:
            body = chance.choice((chance.randbytes(chance.choice((0, 8, 16, 40, 200))), b"probe\0", struct.pack("<QQIIQII", *(chance.choice(NUMBERS) for _ in range(7)))))
            send(self.device, self.request(chance.choice((*range(1, 48), 0, 1 << 31)), body), [])
        receive(self.device)
        if self.program.poll() is not None:
            raise Ended

    def end(self):
        self.device.close()
        self.status.close()


def threads_of(pid):
    """Returns what each thread is in: its system call, or "running"."""
    return ", ".join(open(f"/proc/{pid}/task/{thread}/syscall").read().split()[0] for thread in os.listdir(f"/proc/{pid}/task"))


def how_it_ended(program):
    deadline = time.monotonic() + 15
    pid = 0
    while program.returncode is None and not pid:
        pid, status, used = os.wait4(program.pid, os.WNOHANG)
        if pid:
            program.returncode = os.waitstatus_to_exitcode(status)
            if used.ru_maxrss > MOST_MEMORY:
                return f"bad: it took {used.ru_maxrss >> 10} MB"
        elif time.monotonic() > deadline:
            where = threads_of(program.pid)
            program.kill()
            program.wait()
            return f"bad: it did not end: {where}"
        else:
            time.sleep(0.002)
    rc = program.returncode
    return f"ended with {rc}" if rc >= 0 else f"bad: killed by signal {-rc}"


def main():
    kind, count, seed = {"agent": Agent, "import": Import, "fuse": Fuse}[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])
    ends = collections.Counter()
    sent = round = late = 0
    while sent < count:
        round += 1
        try:
            peer = kind(random.Random(f"{seed} {round}"))
        except Ended:  # on a busy machine the agent's time for the first message is over before it has the right size
            late += 1
            if late == 10:
                sys.exit("bad: the agent ends before the first message")
            continue
        for _ in range(peer.chance.choice((1, 3, 10, 20))):
            sent += 1
            try:
                peer.attack()
            except Ended:
                break
        peer.end()
        end = how_it_ended(peer.program)
        ends[end + (f", round {round}" if end.startswith("bad") else "")] += 1
    for end, number in ends.items():
        print(f"{end}: {number}")


IMAGE = sys.argv[4] if len(sys.argv) > 4 else ""
main()
