"""Errors of users: one line that names the item, the cause and the cure, exit code 1, an idle node
and no leftovers. The lines are in golden/errors.txt."""
import os

from functools import partial
from images import with_probe
from harness import GOLDEN, Golden, add, equal, expect, same_as_golden, test
from outcomes import outcome
from site_files import without_last_valid

QUICK = True

BASE = "registry:5000/suites/base:1"
IMAGE = f"--container-image={BASE}"


def answered(golden, done, lines=1):
    """Checks for one line (per node) and exit code 1."""
    equal((done.rc, len(done.errors())), (1, lines), "exit code and error lines", done)
    same_as_golden(golden, "".join(line + "\n" for line in sorted(set(done.errors()))), done)


def refused(cluster, golden, done, lines=1):
    """Checks the answer, that the nodes are in service and that the step left nothing behind."""
    answered(golden, done, lines)
    cluster.must_be_quiet(within=2)
    cluster.await_idle(3)


# --- at submission, before anything runs -----------------------------------------------------------------------------

EARLY = {
    "unknown_pull_policy": ["--container-image=registry:5000/suites/base:1", "--container-pull=sometimes"],
    # outcome 2 refused: repository with upper case, empty component, leading -
    "image_name_with_upper_case": ["--container-image=registry:5000/Suites/base:1"],
    # outcome 3 refused: tag too long, with / or blank
    "image_name_with_empty_tag": ["--container-image=registry:5000/suites/base:"],
    "image_name_with_space": ["--container-image=a b"],
    "image_name_with_unknown_scheme": ["--container-image=ftp://registry/base"],
    # outcome 10 refused: schemes without permission
    "image_name_as_url": ["--container-image=http://registry:5000/suites/base"],
    # outcome 4 refused: digest of wrong length, case, algorithm
    "image_name_with_bad_digest": ["--container-image=registry:5000/suites/base@sha256:123"],
    # outcome 6 refused: ports 0, 70000, abc; IPv6 is accepted
    "image_name_with_bad_port": ["--container-image=registry:99999/suites/base"],
    # outcome 7 refused: password in a reference
    "image_name_with_password": ["--container-image=alice:secret@registry:5000/suites/base"],
    "image_file_without_path": ["--container-image=image.sqsh"],
    "image_layout_without_path": ["--container-image=oci:"],
    # outcome 1 refused: empty image option; option twice
    "empty_image_name": ["--container-image="],
    # outcome 12 refused: mounts that cannot be meant; the others round-trip
    "mount_with_unknown_flag": [IMAGE, "--container-mounts=/home/shared:/mnt:rp"],
    "mount_with_empty_source": [IMAGE, "--container-mounts=:/mnt"],
    "mount_with_empty_target": [IMAGE, "--container-mounts=/home/shared:"],
    "mount_with_too_many_parts": [IMAGE, "--container-mounts=/home/shared:/mnt:ro:x"],
    "mount_with_relative_source": [IMAGE, "--container-mounts=data:/mnt"],
    "mount_with_relative_target": [IMAGE, "--container-mounts=/home/shared:mnt"],
    # outcome 12 refused: mounts that cannot be meant; the others round-trip
    "mount_on_the_root": [IMAGE, "--container-mounts=/home/shared:/"],
    # outcome 12 refused: mounts that cannot be meant; the others round-trip
    "unmount_of_the_root": [IMAGE, "--container-mounts=umount:/x/.."],
    "tmpfs_without_target": [IMAGE, "--container-mounts=tmpfs"],
    "tmpfs_with_invalid_size": [IMAGE, "--container-mounts=tmpfs:/mnt:size=8GiB"],
    # outcome 12 refused: mounts that cannot be meant; the others round-trip
    "tmpfs_larger_than_any_machine": [IMAGE, "--container-mounts=tmpfs:/mnt:size=18446744073709551617"],
    # outcome 12 refused: mounts that cannot be meant; the others round-trip
    "mount_with_unbalanced_quote": [IMAGE, "--container-mounts=\"/home/shared:/mnt"],
    "mount_with_x_move_flag": [IMAGE, "--container-mounts=/home/shared:/mnt:x-move"],
    "variable_list_with_empty_name": [IMAGE, "--container-env=A,,B"],
    # outcome 13 refused: variable's name with =, newline, leading digit
    "variable_pattern_with_value": [IMAGE, "--container-env=A*=b"],
    "empty_work_directory": [IMAGE, "--container-workdir="],
    # outcome 16 refused: save path of every wrong form
    "save_path_that_is_a_directory": [IMAGE, "--container-save=/home/shared/"],
    "writable_and_readonly_together": [IMAGE, "--container-writable", "--container-readonly"],
    "invalid_writable_size": [IMAGE, "--container-tmpfs-size=lots"],
    "home_in_contained_container": [IMAGE, "--container-contain", "--container-mount-home"],
    "mount_in_proc": [IMAGE, "--container-mounts=/home/shared:/proc/made"],
    "private_container_with_name": [IMAGE, "--container-private", "--container-name=x"],
    "home_and_no_home_together": [IMAGE, "--container-mount-home", "--no-container-mount-home"],
}


