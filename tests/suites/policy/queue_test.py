"""Data about an image before its job waits, and in Slurm's accounting."""
import contextlib
import json
import os
import re
import shutil

from command import await_true
from errors_test import answered
from harness import Failed, equal, expect, test
from images import INDEX, MANIFEST, digest_of, with_probe
from site_files import rules

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(HERE, "../../../packaging/examples/job_submit.lua")
MANUAL = os.path.join(HERE, "../../../packaging/man/spank-container-operation.8")
SITE = """check_at_submit = true
[nodes]
arch = "amd64"
[partitions.arm]
arch = "arm64"
[partitions."cuda"]
gpu = "nvidia"
driver = "470.57.02"
pmi = ["pmi2"]
[features.new]
driver = "550.54.15"
[partitions.rocm]
gpu = "amd"
"""


def cancel_all(cluster):
    cluster.root("head", "scancel", "-u", "alice").good()
    await_true(lambda: not cluster.inquirer.ask("squeue -h"), 5, "a job does not end")


@contextlib.contextmanager
def partitions(cluster):
    """Adds three partitions of the same nodes. node02 has a feature."""
    names = ("arm", "cuda", "rocm")
    for name in names:
        cluster.root("head", "scontrol", "create", f"PartitionName={name}", "Nodes=ALL").good()
    cluster.root("head", "scontrol", "update", "NodeName=node02", "AvailableFeatures=new", "ActiveFeatures=new").good()
    try:
        yield
    finally:
        cancel_all(cluster)
        cluster.root("head", "scontrol", "update", "NodeName=node02", "AvailableFeatures=", "ActiveFeatures=").good()
        for name in names:
            cluster.root("head", "scontrol", "delete", f"PartitionName={name}").good()


def publish(cluster, name, *variables, architectures=("amd64",)):
    """Publishes an image for each of the architectures under one name."""
    entries = []
    for architecture in architectures:
        image = with_probe(f"queue-{name}", [("of", architecture.encode())], Env=list(variables))
        image.architecture = architecture
        manifest, _ = image.parts()
        cluster.faulty.publish(image)
        entries.append({"mediaType": MANIFEST, "digest": digest_of(manifest), "size": len(manifest),
                        "platform": {"os": "linux", "architecture": architecture}})
    if len(architectures) > 1:
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}
        cluster.faulty.manifests[f"suites/queue-{name}:1"] = json.dumps(index).encode()
    return f"--container-image={cluster.faulty.host}/suites/queue-{name}:1", [entry["digest"] for entry in entries]


def submitted(cluster):
    """Returns whether a job was submitted, judged by the number of the next job."""
    return int(cluster.run("sh", "-c", "sbatch --parsable -o /dev/null --wrap=true").good())


@test
def image_of_foreign_architecture_is_refused_at_submission(cluster):
    arm, _ = publish(cluster, "arm", architectures=["arm64"])
    both, _ = publish(cluster, "both", architectures=["amd64", "arm64"])
    with rules(cluster, SITE), partitions(cluster):
        before = submitted(cluster)
        answered("an_image_of_another_architecture", cluster.run("srun", arm, "/probe"))
        answered("an_image_of_another_architecture_in_a_partition", cluster.run("srun", "-p", "rocm", arm, "/probe"))
        script = f"#!/bin/sh\n#SBATCH -p rocm\n#SBATCH {arm}\n"
        done = cluster.run("sbatch", "-o", "/dev/null", stdin=script)
        expect(done.rc == 1 and 'for partition "rocm"' in done.err and len(done.errors()) == 1, "sbatch does not refuse it", done)
        equal(submitted(cluster), before + 1, "the number of the next job")
        # If one of two partitions accepts one of two images, the nodes decide which.
        for partition in ("arm", "rocm,arm"):
            cluster.run("sbatch", "-H", "-o", "/dev/null", "-p", partition, arm, stdin="#!/bin/sh\n").good()
        for partition in ("main", "arm"):
            cluster.run("sbatch", "-H", "-o", "/dev/null", "-p", partition, both, stdin="#!/bin/sh\n").good()
        done = cluster.run("srun", "-p", "rocm", both, "/probe", "/of")
        expect(done.rc == 0 and "amd64" in done.out, "not the image for the node", done)


