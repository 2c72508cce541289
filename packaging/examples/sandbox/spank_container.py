"""Sandboxes from Python: an example to copy, on top of `scontainer sandbox`.

    from spank_container import Sandbox, stop_all

    with Sandbox("python:3.12", memory="2G", pids=100) as sandbox:
        sandbox.upload("tests.py", "/tmp/tests.py")
        done = sandbox.run("python3", "/tmp/tests.py", timeout=60)
        print(done.exit_status, done.stdout, done.timed_out)

    prepared = Sandbox("python:3.12", remap_root=True)
    prepared.run("pip", "install", "pytest").check()
    prepared.snapshot("ready")
    forks = [Sandbox(snapshot="ready", remap_root=True) for _ in range(100)]
    stop_all()

Calls block, so use threads for many sandboxes at once. In a Slurm job all of them end with the step that made them."""

import json
import subprocess
from dataclasses import dataclass

PROGRAM = "scontainer"


class SandboxError(Exception):
    """A command of scontainer that failed. The text is its message, with a hint."""


@dataclass
class Done:
    exit_status: int
    stdout: str
    stderr: str
    timed_out: bool  # exit_status is then 124
    truncated: bool  # there was more output than 16 MiB
    milliseconds: int
    name: str

    def check(self):
        if self.exit_status != 0:
            raise SandboxError(f"exit status {self.exit_status}: {self.stderr.strip()}")
        return self


def scontainer(*words, stdin=""):
    done = subprocess.run([PROGRAM, "sandbox", *words], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          errors="replace", check=False)
    # exec has printed an object if the command began, whatever its exit status
    if done.returncode != 0 and not done.stdout.startswith("{"):
        raise SandboxError(done.stderr.strip())
    return done.stdout


class Sandbox:
    def __init__(self, image=None, *, snapshot=None, name=None, memory=None, cpus=None, pids=None, timeout=None, remap_root=False,
                 network=True, env=None):
        options = {"from": snapshot, "name": name, "memory": memory, "cpus": cpus, "pids": pids, "timeout": timeout}
        words = [f"--{option}={value}" for option, value in options.items() if value is not None]
        words += [f"--env={variable}={value}" for variable, value in (env or {}).items()]
        words += ["--remap-root"] * remap_root + ["--no-network"] * (not network) + [image] * (image is not None)
        self.properties = json.loads(scontainer("create", "--json", *words))
        self.name = self.properties["name"]

    def run(self, *command, timeout=None, env=None, workdir=None, stdin=""):
        words = [f"--env={variable}={value}" for variable, value in (env or {}).items()]
        words += [f"--timeout={timeout}"] * (timeout is not None) + [f"--workdir={workdir}"] * (workdir is not None)
        return Done(**json.loads(scontainer("exec", "--json", *words, self.name, *command, stdin=stdin)))

    def upload(self, file, path):
        scontainer("cp", str(file), f"{self.name}:{path}")

    def download(self, path, file):
        scontainer("cp", f"{self.name}:{path}", str(file))

    def snapshot(self, name):
        scontainer("snapshot", self.name, name)

    def stop(self):
        scontainer("stop", self.name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def sandboxes():
    return json.loads(scontainer("list", "--json"))


def stop_all():
    scontainer("stop", "--all")
