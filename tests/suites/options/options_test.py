"""Every option on srun, sbatch and salloc, its environment variables, and their precedence."""
import os
import threading
import re

from entrypoint_test import with_entrypoint
from errors_test import Config
from images import with_probe
from harness import add, equal, expect, test
from functools import partial
from plugstack import plugstack
from site_files import rules
from outcomes import outcome

QUICK = True

BASE = "registry:5000/suites/base:1"
IN_BASE = "test -e /workspace/file && echo inside || echo outside"


@test
def step_without_option_runs_outside(cluster):
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
def image_names_of_pyxis_are_all_accepted(cluster):
    for name in (BASE, "docker://" + BASE, "registry:5000#suites/base:1", "REGISTRY:5000/suites/base:1"):
        cluster.srun("sh", "-c", IN_BASE, image=name).good("inside")


@test
def image_named_by_digest_starts(cluster):
    image = with_probe("digest", [("by-digest", b"yes\n")])
    cluster.push(image)
    from images import digest_of
    manifest = digest_of(image.parts()[0])
    done = cluster.srun("/probe", "/by-digest", image=f"registry:5000/suites/digest@{manifest}")
    expect("yes" in done.good(), "not that image", done)


@test
@outcome(39, "accepted", "tag moves between HEAD and GET")
def tag_that_moves_is_followed_by_the_next_step(cluster):
    for text in (b"first\n", b"second\n"):
        name, _ = cluster.faulty.publish(with_probe("moving", [("which", text)]))
        out = cluster.srun("/probe", "/which", image=name).good()
        expect(text.decode() in out, f"not the image that has the tag now: {out}")


def image_over_tls(cluster):
    cluster.srun("sh", "-c", IN_BASE, image="registry:5443/suites/base:1").good("inside")


add(__name__, "registry_with_site_certificate_is_trusted", image_over_tls)


@test
def sbatch_runs_the_script_in_the_image(cluster):
    done = cluster.batch("#!/bin/sh\n" + IN_BASE + "\n", f"--container-image={BASE}")
    done.good("inside")


@test
def batch_script_can_name_its_image(cluster):
    script = f"#!/bin/bash\n#SBATCH --container-image={BASE}\n#SBATCH --container-workdir=/etc\n{IN_BASE}\npwd\n"
    cluster.batch(script).good("inside\n/etc")


@test
def options_all_work_in_a_batch_script(cluster):
    lines = ["container-mounts=/home/shared:/shown:ro", "container-env=GREETER", "container-readonly", "container-mount-home", "container-verbose",
             f"container-image={BASE}", "container-workdir=/shown"]
    script = "#!/bin/bash\n" + "".join(f"#SBATCH --{line}\n" for line in lines) + """
pwd; echo $GREETER; touch /new 2>/dev/null || echo read-only; grep -o ' /home/alice' /proc/self/mountinfo\n"""
    done = cluster.batch(script, env=["GREETER=job"])
    said = [line for line in done.good().splitlines() if "spank-container: " not in line]
    equal(said, ["/shown", "job", "read-only", " /home/alice"], "output", done)
    expect("spank-container: start " in done.out, "no timing line", done)


@test
def batch_script_sees_itself_inside_read_only(cluster):
    script = f"#!/bin/bash\n#SBATCH --container-image={BASE}\n# a mark\ngrep -c 'a [m]ark' $0\necho x >>$0 || echo refused\n"
    done = cluster.batch(script)
    equal(done.good().splitlines()[0], "1", "lines with the mark", done)
    expect(done.out.strip().endswith("refused"), "the script could be changed", done)


@test
def batch_script_outside_can_run_steps_inside(cluster):
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
def concurrent_steps_of_an_allocation_have_own_containers(cluster):
    step = f"srun --overlap -n1 --container-image={BASE} sh -c 'echo $0 >/mark; sleep 0.5; cat /mark' "
    done = cluster.run("salloc", "-N1", "-n2", "sh", "-c", f"{step} one & {step} two & wait")
    equal(sorted(done.good().split()), ["one", "two"], "marks", done)


@test
def step_can_join_a_running_job(cluster):
    job = cluster.submit("#!/bin/sh\nsleep 20\n")
    try:
        cluster.await_state(job, "RUNNING")
        cluster.srun(f"--jobid={job}", "--overlap", "sh", "-c", IN_BASE, timeout=15).good("inside")
    finally:
        cluster.run("scancel", str(job))


# --- repeated and inherited options ---------------------------------------------------------------

@test
def list_option_can_be_given_several_times(cluster):
    options = ["--container-mounts=/home/shared:/one", "--container-mounts=/home/shared:/two,/home/shared:/three", "--container-env=A", "--container-env=B"]
    for more in ([], ["--export=NONE"]):
        cluster.bash("test -d /one -a -d /two -a -d /three", *options, *more).good()
    cluster.bash("echo $GREETER $SUITE", "--container-env=GREETER", "--container-env=SUITE", env=["GREETER=job", "SUITE=job"]).good("job job")
    out = cluster.batch("#!/bin/bash\nls -d /one /two /three\n", f"--container-image={BASE}", *options[:2]).good()
    equal(out.split(), ["/one", "/three", "/two"], "mounts in the script")


