"""Messages that new users see first: common mistakes, each with one line that shows the correct
form."""
import os

import mpi_test
from harness import Skipped, equal, expect, same_as_golden, test
from images import Image, with_probe
from site_files import rules

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
def submission_refusal_is_the_only_message(cluster):
    for program, *words in (["srun", "true"], ["sbatch"], ["salloc", "true"]):
        done = cluster.run(program, IMAGE, "--container-mounts=data:/mnt", *words, stdin="#!/bin/sh\n")
        expect(done.rc == 1 and len(done.err.splitlines()) == 1, "more than one line", done)
    equal(cluster.run("srun", IMAGE, "--container-pull=no", "true", env=["SLURM_EXIT_ERROR=7"]).rc, 7, "the status that the user chose for Slurm's errors")


@test
def unknown_tag_lists_similar_tags(cluster):
    for tag in ("24.03-py3", "24.04-py3"):
        cluster.program("push", cluster.base_layout, f"suites/words:{tag}").good()
    says("a_mistyped_tag", cluster.run("srun", "--container-image=registry:5000/suites/words:24.3-py3", "true"))
    says("a_mistyped_repository", cluster.run("srun", "--container-image=registry:5000/suites/word:24.03-py3", "true"))


@test
def name_without_registry_or_cut_by_comment_gets_a_hint(cluster):
    says("a_name_without_registry", cluster.run("srun", "--container-image=ubuntu", "true"))
    done = cluster.batch("#!/bin/sh\n#SBATCH --container-image=registry:5000#suites/base:1\ntrue\n")
    done.err = done.out
    says("a_registry_before_a_comment", done)


@test
def missing_program_is_reported_once(cluster):
    for name, program in (("a_missing_program", "no-such-program"), ("a_missing_path", "/opt/no/such"), ("a_missing_relative_path", "./x.sh")):
        says(name, cluster.run("srun", "-n4", IMAGE, program), rc=2)
    script(cluster, "here.sh", "#!/bin/sh\necho here\n")
    typed = ("srun", "-D", "/home/shared", IMAGE)
    says("a_script_of_the_submit_directory", cluster.run(*typed, "./here.sh"), rc=2)
    cluster.run(*typed, "--container-mount-cwd", "./here.sh").good("here")
    says("a_misspelt_script", cluster.run(*typed, "--container-mount-cwd", "./heer.sh"), rc=2)
    cluster.run("srun", IMAGE, "--container-mounts=/home/shared", "/home/shared/here.sh").good("here")
    says("a_mount_after_slurms_v", cluster.run("srun", IMAGE, "-v", "/home/alice/data:/data", "true"), rc=2)
    script(cluster, "strange.sh", "#!/opt/no/shell -e\n")
    says("a_missing_interpreter", cluster.run("srun", IMAGE, "--container-mounts=/home/shared:/x", "/x/strange.sh"), rc=2)
    mpi_test.prepare(cluster)
    done = cluster.srun(mpi_test.PROGRAMS, "/mpi/ring.openmpi", image=with_probe("loaderless", []))
    says("a_missing_loader", done, rc=2)


@test
def link_replaced_by_a_layer_is_named(cluster):
    """A layer with a directory /lib64 hides the link of the layers below, and so the loader of every program."""
    script(cluster, "plain.sh", "#!/bin/sh\ntrue\n")
    for directory in ("lib64", "bin"):
        image = Image(f"suites/no-{directory}", [[(directory, None), (f"{directory}/mine", b"")]], below=cluster.base_layout)
        by_name = cluster.srun("cat", "/etc/debian_version", image=image)
        if directory == "lib64":
            says("a_replaced_lib64_by_name", by_name, rc=2)
        else:
            by_name.good()
        says(f"a_replaced_{directory}_by_path", cluster.srun("/bin/cat", "/etc/issue", image=image), rc=2)
        says(f"a_replaced_{directory}_by_script", cluster.srun("--container-mounts=/home/shared:/x", "/x/plain.sh", image=image), rc=2)


@test
def multi_prog_file_is_no_missing_program(cluster):
    """Slurm executes the programs that the file names, which are told if they are missing."""
    def run(text):
        with open(os.path.join(cluster.shared, "words.conf"), "w") as file:
            file.write(text)
        return cluster.srun("-n3", "-N1", "--multi-prog", "/home/shared/words.conf")

    equal(run("0 echo one\n1-2 true\n").messages(), [], "messages of a step that works")
    done = run("0 true\n1-2 no-such-program\n")
    expect(done.rc != 0, "a missing program is no error", done)
    says("a_missing_program", done, rc=done.rc)


