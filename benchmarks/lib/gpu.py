"""Common parts of the GPU benchmarks: detection of a GPU, and the two ways to run a program."""

import os
import subprocess
from pathlib import Path

from machine import BenchmarkError, Skipped

SKIPPED = 77  # the programs' exit status without a GPU
# Runs the benchmark itself without a GPU. Its output is labelled and is not a measurement.
REHEARSAL = bool(os.environ.get("SPC_BENCH_REHEARSAL"))


def title(text):
    return f"REHEARSAL on the CPU, no measurement: {text}" if REHEARSAL else text


def count():
    return len([name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()])


def must_be_there(program):
    """Runs `program` briefly. Skips the benchmark with the program's reason if it finds no GPU."""
    if REHEARSAL:
        return
    done = subprocess.run(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == SKIPPED:
        raise Skipped(done.stderr.strip().split("skipped: ", 1)[-1])
    if done.returncode != 0:
        raise BenchmarkError(f"{program[0]} failed: {done.stderr.strip()[-1000:]}")


def program_of(build, name):
    """Returns a program of benchmarks/, from a build directory or from the directory it was copied
    to."""
    built = build / "benchmarks" / name
    return built if built.exists() else build / name


def ways(cluster, image, program, options=(), mounts=()):
    """Returns the same program run by srun, without a container and in one."""
    srun = ["srun", *options]
    mounted = ",".join(f"{path}:{path}" for path in (cluster.shared, *mounts))
    return {"bare": [*srun, *program], "container": [*srun, f"--container-image={image}", *([] if REHEARSAL else ["--container-gpu"]),
                                                     f"--container-mounts={mounted}", *program]}


def find_nccl():
    """Returns libnccl.so.2 of this machine: the loader's, or that of a toolkit."""
    listed = subprocess.run(["ldconfig", "-p"], stdout=subprocess.PIPE, text=True, check=False).stdout
    for line in listed.splitlines():
        if line.strip().startswith("libnccl.so.2 "):
            return Path(line.split(" => ", 1)[1]).resolve()
    for place in ("/usr/local/cuda/lib64", "/usr/local/cuda/lib"):
        if Path(place, "libnccl.so.2").exists():
            return Path(place, "libnccl.so.2").resolve()
    raise Skipped("there is no libnccl.so.2 on this machine")
