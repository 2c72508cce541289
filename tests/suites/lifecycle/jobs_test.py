"""All ways to start a command in a container behave as without a container."""
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

import local_files
from cluster import PROGRAM
from command import await_true
from errors_test import Config
from site_test import Slurm
from images import with_probe
from harness import Failed, equal, expect, test

BASE = "registry:5000/suites/base:1"
IMAGE = f"--container-image={BASE}"


class Terminal:
    """A command of alice on its own terminal with 37 lines and 91 columns."""

    def __init__(self, cluster, *argv, env=()):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["SPC_CLUSTER_DIR"] = cluster.state
            os.execv(PROGRAM, [PROGRAM, "as", "alice", "env", *env, *argv])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 37, 91, 0, 0))
        self.text = ""

    def await_text(self, pattern, timeout=15):
        """Returns the output up to the end of the match, and discards it."""
        deadline = time.monotonic() + timeout
        while (found := re.search(pattern, self.text)) is None:
            if not select.select([self.fd], [], [], max(0, deadline - time.monotonic()))[0]:
                raise Failed(f"the terminal did not show {pattern!r} but {self.text!r}")
            try:
                self.text += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:
                raise Failed(f"it ended without {pattern!r}: {self.text!r}") from None
        self.text = self.text[found.end():]
        return found

    def type(self, text):
        os.write(self.fd, text.encode())

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGHUP)
        os.close(self.fd)
        os.waitpid(self.pid, 0)


@contextlib.contextmanager
def terminal(cluster, *argv, **how):
    one = Terminal(cluster, *argv, **how)
    try:
        yield one
    finally:
        one.close()


def both(cluster, *command, **how):
    """Runs the same command outside and inside."""
    return cluster.run("srun", *command, **how), cluster.srun(*command, **how)


def same(cluster, *command, **how):
    outside, inside = both(cluster, *command, **how)
    equal((inside.rc, inside.out), (outside.rc, outside.out), f"exit code and output of {command}", inside)
    return inside


# --- terminals -------------------------------------------------------------------------------------------------------

@test
def terminal_has_name_size_and_job_control(cluster):
    with terminal(cluster, "srun", "--pty", IMAGE, "bash", "--norc") as shell:
        shell.type("PS1=; test -e /workspace/replaced && tty && stty size; set -m\n")
        shell.await_text(r"/dev/pts/\d+\r\n37 91\r\n")
        shell.type("sleep 1000\n")
        time.sleep(0.3)
        shell.type("\x03")
        shell.type("echo ended with $?\n")
        shell.await_text("ended with 130\r\n")
        shell.type("sleep 1000\n")
        time.sleep(0.3)
        shell.type("\x1a")
        shell.await_text("Stopped")
        shell.type("kill %1; exit 3\n")
        shell.await_text("exit code 3|Exited with|exit\r\n")


@test
def prompt_names_the_container(cluster):
    for options, command, name in (([], ["bash", "--norc"], "base:1"), (["--container-name=mine"], ["bash", "--norc"], "mine"), ([], ["sh"], "base:1")):
        with terminal(cluster, "srun", "--pty", "-w", "node01", IMAGE, *options, *command) as shell:
            shell.await_text(rf"{name}:")
            shell.type("echo in $debian_chroot; exit\n")
            shell.await_text(rf"in {name}\r\n")
    with terminal(cluster, "srun", "--pty", IMAGE, "--container-env=PS1", "bash", "--norc", env=["PS1=of the job>"]) as shell:
        shell.await_text("of the job>")
        shell.type("exit\n")
    cluster.srun("-n1", "sh", "-c", "env | grep -c -e ^PS1= -e ^debian_chroot= || true").good("0")
    cluster.run("srun", "-w", "node01", "--container-name=mine:remove", "true").good()


