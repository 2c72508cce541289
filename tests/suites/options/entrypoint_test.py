"""--container-entrypoint: scripts that images run before the command, and changes that they may
make for the tasks."""
import functools
import os
import subprocess
import tempfile
import time

import local_files
from cluster import kill_all
from command import OPEN, await_true
from images import Image, with_probe
from harness import equal, expect, test
from outcomes import outcome

ON = ("-w", "node01", "--container-entrypoint")
COUNT = "/home/shared/entrypoint-runs"


def with_entrypoint(cluster, name, script, *arguments, **config):
    """Makes the base image with this sh script as its entrypoint."""
    config = {"Entrypoint": ["/entry", *arguments], **config}
    return Image(f"suites/entry-{name}", [[("entry", f"#!/bin/sh\n{script}\n".encode())]], config, below=cluster.base_layout)


def counting(cluster):
    path = os.path.join(cluster.shared, "entrypoint-runs")
    open(path, "w").close()
    os.chmod(path, 0o666)
    return path


WRAP = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
  setenv("OF_WRAP", "1", 1);
  printf("wrapped %d\n", argc);
  fflush(stdout);
  if (chdir("/there") != 0) return 1;
  execv(argv[1], argv + 1);
  return 9;
}
"""


@functools.cache
def static(source):
    with tempfile.TemporaryDirectory() as directory:
        text, program = os.path.join(directory, "x.c"), os.path.join(directory, "x")
        with open(text, "w") as file:
            file.write(source)
        subprocess.run(["cc", "-static", "-Os", "-s", "-o", program, text], check=True)
        return open(program, "rb").read()


def said(done):
    """Returns this project's lines except those of a pull."""
    return [line for line in done.messages() if not line.startswith(("pulling ", "pulled "))]


class Configured:
    """Temporary lines at the beginning of config.toml."""

    def __init__(self, cluster, *lines):
        self.path, self.lines = os.path.join(cluster.etc, "spank-container/config.toml"), lines

    def __enter__(self):
        self.before = open(self.path).read()
        self._write("\n".join([*self.lines, self.before]))

    def __exit__(self, *_):
        self._write(self.before)

    def _write(self, text):
        with open(self.path, "w") as file:
            file.write(text)


@test
def entrypoint_runs_once_per_node_on_request(cluster):
    count = counting(cluster)
    image = with_entrypoint(cluster, "count", f'echo run >>{COUNT}; export OF_ENTRY="two words" GREETER=entry; exec "$@"')
    options = ["-N2", "-n4", "--container-mounts=/home/shared"]
    command = ["sh", "-c", "echo $OF_ENTRY $GREETER"]
    cluster.srun(*options, *command, image=image).good("base\n" * 4)
    equal(open(count).read(), "", "runs without the option")
    cluster.srun(*options, "--container-entrypoint", *command, image=image).good("two words entry\n" * 4)
    equal(open(count).read(), "run\n" * 2, "runs")


@test
def entrypoint_runs_per_task_when_configured(cluster):
    count = counting(cluster)
    image = with_entrypoint(cluster, "count-tasks", f'echo run >>{COUNT}; export OF_ENTRY=$SLURM_PROCID; exec "$@"')
    with Configured(cluster, 'entrypoint = "task"'):
        step = ["-n3", "--container-mounts=/home/shared"]
        out = cluster.srun(*step, "sh", "-c", "echo $OF_ENTRY", image=image).good()
        equal(sorted(out.split()), ["0", "1", "2"], "output")
        equal(open(count).read(), "run\n" * 3, "runs")
        cluster.srun(*step, "--no-container-entrypoint", "true", image=image).good()
        equal(open(count).read(), "run\n" * 3, "runs with the opposite option")


@test
def task_that_alone_fails_to_enter_reports_why(cluster):
    """Not the first task, which otherwise reports the common error."""
    image = with_entrypoint(cluster, "only-third", 'test $SLURM_LOCALID != 2 || exit 7; exec "$@"')
    with Configured(cluster, 'entrypoint = "task"'):
        done = cluster.srun(*ON, "-n4", "echo", "in", image=image)
    equal((done.rc, done.out, len(done.errors())), (1, "in\n" * 3, 1), "exit code, output and error lines", done)
    expect("exited with status 7" in done.errors()[0], "the line does not say why", done)


