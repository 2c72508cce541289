"""Runs steps with bench-step, which does what slurmstepd does."""

import json
import os
import subprocess
from pathlib import Path

import node
import quiet
from machine import BenchmarkError, call

# Approximates a task's environment from Slurm and a login.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/home/bench", "USER": "bench", "LOGNAME": "bench", "SHELL": "/bin/sh",
               "LANG": "C.UTF-8", **{f"SLURM_BENCH_{i:02}": f"value of variable {i}" for i in range(60)}}


class Steps:
    def __init__(self, build):
        self.build = build
        # Started by the loader, as a variable would be passed on to the job.
        (loader,) = Path("/").glob("lib*/ld-linux-*.so.*")
        self.program = [str(loader), "--library-path", str(node.PROGRAMS), str(build / "benchmarks/bench-step")]

    def command(self, program, options):
        words = [*self.program, "--uid", str(node.JOB_ID), "--gid", str(node.JOB_ID)]
        for name, value in options.items():
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return words + ["--", *(str(word) for word in program)]

    def run(self, *program, env=None, **options):
        """Runs one step and returns its times in ms. Options are those of bench-step. Waits first:
        the kernel removes the last step's mounts and loop devices asynchronously, which would
        delay the mounts."""
        quiet.pause()
        done = subprocess.run(self.command(program, options), env={**ENVIRONMENT, **(env or {})}, cwd="/", stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise BenchmarkError(f"{' '.join(map(str, program))} failed: {done.stderr.strip()[-1000:]}")
        return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}

    def hold(self, image):
        """A step that keeps its container until it is ended."""
        return HeldStep(self.command(["/bin/sleep", "infinity"], {"image": image, "hold": True}))

    def unpack(self, image, directory):
        """Unpacks the tree that a container of `image` shows into a directory of the job's user."""
        node.make(directory)
        # Use standard error: bench-step reports on standard output.
        packing = ["/bin/sh", "-c", "tar --one-file-system -C / -c . >&2 2>/dev/null"]
        with subprocess.Popen(self.command(packing, {"image": image}), env=ENVIRONMENT, cwd="/", stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as step:
            call("tar", "-x", "-p", "--same-owner", "-C", directory, stdin=step.stderr)
        if step.returncode != 0:
            raise BenchmarkError(f"could not unpack {image}")

    def run_unshared(self, *program, **options):
        """Runs a step none of whose layers are mounted by another one."""
        for _ in range(50):
            times = self.run(*program, **options)
            if shared_layers(times) == 0:
                return times
        raise BenchmarkError("another step keeps the layers mounted")


class HeldStep:
    def __init__(self, command):
        self.process = subprocess.Popen(command, env=ENVIRONMENT, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                        start_new_session=True)
        if not self.process.stdout.readline():
            raise BenchmarkError("could not start a step that keeps its layers mounted")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, 9)
        self.process.wait()


def shared_layers(times):
    """Returns the number from "... 5 layers (0 shared, 0 by FUSE) ..."."""
    return int(times["timing"].split(" layers (")[1].split()[0])
