"""--container-save: a step's changes to its container become an image file, once, complete or not
at all."""
import io
import json
import os
import re
import signal
import subprocess
import tarfile

from cluster import NODES, kill_all
from command import OPEN, await_true
from harness import equal, expect, same_as_golden, test
from images import Image, with_probe
from outcomes import outcome

ON = ("-w", "node01")


def place(cluster, name):
    """Returns a new file's path, here and for users."""
    here = os.path.join(cluster.shared, name)
    if os.path.exists(here):
        os.unlink(here)
    return here, f"/home/shared/{name}"


def below(cluster):
    """Makes the base image with settings, and files to be changed."""
    return Image("suites/save", [[("data", None), ("data/kept", b"of the image\n"), ("data/deleted", b"x\n"), ("data/changed", b"before\n"),
                                  ("data/tree", None), ("data/tree/leaf", b"leaf\n"), ("data/gone", None), ("data/gone/x", b"x\n")],
                                 [("data/upper", b"second layer\n")]],
                 {"Env": ["PATH=/usr/bin:/bin", "FROM_IMAGE=two words"], "WorkingDir": "/data/work dir"}, below=cluster.base_layout)


def small():
    """Makes an image of one program, which is saved at once."""
    return with_probe("save-small", [("data/one", b"one\n")])


def listing(file):
    return subprocess.run(["unsquashfs", "-lls", file], check=True, stdout=subprocess.PIPE, text=True).stdout


def names_in(directory):
    return sorted(os.listdir(directory))


def saved(done, name, lines=1):
    """Checks that the step succeeded and printed the file's name."""
    done.good()
    said = [line for line in done.messages() if line.startswith("exported container ")]
    expect(len(said) == lines and said[0].endswith(f" to {name}"), f"it did not say {lines} times that the container went to {name}", done)


CHANGES = """
    test "$PWD" = "/data/work dir"
    rm deleted 2>/dev/null || rm ../deleted; rm -r ../gone; mkdir ../gone; echo new >../gone/new
    echo after >../changed; mv ../tree ../renamed; echo more >../renamed/more
    echo after >../linked; ln ../linked ../hard; ln -s changed ../soft; ln -s /data/renamed ../away
    truncate -s 3G ../sparse; echo end >>../sparse
    echo secret >../shut; chmod 0 ../shut; mkdir ../shutdir; echo x >../shutdir/x; chmod 0 ../shutdir
    mkfifo ../fifo; echo x >../.odd' name'
    echo not kept >/tmp/file; echo not kept >/dev/shm/save-test; rm /dev/shm/save-test
    printf 'OF_FILE=kept\\n' >>/etc/environment"""

CHECKS = """
    test "$PWD" = "/data/work dir"; test "$FROM_IMAGE" = "two words"; test "$OF_FILE" = kept; test "$PATH" = /usr/bin:/bin
    cd /data; cat kept upper changed hard soft renamed/leaf renamed/more away/more gone/new shut
    test ! -e deleted; test ! -e tree; test ! -e gone/x; test -p fifo; test -f '.odd name'
    test linked -ef hard; test "$(stat -c %a shut shutdir)" = "$(printf '0\\n0')"
    test $(stat -c %s sparse) = 3221225476; test "$(tail -c 4 sparse)" = end
    test -z "$(ls -A /tmp)"; test -d /proc/self; grep -q "^$(id -un):" /etc/passwd"""
CONTENT = "of the image\nsecond layer\nafter\nafter\nafter\nleaf\nmore\nmore\nnew\nsecret"


@test
def saved_container_starts_again_unchanged(cluster):
    here, there = place(cluster, "save.sqsh")
    saved(cluster.bash(CHANGES, *ON, f"--container-save={there}", image=below(cluster), timeout=60), there)
    cluster.bash("chmod 600 /data/shut; " + CHECKS.replace("0\\n0", "600\\n0"), *ON, image=there, timeout=60).good(CONTENT)
    text = listing(here)
    for name in ("etc/rc", "etc/environment", "etc/fstab"):
        expect(f"squashfs-root/{name}\n" in text, f"there is no /{name} for enroot")
    for directory in ("proc", "sys", "dev", "tmp", "data/deleted"):
        expect(f"squashfs-root/{directory}/" not in text and "squashfs-root/data/deleted" not in text, f"/{directory} has something in it")
    expect(os.path.getsize(here) < 1 << 30, "holes take room in the file")
    cluster.must_be_quiet()


