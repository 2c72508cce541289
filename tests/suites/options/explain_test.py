"""--container-explain: the container that would be made and the environment, without running anything."""
import os
import re

from images import digest_of, with_probe
from harness import equal, expect, test

VARIABLE = re.compile(r'variable: +([^=]+)=(.*) \(([^()]*)\)$')


def explain(cluster, *options, command=("true",), **how):
    done = cluster.srun("--container-explain", *options, *command, **how)
    done.good("")
    return done


def said(done, key):
    """What is said behind `key`, line by line."""
    return [line[len(key) + 1:].strip() for line in done.messages() if line.startswith(key + ":")]


def variables(done):
    """name -> (value as shown, origin)"""
    return {found[1]: (found[2], found[3]) for found in map(VARIABLE.match, done.messages()) if found}


@test
def it_runs_nothing_and_every_task_ends_well(cluster):
    mark = os.path.join(cluster.shared, "explained")
    done = explain(cluster, "-N2", "-n4", "--container-mounts=/home/shared", command=("touch", "/home/shared/explained"))
    expect(not os.path.exists(mark), "the command was run", done)
    equal(said(done, "command"), ['"touch" "/home/shared/explained"'], "command", done)
    equal(len(said(done, "image")), 1, "explanations", done)


@test
def it_tells_the_image_and_what_the_image_says(cluster):
    image = with_probe("explained", [], User="1000:1000", Cmd=["/probe", "a b"], WorkingDir="/work", Volumes={"/data": {}},
                       ExposedPorts={"80/tcp": {}})
    done = explain(cluster, image=image)
    equal(said(done, "image"), [cluster.name_of(image)], "image", done)
    equal(said(done, "manifest"), [digest_of(image.parts()[0])], "manifest", done)
    equal(said(done, "image's cmd"), ['"/probe" "a b"'], "cmd", done)
    equal(said(done, "image's user"), ['"1000:1000", ignored'], "user", done)
    equal(said(done, "volumes") + said(done, "ports"), ['"/data"', '"80/tcp"'], "volumes and ports", done)
    equal(said(done, "workdir"), ['"/work" (image)'], "work directory", done)
    expect("1 layer" in said(done, "file system")[0], "not one layer", done)


@test
def it_tells_what_the_images_files_have(cluster):
    found = said(explain(cluster), "found in it")
    equal(len(found), 1, "fact sheets")
    expect(re.search(r"(^|; )os Debian GNU/Linux 12", found[0]) and re.search(r"; libc glibc 2\.36(;|$)", found[0]), f"not what is in it: {found}")
    expect("cuda" not in found[0], f"what is not in it: {found}")


@test
def it_tells_mounts_and_who_asked_for_them(cluster):
    done = explain(cluster, "--container-mounts=/home/shared:/shown:ro", "--container-mount-home")
    mounts = said(done, "mount")
    expect('"/home/shared" at "/shown", ro (--container-mounts)' in mounts, "not the mount", done)
    expect('"/home/alice" at "/home/alice", rw (--container-mount-home)' in mounts, "not the home", done)
    done = explain(cluster, "--container-mounts=tmpfs:/new:size=1M+ro,/home/shared:/home/shared:private,umount:/new,umount:/tmp", "--container-contain")
    mounts = said(done, "mount")
    expect('"tmpfs:size=1048576" at "/new", ro (--container-mounts)' in mounts, "not the tmpfs", done)
    expect('"tmpfs" at "/home/alice", rw (--container-contain)' in mounts, "not the home", done)
    expect('"/home/shared" at "/home/shared", rw+private (--container-mounts)' in mounts, "not the flag", done)
    equal(said(done, "no mount"), ['at "/new" (umount)', 'at "/tmp" (umount)'], "what is taken away", done)


@test
def it_tells_every_variable_of_the_task_with_its_origin(cluster):
    options = ["--container-env=KEPT,MINE=1", "-n1"]
    env = ["GREETER=job", "KEPT=job", "OF_JOB=two words"]
    told = variables(explain(cluster, *options, env=env))
    task = cluster.srun(*options, "env", "-0", env=env).good()
    task = dict(variable.split("=", 1) for variable in task.split("\0") if "=" in variable)
    changing = {name for name in told if name.startswith(("SLURM_", "SLURMD_", "SRUN_"))}
    shown = {name: value.strip('"') for name, (value, _) in told.items() if name not in changing}
    real = {name: value for name, value in task.items() if name not in changing and not name.startswith("SLURM")}
    for name in ("TMPDIR", "_"):  # Slurm sets them when the task is in the container
        shown.pop(name, None), real.pop(name, None)
    equal(shown, real, "variables")
    origins = {name: told[name][1] for name in ("GREETER", "KEPT", "MINE", "OF_JOB", "HOME", "PATH", "SLURM_PROCID")}
    equal(origins, {"GREETER": "image", "KEPT": "job, kept", "MINE": "--container-env", "OF_JOB": "job", "HOME": "user",
                    "PATH": "image", "SLURM_PROCID": "slurm"}, "origins")
    equal(list(told), sorted(told), "order")


@test
def it_tells_no_secrets(cluster):
    done = explain(cluster, "--container-env=MY_PASSWORD=geheim1", env=["HF_TOKEN=geheim2", "aws_secret=geheim3", "API_KEY=geheim4", "NO_TOKEN="])
    expect("geheim" not in done.err, "a secret is told", done)
    equal(variables(done)["HF_TOKEN"], ("***", "job"), "HF_TOKEN", done)
    equal(variables(done)["NO_TOKEN"], ('""', "job"), "NO_TOKEN", done)


@test
def it_fetches_what_is_not_there_and_says_so(cluster):
    name, _ = cluster.faulty.publish(with_probe("explain-fetch", [("data", os.urandom(1000))]))
    done = explain(cluster, image=name)
    expect(any(line.startswith("pulling ") for line in done.messages()), "no word of it", done)
    equal([line for line in explain(cluster, "-w", "node01", image=name).messages() if line.startswith("pulling ")], [], "second time")


@test
def it_refuses_what_a_start_refuses(cluster):
    done = cluster.srun("--container-explain", "--container-mounts=/not/there", "true")
    equal(done.rc, 1, "exit code", done)
    expect(any("/not/there" in line for line in done.errors()), "no cause", done)


@test
def it_explains_a_batch_job_without_running_it(cluster):
    done = cluster.batch("#!/bin/sh\necho ran\n", "--container-image=registry:5000/suites/base:1", "--container-explain")
    equal(done.rc, 0, "exit code", done)
    expect("variable: " in done.out and "\nran" not in done.out, "not explained, or run", done)


@test
def its_twin_counts(cluster):
    done = cluster.srun("echo", "ran", env=["SCONTAINER_EXPLAIN=1"])
    done.good("")
    equal(len(said(done, "image")), 1, "explanations", done)


@test
def it_makes_and_takes_away_no_container_of_a_name(cluster):
    first = ("-w", "node01", "--container-name=explained")
    cluster.srun(*first, "--container-explain", "true").good()
    done = cluster.run("srun", *first, "true")
    expect("does not exist" in done.err, "the name exists after it was explained", done)
    cluster.srun(*first, "touch", "/kept").good()
    cluster.srun("-w", "node01", "--container-name=explained:replace", "--container-explain", "true").good()
    cluster.run("srun", *first, "test", "-e", "/kept").good()