@test
def program_that_cannot_run_gets_its_cure(cluster):
    for name, program in (("a_misspelt_program", "gerp"), ("a_directory_as_program", "/etc")):
        done = cluster.run("srun", "-n4", "-N1", IMAGE, program)
        says(name, done, rc=done.rc)
    home = os.path.join(cluster.shared, "words-programs")
    os.makedirs(home, exist_ok=True)
    foreign = b"\x7fELF\2\1\1".ljust(16, b"\0") + b"\2\0\xb7\0" + bytes(44)
    for name, text, mode in (("windows.sh", b"#!/bin/sh\r\ntrue\r\n", 0o755), ("plain.sh", b"#!/bin/sh\n", 0o644), ("foreign", foreign, 0o755)):
        with open(os.path.join(home, name), "wb") as file:
            file.write(text)
        os.chmod(os.path.join(home, name), mode)
        done = cluster.run("srun", IMAGE, "--container-mounts=/home/shared/words-programs:/w", f"/w/{name}")
        says(f"a_program_{name.split('.')[0]}", done, rc=done.rc)


@test
def mount_list_with_blank_or_missing_dot_gets_a_hint(cluster):
    says("a_blank_after_a_comma", cluster.run("srun", IMAGE, "--container-mounts=/home/shared:/mnt, /tmp:/x", "true"))
    says("a_comma_at_the_end", cluster.run("srun", IMAGE, "--container-mounts=/home/shared:/mnt,", "/tmp:/x"))
    says("a_missing_dot", cluster.run("srun", IMAGE, "--container-mounts=data/in:/mnt", "true"))


@test
def path_in_the_home_is_expanded_in_every_option(cluster):
    cluster.run("sh", "-c", "mkdir -p ~/paths/in && echo one >~/paths/in/one && echo TOLD=yes >~/paths/env").good()
    done = cluster.bash("cat /data/one ~/paths/in/one; pwd; echo $TOLD", "--container-mounts=~/paths/in:/data,~/paths/in",
                        "--container-workdir=~/paths/in", "--container-env-file=~/paths/env", "-w", "node01")
    equal(done.good().split(), ["one", "one", "/home/alice/paths/in", "yes"], "what the options brought", done)
    cluster.bash("pwd", "--container-mounts=/home/alice/paths", "--container-workdir=./paths/in").good("/home/alice/paths/in")
    cluster.srun("-w", "node01", "--container-save=~/paths/saved.sqsh", "true").good()
    cluster.srun("-w", "node01", "cat", "/etc/issue", image="~/paths/saved.sqsh").good()
    says("a_home_of_another_user", cluster.run("srun", IMAGE, "--container-mounts=~bob/data:/data", "true"))
    cluster.run("sh", "-c", "rm -r ~/paths").good()


@test
def work_directory_is_mounted_and_entered(cluster):
    cluster.run("sh", "-c", "mkdir -p ~/cwd/sub && echo one >~/cwd/one && echo two >~/cwd/sub/two").good()
    one = "--container-mount-cwd"

    def inside(words, command):
        return cluster.run("sh", "-c", f"cd ~/cwd && srun -w node01 {IMAGE} {words} sh -c '{command}'").good().split()
    equal(inside(one, "pwd; cat one"), ["/home/alice/cwd", "one"], "the submit directory")
    equal(inside("-D /home/alice/cwd/sub " + one, "pwd; cat two"), ["/home/alice/cwd/sub", "two"], "the directory of -D")
    equal(inside("-D /home/alice/cwd/sub --container-mounts=./two:/data", "cat /data"), ["two"], "a relative mount with -D")
    equal(inside(one + " --container-workdir=/etc", "pwd; cat /home/alice/cwd/one"), ["/etc", "one"], "with a work directory")
    with rules(cluster, "mount_cwd = true\n"):
        equal(inside("", "pwd; cat one"), ["/home/alice/cwd", "one"], "the site's default")
        equal(inside("--no-container-mount-cwd", "pwd"), ["/workspace"], "switched off")
        cluster.run("srun", "-D", "/usr", IMAGE, "test", "!", "-e", "/usr/bin/slurmd").good()
    batch = cluster.run("sh", "-c", f"cd ~/cwd && sbatch -W -w node01 -o out {IMAGE} {one} --wrap 'cat one; pwd' && cat out")
    expect("one\n/home/alice/cwd" in batch.good(), "a batch script is elsewhere", batch)
    says("a_work_directory_of_every_image", cluster.run("srun", "-D", "/usr", IMAGE, one, "true"))
    cluster.run("sh", "-c", "rm -r ~/cwd").good()


