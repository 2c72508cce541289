"""Environment files: --environment of srun, sbatch and salloc."""
import contextlib
import json
import os
import shutil

from harness import equal, expect, test

BASE = "registry:5000/suites/base:1"
TEXT = f"""image = "{BASE}"
workdir = "/etc"
mounts = ["/home/shared:/shown:ro"]
[env]
GREETER = "file of ${{USER}}"
OF_THE_JOB = ""
"""
SHOW = "pwd; echo $GREETER ${OF_THE_JOB-unset}; ls -d /shown"
SHOWN = "/etc\nfile of alice unset\n/shown"


@contextlib.contextmanager
def environments(cluster, **texts):
    """Writes ~/.edf/NAME.toml of alice, and removes all of them."""
    directory = os.path.join(cluster.home, "alice", ".edf")
    os.makedirs(directory)
    owner = os.stat(os.path.dirname(directory))
    os.chown(directory, owner.st_uid, owner.st_gid)
    try:
        for name, text in texts.items():
            with open(f"{directory}/{name}.toml", "w") as file:
                file.write(text)
        yield directory
    finally:
        shutil.rmtree(directory)


def run(cluster, *options, script=SHOW, env=()):
    return cluster.run("srun", *options, "sh", "-c", script, env=["OF_THE_JOB=1", *env])


@test
def environment_file_works_in_srun(cluster):
    with environments(cluster, one=TEXT):
        run(cluster, "--environment=one").good(SHOWN)
        run(cluster, "--environment=/home/alice/.edf/one.toml").good(SHOWN)
        run(cluster, "--export=NONE", "--environment=one", script="echo $GREETER").good("file of alice")
        run(cluster, env=["SCONTAINER_ENVIRONMENT=one"]).good(SHOWN)
        run(cluster, "--environment=one", "--container-workdir=/usr", "--container-env=GREETER=typed,OF_THE_JOB",
            script="pwd; echo $GREETER $OF_THE_JOB").good("/usr\ntyped 1")


@test
def environment_file_adds_to_the_images_variables(cluster):
    with environments(cluster, one=TEXT + 'IMAGE_ONLY = "/x:${IMAGE_ONLY}"\nPATH = "${PATH}:/y"\n'):
        done = run(cluster, "--environment=one", script="echo $IMAGE_ONLY; echo ${PATH##*:} ${PATH%%:*}", env=["IMAGE_ONLY=host"])
        done.good("/x:from the image\n/y /usr/local/sbin")


@test
def environment_file_is_read_where_the_job_is_submitted(cluster):
    with environments(cluster, one=TEXT) as directory:
        script = f"#!/bin/bash\n#SBATCH --environment=one\n#SBATCH --container-batch=steps\nrm {directory.replace(cluster.home, '/home')}/one.toml\n" \
                 f"pwd; srun sh -c '{SHOW}'\n"
        cluster.batch(script, env=["OF_THE_JOB=1"]).good("/home/alice\n" + SHOWN)


@test
def environment_file_runs_batch_script_in_the_image(cluster):
    with environments(cluster, one=TEXT):
        cluster.batch(f"#!/bin/bash\n#SBATCH --environment=one\n{SHOW}\n", env=["OF_THE_JOB=1"]).good(SHOWN)
        cluster.batch(f"#!/bin/bash\n{SHOW}\n", "--environment=one", "--export=NONE").good(SHOWN)


@test
def environment_file_works_in_salloc(cluster):
    with environments(cluster, one=TEXT, two=TEXT.replace("/etc", "/usr")):
        done = cluster.run("salloc", "-Q", "-N1", "--environment=one", "sh", "-c",
                           f"srun sh -c '{SHOW}'; srun --environment=two pwd", env=["OF_THE_JOB=1"], timeout=60)
        done.good(SHOWN + "\n/usr")


@test
def environment_file_replaces_image_of_the_job(cluster):
    with environments(cluster, one=TEXT):
        done = cluster.run("salloc", "-Q", "-N1", "--container-image=registry:5000/suites/none:1", "srun", "--environment=one", "pwd", timeout=60)
        done.good("/etc")


@test
def environment_file_lines_are_explained(cluster):
    with environments(cluster, one=TEXT, two='base_environment = "one"\nworkdir = "/usr"\n'):
        done = cluster.run("srun", "--environment=two", "--container-explain=json", "true")
        options = {one["option"]: one["source"] for one in json.loads(done.good())["options"]}
        equal(options["--container-workdir=/usr"], "/home/alice/.edf/two.toml:2", "line of the work directory", done)
        equal(options[f"--container-image={BASE}"], "/home/alice/.edf/one.toml:1", "line of the image", done)


@test
def environment_file_mistakes_are_refused_at_submission(cluster):
    with environments(cluster, one=TEXT, typo=TEXT.replace("workdir", "wrokdir"), cycle='base_environment = "cycle"\n'):
        for name, words in (("typo", 'typo.toml", line 2: wrokdir: unknown key (hint: did you mean "workdir"?)'),
                            ("oen", '--environment: find environment "oen": no file of that name in'),
                            ("cycle", 'cycle.toml", line 1: base_environment: is a cycle')):
            for program in ("srun", "sbatch", "salloc"):
                done = cluster.run(program, f"--environment={name}", *([] if program == "sbatch" else ["true"]), stdin="#!/bin/sh\n")
                expect(done.rc == 1 and len(done.errors()) == 1 and words in done.errors()[0], f"{program} says something else", done)


@test
def environment_annotations_without_effect_warn_once(cluster):
    with environments(cluster, one=TEXT + '[annotations]\ncom.hooks.dcgm.enabled = "true"\ncom.hooks.cxi.enabled = "true"\n'):
        done = cluster.run("srun", "-N2", "--environment=one", "true")
        lines = [line for line in done.err.splitlines() if "annotations" in line]
        expect(len(lines) == 1 and "com.hooks.dcgm.enabled (hint" in lines[0], "not one line", done)
