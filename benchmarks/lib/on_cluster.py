"""A Slurm cluster of tests/cluster for the time of a benchmark, and commands that take turns in one allocation on it."""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import quiet
from machine import SOURCE, BenchmarkError, call, say, test_image

PROGRAM = SOURCE / "tests/cluster/cluster"
SHARED = "/home/shared"  # on all machines of the cluster, for everybody
ON_HEAD = [Path(__file__).with_name(name) for name in ("on_head.py", "quiet.py")]


class Turn(NamedTuple):
    """What a command wrote, how long it took and how much the whole machine worked meanwhile (ms), and whether it began in quiet; quiet.patience then."""
    out: str
    ms: float
    cpu: float
    quiet: bool
    patience: float


class Cluster:
    """Our own, for the time of a benchmark."""
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
        """The test image of this name, in the registry; its name there."""
        return self.push(test_image(name), f"bench/{name}:1")

    def share(self, *files):
        """Copies files to where all machines see them; the names there."""
        for file in files:
            shutil.copy(file, self.directory / "home/shared")
        return [f"{SHARED}/{file.name}" for file in files]

    def run_as(self, user, *words):
        return self.call("as", user, *words)

    def turns(self, user, allocation, ways, rounds):
        """Each of `ways` (name -> command) once a round, as `user` in one allocation (with these options of salloc; None: in none,
        and queueing is measured, too); a list of name -> Turn."""
        salloc = ["salloc", "-Q", *allocation] if allocation is not None else []
        out = self.run_as(user, *salloc, "/usr/bin/python3", f"{self.shared}/on_head.py", quiet.patience, rounds, json.dumps(ways))
        turns = [{name: Turn(**turn) for name, turn in json.loads(line).items()} for line in out.splitlines()]
        quiet.patience = min([quiet.patience, *(turn.patience for round_ in turns for turn in round_.values())])
        return turns


class Present(Cluster):
    """The Slurm of this machine, with the plugin that is installed there, as the user who calls; nothing is pushed. Allocations have these options, too."""

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


present = None  # the one to be used instead of a cluster of our own


@contextmanager
def cluster(work, build, nodes, plugin=None):
    """A cluster of our own with what was built, or instead with this line of plugstack.conf; one that is up is left alone."""
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
        except BenchmarkError as error:  # neither what was measured nor why it failed is to be lost
            say(str(error))


def json_lines(text):
    """What a program wrote in lines of JSON, among others."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if not found:
        raise BenchmarkError(f"a program said nothing: {text.strip()[-500:]}")
    return found
