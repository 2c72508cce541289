"""Tests that must pass on a node with systemd and pure cgroup v2, for any kernel."""
import ctypes
import os
import re
import struct
import time

import site_files
from cluster import name_of
from command import await_true
from guest import CGROUPS, NODE, SLURMD_LOG, is_as_before_5_19, kind_of_store, read
from harness import equal, expect, test
from images import Image
from report import tell_figure

PROGRAMS = "/usr/libexec/spank-container/"


def running_step(guest, *options):
    step = guest.start_srun(*options, "sh", "-c", "echo up; exec sleep 1000")
    step.await_text("up", 60)
    return step


def end(guest, step):
    guest.run("scancel", "--me").good()
    step.end(60)


# --- a container -------------------------------------------------------------------------------------------------------

@test
def user_sees_the_system_of_the_image(guest):
    said = guest.srun("sh", "-c", "id -u; cat /etc/os-release").good().splitlines()
    equal(said[0], "2001", "user")
    expect('VERSION_CODENAME=bookworm' in said and "VARIANT_ID=guest" not in said, f"it is the node's: {said}")


@test
def image_of_foreign_architecture_is_refused_with_both_names(guest):
    mine, other = ("amd64", "arm64") if os.uname().machine == "x86_64" else ("arm64", "amd64")
    image = guest.push_for(other)
    done = guest.srun("true", image=image)
    said = f'image "{image}": is built for linux/{other}, not for linux/{mine} (hint: choose a tag built for linux/{mine})'
    expect(done.rc != 0 and said in done.err, "it is not refused with both names", done)
    guest.srun(f"--container-platform=linux/{mine}", "cat", "/workspace/replaced").good("upper")
    expect(f"linux/{mine}" in guest.run("scontainer", "info").good(), "scontainer info names another platform")


@test
def layers_are_mounted_by_kernel_with_owner_mapping(guest):
    """Squashfs from Linux 6.2 on. Before, erofs, which Debian's kernels have as a module, or
    copies."""
    layers, by_fuse = guest.layers_served()
    has_erofs = guest.kernel >= (5, 19) and not is_as_before_5_19()
    equal(by_fuse, 0 if has_erofs or kind_of_store() == "xfs" else layers, f"of {layers} layers by FUSE")
    for entry in os.scandir(os.path.join(guest.store(NODE), "layers/sha256")):
        with open(entry.path, "rb") as layer:
            equal(layer.read(4) == b"hsqs", guest.kernel >= (6, 2) or not has_erofs, f"{entry.name} is a squashfs")
    explained = guest.srun("--container-explain=all", "true")
    expect(explained.rc == 0 and f"{layers} layers in the store" in explained.err, "the layers are not explained", explained)
    equal("served by FUSE" in explained.err, by_fuse > 0, "explained as served by FUSE", explained)


@test
def two_tasks_share_a_container(guest):
    said = guest.srun("-n2", "sh", "-c", "echo $SLURM_PROCID $(readlink /proc/self/ns/mnt)").good().splitlines()
    equal(sorted(line.split()[0] for line in said), ["0", "1"], "tasks")
    equal(len({line.split()[1] for line in said}), 1, "mount namespaces")


@test
def image_files_can_be_changed(guest):
    guest.bash("echo new >/new; echo more >>/workspace/replaced; rm /workspace/file; mv /usr/share/base-files /moved; chmod 700 /workspace/old; "
               "mkdir /etc/made; cat /new /workspace/replaced; test ! -e /workspace/file; test -d /moved").good("new\nupper\nmore")


@test
def node_directory_can_be_mounted(guest):
    guest.run("sh", "-c", "mkdir -p data; echo outside >data/file").good()
    guest.bash("cat /data/file; echo inside >/data/new; ! echo x >/fixed/new", "--container-mounts=./data:/data,./data:/fixed:ro").good("outside")
    equal(read("/home/alice/data/new"), "inside\n", "file outside")


@test
def user_can_be_root_inside(guest):
    """A seccomp filter fakes success of calls that need real root. Their numbers depend on the
    architecture."""
    said = guest.bash("id -u; chown 5:6 /workspace/file; chgrp 7 /workspace/hard-link; mknod /null c 1 3; echo done", "--container-remap-root")
    said.good("0\ndone")


@test
def saved_container_starts_again(guest):
    guest.bash("echo kept >/kept; rm /workspace/file", "--container-save=/home/alice/saved.sqsh").good()
    guest.bash("cat /kept /workspace/replaced; test ! -e /workspace/file", image="/home/alice/saved.sqsh").good("kept\nupper")
    guest.run("rm", "saved.sqsh").good()


