"""Permanent invariants, attacked from inside a container or by its user on the node.
tests/hostile/invariants lists all."""
import itertools
import os
import re
import sys
import threading

from command import OPEN, await_true
from harness import Skipped, equal, expect, test
from images import Image, probe, with_probe

ON = ("-w", "node01")
HERE = os.path.dirname(os.path.abspath(__file__))
SECRET = "only bob may read this"


@test
def source_swapped_continuously_shows_no_foreign_files(cluster):
    private = os.path.join(cluster.home, "bob/swapped")
    os.makedirs(private, exist_ok=True)
    open(os.path.join(private, "file"), "w").write(SECRET)
    os.chmod(private, 0o700)
    os.chown(private, 2002, 2002)
    mine = os.path.join(cluster.shared, "swapped")
    os.makedirs(os.path.join(mine, "good"))
    open(os.path.join(mine, "good/file"), "w").write("mine")
    ends = threading.Event()

    def swap():
        turn = 0
        while not ends.is_set():
            turn += 1
            os.symlink("/home/bob/swapped" if turn % 2 else "good", os.path.join(mine, "next"))
            os.replace(os.path.join(mine, "next"), os.path.join(mine, "here"))

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        await_true(lambda: os.path.lexists(os.path.join(mine, "here")), 5, "nothing is swapped")
        script = f"for i in $(seq 15); do srun -n1 --container-image={cluster.name_of('base')} --container-mounts=/home/shared/swapped/here:/mnt cat /mnt/file; done; true"
        done = cluster.run("salloc", *ON, "bash", "-c", script, timeout=60)
    finally:
        ends.set()
        swapper.join()
    expect(SECRET not in done.out + done.err, "another user's file was shown", done)
    expect("mine" in done.out or "ermission denied" in done.err, "no start was raced, the test is void", done)


@test
def program_files_are_never_writable_by_others(cluster):
    done = cluster.bash("""
        tried=0
        for exe in /proc/[0-9]*/exe; do
            pid=${exe%/exe}
            case $(cat $pid/comm 2>/dev/null) in agent | fuse | slurmstepd | slurmd | import | container-help*)
                tried=$((tried + 1))
                if { echo x >>$exe; } 2>/dev/null; then echo "wrote $exe"; fi ;;
            esac
        done
        for file in $(sed -n 's/^[^ ]* [^ ]* [^ ]* [^ ]* \\([^ ]*\\) .*/\\1/p' /proc/self/mountinfo); do
            if [[ -f $file && $file != /proc/* && $file != /dev/* && $file != /etc/* ]] && { : >>$file; } 2>/dev/null; then echo "wrote $file"; fi
        done
        echo "tried $tried" """, *ON)
    out = done.good()
    expect(int(re.search(r"tried (\d+)", out)[1]) > 0, "no process of ours is visible, the test is void", done)
    expect("wrote" not in out, "a program was written into", done)


@test
def process_memory_of_a_start_is_never_readable_by_others(cluster):
    name, layers = cluster.faulty.publish(with_probe("invariants-memory", [("data", os.urandom(1 << 20))]))
    gate = cluster.faulty.hold(layers[0])
    step = cluster.start_srun(*ON, "-n2", "/probe", image=name)
    try:
        await_true(lambda: cluster.processes("node01", "layer-writer"), 10, "the pull did not begin")
        done = cluster.enter("node01", "2001", "bash", "-c", """
            for pid in /proc/[0-9]*; do
                case $(cat $pid/comm) in slurmstepd | leader | agent | import | layer-writer)
                    echo "found $(cat $pid/comm)"
                    for file in mem maps environ; do
                        if [[ $(head -c 1 $pid/$file 2>/dev/null | wc -c) != 0 ]]; then echo "read $pid/$file"; fi
                    done
                    if { exec 9<$pid/mem; } 2>/dev/null; then echo "opened $pid/mem"; fi
                    ls $pid/fd/ 2>/dev/null | sed "s:^:listed $pid/fd/:" ;;
                esac
            done""").end(20)
    finally:
        gate.set()
        step.end()
    equal({line.split()[1] for line in done.out.splitlines() if line.startswith("found")}, {"slurmstepd", "leader", "agent", "import", "layer-writer"}, "processes", done)
    equal([line for line in done.out.splitlines() if not line.startswith("found")], [], "what could be read", done)


