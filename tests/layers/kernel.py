"""Content of an erofs image as the kernel shows it."""

import ctypes
import functools
import os
import stat
import tempfile

from model import DIRECTORY, FIFO, FILE, GONE, LINK

KINDS = {stat.S_IFDIR: DIRECTORY, stat.S_IFREG: FILE, stat.S_IFLNK: LINK, stat.S_IFIFO: FIFO, stat.S_IFCHR: GONE}
CLONE_NEWNS, MS_RDONLY, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20000, 1, 0x4000, 1 << 18, 2
OPAQUE = {"user.overlay.opaque": b"y", "trusted.overlay.opaque": b"y"}
PLACE = b"/var/tmp"

libc = ctypes.CDLL(None, use_errno=True)


def nameless_file():
    """Creates a nameless file on a disk: the kernel does not mount a file in memory."""
    return os.open(PLACE, os.O_TMPFILE | os.O_RDWR, 0o600)


def must(answer, what):
    if answer != 0:
        raise OSError(ctypes.get_errno(), what)


@functools.cache
def leave_host_mounts():
    """Makes later mounts private to this process."""
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
    """Returns the image as model.Tree.listing does. Mounts it without a loop device, which needs
    Linux 6.12."""
    leave_host_mounts()
    must(libc.mount(b"/proc/self/fd/%d" % fd, PLACE, b"erofs", MS_RDONLY, None), "mount erofs")
    try:
        return walk(PLACE)
    finally:
        must(libc.umount2(PLACE, MNT_DETACH), "umount")


def make_layer(place, listing):
    """Makes a directory that overlayfs accepts as a layer with this content."""
    for path, (kind, mode, _, content, _, opaque) in sorted(listing.items()):
        whole = place + b"/" + path
        if kind == DIRECTORY:
            os.mkdir(whole) if path else None
        elif kind == LINK:
            os.symlink(content, whole)
        elif kind == FILE:
            with open(whole, "wb") as file:
                file.write(content)
        else:
            os.mknod(whole, stat.S_IFIFO if kind == FIFO else stat.S_IFCHR)
        if opaque:
            os.setxattr(whole, "trusted.overlay.opaque", b"y")
        if kind != LINK:
            os.chmod(whole, mode)


def shown(place):
    out = {}

    def visit(path):
        for part in os.listdir(place + b"/" + path):
            whole = path + b"/" + part if path else part
            try:
                status = os.lstat(place + b"/" + whole)
            except FileNotFoundError:  # a whiteout in a directory of one layer
                out[whole] = (GONE, 0, b"")
                continue
            kind = KINDS[stat.S_IFMT(status.st_mode)]
            out[whole] = (kind, stat.S_IMODE(status.st_mode), content_of(place + b"/" + whole, kind))
            if kind == DIRECTORY:
                visit(whole)
    visit(b"")
    return out


def overlay(listings):
    """Returns the overlay of these layers, bottom layer first, in the form of stacks.overlay."""
    leave_host_mounts()
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="spc-overlay-", dir=os.fsdecode(PLACE)) as directory:
        os.chdir(directory)  # the names of many layers must fit into a page
        names = [b"%d" % number for number in range(len(listings) + 1)]
        for name, listing in zip(names, [{}, *listings]):  # overlayfs needs at least two
            os.mkdir(name)
            make_layer(name, listing)
        os.mkdir("m")
        must(libc.mount(b"overlay", b"m", b"overlay", MS_RDONLY, b"lowerdir=" + b":".join(names[::-1])), "mount overlay")
        try:
            return shown(b"m")
        finally:
            must(libc.umount2(b"m", MNT_DETACH), "umount")
            os.chdir(before)


def mounts_files():
    """Returns whether an erofs image can be mounted here without a loop device."""
    release = tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2])
    with open("/proc/filesystems") as file:
        return os.geteuid() == 0 and release >= (6, 12) and "\terofs\n" in file.read()
