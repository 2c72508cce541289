"""Hooks of the site: programs in /etc/spank-container/hooks.d and their effect on an unprivileged
user."""
import contextlib
import json
import os
import shutil

from command import await_true
from explain_test import said
from harness import equal, expect, test
from site_files import Files, rules
from outcomes import outcome

DIRECTORY = "spank-container/hooks.d/"


@contextlib.contextmanager
def hooks(cluster, files):
    """Files of hooks.d: name -> text of a shell script without its first line, or (text, mode)."""
    with Files(cluster, {}) as site:
        for name, text in files.items():
            text, mode = text if isinstance(text, tuple) else (text, 0o755)
            if mode & 0o111 and text:
                text = "#!/bin/sh\n" + text
            site.write(DIRECTORY + name, text)
            os.chmod(site.path(DIRECTORY + name), mode)
        yield site


def says(edits):
    """Returns a script that prints these edits."""
    return f"cat <<'END'\n{json.dumps(edits)}\nEND\n"


def refused(cluster, *wanted, options=(), **how):
    done = cluster.srun(*options, "true", **how)
    expect(done.rc != 0, "it was not refused", done)
    lines = [line for line in done.errors() if line != "hook 50-test: why it failed"]
    text = "\n".join(lines)
    for part in wanted:
        expect(part in text, f"{part!r} was not said", done)
    equal(len(lines), 1, "lines", done)


@test
def site_program_adds_variables_mounts_files_and_links(cluster):
    edits = {"environment": {"set": {"OF_HOOK": "a b"}, "prepend": {"PATH": "/opt/hook"}, "default": {"IMAGE_ONLY": "no"}},
             "mounts": [{"source": "/home/shared", "target": "/of/hook"}, {"target": "/new", "readOnly": False},
                        {"source": "/nowhere", "target": "/x", "optional": True}],
             "symlinks": [{"path": "/opt/link", "target": "/of/hook"}], "directories": ["/opt/made"],
             "files": [{"path": "/etc/of_hook", "content": "text\n", "mode": "0600"}], "limits": [{"name": "core", "soft": 0}]}
    with hooks(cluster, {"50-test": says(edits)}):
        done = cluster.bash("echo $OF_HOOK $IMAGE_ONLY; echo $PATH | cut -d: -f1; readlink /opt/link; cat /etc/of_hook; stat -c %a /etc/of_hook; "
                            "test -d /opt/made; touch /new/file; ! touch /of/hook/file 2>/dev/null; ulimit -c", "-n1")
        done.good("a b from the image\n/opt/hook\n/of/hook\ntext\n600\n0")


@test
def program_runs_as_user_on_host_without_image_influence(cluster):
    tells = """{ id -u; pwd; env | cut -d= -f1 | grep -v -E '^(SLURM_|PWD$|OLDPWD$|_$|SHLVL$)' | sort | tr '\\n' ' '; echo
grep -E 'Cap(Inh|Prm|Eff|Amb)|NoNewPrivs' /proc/self/status | tr -d '\\t' | tr '\\n' ' '; ls /proc/self/fd | tr '\\n' ' '; echo
test -e /etc/spank-container/hooks.d && echo host; } >/home/shared/told.$1
cat >/home/shared/input.$1
"""
    description = json.dumps({"stages": ["prepare", "create", "task"], "hook": {"args": ["x", "all"]}})
    script = "stage=$(sed -n 's/.*\"stage\": \"\\(.*\\)\".*/\\1/p' | head -1)\nset -- $stage\n" + tells
    try:
        with hooks(cluster, {"50-test": script, "50-test.json": (description, 0o644)}):
            cluster.srun("-n1", "true", env=["LD_PRELOAD=", "LD_LIBRARY_PATH=/evil", "BASH_ENV=/evil", "SECRET=1"]).good()
        uid = cluster.run("id", "-u").good()
        for stage in ("prepare", "create", "task"):
            lines = open(os.path.join(cluster.shared, f"told.{stage}")).read().splitlines()
            equal(lines[:2], [uid, "/"], f"user and directory in {stage}")
            equal(lines[2].split(), ["HOME", "LANG", "LOGNAME", "PATH", "USER"], f"variables in {stage}")
            equal(lines[3].split(" ")[:5], ["CapInh:" + "0" * 16, "CapPrm:" + "0" * 16, "CapEff:" + "0" * 16, "CapAmb:" + "0" * 16, "NoNewPrivs:1"],
                  f"rights in {stage}")
            # ls has the directory at 3.
            equal(lines[3].split(" ")[5:9], ["0", "1", "2", "3"], f"descriptors in {stage}")
            equal(lines[4], "host", f"what is seen in {stage}")
    finally:
        for name in os.listdir(cluster.shared):
            if name.startswith(("told.", "input.")):
                os.unlink(os.path.join(cluster.shared, name))