@test
def variable_in_a_batch_line_is_not_expanded(cluster):
    for option in ("--container-mounts=$HOME/data:/data", "--container-mounts=/tmp:/x,/scratch/$USER",
                   "--container-workdir=${HOME}/x", "--container-save=$SCRATCH/x.sqsh", "--container-env-file=$HOME/env"):
        done = cluster.run("sbatch", stdin=f"#!/bin/sh\n#SBATCH {IMAGE}\n#SBATCH {option}\n")
        equal((done.rc, len(done.errors())), (1, 1), "exit code and lines of ours", done)
        expect("Slurm expands no variables in #SBATCH lines: write the path in full" in done.err, "not the cause", done)
    says("a_variable_in_an_image", cluster.run("srun", "--container-image=$HOME/x.sqsh", "true"))
    says("a_variable_in_a_mount", cluster.run("srun", IMAGE, "--container-mounts=$HOME/data:/data", "true"))


@test
def mount_in_the_form_of_docker_gets_our_form(cluster):
    for name, mounts in (("flags_of_docker", "/tmp:/x:rw,z"), ("a_semicolon", "/tmp:/x;/etc:/y"), ("a_flag_of_docker", "/tmp:/x:z")):
        says(name, cluster.run("srun", IMAGE, f"--container-mounts={mounts}", "true"))
    cluster.run("sh", "-c", "mkdir '/home/alice/a,b'").good()
    says("a_comma_in_a_path", cluster.run("srun", IMAGE, "--container-mounts=/home/alice/a,b:/x", "true"))
    cluster.run("sh", "-c", "rmdir '/home/alice/a,b'").good()


@test
def misspelt_variable_causes_one_warning(cluster):
    for words in (["srun", "-n2", "true"], ["srun", "-n2", IMAGE, "true"], ["sbatch", "-W", "-o", "/dev/null"], ["salloc", "true"]):
        done = cluster.run(*words, env=["SCONTAINER_MOUNT=/x"], stdin="#!/bin/sh\n")
        equal((done.rc, done.err.count("the variable SCONTAINER_MOUNT has no effect (hint: did you mean SCONTAINER_MOUNTS?)")), (0, 1),
              "exit code and warnings", done)


@test
def value_of_a_switch_is_not_the_command(cluster):
    warning = 'warning: --container-writable takes no value: "true" is executed as the command (hint: leave it out)'
    done = cluster.run("srun", "-n2", IMAGE, "--container-writable", "true", "echo")
    equal((done.rc, done.messages()), (0, [warning]), "exit code and lines", done)
    for quiet in (["--container-writable", "-n1", "true"], ["--container-explain", "true"], ["--container-writable", "true"],
                  ["--container-writable", "echo", "true"]):
        expect("takes no value" not in cluster.run("srun", IMAGE, *quiet).err, "it warns of " + " ".join(quiet))


@test
def ranks_without_mpi_are_reported_before_open_mpi_does(cluster):
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
def full_target_is_named(cluster):
    cluster.root("node01", "sh", "-c", "mkdir -p /run/narrow && mount -t tmpfs -o size=2M,mode=1777 none /run/narrow").good()
    try:
        done = cluster.run("srun", "-wnode01", IMAGE, "--container-save=/run/narrow/x.sqsh", "true")
        says("a_full_target_of_a_save", done, rc=done.rc)
        for target in ("/run/narrow/x.sqsh", "oci-archive:/run/narrow/x.tar"):
            done = cluster.run("srun", "-wnode01", "sh", "-c", f"scontainer pull -q {BASE} && scontainer export {BASE} {target}", timeout=60)
            expect(done.rc == 1 and f'write "{target.split(":")[-1]}": its file system is full (2 MB in all)' in done.err, "the target", done)
        expect(os.listdir(os.path.join("/proc", str(cluster.pid("node01")), "root/run/narrow")) == [], "something is left there")
    finally:
        cluster.root("node01", "umount", "--lazy", "/run/narrow")


@test
def image_missing_in_podman_is_reported(cluster):
    if cluster.run("sh", "-c", "command -v podman || command -v skopeo").rc != 0:
        raise Skipped("the nodes have neither podman nor skopeo")
    done = cluster.run("srun", "--container-image=podman://no-such-image", "true")
    done.err = "".join(line for line in done.err.splitlines(True) if "writes out" not in line)
    says("an_image_that_podman_has_not", done)