@test
def saved_oci_archive_can_be_imported(cluster):
    _, there = place(cluster, "save.tar")
    saved(cluster.bash(CHANGES, *ON, f"--container-save=oci-archive:{there}", image=below(cluster), timeout=60), there)
    checks = CHECKS.replace('test "$OF_FILE" = kept; ', "")  # a regular file here
    cluster.bash("chmod 600 /data/shut; " + checks.replace("0\\n0", "600\\n0"), *ON, image=f"oci-archive:{there}", timeout=60).good(CONTENT)


@test
def saved_apptainer_sif_starts_again(cluster):
    here, there = place(cluster, "save.sif")
    saved(cluster.bash(CHANGES, *ON, f"--container-save={there}", image=below(cluster), timeout=60), there)
    with open(here, "rb") as file:
        equal(file.read(42)[-10:], b"SIF_MAGIC\0", "what the file begins with")
    # Apptainer has neither
    checks = CHECKS.replace('test "$OF_FILE" = kept; ', "").replace('test "$PWD" = "/data/work dir"; ', "")
    cluster.bash("chmod 600 /data/shut; " + checks.replace("0\\n0", "600\\n0"), *ON, image=there, timeout=60).good(CONTENT)


@test
def saved_file_is_replaced_atomically(cluster):
    here, there = place(cluster, "replaced.sqsh")
    with open(here, "w") as file:
        file.write("old")
    os.chown(here, 2001, 2001)
    with open(here) as reader:
        saved(cluster.srun(*ON, f"--container-save={there}", "/probe", image=small()), there)
        equal(reader.read(), "old", "what the reader of the old file sees")
    cluster.srun(*ON, "/probe", "/data/one", image=there).good()
    equal([name for name in names_in(cluster.shared) if name.startswith(".")], [], "hidden files")


@test
def relative_path_starts_at_the_job_directory(cluster):
    here, _ = place(cluster, "relative.sqsh")
    saved(cluster.srun(*ON, "--chdir=/home/shared", "--container-save=relative.sqsh", "/probe", image=small()), "relative.sqsh")
    expect("probe" in listing(here), "it is not there")


@test
@outcome(16, "refused", "save path of every wrong form")
def unwritable_path_is_refused_before_tasks_run(cluster):
    os.makedirs(os.path.join(cluster.shared, "a-directory"), exist_ok=True)
    for title, path in {"a_directory": "/home/shared/a-directory", "a_missing_directory": "/home/shared/missing/x.sqsh",
                        "a_directory_of_another": "/home/bob/x.sqsh", "no_file": "/dev/null"}.items():
        done = cluster.bash("touch /home/shared/ran", *ON, "--container-mounts=/home/shared", f"--container-save={path}", "-n2")
        equal((done.rc, len(done.errors())), (1, 1), f"exit code and error lines for {path}", done)
        same_as_golden(f"save_to_{title}", done.errors()[0] + "\n", done)
        expect(not os.path.exists(os.path.join(cluster.shared, "ran")), "the task ran", done)
    cluster.must_be_quiet()


@test
def first_node_writes_unless_name_has_node_pattern(cluster):
    here, there = place(cluster, "nodes.sqsh")
    saved(cluster.srun("-N2", "-n4", f"--container-save={there}", "/probe", image=small()), there)
    paths = [place(cluster, f"nodes-{number}-{node}-%-%z.sqsh")[0] for number, node in enumerate(NODES)]
    done = cluster.srun("-N2", "-n4", "--container-save=/home/shared/nodes-%n-%N-%%-%z.sqsh", "/probe", image=small()).good
    done()
    for path in (here, *paths):
        expect("probe" in listing(path), f"{path} is not there")