@test
def create_stage_gets_image_variables_and_can_move_a_mount(cluster):
    script = """input=$(cat)
case $input in
*'"stage": "create"'*'"GREETER": "base"'* | *'"GREETER": "base"'*'"stage": "create"'*) target=/second note='"of create"' ;;
*'"stage": "create"'*) exit 9 ;;
*) target=/first note='"of prepare"' ;;
esac
echo '{"mounts": [{"source": "/home/shared", "target": "'$target'"}], "notes": ['$note']}'
"""
    with hooks(cluster, {"50-test": script, "50-test.json": (json.dumps({"stages": ["prepare", "create"]}), 0o644)}):
        cluster.bash("test -d /second; ! test -e /first", "-n1").good()
        cluster.bash("test -d /second; ! test -e /first", "-n1", "--container-remap-root").good()
        expect("50-test: of create" in said(cluster.srun("--container-explain=all", "true"), "hook"), "no note")


@test
def task_stage_runs_for_each_task(cluster):
    script = """rank=$(sed -n 's/.*"SLURM_PROCID": "\\([0-9]*\\)".*/\\1/p' | head -1)
echo '{"environment": {"set": {"MY_RANK": "'$rank'"}}}'
"""
    with hooks(cluster, {"50-test": script, "50-test.json": (json.dumps({"stages": ["task"]}), 0o644)}):
        for options in ([], ["--container-remap-root"]):
            done = cluster.srun("-N2", "-n4", *options, "sh", "-c", "test $MY_RANK = $SLURM_PROCID && echo $MY_RANK")
            equal(sorted(done.good().split()), ["0", "1", "2", "3"], "ranks", done)


@test
def start_stage_runs_inside_once_per_node_before_tasks(cluster):
    script = "echo started >>/start.$(hostname 2>/dev/null || cat /proc/sys/kernel/hostname); cat >/dev/null\n"
    with hooks(cluster, {"50-test": script, "50-test.json": (json.dumps({"stages": ["start"]}), 0o644)}):
        done = cluster.srun("-N2", "-n4", "sh", "-c", "cat /start.*")
        equal(done.good().split(), ["started"] * 4, "starts", done)
        cluster.srun("-n1", "--container-remap-root", "sh", "-c", "cat /start.*").good("started")


@test
def hook_runs_only_when_its_conditions_hold(cluster):
    when = {"when": {"env": {"WANTED": "^y"}, "commands": ["^sh$"]}}
    with hooks(cluster, {"50-test": "touch /home/shared/ran\n" + says({"environment": {"set": {"RAN": "yes"}}}),
                         "50-test.json": (json.dumps(when), 0o644)}):
        ran = os.path.join(cluster.shared, "ran")
        cluster.srun("-n1", "sh", "-c", "echo ${RAN-no}").good("no")
        cluster.srun("-n1", "env", "sh", "-c", "echo ${RAN-no}", env=["WANTED=yes"]).good("no")
        expect(not os.path.exists(ran), "it was started")
        cluster.srun("-n1", "sh", "-c", "echo ${RAN-no}", env=["WANTED=yes"]).good("yes")
        os.unlink(ran)