def refused_early(title, options, cluster):
    answered(title, cluster.run("srun", *options, "true"))
    batch = cluster.run("sbatch", *options, stdin="#!/bin/sh\n")
    expect(batch.rc == 1 and len(batch.errors()) == 1, "sbatch does not refuse it with one line", batch)
    equal(batch.out, "", "what sbatch submitted")


for title, options in EARLY.items():
    add(__name__, f"{title}_is_refused_at_submission", partial(refused_early, title, options))


@test
@outcome(14, "refused", "hostile option variables")
def twin_not_boolean_is_refused_at_submission(cluster):
    answered("twin_not_boolean", cluster.run("srun", IMAGE, "true", env=["SCONTAINER_READONLY=maybe"]))


@test
@outcome(14, "refused", "hostile option variables")
def twin_with_bad_image_is_refused_at_submission(cluster):
    answered("twin_with_bad_image", cluster.run("srun", "true", env=["PYXIS_CONTAINER_IMAGE=Bad"]))


@test
def salloc_with_bad_image_is_refused_at_submission(cluster):
    done = cluster.run("salloc", "--container-image=Bad", "true")
    expect(done.rc == 1 and len(done.errors()) == 1, "not refused with one line", done)


# --- on the nodes ----------------------------------------------------------------------------------------------------

LATE = {
    "unknown_repository": ["--container-image=registry:5000/suites/nothing:1"],
    "unknown_tag": ["--container-image=registry:5000/suites/base:nothing"],
    "unknown_digest": ["--container-image=registry:5000/suites/base@sha256:" + "0" * 64],
    # outcome 18 refused: no such host, refused connection, no route
    "unknown_registry": ["--container-image=registry.invalid/suites/base:1"],
    # outcome 18 refused: no such host, refused connection, no route
    "closed_registry_port": ["--container-image=registry:5999/suites/base:1"],
    # outcome 21 refused: 401 without credentials; Basic
    "registry_with_password": ["--container-image=registry:5001/suites/base:1"],
    "registry_without_tls": ["--container-image=head:5000/suites/base:1"],
    # outcome 19 refused: TLS of every wrong form
    "registry_with_unknown_certificate": ["--container-image=head:5443/suites/base:1"],
    "mount_with_missing_source": [IMAGE, "--container-mounts=/no/such/source:/mnt"],
    "mount_with_unreadable_source": [IMAGE, "--container-mounts=/home/bob/private:/mnt"],
    "directory_mounted_on_a_file": [IMAGE, "--container-mounts=/home/shared:/etc/issue"],
    "file_mounted_on_a_directory": [IMAGE, "--container-mounts=/etc/hosts:/etc"],
    "unmount_of_unmounted_path": [IMAGE, "--container-mounts=umount:/home"],
    "file_mounted_with_create_dir": [IMAGE, "--container-mounts=/etc/hosts:/mnt/x:x-create=dir"],
    "mount_in_sys": [IMAGE, "--container-mounts=/home/shared:/sys/made"],
    "missing_work_directory": [IMAGE, "--container-workdir=/no/such/directory"],
    # outcome 73 contained: work directory that is a link, missing, a file
    "work_directory_that_is_a_file": [IMAGE, "--container-workdir=/etc/issue"],
}


def refused_late(title, options, cluster):
    store = cluster.stores()
    refused(cluster, title, cluster.run("srun", *options, "true"))
    cluster.must_be_quiet(within=2, store=store)


for title, options in LATE.items():
    add(__name__, f"{title}_is_refused_by_the_step", partial(refused_late, title, options))


@test
def error_of_many_tasks_is_reported_once_with_node_names(cluster):
    done = cluster.run("srun", "-N2", "-n16", "--container-image=registry:5000/suites/base:nothing", "true")
    done.err = done.err.replace("node[01-02]: ", "")
    refused(cluster, "unknown_tag", done)


@test
def missing_work_directory_of_many_tasks_is_reported_once(cluster):
    done = cluster.run("srun", "-N2", "-n16", IMAGE, "--container-workdir=/no/such/directory", "true")
    done.err = done.err.replace("node[01-02]: ", "")
    refused(cluster, "missing_work_directory", done)


@test
def error_report_disabled_prints_one_line_per_node(cluster):
    with Config(cluster, "error_report = false\n"):
        done = cluster.run("srun", "-N2", "-n4", "--container-image=registry:5000/suites/base:nothing", "true")
        refused(cluster, "unknown_tag", done, lines=2)


