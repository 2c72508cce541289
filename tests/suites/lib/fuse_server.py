"""Serves a file system with one file, `file`, for one user only: run as root with a mount point, his number and maybe what the
file holds, and maybe "shared". It speaks the kernel's protocol by itself, as no tool for it need be installed; without allow_other
even root has no access. When root closes the file, which no mount option forbids, it never gets an answer.

shared: for everybody, as a site's own are, "sites" also with root as the user who has mounted it. Root never gets an answer, though, and what it asks is printed."""
import ctypes
import os
import struct
import sys

TEXT = b"from a user's file system\n"
LOOKUP, GETATTR, OPEN, READ, RELEASE, INIT, OPENDIR, READDIR, RELEASEDIR, FLUSH, STATFS = 1, 3, 14, 15, 18, 26, 27, 28, 29, 25, 17
FORGET, BATCH_FORGET, INTERRUPT = 2, 42, 36
ASKED = {LOOKUP: "lookup", GETATTR: "getattr", 5: "readlink", OPEN: "open", READ: "read", STATFS: "statfs", 22: "getxattr", FLUSH: "flush",
         OPENDIR: "opendir", READDIR: "readdir", 34: "access", 44: "readdirplus", 52: "statx"}
ENOENT, ENOSYS = 2, 38


def mount(where, uid):
    device = os.open("/dev/fuse", os.O_RDWR)
    os.makedirs(where, exist_ok=True)
    options = f"fd={device},rootmode=40000,user_id={0 if 'sites' in sys.argv[3:] else uid},group_id={uid}{',allow_other' if SHARED else ''}".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"test", where.encode(), b"fuse", 6, options) != 0:  # nosuid, nodev
        raise OSError(ctypes.get_errno(), "mount")
    return device


def attributes(inode, uid):
    mode, size = (0o040755, 0) if inode == 1 else (0o100644, len(TEXT))
    return struct.pack("<QQQQQQIIIIIIIIII", inode, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, uid, uid, 0, 4096, 0)


def answer(code, inode, body, uid):
    """The reply's body, or an error number."""
    if code == INIT:
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 16, 12, 65536, 1, 16, 0, 0)
    if code == LOOKUP:
        if body.rstrip(b"\0") != b"file":
            return ENOENT
        return struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + attributes(2, uid)
    if code == GETATTR:
        return struct.pack("<QII", 0, 0, 0) + attributes(inode, uid)
    if code in (OPEN, OPENDIR):
        return struct.pack("<QII", 0, 0, 0)
    if code == READ:
        offset, size = struct.unpack_from("<QI", body, 8)
        return TEXT[offset:offset + size]
    if code == READDIR:
        return b""
    if code == STATFS:
        return bytes(80)
    return b"" if code in (RELEASE, RELEASEDIR, FLUSH) else ENOSYS


def serve(device, uid):
    while True:
        try:
            request = os.read(device, 1 << 17)
        except OSError:  # unmounted
            return
        size, code, unique, inode, asking = struct.unpack_from("<IIQQI", request)
        if SHARED and asking == 0 and code in ASKED:
            print("root:", ASKED[code], flush=True)
            continue
        if code in (FORGET, BATCH_FORGET, INTERRUPT) or (code == FLUSH and struct.unpack_from("<I", request, 24)[0] == 0):
            continue
        reply = answer(code, inode, request[40:size], uid)
        error, body = (-reply, b"") if isinstance(reply, int) else (0, reply)
        os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


where, uid = sys.argv[1], int(sys.argv[2])
SHARED = bool({"shared", "sites"} & set(sys.argv[3:]))
if len(sys.argv) > 3 + SHARED:
    TEXT = open(sys.argv[3], "rb").read()
device = mount(where, uid)
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
print("serving", flush=True)
serve(device, uid)
