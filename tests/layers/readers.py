"""The same archive read by three programs: GNU tar, Python's tarfile, and this project's converter
followed by sqfs2tar."""

import array
import calendar
import fcntl
import io
import os
import re
import socket
import struct
import subprocess
import tarfile
import threading
import time
import zlib

import kernel

from model import DEVICE, DIRECTORY, FIFO, FILE, GONE, HARD_LINK, LINK, Entry

LAYER_WRITER = os.environ.get("SPC_LAYER_WRITER", "")
MOST_BYTES, MOST_ENTRIES = 1 << 30, 200_000
ZSTD, LZ4, NONE = "0", "1", "2"  # LayerCompression in runtime/protocol/layer.hpp
SQUASHFS, EROFS = "0", "1"       # LayerFormat

form = SQUASHFS  # format of converted images


class Unreadable(Exception):
    """Raised if a reader reports an invalid archive."""


def memory_file(data=b""):
    fd = os.memfd_create("layer") if form == SQUASHFS else kernel.nameless_file()
    os.write(fd, data) if data else None
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


# --- Python ---

KINDS = {tarfile.REGTYPE: FILE, tarfile.AREGTYPE: FILE, tarfile.CONTTYPE: FILE, tarfile.GNUTYPE_SPARSE: FILE, tarfile.LNKTYPE: HARD_LINK,
         tarfile.SYMTYPE: LINK, tarfile.CHRTYPE: DEVICE, tarfile.BLKTYPE: DEVICE, tarfile.DIRTYPE: DIRECTORY, tarfile.FIFOTYPE: FIFO}


def to_bytes(text):
    return text.encode("utf-8", "surrogateescape")


def members_of(data):
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            for member in archive:
                content = b""
                if member.isreg():
                    content = archive.extractfile(member).read()
                    if len(content) != member.size:
                        raise Unreadable("short file")
                yield member, content
    except (tarfile.TarError, ValueError, OverflowError, IndexError, EOFError) as error:
        raise Unreadable(str(error)) from None


def by_python(data):
    entries = []
    for member, content in members_of(data):
        if member.type not in KINDS:
            raise Unreadable(f"type {member.type!r}")
        entries.append(Entry(KINDS[member.type], to_bytes(member.name), to_bytes(member.linkname), member.mode & 0o7777, member.mtime, content))
    return entries


# --- GNU tar ---

TAR_KINDS = {"-": FILE, "C": FILE, "h": HARD_LINK, "l": LINK, "c": DEVICE, "b": DEVICE, "d": DIRECTORY, "p": FIFO}
QUOTED = r'"((?:[^"\\]|\\.)*)"'
LINE = re.compile(rf'(.)([-rwxsStT]{{9}}) \S+ +([\d,]+) (\S+ [\d:.]+) +{QUOTED}(?: (->|link to) {QUOTED})?(--Continued.*)?$')
ESCAPES = {"n": 10, "t": 9, "b": 8, "r": 13, "f": 12, "v": 11, "a": 7, "\\": 92, '"': 34, "?": 63, " ": 32}


def unquoted(text):
    """Decodes --quoting-style=c, which escapes everything but printable ASCII."""
    out = bytearray()
    for octal_digits, escaped, plain in re.findall(r"\\([0-7]{3})|\\(.)|([^\\]+)", text):
        if octal_digits:
            out.append(int(octal_digits, 8))
        elif escaped:
            out.append(ESCAPES[escaped])
        else:
            out += plain.encode()
    return bytes(out)


def mode_of(letters):
    mode = 0
    for bit, letter in enumerate(letters):
        mode |= (letter in "rwxst") << (8 - bit)
    for place, bit in ((2, 0o4000), (5, 0o2000), (8, 0o1000)):
        mode |= bit if letters[place] in "sStT" else 0
    return mode


def seconds(text):
    moment = re.fullmatch(r"(-?\d+)-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.\d+)?", text)
    if moment is None:  # a year that does not fit: tar prints the number itself
        return int(float(text.split()[0]))
    year, *rest = map(int, moment.groups())
    return 2**40 if year > 9999 else calendar.timegm((year, *rest))