@test
def hook_runs_for_an_annotation_of_the_environment_file(cluster):
    when = {"when": {"annotations": {"^com.hooks.tool.enabled$": "^true$"}}}
    directory = os.path.join(cluster.home, "alice", ".edf")
    os.makedirs(directory)
    try:
        for value in ("true", "false"):
            with open(f"{directory}/{value}.toml", "w") as file:
                file.write(f'image = "registry:5000/suites/base:1"\nannotations.com.hooks.tool.enabled = {value}\n')
        with hooks(cluster, {"50-test": says({"environment": {"set": {"RAN": "yes"}}}), "50-test.json": (json.dumps(when), 0o644)}):
            for value, ran in (("true", "yes"), ("false", "no")):
                cluster.run("srun", "-n1", f"--environment={value}", "sh", "-c", "echo ${RAN-no}").good(ran)
    finally:
        shutil.rmtree(directory)


@test
@outcome(208, "refused", "a hook that is not executable, has no interpreter, is deleted in between")
def site_file_replaces_or_disables_built_in_hook(cluster):
    name = "50-slurm-pytorch"

    def hook_lines():
        return [line for line in said(cluster.srun("--container-explain=all", "true"), "hook") if line.startswith(name + " (")]
    equal(hook_lines(), [f"{name} (built in)"], "as delivered")
    path = f"/etc/spank-container/hooks.d/{name}"
    with hooks(cluster, {name: says({"environment": {"set": {"MINE": "1"}}})}):
        equal(hook_lines(), [f"{name} ({path})"], "replaced")
        cluster.srun("-n1", "sh", "-c", "echo $MINE").good("1")
    with hooks(cluster, {name: ("", 0o755)}):
        equal(hook_lines(), [f"{name} (built in, off ({path}))"], "empty")
    with hooks(cluster, {name: ("text", 0o644)}):
        equal(hook_lines(), [f"{name} (built in, off ({path}))"], "not executable")
    with hooks(cluster, {"x": ("", 0o644)}) as site:
        os.symlink("/dev/null", site.path(DIRECTORY + name))
        equal(hook_lines(), [f"{name} (built in, off ({path}))"], "a link to /dev/null")
    with rules(cluster, f'hooks_off = ["{name}"]\n'):
        equal(hook_lines(), [f"{name} (built in, off (hooks_off))"], "hooks_off")


@test
@outcome(206, "refused", "a directory of hooks that is absent, empty, a file, another's, group-writable, a link",
         differs="absent and empty directories and links of root's are as good as any")
def hook_directory_unusable_or_world_writable_is_refused(cluster):
    path = "/etc/spank-container/hooks.d"
    with hooks(cluster, {"50-test": says({})}) as site:
        directory = site.path(DIRECTORY.rstrip("/"))
        os.chmod(directory, 0o775)
        refused(cluster, f'directory of hooks "{path}": ', "is writable by others", "chmod go-w")
        os.chmod(directory, 0o755)
        os.chown(directory, 12345, 0)
        refused(cluster, f'directory of hooks "{path}": ', "is not owned by root")
        os.chown(directory, 0, 0)
        moved = directory + ".moved"
        os.rename(directory, moved)
        os.symlink("hooks.d.moved", directory)
        try:
            cluster.srun("true").good()  # a link owned by root is allowed as well
        finally:
            os.unlink(directory)
            shutil.rmtree(moved)
        os.mkdir(directory)
        cluster.srun("true").good()
        os.rmdir(directory)
        with open(directory, "w") as file:
            file.write("")
        refused(cluster, f'directory of hooks "{path}": is not a directory')


@test
@outcome(206, "refused", "a directory of hooks that is absent, empty, a file, another's, group-writable, a link")
def world_writable_hook_is_refused(cluster):
    with hooks(cluster, {"50-test": ("true", 0o775)}) as site:
        refused(cluster, 'hook "/etc/spank-container/hooks.d/50-test": is writable by others')
        os.chmod(site.path(DIRECTORY + "50-test"), 0o755)
        os.chown(site.path(DIRECTORY + "50-test"), 12345, 0)
        refused(cluster, 'hook "/etc/spank-container/hooks.d/50-test": is not owned by root')