@test
def private_containers_run_the_entrypoint_each(cluster):
    image = with_entrypoint(cluster, "private", 'test ! -e /mine; touch /mine; exec "$@"')
    cluster.srun(*ON, "-n2", "--container-private", "sh", "-c", "ls /mine", image=image).good("/mine\n" * 2)


@test
def entrypoint_runs_as_root_of_the_container(cluster):
    image = with_entrypoint(cluster, "root", 'export WHO=$(id -u); chown 5 /entry; exec "$@"')
    cluster.srun(*ON, "-n2", "--container-remap-root", "sh", "-c", "echo $WHO", image=image).good("0\n" * 2)


@test
def verbose_reports_entrypoint_duration(cluster):
    image = with_entrypoint(cluster, "timed", 'sleep 0.3; exec "$@"')
    done = cluster.srun(*ON, "--container-verbose", "true", image=image)
    timing = [line for line in said(done) if line.startswith("start ")]
    milliseconds = timing[0].rpartition(", entrypoint ")[2].partition(";")[0]
    expect(300 <= int(milliseconds) < 5000, "not told", done)


@test
def task_specific_variables_stay_with_the_task(cluster):
    image = with_entrypoint(cluster, "ranks", 'export SEEN=${SLURM_PROCID-none}; exec "$@"')
    out = cluster.srun(*ON, "-n2", "sh", "-c", "echo $SEEN $SLURM_PROCID", image=image).good()
    equal(sorted(out.splitlines()), ["none 0", "none 1"], "output")


@test
def entrypoint_directory_is_used_unless_overridden(cluster):
    image = with_entrypoint(cluster, "cd", 'mkdir -p /made; cd /made; exec "$@"')
    cluster.srun(*ON, "-n2", "sh", "-c", "pwd; echo $PWD", image=image).good("/made\n" * 4)
    cluster.srun(*ON, "--container-workdir=/etc", "sh", "-c", "pwd; echo $PWD", image=image).good("/etc\n" * 2)


@test
def entrypoint_unset_variable_is_removed_unless_container_env(cluster):
    image = with_entrypoint(cluster, "unset", 'unset GREETER OF_JOB KEPT; export MINE=entry; exec "$@"')
    options = [*ON, "--container-env=KEPT,MINE=1"]
    command = ["sh", "-c", "echo ${GREETER-unset} ${OF_JOB-unset} $KEPT $MINE"]
    cluster.srun(*options, *command, image=image, env=["OF_JOB=1", "KEPT=job"]).good("unset 1 job 1")


@test
def entrypoint_arguments_are_its_own_and_those_of_the_probe(cluster):
    image = with_entrypoint(cluster, "arguments", 'export FIRST="$1" COUNT=$#; shift; exec "$@"', "a b", Cmd=["/never", "run"])
    cluster.srun(*ON, "sh", "-c", "echo $FIRST $COUNT", image=image).good("a b 3")


@test
def entrypoint_ignoring_its_arguments_changes_nothing(cluster):
    image = with_entrypoint(cluster, "ends", "export OF_ENTRY=1; cd /; echo unseen; exit 0")
    done = cluster.srun(*ON, "-n2", "sh", "-c", "echo ${OF_ENTRY-unset}; pwd", image=image)
    equal(sorted(done.good().split()), ["/workspace", "/workspace", "unset", "unset"], "output", done)
    equal(said(done), [], "messages", done)


@test
def entrypoint_output_is_shown_on_request(cluster):
    image = with_entrypoint(cluster, "log", 'echo hello; printf "\\033[31mred" >&2; exec "$@"')
    done = cluster.srun(*ON, "-n3", "--container-entrypoint-log", "true", image=image)
    done.good("")
    equal(said(done), ["entrypoint: hello", "entrypoint: \\x1b[31mred"], "messages", done)
    equal(cluster.srun(*ON, "-n1", "true", image=image).err, "", "messages without the option")


