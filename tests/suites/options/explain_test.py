"""--container-explain: the resulting container and environment, without running anything."""
import json
import os
import re

from images import digest_of, with_probe
from harness import equal, expect, test
from site_files import rules

VARIABLE = re.compile(r'variable: +([^=]+)=(.*) \(([^()]*)\)$')


def explain(cluster, *options, command=("true",), **how):
    done = cluster.srun("--container-explain=all", *options, *command, **how)
    done.good("")
    return done


def said(done, key):
    """Returns the lines after `key`."""
    return [line[len(key) + 1:].strip() for line in done.messages() if line.startswith(key + ":")]


def variables(done):
    """Returns name -> (value as shown, origin)."""
    return {found[1]: (found[2], found[3]) for found in map(VARIABLE.match, done.messages()) if found}


@test
def explain_runs_nothing_and_every_task_exits_zero(cluster):
    mark = os.path.join(cluster.shared, "explained")
    done = explain(cluster, "-N2", "-n4", "--container-mounts=/home/shared", command=("touch", "/home/shared/explained"))
    expect(not os.path.exists(mark), "the command was run", done)
    equal(said(done, "command"), ['"touch" "/home/shared/explained"'], "command", done)
    equal(len(said(done, "image")), 1, "explanations", done)


@test
def explain_shows_image_and_its_settings(cluster):
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
def explain_shows_contents_of_image_files(cluster):
    found = said(explain(cluster), "found in it")
    equal(len(found), 1, "fact sheets")
    expect(re.search(r"(^|; )os Debian GNU/Linux 12", found[0]) and re.search(r"; libc glibc 2\.36(;|$)", found[0]), f"not what is in it: {found}")
    expect("cuda" not in found[0], f"what is not in it: {found}")


@test
def explain_shows_mounts_with_their_origin(cluster):
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
def explain_shows_task_variables_with_their_origin(cluster):
    options = ["--container-env=KEPT,MINE=1", "-n1"]
    env = ["GREETER=job", "KEPT=job", "OF_JOB=two words"]
    told = variables(explain(cluster, *options, env=env))
    task = cluster.srun(*options, "env", "-0", env=env).good()
    task = dict(variable.split("=", 1) for variable in task.split("\0") if "=" in variable)
    changing = {name for name in told if name.startswith(("SLURM_", "SLURMD_", "SRUN_", "_SLURM_SPANK_OPTION_"))}
    shown = {name: value.strip('"') for name, (value, _) in told.items() if name not in changing}
    real = {name: value for name, value in task.items() if name not in changing and not name.startswith("SLURM")}
    for name in ("TMPDIR", "_"):  # Slurm sets them after the task has entered the container
        shown.pop(name, None), real.pop(name, None)
    equal(shown, real, "variables")
    origins = {name: told[name][1] for name in ("GREETER", "KEPT", "MINE", "OF_JOB", "HOME", "PATH", "SLURM_PROCID")}
    equal(origins, {"GREETER": "image", "KEPT": "job, kept", "MINE": "--container-env", "OF_JOB": "job", "HOME": "user",
                    "PATH": "image", "SLURM_PROCID": "slurm"}, "origins")
    equal(list(told), sorted(told), "order")


@test
def explain_shows_no_secrets(cluster):
    done = explain(cluster, "--container-env=MY_PASSWORD=geheim1", env=["HF_TOKEN=geheim2", "aws_secret=geheim3", "API_KEY=geheim4", "NO_TOKEN=",
                                                                         "SCONTAINER_ENV=geheim5", "PYXIS_CONTAINER_ENV=geheim7", "_SLURM_SPANK_OPTION_other_key=geheim6"])
    expect("geheim" not in done.err, "a secret is told", done)
    equal(variables(done)["HF_TOKEN"], ("***", "job"), "HF_TOKEN", done)
    equal(variables(done)["NO_TOKEN"], ('""', "job"), "NO_TOKEN", done)


@test
def explain_prints_a_screen_by_default(cluster):
    done = cluster.srun("--container-explain", "--container-mounts=/home/shared:/shown:ro", "--container-env=MY_TOKEN=geheim", "true",
                        env=["GREETER=job", "SCONTAINER_READONLY=1", "OF_JOB=1"])
    done.good("")
    lines = done.messages()
    expect(len(lines) <= 24 and "geheim" not in done.err and "SLURM_" not in done.err, "not a screen", done)
    for key, text in (("mount", '"/home/shared" at "/shown", ro (--container-mounts)'), ("option", "--container-mounts=/home/shared:/shown:ro (option)"),
                      ("option", "--container-readonly (SCONTAINER_READONLY)"), ("option", "--container-env=MY_TOKEN (option)"),
                      ("changed", 'GREETER="base" (image)'), ("added", "EMPTY, IMAGE_ONLY (image)"),
                      ("added", "MY_TOKEN (--container-env)")):
        expect(text in said(done, key), f"no {key} {text}", done)
    expect(not any("built in" in line for line in said(done, "hook")), "idle hooks", done)