@test
def salloc_shell_runs_in_the_container(cluster):
    """With use_interactive_step, which salloc itself reads."""
    conf = os.path.join(cluster.etc, "slurm/interactive.conf")
    with open(os.path.join(cluster.etc, "slurm/slurm.conf")) as usual, open(conf, "w") as file:
        file.write(usual.read() + "LaunchParameters=use_interactive_step\n")
    try:
        with terminal(cluster, "salloc", "-n1", IMAGE, env=["SLURM_CONF=/etc/slurm/interactive.conf", "SHELL=/bin/bash"]) as shell:
            shell.type("cat /workspace/replaced; hostname; tty\n")
            shell.await_text(r"upper\r\n(.|\n)*node0\d\r\n(.|\n)*/dev/pts/\d+\r\n")
            shell.type("exit\n")
            shell.await_text("Relinquishing")
    finally:
        os.unlink(conf)


@test
def forwarded_display_can_be_used(cluster):
    listen = "import socket; s = socket.create_server(('127.0.0.1', 6010)); s.accept()[0].sendall(b'hello from X')"
    server = cluster.start_program("exec", "head", "python3", "-c", listen)
    cluster.run("sh", "-c", "touch .Xauthority; xauth -q add localhost:10 MIT-MAGIC-COOKIE-1 00112233445566778899aabbccddeeff").good()
    ask = "grep -c MIT-MAGIC $XAUTHORITY; D=${DISPLAY#*:}; exec 3<>/dev/tcp/localhost/$((6000 + ${D%.*})); head -c 12 <&3"
    try:
        with Slurm(cluster, ["PrologFlags=Alloc,Contain,X11"]):
            cluster.srun("--x11", "bash", "-c", ask, env=["DISPLAY=localhost:10.0"]).good("1\nhello from X")
    finally:
        server.send(signal.SIGTERM)
        server.end(5)


# --- steps of a job --------------------------------------------------------------------------------------------------

@test
def steps_of_an_allocation_use_its_image(cluster):
    done = cluster.run("salloc", "-n1", IMAGE, "sh", "-c", "test ! -e /workspace/replaced && srun cat replaced")
    done.good("upper")


@test
def step_enters_a_running_job(cluster):
    job = cluster.submit("#!/bin/sh\nsleep 60\n", "-w", "node01")
    cluster.await_state(job, "RUNNING")
    try:
        cluster.srun("--overlap", f"--jobid={job}", "sh", "-c", "cat replaced; echo $SLURM_JOB_ID").good(f"upper\n{job}")
    finally:
        cluster.run("scancel", str(job)).good()
        cluster.await_job(job)


@test
def sattach_shows_and_feeds_a_contained_step(cluster):
    step = cluster.start_srun("-w", "node01", "-J", "attached", "sh", "-c", "echo up; while test ! -e /tmp/go; do sleep 0.1; echo on; done")
    step.await_text("up")
    job = cluster.run("squeue", "-h", "-n", "attached", "-o", "%i").good()
    watcher = cluster.start("sattach", f"{job}.0")
    watcher.await_text("on")
    cluster.run("scancel", job).good()
    watcher.end(15)
    step.end(15)


@test
def multi_prog_programs_all_run_in_the_container(cluster):
    with open(os.path.join(cluster.shared, "multi-prog.conf"), "w") as file:
        file.write("0 greet %t\n1 cat /workspace/replaced\n2 printenv SLURM_NTASKS\n")
    done = cluster.srun("-n3", "-l", "--multi-prog", "/home/shared/multi-prog.conf")
    equal(sorted(done.good().splitlines()), ["0: hello from base in /workspace: 0", "1: upper", "2: 3"], "output", done)


@test
def array_elements_have_a_container_each(cluster):
    script = f"#!/bin/sh\n#SBATCH {IMAGE}\nls /tmp\necho x >/tmp/$SLURM_ARRAY_TASK_ID\necho y >/mine\nsleep 0.5\nls /tmp\n"
    job = cluster.submit(script, "--array=1-2", "-w", "node01", "-o", "/home/alice/element-%a.out")
    await_true(lambda: not cluster.inquirer.ask(f"squeue -h -j {job}"), 20, "the array does not end")
    out = [open(os.path.join(cluster.home, f"alice/element-{number}.out")).read().split() for number in (1, 2)]
    equal(out, [["1"], ["2"]], "what each element has seen")


# --- input, output, environment --------------------------------------------------------------------------------------

