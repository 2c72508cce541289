"""A simulated node: an installation's fixed paths lead to a scratch directory, in this mount
namespace only."""

import os
import shutil
import stat
import struct
import time
from pathlib import Path

from machine import BenchmarkError, call

SERVICE_ID = 64998  # the service user
JOB_ID = 64999      # the job's user

STORE = Path("/var/lib/spank-container")
RUN = Path("/run/spank-container")
CONFIG = Path("/etc/spank-container")
PROGRAMS = Path("/usr/libexec/spank-container")


def set_up(work, build):
    """Needs root and a private mount namespace. `work` must be on the disk to be measured."""
    call("mount", "-t", "tmpfs", "tmpfs", make(work / "shade"))
    for path, name in ((STORE, "store"), (RUN, "run"), (CONFIG, "etc"), (PROGRAMS, "libexec")):
        place(make(work / name), path, work / "shade")
    for program in ("agent", "import", "layer-writer", "layer-verifier", "fuse"):
        shutil.copy(build / "libexec" / program, PROGRAMS)
    # It finds the programs in its own directory.
    shutil.copy(build / "runtime/api/libspank_container.so.1", PROGRAMS)
    name_users(work)
    open_fuse(work / "shade")
    call(PROGRAMS / "agent", "setup", SERVICE_ID, SERVICE_ID)
    (CONFIG / "config.toml").write_text("")


def add_user_programs(build):
    """Adds the programs of `scontainer`, which find the others in their own directory."""
    for program in ("runtime/tool/scontainer", "libexec/scontainer-images", "libexec/sandbox-idle", "libexec/user-source"):
        shutil.copy(build / program, PROGRAMS)


def make(directory):
    directory.mkdir()
    return directory


def place(source, target, shade):
    """Makes `source` appear as `target`. If the host has no such directory, its parent is covered:
    the host is unchanged."""
    if not target.is_dir():
        over = shade / target.parent.name
        for part in (over, over / "up", over / "work"):
            part.mkdir()
        call("mount", "-t", "overlay", "overlay", target.parent, "-o",
             f"lowerdir={target.parent},upperdir={over}/up,workdir={over}/work")
        target.mkdir()
    call("mount", "--bind", source, target)


def name_users(work):
    """Gives the job's user a name, like any user of a cluster."""
    for file, line in (("passwd", f"bench:x:{JOB_ID}:{JOB_ID}::/home/bench:/bin/sh\n"), ("group", f"bench:x:{JOB_ID}:\n")):
        copy = work / file
        copy.write_text(Path("/etc", file).read_text() + line)
        call("mount", "--bind", copy, Path("/etc", file))


def open_fuse(shade):
    """Makes FUSE available to all users, as udev does. Machines without udev lack that."""
    device = Path("/dev/fuse")
    if device.exists():
        copy = shade / "fuse"
        os.mknod(copy, stat.S_IFCHR | 0o666, device.stat().st_rdev)
        copy.chmod(0o666)
        call("mount", "--bind", copy, device)


def allow_registry(host, ask_again=True, more=""):
    """Allows a plain HTTP registry. Tags are not resolved again, so a start does not measure the
    registry."""
    pull = "newer" if ask_again else "missing"
    (CONFIG / "config.toml").write_text(f'pull = "{pull}"\n[registries."{host}"]\ninsecure = true\n{more}')


# --- the store ---

HEADER = struct.Struct("<8sIIq")
SECTION_BYTES = 48


def layer_files():
    return sorted((STORE / "layers/sha256").iterdir())


def empty_store():
    for directory in ("layers/sha256", "records", "names", "grants", "images"):
        for entry in (STORE / directory).iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def record_of(reference):
    """Returns the path of an image's record (protocol/image_record.hpp)."""
    for file in (STORE / "names").iterdir():
        digest, _, name = file.read_text().split()[:3]
        if name == reference.replace("/", "%2F"):
            return STORE / "records" / digest.removeprefix("sha256:")
    raise BenchmarkError(f"{reference} has no name in the store")


def name_key(name):
    """runtime/reference/reference.hpp"""
    key = b""
    for number in (0xcbf29ce484222325, 0x84222325cbf29ce4):
        for byte in name.encode():
            number = (number ^ byte) * 0x100000001b3 % (1 << 64)
        key += number.to_bytes(8, "little")
    return key.ljust(32, b"\0").hex()


def layers_of(reference):
    record = record_of(reference).read_bytes()
    count = HEADER.unpack_from(record)[1]
    start = HEADER.size + SECTION_BYTES
    return [STORE / "layers/sha256" / (record[start + 32 * i:start + 32 * (i + 1)].hex() + ".sqsh") for i in range(count)]


def add_image_of_lowest_layer(reference, new_reference):
    """Adds an image that consists of only the lowest layer of another one."""
    record = bytearray(record_of(reference).read_bytes())
    struct.pack_into("<I", record, 8, 1)
    digest = os.urandom(32).hex()
    write_as_root(STORE / "records" / digest, bytes(record))
    name = new_reference.replace("/", "%2F")
    ref = STORE / "names" / name_key(name)
    write_as_root(ref, f"sha256:{digest} {int(time.time())} {name}\n".encode())
    # A name older than the policy, which the first start writes, would be resolved again.
    os.utime(ref, (time.time() + 3600, time.time() + 3600))
    public = STORE / "images" / digest
    public.touch()
    os.utime(public, (time.time() + 3600, time.time() + 3600))


def write_as_root(path, content):
    path.write_bytes(content)
    path.chmod(0o444)


def check_store():
    for file in layer_files():
        status = file.stat()
        if status.st_uid != 0 or stat.S_IMODE(status.st_mode) != 0o444:
            raise BenchmarkError(f"{file} is not a read-only file of root")