@test
def explain_as_json_is_on_standard_output(cluster):
    done = cluster.srun("--container-explain=json", "-N2", "-n4", "--container-mounts=/home/shared:/shown:ro+noexec", "true",
                        env=["MY_TOKEN=geheim"])
    equal(done.rc, 0, "exit code", done)
    document = json.loads(done.out)
    equal({"source": "/home/shared", "target": "/shown", "flags": ["ro", "noexec"], "asked_by": "--container-mounts"} in document["mounts"], True,
          "mounts", done)
    equal(document["environment"]["GREETER"], {"origin": "image", "over_image": False, "value": "base"}, "variable", done)
    equal("value" in document["environment"]["MY_TOKEN"], False, "a secret", done)
    keys = ("command entrypoint entrypoint_runs environment from fuse hooks image image_settings layers manifest mounts namespaces "
            "options removed_mounts user workdir writable")
    equal(" ".join(sorted(document)), keys, "keys", done)
    equal(document["user"], {"name": "alice", "uid": 2001, "gid": 2001, "home": "/home/alice", "root": False}, "user", done)
    equal({"option": "--container-mounts=/home/shared:/shown:ro+noexec", "source": "option"} in document["options"], True, "options", done)


@test
def explain_value_is_carried_to_batch_jobs_and_checked(cluster):
    done = cluster.batch("#!/bin/sh\necho ran\n", "--container-image=registry:5000/suites/base:1", "--container-explain=json")
    equal(json.loads(done.out[done.out.index("{"):])["image"], "registry:5000/suites/base:1", "JSON", done)
    done = cluster.srun("true", env=["SCONTAINER_EXPLAIN=all"])
    expect(variables(done), "not all variables", done)
    cluster.srun("echo", "ran", env=["SCONTAINER_EXPLAIN=0"]).good("ran\n")
    done = cluster.srun("--container-explain=some", "true")
    expect("hint: --container-explain, or --container-explain=all|json" in done.err, "no hint", done)


@test
def explain_names_keys_of_the_site(cluster):
    with rules(cluster, 'writable = false\nkeep_env = ["KEPT"]\n'):
        options = said(cluster.srun("--container-explain", "true"), "option")
    expect("writable=false (config.toml)" in options and "keep_env=KEPT (config.toml)" in options, f"not the keys: {options}")


@test
def explain_pulls_missing_image_and_reports_it(cluster):
    name, _ = cluster.faulty.publish(with_probe("explain-fetch", [("data", os.urandom(1000))]))
    done = explain(cluster, image=name)
    expect(any(line.startswith("pulling ") for line in done.messages()), "no word of it", done)
    equal([line for line in explain(cluster, "-w", "node01", image=name).messages() if line.startswith("pulling ")], [], "second time")


@test
def explain_fails_like_a_start(cluster):
    done = cluster.srun("--container-explain=all", "--container-mounts=/not/there", "true")
    equal(done.rc, 1, "exit code", done)
    expect(any("/not/there" in line for line in done.errors()), "no cause", done)


@test
def explain_of_batch_job_does_not_run_it(cluster):
    done = cluster.batch("#!/bin/sh\necho ran\n", "--container-image=registry:5000/suites/base:1", "--container-explain=all")
    equal(done.rc, 0, "exit code", done)
    expect("variable: " in done.out and "\nran" not in done.out, "not explained, or run", done)


@test
def explain_is_read_from_its_variable(cluster):
    done = cluster.srun("echo", "ran", env=["SCONTAINER_EXPLAIN=1"])
    done.good("")
    equal(len(said(done, "image")), 1, "explanations", done)


@test
def explain_neither_creates_nor_removes_named_containers(cluster):
    first = ("-w", "node01", "--container-name=explained")
    cluster.srun(*first, "--container-explain=all", "true").good()
    done = cluster.run("srun", *first, "true")
    expect("does not exist" in done.err, "the name exists after it was explained", done)
    cluster.srun(*first, "touch", "/kept").good()
    cluster.srun("-w", "node01", "--container-name=explained:replace", "--container-explain=all", "true").good()
    cluster.run("srun", *first, "test", "-e", "/kept").good()
