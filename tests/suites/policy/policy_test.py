"""Decisions of an administrator in config.toml and config.d, which users cannot bypass."""
import contextlib
import json
import os
import time

import local_files
from command import await_true
from errors_test import answered
from functools import partial
from harness import add, equal, expect, test
from images import INDEX, MANIFEST, digest_of, with_probe
from site_files import Files, rules, without_last_valid

IMAGE = "--container-image=registry:5000/suites/base:1"


# --- disabled options -----------------------------------------------------------------------------

@test
def disabled_option_is_refused_in_every_form(cluster):
    with rules(cluster, 'features_off = ["container-mounts", "container-mount-home"]\n'):
        answered("an_option_that_is_off", cluster.run("srun", IMAGE, "--container-mounts=/home/shared:/mnt", "true"))
        answered("an_option_that_is_off", cluster.run("srun", IMAGE, "true", env=["SCONTAINER_MOUNTS=/home/shared:/mnt"]))
        answered("an_option_that_is_off", cluster.run("srun", IMAGE, "true", env=["PYXIS_CONTAINER_MOUNTS=/home/shared:/mnt"]))
        # srun does not see variables that only the task's environment has.
        done = cluster.run("srun", "--export=ALL,SCONTAINER_MOUNTS=/home/shared:/mnt", IMAGE, "true")
        answered("an_option_that_is_off", done)
        expect("task 0: Exited" in done.err, "it is not the task that refused it", done)
        done = cluster.run("srun", "--export=ALL,PYXIS_CONTAINER_MOUNT_HOME=1", IMAGE, "true")
        expect("--container-mount-home: not allowed by this site" in done.err, "it is not refused", done)
        cluster.run("srun", IMAGE, "--no-container-mount-home", "--container-workdir=/tmp", "true").good()
        done = cluster.batch("#!/bin/sh\necho ran\n", IMAGE, "--export=ALL,SCONTAINER_MOUNTS=/home/shared:/mnt")
        expect(done.rc == 1 and "ran\n" not in done.out, "a batch job got around it", done)
    cluster.run("srun", IMAGE, "--container-mounts=/home/shared:/mnt", "true").good()


# --- directories for image files ------------------------------------------------------------------

@test
def image_files_are_restricted_to_allowed_directories(cluster):
    local_files.squashfs(cluster)
    allowed = os.path.join(cluster.shared, "allowed")
    os.makedirs(allowed, exist_ok=True)
    os.path.exists(f"{allowed}/good.sqsh") or os.link(f"{cluster.shared}/base.sqsh", f"{allowed}/good.sqsh")
    os.path.lexists(f"{allowed}/link.sqsh") or os.symlink("../base.sqsh", f"{allowed}/link.sqsh")
    with rules(cluster, 'allowed_paths = ["/nowhere", "/home/shared/allowed/"]\n'):
        def srun(image, **how):
            return cluster.run("srun", "-w", "node01", f"--container-image={image}", "true", **how)
        srun("/home/shared/allowed/good.sqsh").good()
        srun("/home/shared/../shared/allowed/good.sqsh").good()
        srun(IMAGE.split("=")[1]).good()
        answered("an_image_file_elsewhere", srun("/home/shared/base.sqsh"))
        answered("a_link_to_an_image_file_elsewhere", srun("/home/shared/allowed/link.sqsh"))
        answered("an_image_archive_elsewhere", srun("oci-archive:/home/shared/base.sqsh"))
        answered("an_image_directory_elsewhere", srun("/usr"))
        answered("an_image_of_podman_where_places_are_set", srun("podman://base"))
        answered("an_image_file_elsewhere", cluster.run("srun", "-w", "node01", "true", env=["SCONTAINER_IMAGE=/home/shared/base.sqsh"]))


# --- mounts and defaults ---------------------------------------------------------------------------------------------

@test
def site_mounts_are_in_every_container(cluster):
    local_files.put(os.path.join(cluster.shared, "site/file"), "of the site\n")
    with rules(cluster, 'mounts = ["/home/shared/site:/opt/site:ro", "/home/missing:/x:nofail"]\n'):
        cluster.run("srun", IMAGE, "cat", "/opt/site/file").good("of the site")
        done = cluster.run("srun", IMAGE, "--container-mounts=/home/shared:/opt/site", "cat", "/opt/site/site/file")
        done.good("of the site")
    with rules(cluster, 'mounts = ["/home/missing:/x"]\n'):
        answered("a_mount_of_the_site_whose_source_is_missing", cluster.run("srun", IMAGE, "true"))
    with rules(cluster, 'mounts = ["/home/shared:/x:rp"]\n'), without_last_valid(cluster):
        answered("a_mount_of_the_site_with_an_unknown_flag", cluster.run("srun", IMAGE, "true"))


