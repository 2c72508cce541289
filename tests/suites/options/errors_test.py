"""What a user gets for a mistake: one line that names the item, the cause and the cure; exit code 1; an idle node; and
nothing left behind. The lines are in golden/errors.txt."""
import os

from functools import partial
from images import with_probe
from harness import GOLDEN, Golden, add, equal, expect, same_as_golden, test

QUICK = True

BASE = "registry:5000/suites/base:1"
IMAGE = f"--container-image={BASE}"


def answered(golden, done, lines=1):
    """One line (per node) and exit code 1."""
    equal((done.rc, len(done.errors())), (1, lines), "exit code and error lines", done)
    same_as_golden(golden, "".join(line + "\n" for line in sorted(set(done.errors()))), done)


def refused(cluster, golden, done, lines=1):
    """So answered, with the nodes in order and nothing left of the step."""
    answered(golden, done, lines)
    cluster.must_be_quiet(within=2)
    cluster.await_idle(3)


# --- at submission, before anything runs -----------------------------------------------------------------------------

EARLY = {
    "a_pull_policy_that_is_none": ["--container-image=registry:5000/suites/base:1", "--container-pull=sometimes"],
    "an_image_name_with_upper_case": ["--container-image=registry:5000/Suites/base:1"],
    "an_image_name_with_an_empty_tag": ["--container-image=registry:5000/suites/base:"],
    "an_image_name_with_a_space": ["--container-image=a b"],
    "an_image_name_with_a_strange_scheme": ["--container-image=ftp://registry/base"],
    "an_image_name_that_is_a_url": ["--container-image=http://registry:5000/suites/base"],
    "an_image_name_with_a_bad_digest": ["--container-image=registry:5000/suites/base@sha256:123"],
    "an_image_name_with_a_bad_port": ["--container-image=registry:99999/suites/base"],
    "an_image_name_with_a_password": ["--container-image=alice:secret@registry:5000/suites/base"],
    "an_image_file_named_without_its_path": ["--container-image=image.sqsh"],
    "an_image_layout_without_its_path": ["--container-image=oci:"],
    "an_empty_image_name": ["--container-image="],
    "a_mount_with_an_unknown_flag": [IMAGE, "--container-mounts=/home/shared:/mnt:rp"],
    "a_mount_with_an_empty_source": [IMAGE, "--container-mounts=:/mnt"],
    "a_mount_with_an_empty_target": [IMAGE, "--container-mounts=/home/shared:"],
    "a_mount_with_too_many_parts": [IMAGE, "--container-mounts=/home/shared:/mnt:ro:x"],
    "a_mount_whose_source_is_no_path": [IMAGE, "--container-mounts=data:/mnt"],
    "a_mount_whose_target_is_no_path": [IMAGE, "--container-mounts=/home/shared:mnt"],
    "a_mount_on_the_root": [IMAGE, "--container-mounts=/home/shared:/"],
    "an_unmount_of_the_root": [IMAGE, "--container-mounts=umount:/x/.."],
    "a_tmpfs_without_a_target": [IMAGE, "--container-mounts=tmpfs"],
    "a_tmpfs_of_a_size_that_is_none": [IMAGE, "--container-mounts=tmpfs:/mnt:size=8GiB"],
    "a_tmpfs_of_more_than_any_machine": [IMAGE, "--container-mounts=tmpfs:/mnt:size=18446744073709551617"],
    "a_mount_with_half_a_quote": [IMAGE, "--container-mounts=\"/home/shared:/mnt"],
    "a_mount_that_is_to_be_moved": [IMAGE, "--container-mounts=/home/shared:/mnt:x-move"],
    "a_list_of_variables_with_an_empty_name": [IMAGE, "--container-env=A,,B"],
    "a_pattern_with_a_value": [IMAGE, "--container-env=A*=b"],
    "an_empty_work_directory": [IMAGE, "--container-workdir="],
    "a_save_path_that_is_a_directory": [IMAGE, "--container-save=/home/shared/"],
    "writable_and_read_only_together": [IMAGE, "--container-writable", "--container-readonly"],
    "a_size_that_is_none": [IMAGE, "--container-tmpfs-size=lots"],
    "home_in_a_contained_container": [IMAGE, "--container-contain", "--container-mount-home"],
    "a_mount_in_proc": [IMAGE, "--container-mounts=/home/shared:/proc/made"],
    "private_containers_with_a_name": [IMAGE, "--container-private", "--container-name=x"],
    "home_and_no_home_together": [IMAGE, "--container-mount-home", "--no-container-mount-home"],
}


def refused_early(title, options, cluster):
    answered(title, cluster.run("srun", *options, "true"))
    batch = cluster.run("sbatch", *options, stdin="#!/bin/sh\n")
    expect(batch.rc == 1 and len(batch.errors()) == 1, "sbatch does not refuse it with one line", batch)
    equal(batch.out, "", "what sbatch submitted")


for title, options in EARLY.items():
    add(__name__, f"{title}_is_refused_before_submission", partial(refused_early, title, options))


