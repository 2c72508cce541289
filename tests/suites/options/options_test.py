"""Every option on srun, sbatch and salloc, its environment twins, and which of them wins."""
import os

from entrypoint_test import with_entrypoint
from errors_test import Config
from images import with_probe
from harness import add, equal, expect, test
from functools import partial
from plugstack import plugstack
from site_files import rules

QUICK = True

BASE = "registry:5000/suites/base:1"
IN_BASE = "test -e /workspace/file && echo inside || echo outside"


@test
def without_an_option_nothing_is_contained(cluster):
    cluster.run("srun", "sh", "-c", IN_BASE).good("outside")


@test
def help_describes_every_option(cluster):
    for program in ("srun", "sbatch", "salloc"):
        text = cluster.run(program, "--help").good()
        for option in ("image=", "mounts=", "workdir=", "env=", "writable", "readonly", "mount-home", "verbose"):
            expect(f"--container-{option}" in text, f"{program} --help does not describe --container-{option}")
        expect("--no-container-mount-home" in text, f"{program} --help does not describe --no-container-mount-home")


@test
def srun_runs_its_tasks_in_the_image_on_every_node(cluster):
    cluster.srun("-N2", "--ntasks-per-node=2", "sh", "-c", IN_BASE).good("inside\n" * 4)


@test
def an_image_can_be_named_in_every_way_pyxis_knows(cluster):
    for name in (BASE, "docker://" + BASE, "registry:5000#suites/base:1", "REGISTRY:5000/suites/base:1"):
        cluster.srun("sh", "-c", IN_BASE, image=name).good("inside")


@test
def an_image_can_be_named_by_digest(cluster):
    image = with_probe("digest", [("by-digest", b"yes\n")])
    cluster.push(image)
    from images import digest_of
    manifest = digest_of(image.parts()[0])
    done = cluster.srun("/probe", "/by-digest", image=f"registry:5000/suites/digest@{manifest}")
    expect("yes" in done.good(), "not that image", done)


@test
def a_tag_that_moves_is_followed_by_the_next_step(cluster):
    for text in (b"first\n", b"second\n"):
        name, _ = cluster.faulty.publish(with_probe("moving", [("which", text)]))
        out = cluster.srun("/probe", "/which", image=name).good()
        expect(text.decode() in out, f"not the image that has the tag now: {out}")


def image_over_tls(cluster):
    cluster.srun("sh", "-c", IN_BASE, image="registry:5443/suites/base:1").good("inside")


add(__name__, "a_registry_with_the_sites_certificate_is_trusted", image_over_tls)


@test
def sbatch_runs_the_script_in_the_image(cluster):
    done = cluster.batch("#!/bin/sh\n" + IN_BASE + "\n", f"--container-image={BASE}")
    done.good("inside")


@test
def a_batch_script_can_name_its_image_itself(cluster):
    script = f"#!/bin/bash\n#SBATCH --container-image={BASE}\n#SBATCH --container-workdir=/etc\n{IN_BASE}\npwd\n"
    cluster.batch(script).good("inside\n/etc")


@test
def every_option_works_in_a_batch_script(cluster):
    lines = ["container-mounts=/home/shared:/shown:ro", "container-env=GREETER", "container-readonly", "container-mount-home", "container-verbose",
             f"container-image={BASE}", "container-workdir=/shown"]
    script = "#!/bin/bash\n" + "".join(f"#SBATCH --{line}\n" for line in lines) + """
pwd; echo $GREETER; touch /new 2>/dev/null || echo read-only; grep -o ' /home/alice' /proc/self/mountinfo\n"""
    done = cluster.batch(script, env=["GREETER=job"])
    said = [line for line in done.good().splitlines() if "spank-container: " not in line]
    equal(said, ["/shown", "job", "read-only", " /home/alice"], "output", done)
    expect("spank-container: start " in done.out, "no timing line", done)


@test
def a_batch_script_sees_itself_inside_and_cannot_change(cluster):
    script = f"#!/bin/bash\n#SBATCH --container-image={BASE}\n# a mark\ngrep -c 'a [m]ark' $0\necho x >>$0 || echo refused\n"
    done = cluster.batch(script)
    equal(done.good().splitlines()[0], "1", "lines with the mark", done)
    expect(done.out.strip().endswith("refused"), "the script could be changed", done)


