"""Migration from pyxis by changing a file name in plugstack.conf: its keys, refusals and messages
stay the same. The lines are in golden/pyxis.txt, in this project's form and with messages=pyxis."""
import os
import re
import shutil
from functools import partial

from errors_test import Config
from harness import add, equal, expect, same_as_golden, test
from images import with_probe
from local_files import squashfs
from plugstack import plugstack

BASE = "registry:5000/suites/base:1"
IMAGE = f"--container-image={BASE}"
WHERE = "test -e /workspace/file && echo inside || echo outside"


def lines_of(done):
    """Returns this project's lines with their prefix, in either form."""
    found = re.findall(r"(?:^|: |^\d+: )((?:spank-container|pyxis): .*)$", done.err, re.M)
    return "".join(line + "\n" for line in found)


def in_both_words(title, rc, options, cluster):
    own = cluster.run("srun", *options, "true")
    with plugstack(cluster, "messages=pyxis"):
        theirs = cluster.run("srun", *options, "true")
    equal((own.rc, theirs.rc), (rc, rc), "exit codes", theirs)
    same_as_golden(f"pyxis_{title}", lines_of(own) + lines_of(theirs), theirs)


# --- refusals and notes ---------------------------------------------------------------------------

REFUSED = {
    "empty_image": ["--container-image="],
    "two_images": [IMAGE, "--container-image=ubuntu"],
    "two_work_directories": [IMAGE, "--container-workdir=/a", "--container-workdir=/b"],
    "two_names": [IMAGE, "--container-name=a", "--container-name=b"],
    "save_to_a_directory": [IMAGE, "--container-save=/home/alice/"],
    "writable_and_readonly": [IMAGE, "--container-writable", "--container-readonly"],
    "home_and_no_home": [IMAGE, "--no-container-mount-home", "--container-mount-home"],
    "root_and_no_root": [IMAGE, "--container-remap-root", "--no-container-remap-root"],
    "entrypoint_and_no_entrypoint": [IMAGE, "--container-entrypoint", "--no-container-entrypoint"],
    "empty_mount_list": [IMAGE, "--container-mounts="],
    "empty_namespace_list": [IMAGE, "--container-unshare="],
    "namespace_without_name": [IMAGE, "--container-unshare=net,,ipc"],
    "unknown_namespace": [IMAGE, "--container-unshare=net,user"],
    "empty_variable": [IMAGE, "--container-env=A,,B"],
    # On the node:
    "unknown_image": ["--container-image=registry:5000/suites/nothing:1"],
    "missing_source": [IMAGE, "--container-mounts=/no/such/source:/mnt"],
    "missing_work_directory": [IMAGE, "--container-workdir=/no/such/directory"],
}
for title, options in REFUSED.items():
    add(__name__, f"{title}_is_refused_in_both_styles", partial(in_both_words, title, 1, options))

IGNORED = ["--container-mounts=/a", "--container-workdir=/a", "--container-save=a", "--no-container-mount-home", "--container-remap-root",
           "--container-entrypoint", "--container-entrypoint-log", "--container-readonly", "--container-env=A", "--container-unshare=net"]
add(__name__, "options_without_container_are_ignored_with_a_line_each", partial(in_both_words, "ignored_options", 0, IGNORED))


# --- lines that scripts search for ----------------------------------------------------------------

@test
def single_task_prints_two_lines_before_its_output(cluster):
    name, _ = cluster.faulty.publish(with_probe("two-lines", [("data", os.urandom(100000))]))
    with plugstack(cluster, "messages=pyxis"):
        for _ in range(2):  # with and without the image on the node
            done = cluster.srun("-n1", "/probe", image=name)
            done.good()
            equal(done.err, f"pyxis: importing docker image: {name}\npyxis: imported docker image: {name}\n", "messages", done)


@test
def many_tasks_print_one_line_per_node(cluster):
    with plugstack(cluster, "messages=pyxis"):
        done = cluster.srun("-N2", "-n6", "true")
    done.good()
    equal(done.err, f"pyxis: imported docker image: {BASE}\n" * 2, "messages", done)


@test
def batch_script_prints_both_lines(cluster):
    with plugstack(cluster, "messages=pyxis"):
        out = cluster.batch("#!/bin/sh\necho done\n", IMAGE).good()
    equal(out.splitlines(), [f"pyxis: importing docker image: {BASE}", f"pyxis: imported docker image: {BASE}", "done"], "output")


@test
def image_file_prints_no_line(cluster):
    with plugstack(cluster, "messages=pyxis"):
        done = cluster.srun("true", image="/")
    expect("import" not in done.err, "a line about an import", done)


@test
def failure_is_reported_by_each_node(cluster):
    with plugstack(cluster, "messages=pyxis"):
        done = cluster.run("srun", "-N2", "-n4", "--container-image=registry:5000/suites/nothing:1", "true")
    equal((done.rc, done.err.count("pyxis: failed to import docker image: registry:5000/suites/nothing:1\n")), (1, 2), "exit code and lines", done)


@test
def config_toml_on_nodes_selects_pyxis_messages(cluster):
    with Config(cluster, 'messages = "pyxis"\n'):
        done = cluster.srun("--container-workdir=/no/such/directory", "true")
    equal(done.rc, 1, "exit code", done)
    expect("pyxis: couldn't chdir to /no/such/directory: No such file or directory\n" in done.err, "not in those words", done)


# --- plugstack.conf ------------------------------------------------------------------------------------------------------