@test
def a_twin_that_is_not_a_boolean_is_refused_before_submission(cluster):
    answered("a_twin_that_is_not_a_boolean", cluster.run("srun", IMAGE, "true", env=["SCONTAINER_READONLY=maybe"]))


@test
def a_twin_with_a_bad_image_is_refused_before_submission(cluster):
    answered("a_twin_with_a_bad_image", cluster.run("srun", "true", env=["PYXIS_CONTAINER_IMAGE=Bad"]))


@test
def salloc_refuses_a_bad_image_before_submission(cluster):
    done = cluster.run("salloc", "--container-image=Bad", "true")
    expect(done.rc == 1 and len(done.errors()) == 1, "not refused with one line", done)


# --- on the nodes ----------------------------------------------------------------------------------------------------

LATE = {
    "an_unknown_repository": ["--container-image=registry:5000/suites/nothing:1"],
    "an_unknown_tag": ["--container-image=registry:5000/suites/base:nothing"],
    "an_unknown_digest": ["--container-image=registry:5000/suites/base@sha256:" + "0" * 64],
    "an_unknown_registry": ["--container-image=registry.invalid/suites/base:1"],
    "a_port_where_nobody_listens": ["--container-image=registry:5999/suites/base:1"],
    "a_registry_that_wants_a_password": ["--container-image=registry:5001/suites/base:1"],
    "a_registry_that_speaks_no_tls": ["--container-image=head:5000/suites/base:1"],
    "a_registry_whose_certificate_is_unknown": ["--container-image=head:5443/suites/base:1"],
    "a_mount_whose_source_is_missing": [IMAGE, "--container-mounts=/no/such/source:/mnt"],
    "a_mount_whose_source_is_shut": [IMAGE, "--container-mounts=/home/bob/private:/mnt"],
    "a_directory_mounted_on_a_file": [IMAGE, "--container-mounts=/home/shared:/etc/issue"],
    "a_file_mounted_on_a_directory": [IMAGE, "--container-mounts=/etc/hosts:/etc"],
    "an_unmount_of_what_is_not_mounted": [IMAGE, "--container-mounts=umount:/home"],
    "a_file_mounted_where_a_directory_is_asked_for": [IMAGE, "--container-mounts=/etc/hosts:/mnt/x:x-create=dir"],
    "a_mount_in_sys": [IMAGE, "--container-mounts=/home/shared:/sys/made"],
    "a_work_directory_that_is_missing": [IMAGE, "--container-workdir=/no/such/directory"],
    "a_work_directory_that_is_a_file": [IMAGE, "--container-workdir=/etc/issue"],
}


def refused_late(title, options, cluster):
    store = cluster.stores()
    refused(cluster, title, cluster.run("srun", *options, "true"))
    cluster.must_be_quiet(within=2, store=store)


for title, options in LATE.items():
    add(__name__, f"{title}_is_refused_by_the_step", partial(refused_late, title, options))


@test
def many_tasks_say_it_once_and_name_the_nodes(cluster):
    done = cluster.run("srun", "-N2", "-n16", "--container-image=registry:5000/suites/base:nothing", "true")
    done.err = done.err.replace("node[01-02]: ", "")
    refused(cluster, "an_unknown_tag", done)


@test
def many_tasks_say_once_that_the_work_directory_is_missing(cluster):
    done = cluster.run("srun", "-N2", "-n16", IMAGE, "--container-workdir=/no/such/directory", "true")
    done.err = done.err.replace("node[01-02]: ", "")
    refused(cluster, "a_work_directory_that_is_missing", done)


@test
def where_errors_are_not_gathered_every_node_says_its_own(cluster):
    with Config(cluster, "error_report = false\n"):
        done = cluster.run("srun", "-N2", "-n4", "--container-image=registry:5000/suites/base:nothing", "true")
        refused(cluster, "an_unknown_tag", done, lines=2)


@test
def a_batch_job_fails_with_the_line_and_leaves_the_node_in_order(cluster):
    done = cluster.batch("#!/bin/sh\ntrue\n", "--container-image=registry:5000/suites/base:nothing")
    done.err = done.out
    refused(cluster, "an_unknown_tag", done)


# --- the node --------------------------------------------------------------------------------------------------------

class Config:
    """config.toml with another text, for a while."""

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
    "an_unknown_key": "writeable = false\n",
    "a_key_with_a_wrong_value": 'pull = "sometimes"\n',
    "a_key_with_a_wrong_type": "tag_ttl = \"long\"\n",
    "a_syntax_error": "writable = \n",
    "an_unknown_key_of_a_registry": '[registries."other"]\ninsecur = true\n',
}


def bad_config(title, text, cluster):
    with Config(cluster, text):
        refused(cluster, f"config_with_{title}", cluster.run("srun", IMAGE, "true"))
    cluster.run("srun", IMAGE, "true").good()


for title, text in CONFIGS.items():
    add(__name__, f"a_config_with_{title}_is_named_with_file_and_line", partial(bad_config, title, text))


@test
def a_job_without_container_does_not_mind_a_bad_config(cluster):
    with Config(cluster, "nonsense\n"):
        cluster.run("srun", "true").good()