@test
def image_unfit_for_partition_gpus_is_refused_at_submission(cluster):
    cuda, _ = publish(cluster, "cuda", "CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=470,driver<471 driver>=525")
    newest, _ = publish(cluster, "newest", "NVIDIA_REQUIRE_CUDA=cuda>=12.4")
    with rules(cluster, SITE), partitions(cluster):
        answered("an_image_for_gpus_of_another_vendor", cluster.run("srun", "-p", "rocm", cuda, "/probe"))
        answered("an_image_that_needs_a_newer_driver", cluster.run("srun", "-p", "cuda", newest, "/probe"))
        # As on the node: one alternative of three is enough, and the user can override the check.
        hold = ("sbatch", "-H", "-o", "/dev/null", "-p", "cuda")
        cluster.run(*hold, cuda, stdin="#!/bin/sh\n").good()
        cluster.run(*hold, newest, stdin="#!/bin/sh\n", env=["NVIDIA_DISABLE_REQUIRE=1"]).good()
        cluster.run(*hold, "-C", "new", newest, stdin="#!/bin/sh\n").good()
        cluster.run("sbatch", "-H", "-o", "/dev/null", newest, stdin="#!/bin/sh\n").good()
        done = cluster.run(*hold, "-C", "new|old", newest, stdin="#!/bin/sh\n")
        expect(done.rc == 1, "the feature counts though not all nodes have it", done)


@test
def mpi_unsupported_by_partition_is_a_warning_at_submission(cluster):
    mpi, _ = publish(cluster, "mpi", "OPENMPI_VERSION=4.1.7")
    with rules(cluster, SITE), partitions(cluster):
        done = cluster.run("sbatch", "-H", "-o", "/dev/null", "-p", "cuda", mpi, stdin="#!/bin/sh\n")
        warning = ('warning: check image "registry:5050/suites/queue-mpi:1" for partition "cuda": its Open MPI 4.1.7 needs srun --mpi=pmix,'
                   ' there is pmi2 (hint: ranks will not find each other by srun)')
        expect(done.rc == 0 and done.err.count(warning) == 1, "it is not warned of, or refused", done)
        done = cluster.run("sbatch", "-H", "-o", "/dev/null", mpi, stdin="#!/bin/sh\n")
        expect(done.rc == 0 and done.err == "", "it is warned of where nothing is known", done)


@test
def image_pulled_by_user_is_known_by_its_files(cluster):
    base = cluster.name_of("base")
    cluster.run("scontainer", "rm", base)  # another suite may have pulled it
    hold = ("sbatch", "-H", "-o", "/dev/null", f"--container-image={base}")
    with rules(cluster, 'check_at_submit = true\n[nodes]\nglibc = "9.0"\n'):
        cluster.run(*hold, stdin="#!/bin/sh\n").good()
        cluster.run("scontainer", "pull", "-q", base).good()
        try:
            answered("an_image_with_an_old_glibc", cluster.run("srun", f"--container-image={base}", "true"))
        finally:
            cluster.run("scontainer", "rm", base).good()
            cancel_all(cluster)


def reconfigure(cluster):
    """From 23.11 on slurmctld restarts, and queries its nodes first."""
    cluster.root("head", "scontrol", "reconfigure").good()
    await_true(lambda: cluster.inquirer.ask("sinfo -h -N -o %T") == ["idle"] * len(cluster.nodes), 15, "the nodes do not become idle")


@contextlib.contextmanager
def job_submit(cluster):
    """Runs slurmctld with the example job_submit plugin."""
    conf = os.path.join(cluster.etc, "slurm/slurm.conf")
    before = open(conf).read()
    shutil.copy(EXAMPLE, os.path.join(cluster.etc, "slurm/job_submit.lua"))
    try:
        with open(conf, "w") as file:
            file.write(before + "JobSubmitPlugins=lua\n")
        reconfigure(cluster)
        yield
    finally:
        cancel_all(cluster)
        with open(conf, "w") as file:
            file.write(before)
        reconfigure(cluster)
        os.unlink(os.path.join(cluster.etc, "slurm/job_submit.lua"))


def comment_of(cluster, job):
    found = re.search(r"AdminComment=(.*)", cluster.run("scontrol", "show", "job", str(job)).good())
    return found.group(1).strip() if found else None


