"""What a container adds to `srun` on a real Slurm cluster of one node, which is started for it and taken down again."""

import json
import os

from machine import SOURCE, call, say, test_image
from report import Report

CLUSTER = SOURCE / "tests/cluster/cluster"
IMAGE = "registry:5000/bench/pytorch:1"

# Runs on the head, inside one allocation: queueing is not what is measured.
LOOP = """
import json, subprocess, sys, time
plain, contained = ["srun", "-n1", "/bin/true"], ["srun", "-n1", "--container-image=%s", "/bin/true"]
def once(command):
    time.sleep(0.3)  # the kernel still takes down the last one's mounts
    begin = time.monotonic()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return (time.monotonic() - begin) * 1e3
subprocess.run(contained, check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
verbose = []
samples = []
for _ in range(%d):
    samples.append([once(plain), once(contained)])
    time.sleep(0.3)
    told = subprocess.run(contained[:2] + ["--container-verbose"] + contained[2:], check=True, stdin=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True).stderr
    verbose += [line.split("start ", 1)[1] for line in told.splitlines() if " layers (" in line]
print(json.dumps({"samples": samples, "verbose": verbose}))
"""


def measure(work, build, quick):
    # A cluster of our own: one that is up is left alone.
    environment = {**os.environ, "SPC_CLUSTER_DIR": str(work / "cluster")}
    image = test_image("pytorch")
    call("cmake", "--build", build)
    call("cmake", "--install", build, env={**os.environ, "DESTDIR": str(work / "stage")})
    report = Report("srun: one task on one node, ms", "warm; the image is in the node's store, its layers not mounted")
    say("starting a cluster")
    call(CLUSTER, "up", 1, "--stage", work / "stage", env=environment)
    try:
        call(CLUSTER, "push", image, IMAGE.split("/", 1)[1], env=environment)
        out = call(CLUSTER, "as", "alice", "salloc", "-Q", "-N1", "/usr/bin/python3", "-c", LOOP % (IMAGE, 5 if quick else 21),
                   env=environment)
    finally:
        call(CLUSTER, "down", env=environment)
    result = json.loads(out.splitlines()[-1])
    for plain, contained in result["samples"]:
        report.samples("start.srun.plain", "ms", "srun /bin/true").add(plain)
        report.samples("start.srun.container", "ms", "the same with --container-image", of=("plain", "start.srun.plain")).add(contained)
        report.samples("start.srun.added", "ms", "difference of neighbours").add(contained - plain)
    for line in result["verbose"]:
        report.samples("start.srun.task_init", "ms", "as --container-verbose says").add(float(line.split()[0]))
    if result["verbose"]:
        report.note(f"phases of one of these, ms: {sorted(result['verbose'], key=lambda line: float(line.split()[0]))[len(result['verbose']) // 2]}")
    return report