@test
def site_namespaces_are_unshared_in_every_container(cluster):
    read = ["readlink", "/proc/self/ns/ipc", "/proc/self/ns/uts"]
    node = cluster.run("srun", "-w", "node01", IMAGE, *read).good().splitlines()
    with rules(cluster, 'unshare = ["ipc"]\n'):
        found = cluster.run("srun", "-w", "node01", IMAGE, *read).good().splitlines()
        equal([link in node for link in found], [False, True], "which namespaces are the node's")
        found = cluster.run("srun", "-w", "node01", IMAGE, "--container-unshare=uts", *read).good().splitlines()
        equal([link in node for link in found], [False, False], "which namespaces are the node's, one by the option")
    with rules(cluster, 'unshare = ["mnt"]\n'), without_last_valid(cluster):
        answered("a_namespace_of_the_site_that_is_none", cluster.run("srun", "-w", "node01", IMAGE, "true"))


@test
def site_environment_is_in_every_container(cluster):
    with rules(cluster, 'env = ["OF_THE_SITE=two words", "GREETER=site"]\nkeep_env = ["KEPT_*"]\n'):
        script = 'echo "$OF_THE_SITE/$GREETER/$KEPT_HERE"'
        done = cluster.run("srun", "-n2", IMAGE, "sh", "-c", script, env=["KEPT_HERE=job", "GREETER=job"])
        done.good("two words/site/job\ntwo words/site/job")
        done = cluster.run("srun", IMAGE, "--container-env=GREETER", "sh", "-c", script, env=["GREETER=job"])
        done.good("two words/job/")


# --- drop-ins --------------------------------------------------------------------------------------------------------

@test
def drop_in_applies_from_the_next_step_while_present(cluster):
    step = ["srun", "-w", "node01", IMAGE, "sh", "-c", "touch /usr/x 2> /dev/null && echo writable || echo read-only"]
    cluster.run(*step).good("writable")
    with Files(cluster, {"spank-container/config.d/10-a.toml": "writable = false\n"}) as files:
        cluster.run(*step).good("read-only")
        files.write("spank-container/config.d/20-b.toml", "writable = true\n")
        cluster.run(*step).good("writable")
        files.write("spank-container/config.d/20-b.toml", "writable = not\n")
        with without_last_valid(cluster):
            answered("config_with_a_syntax_error_in_a_drop_in", cluster.run(*step))
        os.rename(files.path("spank-container/config.d/20-b.toml"), files.path("spank-container/config.d/20-b.toml.off"))
        cluster.run(*step).good("read-only")
    cluster.run(*step).good("writable")


# --- owners and modes ------------------------------------------------------------------------------------------------

def loosen(path, mode=None, owner=None):
    """Loosens the mode. Returns a function that restores it."""
    before = os.stat(path)
    if mode is not None:
        os.chmod(path, mode)
    if owner is not None:
        os.chown(path, owner, -1)
    return lambda: (os.chown(path, before.st_uid, before.st_gid), os.chmod(path, before.st_mode & 0o7777))


LOOSE = {
    "group_writable_configuration": ("spank-container/config.toml", {"mode": 0o664}),
    "configuration_of_another_user": ("spank-container/config.toml", {"owner": 2001}),
    "world_writable_drop_in": ("spank-container/config.d/50-test.toml", {"mode": 0o666}),
    "world_writable_drop_in_directory": ("spank-container/config.d", {"mode": 0o777}),
    "drop_in_directory_of_another_user": ("spank-container/config.d", {"owner": 2001}),
    "group_writable_configuration_directory": ("spank-container", {"mode": 0o775}),
}


def refused_if_loose(title, name, change, cluster):
    with rules(cluster, "tag_ttl = 0\n") as files:
        undo = loosen(files.path(name), **change)
        try:
            answered(title, cluster.run("srun", "-w", "node01", IMAGE, "true"))
        finally:
            undo()
        cluster.run("srun", "-w", "node01", IMAGE, "true").good()


