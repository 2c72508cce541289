"""Lines at the end of a step: why a task may have failed, and files that end with the container."""
import contextlib
import os
import shutil

from harness import equal, expect, test
from site_files import rules

BASE = "registry:5000/suites/base:1"
IMAGE = f"--container-image={BASE}"
ON = ("-w", "node01")


@contextlib.contextmanager
def run_directory(cluster, **files):
    """/home/alice/run with scripts, the directory in which a user submits."""
    path = os.path.join(cluster.home, "alice/run")
    os.makedirs(os.path.join(path, "data"))
    for name, text in {"train.py": "print('trained')\n", "data/in.txt": "1\n", **files}.items():
        with open(os.path.join(path, name), "w") as file:
            file.write(text)
    for where, directories, names in os.walk(path):
        for name in (".", *directories, *names):
            os.chown(os.path.join(where, name), 2001, 2001)
    try:
        yield
    finally:
        shutil.rmtree(path)


def from_run(cluster, *argv, **how):
    """Runs srun in that directory."""
    return cluster.run("sh", "-c", 'cd run && exec srun "$@"', "sh", *ON, IMAGE, *argv, **how)


def ours(done):
    return [line for line in done.err.splitlines() if line.startswith("spank-container: ") and " pull" not in line]


LACKS = ('spank-container: open "{}": it is in /home/alice/run of the host, which is not mounted in the container (hint: '
         "--container-mounts=/home/alice/run --container-workdir=/home/alice/run)")


@test
def script_of_the_submit_directory_is_named_with_its_cure(cluster):
    with run_directory(cluster):
        for name, argv in (("train.py", ["cat", "train.py"]), ("train.py", ["cat", "--", "./train.py"]),
                           ("data/in.txt", ["sh", "-c", "exec 3<data/in.txt"]), ("train.py", ["sh", "-c", "cat '/x' \"train.py\""])):
            done = from_run(cluster, *argv)
            expect(done.rc != 0, "the step succeeds", done)
            shown = "./train.py" if "./train.py" in argv else name
            equal(ours(done), [LACKS.format(shown)], "our lines", done)
        cure = LACKS.split("hint: ")[1].rstrip(")").split()
        from_run(cluster, *cure, "cat", "train.py").good("print('trained')")


@test
def saved_step_names_its_cause(cluster):
    with run_directory(cluster):
        done = from_run(cluster, "--container-save=./saved.sqsh", "cat", "train.py")
        expect(LACKS.format("train.py") in ours(done), "the cause is not named", done)
        expect(any("exported container" in line for line in ours(done)), "it is not saved", done)


@test
def script_of_the_host_by_absolute_path_is_named(cluster):
    with run_directory(cluster):
        done = from_run(cluster, "cat", "/home/alice/run/train.py")
        equal(ours(done), ['spank-container: open "/home/alice/run/train.py": it is in /home/alice/run of the host, which is not mounted in the container '
                           "(hint: --container-mounts=/home/alice/run)"], "our lines", done)
        from_run(cluster, "--container-mounts=/home/alice/run", "cat", "/home/alice/run/train.py").good("print('trained')")
        done = from_run(cluster, "cat", "/etc/slurm/../hosts.equiv", "/etc/machine-of-the-host")
        equal(ours(done), [], "our lines about files that nothing has", done)
        program = cluster.run("sh", "-c", "command -v sinfo").good().strip()
        done = from_run(cluster, "cat", program)
        expect(done.err.count(f"(hint: --container-mounts={program})") == 1, "the hint hides a directory of the image", done)


@test
def mounted_file_outside_the_work_directory_is_named(cluster):
    with run_directory(cluster):
        done = from_run(cluster, "--container-mount-home", "cat", "train.py")
        equal(ours(done), ['spank-container: open "train.py": it is in /home/alice/run, and the work directory of the container is /workspace '
                           "(hint: --container-workdir=/home/alice/run)"], "our lines", done)
        from_run(cluster, "--container-mount-home", "--container-workdir=/home/alice/run", "cat", "train.py").good("print('trained')")


@test
def file_named_in_a_batch_script_is_reported_once(cluster):
    script = f"#!/bin/sh\n#SBATCH {IMAGE}\n#SBATCH --chdir=/home/alice/run\n# old.py\ncat train.py > out.txt\n"
    with run_directory(cluster, **{"old.py": "", "out.txt": ""}):
        done = cluster.batch(script)
        expect(done.rc != 0, "the job succeeds", done)
        equal([line for line in done.out.splitlines() if "spank-container: " in line], [LACKS.format("train.py")], "our lines", done)


@test
def failure_without_known_cause_adds_no_line(cluster):
    with run_directory(cluster):
        for argv in (["false"], ["sh", "-c", "exit 3"], ["sh", "-c", "test -e train.py || true"], ["sh", "-c", "cat >train.py; exit 1"]):
            equal(ours(from_run(cluster, *argv)), [], f"our lines of {argv}")
        with rules(cluster, "failure_hints = false\n"):
            equal(ours(from_run(cluster, "cat", "train.py")), [], "our lines if they are switched off")
        done = cluster.run("sh", "-c", 'cd run && exec srun "$@"', "sh", "-N2", "-n4", IMAGE, "cat", "train.py")
        equal(ours(done), [LACKS.format("train.py")], "our lines of four tasks on two nodes", done)


