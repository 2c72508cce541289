"""A Slurm cluster of tests/cluster during a benchmark, and commands that alternate in one
allocation on it."""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import quiet
from machine import SOURCE, BenchmarkError, call, say, test_image

PROGRAM = SOURCE / "tests/cluster/cluster"
SHARED = "/home/shared"  # on all machines of the cluster, for all users
ON_HEAD = [Path(__file__).with_name(name) for name in ("on_head.py", "quiet.py")]


class Turn(NamedTuple):
    """Output of a command, its time and the processor time of the whole machine meanwhile (ms),
    whether the machine was idle at its start, and quiet.patience then."""
    out: str
    ms: float
    cpu: float
    quiet: bool
    patience: float


class Cluster:
    """A new cluster during a benchmark."""
    shared = SHARED

    def __init__(self, directory):
        self.directory = directory
        self.environment = {**os.environ, "SPC_CLUSTER_DIR": str(directory)}

    def call(self, *words):
        return call(PROGRAM, *words, env=self.environment)

    def push(self, image, name):
        self.call("push", image, name)
        return f"registry:5000/{name}"

    def image(self, name):
        """Pushes the test image of this name. Returns its name in the registry."""
        return self.push(test_image(name), f"bench/{name}:1")

    def share(self, *files):
        """Copies files to a directory that all machines see. Returns their names there."""
        for file in files:
            shutil.copy(file, self.directory / "home/shared")
        return [f"{SHARED}/{file.name}" for file in files]

    def run_as(self, user, *words):
        return self.call("as", user, *words)

    def turns(self, user, allocation, ways, rounds):
        """Runs each of `ways` (name -> command) once per round, as `user` in one allocation with
        these options of salloc. None: without an allocation, so that queueing is measured as well.
        Returns a list of name -> Turn."""
        salloc = ["salloc", "-Q", *allocation] if allocation is not None else []
        out = self.run_as(user, *salloc, "/usr/bin/python3", f"{self.shared}/on_head.py", quiet.patience, rounds, json.dumps(ways))
        turns = [{name: Turn(**turn) for name, turn in json.loads(line).items()} for line in out.splitlines()]
        quiet.patience = min([quiet.patience, *(turn.patience for round_ in turns for turn in round_.values())])
        return turns


class Present(Cluster):
    """The Slurm of this machine with its installed plugin, as the calling user. No image is pushed.
    Allocations get these options as well."""

    def __init__(self, image, shared, options):
        super().__init__(None)
        self.present_image, self.shared, self.options = image, shared, options

    def image(self, name):
        return self.present_image

    def share(self, *files):
        for file in files:
            shutil.copy(file, self.shared)
        return [f"{self.shared}/{file.name}" for file in files]

    def run_as(self, user, *words):
        return call(*words)

    def turns(self, user, allocation, ways, rounds):
        return super().turns(user, [*(allocation or []), *self.options], ways, rounds)


present = None  # used instead of a new cluster, if set


@contextmanager
def cluster(work, build, nodes, plugin=None):
    """Starts a cluster with the built files, or with this line of plugstack.conf instead. A running
    cluster is not touched."""
    if present is not None:
        present.share(*ON_HEAD)
        yield present
        return
    if plugin is None:
        call("cmake", "--build", build, "--target", "product")
        call("cmake", "--install", build, env={**os.environ, "DESTDIR": str(work / "stage")})
    made = Cluster(work / "cluster")
    say(f"starting a cluster of {nodes} node{'s' if nodes > 1 else ''}")
    made.call("up", nodes, *(("--stage", work / "stage") if plugin is None else ("--plugstack", plugin)))
    try:
        made.share(*ON_HEAD)
        yield made
    finally:
        try:
            made.call("down")
        # Keep the earlier measurements and the reason of the failure.
        except BenchmarkError as error:
            say(str(error))


def json_lines(text):
    """Returns the lines of JSON in a program's output."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if not found:
        raise BenchmarkError(f"a program said nothing: {text.strip()[-500:]}")
    return found
