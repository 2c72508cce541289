"""Operations that must work in a container, and those that must fail: all findings of the design
phase."""
import os
import re
import subprocess

from functools import partial
from command import OPEN
from images import Image, probe, special, with_probe
from harness import add, equal, expect, test
from outcomes import outcome

QUICK = True

# rename(2) itself: mv would fall back to copying.
RENAME = "perl -e 'rename($ARGV[0], $ARGV[1]) or die \"$!\\n\"' "

# Any system call, with strings and numbers as arguments.
SYSCALL = "perl -e 'my @a = map { /^[0-9]+$/ ? $_ + 0 : \"$_\" } @ARGV; syscall(shift(@a), @a) == 0 or die \"$!\\n\"' "
SETXATTR, MOUNT, UMOUNT = (SYSCALL + number for number in ("188 ", "165 ", "166 "))
MS_REMOUNT, MS_REMOUNT_BIND = "32", str(32 | 4096)

WORKS = {
    "image_file_can_be_chmodded": "chmod 701 /etc/issue; test $(stat -c %a /etc/issue) = 701",
    "image_file_can_be_appended_to": "echo more >>/etc/issue; test $(tail -n 1 /etc/issue) = more; grep -q Debian /etc/issue",
    "image_file_can_be_given_a_time": "touch -d 2001-02-03 /etc/issue; test $(date -r /etc/issue +%Y) = 2001",
    "image_file_can_be_deleted": "rm /etc/issue; test ! -e /etc/issue; test -z \"$(ls /etc | grep -x issue)\"",
    "deleted_file_can_be_recreated": "rm /etc/issue; echo new >/etc/issue; test $(cat /etc/issue) = new",
    "image_directory_can_be_removed_recursively": "rm -rf /usr/share/perl5; test ! -e /usr/share/perl5",
    "removed_directory_is_recreated_empty": "rm -rf /etc/apt; mkdir /etc/apt; test -z \"$(ls -A /etc/apt)\"",
    "image_directory_can_be_renamed": RENAME + "/etc/apt /etc/moved; test -d /etc/moved; test ! -e /etc/apt; test -n \"$(ls /etc/moved)\"",
    "directory_with_old_and_new_files_can_be_renamed":
        "echo new >/etc/apt/new; before=$(ls /etc/apt); " + RENAME + "/etc/apt /etc/moved; test \"$(ls /etc/moved)\" = \"$before\"; cat /etc/moved/new",
    "directory_over_two_layers_can_be_renamed": RENAME + "/workspace /moved; test $(cat /moved/old/upper) = upper; test ! -e /workspace",
    "image_file_can_be_hard_linked":
        "ln /etc/issue /etc/second; echo more >>/etc/second; tail -n 1 /etc/issue | grep -q more; test $(stat -c %h /etc/issue) = 2",
    "symbolic_link_can_be_created": "ln -s /etc/issue /etc/link; cmp /etc/link /etc/issue",
    "file_can_be_given_to_a_group_of_the_user": "chgrp rigteam /workspace/file; test $(stat -c %G /workspace/file) = rigteam",
    "file_can_have_a_user_attribute":
        SETXATTR + "/workspace/file user.a b 1 0",
    "fifo_can_be_created_and_used": "mkfifo /workspace/pipe; echo through >/workspace/pipe & test $(cat /workspace/pipe) = through",
    "tree_copy_keeps_owners_and_times": "cp -a /etc /copy; diff -r /etc/apt /copy/apt; test $(stat -c %Y /etc/issue) = $(stat -c %Y /copy/issue)",
    "new_files_belong_to_the_user": "touch /new; mkdir /dir; test $(stat -c %U:%G /new /dir | sort -u) = alice:alice",
    "image_files_all_belong_to_the_user": 
        "mounts='/proc /sys /dev /tmp /etc/hosts /etc/hostname /etc/resolv.conf'; "
        "find / -xdev ! '(' -user alice -group alice ')' | grep -vxF \"$(printf '%s\\n' $mounts)\" | head | (! grep .)",
    # outcome 113 accepted: setuid, setgid, sticky
    "image_files_are_never_setuid_or_setgid": "test -u /workspace/setuid-id && exit 1; test -z \"$(find / -xdev -type f -perm /6000)\"",
    # outcome 97 accepted: whiteouts, opaque directories, three layers
    "whiteout_hides_file_of_lower_layer": "test ! -e /workspace/removed; test ! -e /usr/share/bug; test ! -e /workspace/scratch",
    "opaque_directory_hides_lower_layer": "test \"$(ls /workspace/old)\" = upper; test $(cat /workspace/replaced) = upper",
    "image_links_are_kept": "test $(stat -c %h /workspace/file) = 2; test $(readlink /workspace/symbolic-link) = file; test -e /workspace/absolute-link",
}

