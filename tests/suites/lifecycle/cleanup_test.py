"""Every way to end in every phase: on a quiet machine all is gone within a second, nothing is left,
and the next job works."""
import os
import re
import signal
import time

from cluster import NODES, kill_all
from command import await_true
from images import with_probe
import site_files
from attacks_test import place_of
from harness import equal, expect, test
from outcomes import outcome

ON = ("-w", "node01")


class Pull:
    """A step of node01 that hangs in the middle of a pull. `go` lets the registry continue."""

    def __init__(self, cluster, title, *options, megabytes=1):
        self.cluster, self.store = cluster, cluster.stores()
        self.name, layers = cluster.faulty.publish(with_probe(f"cleanup-{title}", [("data", os.urandom(megabytes << 20))]))
        self.layer = layers[0]
        self.gate = cluster.faulty.hold(self.layer)
        self.step = cluster.start_srun(*ON, "-J", title, *options, "/probe", image=self.name)
        await_true(lambda: self.requests() > 0 and cluster.processes("node01", "layer-writer"), 10, "the pull did not begin")

    def requests(self):
        return self.cluster.faulty.requests[f"/v2/{self.name.split('/', 1)[1].rpartition(':')[0]}/blobs/{self.layer}"]

    def go(self):
        self.gate.set()

    def must_leave_nothing(self, within=1):
        self.cluster.must_be_quiet(within=within, store=self.store)


def running_step(cluster, title, *options):
    """Starts a step of node01 and waits for its task."""
    step = cluster.start_srun(*ON, "-J", title, *options, "sh", "-c", "echo up; sleep 60")
    step.await_text("up")
    return step


def cancel(cluster, title):
    cluster.run("scancel", "-n", title).good()


def limit_of_its_memory(pid):
    """Returns the lowest limit of the process's cgroups, in bytes."""
    place, limits = place_of(pid, "memory"), []
    while place != "/sys/fs/cgroup/memory":
        with open(f"{place}/memory.limit_in_bytes") as file:
            limits.append(int(file.read()))
        place = os.path.dirname(place)
    return min(limits)


@test
def agent_survives_signals_sent_to_its_step(cluster):
    """As proctrack/linuxproc sends those of scancel: to every process below slurmstepd."""
    step = running_step(cluster, "signals", "--container-name=signals")
    agents = cluster.step_agents("node01")
    expect(agents, "the step has no agent")
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT,
                   signal.SIGALRM, signal.SIGRTMIN):
        for agent in agents:
            os.kill(agent, number)
    equal(cluster.srun(*ON, "--container-name=signals:exec", "echo", "joined").good(), "joined",
          "what is said")
    await_true(lambda: cluster.step_agents("node01") == agents, 5, "the agent is not there any more")
    cancel(cluster, "signals")
    step.end()
    cluster.must_be_quiet(within=1)


@test
def pull_memory_is_charged_to_the_job(cluster):
    """So an import needs no separate limit to protect other jobs. Sites with tight job limits set
    import_memory."""
    with site_files.rules(cluster, 'import_memory = "64M"\n'):
        pull = Pull(cluster, "memory", "--mem=300M")
        helpers = {name: cluster.processes("node01", name) for name in ("import", "layer-writer")}
        for name, pids in helpers.items():
            expect(pids, f"no {name} runs, the test is void")
            equal([limit_of_its_memory(pid) for pid in pids], [300 << 20] * len(pids), f"limits of {name}")
        pull.go()
        pull.step.end(20).good()


# --- the pull --------------------------------------------------------------------------------------------------------

@test
@outcome(160, "accepted", "scancel in each phase")
def scancel_ends_pull_at_once(cluster):
    pull = Pull(cluster, "scancel")
    cancel(cluster, "scancel")
    pull.must_leave_nothing(within=1)
    done = pull.step.end(10)
    expect(done.rc != 0, "the cancelled step succeeded", done)
    must_not_blame_us(done)
    pull.go()


def must_not_blame_us(done):
    """Checks that a cancelled step prints no line about the end of its helpers."""
    ours = [line for line in done.errors() if "exited" in line or "ended" in line]
    expect(not ours, f"a step that was cancelled says {ours}", done)


@test
def scancel_ends_pull_of_fuse_served_image(cluster):
    with site_files.rules(cluster, 'squashfs = "fuse"'):
        pull = Pull(cluster, "scancel-fuse")
        cancel(cluster, "scancel-fuse")
        pull.must_leave_nothing(within=1)
        must_not_blame_us(pull.step.end(10))
        pull.go()