@test
def plugstack_line_of_pyxis_works_by_file_name(cluster):
    keys = ["runtime_path=/run/pyxis", "execute_entrypoint=0", "container_scope=job", "sbatch_support=1", "use_enroot_load=1", "use_squashfuse=0"]
    with plugstack(cluster, *keys):
        cluster.program("restart", "node01").good()
        done = cluster.srun("-w", "node01", "sh", "-c", WHERE)
        done.good("inside")
        equal(done.err, "", "messages to the user", done)
        cluster.batch(f"#!/bin/sh\n{WHERE}\n", IMAGE).good("inside")
    cluster.program("restart", "node01").good()


@test
def sbatch_support_disabled_leaves_options_to_srun(cluster):
    with plugstack(cluster, "sbatch_support=0"):
        done = cluster.run("sbatch", IMAGE, stdin="#!/bin/sh\n")
        expect(done.rc != 0 and "unrecognized option" in done.err, "sbatch has the option", done)
        cluster.srun("sh", "-c", WHERE).good("inside")


@test
def plugstack_conf_mistake_stops_containers_only(cluster):
    with plugstack(cluster, "runtimepath=/run/pyxis"):
        cluster.program("restart", "node01").good()
        cluster.run("srun", "-N2", "sh", "-c", WHERE).good("outside\noutside")
        cluster.batch(f"#!/bin/sh\n{WHERE}\n").good("outside")
        for program, more in (("srun", ["true"]), ("sbatch", [])):
            done = cluster.run(program, IMAGE, *more, stdin="#!/bin/sh\n")
            equal((done.rc, len(done.errors())), (1, 1), "exit code and lines", done)
            same_as_golden("pyxis_unknown_argument", done.errors()[0] + "\n", done)
    cluster.program("restart", "node01").good()


# --- Slurm's own option ----------------------------------------------------------------------------------------------------

@test
def oci_bundle_option_gets_a_hint(cluster):
    hint = "(hint: did you mean --container-image=ubuntu:22.04?)"
    for options in (["--container=ubuntu:22.04"], ["--container", "ubuntu:22.04"]):
        done = cluster.run("srun", *options, "true")
        equal(done.err.count(hint), 1, "hints", done)
    for options in ([], [IMAGE]):
        done = cluster.run("srun", *options, "echo", "--container=ubuntu:22.04")
        expect(hint not in done.err, "a hint where nothing is wrong", done)


# --- a site's importer ----------------------------------------------------------------------------

class Importer:
    """A program as used at sites with pyxis, which records its calls."""

    def __init__(self, cluster, get):
        self.cluster, self.directory = cluster, os.path.join(cluster.shared, "importer")
        self.get = get

    def __enter__(self):
        os.makedirs(self.directory)
        os.chmod(self.directory, 0o777)
        self.image = squashfs(self.cluster)
        self.program = os.path.join(self.cluster.etc, "importer-of-the-site")
        with open(self.program, "w") as file:
            file.write(f"""#!/bin/sh
cd /home/shared/importer
echo "$* as $(id -u) in job $SLURM_JOB_ID" >>calls
echo "a word about it" >&2
test "$1" = release && rm -f $SLURM_JOB_ID.sqsh && exit 0
{self.get}
""")
        os.chmod(self.program, 0o755)
        return "importer=/etc/importer-of-the-site"

    def calls(self):
        path = os.path.join(self.directory, "calls")
        return re.sub(r"job \d+", "job N", open(path).read()).splitlines() if os.path.exists(path) else []

    def __exit__(self, *_):
        os.unlink(self.program)
        shutil.rmtree(self.directory)


@test
def importer_provides_image_and_is_released(cluster):
    importer = Importer(cluster, "cp ../base.sqsh $SLURM_JOB_ID.sqsh; echo $PWD/$SLURM_JOB_ID.sqsh")
    with importer as setting, plugstack(cluster, setting):
        # The file is removed before the task reads it. Open descriptors stay valid.
        done = cluster.srun("-N1", "-n3", "cat", "/data/one", image="ubuntu:22.04")
        done.good("one\n" * 3)
        equal(done.err, "", "messages", done)
        cluster.srun("true", image=importer.image).good()  # not handled by the importer
        equal(importer.calls(), ["get docker://ubuntu:22.04 as 2001 in job N", "release as 2001 in job N"], "calls")
        equal([name for name in os.listdir(importer.directory) if name[0].isdigit()], [], "files that are left")
    cluster.srun("sh", "-c", WHERE).good("inside")


@test
def importer_failure_is_shown_and_reported(cluster):
    for get, word in (("exit 3", "failed with exit code 3"), ("echo image.sqsh", "not an absolute path"), ("echo $PWD/nothing.sqsh", "no such file"), ("kill -9 $$", "signal 9")):
        importer = Importer(cluster, get)
        with importer as setting, plugstack(cluster, setting):
            done = cluster.srun("true", image="ubuntu")
            equal(done.rc, 1, "exit code", done)
            expect(word in done.err, f"no {word!r}", done)
            expect(("importer: a word about it" in done.err) == ("exit code" in word or "signal" in word), "its own words", done)
            equal(importer.calls(), ["get docker://ubuntu as 2001 in job N", "release as 2001 in job N"], "calls")


@test
def world_writable_importer_is_not_run(cluster):
    importer = Importer(cluster, "echo $PWD/nothing.sqsh")
    with importer as setting, plugstack(cluster, setting):
        os.chmod(importer.program, 0o775)
        done = cluster.srun("true", image="ubuntu")
        expect(done.rc == 1 and 'importer "/etc/importer-of-the-site": is writable by others' in done.err, "it is not refused", done)
        equal(importer.calls(), [], "calls")
