"""Acts as the agent for `import`: starts it with the descriptors of base/import_protocol.hpp and
answers its requests."""

import array
import contextlib
import fcntl
import hashlib
import os
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

IMPORT = os.environ.get("SPC_IMPORT", "")
LAYER_WRITER = os.path.join(os.path.dirname(IMPORT), "layer-writer")
LAYER_VERIFIER = os.path.join(os.path.dirname(IMPORT), "layer-verifier")
USER_SOURCE = os.environ.get("SPC_USER_SOURCE", "")

PROGRESS, WARNING, OBJECT, PUBLISH, DONE, FAILED, EVICT, RECORD, NAME, GRANT, WRITTEN, SERVE = 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 22
OBJECT_SOCKET, PUBLISHED, REFUSED, OBEYED, WRITER, ENDED = 16, 17, 18, 19, 20, 21
PIECE = 4096  # of ImportBytes
CHUNK = 64 << 10  # kVerifiedChunk
MESSAGE = struct.Struct("I32s4xQQ600sH2xi1000s400s")  # runtime/protocol/import.hpp
LOAN = struct.Struct("Q??6xQ32s32s")  # runtime/protocol/fuse.hpp

# Descriptor numbers of children stay reserved here: the pipe on which subprocess reports a failed
# start must not get one.
taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]


UNAVAILABLE = 3 + 1  # of a WireError


def in_words(text, hint):
    """Returns a WireError as shown to the user."""
    text, hint = (field.split(b"\0")[0].decode() for field in (text, hint))
    return f"{text} (hint: {hint})" if hint else text


class Store:
    """A store in the form of runtime/ARCHITECTURE.md, for one user."""

    def __init__(self, directory):
        self.path = directory
        self.held = []  # files whose locks represent layers held by jobs
        for name in ("layers/sha256", "records", "names", "grants", "images", "public"):
            os.makedirs(os.path.join(directory, name))
        open(os.path.join(directory, "locks"), "w").close()

    def names(self, what):
        """Returns file names, without private directories of import. For names/, returns the
        content instead."""
        with os.scandir(os.path.join(self.path, what)) as entries:
            files = sorted(entry.name for entry in entries if entry.is_file())
        return sorted(self._said(name)[2] for name in files) if what == "names" else files

    def _said(self, file):
        with open(os.path.join(self.path, "names", file)) as opened:
            return opened.read().split()

    def name_file(self, name):
        """Returns the path of a name's file."""
        for file in os.listdir(os.path.join(self.path, "names")):
            if self._said(file)[2] == name.replace("/", "%2F"):
                return os.path.join(self.path, "names", file)
        raise FileNotFoundError(name)

    def public_until(self, image):
        path = os.path.join(self.path, "images", image.digest[7:])
        return int(os.stat(path).st_mtime) if os.path.exists(path) else 0

    def grants(self, uid):
        return [name for name in os.listdir(os.path.join(self.path, "grants")) if name.startswith(f"{uid}.")]

    def layers(self):
        return self.names("layers/sha256")

    def empty(self):
        return not (self.layers() or self.names("records") or self.names("names"))

    def ref(self, name):
        with open(self.name_file(name)) as file:
            return file.read()

    def record(self, hexadecimal):
        with open(os.path.join(self.path, "records", hexadecimal), "rb") as file:
            return file.read()


class Served:
    """A layer of the shared store, as sent to its `fuse` server, with its open files."""

    def __init__(self, line):
        data, (self.file, self.hashes), _, _ = socket.recv_fds(line, LOAN.size, 2)
        _, _, _, self.bytes, self.layer, self.digest = LOAN.unpack(data)

    def read(self):
        """Returns the content, verified."""
        hashes = os.pread(self.hashes, 1 << 24, 0)
        assert hashlib.sha256(hashes).digest() == self.digest, "the list of hashes is another one"
        content = b"".join(os.pread(self.file, CHUNK, at) for at in range(0, self.bytes, CHUNK))[:self.bytes]
        assert hashes == b"".join(hashlib.sha256(content[at:at + CHUNK]).digest() for at in range(0, self.bytes, CHUNK)), "a chunk is another one"
        return content


class Result:
    def __init__(self):
        self.served = []
        self.progress, self.warnings = [], []
        self.done = self.failed = self.status = None
        self.published, self.evicted = [], []
        self.released = 0
        self.seconds = 0.0

    def __repr__(self):
        return f"done={self.done} failed={self.failed!r} status={self.status} progress={self.progress} warnings={self.warnings}"


def start_user_source(location, socket_end, environment):
    """Starts it as the first task does: with descriptor 3 only."""
    high = fcntl.fcntl(socket_end.fileno(), fcntl.F_DUPFD_CLOEXEC, 20)
    process = subprocess.Popen([USER_SOURCE, location], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=None if os.environ.get("SPC_VERBOSE") else subprocess.DEVNULL, env=environment,
                               preexec_fn=lambda: os.dup2(high, 3), pass_fds=(3,), close_fds=True)
    os.close(high)
    return process


