"""Runs steps with bench-step, which does what slurmstepd does."""

import json
import os
import subprocess
from pathlib import Path

import node
import quiet
from machine import BenchmarkError, call

# About what a task has from Slurm and a login.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/home/bench", "USER": "bench", "LOGNAME": "bench", "SHELL": "/bin/sh",
               "LANG": "C.UTF-8", **{f"SLURM_BENCH_{i:02}": f"value of variable {i}" for i in range(60)}}


class Steps:
    def __init__(self, build):
        (loader,) = Path("/").glob("lib*/ld-linux-*.so.*")  # by it, as a variable would be the job's, too
        self.program = [str(loader), "--library-path", str(node.PROGRAMS), str(build / "benchmarks/bench-step")]

    def command(self, program, options):
        words = [*self.program, "--uid", str(node.JOB_ID), "--gid", str(node.JOB_ID)]
        for name, value in options.items():
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return words + ["--", *(str(word) for word in program)]

    def run(self, *program, env=None, **options):
        """One step; its times in ms. Options are those of bench-step. The kernel takes down the last step's mounts and loop devices
        behind our back, and who mounts meanwhile waits for it: that is not what is measured."""
        quiet.pause()
        done = subprocess.run(self.command(program, options), env={**ENVIRONMENT, **(env or {})}, cwd="/", stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise BenchmarkError(f"{' '.join(map(str, program))} failed: {done.stderr.strip()[-1000:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def hold(self, image):
        """A step that keeps its container until it is ended."""
        return HeldStep(self.command(["/bin/sleep", "infinity"], {"image": image, "hold": True}))

    def unpack(self, image, directory):
        """The tree that a container of `image` shows, as a directory of the job's user."""
        node.make(directory)
        # Through the error output: bench-step reports on the other one.
        packing = ["/bin/sh", "-c", "tar --one-file-system -C / -c . >&2 2>/dev/null"]
        with subprocess.Popen(self.command(packing, {"image": image}), env=ENVIRONMENT, cwd="/", stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as step:
            call("tar", "-x", "-p", "--same-owner", "-C", directory, stdin=step.stderr)
        if step.returncode != 0:
            raise BenchmarkError(f"could not unpack {image}")

    def run_unshared(self, *program, **options):
        """A step none of whose layers another one had mounted."""
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
    """Out of "... 5 layers (0 shared, 0 by FUSE) ..."."""
    return int(times["timing"].split(" layers (")[1].split()[0])