# Each prints the error. The expected reason follows.
REFUSED = {
    "chown_to_root_is_refused": ("chown root /workspace/file", "Operation not permitted"),
    "chgrp_to_foreign_group_is_refused": ("chgrp 2002 /workspace/file", "Operation not permitted"),
    "trusted_attribute_is_refused":
        (SETXATTR + "/workspace/file trusted.a b 1 0", "Operation not permitted"),
    "mknod_of_character_device_is_refused": ("mknod /device c 1 3", "Operation not permitted"),
    "mknod_of_block_device_is_refused": ("mknod /device b 7 0", "Operation not permitted"),
    "mknod_of_whiteout_is_refused": ("mknod /device c 0 0", "Operation not permitted"),
    "unmount_is_refused": (UMOUNT + "/tmp 0", "Operation not permitted"),
    "mount_is_refused": (MOUNT + "none /mnt tmpfs 0 0", "Operation not permitted"),
    "remount_without_nosuid_is_refused": (MOUNT + "none / none " + MS_REMOUNT + " 0", "Operation not permitted"),
    "unmount_in_own_namespace_is_refused":
        ("unshare -Urm " + UMOUNT + "/tmp 0", "Invalid argument"),
    "remount_without_nosuid_in_own_namespace_is_refused":
        ("unshare -Urm " + MOUNT + "none /tmp none " + MS_REMOUNT_BIND + " 0", "Operation not permitted"),
    "remount_of_dev_with_setuid_in_own_namespace_is_refused":
        ("unshare -Urm " + MOUNT + "none /dev none " + MS_REMOUNT_BIND + " 0", "Operation not permitted"),
    "chroot_escape_is_refused": ("chroot /mnt true", "Operation not permitted"),
}


def works(script, cluster):
    cluster.bash(script).good()


def is_refused(script, reason, cluster):
    done = cluster.bash(script)
    expect(done.rc != 0, "it was allowed", done)
    expect(reason in done.err, f"it failed for another reason than {reason!r}", done)


for title, script in WORKS.items():
    add(__name__, title, partial(works, script))
for title, (script, reason) in REFUSED.items():
    add(__name__, title, partial(is_refused, script, reason))


PYTHON = os.path.realpath("/usr/bin/python3")


def python_layer():
    """Returns the host's Python, its libraries, and the modules that compiling needs."""
    linked = subprocess.run(["ldd", PYTHON], check=True, capture_output=True, text=True).stdout
    paths = [PYTHON, *re.findall(r"(/\S+) \(0x", linked)]
    for where, _, names in os.walk(PYTHON.replace("/bin/", "/lib/")):
        if os.path.basename(where) in (os.path.basename(PYTHON), "encodings", "importlib", "collections", "re", "json", "pathlib"):
            paths += [os.path.join(where, name) for name in names if name.endswith(".py")]
    return [(path.lstrip("/"), open(path, "rb").read()) for path in paths]


@test
def python_compiles_beside_image_files(cluster):
    image = Image("suites/python", [python_layer()])
    script = "import os, py_compile, this; file = py_compile.compile(this.__file__); print(file, os.path.getsize(file) > 500)"
    done = cluster.srun(PYTHON, "-B", "-c", script, image=image)
    expect("Zen of Python" in done.good() and re.search(r"/__pycache__/this\..*pyc True$", done.out), "nothing was compiled", done)


@test
def device_node_of_a_mount_cannot_be_opened(cluster):
    node = os.path.join(cluster.shared, "device")
    os.mknod(node, 0o020666, os.makedev(1, 3))
    os.chmod(node, 0o666)
    try:
        done = cluster.bash("echo x >/device", "--container-mounts=/home/shared/device:/device")
        expect(done.rc != 0 and "Permission denied" in done.err, "a device was opened through a mount", done)
    finally:
        os.unlink(node)