def receive_bytes(line, most):
    data = line.recv(most)
    if not data:
        raise EOFError
    return data


def receive(line):
    return MESSAGE.unpack(receive_bytes(line, MESSAGE.size))


def start_writer(order, descriptors):
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in descriptors]
    numbers = tuple(range(3, 3 + len(high)))

    def place():
        for number, fd in zip(numbers, high):
            os.dup2(fd, number)

    process = subprocess.Popen([LAYER_WRITER, order], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={},
                               preexec_fn=place, pass_fds=numbers, close_fds=True)
    for fd in high:
        os.close(fd)
    return process


def refusal_of_record(digest, content):
    """Returns layer-verifier's refusal of the record, empty if it accepts."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        high = fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, 20)
        done = subprocess.run([LAYER_VERIFIER, f"sha256:{digest.hex()}"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env={},
                              preexec_fn=lambda: os.dup2(high, 3), pass_fds=(3,), close_fds=True)
        os.close(high)
    return done.stderr.decode() or (f"status {done.returncode}" if done.returncode else "")


class Import:
    """One run of `import`, in a thread. `on_new_layer` is called for each layer. It may delay, or
    refuse by returning text. With `environment`, a process reads for the user in that environment.
    `on_message` sees each message first. `largest_file`: maximal bytes of a file written by import
    itself, such as the spool. `run_as`: another user, who runs import; needs root."""

    def __init__(self, store, image, config=None, pull=None, platform="linux/amd64", on_new_layer=None, environment=None, on_message=None,
                 user=None, more=(), import_environment=None, uid=None, program=None, largest_file=None,
                 run_as=None):
        self.store, self.result, self.on_new_layer, self.on_message = store, Result(), on_new_layer, on_message
        records = [f"image={image}", f"platform={platform}", f"uid={os.getuid() if uid is None else uid}", f"config={config or '/nonexistent'}"]
        records += more
        if pull:
            records.append(f"pull={pull}")
        request = b"".join(r.encode() + b"\0" for r in records)
        source = user.socket_for_import(request) if user else None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        directory = os.open(store.path, os.O_PATH | os.O_DIRECTORY)
        # Pass the descriptors as the agent does, after moving them out of each other's way.
        asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        answering.send(request)
        side = source.fileno() if source else asking.fileno()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in [theirs.fileno(), side, directory]]
        numbers = tuple(range(3, 3 + len(high)))

        def place():
            for number, fd in zip(numbers, high):
                os.dup2(fd, number)
            if largest_file is not None:  # writing more fails, as on a full disk
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

        self.writers = {}  # processes of layer-writer, in the order of their start
        self.began = time.monotonic()
        program = program or IMPORT
        if run_as is not None:  # the user may be unable to enter the directory of the build
            program = shutil.copy(program, tempfile.mkdtemp(dir=os.path.dirname(store.path)))
            os.chmod(os.path.dirname(program), 0o755)
        self.process = subprocess.Popen([program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=None if os.environ.get("SPC_VERBOSE") else subprocess.DEVNULL,
                                        env=import_environment or {}, preexec_fn=place, pass_fds=numbers, close_fds=True,
                                        user=run_as, extra_groups=None if run_as is None else ())
        self.user_source = start_user_source(image, answering, environment) if environment is not None else None
        asking.close()
        answering.close()
        theirs.close()
        if source:
            source.close()
        os.close(directory)
        for fd in high:
            os.close(fd)
        self.socket = ours
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def wait(self, timeout=40):
        self.thread.join(timeout)
        if self.thread.is_alive():
            self.process.kill()
            raise AssertionError(f"import hangs: {self.result}")
        return self.result

    def kill(self):
        self.process.kill()
        self.thread.join(10)

    def _send(self, kind, text="", descriptors=(), digest=bytes(32), line=None, number=0):
        message = MESSAGE.pack(kind, digest, number, 0, b"", UNAVAILABLE if kind == REFUSED else 0, 0, text.encode(), b"")
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        (line or self.socket).sendmsg([message], control)

    def _publisher(self, line, order):
        """Makes one object, as a fork of the agent does."""
        with line:
            try:
                self._make_layer(line, order) if order else self._take_bytes(line)
            except (EOFError, ConnectionError):
                pass  # import has given it up, or has ended
            except OSError as error:
                with contextlib.suppress(OSError):
                    self._send(REFUSED, f"create a layer in the store: {error.strerror.lower()}", line=line)
            except AssertionError as error:
                self.result.failed = f"agent: {error}"
                self.process.kill()

    def _make_layer(self, line, order):
        refusal = self.on_new_layer(self) if self.on_new_layer and not order.startswith("facts") else None
        if refusal:
            return self._send(REFUSED, refusal, line=line)
        layers = os.path.join(self.store.path, "layers/sha256")
        file = os.open(layers, os.O_TMPFILE | os.O_RDWR, 0o444)
        (read_input, write_input), (read_report, write_report) = os.pipe(), os.pipe()
        below, below_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        writer = self.writers[len(self.writers)] = start_writer(order, [file, write_report, below_end.fileno(), read_input])
        self._send(WRITER, descriptors=[write_input, read_report, below.fileno()], line=line)
        for end in (read_input, write_input, read_report, write_report):
            os.close(end)
        below.close()
        below_end.close()
        reader = None
        try:
            receive(line)
            status = writer.wait()
            reader = os.open(f"/proc/self/fd/{file}", os.O_RDONLY)
            os.close(file)
            file = None
            self._send(ENDED, descriptors=[reader], line=line, number=-status if status < 0 else status << 8)
            digest = receive(line)[1]
            name = digest.hex() + ".sqsh"
            assert name not in self.result.published and name not in os.listdir(layers), "converted twice"
            os.fdatasync(reader)
            self._link(reader, "layers/sha256", name)
            self.result.published.append(name)
            self._send(PUBLISHED, digest=digest, line=line)
        finally:
            writer.kill()
            writer.wait()
            for fd in (file, reader):
                if fd is not None:
                    os.close(fd)

    def _take_bytes(self, line):
        kind, digest, number, total, *_ = receive(line)
        taken = b""
        while len(taken) < total:
            taken += receive_bytes(line, PIECE)
        refusal = refusal_of_record(digest, taken[:total]) if kind == RECORD and taken else ""
        assert not refusal, refusal
        directory, name = {RECORD: "records", NAME: "names", GRANT: "grants"}[kind], (f"{number}." if kind == GRANT else "") + digest.hex()
        self._put(taken[:total], directory, name)
        self._send(OBEYED, digest=digest, line=line)

    @staticmethod
    def _evict(path):
        with open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            os.unlink(path)
            return True

    def _link(self, file, directory, name):
        # With a directory Python uses linkat, which can follow.
        directory = os.open(os.path.join(self.store.path, directory), os.O_PATH)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(f"/proc/self/fd/{file}", name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=True)
        finally:
            os.close(directory)

    def _put(self, content, directory, name):
        """Writes in one step, as the agent does: another import may be reading."""
        path = os.path.join(self.store.path, directory, name)
        if not content:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        new = f".{name}.{self.process.pid}"
        with open(os.open(os.path.join(self.store.path, directory), os.O_TMPFILE | os.O_RDWR, 0o444), "wb") as file:
            file.write(content)
            file.flush()
            self._link(file.fileno(), directory, new)
        os.rename(os.path.join(self.store.path, directory, new), path)

    def _serve(self):
        result = self.result
        lines = []  # to `fuse` servers
        layers = os.path.join(self.store.path, "layers/sha256")
        while True:
            try:
                data = self.socket.recv(MESSAGE.size)
            except ConnectionResetError:  # it was killed with an unread answer
                break
            if not data:
                break
            kind, digest, _, _, text, failed, _, *error = MESSAGE.unpack(data)
            text = in_words(*error) if failed else text.split(b"\0")[0].decode()
            try:
                if self.on_message:
                    self.on_message(self)
                if kind == PROGRESS:
                    result.progress.append(text)
                elif kind == WARNING:
                    result.warnings.append(text)
                elif kind == OBJECT:
                    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    threading.Thread(target=self._publisher, args=(ours, text), daemon=True).start()
                    self._send(OBJECT_SOCKET, descriptors=[theirs.fileno()])
                    theirs.close()
                elif kind == SERVE:
                    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    self._send(OBJECT_SOCKET, descriptors=[theirs.fileno()])
                    theirs.close()
                    lines.append(ours)
                elif kind == EVICT and digest == bytes(32):
                    result.released += 1
                    for holder in self.store.held:
                        holder.close()
                    self._send(OBEYED)
                elif kind == EVICT:
                    if self._evict(os.path.join(layers, digest.hex() + ".sqsh")):
                        result.evicted.append(digest.hex())
                        self._send(OBEYED, digest=digest)
                    else:
                        self._send(REFUSED, "in use", digest=digest)
                elif kind == DONE:
                    result.done = digest.hex()
                elif kind == FAILED:
                    result.failed = text
            except (OSError, AssertionError) as error:
                result.failed = f"agent: {error}"
                self.process.kill()
        result.status = self.process.wait()
        for line in lines:
            with line:
                if select.select([line], [], [], 0)[0] and line.recv(1, socket.MSG_PEEK):
                    result.served.append(Served(line))
        if self.user_source is not None:
            result.user_source_status = self.user_source.wait()
        result.seconds = time.monotonic() - self.began
        self.socket.close()


def run(store, image, **options):
    return Import(store, image, **options).wait()