@test
def accounting_has_image_and_digest(cluster):
    image, digests = publish(cluster, "accounted")
    name = image.split("=")[1]
    hold = ("sbatch", "-H", "--parsable", "-o", "/dev/null")
    with job_submit(cluster):
        job = cluster.run(*hold, image, stdin="#!/bin/sh\n").good()
        equal(comment_of(cluster, job), f"container={name}", "of a job whose registry nobody has asked")
        job = cluster.run(*hold, stdin="#!/bin/sh\n").good()
        equal(comment_of(cluster, job), None, "of a job without a container")
        job = cluster.run(*hold, "--container-image=https://registry:5051/x.sqsh?sig=secret", stdin="#!/bin/sh\n").good()
        equal(comment_of(cluster, job), "container=https://registry:5051/x.sqsh", "of a job with a signed URL")
        job = cluster.run(*hold, "--container-image=./a b|c.sqsh", stdin="#!/bin/sh\n").good()
        equal(comment_of(cluster, job), "container=?", "of a job with a path of other characters")
        with rules(cluster, "check_at_submit = true\n"):
            job = cluster.run(*hold, image, stdin="#!/bin/sh\n").good()
            equal(comment_of(cluster, job), f"container={name} digest={digests[0]}", "of a batch job")
            cluster.run("srun", image, "/probe").good()
            equal(comment_of(cluster, int(job) + 1), f"container={name} digest={digests[0]}", "of srun's job")


def await_end(cluster, job):
    await_true(lambda: not cluster.inquirer.ask(f"squeue -h -j {job}"), 30, f"job {job} does not end")


@contextlib.contextmanager
def accounting(cluster):
    """Runs slurmdbd with an empty database."""
    cluster.program("accounting", "on").good()
    try:
        yield
    finally:
        cluster.program("accounting", "off").good()


def sacct_line():
    """Returns the command of the manual that prints images of jobs."""
    lines = [line for line in open(MANUAL).read().replace("\\-", "-").splitlines() if line.startswith("$ sacct ")]
    expect(len(lines) == 2, f"the manual has other lines of sacct: {lines}")
    return [line.split()[1:] for line in lines]


@test
def sacct_shows_images_of_jobs_arrays_components_and_steps(cluster):
    """The manual's commands, unchanged."""
    image, digests = publish(cluster, "sacct")
    other, others = publish(cluster, "sacct2")
    names = [text.split("=")[1] for text in (image, other)]
    job_line, step_line = sacct_line()
    text = f"container={names[0]} digest={digests[0]}"
    second = f"container={names[1]} digest={others[0]}"
    with accounting(cluster), job_submit(cluster), rules(cluster, "check_at_submit = true\n"):
        plain = cluster.submit("#!/bin/sh\n")
        array = cluster.submit("#!/bin/sh\n", image, "--array=0-2")
        # Tasks of an array get job numbers when they start: now, so that later jobs have consecutive ones.
        await_end(cluster, array)
        mixed = cluster.submit(f"#!/bin/sh\n#SBATCH {image}\n#SBATCH hetjob\n")
        steps = cluster.submit(f"#!/bin/sh\nsrun {image} /probe\nsrun {other} /probe\n")
        cluster.run("srun", image, "/probe", ":", other, "/probe").good()
        for job in (plain, mixed, steps):
            await_end(cluster, job)

        def rows(line):
            shown = cluster.run(*line, "-n", "-P").good()
            # Jobs of other tests have command lines of several lines.
            return [row.split("|", 1) for row in shown.splitlines() if "|" in row]

        wanted = {str(plain): "", **{f"{array}_{task}": text for task in range(3)}, f"{mixed}+0": text, f"{mixed}+1": text, str(steps): "",
                  f"{steps + 1}+0": text, f"{steps + 1}+1": second}
        missing = set(wanted)

        def has_all():
            missing.difference_update(dict(rows(job_line)))
            return not missing

        try:
            await_true(has_all, 60, "")
        except Failed:
            raise Failed(f"slurmdbd lacks {sorted(missing)}, has {[job for job, _ in rows(job_line)]}") from None
        found = dict(rows(job_line))
        equal({job: found[job] for job in wanted}, wanted, "images of jobs")
        found = dict(rows(step_line))
        equal([found[f"{steps}.{number}"] for number in (0, 1)], [f"srun {image} /probe", f"srun {other} /probe"], "lines of steps")