@test
@outcome(76, "refused", "entrypoint that cannot be run")
def failing_entrypoint_is_reported_once_with_its_output(cluster):
    image = with_entrypoint(cluster, "fails", "seq 30; echo no licence; exit 3")
    done = cluster.srun(*ON, "-n4", "true", image=image)
    equal(done.rc, 1, "exit code", done)
    errors = [line for line in said(done) if not line.startswith("entrypoint: ")]
    equal(errors, ['run the image\'s entrypoint "/entry": exited with status 3; last output: "no licence" '
                   '(hint: --no-container-entrypoint runs the command without it)'], "errors", done)
    lines = [line for line in done.messages() if line.startswith("entrypoint: ")]
    equal(lines[-1:] + [str(len(lines))], ["entrypoint: no licence", "20"], "lines of it", done)


def refusal_of(cluster, name, entrypoint, *entries):
    image = Image(f"suites/entry-{name}", [[*entries, ("marker", b"")]], {"Entrypoint": entrypoint}, below=cluster.base_layout)
    done = cluster.srun(*ON, "-n2", "true", image=image)
    equal((done.rc, len(done.errors())), (1, 1), "exit code and errors", done)
    return done.errors()[0]


@test
@outcome(76, "refused", "entrypoint that cannot be run")
def unexecutable_entrypoint_is_named_with_reason(cluster):
    start = 'run the image\'s entrypoint "'
    text = refusal_of(cluster, "missing", ["not-there"])
    expect(text.startswith(start + 'not-there": no such file or directory (hint: '), f"missing: {text}")
    text = refusal_of(cluster, "directory", ["/etc"])
    expect(text.startswith(start + '/etc": permission denied (hint: '), f"a directory: {text}")
    text = refusal_of(cluster, "interpreter", ["/e"], ("e", b"#!/not/there\n"))
    expect(text.startswith(start + '/e": no such file or directory'), f"interpreter: {text}")
    text = refusal_of(cluster, "format", ["/e"], ("e", b"\x7fELF junk"))
    expect(text.startswith(start + '/e": exec format error'), f"format: {text}")
    text = refusal_of(cluster, "long", ["/e", "x" * (1 << 20)], ("e", b"#!/bin/sh\n"))
    expect(text.startswith(start + '/e": argument list too long'), f"long: {text}")


@test
def entrypoint_output_is_printed_when_site_configures_it(cluster):
    image = with_entrypoint(cluster, "talks", 'echo ready; exec "$@"')
    equal(cluster.srun(*ON, "-n1", "true", image=image).errors(), [], "without the key")
    with Configured(cluster, "entrypoint_log = true"):
        equal(cluster.srun(*ON, "-n1", "true", image=image).errors(), ["entrypoint: ready"], "with it")


@test
@outcome(76, "refused", "entrypoint that cannot be run")
def hanging_entrypoint_is_ended_with_its_processes(cluster):
    image = with_entrypoint(cluster, "endless", "setsid sleep 555 & echo waiting for a server; sleep 556")
    with Configured(cluster, "entrypoint_timeout = 1"):
        done = cluster.srun(*ON, "-n2", "true", image=image)
    equal(done.rc, 1, "exit code", done)
    expect('did not finish within 1 s; last output: "waiting for a server"' in done.errors()[-1], "no cause", done)
    cluster.must_be_quiet()


@test
def failing_entrypoint_leaves_none_of_its_processes(cluster):
    image = with_entrypoint(cluster, "children", "(trap '' HUP TERM; setsid sleep 555 & sleep 556) & exit 4")
    done = cluster.srun(*ON, "-n2", "--kill-on-bad-exit=0", "true", image=image)
    equal(done.rc, 1, "exit code", done)
    cluster.must_be_quiet()


@test
def entrypoint_processes_live_as_long_as_the_step(cluster):
    script = '(while echo tick; do sleep 0.05; done) & echo $! >/server; exec "$@"'
    image = with_entrypoint(cluster, "server", script)
    begin = time.monotonic()
    cluster.srun(*ON, "-n2", "sh", "-c", "sleep 0.3; kill -0 $(cat /server) && echo alive", image=image).good("alive\n" * 2)
    expect(time.monotonic() - begin < 15, "the server held the step up")
    cluster.must_be_quiet()


