"""The machine under test: what it is, what it has cached, and how programs of ours are built on it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]


class BenchmarkError(Exception):
    """Something that the caller of `run` can read and act on."""


class Skipped(Exception):
    """What a benchmark needs is not on this machine: it is not measured, and neither passed nor failed."""


def say(text):
    print(f"benchmarks: {text}", file=sys.stderr, flush=True)


def describe():
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{os.cpu_count()} cores, Linux {os.uname().release}, load {load}"


def drop_caches():
    """Forgets every clean page, directory entry and inode; what was written goes to the disk first."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def read_through(*paths):
    """Brings files, or all files below directories, into the page cache."""
    for path in paths:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
        for file in files:
            with open(file, "rb", buffering=0) as stream:
                while stream.read(1 << 20):
                    pass


def has(program):
    return shutil.which(program) is not None


def call(*command, **options):
    """Runs a program that must succeed; its output is shown only if it does not."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          **{"stdin": subprocess.DEVNULL, **options})
    if done.returncode != 0:
        raise BenchmarkError(f"{command[0]} failed with status {done.returncode}:\n{(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def build(directory):
    """Configures and builds what the benchmarks start, and says where it is."""
    if not (directory / "build.ninja").exists():
        say(f"configuring {directory}")
        call("cmake", "-S", SOURCE, "-B", directory, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
             "-DCMAKE_INSTALL_PREFIX=/usr", "-DCMAKE_INSTALL_LIBEXECDIR=libexec", "-DCMAKE_INSTALL_SYSCONFDIR=/etc")
    say(f"building in {directory}")
    call("cmake", "--build", directory, "--target", "benchmarks")
    return directory


def test_image(name):
    """The directory of a test image as OCI layout; builds it if need be."""
    say(f"image {name}")
    program = SOURCE / "tests/images/build"
    done = subprocess.run([program, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"{program} {name} failed (hint: packaging/install-deps)")
    return Path(done.stdout.strip())