@test
def a_registry_that_the_site_has_blocked_is_refused(cluster):
    with Config(cluster, '[registries."registry:5999"]\nblocked = true\n'):
        refused(cluster, "a_blocked_registry", cluster.run("srun", "--container-image=registry:5999/base", "true"))


@test
def an_image_that_is_there_is_refused_when_the_site_allows_its_registry_no_more(cluster):
    for _ in range(2):  # the second one needs no import any more
        cluster.run("srun", IMAGE, "--container-pull=missing", "true").good()
    with Config(cluster, 'allowed_registries = ["elsewhere:5000"]\n'):
        refused(cluster, "a_registry_that_is_allowed_no_more", cluster.run("srun", IMAGE, "--container-pull=missing", "true"))
    cluster.run("srun", IMAGE, "--container-pull=missing", "true").good()


@test
def read_only_by_the_site_is_undone_by_the_option(cluster):
    with Config(cluster, "writable = false\n"):
        cluster.bash("! touch /new").good()
        cluster.bash("touch /new", "--container-writable").good()


@test
def home_by_the_site_is_undone_by_the_option(cluster):
    with Config(cluster, "mount_home = true\n"):
        cluster.bash("grep -q ' /home/alice ' /proc/self/mountinfo").good()
        cluster.bash("! grep -q ' /home/alice ' /proc/self/mountinfo", "--no-container-mount-home").good()


class OtherStore:
    """Another store in place of a node's, for a while; slurmd sets it up."""

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
def a_store_without_room_is_refused_before_the_download(cluster):
    with OtherStore(cluster, "size=20M"):
        in_other_store(cluster, "a_store_without_room", BASE)
        equal(len(os.listdir(cluster.inside("node01", "/var/lib/spank-container/layers/sha256"))), 0, "layers in the full store")
    cluster.must_be_quiet(within=2)


@test
def a_store_that_becomes_full_is_told_and_keeps_no_part_of_a_layer(cluster):
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
def a_store_that_is_read_only_is_refused(cluster):
    with OtherStore(cluster, "size=200M"):
        cluster.root("node01", "mount", "-o", "remount,ro", "/var/lib/spank-container").good()
        in_other_store(cluster, "a_store_that_is_read_only", BASE)
    cluster.must_be_quiet(within=2)


@test
def what_a_read_only_store_has_starts(cluster):
    """By its tag, which the registry is asked for, and by what is noted of such answers and cannot be now."""
    with OtherStore(cluster, "size=200M"):
        cluster.bash("true", "-w", "node01").good()
        cluster.root("node01", "mount", "-o", "remount,ro", "/var/lib/spank-container").good()
        cluster.bash("echo by tag", "-w", "node01").good("by tag")
        cluster.bash("echo from the store", "-w", "node01", "--container-pull=never").good("from the store")
        with Config(cluster, "tag_ttl = 1\npublic_ttl = 60\n"):
            cluster.bash("echo not noted", "-w", "node01").good("not noted")
    cluster.must_be_quiet(within=2)


@test
def a_store_that_was_never_set_up_is_refused(cluster):
    cluster.root("node01", "mount", "-t", "tmpfs", "store", "/var/lib/spank-container").good()
    try:
        done = cluster.run("srun", "-w", "node01", IMAGE, "true")
        answered("a_store_that_was_never_set_up", done)
    finally:
        cluster.root("node01", "umount", "-l", "/var/lib/spank-container").good()


@test
def a_node_without_service_user_starts_slurmd_and_refuses_containers_only(cluster):
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
def a_missing_agent_is_told_and_does_not_drain_the_node(cluster):
    cluster.root("node01", "mount", "-t", "tmpfs", "none", "/usr/libexec/spank-container").good()
    try:
        done = cluster.run("srun", "-w", "node01", "-n4", IMAGE, "true")
        equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
        expect("/usr/libexec/spank-container/agent" in done.errors()[0], "the line does not say what is missing", done)
    finally:
        cluster.root("node01", "umount", "/usr/libexec/spank-container").good()
    cluster.must_be_quiet(within=2)


@test
def a_missing_import_is_told_and_does_not_drain_the_node(cluster):
    cluster.root("node01", "mount", "--bind", "/dev/null", "/usr/libexec/spank-container/import").good()
    try:
        done = cluster.run("srun", "-w", "node01", "-n4", "--container-image=registry:5000/suites/base:other", "true")
        answered("a_missing_import", done)
    finally:
        cluster.root("node01", "umount", "/usr/libexec/spank-container/import").good()
    cluster.must_be_quiet(within=2)


@test
def every_line_of_a_failed_step_says_what_to_do(_):
    """What is refused at submission and in config.toml is answered with the grammar; what fails on a node needs advice."""
    without = []
    for suite in sorted(name.removesuffix(".txt") for name in os.listdir(GOLDEN)):
        for title, text in Golden(suite).texts.items():
            if title not in EARLY and suite != "pyxis" and not title.startswith("config_with_") and "(hint: " not in text:
                without.append(title)
    equal(without, [], "messages without advice, in golden/")
