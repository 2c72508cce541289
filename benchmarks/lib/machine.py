"""The machine under test: its properties and caches, and the build of our programs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]


class BenchmarkError(Exception):
    """An error with a message that helps the caller of `run`."""


class Skipped(Exception):
    """The machine lacks a requirement of a benchmark, so it is not measured."""


def say(text):
    print(f"benchmarks: {text}", file=sys.stderr, flush=True)


def describe():
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{os.cpu_count()} cores, Linux {os.uname().release}, load {load}"


def drop_caches():
    """Drops every clean page, directory entry and inode. Dirty data is written back first."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def read_through(*paths):
    """Reads files, or all files below directories, into the page cache."""
    for path in paths:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
        for file in files:
            with open(file, "rb", buffering=0) as stream:
                while stream.read(1 << 20):
                    pass


def has(program):
    return shutil.which(program) is not None


def call(*command, **options):
    """Runs a program that must succeed. Its output is shown only if it fails."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          **{"stdin": subprocess.DEVNULL, **options})
    if done.returncode != 0:
        raise BenchmarkError(f"{command[0]} failed with status {done.returncode}:\n{(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def build(directory):
    """Configures and builds the programs of the benchmarks. Returns their directory."""
    if not (directory / "build.ninja").exists():
        say(f"configuring {directory}")
        call("cmake", "-S", SOURCE, "-B", directory, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
             "-DCMAKE_INSTALL_PREFIX=/usr", "-DCMAKE_INSTALL_LIBEXECDIR=libexec", "-DCMAKE_INSTALL_SYSCONFDIR=/etc")
    say(f"building in {directory}")
    call("cmake", "--build", directory, "--target", "benchmarks")
    return directory


def test_image(name):
    """Returns the directory of a test image as OCI layout. Builds it if necessary."""
    say(f"image {name}")
    program = SOURCE / "tests/images/build"
    done = subprocess.run([program, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"the image {name} was not built, see the messages of {program} above")
    return Path(done.stdout.strip())