@test
def batch_script_runs_in_a_container(guest):
    done = guest.batch("#!/bin/sh\ntest -e /workspace/replaced && id -u\nexit 7\n", "--container-image=registry:5000/suites/base:1")
    equal((done.rc, done.out), (7, "2001\n"), "exit code and output", done)


@test
def named_container_keeps_files_for_the_second_step(guest):
    step = "srun --container-name=kept"
    guest.run("salloc", "bash", "-euc", f"{step} --container-image=registry:5000/suites/base:1 sh -c 'echo one >/made'; {step} cat /made").good("one")


@test
def joined_step_outlives_the_first(guest):
    done = guest.run("salloc", "-n2", "bash", "-euc", """
        cd /home/alice; rm -f up joined ended
        srun --exact -n1 --container-name=shared --container-image=registry:5000/suites/base:1 --container-mounts=/home/alice sh -c '
            echo first >/made; touch /home/alice/up; until test -e /home/alice/joined; do sleep 0.1; done' &
        until test -e up; do sleep 0.1; done
        srun --exact -n1 --container-name=shared --container-mounts=/home/alice sh -c '
            touch /home/alice/joined; until test -e /home/alice/ended; do sleep 0.1; done; cat /made; cat /usr/bin/* | wc -c >/dev/null && /usr/bin/perl -e "print 7"' &
        wait %1
        sleep 2
        touch ended
        wait %2""")
    equal((done.rc, done.out), (0, "first\n7"), "exit code and output of the step that joined", done)


# --- the end -----------------------------------------------------------------------------------------------------------

@test
def scancel_ends_pull(guest):
    """In the middle of a layer."""
    image, layers = guest.faulty.publish(Image("guests/cancelled", [[("data", os.urandom(1 << 20))]]))
    gate, store = guest.faulty.hold(layers[0]), guest.stores()
    step = guest.start_srun("true", image=image)
    await_true(lambda: guest.processes(NODE, "layer-writer"), 60, "the pull did not begin")
    guest.run("scancel", "--me").good()
    guest.must_be_quiet(within=5, store=store)
    done = step.end(30)
    blames = [line for line in done.errors() if "ended" in line or "exited" in line]
    expect(done.rc != 0 and not blames, f"a step that was cancelled says {blames}", done)
    gate.set()


@test
def scancel_ends_running_step(guest):
    _, by_fuse = guest.layers_served()
    step = running_step(guest, "-n2")
    expect(guest.loops("node01") or by_fuse, "no loop device of the running step was found: the test is void")
    expect(guest.cgroups() and guest.strangers("node01"), "no cgroup or process of the running step was found: the test is void")
    guest.run("scancel", "--me").good()
    guest.must_be_quiet(within=5)
    equal(step.end(30).rc, 143, "exit code")


@test
def hundred_steps_of_a_job_leave_nothing(guest):
    guest.must_be_quiet()
    store, began = guest.stores(), os.path.getsize(SLURMD_LOG)
    done = guest.run("salloc", "-n2", "bash", "-c", f"""
        cgroups() {{ find {CGROUPS} -type d -path '*/job_*' | sort; }}
        cgroups >before
        test -s before || exit 4
        for pair in $(seq 50); do
            srun --exact -n1 --container-image=registry:5000/suites/base:1 true &
            srun --exact -n1 --container-image=registry:5000/suites/base:1 true || exit 5
            wait $! || exit 5
        done
        for try in $(seq 50); do
            cgroups | diff before - >left && exit 0
            sleep 0.2
        done
        cat left
        exit 6""", timeout=1800)
    equal(done.rc, 0, "exit code", done)
    equal(done.errors(), [], "errors", done)
    guest.must_be_quiet(store=store)
    bad = [line for line in read(SLURMD_LOG)[began:].splitlines() if "error" in line]
    expect(not bad, f"slurmd complains {len(bad)} times, at first: {bad[:1]}\n" + "\n".join(bad[:10]))


@test
def slurmd_restart_keeps_the_running_step(guest):
    step = guest.start_srun("sh", "-c", "echo up; sleep 10; cat /workspace/replaced")
    step.await_text("up", 60)
    guest.root("node01", "systemctl", "restart", "slurmd").good()
    step.end(120).good("up\nupper")
    guest.must_be_quiet(within=10)


# --- memory ------------------------------------------------------------------------------------------------------------

