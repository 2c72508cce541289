"""--container-private: each task has its own container over the same image."""
import os
import subprocess
import time

from cluster import HERE, kill_all
from command import await_true
from harness import equal, expect, test
from images import with_probe
from private_images_test import DOCKER, PRIVATE, in_home


def lines(done):
    return sorted(done.good().splitlines())


@test
def tasks_have_a_layer_and_a_tmp_of_their_own(cluster):
    done = cluster.bash("me=$SLURM_PROCID; echo $me >/mine; echo $me >/tmp/mine; mkdir /sync 2>/dev/null; echo $me >/dev/shm/private-$me; "
                        "until test $(ls /dev/shm/private-* | wc -l) = 3; do sleep 0.05; done; echo $(cat /mine /tmp/mine /dev/shm/private-$me); "
                        "sleep 0.3; rm -f /dev/shm/private-$me", "-n3", "-N1", "--container-private")
    equal(lines(done), ["0 0 0", "1 1 1", "2 2 2"], "what each task found", done)


@test
def tasks_share_everything_except_their_files(cluster):
    done = cluster.bash("readlink /proc/self/ns/user /proc/self/ns/ipc /proc/self/ns/net /proc/self/ns/pid | xargs echo", "-n3", "-N1", "--container-private")
    equal(len(set(lines(done))), 1, "namespaces", done)
    # All at the same time: the kernel reuses numbers of ended namespaces.
    done = cluster.bash("readlink /proc/self/ns/mnt; touch /dev/shm/space-$SLURM_PROCID; "
                        "until test $(ls /dev/shm/space-* | wc -l) = 3; do sleep 0.05; done; sleep 0.3; rm -f /dev/shm/space-$SLURM_PROCID",
                        "-n3", "-N1", "--container-private")
    equal(len(set(lines(done))), 3, "mount namespaces", done)


@test
def tasks_read_each_others_memory(cluster):
    """As MPI does on one node: process_vm_readv(2)."""
    reader = r"""
use strict; my ($me, $buffer) = ($ENV{SLURM_PROCID}, "from task $ENV{SLURM_PROCID}");
my $address = unpack("Q", pack("p", $buffer));
open(my $out, ">", "/dev/shm/cma-$me.new"); print $out "$$ $address"; close($out); rename("/dev/shm/cma-$me.new", "/dev/shm/cma-$me");
my $other = 1 - $me; select(undef, undef, undef, 0.05) until -e "/dev/shm/cma-$other";
open(my $in, "<", "/dev/shm/cma-$other"); my ($pid, $from) = split / /, <$in>;
my $copy = "\0" x 11; my $local = pack("PQ", $copy, 11); my $remote = pack("QQ", $from, 11);
my $got = syscall(310, $pid + 0, $local, 1, $remote, 1, 0); print $got == 11 ? "$me: $copy\n" : "$me: $!\n";
open(my $done, ">", "/dev/shm/cma-done-$me"); select(undef, undef, undef, 0.05) until -e "/dev/shm/cma-done-$other"; select(undef, undef, undef, 0.2);
unlink("/dev/shm/cma-$me", "/dev/shm/cma-done-$me");
"""
    done = cluster.srun("-n2", "-N1", "--container-private", "perl", "-e", reader)
    equal(lines(done), ["0: from task 1", "1: from task 0"], "what they read", done)


@test
def image_is_fetched_once_per_node_and_tag_resolved_once(cluster):
    name, _ = cluster.faulty.publish(with_probe("private-once", []))
    cluster.faulty.requests.clear()
    cluster.srun("-w", "node01", "-n4", "-N1", "--container-private", "/probe", "/x", image=name).good()
    once = dict(cluster.faulty.requests)
    expect(once and max(once.values()) <= 2, f"requests: {once}")  # HEAD and GET of the manifest
    cluster.faulty.requests.clear()
    cluster.srun("-w", "node01", "-n4", "-N1", "--container-private", "/probe", "/x", image=name).good()
    equal(sum(cluster.faulty.requests.values()), 1, "questions about the tag")


@test
def image_with_login_is_requested_once(cluster):
    with in_home(cluster, ".docker/config.json", DOCKER):
        done = cluster.srun("-n3", "-N1", "--container-private", "--container-verbose", "true", image=PRIVATE)
    done.good()
    equal(len([line for line in done.messages() if "import" in line and "ms" in line and "start" not in line]) <= 1, True, "one import")


@test
def private_with_name_or_save_is_refused(cluster):
    for option in ("--container-name=x", "--container-save=./x.sqsh"):
        done = cluster.srun("--container-private", option, "true")
        equal(done.rc, 1, "exit code", done)
        expect("cannot be combined" in done.err, "not refused", done)


@test
def task_that_fails_to_start_ends_step_and_leaves_nothing(cluster):
    done = cluster.srun("-n3", "-N1", "--container-private", "--container-mounts=/no/such:/mnt", "true")
    equal((done.rc, len(set(done.errors()))), (1, 1), "exit code and different lines", done)
    cluster.must_be_quiet(within=2)


@test
def scancel_during_many_starts_leaves_nothing(cluster):
    open(os.path.join(cluster.home, "alice/private.sqsh"), "wb").close()
    subprocess.run(["mksquashfs", HERE, os.path.join(cluster.home, "alice/private.sqsh"), "-quiet", "-no-progress", "-noappend"], check=True,
                   stdout=subprocess.DEVNULL)
    for moment in range(6):
        running = cluster.start_srun("-J", "cancelled", "-n12", "--overcommit", "-w", "node01", "--container-private",
                                     "--container-mounts=/home/alice/private.sqsh:/data:sqsh,tmpfs:/t:size=1M", "sleep", "60")
        await_true(lambda: cluster.step_agents("node01"), 10, "no agent starts")
        time.sleep(moment * 0.012)
        cluster.run("scancel", "-n", "cancelled")
        running.end()
    cluster.must_be_quiet(within=5)


@test
def agent_killed_between_two_tasks_fails_the_step(cluster):
    running = cluster.start_srun("-n12", "--overcommit", "-w", "node01", "--container-private", "sleep", "1")
    await_true(lambda: cluster.step_agents("node01"), 10, "no agent starts")
    kill_all(cluster.step_agents("node01"))
    done = running.end()
    expect(done.rc in (0, 1), "neither in time nor refused", done)
    cluster.must_be_quiet(within=5)


@test
def tasks_as_root_inside_have_their_own_layers(cluster):
    done = cluster.bash("echo $SLURM_PROCID >/root/mine; id -u; cat /root/mine; stat -f -c %T /root", "-n2", "-N1", "--container-private",
                        "--container-remap-root", "--container-contain")
    equal(lines(done), ["0", "0", "0", "1", "tmpfs", "tmpfs"], "what they found", done)