@test
def running_container_changes_no_mount_of_the_node(cluster):
    before = cluster.mounts("node01")
    step = cluster.start_srun(*ON, "--container-mounts=/home/shared:/mnt,tmpfs:/scratch", "sh", "-c", "echo up; read end || :", stdin=OPEN)
    step.await_text("up")
    during = cluster.mounts("node01")
    step.end().good()
    equal(during, before, "mounts of the node while the step runs")
    cluster.must_be_quiet()


@test
def image_user_setting_changes_nothing(cluster):
    for number, user in enumerate(("0", "0:0", "root", "4294967296", "-1", "99999999999999999999:0", "65534:65534", "no such user")):
        image = Image(f"suites/user-{number}", [[("probe", probe())]], {"User": user})
        done = cluster.srun(*ON, "/probe", image=image)
        expect(done.rc != 0 or "uid 2001," in done.out, f"User {user}", done)
        expect(done.rc == 0 or len(done.errors()) == 1, f"User {user} is refused without a line", done)


# --- by tracing -------------------------------------------------------------------------------------------------------

def tracer():
    program = os.environ.get("SPC_TRACER", os.path.join(HERE, "../../../build/release/tests/hostile/hostile_tracer"))
    if not os.access(program, os.X_OK):
        raise Skipped("there is no tracer for this machine")
    return program


@test
def tasks_with_capabilities_read_no_text(cluster):
    """From task_init on, they read neither a variable nor an option nor a file of the site. Options
    and environment are checked by watchpoints, four in each of two tasks with the same memory."""
    sys.path.append(os.path.join(HERE, "../../hostile"))
    import scene

    asked = ["--container-env=SPC_ASKED_FOR=1", "--container-mounts=/home/shared:/mnt"]
    refused = [*asked, "--container-mounts=/no/such/place:/mnt"]
    for options, text in itertools.product((asked, refused), ("SPC_ASKED_FOR=", "SPC_OF_THE_USER=")):
        with scene.Traced(cluster, tracer(), "slurmstepd+", "watch", text) as traced:
            done = cluster.srun(*ON, "-n2", *options, "true", env=["SPC_OF_THE_USER=1"])
        equal(done.rc == 0, options is asked, f"whether the step starts with {options}")
        watched = [int(number) for word, _, number in traced.lines if word == "watched"]
        equal(len(watched), 2, f"tasks that waited with capabilities, {text}")
        expect(all(1 <= count <= 8 for count in watched), f"strings that can be watched, {text}: {watched}")
        equal([line for line in traced.lines if line[0] == "read"], [], f"places that read {text}")
        opened = {name for word, _, name in traced.lines if word == "opened"}
        expect("/proc/self/ns/mnt" in opened, f"what the tasks opened: {opened}")
        # /proc/self/fd: from Slurm 23.02 on, the plugin looks for slurmstepd's descriptor of itself.
        own = {name for name in opened if name == "/proc/self/fd" or name.endswith(("/container-helper", "/libspank_container.so.1"))}
        equal(sorted(opened - own), ["/proc/self/ns/mnt"], "what tasks open before they are inside")


@test
def task_opens_nothing_between_entering_and_dropping_privilege(cluster):
    sys.path.append(os.path.join(HERE, "../../hostile"))
    import scene

    names = scene.system_calls()
    with scene.Traced(cluster, tracer(), "slurmstepd+", "list") as traced:
        cluster.srun(*ON, "-n2", "true").good()
    by_process = {}
    for word, pid, number in traced.lines:
        if word == "call":
            by_process.setdefault(pid, []).append(names.get(int(number), number))
    entered = 0
    for calls in by_process.values():
        if "setns" not in calls:
            continue
        last = len(calls) - 1 - calls[::-1].index("setns")
        dropped = next((at for at in range(last, len(calls)) if calls[at] == "capset"), None)
        expect(dropped is not None, f"a task enters and keeps its privilege: {calls[last:][:30]}")
        entered += 1
        between = set(calls[last:dropped])
        expect(not any(name.startswith(("open", "execve", "connect", "socket", "stat", "newfstatat")) for name in between), f"between entering and capset: {calls[last:dropped]}")
    equal(entered, 2, "tasks that have entered")