@test
def failing_batch_job_prints_the_line_and_node_stays_up(cluster):
    done = cluster.batch("#!/bin/sh\ntrue\n", "--container-image=registry:5000/suites/base:nothing")
    done.err = done.out
    refused(cluster, "unknown_tag", done)


# --- the node --------------------------------------------------------------------------------------------------------

class Config:
    """A temporary config.toml with another text."""

    def __init__(self, cluster, text):
        self.path, self.text = os.path.join(cluster.etc, "spank-container/config.toml"), text

    def __enter__(self):
        self.before = open(self.path).read()
        self._write(self.text + self.before)

    def __exit__(self, *_):
        self._write(self.before)

    def _write(self, text):
        with open(self.path, "w") as file:
            file.write(text)


CONFIGS = {
    "unknown_key": "writeable = false\n",
    "wrong_value": 'pull = "sometimes"\n',
    "wrong_type": "tag_ttl = \"long\"\n",
    "syntax_error": "writable = \n",
    "unknown_registry_key": '[registries."other"]\ninsecur = true\n',
}


def bad_config(title, text, cluster):
    with Config(cluster, text), without_last_valid(cluster):
        refused(cluster, f"config_with_{title}", cluster.run("srun", IMAGE, "true"))
    cluster.run("srun", IMAGE, "true").good()


for title, text in CONFIGS.items():
    add(__name__, f"config_with_{title}_is_reported_with_line", partial(bad_config, title, text))


@test
def job_without_container_ignores_bad_config(cluster):
    with Config(cluster, "nonsense\n"):
        cluster.run("srun", "true").good()


@test
def blocked_registry_is_refused(cluster):
    with Config(cluster, '[registries."registry:5999"]\nblocked = true\n'):
        refused(cluster, "a_blocked_registry", cluster.run("srun", "--container-image=registry:5999/base", "true"))


@test
def stored_image_of_disallowed_registry_is_refused(cluster):
    for _ in range(2):  # the second one needs no import
        cluster.run("srun", IMAGE, "--container-pull=missing", "true").good()
    with Config(cluster, 'allowed_registries = ["elsewhere:5000"]\n'):
        refused(cluster, "a_registry_that_is_allowed_no_more", cluster.run("srun", IMAGE, "--container-pull=missing", "true"))
    cluster.run("srun", IMAGE, "--container-pull=missing", "true").good()


@test
def site_read_only_is_overridden_by_option(cluster):
    with Config(cluster, "writable = false\n"):
        cluster.bash("! touch /new").good()
        cluster.bash("touch /new", "--container-writable").good()


@test
def site_home_mount_is_overridden_by_option(cluster):
    with Config(cluster, "mount_home = true\n"):
        cluster.bash("grep -q ' /home/alice ' /proc/self/mountinfo").good()
        cluster.bash("! grep -q ' /home/alice ' /proc/self/mountinfo", "--no-container-mount-home").good()


class OtherStore:
    """A temporary replacement of a node's store. slurmd sets it up."""

    def __init__(self, cluster, options):
        self.cluster, self.options = cluster, options

    def __enter__(self):
        self.cluster.root("node01", "mount", "-t", "tmpfs", "-o", "mode=755," + self.options, "store", "/var/lib/spank-container").good()
        self.cluster.root("node01", "/usr/libexec/spank-container/agent", "setup", "998", "998").good()

    def __exit__(self, *_):
        self.cluster.root("node01", "umount", "-l", "/var/lib/spank-container").good()


def in_other_store(cluster, golden, image):
    equal(cluster.run("srun", "-w", "node01", f"--container-image={image}", "true").rc, 1, "exit code")
    done = cluster.run("srun", "-w", "node01", f"--container-image={image}", "true")
    answered(golden, done)


@test
@outcome(145, "refused", "no space at each write")
def store_without_space_is_refused_before_download(cluster):
    with OtherStore(cluster, "size=20M"):
        in_other_store(cluster, "a_store_without_room", BASE)
        equal(len(os.listdir(cluster.inside("node01", "/var/lib/spank-container/layers/sha256"))), 0, "layers in the full store")
    cluster.must_be_quiet(within=2)


