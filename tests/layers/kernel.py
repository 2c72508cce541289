"""What is in an erofs image, as the kernel shows it."""

import ctypes
import functools
import os
import stat

from model import DIRECTORY, FIFO, FILE, GONE, LINK

KINDS = {stat.S_IFDIR: DIRECTORY, stat.S_IFREG: FILE, stat.S_IFLNK: LINK, stat.S_IFIFO: FIFO, stat.S_IFCHR: GONE}
CLONE_NEWNS, MS_RDONLY, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20000, 1, 0x4000, 1 << 18, 2
OPAQUE = {"user.overlay.opaque": b"y", "trusted.overlay.opaque": b"y"}
PLACE = b"/var/tmp"

libc = ctypes.CDLL(None, use_errno=True)


def nameless_file():
    """On a disk: the kernel does not mount a file in memory."""
    return os.open(PLACE, os.O_TMPFILE | os.O_RDWR, 0o600)


def must(answer, what):
    if answer != 0:
        raise OSError(ctypes.get_errno(), what)


@functools.cache
def leave_host_mounts():
    """What is mounted from here on ends with this process."""
    must(libc.unshare(CLONE_NEWNS), "unshare")
    must(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "make mounts private")


def content_of(path, kind):
    if kind == LINK:
        return os.readlink(path)
    if kind != FILE:
        return b""
    with open(path, "rb") as file:
        return file.read()


def walk(place):
    first, out = {}, {}

    def visit(path):
        whole = place + b"/" + path if path else place
        status = os.lstat(whole)
        kind = KINDS[stat.S_IFMT(status.st_mode)]
        assert kind != GONE or status.st_rdev == 0, path
        opaque = {name: os.getxattr(whole, name) for name in OPAQUE if kind == DIRECTORY and name in os.listxattr(whole)}
        assert opaque in ({}, OPAQUE), opaque
        name = first.setdefault(status.st_ino, path)
        out[path] = (kind, stat.S_IMODE(status.st_mode), int(status.st_mtime), content_of(whole, kind), name, bool(opaque))
        for part in sorted(os.listdir(whole)) if kind == DIRECTORY else ():
            visit(path + b"/" + part if path else part)
    visit(b"")
    return out


def listing(fd):
    """As model.Tree.listing. It is mounted without a loop device, so from Linux 6.12 on."""
    leave_host_mounts()
    must(libc.mount(b"/proc/self/fd/%d" % fd, PLACE, b"erofs", MS_RDONLY, None), "mount erofs")
    try:
        return walk(PLACE)
    finally:
        must(libc.umount2(PLACE, MNT_DETACH), "umount")


def mounts_files():
    """Whether an erofs image can be mounted here, without a loop device."""
    release = tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2])
    with open("/proc/filesystems") as file:
        return os.geteuid() == 0 and release >= (6, 12) and "\terofs\n" in file.read()
