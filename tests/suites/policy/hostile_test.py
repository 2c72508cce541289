"""Thousands of hostile option values that bypass srun's checks: every step runs or is refused with
one line, and all nodes stay in service.

SPC_HOSTILE_COUNT values (default 400) of SPC_HOSTILE_SEED (default 1), several in each step. They
reach the node as options, by an srun with another plugin in place of ours, and as environment
variables."""
import json
import os
import random
import re
import shutil
import subprocess
import sys

from harness import Skipped, equal, expect, test
from plugstack import plugstack

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../fuzz"))
from hostile_strings import hostile  # noqa: E402

COUNT, SEED = int(os.environ.get("SPC_HOSTILE_COUNT", "400")), int(os.environ.get("SPC_HOSTILE_SEED", "1"))
IN_A_STEP = (1, 1, 2, 6, 12)  # a single value is checked most closely; many cover more in less time
BASE = b"registry:5000/suites/base:1"
HERE = os.path.dirname(os.path.abspath(__file__))

# Runs on the head in an allocation. Reads lists of words, one step each. Prints each step's exit
# code and output.
DRIVER = """
import concurrent.futures, json, os, subprocess
def run(step):
    variables = {os.fsencode(name): value.encode("latin1") for name, value in step["env"].items()}
    try:
        done = subprocess.run([b"srun", b"--overlap", b"-n1", *(word.encode("latin1") for word in step["words"]), b"true"], env={**os.environb, **variables},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        return done.returncode, done.stdout.decode("latin1")[-2000:]
    except subprocess.TimeoutExpired:
        return "timeout", ""
steps = json.load(open("steps.json"))
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    json.dump(list(pool.map(run, steps)), open("results.json", "w"))
"""


class Client:
    """A directory in alice's home with her own slurm.conf, which loads another plugin in place of
    ours."""

    def __init__(self, cluster):
        self.cluster, self.directory = cluster, os.path.join(cluster.home, "alice/hostile")

    def __enter__(self):
        os.makedirs(self.directory)
        program = os.path.join(self.directory, "spank_container.so")
        if shutil.which("cc") is None:
            raise Skipped("no C compiler")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", program, os.path.join(HERE, "hostile_client.c")], check=True)
        found = re.findall(r"--((?:no-)?container-[a-z-]+)(=)?", self.cluster.run("srun", "--help").good())
        self.options = {name: equals == "=" for name, equals in found if name != "container-id"}  # srun's own, from 23.02 on
        expect(len(self.options) > 16, f"srun --help describes {len(self.options)} options")
        conf = open(os.path.join(self.cluster.etc, "slurm/slurm.conf")).read()
        self._write("slurm.conf", conf + "PlugStackConfig=/home/alice/hostile/plugstack.conf\n")
        names = " ".join(name + ("=" if takes else "") for name, takes in self.options.items())
        self._write("plugstack.conf", f"required /home/alice/hostile/spank_container.so {names}\n")
        self._write("driver.py", DRIVER)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.directory)

    def _write(self, name, text):
        with open(os.path.join(self.directory, name), "w") as file:
            file.write(text)

    def run(self, steps, timeout):
        """Returns the exit code and the output of each step."""
        self._write("steps.json", json.dumps(steps))
        os.chmod(self.directory, 0o777)
        self.cluster.run("sh", "-c", "cd hostile && exec salloc -N1 -n4 python3 driver.py", env=["SLURM_CONF=/home/alice/hostile/slurm.conf"], timeout=timeout).good()
        return json.load(open(os.path.join(self.directory, "results.json")))


def text(value):
    return value.decode("latin1")


def steps_of(options, chance, count):
    """Returns steps with several hostile values each, half of them as options and half as
    environment variables. Most have an existing image, so that later checks are reached."""
    steps, values_sent = [], 0
    with_value = [name for name, takes in options.items() if takes]
    without = [name for name, takes in options.items() if not takes]
    while values_sent < count:
        values = {name: hostile(chance)[:60000] for name in chance.sample(with_value, min(chance.choice(IN_A_STEP), len(with_value)))}
        values_sent += len(values)
        if chance.random() < 0.8 or "container-image" not in values:
            values["container-image"] = BASE
        if len(steps) % 2 == 0:
            words = [f"--{name}={text(value)}" for name, value in values.items()] + [f"--{name}" for name in chance.sample(without, chance.choice((0, 0, 1, 3)))]
            steps.append({"words": words, "env": {}})
        else:
            prefix = chance.choice(("SCONTAINER_", "PYXIS_CONTAINER_"))
            twins = {name.removeprefix("container-").replace("-", "_").upper(): value for name, value in values.items()}
            twins.update({name.removeprefix("container-").replace("-", "_").upper(): hostile(chance)[:100] for name in chance.sample(without, chance.choice((0, 0, 1)))
                          if not name.startswith("no-")})
            steps.append({"words": [], "env": {prefix + name: text(value) for name, value in twins.items()}})
    return steps


def daemons(cluster):
    return {node: cluster.processes(node, "slurmd") for node in ("node01", "node02")}


@test
def hostile_option_values_end_in_error_or_container(cluster):
    before = daemons(cluster)
    with plugstack(cluster, "container_scope=job"), Client(cluster) as client:
        steps = steps_of(client.options, random.Random(SEED), COUNT)
        results = client.run(steps, timeout=60 + len(steps) * 5)
    ran = refused = 0
    for step, (rc, said) in zip(steps, results):
        expect(rc in (0, 1), f"a step ended with {rc}: {step!r:.2000}\n{said}")
        expect(rc == 0 or "spank-container: " in said, f"a step ended without a line of ours: {step!r:.2000}\n{said}")
        ran, refused = ran + (rc == 0), refused + (rc == 1)
    print(f"    {COUNT} values in {len(steps)} steps: {ran} ran, {refused} were refused", flush=True)
    expect(min(ran, refused) > 0, f"{ran} of {len(steps)} steps ran, {refused} were refused: the values do not arrive")
    equal(daemons(cluster), before, "slurmd's processes")
    for node in before:
        found = cluster.root(node, "sh", "-c", "ls -d /tmp/hostile /home/alice/hostile /core* /var/spool/slurmd/core* /var/log/slurm/core* 2>/dev/null").out
        equal(found, "", f"files that should not be on {node}")
        log = cluster.program("logs", node).out
        expect(not re.search(r"(?i)segfault|core dumped|aborted|drain", log), f"slurmd.log of {node} tells of a crash")
    cluster.await_idle()
    cluster.must_be_quiet()