@test
def batch_job_is_saved(cluster):
    here, there = place(cluster, "batch-%j.sqsh")
    script = f"#!/bin/sh\n#SBATCH --container-image=registry:5000/suites/base:1\n#SBATCH --container-save={there}\n#SBATCH -w node01\necho of the script >/saved\n"
    job = cluster.submit(script)
    equal(cluster.await_job(job)["JobState"], "COMPLETED", "state of the job")
    path = here.replace("%j", str(job))
    cluster.srun(*ON, "cat", "/saved", image=there.replace("%j", str(job))).good("of the script")
    os.unlink(path)


@test
def saved_image_file_keeps_its_settings(cluster):
    import local_files
    _, first = place(cluster, "again.sqsh")
    saved(cluster.bash("echo new >/data/new; echo ADDED=by_the_step >>/etc/environment", *ON, f"--container-save={first}",
                       image=local_files.squashfs(cluster)), first)
    cluster.bash("pwd; echo $FROM_FILE $QUOTED $ADDED; cat /data/new /data/one", *ON, image=first).good("/data/sub\nenroot two words by_the_step\nnew\none")
    _, archive = place(cluster, "again.tar")
    saved(cluster.bash("true", *ON, "--container-readonly", f"--container-save={archive}", image=first), archive)
    cluster.bash("pwd; echo $FROM_FILE $QUOTED $ADDED; cat /data/new", *ON, image=f"oci-archive:{archive}").good("/data/sub\nenroot two words by_the_step\nnew")


@test
def container_of_failing_task_is_saved_and_exit_code_kept(cluster):
    here, there = place(cluster, "failed.sqsh")
    done = cluster.bash("trap 'sleep 1; exit 3' TERM; echo x >/changed; kill -TERM $$; sleep 5", *ON, f"--container-save={there}")
    equal(done.rc, 3, "exit code", done)
    expect("squashfs-root/changed" in listing(here), "it is not saved", done)


@test
def start_failure_of_a_task_saves_nothing(cluster):
    here, there = place(cluster, "unstarted.sqsh")
    done = cluster.srun(*ON, "-n2", "--container-workdir=/no/such", f"--container-save={there}", "true")
    equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
    expect("couldn't chdir" in done.errors()[0], "the error is another one", done)
    expect(not os.path.exists(here), "it is saved", done)


@test
def saver_process_is_invisible_to_tasks(cluster):
    _, there = place(cluster, "unseen.sqsh")
    script = "ls /proc/self/fd | wc -l; exec perl -e 'print wait() == -1 ? \"no child\" : \"a child\"'"
    plain = cluster.bash(script, *ON).good()
    expect("no child" in plain, "the test is void")
    equal(cluster.bash(script, *ON, f"--container-save={there}").good(), plain, "descriptors and children")


@test
def full_disk_is_reported_in_one_line_and_leaves_nothing(cluster):
    cluster.root("node01", "mkdir", "-p", "/run/small").good()
    cluster.root("node01", "mount", "-t", "tmpfs", "-o", "size=2m,mode=1777", "tmpfs", "/run/small").good()
    try:
        done = cluster.bash("head -c 8M /dev/urandom >/random", *ON, "--container-save=/run/small/x.sqsh")
        equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
        same_as_golden("save_to_a_full_disk", done.errors()[0] + "\n", done)
        equal(os.listdir(cluster.inside("node01", "/run/small")), [], "files left")
    finally:
        cluster.root("node01", "umount", "--lazy", "/run/small").good()
        cluster.root("node01", "rmdir", "/run/small")
    cluster.must_be_quiet()


