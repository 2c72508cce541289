"""--container-unshare: private namespaces of the container."""
import contextlib
import os
import re
import signal

from cluster import kill_all
from command import OPEN, await_true
from container_test import SYSCALL
from images import with_probe
from harness import equal, expect, test

ON = ("-w", "node01")
ALL = "--container-unshare=net,ipc,uts,pid"
KINDS = ("net", "ipc", "uts", "pid")


CGROUP = "--container-unshare=cgroup"


def of_the_node(cluster, kinds=KINDS):
    return [os.readlink(f"/proc/{cluster.pid('node01')}/ns/{kind}") for kind in kinds]


def running_job(cluster, name, script, *options):
    running = cluster.start_srun(*ON, "-J", name, *options, "bash", "-c", script)
    running.await_text("up")
    return running


@test
def malformed_namespace_list_is_refused_at_submission(cluster):
    for given, said in (("net,,ipc", "empty namespace argument"), ("net,", "empty namespace argument"), ("user", "unknown namespace 'user'"),
                        ("Net", "unknown namespace 'Net'"), ("mnt", "unknown namespace 'mnt'")):
        done = cluster.srun(f"--container-unshare={given}", "true")
        expect(done.rc != 0 and any(said in line for line in done.errors()), f"{given} is not refused with {said!r}", done)
    done = cluster.srun("true", env=["PYXIS_CONTAINER_UNSHARE=host"])
    expect(done.rc != 0 and "unknown namespace 'host'" in done.err, "a wrong twin is not refused", done)


@test
def only_requested_namespaces_are_unshared_for_all_tasks(cluster):
    node = of_the_node(cluster)
    read = "cd /proc/self/ns; readlink net ipc uts pid; sleep 0.3"
    for i, kind in enumerate(KINDS):
        out = cluster.bash(read, *ON, "-n2", f"--container-unshare={kind}").good().splitlines()
        equal((len(out), len(set(out))), (8, 4), f"links and different links of two tasks with their own {kind}")
        equal([link in out for link in node], [k != i for k in range(4)], f"which of {KINDS} are the node's with {kind}")
    out = cluster.bash(read, *ON, ALL).good().splitlines()
    expect(not set(out) & set(node), f"some of the node's namespaces are left: {out}")
    equal(cluster.bash(read, *ON).good().splitlines(), node, "namespaces without the option")


@test
def network_namespace_has_a_working_loopback(cluster):
    out = cluster.bash("ls /sys/class/net; exec 3<>/dev/udp/127.0.0.1/9; echo reachable; cat /proc/net/dev | grep -c :; "
                       "! exec 4<>/dev/udp/192.0.2.1/9", *ON, "--container-unshare=net").good()
    equal(out.split(), ["lo", "reachable", "1"], "interfaces, loopback, interfaces in /proc")


@test
def shared_memory_namespace_is_empty_and_private(cluster):
    on_node = cluster.inside("node01", "/dev/shm/of-the-node")
    open(on_node, "w").close()
    try:
        done = cluster.bash("ls -A /dev/shm; stat -c %a /dev/shm; echo x >/dev/shm/mine; ! touch /dev/shm/../null/x 2>/dev/null; " +
                            SYSCALL.replace("== 0", ">= 0") + "240 queue 66 384 0; test ! -d /dev/mqueue || ls /dev/mqueue", *ON, "--container-unshare=ipc")
        equal(done.good().split()[0], "1777", "mode of /dev/shm, which should be empty", done)
        expect(not os.path.exists(cluster.inside("node01", "/dev/shm/mine")), "the file is the node's")
        if os.path.isdir(cluster.inside("node01", "/dev/mqueue")):
            expect("queue" in done.out, "the queue is not in /dev/mqueue", done)
    finally:
        os.unlink(on_node)


@test
def root_inside_administers_own_uts_and_network_only(cluster):
    rename = SYSCALL + "170 other 5; cat /proc/sys/kernel/hostname"
    cluster.bash(rename, *ON, "--container-remap-root", "--container-unshare=uts").good("other")
    equal(cluster.root("node01", "hostname").good(), "node01", "name of the node")
    for options in (["--container-unshare=uts"], ["--container-remap-root"]):
        done = cluster.bash(rename, *ON, *options)
        expect(done.rc != 0 and "Operation not permitted" in done.err, f"the name can be changed with {options}", done)
    cluster.bash("echo 1 >/proc/sys/net/ipv4/ip_forward; cat /proc/sys/net/ipv4/ip_forward; " + SYSCALL.replace("== 0", ">= 0") + "240 queue 66 384 0",
                 *ON, "--container-remap-root", "--container-unshare=net,ipc").good("1")


# --- cgroup ----------------------------------------------------------------------------------------------------------

