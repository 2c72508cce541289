"""Time that hooks add to a start: all built-in hooks, each hook, a site's program, a shell hook."""

import json
import re

import quiet
from machine import call, test_image
from on_cluster import cluster
from report import Report

IMAGE = "hooks/base:1"
DIRECTORY = "/etc/spank-container/hooks.d"
CONFIG = "/etc/spank-container/config.d/90-bench.toml"
PROGRAM = """#!/bin/sh
echo '{"environment": {"set": {"OF_HOOK": "1"}}}'
"""
# For each way, the file that it needs on the node with its content, and the way that it is compared
# with.
WAYS = {
    "off": (CONFIG, 'hooks_off = ["all"]\n', None),
    "builtin": (None, "", "off"),
    "program": (f"{DIRECTORY}/50-bench", PROGRAM, "builtin"),
    "shell": (f"{DIRECTORY}/50-bench.sh", "#!/bin/bash\ntrue\n", "builtin"),
}
WHAT = {"builtin": "added by the built-in hooks", "program": "added by a program of the site", "shell": "added by a shell hook"}


def measure(work, build, quick):
    report = Report("hooks: what they add to a start, ms", "warm")
    image = test_image("base")
    with cluster(work, build, 1) as made:
        name = made.push(image, IMAGE)
        start(made, name)
        for _ in range(5 if quick else 21):
            one_round(made, name, report)
    each_alone(build, report, 200)
    return report


def one_round(made, name, report):
    took = {}
    for way, (file, text, _) in WAYS.items():
        made.call("exec", "node01", "rm", "-rf", DIRECTORY, CONFIG)
        if file:
            shared = made.directory / "home/shared/bench"
            shared.write_text(text)
            made.call("exec", "node01", "install", "-D", "-m", "755" if file != CONFIG else "644", "/home/shared/bench", file)
        start(made, name)  # the configuration is new to the agent
        took[way], hooks = start(made, name)
        if way == "builtin":
            report.samples("hooks.took", "ms", "as --container-verbose says").add(hooks)
    made.call("exec", "node01", "rm", "-rf", DIRECTORY, CONFIG)
    report.samples("hooks.off", "ms", "task_init without hooks").add(took["off"])
    for way, (_, _, neighbour) in WAYS.items():
        if neighbour:
            report.samples(f"hooks.{way}", "ms", WHAT[way], of=("off", "hooks.off")).add(took[way] - took[neighbour])


def start(made, name):
    """Returns the milliseconds of task_init, and of the hooks."""
    quiet.pause()
    said = made.call("as", "alice", "sh", "-c", f"srun -n1 --container-image={name} --container-verbose /bin/true 2>&1")
    whole = re.search(r"start ([\d.]+) ms: ", said)
    hooks = re.search(r"hooks took (\d+) us", said)
    return float(whole[1]), int(hooks[1]) / 1000 if hooks else 0.0


def each_alone(build, report, times):
    program = build / "libexec/builtin-hook"
    context = {"job": {"SLURM_JOB_ID": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
               "image": {"root": "/", "environment": {}}, "user": {"uid": 0, "gid": 0, "name": "root", "home": "/root"}}
    for hook in call(program, "--names").split():
        for stage in ("prepare", "create", "task"):
            shown = call(program, hook, "--time", times, stdin=None, input=json.dumps({**context, "stage": stage}))
            if float(shown) > 0:
                report.samples(f"hooks.alone.{hook}.{stage}", "ms", "in its process").add(float(shown) / 1000)
