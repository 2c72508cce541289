"""Slurm's features for a job work as without a container: exit codes, signals, input and output,
arrays, terminals."""
import re
import subprocess
import time

from harness import equal, expect, test
from outcomes import outcome

BASE = "registry:5000/suites/base:1"


def both(cluster, *command, **how):
    """Runs the same command outside and inside."""
    return cluster.run("srun", *command, **how), cluster.srun(*command, **how)


@test
def exit_codes_are_as_without_a_container(cluster):
    for code in (0, 1, 3, 77, 255):
        # Use one node for both: its name is in the message.
        outside, inside = both(cluster, "-wnode01", "sh", "-c", f"exit {code}")
        equal(inside.rc, outside.rc, f"exit code of exit {code}", inside)
        equal(inside.err, outside.err, f"messages of exit {code}", inside)


@test
def deaths_by_signal_are_as_without_a_container(cluster):
    for name in ("TERM", "KILL", "SEGV"):
        outside, inside = both(cluster, "sh", "-c", f"kill -{name} $$")
        equal(inside.rc, outside.rc, f"exit code of SIG{name}", inside)


@test
@outcome(76, "refused", "entrypoint that cannot be run")
def missing_command_is_reported_as_without_a_container(cluster):
    outside, inside = both(cluster, "no-such-command")
    equal(inside.rc, outside.rc, "exit code", inside)
    expect("No such file or directory" in inside.err, "no reason", inside)


@test
def command_is_searched_in_the_container(cluster):
    cluster.srun("greet", "you").good("hello from base in /workspace: you")


@test
def input_reaches_the_task(cluster):
    cluster.srun("cat", stdin="through\n").good("through")


@test
def labelled_output_labels_our_errors(cluster):
    done = cluster.srun("-l", "--container-mounts=/no/such/source:/mnt", "true")
    equal(done.rc, 1, "exit code", done)
    line, = done.errors()
    expect(f"0: spank-container: {line}" in done.err, "the line has no label", done)


@test
def error_goes_to_the_error_file_of_the_step(cluster):
    import os
    path = os.path.join(cluster.home, "alice/step.err")
    done = cluster.srun("-e", "/home/alice/step.err", "--container-mounts=/no/such/source:/mnt", "true")
    equal(done.rc, 1, "exit code", done)
    expect("spank-container: --container-mounts:" in open(path).read(), "the file has no error line", done)


@test
def error_goes_to_the_output_of_a_batch_job(cluster):
    done = cluster.batch("#!/bin/sh\ntrue\n", f"--container-image={BASE}", "--container-mounts=/no/such/source:/mnt")
    equal(done.rc, 1, "exit code of the job", done)
    expect("spank-container: --container-mounts:" in done.out, "the output has no error line", done)


@test
def sixty_four_tasks_share_one_container(cluster):
    done = cluster.srun("-N1", "-n64", "readlink", "/proc/self/ns/mnt")
    names = done.good().splitlines()
    equal((len(names), len(set(names))), (64, 1), "tasks and mount namespaces", done)


@test
def tasks_of_one_node_see_each_others_files(cluster):
    cluster.srun("-N1", "-n2", "sh", "-c", "touch /tmp/$SLURM_PROCID /$SLURM_PROCID.mark; "
                 "for i in 0 1; do until test -e /tmp/$i -a -e /$i.mark; do sleep 0.02; done; done").good()


@test
def array_tasks_all_run_in_their_containers(cluster):
    import os
    job = cluster.submit(f"#!/bin/sh\n#SBATCH --container-image={BASE}\ntest -e /workspace/file && echo inside $SLURM_ARRAY_TASK_ID\n",
                         "--array=1-3", "-o", "/home/alice/array-%a.out")
    deadline = time.monotonic() + 20
    while cluster.run("squeue", "-h", "-j", str(job)).out.strip() and time.monotonic() < deadline:
        time.sleep(0.1)
    out = [open(os.path.join(cluster.home, f"alice/array-{number}.out")).read().strip() for number in (1, 2, 3)]
    equal(out, [f"inside {number}" for number in (1, 2, 3)], "outputs")


@test
def heterogeneous_components_all_run_in_their_containers(cluster):
    done = cluster.run("srun", "-n1", f"--container-image={BASE}", "sh", "-c", "cat replaced; echo $SLURM_PROCID", ":",
                       "-n1", f"--container-image={BASE}", "sh", "-c", "cat replaced; echo $SLURM_PROCID")
    equal(sorted(done.good().split()), ["0", "1", "upper", "upper"], "output", done)


@test
def terminal_works(cluster):
    import os
    argv = ["script", "-qec", f"{cluster.program_path} as alice srun --container-image={BASE} --pty bash -c 'tty; test -t 0 -a -t 1 && stty size'", "/dev/null"]
    done = subprocess.run(argv, env={**os.environ, "SPC_CLUSTER_DIR": cluster.state}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=20)
    expect(re.search(r"/dev/pts/\d+", done.stdout), f"no terminal: {done.stdout}")
    equal(done.returncode, 0, f"exit code ({done.stdout})")


@test
def signalled_task_gets_the_signal(cluster):
    running = cluster.start_srun("-J", "signalled", "bash", "-c", "trap 'echo caught; exit 5' USR1; echo up; while :; do sleep 0.05; done")
    running.await_text("up")
    cluster.run("scancel", "-s", "USR1", "-n", "signalled").good()
    done = running.end(10)
    expect("caught" in done.out, "the signal did not arrive", done)
    equal(done.rc, 5, "exit code", done)


@test
def memory_limits_hold_inside(cluster):
    outside, inside = both(cluster, "--mem=64", "perl", "-e", "my $x = 'a' x 200_000_000; print length $x")
    expect(inside.rc != 0, "more memory than allowed was used", inside)
    equal(inside.rc != 0, outside.rc != 0, "failure as outside")


@test
def pmi2_socket_reaches_the_task(cluster):
    out = cluster.srun("--mpi=pmi2", "-n2", "bash", "-c", "readlink /proc/self/fd/$PMI_FD; echo cmd=get_maxes >&$PMI_FD").good()
    equal(out.count("socket:"), 2, "tasks whose PMI_FD is a socket")


@test
def unallocated_device_cannot_be_opened(cluster):
    done = cluster.bash("for i in 0 1; do (: </dev/nvidia$i) 2>&1 | sed 's/.*: //'; done; echo $CUDA_VISIBLE_DEVICES", "--gres=gpu:1")
    # No driver exists: an allowed device gives "no such device", a forbidden one is not permitted.
    equal(done.good().splitlines(), ["No such device or address", "Operation not permitted", "0"], "what opening them says", done)


@test
def optional_task_prolog_runs_inside(cluster):
    import os
    path = os.path.join(cluster.home, "alice/prolog")
    with open(path, "w") as file:
        file.write("#!/bin/sh\necho export FROM_PROLOG=$(cat /workspace/replaced)\n")
    os.chmod(path, 0o755)
    cluster.srun("--task-prolog=/home/alice/prolog", "--container-mount-home", "sh", "-c", "echo $FROM_PROLOG").good("upper")