def sleepers(cluster):
    """Returns the processes of the hanging entrypoint. Slurm has its own sleep in each job."""
    return [pid for pid in cluster.processes("node01", "sleep") if b"\x0055" in open(f"/proc/{pid}/cmdline", "rb").read()]


def start_hanging(cluster, name):
    step = cluster.start_srun(*ON, "-n4", "-J", name, "true", image=with_entrypoint(cluster, "hanging", "setsid sleep 555 & sleep 556"))
    await_true(lambda: len(sleepers(cluster)) == 2, 15, "the entrypoint was not run")
    return step


@test
def scancel_ends_the_entrypoint_at_once(cluster):
    step = start_hanging(cluster, "entry-cancel")
    cluster.run("scancel", "-n", "entry-cancel").good()
    expect(step.end(15).rc != 0, "the cancelled step succeeded")
    cluster.must_be_quiet()


@test
def entrypoint_supervisor_or_task_killed_leaves_no_waiter(cluster):
    step = start_hanging(cluster, "entry-kill")
    kill_all(sleepers(cluster))
    done = step.end(15)
    equal(done.rc, 1, "exit code", done)
    expect("was killed by signal 9" in done.errors()[-1] or "exited with status 137" in done.errors()[-1], "no cause", done)
    cluster.must_be_quiet()
    step = start_hanging(cluster, "entry-kill-all")
    parents = {int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]) for pid in sleepers(cluster)}
    kill_all(pid for pid in cluster.processes("node01") if pid in parents)
    expect(step.end(15).rc != 0, "the step succeeded without its entrypoint")
    cluster.must_be_quiet()


@test
def entrypoint_works_in_image_without_shell(cluster):
    image = with_probe("entry-static", [("wrap", static(WRAP)), ("there", None)], Entrypoint=["/wrap"])
    done = cluster.srun(*ON, "--container-entrypoint-log", "/probe", "/wrap", image=image)
    expect(done.good().endswith("in /there"), "not in its directory", done)
    equal(said(done), ["entrypoint: wrapped 3"], "messages", done)
    done = cluster.srun("--container-readonly", *ON, "/probe", image=image)
    expect(done.good().endswith("in /there"), "not in its directory, read-only", done)


@test
def enroot_squashfs_script_runs_as_entrypoint(cluster):
    root = local_files.tree(cluster)
    here, there = local_files.shared(cluster, "entry.sqsh")
    before = open(f"{root}/etc/rc").read()
    local_files.put(f"{root}/etc/rc", "cd /etc || exit 1\nexport OF_RC=$#\nexec \"$@\"\n", 0o755)
    try:
        local_files.mksquashfs(root, here)
    finally:
        local_files.put(f"{root}/etc/rc", before, 0o755)
    cluster.srun(*ON, "-n2", "sh", "-c", "echo $OF_RC $(pwd)", image=there).good("2 /etc\n" * 2)


@test
def image_without_entrypoint_runs_as_without_the_option(cluster):
    done = cluster.srun(*ON, "-n2", "cat", "replaced")
    done.good("upper\n" * 2)
    equal(done.err, "", "messages", done)


@test
def entrypoint_is_explained(cluster):
    image = with_entrypoint(cluster, "explained", 'exec "$@"', "x y")
    done = cluster.srun("--container-explain=all", "--container-entrypoint", "true", image=image)
    expect(any(line.startswith("entrypoint:") and line.endswith('"/entry" "x y", once per node') for line in done.messages()), "not told", done)
    done = cluster.srun("--container-explain=all", "true", image=image)
    expect(any(line.startswith("entrypoint:") and line.endswith('"/entry" "x y", not run') for line in done.messages()), "not told", done)