@test
@outcome(207, "refused", "a hook that fails, is killed, hangs, prints 1 GiB, binary and ESC")
def failing_killed_or_hanging_hook_refuses_step_with_its_name(cluster):
    run = 'hook 50-test: run "/etc/spank-container/hooks.d/50-test": '
    with hooks(cluster, {"50-test": "echo why it failed >&2; exit 3\n"}):
        refused(cluster, run + 'exited with status 3; last output: "why it failed" (hint: tell the administrator)', options=["-N2", "-n4"])
    with hooks(cluster, {"50-test": "kill -SEGV $$\n"}):
        refused(cluster, run + "was killed by signal 11")
    with rules(cluster, "hook_timeout = 1\n"), hooks(cluster, {"50-test": "sleep 1000 & sleep 1000\n"}):
        refused(cluster, run + "did not finish within 1 s")


@test
@outcome(207, "refused", "a hook that fails, is killed, hangs, prints 1 GiB, binary and ESC")
def hook_output_is_capped_and_escaped(cluster):
    with hooks(cluster, {"50-test": "yes\n"}):
        refused(cluster, "printed more than 1 MiB")
    with hooks(cluster, {"50-test": "head -c 100 /dev/urandom\n"}):
        refused(cluster, "is not JSON")
    with hooks(cluster, {"50-test": "printf '\\033[31mred\\n' >&2; yes | head -100000 >&2\n"}):
        done = cluster.srun("-n1", "true")
        done.good()
        expect("hook 50-test: \\x1b[31mred" in done.messages(), "the first line is not there", done)
        expect("\x1b" not in done.err, "an escape reached the terminal", done)
        equal(len([line for line in done.messages() if line.startswith("hook 50-test: ")]), 201, "lines", done)


@test
def hook_leftover_process_does_not_hold_the_step(cluster):
    forever = "setsid yes more >&2 &\nsetsid yes more >&2 &\nsleep 0.3\necho '{}'\n"
    with hooks(cluster, {"50-test": forever}):
        done = cluster.bash("echo came in", "-n1")
        expect(done.rc == 0 and "came in" in done.out, "it was held", done)


@test
@outcome(208, "refused", "a hook that is not executable, has no interpreter, is deleted in between",
         differs="a file that nobody may execute turns off what is built in under its name")
def hook_without_interpreter_or_for_root_only_refuses_step(cluster):
    with hooks(cluster, {"50-test": ("#!/no/interpreter\n", 0o644)}) as site:
        path = site.path(DIRECTORY + "50-test")
        os.chmod(path, 0o755)
        refused(cluster, 'hook 50-test: run "/etc/spank-container/hooks.d/50-test": no such file or directory', "interpreter")
        os.chmod(path, 0o744)
        refused(cluster, 'hook 50-test: run "/etc/spank-container/hooks.d/50-test": permission denied')


@test
@outcome(209, "refused", "a hook's plan with garbage: unknown key, relative path")
def hook_plan_with_garbage_is_refused_with_hook_and_key(cluster):
    printed = 'hook 50-test: what "/etc/spank-container/hooks.d/50-test" printed: '
    for edits, why in (({"mount": []}, "mount: is unknown"),
                       ({"mounts": [{"source": "a", "target": "/b"}]}, 'mounts[0].source: "a" is not an absolute path'),
                       ({"environment": {"set": {"A": 1}}}, "environment.set.A: is not a string")):
        with hooks(cluster, {"50-test": says(edits)}):
            refused(cluster, printed + why)


@test
@outcome(207, "refused", "a hook that fails, is killed, hangs, prints 1 GiB, binary and ESC")
def optional_hook_failure_is_a_warning(cluster):
    with hooks(cluster, {"50-test": "exit 3\n", "50-test.json": ('{"optional": true}', 0o644)}):
        done = cluster.srun("-n1", "true")
        done.good()
        expect(any(line.startswith("warning: hook 50-test: run ") for line in done.messages()), "no warning", done)