for title, (name, change) in LOOSE.items():
    add(__name__, f"{title}_is_refused", partial(refused_if_loose, title, name, change))


@test
def world_writable_ancestor_directory_is_refused(cluster):
    undo = loosen(cluster.etc, mode=0o775)
    try:
        with rules(cluster, "tag_ttl = 0\n"):  # unchanged files are not read again
            answered("a_directory_further_up_that_others_can_write", cluster.run("srun", "-w", "node01", IMAGE, "true"))
    finally:
        undo()


@test
def kept_policy_is_owned_by_root_and_readable_by_all(cluster):
    cluster.run("srun", "-w", "node01", IMAGE, "true").good()
    status = os.stat(cluster.inside("node01", "/run/spank-container/policy"))
    equal((status.st_uid, status.st_mode & 0o777), (0, 0o644), "owner and mode")


# --- at submission ---------------------------------------------------------------------------------------------------

def submitted(cluster):
    """Returns whether a job was submitted, judged by the number of the next job."""
    return int(cluster.run("sh", "-c", "sbatch --parsable -o /dev/null --wrap=true").good())


@test
def disallowed_by_config_is_refused_at_submission(cluster):
    with rules(cluster, 'features_off = ["container-mounts"]\n[registries."registry:5999"]\nblocked = true\n'):
        before = submitted(cluster)
        answered("an_option_that_is_off", cluster.run("srun", IMAGE, "--container-mounts=/home/shared:/mnt", "true"))
        for command in (["sbatch", "-o", "/dev/null"], ["salloc"]):
            done = cluster.run(*command, IMAGE, "--container-mounts=/home/shared:/mnt", stdin="#!/bin/sh\n")
            expect(done.rc == 1 and done.errors() == done.messages() and len(done.errors()) == 1, "it is not refused with one line", done)
        answered("a_blocked_registry", cluster.run("srun", "--container-image=registry:5999/base", "true"))
        equal(submitted(cluster), before + 1, "the number of the next job")


@test
def image_missing_in_registry_is_refused_at_submission(cluster):
    unknown = "--container-image=registry:5000/suites/base:nothing"
    with rules(cluster, "check_at_submit = true\n"):
        before = submitted(cluster)
        answered("an_unknown_tag", cluster.run("srun", unknown, "true"))
        done = cluster.run("sbatch", "-o", "/dev/null", unknown, stdin="#!/bin/sh\n")
        expect(done.rc == 1 and len(done.errors()) == 1, "sbatch does not refuse it", done)
        equal(submitted(cluster), before + 1, "the number of the next job")
        cluster.run("srun", IMAGE, "true").good()
        # A node may have an image that the registry lacks, so the node decides. The same holds for
        # a registry that cannot be reached from here.
        done = cluster.run("srun", unknown, "--container-pull=never", "true")
        expect(done.rc == 1 and "not on this node" in done.err, "the registry was asked", done)


@test
def image_for_nodes_of_other_architecture_is_submitted(cluster):
    """An index of one image. The submitting host implies nothing about the nodes."""
    manifest = with_probe("policy-other", [("content", b"other\n")]).parts()[0]
    cluster.faulty.manifests["suites/policy-other:1"] = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [
        {"mediaType": MANIFEST, "digest": digest_of(manifest), "size": len(manifest), "platform": {"os": "linux", "architecture": "s390x"}}]}).encode()
    image = f"--container-image={cluster.faulty.host}/suites/policy-other:1"
    with rules(cluster, "check_at_submit = true\n"):
        cluster.run("sbatch", "-o", "/dev/null", image, stdin="#!/bin/sh\n").good()
        done = cluster.run("srun", image, "true")
        expect(done.rc == 1 and "only for linux/s390x (hint: choose a tag built for linux/" in done.err, "a node does not refuse it", done)