@test
def entrypoint_and_command_of_one_empty_word_are_none(cluster):
    image = Image("suites/entry-blank", [[("of-blank", b"")]], {"Entrypoint": [""], "Cmd": [""]}, below=cluster.base_layout)
    for options in (ON, (*ON, "--container-entrypoint-log"), (*ON, "--container-private")):
        done = cluster.srun(*options, "sh", "-c", "ls /of-blank", image=image)
        equal((done.good(), said(done)), ("/of-blank", []), "output and messages", done)
    with Configured(cluster, 'entrypoint = "task"'):
        cluster.srun("-n2", "ls", "/of-blank", image=image).good("/of-blank\n/of-blank")
    explained = "\n".join(cluster.srun(*ON, "--container-explain", "true", image=image).messages())
    expect("entrypoint" not in explained.replace("--container-entrypoint", "").replace("entry-blank", "") and "image's cmd" not in explained, "it is explained as a program: " + explained)
    odd = Image("suites/entry-odd", [[("of-odd", b"")]], {"Entrypoint": ["", "x"]}, below=cluster.base_layout)
    expect(cluster.srun(*ON, "true", image=odd).rc != 0, "an entrypoint whose program is empty is ignored")


SHOW = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
  char here[4096];
  for (int i = 0; i < argc; i++) printf("[%s]", argv[i]);
  printf(" PATH=%s own=%s in %s\n", getenv("PATH"), getenv("SLURM_SCONTAINER_PROGRAM") ? "left" : "none", getcwd(here, sizeof here));
  return argc == 2 && argv[1][0] == '7' ? 7 : 0;
}
"""


@test
def own_program_of_an_image_runs_with_its_or_given_arguments(cluster):
    """The image has no shell."""
    image = Image("suites/own", [[("bin/show", static(SHOW))]], {"Entrypoint": ["show", "of: it"], "Cmd": ["a b", ""], "WorkingDir": "/bin", "Env": ["PATH=/bin"]})
    tail = " PATH=/bin own=none in /bin"
    on = ("-w", "node01")
    cluster.srun(*on, "@run", image=image).good("[show][of: it][a b][]" + tail)
    cluster.srun(*on, "--container-readonly", "@run", "x", "'y z'", image=image).good("[show][of: it][x]['y z']" + tail)
    done = cluster.srun("-N2", "-n4", "--overcommit", "@run", image=image)
    equal(done.good().splitlines(), ["[show][of: it][a b][]" + tail] * 4, "of several tasks")
    only_cmd = Image("suites/own", [[("bin/show", static(SHOW))]], {"Cmd": ["show", "7"], "Env": ["PATH=/bin"]}, tag="2")
    equal(cluster.srun(*on, "@run", image=only_cmd).rc, 7, "its exit code")
    lacks = Image("suites/own", [[("bin/show", static(SHOW))]], {"Entrypoint": ["absent"], "Env": ["PATH=/bin"]}, tag="3")
    done = cluster.srun(*on, "@run", image=lacks)
    equal(done.rc, 127, "exit code without the program", done)
    expect('execute "absent": No such file or directory' in done.err, "it is not named", done)


@test
def own_program_runs_after_its_entrypoint_script_once(cluster):
    image = with_entrypoint(cluster, "own", 'echo once; exec "$@"', Cmd=["echo", "of the image"])
    equal(cluster.srun(*ON, "@run", image=image).good().splitlines(), ["once", "of the image"], "output")
    equal(cluster.srun(*ON, "@run", "echo", "given", image=image).good().splitlines(), ["once", "given"], "output")


@test
def own_program_missing_is_refused_with_its_cure(cluster):
    done = cluster.srun("-w", "node01", "@run", image=Image("suites/own", [[]], {"Entrypoint": None, "Cmd": None}, below=cluster.base_layout, tag="4"))
    equal((done.rc, len(done.errors())), (1, 1), "exit code and lines", done)
    expect("has no program of its own (hint: name one: srun … PROGRAM)" in done.err, "it is not said", done)


@test
def own_program_of_a_running_container_is_executed(cluster):
    image = with_entrypoint(cluster, "joined", "echo own", Cmd=["x"])
    step = cluster.start_srun("-w", "node01", "--container-name=own-joined", "sh", "-c", "echo up; read end || :", image=image, stdin=OPEN)
    step.await_text("up")
    cluster.run("srun", "-w", "node01", "--overlap", "--container-name=own-joined", "@run").good("own")
    step.end()


@test
def own_program_of_a_sif_is_its_runscript(cluster):
    cluster.srun("-w", "node01", "@run", "sh", "-c", "echo $PLAIN", image=local_files.sif(cluster)).good("a b")