@test
def hook_can_refuse_or_warn_a_step(cluster):
    with hooks(cluster, {"50-test": says({"warnings": ["take \u001b[31mcare"]})}):
        done = cluster.srun("-n1", "true")
        done.good()
        expect("warning: hook 50-test: take \\x1b[31mcare" in done.messages(), "no warning", done)
    with hooks(cluster, {"50-test": says({"refusal": "not on this node"})}):
        refused(cluster, "hook 50-test: not on this node")


@test
def image_file_at_hook_directory_is_no_hook(cluster):
    script = "mkdir -p /etc/spank-container/hooks.d; printf '#!/bin/sh\\necho ran >/home/shared/ran\\n' >/etc/spank-container/hooks.d/50-evil; " \
             "chmod 755 /etc/spank-container/hooks.d/50-evil"
    for name, options in (("evil1", []), ("evil2", ["--container-remap-root"])):
        cluster.bash(script, "-n1", f"--container-name={name}", *options, "--container-mounts=/home/shared").good()
        done = cluster.srun("-n2", f"--container-name={name}", *options, "--container-mounts=/home/shared", "true")
        done.good()
        expect(not os.path.exists(os.path.join(cluster.shared, "ran")), "the image's hook was run", done)


@test
def verbose_reports_hook_durations_and_the_slowest(cluster):
    with hooks(cluster, {"50-test": "sleep 0.3\n"}):
        done = cluster.srun("-n1", "--container-verbose", "true")
        done.good()
        line = next((line for line in done.messages() if "hooks took" in line), "")
        expect("longest 50-test with 3" in line, f"{line!r}", done)


def until_written(path):
    await_true(lambda: os.path.exists(path), 10, f"there is no {path}")
    with open(path) as file:
        text = file.read()
    os.unlink(path)
    return text