def fills_the_root(guest, megabytes):
    began = time.monotonic()
    done = guest.srun(f"--mem={megabytes}", "dd", "if=/dev/zero", "of=/big", "bs=1M", "count=300", timeout=180)
    expect(done.rc != 0, f"300 MB were written with --mem={megabytes}", done)
    said = done.err.lower()
    expect("no space left" in said or "oom" in said or "out of memory" in said or "killed" in said, f"--mem={megabytes}: it is not said why it ended", done)
    expect(time.monotonic() - began < 120, f"--mem={megabytes}: it took {time.monotonic() - began:.0f} s", done)
    guest.must_be_quiet(within=10)


@test
def root_file_system_writes_count_as_job_memory(guest):
    for megabytes in (20, 60, 100):
        fills_the_root(guest, megabytes)


@test
def helpers_are_killable_when_memory_is_short(guest):
    step = running_step(guest)
    found = {pid: (name_of(pid), os.stat(f"/proc/{pid}").st_uid, int(read(f"/proc/{pid}/oom_score_adj") or 0)) for pid in guest.strangers("node01")}
    end(guest, step)
    expect(any(name == "sleep" for name, _, _ in found.values()), f"the task was not found: {found}")
    immune = [f"{name} (uid {uid}): {score}" for name, uid, score in found.values() if uid != 0 and score <= -1000]
    expect(not immune, f"oom_score_adj of {', '.join(immune)}")


# --- devices ----------------------------------------------------------------------------------------------------------

@test
def devices_outside_allocation_are_refused(guest):
    """ConstrainDevices: opening the job's own device reaches the missing driver. Slurm does not
    constrain plain resources."""
    script = "for number in 0 1; do cat /dev/card$number 2>&1 || true; done | sed 's/.*: //' | sort"
    for options in ([], ["--container-remap-root"]):
        said = guest.bash(script, "--gres=nic:1", "--container-mounts=/dev/card0,/dev/card1", *options).good()
        equal(said, "No such device or address\nOperation not permitted", f"the two devices with {options}")


# --- isolation ---------------------------------------------------------------------------------------------------------

@test
def cgroup_namespace_begins_at_the_tasks_cgroup(guest):
    script = "cat /proc/self/cgroup; cat /sys/fs/cgroup/memory.max; find /sys/fs/cgroup -name '*slurm*' -o -name 'job_*' | wc -l; ls -d /sys/fs/cgroup/task_*"
    for options in ([], ["--container-remap-root"], ["--container-contain"]):
        guest.bash(script, "--mem=100M", "--container-unshare=cgroup", *options).good(f"0::/\n{100 << 20}\n0\n/sys/fs/cgroup/task_0")


PROFILE = """
profile jobs flags=(attach_disconnected,mediate_deleted) {
  file,
  capability,
  network,
  signal,
  ptrace,
  unix,
  deny /denied/** w,
}
"""


@test
def tasks_run_under_the_sites_apparmor_profile(guest):
    script = "cat /proc/self/attr/current; mkdir /denied /open; touch /open/file; ! touch /denied/file"
    with site_files.rules(guest, 'apparmor_profile = "jobs"\nselinux_label = "system_u:system_r:container_t:s0"\n'):
        done = guest.bash(script)
        expect(done.rc == 1 and 'set the AppArmor label "jobs": ' in done.err and "apparmor_parser --replace FILE)" in done.err, "it is not refused", done)
        with open("/root/jobs", "w") as file:
            file.write(PROFILE)
        guest.root(NODE, "apparmor_parser", "--replace", "/root/jobs").good()
        for options in ([], ["--container-remap-root"], ["--container-unshare=pid"], ["--container-private"]):
            done = guest.bash(script, *options)
            expect(done.good() == "jobs (enforce)" and "Permission denied" in done.err, f"the profile does not hold with {options}", done)
        guest.run("srun", "cat", "/proc/self/attr/current").good("unconfined")
    guest.bash("cat /proc/self/attr/current").good("unconfined")


QUOTACTL_FD, SETQUOTA, OF_USERS, LIMITS = 443, 0x800008, 0, 1


def limit_kilobytes(path, user, most):
    """Sets a quota as setquota(8) does: struct if_dqblk, whose first member is the hard limit."""
    limits = struct.pack("8QI4x", most, most, 0, 0, 0, 0, 0, 0, LIMITS)
    directory = os.open(path, os.O_RDONLY)
    done = ctypes.CDLL(None, use_errno=True).syscall(QUOTACTL_FD, directory, (SETQUOTA << 8) | OF_USERS, user, limits)
    os.close(directory)
    expect(done == 0, f"quotactl_fd: {os.strerror(ctypes.get_errno())}")