@test
def failed_save_keeps_the_exit_code_of_failed_tasks(cluster):
    cluster.root("node01", "mkdir", "-p", "/run/small").good()
    cluster.root("node01", "mount", "-t", "tmpfs", "-o", "size=2m,mode=1777", "tmpfs", "/run/small").good()
    try:
        fill = "head -c 8M /dev/urandom >/random; "
        there = "--container-save=/run/small/%N.sqsh"
        for script, options, code in ((fill + "exit 3", ON, 3), (fill + "kill -9 $$", ON, 137), (fill, (*ON, "--container-verbose"), 1),
                                      ('[ "$SLURM_PROCID" = 0 ] || exit 0; ' + fill, ("-N2", "-n2"), 1)):
            done = cluster.bash(script, *options, there)
            equal(done.rc, code, script, done)
            equal(done.err.count("its file system is full"), 1, "lines", done)
        srun = " ".join(["srun", *ON, there, "--container-image=registry:5000/suites/base:1", "bash", "-c", f"'{fill}'"])
        job = cluster.submit(f"#!/bin/sh\n#SBATCH -w node01\nset -e\n{srun}\necho not reached\n")
        equal(cluster.await_job(job)["JobState"], "FAILED", "state of the job")
    finally:
        cluster.root("node01", "umount", "--lazy", "/run/small").good()
        cluster.root("node01", "rmdir", "/run/small")
    cluster.must_be_quiet()


def saving(cluster, title, there):
    """A step whose container is being saved, by a process that never finishes."""
    step = cluster.start_srun(*ON, "-J", title, f"--container-save={there}", "bash", "-c", "echo up; sleep 0.5")
    step.await_text("up")
    await_true(lambda: cluster.processes("node01", "layer-writer"), 20, "the save did not begin")
    kill_all(cluster.processes("node01", "layer-writer"), signal.SIGSTOP)
    return step


@test
def scancel_ends_save_at_once_and_leaves_nothing(cluster):
    store, (here, there) = cluster.stores(), place(cluster, "cancelled.sqsh")
    before = names_in(cluster.shared)
    step = saving(cluster, "save-scancel", there)
    cluster.run("scancel", "-n", "save-scancel").good()
    cluster.must_be_quiet(within=2, store=store)
    done = step.end(10)
    equal([line for line in done.errors() if "not saved" in line], [f"container not saved to {there}: it was cancelled"], "what is said", done)
    equal(names_in(cluster.shared), before, "files")


@test
def kill_ends_save_at_once_and_leaves_nothing(cluster):
    store, (here, there) = cluster.stores(), place(cluster, "killed.sqsh")
    before = names_in(cluster.shared)
    step = saving(cluster, "save-kill", there)
    cluster.run("scancel", "--signal=KILL", "-n", "save-kill").good()
    cluster.must_be_quiet(within=2, store=store)
    step.end(10)
    equal(names_in(cluster.shared), before, "files")


@test
def cancelled_step_is_not_saved(cluster):
    store, (here, there) = cluster.stores(), place(cluster, "cancelled.sqsh")
    step = cluster.start_srun(*ON, "-J", "save-never", f"--container-save={there}", "sh", "-c", "echo up; sleep 60")
    step.await_text("up")
    cluster.run("scancel", "-n", "save-never").good()
    cluster.must_be_quiet(within=2, store=store)
    done = step.end(10)
    expect("container not saved: the step was cancelled" in done.errors(), "it does not say so", done)
    expect(not os.path.exists(here), "it is saved", done)


@test
def task_signals_do_not_end_the_saver(cluster):
    here, there = place(cluster, "signals.sqsh")
    step = cluster.start_srun(*ON, "-J", "save-signals", f"--container-save={there}", "bash", "-c",
                              "trap 'echo one' USR1; trap 'echo end; exit 0' TERM; echo up; while :; do sleep 0.1; done")
    step.await_text("up")
    cluster.run("scancel", "--signal=USR1", "-n", "save-signals").good()
    step.await_text("one")
    cluster.run("scancel", "--signal=TERM", "-n", "save-signals").good()
    saved(step.end(), there)
    expect(os.path.exists(here), "it is not there")


