"""A Slurm cluster of tests/cluster for the time of a benchmark, and commands that take turns in one allocation on it."""

import json
import os
import shutil
from contextlib import contextmanager

from machine import SOURCE, BenchmarkError, call, say

PROGRAM = SOURCE / "tests/cluster/cluster"
SHARED = "/home/shared"  # on all machines of the cluster, for everybody

# Runs on the head inside an allocation: queueing is not what is measured. The order changes from round to round.
TURNS = """
import json, subprocess, sys, time
ways, rounds = json.loads(sys.argv[1])
names = list(ways)
for round_ in range(rounds):
    said = {}
    for name in names[round_ % len(names):] + names[:round_ % len(names)]:
        time.sleep(0.3)  # the kernel still takes down the last one's mounts
        try:
            done = subprocess.run(ways[name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600)
        except subprocess.TimeoutExpired as slow:
            sys.exit(f"{name}: not within 10 minutes: {(slow.stderr or b'').decode(errors='replace').strip()[-1500:]}")
        if done.returncode != 0:
            sys.exit(f"{name}: status {done.returncode}: {(done.stderr + done.stdout).strip()[-1500:]}")
        said[name] = done.stdout
    print(json.dumps(said), flush=True)
"""


class Cluster:
    def __init__(self, directory):
        self.directory = directory
        self.environment = {**os.environ, "SPC_CLUSTER_DIR": str(directory)}

    def call(self, *words):
        return call(PROGRAM, *words, env=self.environment)

    def push(self, image, name):
        self.call("push", image, name)
        return f"registry:5000/{name}"

    def share(self, *files):
        """Copies files to where all machines see them; the names there."""
        for file in files:
            shutil.copy(file, self.directory / "home/shared")
        return [f"{SHARED}/{file.name}" for file in files]

    def turns(self, user, allocation, ways, rounds):
        """Each of `ways` (name -> command) once a round, as `user` in one allocation; a list of name -> output."""
        out = self.call("as", user, "salloc", "-Q", *allocation, "/usr/bin/python3", "-c", TURNS, json.dumps([ways, rounds]))
        return [json.loads(line) for line in out.splitlines()]


@contextmanager
def cluster(work, build, nodes):
    """A cluster of our own with what was built; one that is up is left alone."""
    call("cmake", "--build", build, "--target", "product")
    call("cmake", "--install", build, env={**os.environ, "DESTDIR": str(work / "stage")})
    made = Cluster(work / "cluster")
    say(f"starting a cluster of {nodes} node{'s' if nodes > 1 else ''}")
    made.call("up", nodes, "--stage", work / "stage")
    try:
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
