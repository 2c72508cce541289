"""What a user reads first: mistakes that nearly everybody makes once, each with one line that says what to write instead."""
import os

import mpi_test
from harness import equal, expect, same_as_golden, test
from images import with_probe

BASE = "registry:5000/suites/base:1"
IMAGE = f"--container-image={BASE}"


def says(name, done, rc=1, lines=1):
    equal((done.rc, len(done.errors())), (rc, lines), "exit code and lines of ours", done)
    same_as_golden(name, "".join(line + "\n" for line in done.errors()), done)


def script(cluster, name, text):
    path = os.path.join(cluster.shared, name)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o755)


@test
def what_is_refused_before_submission_is_all_that_is_said(cluster):
    for program, *words in (["srun", "true"], ["sbatch"], ["salloc", "true"]):
        done = cluster.run(program, IMAGE, "--container-mounts=data:/mnt", *words, stdin="#!/bin/sh\n")
        expect(done.rc == 1 and len(done.err.splitlines()) == 1, "more than one line", done)
    equal(cluster.run("srun", IMAGE, "--container-pull=no", "true", env=["SLURM_EXIT_ERROR=7"]).rc, 7, "the status that the user chose for Slurm's errors")


@test
def a_tag_that_is_none_comes_with_those_that_are_like_it(cluster):
    for tag in ("24.03-py3", "24.04-py3"):
        cluster.program("push", cluster.base_layout, f"suites/words:{tag}").good()
    says("a_mistyped_tag", cluster.run("srun", "--container-image=registry:5000/suites/words:24.3-py3", "true"))
    says("a_mistyped_repository", cluster.run("srun", "--container-image=registry:5000/suites/word:24.03-py3", "true"))


@test
def a_name_without_registry_and_a_registry_that_a_comment_cut_short(cluster):
    says("a_name_without_registry", cluster.run("srun", "--container-image=ubuntu", "true"))
    done = cluster.batch("#!/bin/sh\n#SBATCH --container-image=registry:5000#suites/base:1\ntrue\n")
    done.err = done.out
    says("a_registry_before_a_comment", done)


@test
def a_program_that_is_missing_is_looked_for_in_vain_once(cluster):
    for name, program in (("a_missing_program", "no-such-program"), ("a_missing_path", "/opt/no/such"), ("a_missing_relative_path", "./x.sh")):
        says(name, cluster.run("srun", "-n4", IMAGE, program), rc=2)
    script(cluster, "strange.sh", "#!/opt/no/shell -e\n")
    says("a_missing_interpreter", cluster.run("srun", IMAGE, "--container-mounts=/home/shared:/x", "/x/strange.sh"), rc=2)
    mpi_test.prepare(cluster)
    done = cluster.srun(mpi_test.PROGRAMS, "/mpi/ring.openmpi", image=with_probe("loaderless", []))
    says("a_missing_loader", done, rc=2)


@test
def a_blank_in_a_list_of_mounts_and_a_dot_that_is_missing(cluster):
    says("a_blank_after_a_comma", cluster.run("srun", IMAGE, "--container-mounts=/home/shared:/mnt, /tmp:/x", "true"))
    says("a_comma_at_the_end", cluster.run("srun", IMAGE, "--container-mounts=/home/shared:/mnt,", "/tmp:/x"))
    says("a_missing_dot", cluster.run("srun", IMAGE, "--container-mounts=data/in:/mnt", "true"))


@test
def ranks_without_mpi_are_told_of_before_open_mpi_says_it(cluster):
    image = mpi_test.prepare(cluster)
    script(cluster, "mpi/rank.py", "from mpi4py import MPI\n")
    warning = "warning: hook 50-slurm-pmi: the program uses Open MPI and the step has no --mpi: its ranks will not find each other (hint: srun --mpi=pmix)"
    for command in (["/mpi/ring.openmpi"], ["sh", "/mpi/rank.py"]):
        done = cluster.srun("--mpi=none", "-n3", mpi_test.PROGRAMS, *command, image=image, timeout=60)
        equal([line for line in done.messages() if "Open MPI" in line], [warning], "lines", done)
    for quiet in (["--mpi=none", "-n1", mpi_test.PROGRAMS, "/mpi/ring.openmpi"], ["--mpi=none", "-n3", "true"]):
        done = cluster.srun(*quiet, image=image, timeout=60)
        expect("Open MPI and the step" not in done.err, "it says so where nothing is wrong", done)


@test
def a_full_target_is_named(cluster):
    cluster.root("node01", "sh", "-c", "mkdir -p /run/narrow && mount -t tmpfs -o size=2M,mode=1777 none /run/narrow").good()
    try:
        done = cluster.run("srun", "-wnode01", IMAGE, "--container-save=/run/narrow/x.sqsh", "true")
        says("a_full_target_of_a_save", done, rc=done.rc)
        for target in ("/run/narrow/x.sqsh", "oci-archive:/run/narrow/x.tar"):
            done = cluster.run("srun", "-wnode01", "sh", "-c", f"scontainer pull -q {BASE} && scontainer export {BASE} {target}", timeout=60)
            expect(done.rc == 1 and f'write "{target.split(":")[-1]}": its file system is full (2 MB in all)' in done.err, "the target", done)
        expect(os.listdir(os.path.join("/proc", str(cluster.pid("node01")), "root/run/narrow")) == [], "something is left there")
    finally:
        cluster.root("node01", "umount", "/run/narrow")


@test
def an_image_that_podman_has_not_is_said_to_be_missing(cluster):
    done = cluster.run("srun", "--container-image=podman://no-such-image", "true")
    done.err = "".join(line for line in done.err.splitlines(True) if "writes out" not in line)
    says("an_image_that_podman_has_not", done)