@test
def stop_stage_runs_on_host_after_all_tasks(cluster):
    script = "cat >/dev/null; cat /home/shared/tasks >/home/shared/stopped.part; test -e /etc/spank-container/hooks.d && " \
             "mv /home/shared/stopped.part /home/shared/stopped; echo told >&2\n"
    stopped, tasks = (os.path.join(cluster.shared, name) for name in ("stopped", "tasks"))
    saved = os.path.join(cluster.home, "alice/stopped.sqsh")
    try:
        with hooks(cluster, {"50-test": script, "50-test.json": (json.dumps({"stages": ["stop"]}), 0o644)}):
            for options in ([], ["--container-save=/home/alice/stopped.sqsh"]):
                done = cluster.srun("-n3", "-N1", *options, "--container-mounts=/home/shared", "sh", "-c", "sleep 0.$SLURM_PROCID; echo done >>/home/shared/tasks")
                done.good()
                expect(any("hook 50-test: told" in line for line in done.messages()), "the user was not told", done)
                equal(until_written(stopped), "done\n" * 3, "what the tasks had done by then")
                os.unlink(tasks)
            expect(os.path.exists(saved), "nothing was saved")
            done = cluster.srun("-n1", "sh", "-c", "exit 3")
            equal(done.rc, 3, "exit code", done)
            with open(tasks, "w") as file:
                file.write("")
            running = cluster.start_srun("-n1", "sh", "-c", "echo runs; sleep 100")
            running.await_text("runs")
            cluster.run("scancel", "-u", "alice")
            running.end()
            until_written(stopped)
    finally:
        for path in (stopped, tasks, saved, stopped + ".part"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


@test
def oci_runtime_hook_gets_state_and_bundle(cluster):
    script = """cat >/home/shared/state
mkdir -p /home/shared/bundle && cp "$(sed 's/.*"bundle":"\\([^"]*\\)".*/\\1/' /home/shared/state)"/config.json /home/shared/bundle
"""
    state, bundle = os.path.join(cluster.shared, "state"), os.path.join(cluster.shared, "bundle")
    path = "/etc/spank-container/hooks.d/tell"

    def description(*stages, **more):
        return json.dumps({"version": "1.0.0", "hook": {"path": path, "args": ["tell", "x"], "env": ["A=b"]}, "when": {"always": True},
                           "stages": stages, **more}), 0o644
    try:
        for stage, status in (("prestart", "creating"), ("createRuntime", "creating"), ("createContainer", "creating"), ("poststop", "stopped")):
            with hooks(cluster, {"tell": script, "50-test.json": description(stage)}):
                done = cluster.srun("-n1", "printenv", "IMAGE_ONLY")
                done.good("from the image")
                with open(state) as file:
                    told = json.load(file)
                with open(os.path.join(bundle, "config.json")) as file:
                    config = json.load(file)
                equal((told["status"], told["ociVersion"]), (status, "1.0.2"), f"state in {stage}", done)
                expect(stage == "poststop" or "IMAGE_ONLY=from the image" in config["process"]["env"], f"no variable of the image in {stage}: {config}")
                equal(config["process"]["args"], ["printenv", "IMAGE_ONLY"], "command")
                os.unlink(state)
                shutil.rmtree(bundle)
        with hooks(cluster, {"tell": "exit 4\n", "50-test.json": description("createContainer")}):
            refused(cluster, f'hook 50-test: createContainer: run "{path}": exited with status 4')
        inside = {"version": "1.0.0", "hook": {"path": "/bin/sh", "args": ["sh", "-c", "echo inside >/inside"]}, "when": {"always": True}, "stages": ["startContainer"]}
        with hooks(cluster, {"50-test.json": (json.dumps(inside), 0o644)}):
            cluster.srun("-n1", "cat", "/inside").good("inside")
        with hooks(cluster, {"50-test.json": description("poststart")}):
            refused(cluster, 'hook 50-test: "/etc/spank-container/hooks.d/50-test.json": stages: "poststart" is not a stage')
        with hooks(cluster, {"50-test.json": description("prestart", whem={})}):
            refused(cluster, "whem: is unknown")
        with hooks(cluster, {"tell": ("exit 0", 0o777), "50-test.json": description("prestart")}):
            refused(cluster, "is writable by others")
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(state)
        shutil.rmtree(bundle, ignore_errors=True)


# As NVIDIA's daemon: needs a directory for its sockets, ends at once if another one runs, and
# leaves a process behind that creates its own session only some time later.
FAKE_MPS_CONTROL = """#!/bin/sh
[ "$1" = -d ] && [ -w "$CUDA_MPS_PIPE_DIRECTORY" ] || exit 1
[ ! -e "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid" ] || { echo "An instance of this daemon is already running"; exit 1; }
(sleep 0.2; exec setsid sleep 4242) </dev/null >/dev/null 2>&1 &
echo $! >"$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
"""


@test
def mps_example_runs_one_fake_daemon_per_node(cluster):
    example = os.path.join(os.path.dirname(__file__), "../../../packaging/examples/hooks/50-mps")
    with open(example) as script, open(example + ".json") as text:
        program, description = script.read().removeprefix("#!/bin/sh\n"), json.load(text)
    description["hook"]["env"] = ["MPS_CONTROL=/home/shared/mps-control"]
    control = os.path.join(cluster.shared, "mps-control")
    with open(control, "w") as file:
        file.write(FAKE_MPS_CONTROL)
    os.chmod(control, 0o755)
    tells = 'cat "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid" && kill -0 $(cat "$CUDA_MPS_PIPE_DIRECTORY"/*.pid)'
    step = ("-w", "node01", "-n2", "--container-mounts=/home/shared", "sh", "-c", tells)
    try:
        with hooks(cluster, {"50-mps": program, "50-mps.json": (json.dumps(description), 0o644)}):
            expect(cluster.srun(*step).rc != 0, "MPS runs for a step that has not asked for it")
            for _ in range(2):
                daemons = cluster.srun(*step, env=("SITE_MPS=yes",)).good().split()
                expect(len(daemons) == 2 and len(set(daemons)) == 1, f"not one daemon for both tasks: {daemons}")
                await_true(lambda: not cluster.processes("node01", "sleep"), 5, "the daemon has outlived its step")
    finally:
        os.unlink(control)