def tar(arguments, data):
    fd = memory_file(data)
    done = subprocess.run(["tar", *arguments, "-f", f"/proc/self/fd/{fd}"], pass_fds=[fd], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env={"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ["PATH"]})
    os.close(fd)
    return done


# Owners are ignored here and need not be parsed. The remaining checks follow the rules of
# extraction.
HARMLESS = re.compile(r"where numeric (uid_t|gid_t) value expected|Removing leading|A lone zero block|Exiting with failure status|implausibly old|"
                      r"Substituting|out of (uid_t|gid_t|time_t) range|time stamp")


def by_gnu_tar(data):
    listed = tar(["-tvv", "--full-time", "--numeric-owner", "--quoting-style=c", "--warning=no-timestamp", "--warning=no-unknown-keyword"], data)
    complaints = [line for line in listed.stderr.decode(errors="replace").splitlines() if not HARMLESS.search(line)]
    if complaints:
        raise Unreadable("; ".join(complaints))
    entries, sizes = [], []
    for line in listed.stdout.decode("ascii").splitlines():
        found = LINE.match(line)
        if not found or found[1] not in TAR_KINDS or found[8]:
            raise Unreadable(f"line {line!r}")
        kind = TAR_KINDS[found[1]]
        entries.append(Entry(kind, unquoted(found[5]), unquoted(found[7] or ""), mode_of(found[2]), seconds(found[4])))
        sizes.append(int(found[3]) if kind == FILE else 0)
    if any(sizes):
        # The bytes of all files, concatenated in the archive's order.
        content = tar(["-xOP", "--quoting-style=c"], data).stdout
        if len(content) != sum(sizes):
            raise Unreadable(f"{len(content)} bytes of content instead of {sum(sizes)}")
        at = 0
        for entry, size in zip(entries, sizes):
            if entry.kind == FILE:
                entry.data, at = content[at:at + size], at + size
    return entries


# --- converter ---

# runtime/protocol/layer.hpp, including a WireError
REPORT = struct.Struct("<8sH2xi1000s400s32sQQQQQ")


def give_below(asked, below):
    """Acts as import: answers the question for the layers below."""
    if asked.recv(8):
        for at in range(0, len(below) or 1, 250):
            some, more = below[at:at + 250], at + 250 < len(below)
            asked.sendmsg([struct.pack("<Q", more)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", some))] if some else [])


def peak_memory(process):
    """Returns the peak memory in bytes, sampled until the process ends. (wait4 would include the
    memory of the parent process.)"""
    peak = 0
    while True:
        with open(f"/proc/{process.pid}/status") as status:
            found = re.search(r"VmHWM:\s*(\d+)", status.read())
        if not found:
            return peak
        with open(f"/proc/{process.pid}/comm") as name:
            peak = int(found[1]) * 1024 if name.read() == "layer-writer\n" else peak
        time.sleep(0.005)


def convert(data, output, below=None, merges=0, usage=None):
    """Runs layer-writer. Returns None or the reason of the refusal. `below`: descriptors of the
    layers under it, the lowest first. The topmost `merges` of these are merged into one layer,
    unless it is 0. `usage`: receives processor seconds and memory in bytes."""
    given = memory_file(data)
    mine, theirs = os.pipe()
    asked, asking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (output, theirs, given, *([] if below is None else [asking.fileno()]))]
    numbers = (3, 4, 6, 5)[:len(high)]

    def place():
        for number, fd in zip(numbers, high):
            os.dup2(fd, number)
    answering = threading.Thread(target=give_below, args=(asked, below), daemon=True)
    with asked:
        if below is not None:
            answering.start()
        compression = ZSTD if form == SQUASHFS else (LZ4, NONE)[zlib.crc32(data) % 2]
        limits = [str(limit) for limit in (MOST_BYTES, MOST_BYTES, MOST_ENTRIES)]
        process = subprocess.Popen([LAYER_WRITER, " ".join([*limits, "0", compression, form, str(merges), "0"])], stdin=subprocess.DEVNULL, preexec_fn=place, pass_fds=numbers,
                                   stderr=subprocess.PIPE)
        asking.close()
        for fd in high[3:]:
            os.close(high.pop())
        if usage is not None:
            usage["bytes"] = peak_memory(process)
        with process.stderr:
            done = subprocess.CompletedProcess(process.args, None, stderr=process.stderr.read())
        _, status, used = os.wait4(process.pid, 0)
        done.returncode = process.returncode = os.waitstatus_to_exitcode(status)
        if usage is not None:
            usage["seconds"] = used.ru_utime + used.ru_stime
        if below is not None:
            answering.join()
    for fd in (given, theirs, *high):
        os.close(fd)
    with os.fdopen(mine, "rb") as pipe:
        report = pipe.read(REPORT.size)
    if len(report) != REPORT.size:
        raise AssertionError(f"layer-writer died with status {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}")
    magic, failed, _, text, *_ = REPORT.unpack(report)
    assert magic == b"SPCLAY4\0" and done.returncode == (1 if failed else 0), done
    return text.split(b"\0")[0].decode() if failed else None


def inside(name):
    return to_bytes(name).removeprefix(b"./") if name != "." else b""


def image_listing(fd):
    """Returns the content of an image as model.Tree.listing does. An independent program reads
    squashfs, the kernel reads erofs."""
    return squashfs_listing(fd) if form == SQUASHFS else kernel.listing(fd)


def squashfs_listing(fd):
    read = subprocess.run(["sqfs2tar", "-s", "-r", ".", f"/proc/self/fd/{fd}"], pass_fds=[fd], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if read.returncode != 0:
        raise AssertionError(f"sqfs2tar: {read.stderr.decode(errors='replace')}")
    out = {}
    for member, content in members_of(read.stdout):
        path, kind = inside(member.name), KINDS[member.type]
        if kind == DEVICE:
            assert member.type == tarfile.CHRTYPE and (member.devmajor, member.devminor) == (0, 0), member
            kind = GONE
        if kind == HARD_LINK:
            out[path] = out[inside(member.linkname)]
            continue
        opaque = {key.removeprefix("SCHILY.xattr."): value for key, value in member.pax_headers.items() if key.endswith(".overlay.opaque")}
        assert opaque in ({}, {"user.overlay.opaque": "y", "trusted.overlay.opaque": "y"}), opaque
        out[path] = (kind, member.mode, int(member.mtime), to_bytes(member.linkname) if kind == LINK else content, path, bool(opaque))
    return out


def by_us(data):
    output = memory_file()
    try:
        refusal = convert(data, output)
        if refusal is not None:
            raise Unreadable(refusal)
        return image_listing(output)
    finally:
        os.close(output)