@test
def a_batch_script_outside_can_run_steps_inside(cluster):
    script = f"#!/bin/bash\n{IN_BASE}\nsrun --container-image={BASE} sh -c '{IN_BASE}'\nsrun sh -c '{IN_BASE}'\n"
    cluster.batch(script).good("outside\ninside\noutside")


@test
def salloc_accepts_the_options(cluster):
    done = cluster.run("salloc", "-N1", f"--container-image={BASE}", "srun", "sh", "-c", IN_BASE)
    equal(done.rc, 0, "exit code", done)


@test
def salloc_runs_its_own_command_outside(cluster):
    done = cluster.run("salloc", "-N1", f"--container-image={BASE}", "sh", "-c", IN_BASE)
    done.good("outside")


@test
def two_steps_at_once_in_one_allocation_have_containers_of_their_own(cluster):
    step = f"srun --overlap -n1 --container-image={BASE} sh -c 'echo $0 >/mark; sleep 0.5; cat /mark' "
    done = cluster.run("salloc", "-N1", "-n2", "sh", "-c", f"{step} one & {step} two & wait")
    equal(sorted(done.good().split()), ["one", "two"], "marks", done)


@test
def a_step_can_join_a_running_job(cluster):
    job = cluster.submit("#!/bin/sh\nsleep 20\n")
    try:
        cluster.await_state(job, "RUNNING")
        cluster.srun(f"--jobid={job}", "--overlap", "sh", "-c", IN_BASE, timeout=15).good("inside")
    finally:
        cluster.run("scancel", str(job))


# --- given twice, and handed on ---------------------------------------------------------------------------------------

@test
def an_option_with_a_list_can_be_given_several_times(cluster):
    options = ["--container-mounts=/home/shared:/one", "--container-mounts=/home/shared:/two,/home/shared:/three", "--container-env=A", "--container-env=B"]
    for more in ([], ["--export=NONE"]):
        cluster.bash("test -d /one -a -d /two -a -d /three", *options, *more).good()
    cluster.bash("echo $GREETER $SUITE", "--container-env=GREETER", "--container-env=SUITE", env=["GREETER=job", "SUITE=job"]).good("job job")
    out = cluster.batch("#!/bin/bash\nls -d /one /two /three\n", f"--container-image={BASE}", *options).good()
    equal(out.split(), ["/one", "/three", "/two"], "mounts in the script")


INHERITED = ["container-batch=steps", f"container-image={BASE}", "container-mounts=/home/shared:/one", "container-mounts=/home/shared:/two",
             "container-workdir=/etc", "container-readonly", "no-container-mount-home"]


@test
def every_srun_of_a_batch_job_has_the_options_of_sbatch(cluster):
    script = "#!/bin/bash\n" + "".join(f"#SBATCH --{line}\n" for line in INHERITED) + f"""{IN_BASE}; pwd
srun bash -c 'pwd; ls -d /one /two; touch /new 2>/dev/null || echo read-only'\n"""
    out = cluster.batch(script).good().splitlines()
    equal(out, ["outside", "/home/alice", "/etc", "/one", "/two", "read-only"], "output")


@test
def an_srun_of_a_batch_job_can_have_other_options(cluster):
    other = cluster.push(with_probe("other", []))
    script = "#!/bin/bash\n" + "".join(f"#SBATCH --{line}\n" for line in INHERITED) + f"""
srun --container-workdir=/usr --container-writable --container-mount-home bash -c 'pwd; touch /new && echo written; grep -o " /home/alice " /proc/self/mountinfo'
srun --container-mounts=/home/shared:/three bash -c 'ls -d /[ot][nwh][eor]*'
srun --container-image={other} /probe
srun --container-image={BASE} --container-image={other} /probe || echo refused\n"""
    out = [line.strip() for line in cluster.batch(script).good().splitlines() if "pulling" not in line]
    equal(out[:4], ["/usr", "written", "/home/alice", "/three"], "output")
    expect("in /etc" in out[4] and out[-1] == "refused" and "specified multiple times" in " ".join(out[5:]), f"output: {out}")


# --- the script of a batch job -------------------------------------------------------------------------------------------