@test
def input_reaches_the_selected_task(cluster):
    done = cluster.srun("-n2", "-l", "--input=1", "cat", stdin="through\n")
    equal(done.good(), "1: through", "output", done)


@test
def tasks_have_their_own_output_files(cluster):
    cluster.srun("-n2", "-o", "/home/alice/task-%t", "sh", "-c", "cat replaced; echo $SLURM_PROCID").good()
    for task in ("0", "1"):
        equal(open(os.path.join(cluster.home, f"alice/task-{task}")).read(), f"upper\n{task}\n", "file")


@test
def limits_are_as_without_a_container(cluster):
    for command in (("--propagate=ALL", "sh", "-c", "ulimit -n; ulimit -c; ulimit -s"),
                    ("sh", "-c", "grep -E '^(Cpus|Mems)_allowed_list|^SigIgn|^SigBlk|^SigCgt' /proc/self/status; umask"),
                    ("--cpu-bind=none", "nice")):
        same(cluster, *command)


@test
def job_without_exported_variables_works(cluster):
    done = cluster.run("srun", "--export=NONE", IMAGE, "sh", "-c", "echo $USER $HOME ${FROM_OUTSIDE-none}; cat replaced", env=["FROM_OUTSIDE=1"])
    done.good("alice /home/alice none\nupper")


@test
def selected_variables_are_exported(cluster):
    done = cluster.srun("--export=ONE=1,TWO", "sh", "-c", "echo $ONE $TWO ${THREE-none}", env=["TWO=2", "THREE=3"])
    done.good("1 2 none")


# --- descriptors, as cron and daemons leave them ---------------------------------------------------------------------

CLOSED = ("0>&-", "1>&-", "2>&-", "0>&- 1>&-", "0>&- 2>&-", "1>&- 2>&-", "0>&- 1>&- 2>&-")


def in_container(cluster, command, timeout=25):
    """Runs `command` in a shell of alice. Its step records its image."""
    path = os.path.join(cluster.home, "alice/which")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    began = time.monotonic()
    cluster.run("sh", "-c", command, timeout=timeout).good()
    expect(time.monotonic() - began < 20, f"{command} took {time.monotonic() - began:.0f} s")
    equal(open(path).read(), "upper\n", f"what the step of {command} wrote")


STEP = "srun -N1 -n1 -o /home/alice/which"


@test
def step_starts_with_closed_descriptors(cluster):
    file = local_files.squashfs(cluster)
    for closed in CLOSED:
        in_container(cluster, f"{STEP} {IMAGE} cat /workspace/replaced {closed}")
        in_container(cluster, f"{STEP} --container-image={file} cat /workspace/replaced {closed}")
    done = cluster.run("sh", "-c", f"srun -N2 -n2 {IMAGE} cat replaced - 0>&-")
    done.good("upper\nupper")


@test
def job_starts_with_closed_descriptors(cluster):
    for closed in CLOSED:
        in_container(cluster, f"salloc -N1 {IMAGE} {STEP} cat replaced {closed}")
    for closed in CLOSED[::3]:
        in_container(cluster, f"sbatch --wait -o /home/alice/which {IMAGE} --wrap 'cat replaced' {closed}")
        in_container(cluster, f"sbatch --wait {IMAGE} --container-batch=steps --wrap '{STEP} cat replaced' {closed}")


@test
def step_starts_with_few_descriptors(cluster):
    """With the minimum of plain Slurm. Errors are then not collected."""
    for limit in (20, 24, 32, 64, 100):
        equal(cluster.run("sh", "-c", f"ulimit -n {limit}; exec srun true").rc, 0, f"exit code of plain Slurm with {limit}")
        in_container(cluster, f"ulimit -n {limit}; exec {STEP} {IMAGE} cat replaced")
        done = cluster.run("sh", "-c", f"ulimit -n {limit}; exec srun -N2 -n2 {IMAGE} sh -c 'cat replaced; ls /proc/self/fd | wc -l'")
        equal(sorted(done.good().split()), ["4", "4", "upper", "upper"], "image and descriptors of each task", done)
        refused = cluster.run("sh", "-c", f"ulimit -n {limit}; exec srun {IMAGE} --container-mounts=/nowhere:/x true")
        expect(refused.rc == 1 and "/nowhere" in refused.err, "a wrong mount is not refused", refused)