@test
def interrupt_ends_pull_at_once(cluster):
    pull = Pull(cluster, "interrupt")
    pull.step.send(signal.SIGINT)
    time.sleep(0.1)
    pull.step.send(signal.SIGINT)
    pull.must_leave_nothing(within=1)
    expect(pull.step.end(10).rc != 0, "the interrupted step succeeded")
    pull.go()


@test
@outcome(160, "accepted", "scancel in each phase")
def scancel_ends_pull_of_batch_job_at_once(cluster):
    store = cluster.stores()
    name, layers = cluster.faulty.publish(with_probe("cleanup-batch", [("data", os.urandom(1 << 20))]))
    gate = cluster.faulty.hold(layers[0])
    job = cluster.submit("#!/probe\n", f"--container-image={name}", *ON)
    await_true(lambda: cluster.processes("node01", "layer-writer"), 10, "the pull did not begin")
    cluster.run("scancel", str(job)).good()
    cluster.must_be_quiet(within=1, store=store)
    gate.set()
    equal(cluster.await_job(job)["JobState"], "CANCELLED", "state of the job")


@test
@outcome(160, "accepted", "scancel in each phase")
def pull_succeeds_after_cancelled_pull(cluster):
    pull = Pull(cluster, "again")
    cancel(cluster, "again")
    pull.must_leave_nothing()
    pull.step.end(10)
    pull.go()
    cluster.srun(*ON, "/probe", image=pull.name).good()


@test
def pull_of_shared_layer_survives_cancel_of_another_job(cluster):
    pull = Pull(cluster, "first")
    other = cluster.start_srun(*ON, "/probe", image=pull.name)
    other.await_text("another job on this node converts 1 of them")
    cancel(cluster, "first")
    expect(pull.step.end(10).rc != 0, "the cancelled step succeeded")
    pull.go()
    other.end().good()


@test
@outcome(46, "accepted", "100 nodes pull one image")
def layers_of_one_image_are_fetched_once_for_two_jobs(cluster):
    pull = Pull(cluster, "both")
    others = [cluster.start_srun(*ON, "/probe", image=pull.name) for _ in range(3)]
    for other in others:
        other.await_text("another job on this node converts 1 of them")
    pull.go()
    for step in (pull.step, *others):
        step.end().good()
    equal(pull.requests(), 1, "downloads of the layer")
    cluster.must_be_quiet(within=1)


@test
@outcome(156, "accepted", "SIGKILL of import, converter, agent at every step")
def import_killed_reports_one_line_and_retry_works(cluster):
    pull = Pull(cluster, "import", "-n4")
    kill_all(cluster.processes("node01", "import"))
    done = pull.step.end(10)
    equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
    expect("import exited unexpectedly" in done.errors()[0], "the line does not say why", done)
    pull.must_leave_nothing()
    pull.go()
    cluster.srun(*ON, "/probe", image=pull.name).good()


@test
def import_killed_is_taken_over_by_another_job(cluster):
    pull = Pull(cluster, "taken-over")
    first = cluster.processes("node01", "import")
    other = cluster.start_srun(*ON, "/probe", image=pull.name)
    other.await_text("another job on this node converts 1 of them")
    kill_all(first)
    expect(pull.step.end(10).rc == 1, "the step whose import was killed succeeded")
    pull.go()
    other.end().good()


@test
@outcome(156, "accepted", "SIGKILL of import, converter, agent at every step")
def converter_killed_reports_one_line_and_retry_works(cluster):
    pull = Pull(cluster, "converter")
    kill_all(cluster.processes("node01", "layer-writer"))
    pull.go()
    done = pull.step.end(10)
    equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
    expect("was killed by signal 9" in done.errors()[0], "the line does not say why", done)
    pull.must_leave_nothing()
    cluster.srun(*ON, "/probe", image=pull.name).good()


@test
@outcome(156, "accepted", "SIGKILL of import, converter, agent at every step")
def agent_killed_during_pull_reports_one_line(cluster):
    pull = Pull(cluster, "agent", "-n4")
    kill_all(cluster.processes("node01", "agent"))
    done = pull.step.end(10)
    equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
    expect("set up the container: the agent exited" in done.errors()[0], "the line does not say why", done)
    pull.must_leave_nothing()
    pull.go()
    cluster.srun(*ON, "/probe", image=pull.name).good()


@test
def task_ending_just_after_agent_or_leader_is_silent(cluster):
    """scancel ends a step's processes one after the other."""
    for name in ("agent", "leader"):
        pull = Pull(cluster, f"{name}-first")
        waiting = tasks(cluster)
        kill_all(cluster.processes("node01", name))
        time.sleep(0.1)
        kill_all(waiting)
        done = pull.step.end(10)
        expect(waiting and done.rc != 0, "no task waited: the test is void", done)
        must_not_blame_us(done)
        pull.must_leave_nothing()
        pull.go()