SEEN = "readlink /proc/self/ns/cgroup; cut -d: -f3- /proc/self/cgroup | sort -u; find -L /sys/fs/cgroup -maxdepth 3 -name '*slurm*' -o -name 'job_*' | wc -l"
LIMIT = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null || true"


@test
def cgroup_namespace_begins_at_the_tasks_cgroup(cluster):
    node, = of_the_node(cluster, ["cgroup"])
    for options in ([], ["--container-remap-root"], ["--container-unshare=pid,net"], ["--container-contain"]):
        out = cluster.bash(f"{SEEN}; {LIMIT}; ! mkdir /sys/fs/cgroup/memory/x /sys/fs/cgroup/x 2>/dev/null", *ON, "--mem=100M", CGROUP,
                           *options).good().split()
        equal(out[1:], ["/", "0", str(100 << 20)], f"cgroup, those of jobs in sight, limit, with {options}")
        expect(out[0] != node, f"the namespace is the node's with {options}")
    plain = cluster.bash(SEEN, *ON).good().split()
    expect(plain[0] == node and any("job_" in line for line in plain), f"without the option: {plain}")


@test
def tasks_of_a_container_have_a_cgroup_namespace_each(cluster):
    for options in ([], ["--container-private"], ["--container-name=with-cgroup"], ["--container-name=with-cgroup"]):
        out = cluster.bash("readlink /proc/self/ns/cgroup; cut -d: -f3- /proc/self/cgroup | sort -u; sleep 0.3", *ON, "-n2", CGROUP, *options).good().split()
        equal((len(out), len(set(out)), out.count("/")), (4, 3, 2), f"lines, different ones, roots with {options}: {out}")
    cluster.run("scontainer", "rm", "with-cgroup")


@test
def joining_step_unshares_cgroup_namespace_or_is_refused(cluster):
    running = running_job(cluster, "joined", "echo up; sleep 60", "--container-name=with-cgroup", CGROUP)
    join = ("srun", *ON, "--overlap", "--container-name=with-cgroup")
    cluster.run(*join, CGROUP, "sh", "-c", "cut -d: -f3- /proc/self/cgroup | sort -u").good("/")
    cluster.run("scancel", "-n", "joined").good()
    running.end()
    running = running_job(cluster, "joined", "echo up; sleep 60", "--container-name=without-cgroup")
    done = cluster.run("srun", *ON, "--container-name=without-cgroup", CGROUP, "true")
    expect(done.rc == 1 and "is not in a separate cgroup namespace" in done.err, "it was not refused", done)
    cluster.run("scancel", "-n", "joined").good()
    running.end()


# --- pid -------------------------------------------------------------------------------------------------------------

PID = "--container-unshare=pid"


@test
def pid_namespace_shows_only_container_processes(cluster):
    out = cluster.bash("cd /proc; for p in [0-9]*; do cat $p/comm; done | sort | uniq -c; test $$ -lt 50; readlink /proc/self >/dev/null",
                       *ON, PID, "-n2", "--kill-on-bad-exit=1").good().split()
    equal(set(out[1::2]) - {"cat", "sort", "uniq"}, {"agent", "bash"}, "processes in /proc")


@test
def exit_codes_and_signals_are_those_of_the_task(cluster):
    image = with_probe("pid", [])
    for script, rc in (("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill -SEGV $$", 139), ("kill -TERM $$", 143), ("true", 0)):
        done, plain = (cluster.bash("ulimit -c 0; " + script, *ON, *more) for more in ([PID], []))
        said, said_plain = (re.sub(r"StepId=\S+", "", one.err) for one in (done, plain))
        equal((done.rc, said), (rc, said_plain), f"exit code and messages of {script!r}", done)
    cluster.srun(PID, "/probe", image=image).good("uid 2001, in /")
    done = cluster.srun(PID, "/nothing")
    equal(done.rc, 2, "exit code of a command that is not there", done)


@test
def signal_reaches_the_task_once(cluster):
    count = "trap 'n=$((n+1))' USR1; trap 'echo interrupted; exit 5' INT; n=0; echo up; for i in 1 2 3 4 5 6 7 8; do sleep 0.1; done; exit $n"
    running = running_job(cluster, "counts", count, PID)
    cluster.run("scancel", "-s", "USR1", "-n", "counts").good()
    equal(running.end().rc, 1, "signals that arrived")
    running = running_job(cluster, "interrupted", count, PID, "-X")
    running.send(signal.SIGINT)
    done = running.end()
    equal((done.rc, "interrupted" in done.out), (5, True), "exit code, trap of INT", done)


