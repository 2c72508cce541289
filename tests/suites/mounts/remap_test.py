"""--container-remap-root: root inside for packages and the user's own files, the user everywhere
else."""
import functools
import os
import platform
import subprocess
import tempfile

from cluster import BUILD_IMAGE, kill_all
from command import OPEN
from entrypoint_test import Configured
from container_test import MOUNT, MS_REMOUNT_BIND, UMOUNT
from images import Image, with_probe
from harness import Skipped, equal, expect, test

REMAP = "--container-remap-root"


@functools.cache
def apt_layout():
    built = subprocess.run([BUILD_IMAGE, "apt"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return built.split()[-1]


def apt_image(cluster):
    cluster.program("push", apt_layout(), "suites/apt:1").good()
    return "registry:5000/suites/apt:1"


def shared_file(cluster, name, owner, group, mode, text=""):
    path = os.path.join(cluster.shared, name)
    with open(path, "w") as file:
        file.write(text)
    os.chown(path, owner, group)
    os.chmod(path, mode)
    return path


def own_namespace(cluster):
    return os.readlink(f"/proc/{cluster.pid('node01')}/ns/user")


@test
def user_is_root_inside_and_unchanged_outside(cluster):
    made = os.path.join(cluster.shared, "made-by-root")
    running = cluster.start_srun(REMAP, "-w", "node01", "--container-mounts=/home/shared:/mnt", "bash", "-euc",
                                 "id -u; id -g; echo $HOME $USER $LOGNAME; stat -c %u:%g /workspace/file /root /tmp; id -un; "
                                 "touch /mnt/made-by-root; echo up; read end || :", stdin=OPEN)
    running.await_text("up")
    waiting = [pid for pid in cluster.processes("node01", "bash") if os.readlink(f"/proc/{pid}/ns/user") != own_namespace(cluster)]
    status = dict(line.split(":", 1) for line in open(f"/proc/{waiting[0]}/status").read().splitlines())
    groups = status["Groups"].split()
    running.end().good("0\n0\n/root root root\n0:0\n0:0\n0:0\nroot\nup")
    equal(status["Uid"].split(), ["2001"] * 4, "user ids outside")
    equal(status["NoNewPrivs"].strip(), "1", "NoNewPrivs")
    expect("2100" in groups, f"supplementary groups are lost: {groups}")
    equal((os.stat(made).st_uid, os.stat(made).st_gid), (2001, 2001), "owner of the new file outside")
    os.unlink(made)


@test
def image_passwd_survives(cluster):
    out = cluster.bash("cat /etc/passwd /etc/group", REMAP).good()
    for entry in ("root:*:0:0:root:/root:/bin/bash", "daemon:*:1:1:", "_apt:*:42:", "alice:x:2001:2001:", "rigteam:x:2100:"):
        expect(f"\n{entry}" in "\n" + out, f"{entry} is missing: {out}")


@test
def empty_image_gets_a_root_entry(cluster):
    out = cluster.srun(REMAP, "/probe", "/etc/passwd", "/etc/group", "/root", "/tmp", image=with_probe("bare", [])).good()
    for wanted in ("\nroot:x:0:0:", "\nroot:x:0:\n", "/root: mode 40755 uid 0", "/tmp: mode 41777 uid 0", "uid 0, in /"):
        expect(wanted in out, f"{wanted!r} is missing: {out}")


@test
def packages_with_chown_scripts_install(cluster):
    image = apt_image(cluster)
    done = cluster.bash("""
        export DEBIAN_FRONTEND=noninteractive
        dpkg -i /packages/libcap2-bin_*.deb
        apt-get install -y /packages/*.deb </dev/null
        ssh -V; dpkg -s openssh-client iputils-ping | grep -c '^Status: install ok installed'
        getcap /usr/bin/ping; setcap cap_net_raw+ep /usr/bin/ssh; getcap /usr/bin/ssh
        apt-get install -y --reinstall /packages/openssh-client*.deb </dev/null; apt-get purge -y openssh-client </dev/null
        ! test -e /usr/bin/ssh""", REMAP, image=image, timeout=120)
    out = done.good()
    expect("\n2\n" in out, "the packages are not installed", done)
    expect("/usr/bin/ping cap_net_raw=ep" in out and "/usr/bin/ssh cap_net_raw=ep" in out, "capabilities of files got lost", done)
    for trouble in ("_apt", "dpkg: error", "Operation not permitted", "Invalid argument"):
        expect(trouble not in done.err + out, f"{trouble!r}", done)


# Every faked call through every ABI of the machine. The kernel would answer EINVAL or EPERM.
CALLS = r"""
#include <stdio.h>
#include <sys/stat.h>
#define COUNT(a) (sizeof a / sizeof a[0])
enum { CHR = S_IFCHR | 0600, BLK = S_IFBLK | 0600, ME = 1 };
static const char file[] = "/tmp/file", fresh[] = "/tmp/device";
static long native(long n, long a, long b, long c, long d, long e) {
  register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
  __asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
  return n;
}
static long i386(long n, long a, long b, long c, long d, long e) {
  __asm__ volatile("int $0x80" : "+a"(n) : "b"(a), "c"(b), "d"(c), "S"(d), "D"(e) : "memory");
  return (int)n;
}
static int groups[] = {2002};
struct call { const char *name; long numbers[3]; long a, b, c, d, e; };
#define F ((long)file)
#define N ((long)fresh)
static const struct call calls[] = {
  {"chown", {92, 182, 212}, F, 1, 1},      {"fchown", {93, 95, 207}, 0, 1, 1},    {"lchown", {94, 16, 198}, F, 1, 1},
  {"fchownat", {260, 298}, -100, F, 1, 1, 0}, {"setuid", {105, 23, 213}, ME},     {"setgid", {106, 46, 214}, ME},
  {"setreuid", {113, 70, 203}, ME, ME},    {"setregid", {114, 71, 204}, ME, ME},  {"setgroups", {116, 81, 206}, 1, (long)groups},
  {"setresuid", {117, 164, 208}, ME, ME, ME}, {"setresgid", {119, 170, 210}, ME, ME, ME}, {"setfsuid", {122, 138, 215}, ME},
  {"setfsgid", {123, 139, 216}, ME},       {"mknod c", {133, 14}, N, CHR, 259},   {"mknod b", {133, 14}, N, BLK, 259},
  {"mknodat c", {259, 297}, -100, N, CHR, 259}, {"mknodat b", {259, 297}, -100, N, BLK, 259}};
int main(void) {
  struct stat status;
  int wrong = 0;
  fclose(fopen(file, "w"));
  freopen(file, "r", stdin);
  for (size_t i = 0; i < COUNT(calls); ++i) {
    const struct call *c = &calls[i];
    long got[4];
    got[0] = native(c->numbers[0], c->a, c->b, c->c, c->d, c->e);
    got[1] = native(c->numbers[0] | 0x40000000, c->a, c->b, c->c, c->d, c->e);
    got[2] = i386(c->numbers[1], c->a, c->b, c->c, c->d, c->e);
    got[3] = c->numbers[2] ? i386(c->numbers[2], c->a, c->b, c->c, c->d, c->e) : 0;
    for (int k = 0; k < 4; ++k) {
      if (got[k] != 0) printf("%s %d: %ld\n", c->name, k, got[k]), wrong = 1;
    }
  }
  if (stat(fresh, &status) == 0) puts("a device was made"), wrong = 1;
  if (stat(file, &status) != 0 || status.st_uid != 0) puts("the owner changed"), wrong = 1;
  if (native(133, N, S_IFIFO | 0600, 0, 0, 0) != 0 || stat(fresh, &status) != 0) puts("no fifo"), wrong = 1;
  if (native(90, F, 0640, 0, 0, 0) != 0 || stat(file, &status) != 0 || (status.st_mode & 07777) != 0640) puts("no chmod"), wrong = 1;
  puts(wrong ? "wrong" : "all as wanted");
  return wrong;
}
"""


@test
def privileged_calls_are_faked_through_every_abi(cluster):
    if platform.machine() != "x86_64":
        raise Skipped("the calls are those of x86_64")
    with tempfile.TemporaryDirectory() as directory:
        source, program = os.path.join(directory, "calls.c"), os.path.join(directory, "calls")
        with open(source, "w") as file:
            file.write(CALLS)
        subprocess.run(["cc", "-static", "-no-pie", "-O1", "-w", "-o", program, source], check=True)
        image = Image("suites/calls", [[("calls", open(program, "rb").read())]])
    cluster.srun(REMAP, "/calls", image=image).good("all as wanted")
    done = cluster.srun("/calls", image=image)
    expect(done.rc == 1 and "chown 0: -1\n" in done.out, "the calls are faked where nobody asked for it", done)


@test
def mounts_can_be_neither_removed_nor_lose_a_flag(cluster):
    # root of a user namespace may mount privately. Earlier mounts are locked.
    remount = f"{MOUNT}none %s none {MS_REMOUNT_BIND} 0"
    for place in ("/", "/tmp", "/dev", "/mnt"):
        done = cluster.bash(remount % place, REMAP, "--container-mounts=/home/shared:/mnt:ro")
        expect(done.rc != 0 and "Operation not permitted" in done.err, f"{place} can be mounted with other flags", done)
    done = cluster.bash(f"{MOUNT}none /media tmpfs 0 0; touch /media/mine; {UMOUNT}/media 0; {UMOUNT}/mnt 0", REMAP,
                        "--container-mounts=/home/shared:/mnt:ro")
    expect(done.rc != 0 and "Invalid argument" in done.err, "a mount can be taken away", done)
    done = cluster.bash(f"touch /etc/x || {remount % '/'}", REMAP, "--container-readonly")
    expect(done.rc != 0 and "Operation not permitted" in done.err, "a container that is read-only can be written to", done)


@test
def root_inside_has_no_power_outside(cluster):
    shared_file(cluster, "roots", 0, 0, 0o600, "secret")
    shared_file(cluster, "bobs", 2002, 2002, 0o600, "secret")
    done = cluster.bash("cat /mnt/roots || cat /mnt/bobs || echo x >/proc/sys/kernel/hostname || kill -0 1 || mount -t proc proc /media || "
                        "cat /proc/1/environ || perl -e 'syscall(170, \"other\", 5) == 0 or exit 1' || echo powerless",
                        REMAP, "--container-mounts=/home/shared:/mnt")
    equal(done.out, "powerless\n", "what is allowed", done)


@test
def user_groups_still_give_access(cluster):
    shared_file(cluster, "for-the-team", 0, 2100, 0o040, "ours\n")
    shared_file(cluster, "not-for-the-team", 2002, 2100, 0o604, "not ours\n")
    done = cluster.bash("cat /mnt/for-the-team; ! setpriv --clear-groups cat /mnt/not-for-the-team", REMAP, "--container-mounts=/home/shared:/mnt")
    done.good("ours")


@test
def home_is_mounted_on_home_of_root(cluster):
    cluster.bash("touch ~/made-as-root; test -e /root/made-as-root; ! test -e /home/alice; pwd", REMAP, "--container-mount-home", "--container-workdir=/root").good("/root")
    path = os.path.join(cluster.home, "alice/made-as-root")
    equal(os.stat(path).st_uid, 2001, "owner of a file in the home directory")
    os.unlink(path)


@test
def tasks_of_a_node_share_one_user_namespace(cluster):
    # Reading another process's environment needs the same permission as ptrace, CMA and debuggers.
    out = cluster.bash("""
        echo $$ >/tmp/$SLURM_PROCID; until test -s /tmp/0 -a -s /tmp/1; do sleep 0.01; done
        tr '\\0' '\\n' </proc/$(cat /tmp/$((1 - SLURM_PROCID)))/environ | grep -c ^SLURM_PROCID=
        readlink /proc/self/ns/user /proc/self/ns/mnt; touch /tmp/done$SLURM_PROCID; until test -e /tmp/done0 -a -e /tmp/done1; do sleep 0.01; done""",
                       REMAP, "-w", "node01", "-n2").good().splitlines()
    equal(len(out), 6, "lines")
    equal(len(set(out)), 3, f"different lines of two tasks that share everything: {out}")
    expect(own_namespace(cluster) not in out, "the user namespace is the node's")


@test
def no_remap_root_overrides_twin_and_root_job_needs_none(cluster):
    twin = ["SCONTAINER_REMAP_ROOT=1"]
    cluster.bash("id -u", env=twin).good("0")
    cluster.bash("id -u", "--no-container-remap-root", env=twin).good("2001")
    cluster.bash("id -u; readlink /proc/self/ns/user", REMAP, "-w", "node01", user="root").good(
        f"0\n{own_namespace(cluster)}")


@test
def remap_can_be_the_site_default(cluster):
    with Configured(cluster, "remap_root = true"):
        cluster.bash("id -u").good("0")
        cluster.bash("id -u", "--no-container-remap-root").good("2001")


@test
def remap_works_with_contained_and_private_containers(cluster):
    out = cluster.bash("touch ~/x; df --output=fstype ~ | tail -n 1; echo x >/etc/$SLURM_PROCID; ls -d /etc/[0-9]; id -u; readlink /proc/self/ns/user; sleep 0.2",
                       REMAP, "--container-contain", "--container-private", "-w", "node01", "-n2").good().split()
    equal((out.count("tmpfs"), out.count("0"), out.count("/etc/0"), out.count("/etc/1")), (2, 2, 1, 1), f"what two tasks print: {out}")
    equal(len({line for line in out if line.startswith("user:")}), 1, "user namespaces")


@test
def agent_or_step_killed_leaves_nothing(cluster):
    running = cluster.start_srun(REMAP, "-w", "node01", "-n2", "sh", "-c", "echo up; sleep 1; id -u")
    running.await_text("up")
    kill_all(cluster.processes("node01", "agent"))
    done = running.end()
    equal((done.rc, done.out.split().count("0"), done.err), (0, 2, ""), "exit code, tasks that ended well, messages", done)
    running = cluster.start_srun(REMAP, "-w", "node01", "-J", "remapped", "sh", "-c", "echo up; sleep 60 & wait")
    running.await_text("up")
    cluster.run("scancel", "-n", "remapped").good()
    expect(running.end(15).rc != 0, "it was not cancelled")
    cluster.must_be_quiet()