@test
@outcome(157, "accepted", "SIGKILL of slurmstepd")
def slurmstepd_killed_during_pull_leaves_nothing(cluster):
    pull = Pull(cluster, "stepd-pull")
    kill_all(stepds(cluster))
    cancel(cluster, "stepd-pull")
    pull.must_leave_nothing(within=15)
    pull.step.end(30)
    pull.go()
    back_in_order(cluster)


@test
def step_that_ignores_messages_still_ends(cluster):
    pull = Pull(cluster, "frozen")
    waiting = tasks(cluster)
    expect(waiting, "no task waits, the test is void")
    kill_all(waiting, signal.SIGSTOP)
    cancel(cluster, "frozen")
    pull.must_leave_nothing(within=8)  # KillWait is 5 s
    pull.step.end(15)
    pull.go()


def tasks(cluster):
    """Returns slurmstepd's forks that have not executed the user's program: tasks waiting in
    task_init."""
    parents = {}
    for pid in cluster.processes("node01", "slurmstepd"):
        parents[pid] = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    return [pid for pid in parents if parents[pid] in parents]


def stepds(cluster):
    """Returns the slurmstepds of steps with a container: those with an agent."""
    return [int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]) for pid in cluster.processes("node01", "agent")]


def back_in_order(cluster):
    for node in NODES:
        cluster.run("scontrol", "update", f"nodename={node}", "state=resume", user="root")
    cluster.await_idle()


# --- a frozen agent ---------------------------------------------------------------------------------------------------

@test
@outcome(153, "refused", "a file system hangs")
def scancel_ends_step_with_hung_agent(cluster):
    pull = Pull(cluster, "hanging")
    kill_all(cluster.processes("node01", "agent"), signal.SIGSTOP)
    cancel(cluster, "hanging")
    pull.must_leave_nothing(within=1)
    expect(pull.step.end(10).rc != 0, "the cancelled step succeeded")
    pull.go()


@test
@outcome(139, "accepted", "2 TiB sparse image; unreachable mount")
@outcome(153, "refused", "a file system hangs")
def scancel_ends_start_hung_in_user_file_system(cluster):
    with cluster.users_file_system() as server:
        kill_all([server], signal.SIGSTOP)
        step = cluster.start_srun(*ON, "-n2", "-J", "hanging-mount", "--container-mounts=/run/fuse/file:/mnt", "true")
        await_true(lambda: cluster.step_agents("node01"), 5, "the step did not begin")
        time.sleep(0.3)
        cancel(cluster, "hanging-mount")
        await_true(lambda: not cluster.processes("node01", "agent"), 5, "the agent is still there after 5 s")
        expect(step.end(5).rc != 0, "the cancelled step succeeded")
        kill_all([server], signal.SIGCONT)
    cluster.must_be_quiet(within=2)


# --- running -----------------------------------------------------------------------------------------------------------

@test
@outcome(160, "accepted", "scancel in each phase")
def scancel_ends_running_step_at_once(cluster):
    store, step = cluster.stores(), running_step(cluster, "run-scancel")
    cancel(cluster, "run-scancel")
    cluster.must_be_quiet(within=1, store=store)
    equal(step.end(10).rc, 143, "exit code")


@test
def interrupt_ends_running_step_at_once(cluster):
    store, step = cluster.stores(), running_step(cluster, "run-interrupt")
    step.send(signal.SIGINT)
    time.sleep(0.1)
    step.send(signal.SIGINT)
    cluster.must_be_quiet(within=1, store=store)
    expect(step.end(10).rc != 0, "the interrupted step succeeded")


@test
def job_with_killed_tasks_leaves_nothing(cluster):
    store = cluster.stores()
    step = cluster.start_srun(*ON, "-n4", "-K", "sh", "-c", "echo up; test $SLURM_PROCID = 0 && kill -9 $$; sleep 60")
    step.await_text("up")
    expect(step.end(15).rc != 0, "the step succeeded")
    cluster.must_be_quiet(within=8, store=store)  # slurmstepd itself waits for 5 s


@test
def processes_left_by_a_task_end_with_the_step(cluster):
    store = cluster.stores()
    cluster.srun(*ON, "bash", "-c", "setsid sleep 60 & echo started").good("started")
    cluster.must_be_quiet(within=2, store=store)