# --- ends ------------------------------------------------------------------------------------------------------------

@test
def bad_exit_kills_the_other_tasks(cluster):
    began = time.monotonic()
    done = same(cluster, "-n2", "--kill-on-bad-exit=1", "sh", "-c", "test $SLURM_PROCID = 1 || exit 9; exec sleep 60")
    expect(done.rc != 0 and time.monotonic() - began < 25, "the tasks were not killed", done)


@test
def signals_reach_batch_script_alone_or_its_steps(cluster):
    script = (f"#!/bin/bash\n#SBATCH {IMAGE}\ntrap 'echo script; exit' USR1\necho up >/home/alice/up\n"
              "for i in {1..100}; do sleep 0.05; done\n")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(cluster.home, "alice/up"))
    job = cluster.submit(script, "--container-mount-home")
    await_true(lambda: os.path.exists(os.path.join(cluster.home, "alice/up")), 10, "the script does not run")
    cluster.run("scancel", "-b", "-s", "USR1", str(job)).good()
    cluster.await_job(job)
    equal(open(os.path.join(cluster.home, f"alice/{job}.out")).read(), "script\n", "output")


@test
def task_epilog_runs_on_the_host(cluster):
    path, said = (os.path.join(cluster.home, "alice", name) for name in ("epilog", "epilog-said"))
    with open(path, "w") as file:
        file.write("#!/bin/sh\ntest -e /workspace/replaced && echo inside >/home/alice/epilog-said || echo outside >/home/alice/epilog-said\n")
    os.chmod(path, 0o755)
    cluster.srun("--task-epilog=/home/alice/epilog", "true").good()
    equal(open(said).read(), "outside\n", "where it ran")


PROLOG = """#!/bin/sh
test -e /workspace/file && where=inside || where=outside
echo export  FROM_PROLOG=$where of $SLURM_PROCID
echo export BASE=of the prolog
echo unset GONE
echo print hello from $SLURM_SCRIPT_CONTEXT
echo this means nothing
exit ${PROLOG_STATUS-0}
"""


@test
def site_task_prolog_runs_on_the_host(cluster):
    show = ("-l", "-n2", "sh", "-c", "echo $FROM_PROLOG, $BASE, ${GONE-gone}, $SLURM_SCRIPT_CONTEXT")
    with Slurm(cluster, ["TaskProlog=/etc/slurm/task_prolog.sh"]), Config(cluster, "task_prolog_on_host = true\n"):
        path = os.path.join(cluster.etc, "slurm/task_prolog.sh")
        with open(path, "w") as file:
            file.write(PROLOG)
        os.chmod(path, 0o755)
        try:
            outside, inside = both(cluster, *show, env=["GONE=1"])
            equal(sorted(inside.out.splitlines()), sorted(outside.out.splitlines()), "output", inside)
            expect("1: outside of 1, of the prolog, gone, prolog_task" in inside.out.splitlines(), "it did not run", inside)
            outside, inside = both(cluster, "-n1", "-wnode01", "true", env=["PROLOG_STATUS=7"])
            # The lines of srun and of slurmstepd arrive through different channels.
            said = [(done.rc, sorted(done.err.splitlines())) for done in (inside, outside)]
            equal(said[0], said[1], "exit code and messages", inside)
            expect(inside.rc == 7, "the status is lost", inside)
            done = cluster.batch(f"#!/bin/sh\n#SBATCH {IMAGE}\necho $FROM_PROLOG\n")
            equal(done.good().splitlines(), ["hello from prolog_task", "outside of 0"], "output of the batch job", done)
        finally:
            os.unlink(path)