@test
def scancel_ends_everything_in_a_pid_namespace(cluster):
    running = running_job(cluster, "to-be-cancelled", "trap '' TERM; (trap '' TERM; setsid sleep 60 &); echo up; sleep 60", PID, "-n2")
    cluster.run("scancel", "-s", "KILL", "-n", "to-be-cancelled").good()
    expect(running.end(15).rc != 0, "it was not cancelled")
    running = running_job(cluster, "terminated", "trap 'echo bye; exit 3' TERM; echo up; sleep 60 & wait", PID)
    cluster.run("scancel", "-n", "terminated").good()
    done = running.end(15)
    expect("bye" in done.out, "SIGTERM did not reach the task", done)
    cluster.must_be_quiet()


@test
def processes_left_by_a_task_end_with_the_step(cluster):
    # The orphan is adopted and reaped: no zombie remains.
    running = cluster.start_srun(*ON, PID, "bash", "-c", "(sleep 0.1 & exec true); (setsid sleep 60 >/dev/null 2>&1 &); sleep 0.4; "
                                 "grep -l '^State:.Z' /proc/[0-9]*/status; echo ended; exit 0")
    done = running.end(10)
    equal(done.good(), "ended", "zombies, and the end", done)
    cluster.must_be_quiet()


@test
def pid_namespace_init_has_no_privileges_or_files(cluster):
    running = cluster.start_srun(*ON, PID, "bash", "-c", "echo up; read end || :", stdin=OPEN)
    running.await_text("up")
    inner, = [pid for pid in cluster.everybody("bash") if os.readlink(f"/proc/{pid}/ns/pid") not in of_the_node(cluster) and is_alices(pid)]
    parent = int(open(f"/proc/{inner}/stat").read().rpartition(")")[2].split()[1])
    status = open(f"/proc/{parent}/status").read()
    equal(os.listdir(f"/proc/{parent}/fd"), [], "descriptors of the stand-in")
    equal(re.search(r"CapPrm:\t(\w+)", status)[1].strip("0"), "", "capabilities of the stand-in")
    expect("NoNewPrivs:\t1" in status, "it could get privileges")
    init, = [pid for pid in cluster.everybody("agent") if os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{inner}/ns/pid")]
    status = open(f"/proc/{init}/status").read()
    equal(re.search(r"CapPrm:\t(\w+)", status)[1].strip("0"), "", "capabilities of the first process")
    equal(re.search(r"Uid:\t(\d+)", status)[1], "2001", "its user")
    equal(sorted(os.listdir(f"/proc/{init}/fd")), ["0", "1", "2", "3"], "its descriptors")
    running.end().good()


def is_alices(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        return "Uid:\t2001" in file.read()
    return False


@test
def terminal_works_in_a_pid_namespace(cluster):
    command = "echo $((6 * 7)); tty >/dev/null && echo on a terminal; sleep 5 & kill %1; wait; exit 4"
    done = cluster.run("python3", "-c", "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))", "srun", "--pty",
                       f"--container-image={cluster.name_of('base')}", PID, "bash", "-ic", command)
    expect(done.rc == 4 and "42" in done.out and "on a terminal" in done.out, "an interactive shell does not work", done)


@test
def all_namespaces_work_at_once_as_root_inside(cluster):
    out = cluster.bash("id -u; ls /sys/class/net; test $$ -lt 50; echo x >/dev/shm/$SLURM_PROCID; touch /new; sleep 0.3; ls /dev/shm | wc -l", *ON, "-n2",
                       ALL, "--container-remap-root").good().split()
    equal(sorted(out), ["0", "0", "2", "2", "lo", "lo"], "what two tasks print")


@test
def private_containers_have_namespaces_of_their_own(cluster):
    out = cluster.bash("readlink /proc/self/ns/pid /proc/self/ns/net; sleep 0.5; set -- /proc/[0-9]*; echo $#", *ON, "-n3", ALL, "--container-private").good().split()
    equal((len(out), len(set(out))), (9, 7), f"lines and different lines of three tasks: {out}")


@test
def pmi2_works_in_a_pid_namespace(cluster):
    talk = 'echo "cmd=init pmi_version=2 pmi_subversion=0" >&$PMI_FD; read -r answer <&$PMI_FD; echo "$answer"'
    plain, own = (cluster.srun("--mpi=pmi2", *options, "bash", "-c", talk) for options in ((), (PID,)))
    expect("cmd=response_to_init rc=0" in own.good(), "PMI2 does not answer", own)
    equal(own.out, plain.out, "its answer", own)


@test
def agent_killed_ends_its_pid_namespace(cluster):
    running = running_job(cluster, "orphaned", "echo up; sleep 60", ALL, "-n2")
    kill_all(cluster.processes("node01", "agent"))
    done = running.end(15)
    equal(done.rc, 137, "exit code", done)
    await_true(lambda: not any(is_alices(pid) for pid in cluster.everybody("sleep")), 5, "a process of the container is left")
    cluster.must_be_quiet()