@test
def running_step_survives_agent_kill(cluster):
    store = cluster.stores()
    step = cluster.start_srun(*ON, "-n2", "bash", "-c", "echo up; sleep 1; echo x >>/workspace/replaced && ln /etc/issue /$SLURM_PROCID && cat /etc/apt/*/* >/dev/null && echo done")
    step.await_text("up")
    kill_all(cluster.processes("node01", "agent"))
    done = step.end()
    equal((done.rc, done.out.count("done"), done.err), (0, 2, ""), "exit code, tasks that ended well, messages", done)
    cluster.must_be_quiet(within=1, store=store)


@test
@outcome(157, "accepted", "SIGKILL of slurmstepd")
def slurmstepd_killed_leaves_nothing_after_tasks_end(cluster):
    store, step = cluster.stores(), running_step(cluster, "stepd-run")
    kill_all(stepds(cluster))
    await_true(lambda: not cluster.processes("node01", "agent"), 2, "the agent survives slurmstepd")
    cancel(cluster, "stepd-run")
    # Slurm does not end the tasks of a slurmstepd that is gone
    kill_all(cluster.strangers("node01"))
    cluster.must_be_quiet(within=2, store=store)
    step.end(60)
    back_in_order(cluster)


@test
@outcome(158, "accepted", "restart of slurmd")
def running_step_survives_slurmd_restart(cluster):
    step = cluster.start_srun(*ON, "sh", "-c", "echo up; sleep 2; cat /workspace/replaced")
    step.await_text("up")
    cluster.program("restart", "node01").good()
    done = step.end()
    expect("upper" in done.good(), "the step lost its files", done)
    back_in_order(cluster)
    cluster.must_be_quiet(within=5)


@test
def requeued_job_leaves_nothing_of_its_first_run(cluster):
    path = os.path.join(cluster.home, "alice/requeue.out")
    open(path, "w").close()
    os.chown(path, 2001, 2001)
    job = cluster.submit(f"#!/bin/sh\n#SBATCH --container-image=registry:5000/suites/base:1\necho up\nsleep 60\n",
                         *ON, "--requeue", "-o", "/home/alice/requeue.out")
    await_true(lambda: "up" in open(path).read(), 10, "the job did not start")
    cluster.run("scontrol", "requeue", str(job)).good()
    cluster.must_be_quiet(within=3)
    cluster.run("scancel", str(job)).good()


@test
def fifty_short_steps_leave_nothing(cluster):
    store = cluster.stores()
    done = cluster.run("salloc", *ON, "-n8", "bash", "-c", "for i in $(seq 50); do srun --exact -n1 --container-image=registry:5000/suites/base:1 true & "
                       "(( i % 10 )) || wait; done; wait", timeout=60)
    equal(done.rc, 0, "exit code", done)
    equal(done.errors(), [], "errors", done)
    cluster.must_be_quiet(within=2, store=store)


def shared_memory_of(place):
    """Returns the bytes of tmpfs charged to the cgroup and its descendants."""
    with open(f"{place}/memory.stat") as file:
        return int(re.search(r"^total_shmem (\d+)", file.read(), re.MULTILINE)[1])


@test
def killed_step_frees_its_tmpfs_when_slurmstepd_exits(cluster):
    """The exit of a task or of the agent must not free it: Slurm waits for both, and drains a node
    if that takes too long."""
    written = 200 << 20
    step = cluster.start_srun(*ON, "sh", "-c", "head -c 200M /dev/zero >/big; head -c 100M /dev/zero >/tmp/big; echo up; sleep 60; :")
    step.await_text("up")
    task, = cluster.processes("node01", "sleep")[-1:]
    with open(f"{place_of(task, 'freezer')}/cgroup.procs") as file:
        tasks = [int(line) for line in file]
    agents = cluster.processes("node01", "agent")
    with open(f"/proc/{agents[0]}/status") as file:
        slurmstepd = int(re.search(r"PPid:\s+(\d+)", file.read())[1])
    node = place_of(cluster.pid("node01"), "memory")
    expect(shared_memory_of(node) >= written, "the files are not charged to the node's cgroup, the test is void")
    os.kill(slurmstepd, signal.SIGSTOP)
    try:
        kill_all([*tasks, *agents])
        await_true(lambda: all(ended(pid) for pid in (*tasks, *agents)), 10, "a killed process does not end")
        expect(shared_memory_of(node) >= written, "the pages were freed in the exit of a killed process")
    finally:
        os.kill(slurmstepd, signal.SIGCONT)
    step.end(20)
    await_true(lambda: shared_memory_of(node) < written, 10, "the memory is not freed after the step's end")
    cluster.must_be_quiet(within=3)


def ended(pid):
    """Returns whether the process is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True