INHERITED = ["container-batch=steps", f"container-image={BASE}", "container-mounts=/home/shared:/one", "container-mounts=/home/shared:/two",
             "container-workdir=/etc", "container-readonly", "no-container-mount-home"]


@test
def srun_in_batch_job_inherits_options_of_sbatch(cluster):
    script = "#!/bin/bash\n" + "".join(f"#SBATCH --{line}\n" for line in INHERITED) + f"""{IN_BASE}; pwd
srun bash -c 'pwd; ls -d /one /two; touch /new 2>/dev/null || echo read-only'\n"""
    out = cluster.batch(script).good().splitlines()
    equal(out, ["outside", "/home/alice", "/etc", "/one", "/two", "read-only"], "output")


@test
def srun_in_batch_job_can_override_options(cluster):
    other = cluster.push(with_probe("other", []))
    script = "#!/bin/bash\n" + "".join(f"#SBATCH --{line}\n" for line in INHERITED) + f"""
srun --container-workdir=/usr --container-writable --container-mount-home bash -c 'pwd; touch /new && echo written; grep -o " /home/alice " /proc/self/mountinfo'
srun --container-mounts=/home/shared:/three bash -c 'ls -d /[ot][nwh][eor]*'
srun --container-image={other} /probe
srun --container-image={BASE} --container-image={other} /probe || echo refused\n"""
    out = [line.strip() for line in cluster.batch(script).good().splitlines() if "pulling" not in line and "pulled" not in line]
    equal(out[:4], ["/usr", "written", "/home/alice", "/three"], "output")
    expect("in /etc" in out[4] and out[-1] == "refused" and "specified multiple times" in " ".join(out[5:]), f"output: {out}")


# --- the script of a batch job -------------------------------------------------------------------------------------------

@test
def steps_alone_of_a_batch_job_can_be_in_containers(cluster):
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
def srun_in_contained_script_starts_its_own_container(cluster):
    """It has the image without an option."""
    script = "#!/bin/sh\necho one >/mark; srun sh -c 'test -e /workspace/file -a ! -e /mark && echo inside'\n"
    out = cluster.batch(script, f"--container-image={BASE}", "--container-slurm").good()
    # After Slurm's message that /workspace is not on the host.
    equal(out.splitlines()[-1], "inside", f"last line of {out!r}")


# --- environment variables ------------------------------------------------------------------------

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
        add(__name__, f"variable_{prefix}{twin}_counts_as_the_option".lower(), partial(twin_works, prefix, twin))


@test
def verbose_variable_counts_as_the_option(cluster):
    done = cluster.srun("true", env=["SCONTAINER_VERBOSE=1"])
    expect(any(line.startswith("start ") for line in done.messages()), "no timing line", done)


@test
@outcome(1, "refused", "empty image option; option twice")
def option_overrides_its_variable(cluster):
    cluster.srun("--container-workdir=/usr", "pwd", env=["SCONTAINER_WORKDIR=/etc", "PYXIS_CONTAINER_WORKDIR=/var"]).good("/usr")


@test
def variables_of_other_options_work_like_the_options(cluster):
    """The variables that no other test sets."""
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
def own_variable_overrides_the_one_of_pyxis(cluster):
    cluster.srun("pwd", env=["SCONTAINER_WORKDIR=/etc", "PYXIS_CONTAINER_WORKDIR=/var"]).good("/etc")


@test
def variable_set_in_a_job_overrides_options_of_sbatch(cluster):
    """The nearest counts: srun's options, variables of the job, options of sbatch, variables from before."""
    script = ("#!/bin/sh\nsrun id -u\nPYXIS_CONTAINER_REMAP_ROOT=0 srun id -u\nSCONTAINER_WORKDIR=/usr srun pwd\n"
              "PYXIS_CONTAINER_REMAP_ROOT=0 srun --container-remap-root id -u\nPYXIS_CONTAINER_REMAP_ROOT= SCONTAINER_WORKDIR= srun pwd\n")
    options = ("-w", "node01", f"--container-image={BASE}", "--container-batch=steps", "--container-remap-root", "--container-workdir=/etc")
    cluster.batch(script, *options).good("0\n2001\n/usr\n0\n/etc")
    cluster.batch("#!/bin/sh\nsrun id -u\n", *options, env=["PYXIS_CONTAINER_REMAP_ROOT=0"]).good("0")
    alone = "PYXIS_CONTAINER_REMAP_ROOT=0 srun id -u"
    equal(cluster.run("salloc", "-Q", *options, "sh", "-c", alone, timeout=60).good(), "2001", "user in an allocation's shell")