@test
def only_the_steps_of_a_batch_job_can_be_in_containers(cluster):
    script = f"#!/bin/bash\n{IN_BASE}; grep -c 'NoNewPrivs:.0' /proc/self/status; srun bash -c '{IN_BASE}'\n"
    wanted = "outside\n1\ninside"
    cluster.batch(script, f"--container-image={BASE}", "--container-batch=steps").good(wanted)
    cluster.batch(script, env=[f"SCONTAINER_IMAGE={BASE}", "SCONTAINER_BATCH=steps"]).good(wanted)
    with Config(cluster, 'batch = "steps"\n'):
        cluster.batch(script, f"--container-image={BASE}").good(wanted)
        cluster.batch(f"#!/bin/sh\n{IN_BASE}\n", f"--container-image={BASE}", "--container-batch=script").good("inside")
    with plugstack(cluster, "batch=steps"):
        cluster.batch(script, f"--container-image={BASE}").good(wanted)


@test
def an_srun_of_a_script_in_a_container_is_a_step_in_a_container_of_its_own(cluster):
    """It has the image without being told."""
    script = "#!/bin/sh\necho one >/mark; srun sh -c 'test -e /workspace/file -a ! -e /mark && echo inside'\n"
    out = cluster.batch(script, f"--container-image={BASE}", "--container-slurm").good()
    equal(out.splitlines()[-1], "inside", f"last line of {out!r}")  # before it Slurm says that /workspace is not on the host


# --- twins ---------------------------------------------------------------------------------------------------------

TWINS = {
    "IMAGE": (BASE, IN_BASE, "inside"),
    "MOUNTS": ("/home/shared:/shown", "test -d /shown && echo shown", "shown"),
    "WORKDIR": ("/etc", "pwd", "/etc"),
    "ENV": ("GREETER", "echo $GREETER", "job"),
    "WRITABLE": ("0", "touch /new 2>/dev/null || echo refused", "refused"),
    "READONLY": ("yes", "touch /new 2>/dev/null || echo refused", "refused"),
    "MOUNT_HOME": ("true", "findmnt -n -o TARGET ~ || grep -o ' /home/alice ' /proc/self/mountinfo", "/home/alice"),
}


def twin_works(prefix, name, cluster):
    value, script, wanted = TWINS[name]
    option = [] if name == "IMAGE" else [f"--container-image={BASE}"]
    done = cluster.run("srun", *option, "sh", "-c", script, env=[f"{prefix}{name}={value}", "GREETER=job"])
    equal(done.good().strip(), wanted, "output", done)


for twin in TWINS:
    for prefix in ("SCONTAINER_", "PYXIS_CONTAINER_"):
        add(__name__, f"the_variable_{prefix}{twin}_counts_as_the_option", partial(twin_works, prefix, twin))


@test
def the_verbose_twin_counts_as_the_option(cluster):
    done = cluster.srun("true", env=["SCONTAINER_VERBOSE=1"])
    expect(any(line.startswith("start ") for line in done.messages()), "no timing line", done)


@test
def an_option_beats_its_variable(cluster):
    cluster.srun("--container-workdir=/usr", "pwd", env=["SCONTAINER_WORKDIR=/etc", "PYXIS_CONTAINER_WORKDIR=/var"]).good("/usr")


@test
def the_variables_of_other_options_count_as_they_do(cluster):
    """Those that no other test sets."""
    def step(script, *options, image="base", **variables):
        env = [f"SCONTAINER_IMAGE={cluster.name_of(image)}", *(f"{'PYXIS_CONTAINER' if name == 'WRITABLE' else 'SCONTAINER'}_{name}={value}" for name, value in variables.items())]
        return cluster.run("srun", "-w", "node01", *options, "bash", "-euc", script, env=env)

    step("ls -A ~ /dev/shm | grep -vc -e : -e '^$' || true", CONTAIN=1).good("0")
    with rules(cluster, "writable = false\n"):
        step("touch /x && echo made", WRITABLE="yes").good("made")
    equal(len(set(step("readlink /proc/self/ns/mnt; sleep 0.3", "-n2", PRIVATE="y").good().split())), 2, "containers of two tasks")
    step("echo $(($(stat -f -c '%b*%S' /tmp)))", TMPFS_SIZE="3M").good(str(3 << 20))
    saved = os.path.join(cluster.shared, "by-variable.sqsh")
    step("true", image=with_entrypoint(cluster, "variable", "echo said by it; exec \"$@\""), ENTRYPOINT=1, ENTRYPOINT_LOG=1, SAVE="/home/shared/by-variable.sqsh").good()
    os.unlink(saved)
    done = step("true", image=with_entrypoint(cluster, "variable", "echo said by it; exec \"$@\""), ENTRYPOINT=1, ENTRYPOINT_LOG=1)
    equal(done.messages(), ["entrypoint: said by it"], "messages", done)
    for name, value, why in (("PULL", "sometimes", "newer, missing, always or never"), ("MPI", "nonsense", "image or host"), ("WRITABLE", "perhaps", "is not a boolean")):
        done = step("true", **{name: value})
        expect(done.rc != 0 and why in done.err, f"{name}={value} is not refused", done)