@test
@outcome(145, "refused", "no space at each write")
def store_that_fills_up_is_reported_and_keeps_no_partial_layer(cluster):
    name, layers = cluster.faulty.publish(with_probe("grows", [("data", os.urandom(5_000_000))]))
    with OtherStore(cluster, "size=100M"):
        cluster.root("node01", "sh", "-c", "head -c 15000000 /dev/zero >/var/lib/spank-container/fill").good()
        gate = cluster.faulty.hold(layers[0])
        running = cluster.start_srun("-w", "node01", "true", image=name)
        running.await_text("pulling")
        cluster.root("node01", "sh", "-c", "head -c 200000000 /dev/zero >/var/lib/spank-container/fill")
        gate.set()
        done = running.end()
        answered("a_store_that_becomes_full", done)
        equal(os.listdir(cluster.inside("node01", "/var/lib/spank-container/layers/sha256")), [], "layers in the full store")
        cluster.root("node01", "rm", "/var/lib/spank-container/fill")
    cluster.must_be_quiet(within=2)


@test
@outcome(141, "refused", "store of wrong owner or mode, a link, read-only")
@outcome(149, "refused", "read-only; no O_TMPFILE")
def read_only_store_is_refused(cluster):
    with OtherStore(cluster, "size=200M"):
        cluster.root("node01", "mount", "-o", "remount,ro", "/var/lib/spank-container").good()
        in_other_store(cluster, "a_store_that_is_read_only", BASE)
    cluster.must_be_quiet(within=2)


@test
def read_only_store_starts_stored_images(cluster):
    """By tag, which is resolved at the registry, and by recorded answers, which cannot be updated
    now."""
    with OtherStore(cluster, "size=200M"):
        cluster.bash("true", "-w", "node01").good()
        cluster.root("node01", "mount", "-o", "remount,ro", "/var/lib/spank-container").good()
        cluster.bash("echo by tag", "-w", "node01").good("by tag")
        cluster.bash("echo from the store", "-w", "node01", "--container-pull=never").good("from the store")
        with Config(cluster, "tag_ttl = 1\npublic_ttl = 60\n"):
            cluster.bash("echo not noted", "-w", "node01").good("not noted")
    cluster.must_be_quiet(within=2)


@test
def store_never_set_up_is_refused(cluster):
    cluster.root("node01", "mount", "-t", "tmpfs", "store", "/var/lib/spank-container").good()
    try:
        done = cluster.run("srun", "-w", "node01", IMAGE, "true")
        answered("a_store_that_was_never_set_up", done)
    finally:
        cluster.root("node01", "umount", "-l", "/var/lib/spank-container").good()


@test
def missing_service_user_refuses_containers_but_slurmd_starts(cluster):
    passwd = cluster.inside("node01", "/etc/passwd")
    text = open(passwd).read()
    cluster.root("node01", "mount", "-t", "tmpfs", "-o", "mode=755", "store", "/var/lib/spank-container").good()
    try:
        with open(passwd, "w") as file:
            file.write("".join(line for line in text.splitlines(True) if not line.startswith("spank-container:")))
        cluster.program("restart", "node01").good()
        cluster.run("srun", "-w", "node01", "true").good()
        done = cluster.run("srun", "-w", "node01", IMAGE, "true")
        answered("a_node_without_service_user", done)
        said = [line for line in cluster.program("logs", "node01").out.splitlines() if "no user" in line]
        expect(said and "useradd" in said[-1], "slurmd.log does not say what is missing and how to get it")
    finally:
        with open(passwd, "w") as file:
            file.write(text)
        cluster.root("node01", "umount", "-l", "/var/lib/spank-container")
        cluster.program("restart", "node01").good()
    cluster.srun("-w", "node01", "true").good()


@test
def missing_agent_is_reported_without_draining_node(cluster):
    cluster.root("node01", "mount", "-t", "tmpfs", "none", "/usr/libexec/spank-container").good()
    try:
        done = cluster.run("srun", "-w", "node01", "-n4", IMAGE, "true")
        equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
        expect("/usr/libexec/spank-container/agent" in done.errors()[0], "the line does not say what is missing", done)
    finally:
        cluster.root("node01", "umount", "--lazy", "/usr/libexec/spank-container").good()
    cluster.must_be_quiet(within=2)


@test
def missing_import_is_reported_without_draining_node(cluster):
    cluster.root("node01", "mount", "--bind", "/dev/null", "/usr/libexec/spank-container/import").good()
    try:
        done = cluster.run("srun", "-w", "node01", "-n4", "--container-image=registry:5000/suites/base:other", "true")
        answered("a_missing_import", done)
    finally:
        cluster.root("node01", "umount", "--lazy", "/usr/libexec/spank-container/import").good()
    cluster.must_be_quiet(within=2)


@test
def error_lines_all_have_a_hint(_):
    """Errors at submission and in config.toml show the grammar. Errors on the node need a hint."""
    without = []
    for suite in sorted(name.removesuffix(".txt") for name in os.listdir(GOLDEN)):
        for title, text in Golden(suite).texts.items():
            if title not in EARLY and suite != "pyxis" and not title.startswith("config_with_") and "(hint: " not in text:
                without.append(title)
    equal(without, [], "messages without advice, in golden/")