@test
def remap_root_variable_overrides_site_default(cluster):
    with rules(cluster, "remap_root = true\n"):
        equal([cluster.srun("-w", "node01", "id", "-u", env=env).good() for env in ([], ["PYXIS_CONTAINER_REMAP_ROOT=0"], ["PYXIS_CONTAINER_REMAP_ROOT="])],
              ["0", "2001", "0"], "users")


@test
def mounts_of_an_option_replace_those_of_the_variable(cluster):
    cluster.bash("test -d /one; test ! -e /two", "--container-mounts=/home/shared:/one", env=["SCONTAINER_MOUNTS=/home/shared:/two"]).good()


@test
def image_variable_containerizes_the_steps_of_a_batch_job(cluster):
    cluster.batch(f"#!/bin/sh\n#SBATCH --export=ALL\nexport SCONTAINER_IMAGE={BASE}\nsrun sh -c '{IN_BASE}'\n").good("inside")


@test
def verbose_reports_start_times(cluster):
    done = cluster.srun("-N2", "-n4", "--container-verbose", "true")
    done.good()
    timing = [line for line in done.messages() if line.startswith("start ")]
    equal(len(timing), 1, "timing lines", done)


@test
def verbose_reports_import_times(cluster):
    name, _ = cluster.faulty.publish(with_probe("timed", [("data", os.urandom(100000))]))
    done = cluster.srun("-N1", "-n2", "--container-verbose", "/probe", image=name)
    timing = [line for line in done.messages() if line.startswith("import ")]
    equal(len(timing), 1, "timing lines", done)
    expect("fetch" in timing[0] and "(1 layer, " in timing[0], "no fetched layers", done)
    equal([line for line in cluster.srun("-N1", "/probe", image=name).messages() if line.startswith("import ")], [], "timing lines", done)


@test
def start_without_verbose_is_silent(cluster):
    done = cluster.srun("-N2", "-n4", "true")
    done.good("")
    equal(done.err, "", "messages", done)


@test
def pull_reports_progress(cluster):
    name, layers = cluster.faulty.publish(with_probe("progress", [("data", os.urandom(100000))]))
    gate = cluster.faulty.hold(layers[0])
    running = cluster.start_srun("-N1", "-n4", "/probe", image=name)
    running.await_text(f"pulling {name}: 0 of 1 layers")
    gate.set()
    done = running.end()
    done.good()
    equal(done.errors(), [], "errors", done)
    expect(re.search(f"pulled {name}: [0-9]+ kB in [0-9.]+ s, 1 of 1 layers", done.err), "no closing line", done)


@test
def pull_on_a_terminal_is_one_bar(cluster):
    name, layers = cluster.faulty.publish(with_probe("progress-bar", [("data", os.urandom(3000000))]))
    gate = cluster.faulty.hold(layers[0])
    threading.Timer(1.5, gate.set).start()
    done = cluster.run("python3", "-c", "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))", "srun", "--pty",
                       "-N1", f"--container-image={name}", "/probe")
    bar = r"pulling \S+: \[[#.]{20}\] 0 of 1 layers, [0-9.]+ of 3\.\d MB"
    above = r"\s+spank-container: \s+\x1b\[K\x1b\[A\x1b\[Kspank-container: "
    expect(done.rc == 0 and re.search(bar + above + r"pulled \S+: 3\.\d MB in ", done.out), "the bar is not replaced", done)


# --- the work directory ----------------------------------------------------------------------------------------------

@test
def work_directory_is_that_of_the_image(cluster):
    cluster.bash("pwd; echo $PWD").good("/workspace\n/workspace")


@test
def work_directory_can_be_chosen(cluster):
    cluster.bash("pwd; echo $PWD", "--container-workdir=/var/lib").good("/var/lib\n/var/lib")


@test
def work_directory_can_be_a_mount(cluster):
    cluster.srun("--container-mounts=/home/shared", "--container-workdir=/home/shared", "pwd").good("/home/shared")


@test
def relative_work_directory_starts_at_the_root(cluster):
    cluster.srun("--container-workdir=var/lib", "pwd").good("/var/lib")


@test
@outcome(73, "contained", "work directory that is a link, missing, a file")
def missing_work_directory_of_the_image_is_created(cluster):
    out = cluster.srun("/probe", image=with_probe("workdir", [], WorkingDir="/made/for/me")).good()
    expect(out.endswith("in /made/for/me"), f"not there: {out}")


@test
def image_without_work_directory_starts_at_the_root(cluster):
    out = cluster.srun("/probe", image=with_probe("no-workdir", [])).good()
    expect(out.endswith("in /"), f"not there: {out}")


@test
def srun_chdir_has_no_effect_inside(cluster):
    cluster.srun("--chdir=/home/shared", "pwd").good("/workspace")


@test
@outcome(76, "refused", "entrypoint that cannot be run")
def entrypoint_is_not_run_by_default(cluster):
    cluster.srun("echo", "unchanged").good("unchanged")