@contextlib.contextmanager
def observed_tool(cluster):
    """Replaces scontainer on the head by a script that records its start and runs scontainer."""
    tool, real, seen = "/usr/bin/scontainer", "/home/shared/observed/bin/scontainer", os.path.join(cluster.shared, "started")
    script = os.path.join(cluster.shared, "observed-scontainer")
    local_files.put(seen, "")
    os.chmod(seen, 0o666)
    local_files.put(script, f"#!/bin/sh\necho $1 >> /home/shared/started\nexec {real} \"$@\"\n")
    os.chmod(script, 0o755)
    # In the directory where it looks for the other programs.
    cluster.root("head", "sh", "-euc", f'mkdir -p "${{1%/*}}"; cp "$0" "$1"; ln -sfn /usr/libexec "${{1%/*}}/../libexec"', tool, real).good()
    cluster.root("head", "mount", "--bind", "/home/shared/observed-scontainer", tool).good()
    try:
        yield lambda: open(seen).read().split()
    finally:
        cluster.root("head", "umount", "--lazy", tool).good()


@test
def srun_checks_the_policy_without_starting_programs(cluster):
    mounts = ("srun", IMAGE, "--container-mounts=/home/shared:/mnt", "true")
    with observed_tool(cluster) as started:
        with rules(cluster, 'features_off = ["container-mounts"] # TOML\n[registries."registry:5999"]\nblocked = true\n'):
            answered("an_option_that_is_off", cluster.run(*mounts))
            answered("a_blocked_registry", cluster.run("srun", "--container-image=registry:5999/base", "true"))
            cluster.run("srun", IMAGE, "true").good()
        # Less common forms of TOML.
        with rules(cluster, 'features_off = ["""container-mounts"""]\nregistries."registry:5999" = { blocked = true }\n'):
            answered("an_option_that_is_off", cluster.run(*mounts))
            answered("a_blocked_registry", cluster.run("srun", "--container-image=registry:5999/base", "true"))
        equal(started(), [], "what was started")
        with rules(cluster, "check_at_submit = true\n"):
            cluster.run("srun", IMAGE, "true").good()
        equal(started(), ["submit-check"], "what was started with check_at_submit")


@test
def site_program_gets_the_image_at_submission(cluster):
    told = os.path.join(cluster.shared, "told-at-submit")
    program = os.path.join(cluster.etc, "spank-container/at-submit")
    local_files.put(program, "#!/bin/sh\necho \"$# $1 $(id -un) $(ps -o sid= -p $$) $$ $(pwd) $(readlink /proc/$$/fd/0 /proc/$$/fd/1 | sort -u)\" >>/home/shared/told-at-submit\nsleep 3\n")
    os.chmod(program, 0o755)
    local_files.put(told, "")
    os.chmod(told, 0o666)
    begun = lambda: [line.split() for line in open(told).read().splitlines()]
    try:
        with rules(cluster, '[shared]\npull_at_submit = "/etc/spank-container/at-submit"\n'):
            began = time.monotonic()
            job = cluster.submit(f"#!/bin/sh\n#SBATCH {IMAGE}\nsrun true\n")
            expect(time.monotonic() - began < 2.5, "sbatch waits for it")
            await_true(lambda: begun(), 5, "it was not started")
            words, image, who, session, process, directory, files = begun()[0]
            equal((words, image, who, directory, files), ("1", "registry:5000/suites/base:1", "alice", "/", "/dev/null"), "how it was started")
            equal(session, process, "its session")
            cluster.run("srun", IMAGE, "true").good()
            await_true(lambda: len(begun()) == 2, 5, "srun outside of a job has not started it")
            cluster.await_job(job)
            # Excluded are steps of jobs, refused requests, and those that need no registry.
            cluster.run("salloc", "-n1", "srun", IMAGE, "true").good()
            local_files.squashfs(cluster)
            cluster.run("srun", "--container-image=/home/shared/base.sqsh", "true").good()
            cluster.run("srun", IMAGE, "--container-pull=never", "true").good()
            cluster.run("srun", "true").good()
            expect(cluster.run("sbatch", "-o", "/dev/null", IMAGE, "--container-mounts=:", stdin="#!/bin/sh\n").rc == 1, "it was not refused")
            time.sleep(0.5)
            equal(len(begun()), 2, f"how often it was started: {begun()}")
        cluster.run("sbatch", "-o", "/dev/null", IMAGE, stdin="#!/bin/sh\n").good()
        equal(len(begun()), 2, "how often it was started, with the key gone")
    finally:
        os.unlink(program)
        os.unlink(told)


# --- recorded state -------------------------------------------------------------------------------