@test
def same_changes_save_the_same_file_with_fixed_date(cluster):
    files = []
    for number in (1, 2):
        here, there = place(cluster, f"same{number}.sqsh")
        saved(cluster.bash("mkdir /made; echo x >/made/file; cp /etc/os-release /made; rm /etc/os-release", *ON, "--export=ALL,SOURCE_DATE_EPOCH=1000000000",
                           f"--container-save={there}"), there)
        with open(here, "rb") as file:
            files.append(file.read())
    equal(files[0] == files[1], True, "both files are the same")
    expect(" 2001-09-09 " in listing(here) and "squashfs-root/made/file" in listing(here), "it does not have the date")


@test
def saved_image_is_pushed_and_runs_from_registry(cluster):
    here, there = place(cluster, "pushed.sqsh")
    saved(cluster.bash("mkdir /made; echo saved and pushed >/made/file", *ON, f"--container-save={there}", image=below(cluster)), there)
    name = "registry:5000/suites/pushed-by-alice:1"
    done = cluster.run("scontainer", "push", there, name)
    done.good()
    expect(done.out.startswith("sha256:") and "pushed " + name in done.err, "it does not say what it has pushed", done)
    cluster.bash('cat /made/file; echo "$FROM_IMAGE"; pwd', "-w", "node02", image=name).good("saved and pushed\ntwo words\n/data/work dir")
    again = cluster.run("scontainer", "push", there, name)
    again.good()
    expect("2 were there" in again.err and again.out == done.out, "it was sent again", again)


@test
def killed_saver_is_reported_in_one_line(cluster):
    store, (here, there) = cluster.stores(), place(cluster, "saver.sqsh")
    step = cluster.start_srun(*ON, f"--container-save={there}", "sh", "-c", "echo up; read end || :", stdin=OPEN)
    step.await_text("up")
    kill_all(cluster.processes("node01", "save"))
    done = step.end()
    equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
    same_as_golden("save_by_a_killed_process", done.errors()[0] + "\n", done)
    expect(not os.path.exists(here), "it is saved", done)
    step = saving(cluster, "save-killed", there)
    kill_all(cluster.processes("node01", "save"))
    equal(len(step.end(10).errors()), 1, "error lines")
    cluster.must_be_quiet(within=2, store=store)


@test
def killed_slurmstepd_ends_the_saver(cluster):
    step = cluster.start_srun(*ON, "-J", "save-stepd", "--container-save=/home/shared/never.sqsh", "sh", "-c", "echo up; sleep 60")
    step.await_text("up")
    parents = {int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]) for pid in cluster.processes("node01", "agent")}
    kill_all(parents)
    await_true(lambda: not cluster.processes("node01", "save"), 2, "it survives slurmstepd")
    cluster.run("scancel", "-n", "save-stepd").good()
    kill_all(cluster.strangers("node01"))
    step.end(60)
    for node in NODES:
        cluster.run("scontrol", "update", f"nodename={node}", "state=resume", user="root")
    cluster.await_idle()
    

@test
def root_inside_and_own_namespaces_are_saved(cluster):
    here, there = place(cluster, "namespaces.sqsh")
    for options in (["--container-remap-root"], ["--container-unshare=net,ipc,uts,pid"]):
        saved(cluster.bash("echo x >/saved; ls /proc >/dev/null", *ON, *options, f"--container-save={there}"), there)
        text = listing(here)
        expect("squashfs-root/saved" in text and "squashfs-root/proc/" not in text, f"with {options}, it is not what it was")
    cluster.must_be_quiet()


@test
def named_container_is_saved_when_made_and_when_reused(cluster):
    here, there = place(cluster, "named.sqsh")
    name = ("--container-name=save-named", f"--container-save={there}")
    done = cluster.bash("echo one >/first", *ON, *name)
    saved(done, there)
    expect(f"exported container save-named to {there}" in done.messages(), "it is not called by its name", done)
    saved(cluster.bash("echo two >/second", *ON, *name), there)
    cluster.bash("cat /first /second", *ON, image=there).good("one\ntwo")
    running = cluster.start_srun(*ON, "--container-name=save-named", "sh", "-c", "echo three >/third; echo up; sleep 4")
    running.await_text("up")
    saved(cluster.bash("cat /third", *ON, *name, "--overlap"), there)
    running.end().good()
    expect("squashfs-root/third" in listing(here), "what the running step has written is not there")