@test
def task_prolog_missing_in_image_is_reported_once(cluster):
    with Slurm(cluster, ["TaskProlog=/etc/slurm/task_prolog.sh"]):
        path = os.path.join(cluster.etc, "slurm/task_prolog.sh")
        with open(path, "w") as file:
            file.write(PROLOG)
        os.chmod(path, 0o755)
        try:
            done = cluster.srun("-N2", "-n4", "true")
            equal(done.messages(), ["warning: TaskProlog /etc/slurm/task_prolog.sh does not exist in the container (hint: --container-mounts=/etc/slurm/task_prolog.sh,"
                                    " or the administrator can set task_prolog_on_host = true)"], "messages", done)
            mounted = cluster.srun("--container-mounts=/etc/slurm/task_prolog.sh", "sh", "-c", "echo $FROM_PROLOG")
            equal((mounted.good().splitlines()[-1], mounted.messages()), ("inside of 0", []), "what is mounted", mounted)
            with Config(cluster, "task_prolog_on_host = true\n"):
                equal(cluster.srun("true").messages(), [], "messages of a step whose prolog runs on the host")
        finally:
            os.unlink(path)


@test
def explain_of_running_container_skips_site_task_prolog(cluster):
    script = f"""#!/bin/bash
srun --overlap {IMAGE} --container-name=shown --container-mounts=/home/shared touch /home/shared/shown
srun --overlap {IMAGE} --container-name=shown --container-mounts=/home/shared sh -c 'until test -e /home/shared/end; do sleep 0.1; done' &
until test $(wc -l < /home/alice/prologs) = 3; do sleep 0.1; done
srun --overlap --container-name=shown --container-explain true 2>/dev/null
touch /home/shared/end
wait
wc -l < /home/alice/prologs
"""
    with Slurm(cluster, ["TaskProlog=/etc/slurm/task_prolog.sh"]), Config(cluster, "task_prolog_on_host = true\n"):
        path = os.path.join(cluster.etc, "slurm/task_prolog.sh")
        with open(path, "w") as file:
            file.write("#!/bin/sh\necho $SLURM_STEP_ID >> /home/alice/prologs\n")
        os.chmod(path, 0o755)
        try:
            done = cluster.batch(script, "-w", "node01")
        finally:
            for left in (path, *(os.path.join(cluster.shared, name) for name in ("shown", "end"))):
                os.unlink(left)
    equal(done.good(), "3", "prologs, of the batch script and two steps", done)


@test
def requeued_job_runs_again(cluster):
    mark = os.path.join(cluster.shared, "requeued")
    script = f"#!/bin/sh\n#SBATCH {IMAGE}\necho run $SLURM_RESTART_COUNT\nif test -z \"$SLURM_RESTART_COUNT\"; then echo >/home/shared/requeued; sleep 60; fi\n"
    job = cluster.submit(script, "--requeue", "-w", "node01", "--container-mounts=/home/shared", "--open-mode=append")
    await_true(lambda: os.path.exists(mark), 10, "the first run does not begin")
    cluster.run("scontrol", "requeue", str(job)).good()
    await_true(lambda: cluster.inquirer.ask(f"squeue -h -j {job} -o %T") == ["PENDING"], 15, "it is not pending again")
    cluster.run("scontrol", "update", f"jobid={job}", "starttime=now", user="root").good()
    fields = cluster.await_job(job, timeout=20)
    os.unlink(mark)
    equal(fields["JobState"], "COMPLETED", "state")
    expect("run 1" in open(os.path.join(cluster.home, f"alice/{job}.out")).read().splitlines(), "there was no second run")


@test
def job_requeued_during_pull_runs_again(cluster):
    name, layers = cluster.faulty.publish(with_probe("requeued-pull", [("data", os.urandom(1 << 20))]))
    gate, store = cluster.faulty.hold(layers[0]), cluster.stores()
    job = cluster.submit("#!/probe\n", f"--container-image={name}", "-w", "node01", "--requeue", "--open-mode=append")
    await_true(lambda: cluster.processes("node01", "layer-writer"), 10, "the pull did not begin")
    cluster.run("scontrol", "requeue", str(job)).good()
    cluster.must_be_quiet(within=3, store=store)
    gate.set()
    time.sleep(1)  # "Job already killed, do not launch batch job": slurmd compares whole seconds
    cluster.run("scontrol", "update", f"jobid={job}", "starttime=now", user="root").good()
    fields = cluster.await_job(job)
    equal((fields["JobState"], fields["Restarts"]), ("COMPLETED", "1"), "state and number of restarts")