@test
def image_digest_is_known_to_tasks_and_log(cluster):
    index = json.load(open(os.path.join(cluster.base_layout, "index.json")))
    digest = index["manifests"][0]["digest"]
    done = cluster.run("srun", "-N2", "-n4", IMAGE, "sh", "-c", 'echo "$SCONTAINER_IMAGE_NAME $SCONTAINER_IMAGE_DIGEST $SLURM_JOB_ID"')
    name, told, job = done.good().splitlines()[0].split()
    equal(done.out.splitlines(), [f"registry:5000/suites/base:1 {digest} {job}"] * 4, "output", done)
    expect("digest" not in done.err, "the user is told what is for the log", done)
    for node in ("node01", "node02"):
        log = cluster.program("logs", node).good()
        lines = [line for line in log.splitlines() if f"start job={job} " in line]
        equal(len(lines), 1, f"lines about the start in the log of {node}")
        for part in ("step=0", f"node={node}", "user=alice", 'image="registry:5000/suites/base:1"', f"digest={digest}", "import_ms=", "start_ms="):
            expect(f" {part}" in lines[0], f"the line lacks {part}: {lines[0]}")
    local_files.squashfs(cluster)
    cluster.run("srun", "-w", "node01", "--container-image=/home/shared/base.sqsh", "sh", "-c", "echo ${SCONTAINER_IMAGE_DIGEST-unset}",
                env=["SCONTAINER_IMAGE_DIGEST=of-another"]).good("unset")


# --- last valid configuration ---------------------------------------------------------------------

@test
def broken_configuration_keeps_last_valid_one(cluster):
    fresh = [with_probe("kept", [("data", os.urandom(100))]) for _ in range(3)]
    broken = {"unknown": ('env = ["KEPT=new"]\nwritabel = true\n', 'line 2: writabel: unknown key (hint: did you mean "writable"?)'),
              "flag": ('env = ["KEPT=new"]\nmounts = ["/home/shared:/x:rp"]\n', 'line 2: mounts: "/home/shared:/x:rp": unknown flag "rp"'),
              "half": ('env = ["KEPT=new"\n', "not valid TOML")}
    with rules(cluster, 'env = ["KEPT=kept"]\nwritable = false\n') as files:
        image = ("srun", "-w", "node01", IMAGE, "sh", "-c", "echo $KEPT; ! touch /new")
        cluster.run(*image).good("kept")
        for number, (text, error) in enumerate(broken.values()):
            files.write("spank-container/config.d/50-test.toml", text)
            done = cluster.run(*image)
            done.good("kept")
            equal(done.err.count(error), 1, "times that srun prints the error", done)
            # The import process reads the registry's settings from the kept files.
            name = cluster.name_of(fresh[number])
            cluster.run("srun", "-w", "node01", f"--container-image={name}", "/probe", "/data").good()
            logged = cluster.root("node01", "grep", "last valid configuration in use", "/var/log/slurm/slurmd.log").good().splitlines()
            expect(error in logged[-1] and "50-test.toml" in logged[-1], f"slurmd's log: {logged[-1]}")
            health = cluster.root("node01", "scontainer", "doctor", "--node")
            expect(health.rc == 3 and "warning config.toml: " in health.out and error in health.out, "doctor", health)
        with without_last_valid(cluster):
            done = cluster.run(*image)
            expect(done.rc != 0 and "not valid TOML" in done.err and "kept" not in done.out, "without a copy it starts", done)


@test
def broken_configuration_is_refused_without_keep_last_valid(cluster):
    srun = ("srun", "-w", "node01", IMAGE, "true")
    with rules(cluster, "keep_last_valid = false\n") as files:
        cluster.run(*srun).good()
        files.write("spank-container/config.d/50-test.toml", "writabel = true\n")
        done = cluster.run(*srun)
        expect(done.rc != 0 and "writabel: unknown key" in done.err, "it starts", done)


@test
def untrusted_configuration_is_refused_despite_a_copy(cluster):
    srun = ("srun", "-w", "node01", IMAGE, "true")
    with rules(cluster, "writable = true\n") as files:
        cluster.run(*srun).good()
        files.write("spank-container/config.d/50-test.toml", "writabel = true\n")
        os.chmod(files.path("spank-container/config.d/50-test.toml"), 0o666)
        done = cluster.run(*srun)
        expect(done.rc != 0 and "is writable by others" in done.err, "it starts", done)