@test
@outcome(112, "accepted", "devices are dropped")
def device_node_of_the_image_is_dropped(cluster):
    image = with_probe("device", [special("null", b"3", 1, 3), special("disk", b"4", 7, 0)])
    out = cluster.srun("/probe", "/null", "/disk", image=image).good()
    expect("/null: missing" in out and "/disk: missing" in out, f"a device node arrived: {out}")


@test
def setuid_program_of_the_host_runs_as_the_user(cluster):
    program = os.path.join(cluster.shared, "setuid-id")
    with open(program, "wb") as file:
        file.write(probe())  # also runs in images of releases older than the host's
    os.chmod(program, 0o4755)
    try:
        cluster.srun("--container-mounts=/home/shared/setuid-id:/setuid-id", "/setuid-id").good("uid 2001, in /workspace")
    finally:
        os.unlink(program)


@test
def private_directory_of_the_user_can_be_mounted(cluster):
    directory = os.path.join(cluster.home, "alice/private")
    os.makedirs(directory, 0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    os.chown(directory, 2001, 2001)
    cluster.bash("echo mine >/mnt/file; cat /mnt/file", "--container-mounts=/home/alice/private:/mnt").good("mine")
    equal(os.stat(os.path.join(directory, "file")).st_uid, 2001, "owner of the new file")


@test
def private_directory_of_another_user_cannot_be_mounted(cluster):
    directory = os.path.join(cluster.home, "bob/private")
    os.makedirs(directory, 0o700, exist_ok=True)
    os.chown(directory, 2002, 2002)
    done = cluster.srun("--container-mounts=/home/bob/private/.:/mnt", "ls", "/mnt")
    expect(done.rc != 0 and "ermission denied" in done.err, "alice sees bob's private directory", done)


@test
def fuse_mount_closed_to_root_can_be_mounted(cluster):
    with cluster.users_file_system():
        equal(cluster.root("node01", "cat", "/run/fuse/file").rc, 1, "exit code of root, who has no access")
        cluster.srun("-w", "node01", "--container-mounts=/run/fuse:/mnt", "cat", "/mnt/file").good("from a user's file system")


@test
def mount_table_of_the_node_never_changes(cluster):
    before = cluster.mounts("node01")
    running = cluster.start_srun("-w", "node01", "--container-mounts=/home/shared:/mnt", "sh", "-c", "echo up; read end || :", stdin=OPEN)
    running.await_text("up")
    equal(cluster.mounts("node01") == before, True, "mount table while it runs is that of before")
    running.end().good()
    equal(cluster.mounts("node01") == before, True, "mount table afterwards is that of before")


@test
def loop_devices_are_released(cluster):
    equal(cluster.loops("node01"), [], "loop devices before")
    running = cluster.start_srun("-w", "node01", "sh", "-c", "echo up; read end || :", stdin=OPEN)
    running.await_text("up")
    equal(len(cluster.loops("node01")), 3, "loop devices while an image of three layers runs")
    running.end().good()
    cluster.must_be_quiet(within=1)


@test
def loop_devices_are_shared_by_concurrent_steps(cluster):
    both = [cluster.start_srun("-w", "node01", "sh", "-c", "echo up; read end || :", stdin=OPEN) for _ in range(2)]
    for one in both:
        one.await_text("up")
    equal(len(cluster.loops("node01")), 3, "loop devices while two steps run an image of three layers")
    for one in both:
        one.end().good()
    cluster.must_be_quiet(within=1)


@test
def changes_end_with_the_step(cluster):
    cluster.bash("echo x >/changed; rm /etc/issue").good()
    cluster.bash("test ! -e /changed; test -e /etc/issue").good()


@test
def tmp_is_private_and_ends_with_the_step(cluster):
    cluster.bash("echo x >/tmp/only-here; test $(stat -c %a /tmp) = 1777", "-w", "node01").good()
    expect(not os.path.exists(cluster.inside("node01", "/tmp/only-here")), "the file is in the node's /tmp")
    cluster.bash("test -z \"$(ls -A /tmp)\"", "-w", "node01").good()