@test
def our_variable_beats_the_one_of_pyxis(cluster):
    cluster.srun("pwd", env=["SCONTAINER_WORKDIR=/etc", "PYXIS_CONTAINER_WORKDIR=/var"]).good("/etc")


@test
def mounts_of_an_option_replace_those_of_the_variable(cluster):
    cluster.bash("test -d /one; test ! -e /two", "--container-mounts=/home/shared:/one", env=["SCONTAINER_MOUNTS=/home/shared:/two"]).good()


@test
def an_image_in_the_environment_containerizes_the_steps_of_a_batch_job(cluster):
    cluster.batch(f"#!/bin/sh\n#SBATCH --export=ALL\nexport SCONTAINER_IMAGE={BASE}\nsrun sh -c '{IN_BASE}'\n").good("inside")


@test
def verbose_says_where_the_time_went(cluster):
    done = cluster.srun("-N2", "-n4", "--container-verbose", "true")
    done.good()
    timing = [line for line in done.messages() if line.startswith("start ")]
    equal(len(timing), 1, "timing lines", done)


@test
def verbose_says_where_the_time_of_an_import_went(cluster):
    name, _ = cluster.faulty.publish(with_probe("timed", [("data", os.urandom(100000))]))
    done = cluster.srun("-N1", "-n2", "--container-verbose", "/probe", image=name)
    timing = [line for line in done.messages() if line.startswith("import ")]
    equal(len(timing), 1, "timing lines", done)
    expect("fetch" in timing[0] and "(1 layer, " in timing[0], "no fetched layers", done)
    equal([line for line in cluster.srun("-N1", "/probe", image=name).messages() if line.startswith("import ")], [], "timing lines", done)


@test
def without_verbose_a_start_says_nothing(cluster):
    done = cluster.srun("-N2", "-n4", "true")
    done.good("")
    equal(done.err, "", "messages", done)


@test
def a_pull_says_how_far_it_is(cluster):
    name, layers = cluster.faulty.publish(with_probe("progress", [("data", os.urandom(100000))]))
    gate = cluster.faulty.hold(layers[0])
    running = cluster.start_srun("-N1", "-n4", "/probe", image=name)
    running.await_text(f"pulling {name}: 0 of 1 layers")
    gate.set()
    done = running.end()
    done.good()
    equal(done.errors(), [], "errors", done)


# --- the work directory ----------------------------------------------------------------------------------------------

@test
def the_work_directory_is_the_images(cluster):
    cluster.bash("pwd; echo $PWD").good("/workspace\n/workspace")


@test
def the_work_directory_can_be_chosen(cluster):
    cluster.bash("pwd; echo $PWD", "--container-workdir=/var/lib").good("/var/lib\n/var/lib")


@test
def a_work_directory_can_be_a_mount(cluster):
    cluster.srun("--container-mounts=/home/shared", "--container-workdir=/home/shared", "pwd").good("/home/shared")


@test
def a_relative_work_directory_starts_at_the_root(cluster):
    cluster.srun("--container-workdir=var/lib", "pwd").good("/var/lib")


@test
def a_work_directory_of_the_image_that_is_missing_is_made(cluster):
    out = cluster.srun("/probe", image=with_probe("workdir", [], WorkingDir="/made/for/me")).good()
    expect(out.endswith("in /made/for/me"), f"not there: {out}")


@test
def an_image_without_work_directory_starts_at_the_root(cluster):
    out = cluster.srun("/probe", image=with_probe("no-workdir", [])).good()
    expect(out.endswith("in /"), f"not there: {out}")


@test
def srun_chdir_does_not_reach_inside(cluster):
    cluster.srun("--chdir=/home/shared", "pwd").good("/workspace")


@test
def the_entrypoint_is_not_run(cluster):
    cluster.srun("echo", "unchanged").good("unchanged")