@test
def file_system_quotas_limit_user_containers(guest):
    guest.root(NODE, "sh", "-euc", "truncate -s 300M /var/disk; mkfs.ext4 -q -O quota -E quotatype=usrquota /var/disk; mkdir -p /var/disks; "
               "mount -o loop,usrquota /var/disk /var/disks; rmdir /var/disks/lost+found; mount --bind /var/disks /var/lib/spank-container; "
               f"{PROGRAMS}agent setup $(id -u spank-container) $(id -g spank-container)").good()
    try:
        limit_kilobytes("/var/disks", 2001, 8 << 10)
        done = guest.bash("! head -c 20000000 /dev/zero >/big; expr $(stat -c %s /big) / 1000000", "--container-name=limited")
        expect(done.good() in ("7", "8") and "Disk quota exceeded" in done.err, "the quota does not hold", done)
        done = guest.bash("true", "--container-name=limited-too")
        expect(done.rc == 1 and "disk quota exceeded (hint: remove what" in done.err, "it does not hold for all containers together", done)
        guest.bash("head -c 20000000 /dev/zero >/big").good()  # in memory
    finally:
        guest.root(NODE, "sh", "-c", "umount -l /var/lib/spank-container; umount -l /var/disks; rm /var/disk").good()


# --- timing: compared between guests --------------------------------------------------------------

STARTS = """
    image=--container-image=registry:5000/suites/base:1
    for time in 0 1 2 3 4 5; do
        began=$EPOCHREALTIME; srun true || exit 5; echo "a step without a container: $began $EPOCHREALTIME"
        began=$EPOCHREALTIME; srun $image true || exit 5; echo "a step in a container: $began $EPOCHREALTIME"
        srun --container-verbose $image true || exit 5
    done"""

# Modules of Python's own library, except those with side effects on import.
IMPORTS = """
import importlib, sys
for name in sorted(sys.stdlib_module_names - {"antigravity", "this", "__phello__"}):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
"""

READS = """
import os, subprocess, sys, time

def modules_imported():
    subprocess.run([sys.executable, "-I", "-S", "-B", "-W", "ignore", "-c", sys.argv[1]], check=True)

def files_read(block=bytearray(1 << 20)):
    for where, _, names in os.walk("/usr"):
        for path in (os.path.join(where, name) for name in names):
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb", 0) as file:
                    while file.readinto(block):
                        pass

for measured in map(globals().get, sys.argv[2:]):
    for _ in range(4):
        began = time.monotonic()
        measured()
        print(measured.__name__.replace("_", " "), time.monotonic() - began)
"""


def tell_all_but_the_first(seconds):
    """Drops the first figure, which is measured with cold caches."""
    for name, numbers in seconds.items():
        tell_figure(name, numbers[1:])


@test
def start_times_are_measured(guest):
    done = guest.run("salloc", "-n1", "bash", "-c", STARTS, timeout=600)
    expect(done.rc == 0, "a step failed", done)
    seconds = {}
    for name, began, ended in re.findall(r"^(a step.*): ([0-9.]+) ([0-9.]+)$", done.out, re.M):
        seconds.setdefault(name, []).append(float(ended) - float(began))
    starts = [re.match(r"start ([0-9.]+) ms", line) for line in done.messages()]
    seconds["the start of a container"] = [float(found[1]) / 1000 for found in starts if found]
    equal([len(numbers) for numbers in seconds.values()], [6, 6, 6], "measured", done)
    tell_all_but_the_first(seconds)


@test
def repeated_read_times_are_measured(guest):
    image = guest.push_layout("python")
    outside = guest.run("srun", "--mem=1000", "python3", "-c", READS, IMPORTS, "modules_imported", timeout=600)
    inside = guest.srun("--mem=1000", "python3", "-c", READS, IMPORTS, "modules_imported", "files_read", image=image, timeout=1800)
    seconds = {}
    for where, done in (("outside", outside), ("in a container", inside)):
        for line in done.good().splitlines():
            name, number = line.rsplit(" ", 1)
            seconds.setdefault(f"{name} again, {where}", []).append(float(number))
    equal([len(numbers) for numbers in seconds.values()], [4, 4, 4], "measured", inside)
    tell_all_but_the_first(seconds)
    guest.must_be_quiet(within=10)