def layers_in(archive):
    """Returns the names in the only layer of an OCI archive, and the names of its blobs."""
    with tarfile.open(archive) as files:
        index = json.load(files.extractfile("index.json"))
        blob = lambda digest: files.extractfile("blobs/" + digest.replace(":", "/")).read()
        manifest = json.loads(blob(index["manifests"][0]["digest"]))
        layer = subprocess.run(["zstd", "-dc"], input=blob(manifest["layers"][-1]["digest"]), check=True, stdout=subprocess.PIPE).stdout
        have = [name for name in files.getnames() if name.startswith("blobs/")]
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        return sorted(files.getnames()), have


@test
def changes_are_saved_as_one_layer_that_runs_and_is_pushed(cluster):
    here, there = place(cluster, "layer.tar")
    saved(cluster.bash(CHANGES, *ON, f"--container-save=oci-layer:{there}", image=below(cluster), timeout=60), there)
    names, blobs = layers_in(here)
    equal(len(blobs), 3, "blobs in the archive: layer, configuration, manifest")
    expect({"data/.wh.deleted", "data/.wh.tree", "data/gone/.wh.x", "data/gone/new", "data/renamed/leaf", "data/hard", "etc/environment"} <= set(names),
           f"the layer lacks something: {names}")
    expect(not {"data/kept", "data/upper", "etc/passwd", "usr", "data/tree"} & set(names), f"the layer has what nobody changed: {names}")
    checks = CHECKS.replace('test "$OF_FILE" = kept; ', "").replace("0\\n0", "600\\n0")
    # The node that has the image, one that does not, and another registry's name.
    for where in (ON, ("-w", "node02")):
        cluster.bash("chmod 600 /data/shut; " + checks, *where, image=there, timeout=60).good(CONTENT)
    pulled = re.findall(r"spank-container: pull job=.* image=\"\S*/layer\.tar\" .* pull_ms=([0-9.]+)", cluster.program("logs", "node02").good())
    expect(len(pulled) == 1 and float(pulled[0]) < 60_000, f"slurmd's log says of pulling the image below: {pulled}")
    name = "registry:5000/suites/pushed-layer:1"
    done = cluster.run("scontainer", "push", there, name)
    done.good()
    expect("sent, 2 blobs;" in done.err, "layers of the image were sent", done)
    cluster.bash("chmod 600 /data/shut; " + checks, "-w", "node02", image=name, timeout=60).good(CONTENT)


@test
def tasks_change_nothing_before_the_saver_has_started(cluster):
    here, there = place(cluster, "early.tar")
    script = 'set -- "" /data/kept /data/upper /data/changed; [ $SLURM_PROCID = 0 ] && echo one >/made || rm $(eval echo \\$$((SLURM_PROCID + 1)))'
    saved(cluster.bash(script, *ON, "-n4", "--overcommit", f"--container-save=oci-layer:{there}", image=below(cluster)), there)
    equal(layers_in(here)[0], ["data/.wh.changed", "data/.wh.kept", "data/.wh.upper", "made"], "what is in the layer")


@test
def layer_save_is_refused_when_incomplete(cluster):
    import local_files
    _, there = place(cluster, "refused.tar")
    layer = f"--container-save=oci-layer:{there}"
    done = cluster.bash("true", *ON, layer, image=local_files.squashfs(cluster))
    equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
    same_as_golden("save_layer_on_a_file", done.errors()[0] + "\n", done)
    cluster.bash("rm /etc/os-release", *ON, "--container-name=save-layer").good()
    done = cluster.bash("true", *ON, "--container-name=save-layer", layer)
    equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
    same_as_golden("save_layer_of_a_changed_container", done.errors()[0] + "\n", done)
