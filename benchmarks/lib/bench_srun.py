"""What a container adds to `srun` on a real Slurm cluster of one node, which is started for it and taken down again."""

import json
import os
from pathlib import Path

from machine import SOURCE, call, say, test_image
from report import Report

CLUSTER = SOURCE / "tests/cluster/cluster"
IMAGE = "registry:5000/bench/pytorch:1"

# Runs on the head, inside one allocation: queueing is not what is measured. The order changes from round to round.
LOOP = """
import json, os, subprocess, sys, time
tag = "%s"
digest = tag.rsplit(":", 1)[0] + "@%s"
ways = {"plain": [], "digest": ["--container-image=" + digest], "tag": ["--container-image=" + tag]}
def once(way):
    time.sleep(0.3)  # the kernel still takes down the last one's mounts
    begin = time.monotonic()
    pid = os.posix_spawnp("srun", ["srun", "-n1", *ways[way], "/bin/true"], os.environ,
                          file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)])
    _, status, used = os.wait4(pid, 0)
    if status != 0:
        sys.exit(f"srun {way}: status {status}")
    return [(time.monotonic() - begin) * 1e3, (used.ru_utime + used.ru_stime) * 1e3]
for way in ways:  # the first one pulls
    subprocess.run(["srun", "-n1", *ways[way], "/bin/true"], check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
verbose = []
samples = []
names = list(ways)
for round_ in range(%d):
    shift = round_ %% len(names)
    samples.append({way: once(way) for way in names[shift:] + names[:shift]})
    time.sleep(0.3)
    told = subprocess.run(["srun", "-n1", *ways["tag"], "--container-verbose", "/bin/true"], check=True, stdin=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True).stderr
    verbose += [line.split("start ", 1)[1] for line in told.splitlines() if " layers (" in line]
print(json.dumps({"samples": samples, "verbose": verbose}))
"""


# The same in an allocation of its own: what a job's first step takes, and its second.
FIRST = """
import json, subprocess, time
digest = "%s@%s"
def once(*options):
    time.sleep(0.3)
    begin = time.monotonic()
    subprocess.run(["srun", "-n1", *options, "/bin/true"], check=True, stdin=subprocess.DEVNULL)
    return (time.monotonic() - begin) * 1e3
once()
print(json.dumps([once(), once("--container-image=" + digest), once("--container-image=" + digest)]))
"""


def add_samples(report, sample):
    """One round: by way of naming the image, wall time, and CPU time of srun with all that it starts and waits for."""
    (plain, plain_cpu), (by_digest, digest_cpu), (by_tag, tag_cpu) = (sample[way] for way in ("plain", "digest", "tag"))
    report.samples("start.srun.plain", "ms", "srun /bin/true").add(plain)
    report.samples("start.srun.container", "ms", "with --container-image, by tag", of=("plain", "start.srun.plain")).add(by_tag)
    report.samples("start.srun.digest", "ms", "by digest", of=("plain", "start.srun.plain")).add(by_digest)
    report.samples("start.srun.added", "ms", "by tag, difference of neighbours").add(by_tag - plain)
    report.samples("start.srun.cpu.plain", "ms", "CPU of srun").add(plain_cpu)
    report.samples("start.srun.cpu", "ms", "CPU of srun, by tag", of=("plain", "start.srun.cpu.plain")).add(tag_cpu)
    report.samples("start.srun.cpu.digest", "ms", "CPU of srun, by digest", of=("plain", "start.srun.cpu.plain")).add(digest_cpu)


def add_first(report, plain, first, second):
    """Of one job."""
    report.samples("start.srun.job.plain", "ms", "srun /bin/true, in a job of its own").add(plain)
    report.samples("start.srun.job.first", "ms", "the job's first step in a container, by digest", of=("plain", "start.srun.job.plain")).add(first)
    report.samples("start.srun.job.second", "ms", "its second step", of=("plain", "start.srun.job.plain")).add(second)
    report.samples("start.srun.job.saved", "ms", "difference of these two").add(first - second)


def digest_of(layout):
    return json.loads((Path(layout) / "index.json").read_text())["manifests"][0]["digest"]


def measure(work, build, quick):
    # A cluster of our own: one that is up is left alone.
    environment = {**os.environ, "SPC_CLUSTER_DIR": str(work / "cluster")}
    image = test_image("pytorch")
    call("cmake", "--build", build)
    call("cmake", "--install", build, env={**os.environ, "DESTDIR": str(work / "stage")})
    report = Report("srun: one task on one node, ms", "warm; the image is in the node's store, its layers are held by the job but for start.srun.job.first")
    say("starting a cluster")
    call(CLUSTER, "up", 1, "--stage", work / "stage", env=environment)
    try:
        call(CLUSTER, "push", image, IMAGE.split("/", 1)[1], env=environment)
        def in_job(script):
            return call(CLUSTER, "as", "alice", "salloc", "-Q", "-N1", "/usr/bin/python3", "-c", script, env=environment)
        out = in_job(LOOP % (IMAGE, digest_of(image), 5 if quick else 21))
        jobs = [in_job(FIRST % (IMAGE.rsplit(":", 1)[0], digest_of(image))) for _ in range(5 if quick else 21)]
    finally:
        call(CLUSTER, "down", env=environment)
    result = json.loads(out.splitlines()[-1])
    for sample in result["samples"]:
        add_samples(report, sample)
    for said in jobs:
        add_first(report, *json.loads(said.splitlines()[-1]))
    for line in result["verbose"]:
        report.samples("start.srun.task_init", "ms", "as --container-verbose says").add(float(line.split()[0]))
    if result["verbose"]:
        report.note(f"phases of one of these, ms: {sorted(result['verbose'], key=lambda line: float(line.split()[0]))[len(result['verbose']) // 2]}")
    return report
