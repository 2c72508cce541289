"""A disk that can fail: /run/hostile/disk, a file served by FUSE, behind a loop device with a file
system. Run as root with the initial file and a log file. For each write or flush the log receives
struct "<QI" (offset, bytes) and the bytes. A flush has the offset FLUSH. The server implements the
kernel's protocol, so that it needs no FUSE library.

SIGUSR1 makes every later write fail with EIO. SIGUSR2 ends this."""
import ctypes
import os
import signal
import struct
import sys

WHERE = "/run/hostile"
FLUSH = (1 << 64) - 1
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, CLOSE, INIT = 1, 2, 3, 4, 14, 15, 16, 17, 18, 20, 25, 26
OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 27, 28, 29, 36, 42
ENOENT, EIO, ENOSYS = 2, 5, 38
LARGEST, BIG_WRITES = 1 << 17, 1 << 5


class Disk:
    def __init__(self, begins_as, log):
        self.bytes = bytearray(open(begins_as, "rb").read())
        self.log = open(log, "wb", buffering=0)
        self.is_broken = False
        signal.signal(signal.SIGUSR1, lambda *_: self.becomes(True))
        signal.signal(signal.SIGUSR2, lambda *_: self.becomes(False))

    def becomes(self, broken):
        self.is_broken = broken

    def attributes(self, inode):
        mode, size = (0o040755, 0) if inode == 1 else (0o100600, len(self.bytes))
        return struct.pack("<QQQQQQIIIIIIIIII", inode, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def write(self, offset, data):
        if self.is_broken:
            return EIO
        self.bytes[offset:offset + len(data)] = data
        self.log.write(struct.pack("<QI", offset, len(data)) + data)
        return struct.pack("<II", len(data), 0)

    def flush(self):
        if self.is_broken:
            return EIO
        self.log.write(struct.pack("<QI", FLUSH, 0))
        return b""

    def answer(self, code, inode, body):
        """Returns the reply's body, or an error number."""
        if code == INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, LARGEST, BIG_WRITES, 16, 12, LARGEST, 1, 0, 0, 0)
        if code == LOOKUP:
            return struct.pack("<QQQQII", 2, 0, 3600, 3600, 0, 0) + self.attributes(2) if body.rstrip(b"\0") == b"disk" else ENOENT
        if code in (GETATTR, SETATTR):
            return struct.pack("<QII", 3600, 0, 0) + self.attributes(inode)
        if code in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if code == READ:
            offset, size = struct.unpack_from("<QI", body, 8)
            return bytes(self.bytes[offset:offset + size])
        if code == WRITE:
            offset, size = struct.unpack_from("<QI", body, 8)
            return self.write(offset, body[40:40 + size])
        if code == FSYNC:
            return self.flush()
        if code == STATFS:
            return struct.pack("<QQQQQIIII24x", 1 << 20, 1 << 19, 1 << 19, 10, 10, 4096, 255, 4096, 0)
        return b"" if code in (RELEASE, RELEASEDIR, CLOSE, READDIR) else ENOSYS

    def serve(self, device):
        while True:
            try:
                request = os.read(device, LARGEST + 4096)
            except InterruptedError:
                continue
            except OSError:  # unmounted
                return
            size, code, unique, inode = struct.unpack_from("<IIQQ", request)
            if code in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            reply = self.answer(code, inode, request[40:size])
            error, body = (-reply, b"") if isinstance(reply, int) else (0, reply)
            os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


def mount():
    device = os.open("/dev/fuse", os.O_RDWR)
    os.makedirs(WHERE, exist_ok=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,max_read={LARGEST}".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"disk", WHERE.encode(), b"fuse", 6, options) != 0:  # nosuid, nodev
        raise OSError(ctypes.get_errno(), "mount")
    return device


disk, device = Disk(sys.argv[1], sys.argv[2]), mount()
print("serving", flush=True)
disk.serve(device)