@test
def failure_on_one_node_alone_is_explained(cluster):
    fails = "[ $SLURM_NODEID != {} ] || cat train.py"
    with run_directory(cluster):
        for node in (0, 1):
            done = cluster.run("sh", "-c", 'cd run && exec srun "$@"', "sh", "-N2", "-n4", IMAGE, "sh", "-c", fails.format(node))
            equal(ours(done), [LACKS.format("train.py")], f"our lines if node {node} fails", done)
        verbose = cluster.run("sh", "-c", 'cd run && exec srun "$@"', "sh", "-N2", "--container-verbose", IMAGE, "cat", "train.py")
        expect(" came to " not in verbose.err and "step_pull" not in verbose.err, "the line counts as a pull", verbose)


@test
def cause_and_discarded_files_share_a_line(cluster):
    with run_directory(cluster):
        done = from_run(cluster, "sh", "-c", "head -c 3M /dev/zero >/workspace/model.pt; cat train.py")
        equal(ours(done), [LACKS.format("train.py") + ", and 1 file of 3 MB ends with the container"], "our lines", done)


@test
def slurm_command_in_a_contained_script_names_the_option(cluster):
    script = f"#!/bin/bash\n#SBATCH {IMAGE}\n{{0}}\nsrun hostname\nsqueue\n"
    done = cluster.batch(script.format(""))
    line = ('spank-container: execute "{}": the container does not have Slurm\'s commands (hint: #SBATCH --container-slurm, or '
            "#SBATCH --container-batch=steps, which runs the script on the host)")
    equal([text for text in done.out.splitlines() if "hint:" in text], [line.format("srun"), line.format("squeue")], "our lines", done)
    equal(done.rc, 127, "exit code", done)
    for cure in ("--container-slurm", "--container-batch=steps"):
        cluster.batch(script.format(f"#SBATCH {cure}")).good()
    own = "mkdir -p /usr/local/bin; printf '#!/bin/sh\\necho own\\n' >/usr/local/bin/srun; chmod +x /usr/local/bin/srun"
    cluster.batch(script.format(own).replace("squeue", "")).good("own")


@test
def full_writable_layer_names_size_and_option(cluster):
    fill = "head -c 80M /dev/zero >{}/big; echo unreached"
    for place, name in (("/srv", "the container"), ("/tmp", "/tmp")):
        done = cluster.bash(f"mkdir -p {place}; " + fill.format(place), *ON, "--container-tmpfs-size=64M")
        expect(done.rc != 0, "the step succeeds", done)
        equal(ours(done), [f"spank-container: write to {name}: its 64 MB in memory are full (hint: --container-tmpfs-size=SIZE, or mount a "
                           "directory for the files: --container-mounts=DIRECTORY)"], "our lines", done)
        cluster.bash(f"mkdir -p {place}; " + fill.format(place), *ON, "--container-tmpfs-size=200M").good("unreached")


@test
def discarded_files_are_reported_with_paths_and_cure(cluster):
    hint = "(hint: --container-mounts=$PWD or --container-mount-home, and write there)"
    done = cluster.bash("head -c 3M /dev/zero >/workspace/model.pt; mkdir -p ~/out; head -c 2M /dev/zero >~/out/log", *ON)
    done.good()
    equal(ours(done), ['spank-container: 2 files of 5 MB end with the container, among them "/workspace/model.pt" and "/home/alice/out/log" '
                       + hint], "our lines", done)
    done = cluster.bash("head -c 3M /dev/zero >/workspace/model.pt; exit 4", *ON)
    equal((done.rc, ours(done)), (4, ['spank-container: 1 file of 3 MB ends with the container: "/workspace/model.pt" ' + hint]),
          "exit code and our lines of a failed step", done)
    with run_directory(cluster):
        done = from_run(cluster, "sh", "-c", "mkdir -p /home/alice/run; head -c 2M /dev/zero >/home/alice/run/ckpt")
        expect("/home/alice/run/ckpt" in done.err, "a file below the host's work directory is not reported", done)


@test
def files_that_last_or_are_small_are_not_reported(cluster):
    write = "head -c 3M /dev/zero >{}/x"
    for script, options in ((write.format("/workspace"), ["--container-name=endings:create"]),
                            (write.format("/home/alice"), ["--container-mount-home"]),
                            (write.format("/tmp"), []), (write.format("/srv"), []),
                            ("mkdir -p ~/.cache; " + write.format("/home/alice/.cache"), []),
                            ("head -c 500K /dev/zero >/workspace/x", []),
                            (write.format("/workspace") + "; rm /workspace/x", [])):
        done = cluster.bash("mkdir -p /srv; " + script, *ON, *options)
        done.good()
        equal(ours(done), [], f"our lines of {script}", done)
    cluster.srun(*ON, "--container-name=endings:remove", "true").good()
    os.unlink(os.path.join(cluster.home, "alice/x"))
    with rules(cluster, 'discarded_files = "0"\n'):
        equal(ours(cluster.bash(write.format("/workspace"), *ON)), [], "our lines if they are switched off")
    with rules(cluster, 'discarded_files = "10K"\n'):
        expect("end" in "".join(ours(cluster.bash("head -c 500K /dev/zero >/workspace/x", *ON))), "a small limit has no effect")
