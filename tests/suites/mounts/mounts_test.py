"""Effects of --container-mounts, --container-contain and --container-tmpfs-size. Refusals are in
errors_test.py."""
import contextlib
import json
import os
import pathlib
import subprocess
import time

from cluster import kill_all
from command import OPEN
from images import Image, probe
from harness import equal, expect, test
from site_files import Files, rules
from outcomes import outcome

QUICK = True


def owned_by_alice(path):
    os.chown(path, 2001, 2001)
    return path


def directory_of_alice(cluster, name):
    path = os.path.join(cluster.home, "alice", name)
    os.makedirs(path, exist_ok=True)
    return owned_by_alice(path)


# --- tmpfs:, umount: and the other forms -----------------------------------------------------------------------------

@test
def tmpfs_mount_has_owner_mode_and_size(cluster):
    done = cluster.bash("stat -c '%n %a %U' /new /etc/apt; ls -A /etc/apt | wc -l; echo x >/new/file; "
                        "stat -f -c '%b * %S' /new | xargs expr; grep ' /new ' /proc/mounts | grep -o 'nosuid,nodev,noexec'",
                        "--container-mounts=tmpfs:/new:size=8M+mode=1700+noexec,tmpfs:/etc/apt")
    done.good("/new 1700 alice\n/etc/apt 755 alice\n0\n8388608\nnosuid,nodev,noexec")


@test
def full_tmpfs_returns_enospc(cluster):
    done = cluster.bash("head -c 2M /dev/zero >/new/file || echo rc $?; echo x >/tmp/file; cat /tmp/file",
                        "--container-mounts=tmpfs:/new:size=1M")
    equal(done.good(), "rc 1\nx", "output", done)
    expect("No space left on device" in done.err, "the program was not told that it is full", done)


@test
def tmpfs_accepts_a_directory_mount_inside(cluster):
    cluster.bash("ls /etc/apt; cat /etc/apt/deep/here/hostname; touch /etc/apt/mine",
                 "--container-mounts=tmpfs:/etc/apt,/etc:/etc/apt/deep/here:ro").good("deep\n" + "node01")


@test
def nosymfollow_mount_refuses_symbolic_links(cluster):
    directory = directory_of_alice(cluster, "links")
    pathlib.Path(directory, "file").write_text("text\n", encoding="ascii")
    link = pathlib.Path(directory, "link")
    link.unlink(missing_ok=True)
    link.symlink_to("file")
    done = cluster.bash("cat /d/file /e/link; cat /d/link || echo refused",
                        "--container-mounts=/home/alice/links:/d:nosymfollow,/home/alice/links:/e")
    equal(done.good(), "text\ntext\nrefused", "output", done)
    expect("Too many levels of symbolic links" in done.err, "the link failed for another reason", done)


@test
def tmp_proc_sys_and_hosts_files_can_be_left_out(cluster):
    cluster.bash("test ! -e /proc/self; test ! -e /sys/class; test ! -e /etc/hosts; test -e /etc/hostname; stat -f -c %T / /tmp",
                 "--container-mounts=umount:/tmp,umount:/sys,umount:/etc/hosts,umount:/proc").good("overlayfs\noverlayfs")


@test
def umount_removes_earlier_mount_and_those_below(cluster):
    done = cluster.bash("ls /mnt/shared | head -n 1; stat -c %m /mnt /srv",
                        "--container-mounts=tmpfs:/mnt,/etc:/srv,umount:/srv,tmpfs:/opt,/home/shared:/opt/x,umount:/opt/.,/etc:/mnt/shared")
    equal(done.good().splitlines()[-2:], ["/mnt", "/"], "where they are mounted", done)


@test
def umount_follows_image_links(cluster):
    cluster.bash("grep -c ' /run/lock ' /proc/mounts || true", "--container-mounts=tmpfs:/run/lock,umount:/var/run/lock").good("0")


@test
def mount_with_single_ro_is_read_only(cluster):
    done = cluster.bash("test -d /home/shared; touch /home/shared/x", "--container-mounts=/home/shared:ro")
    expect(done.rc == 1 and "Read-only file system" in done.err, "it can be written to", done)


@test
def paths_with_commas_colons_and_spaces_can_be_mounted(cluster):
    directory = directory_of_alice(cluster, 'odd, na:me "x"')
    open(os.path.join(directory, "file"), "w").write("found\n")
    cluster.bash("cat '/a, b/file' /c:d/file",
                 r'--container-mounts="/home/alice/odd, na:me \"x\"":"/a, b":ro,/home/alice/odd\,\ na\:me\ \"x\":/c\:d').good("found\nfound")


@test
def optional_mount_missing_is_skipped_with_warning_or_silently(cluster):
    done = cluster.bash("test ! -e /mnt/a; test ! -e /mnt/b; test ! -e /mnt/d; ls /mnt/c | wc -l",
                        "--container-mounts=/no/such:/mnt/a:nofail,/nor/this:/mnt/b:nofail+silent,/etc/apt:/mnt/c:nofail,umount:/opt/x:nofail,"
                        "/etc:/mnt/d:x-create=file+nofail+silent")
    done.good()
    equal([line for line in done.messages() if line.startswith("warning: ")],
          ['warning: --container-mounts: open mount source "/no/such": no such file or directory (hint: the source must exist on every node of the step)'],
          "warnings", done)


@test
def devices_mounted_again_can_be_used(cluster):
    cluster.bash("head -c 3 /devices/zero | wc -c; echo x >/dev/null; echo x >/my-null",
                 "--container-mounts=/dev:/devices,/dev/null,/dev/null:/my-null").good("3")


@test
def duplicate_mounts_of_several_options_count_once(cluster):
    done = cluster.bash("grep -c ' /mnt ' /proc/mounts; ls -d /mnt /srv/x", "--container-mounts=/etc:/mnt", "--container-mounts=tmpfs:/srv/x,/etc:/mnt")
    done.good("1\n/mnt\n/srv/x")


@test
def twin_with_mounts_only_works_like_the_option(cluster):
    cluster.bash("stat -f -c %T /mnt", env=["PYXIS_CONTAINER_MOUNTS=tmpfs:/mnt"]).good("tmpfs")


# --- harmless mounts ------------------------------------------------------------------------------

@test
@outcome(12, "refused", "mounts that cannot be meant; the others round-trip")
def tmpfs_at_image_link_stays_inside(cluster):
    before = cluster.mounts("node01")
    done = cluster.bash("grep -c spank-container /proc/mounts", "--container-mounts=tmpfs:/var/run/x,tmpfs:/proc/self/root/x")
    expect(done.rc != 0 and "/proc/self/root/x" in done.err, "a link of /proc was followed", done)
    equal(cluster.mounts("node01"), before, "mounts of the node")


@test
def tmpfs_keeps_mounts_made_into_it(cluster):
    cluster.bash("ls /srv; ls /srv/x/shared >/mnt/seen; ls /mnt", "--container-mounts=tmpfs:/srv,/home:/srv/x:ro,tmpfs:/mnt").good("x\nseen")


@test
def kernel_file_systems_cannot_be_covered(cluster):
    for mount in ("tmpfs:/proc", "/home/shared:/proc", "/home/shared:/x/../proc/self/attr", "tmpfs:/sys", "/home/shared:/dev/", "tmpfs:/proc/sys",
                  "/etc/hosts:/proc/self/status", "/sys:/proc", "/proc/self/root/etc:/proc"):
        for options in ([f"--container-mounts={mount}"], [f"--container-mounts=umount:/proc,{mount}"]):
            done = cluster.srun(*options, "true")
            expect(done.rc == 1 and "shows the kernel and cannot be covered" in done.err, f"{mount} is not refused at submission", done)
    # Files served by lxcfs, the host's own files, and those of /dev and /sys.
    cluster.bash("cat /proc/uptime; test -c /dev/null; ls /sys/class | grep -c .; ls /sys/kernel; test -d /proc/self",
                 "--container-mounts=/etc/hostname:/proc/uptime,/dev:/dev,/sys:/sys,/proc:/proc,/home/shared:/dev/shm,tmpfs:/sys/kernel").good()


@test
def image_links_lead_no_mount_onto_kernel_file_systems(cluster):
    links = ("ln -s /proc /p; ln -s /proc/self /q; ln -s /sys /s; ln -s dev /d", )
    cluster.bash(links[0], "-w", "node01", "--container-name=links").good()
    for target, view in (("/p", "/proc"), ("/q/attr", "/proc"), ("/s", "/sys"), ("/d", "/dev")):
        done = cluster.run("srun", "-w", "node01", "--container-name=links", f"--container-mounts=/home/shared:{target}", "true")
        expect(done.rc == 1 and f"the target leads to {view}, which cannot be covered" in done.err, f"{target} is not refused", done)
    cluster.run("srun", "-w", "node01", "--container-name=links", "--container-mounts=/home/shared:/d/shm", "test", "-e", "/dev/shm").good()
    cluster.run("scontainer", "rm", "links")


@test
def site_can_protect_more_paths(cluster):
    with rules(cluster, 'mounts = ["/etc/hostname:/proc/version"]\n'):
        cluster.bash("cat /proc/version", "-w", "node01").good("node01")


@test
@outcome(9, "refused", "1 MiB reference; 10,000 mounts")
def hundreds_of_tmpfs_are_mounted_or_refused(cluster):
    many = ",".join(f"tmpfs:/m/{i}:size=4K" for i in range(400))
    cluster.bash("grep -c ' /m/' /proc/mounts", f"--container-mounts={many}").good("400")
    done = cluster.srun(f"--container-mounts={many},tmpfs:/m/more", "true")
    equal((done.rc, done.errors()), (1, ["--container-mounts: more than 400 mounts"]), "answer", done)
    cluster.must_be_quiet(within=3)


# --- --container-contain, --container-tmpfs-size ---------------------------------------------------------------------

SIZES = "for where in / /tmp /mnt; do stat -f -c '%b * %S' $where | xargs expr; done"


@test
def contained_hides_all_of_the_user(cluster):
    open(os.path.join(cluster.home, "alice/secret"), "w").write("x")
    script = "ls -A ~ /tmp; stat -c '%U %m' ~; echo x >~/file; cat ~/file; ls /mnt | wc -l"
    cluster.bash(script, "--container-contain", "--container-mounts=/etc/apt:/mnt", env=["SCONTAINER_MOUNT_HOME=0"]).good(
        "/home/alice:\n\n/tmp:\nalice /home/alice\nx\n" + str(len(os.listdir(os.path.join(cluster.etc, "apt")))))
    expect(not os.path.exists(os.path.join(cluster.home, "alice/file")), "it was written to the real home")


BASIC = "console fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"


@test
def contained_dev_has_the_basic_devices_only(cluster):
    script = ("cd /dev; echo $(ls -A); echo x >null; head -c 3 zero urandom random | wc -c; ! echo x 2>/dev/null >full; echo y | cat stdin; "
              "echo z >/dev/stdout; df --output=fstype /dev | tail -n 1; ls -A shm | wc -l; stat -c %a shm; touch shm/x")
    open(cluster.inside("node01", "/dev/shm/of-the-node"), "w").close()
    try:
        for options in ([], ["--container-remap-root"], ["--container-unshare=ipc,pid"], ["--container-readonly"]):
            out = cluster.bash(script, "-w", "node01", "--container-contain", *options).good().splitlines()
            names = [name for name in out[0].split() if not name.startswith(("nvidia", "dri", "kfd", "infiniband", "mqueue"))]
            equal(" ".join(names), BASIC.replace("console ", ""), f"names in /dev with {options}")
            equal(out[2:], ["y", "z", "tmpfs", "0", "1777"], f"the rest with {options}")
        cluster.bash("ls /dev/shm/of-the-node", "-w", "node01", "--container-contain", "--container-private").good()
        cluster.bash("! ls /dev/null; ls -A /dev | wc -l", "-w", "node01", "--container-contain", "--container-mounts=umount:/dev").good("0")
        cluster.bash("ls /dev/shm/of-the-node; ls -d /dev/loop-control", "-w", "node01", "--container-contain", "--container-mounts=/dev:/dev").good()
        cluster.bash("ls -d /dev/fuse", "-w", "node01", "--container-contain", "--container-mounts=/dev/fuse:/dev/fuse").good("/dev/fuse")
    finally:
        os.unlink(cluster.inside("node01", "/dev/shm/of-the-node"))


@test
def contained_terminal_and_console_work(cluster):
    command = "tty; test -c /dev/console && echo to the console >/dev/console; exec 3<>/dev/ptmx && echo made a terminal; ls /dev/pts"
    spawn = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    done = cluster.run("python3", "-c", spawn, "srun", "--pty", "-w", "node01", f"--container-image={cluster.name_of('base')}", "--container-contain",
                       "bash", "-ec", command)
    expect(done.rc == 0 and "/dev/console" in done.out and "to the console" in done.out and "made a terminal" in done.out, "no terminal", done)


@test
def contained_cdi_devices_are_present(cluster):
    text = ('{"cdiVersion": "0.5.0", "kind": "example.org/tun", "devices": [{"name": "all", '
            '"containerEdits": {"deviceNodes": [{"path": "/dev/full"}, {"path": "/dev/fuse"}]}}]}')
    with Files(cluster, {"cdi/tun.json": text}):
        cluster.bash("test -c /dev/fuse; ls /dev | wc -w", "-w", "node01", "--container-contain", "--container-device=example.org/tun=all").good()


@test
def contained_batch_script_is_present(cluster):
    done = cluster.batch("#!/bin/sh\ntest -s $0 && ls -A /home/alice && echo ran\n", f"--container-image={cluster.name_of('base')}",
                         "--container-contain")
    equal((done.rc, done.out), (0, "ran\n"), "exit code and output", done)


@test
def writable_size_is_as_requested(cluster):
    cluster.bash(SIZES, "--container-tmpfs-size=6M", "--container-mounts=tmpfs:/mnt").good("\n".join([str(6 << 20)] * 3))


@test
def writable_percentage_is_of_the_job_memory(cluster):
    done = cluster.bash(SIZES, "--mem=200M", "--container-tmpfs-size=50%", "--container-mounts=tmpfs:/mnt:size=10%")
    page = 4096

    def part(percent):
        return str(-(-((200 << 20) // 100 * percent) // page) * page)
    done.good("\n".join([part(50), part(50), part(10)]))


@test
def contained_size_follows_job_memory(cluster):
    size = int(cluster.bash("stat -f -c '%b * %S' ~ | xargs expr", "--mem=200M", "--container-contain").good())
    expect(size <= 100 << 20 and size > 90 << 20, f"half of the job's memory is {size}")


def filling_test_of(memory):
    def fills(cluster):
        """Checks for a message of the program or the end of the step by the OOM killer, without
        waiting for memory."""
        started = time.monotonic()
        done = cluster.srun("-w", "node01", f"--mem={memory}", "bash", "-c", "head -c 300M /dev/zero >/full; echo rc $?; rm /full", timeout=20)
        took = time.monotonic() - started
        by_limit = "No space left on device" in done.err and "rc 1" in done.out
        expect(by_limit or done.rc != 0, "the job has written more than it has memory", done)
        expect(took < 10, f"it took {took:.0f} s", done)
    fills.__name__ = f"root_is_limited_to_job_memory_of_{memory}_megabytes"
    fills.__module__ = __name__
    return test(fills)


for each in (20, 60, 100):
    filling_test_of(each)


@test
def full_root_is_reported_to_the_job(cluster):
    """Half of its memory, in the root and in /tmp each, and not more if the site sets bytes."""
    script = "for where in / /tmp; do stat -f -c '%b * %S' $where | xargs expr; done; head -c 300M /dev/zero >/full"
    done = cluster.bash(script, "--mem=200M")
    half = -(-((200 << 20) // 100 * 50) // 4096) * 4096
    equal(done.out.split(), [str(half)] * 2, "sizes", done)
    expect(done.rc == 1 and "No space left on device" in done.err, "the program was not told that it is full", done)
    with rules(cluster, 'upper_size = "8M"\n'):
        equal(cluster.bash(SIZES.replace("/mnt", ""), "--mem=200M").good().split(), [str(8 << 20)] * 2, "sizes by the site")
    with rules(cluster, 'upper_size = "900M"\n'):
        equal(cluster.bash(SIZES.replace("/mnt", ""), "--mem=200M").good().split(), [str(half)] * 2, "sizes by the job")


@test
def site_limit_is_named_when_exceeded(cluster):
    config = os.path.join(cluster.etc, "spank-container/config.toml")
    before = open(config).read()
    try:
        open(config, "w").write('max_tmpfs_size = "8M"\n' + before)
        cluster.bash(SIZES, "--container-tmpfs-size=8M", "--container-mounts=tmpfs:/mnt").good("\n".join([str(8 << 20)] * 3))
        for options in (["--container-tmpfs-size=9M"], ["--container-mounts=tmpfs:/mnt:size=9M"]):
            done = cluster.srun(*options, "true")
            expect(done.rc == 1 and "9437184 bytes exceed the 8M allowed by this site" in done.err, "not refused", done)
    finally:
        open(config, "w").write(before)


# --- squashfs data files --------------------------------------------------------------------------

def data_file(cluster, name="data.sqsh", options=()):
    path = os.path.join(cluster.home, "alice", name)
    tree = os.path.join(cluster.images, "data")
    os.makedirs(os.path.join(tree, "below"), exist_ok=True)
    open(os.path.join(tree, "below/file"), "w").write("data\n")
    if os.path.exists(path):
        os.unlink(path)
    subprocess.run(["mksquashfs", tree, path, "-quiet", "-no-progress", *options], check=True, stdout=subprocess.DEVNULL)
    return owned_by_alice(path)


def servers_of_data(cluster):
    """Returns the servers of data.sqsh on node01; a site may let others serve the image's layers."""
    def serves(pid):
        return any(os.path.basename(os.readlink(f"/proc/{pid}/fd/{number}")) == "data.sqsh" for number in os.listdir(f"/proc/{pid}/fd"))
    return [pid for pid in cluster.processes("node01", "fuse") if serves(pid)]


@test
def data_file_is_mounted_and_served_by_the_user(cluster):
    data_file(cluster)
    running = cluster.start_srun("-w", "node01", "--container-mounts=data.sqsh:/data:sqsh,./data.sqsh:/again:sqsh+noexec", "--chdir=/home/alice",
                                 "bash", "-euc", "cat /data/below/file /again/below/file; grep -c fuse /proc/mounts; stat -c %U /data/below/file; "
                                 "touch /data/x || echo up; read end || :", stdin=OPEN)
    running.await_text("up")
    servers = servers_of_data(cluster)
    equal(len(servers), 2, "servers")
    equal({os.stat(f"/proc/{server}").st_uid for server in servers}, {2001}, "whose they are")
    done = running.end()
    done.good("data\ndata\n2\nalice\nup")
    expect("Read-only file system" in done.err, "it can be written to", done)
    cluster.must_be_quiet(within=2)


@test
@outcome(132, "refused", "not squashfs, version 3, truncated, tables past the end")
def data_file_may_be_missing_with_nofail_but_must_be_squashfs(cluster):
    cluster.bash("test ! -e /data", "--container-mounts=/no/such.sqsh:/data:sqsh+nofail+silent").good()
    for what, why in (("/etc/issue", "not a squashfs"), ("/etc", "not a file"), ("/dev/zero", "not a file"), ("/no/such", "no such file")):
        done = cluster.srun(f"--container-mounts={what}:/data:sqsh", "true")
        equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
        expect(f'open mount source "{what}": {why}' in done.errors()[0], "not refused for its content", done)
    cluster.must_be_quiet(within=2)


@test
def damaged_data_file_harms_only_its_readers(cluster):
    path = data_file(cluster)
    with open(path, "r+b") as file:
        file.seek(96)
        file.write(b"\xff" * 200)
    done = cluster.srun("--container-mounts=/home/alice/data.sqsh:/data:sqsh", "ls", "/data/below")
    expect(done.rc != 0, "it can be read", done)
    cluster.must_be_quiet(within=2)


@test
@outcome(138, "contained", "file replaced, truncated, rewritten while mounted")
def killed_data_server_is_a_read_error(cluster):
    data_file(cluster)
    running = cluster.start_srun("-w", "node01", "--container-mounts=/home/alice/data.sqsh:/data:sqsh", "bash", "-c",
                                 "echo up; sleep 1; cat /data/below/file; ls / | grep -c etc")
    running.await_text("up")
    kill_all(servers_of_data(cluster))
    done = running.end()
    done.good("up\n1")
    expect("not connected" in done.err, "the reader saw no error", done)
    cluster.must_be_quiet(within=2)


# --- the home directory ----------------------------------------------------------------------------------------------

IN_IMAGE = "cat /workspace/replaced"

@contextlib.contextmanager
def home_of_alice(cluster, home):
    path = pathlib.Path(cluster.inside("node01", "/etc/passwd"))  # the head has its own
    before = path.read_text()
    path.write_text(before.replace(":/home/alice:", f":{home}:"))
    try:
        yield
    finally:
        path.write_text(before)


@test
def home_of_unknown_user_is_that_of_the_job(cluster):
    show = ("bash", "-c", "id -un; echo $HOME $USER $SHELL; grep :2003: /etc/passwd")
    known = "carol\n/home/carol carol /bin/bash\ncarol:x:2003:2003::/home/carol:/bin/bash"
    for options in ((), ("--container-mount-home",), ("--container-contain",), ("-n1", "--container-private")):
        cluster.srun(*options, *show, user="carol").good(known)
    cluster.bash(f"{IN_IMAGE}; touch ~/of-carol; test -O ~/of-carol", "--container-mount-home", user="carol").good("upper")
    expect(os.path.exists(os.path.join(cluster.home, "carol/of-carol")), "the home that was mounted is not carol's")
    cluster.batch(f"#!/bin/bash\n{show[2]}\n", f"--container-image={cluster.name_of('base')}", "--chdir=/tmp", "-o/home/carol/%A.out", user="carol").good(known)
    cluster.srun("--container-remap-root", "bash", "-c", "id -un; echo $HOME", user="carol").good("root\n/root")
    # The name of another user, alice, would appear in the image's passwd.
    cluster.srun("--container-mount-home", "bash", "-c", "id -un; ! grep -E '^(root|alice):[^:]*:2003' /etc/passwd", env=["USER=root", "LOGNAME=alice"], user="carol").good("carol")


@test
def home_unset_never_covers_the_image(cluster):
    os.path.lexists(os.path.join(cluster.shared, "to-root")) or os.symlink("/", os.path.join(cluster.shared, "to-root"))
    homes = (["-u", "HOME"], *(["HOME=" + home] for home in (
        "", "/", "//", "/.", "/../", "/home/..", "relative", "/nowhere/at/all", "/etc/hostname", "/usr", "/etc/", "/proc/self",
        "/home/shared/to-root", "/home/a\nb", "/" + "x" * 5000)))
    for home in homes:
        for options in ((), ("--container-remap-root",)):
            done = cluster.srun("--container-mount-home", *options, "sh", "-c", IN_IMAGE, env=home, user="carol")
            expect(done.rc == 1 and len(done.errors()) == 1 and "--container-mount-home" in done.errors()[0], f"not one error for {home}", done)
        done = cluster.srun("sh", "-c", IN_IMAGE, env=home, user="carol")
        expect(done.good() == "upper" and not done.messages(), f"the container without a home for {home} is another", done)
    with rules(cluster, "mount_home = true\n"):
        for home in homes:
            done = cluster.srun("sh", "-c", IN_IMAGE, env=home, user="carol")
            expect(done.good() == "upper" and "warning: not mounted: " in done.err, f"no warning for {home}", done)
        for option in ("--container-contain", "--no-container-mount-home"):
            cluster.srun(option, "sh", "-c", IN_IMAGE, env=["HOME=/"], user="carol").good("upper")


@test
def home_of_the_node_never_covers_the_image(cluster):
    for home in ("/", "//", "/.", "/usr", "/nonexistent"):
        with home_of_alice(cluster, home):
            done = cluster.srun("-w", "node01", "--container-mount-home", "sh", "-c", IN_IMAGE)
            expect(done.rc == 1 and "--container-mount-home" in done.err and "upper" not in done.out, f"not refused: {home}", done)
            cluster.srun("-w", "node01", "sh", "-c", IN_IMAGE).good("upper")


@test
def home_with_odd_characters_is_mounted(cluster):
    for name in ("two words", "co:lon", "quo\"te", "com,ma"):
        path = os.path.join(cluster.shared, name)
        os.makedirs(path, exist_ok=True)
        os.chown(path, 2003, 2003)
        home = f"HOME=/home/shared/{name}"
        done = cluster.srun("--container-mount-home", "sh", "-c", f'{IN_IMAGE}; cd "$HOME" && pwd && : >mine && grep -c ^carol:x:2003: /etc/passwd', env=[home], user="carol")
        done.good(f"upper\n/home/shared/{name}\n1")
        expect(os.path.exists(os.path.join(path, "mine")), f"{name} was not mounted")


# --- the root is no target -------------------------------------------------------------------------------------------

@test
def link_to_the_root_is_refused_as_target(cluster):
    image = Image("suites/to-root", [[("to-root", "-> /"), ("deep/er", "-> ../deep/.."), ("home/alice", "-> /"), ("marker", b"inside\n")]], below=cluster.base_layout)
    inside = ("sh", "-c", "cat /marker")
    cluster.srun(*inside, image=image).good("inside")

    def refused(*options, env=()):
        done = cluster.srun(*options, *inside, image=image, env=env)
        expect(done.rc != 0 and "inside" not in done.out and "is the container's root" in done.err, f"{options} {env} are not refused", done)

    for target in ("/to-root", "/deep/er", "/to-root/./to-root", "/deep/er/to-root/"):
        refused(f"--container-mounts=/home/shared:{target}")
        refused(f"--container-mounts=tmpfs:{target}", "--container-remap-root")
        refused(f"--container-mounts=/home/shared:{target}:ro", "--container-private")
    refused(env=["SCONTAINER_MOUNTS=/home/shared:/to-root"])
    refused("--container-mount-home")
    with rules(cluster, 'mounts = ["/home/shared:/to-root"]\n'):
        refused()
    with rules(cluster, "enroot_compat = true\n"), Files(cluster, {"enroot/mounts.d/10.fstab": "/home/shared /to-root none x-create=dir,bind\n"}):
        refused()
    with Files(cluster, {"cdi/root.json": json.dumps({"cdiVersion": "0.6.0", "kind": "suites.test/root", "devices": [
            {"name": "it", "containerEdits": {"mounts": [{"hostPath": "/home/shared", "containerPath": "/to-root"}]}}]})}):
        refused("--container-device=suites.test/root=it")


# --- links of the image in targets ----------------------------------------------------------------------------------

def ostree(name, base_layout=""):
    """An image as those of ostree and bootc, where /home leads to a directory that is missing."""
    links = {"home": "var/home", "root": "var/roothome", "mnt": "/var/mnt", "opt": "mnt/opt", "far": "../../../var/far/../near", "loop": "loop",
             "self": "./self", "ping": "pong", "pong": "ping", "to-file": "etc/a-file", "var/dangling": "/no/where"}
    entries = [(at, "-> " + to) for at, to in links.items()] + [("etc/a-file", b"of the image\n"), (f"of-{name}", b"")]
    return Image(f"suites/{name}", [[("probe", probe()), *entries]], below=base_layout)


def expect_home_through_link(cluster, image, *options, mark):
    """/home of the image is a link to var/home, which is missing."""
    on = ("-w", "node01", *options)
    show = "readlink -f ~; cd; pwd -P; cat /workspace/replaced"
    cluster.srun(*on, "sh", "-c", f"touch ~/x; {show}", image=image).good("/var/home/alice\n/var/home/alice\nupper")
    cluster.srun(*on, "--container-remap-root", "sh", "-c", show, image=image).good("/var/roothome\n/var/roothome\nupper")
    cluster.srun(*on, "--container-readonly", "sh", "-c", f"touch ~/x 2>/dev/null || {show}", image=image).good("/var/home/alice\n/var/home/alice\nupper")
    for number, more in enumerate(((), ("--container-remap-root",), ("--container-readonly",), ("--container-private",))):
        done = cluster.srun(*on, *more, "--container-mount-home", "sh", "-c", f"readlink -f ~; touch ~/{mark}-{number}", image=image)
        equal(done.good().splitlines()[0].split("/")[1], "var", "where the home is", done)
        os.unlink(os.path.join(cluster.home, "alice", f"{mark}-{number}"))
    done = cluster.srun(*on, "--container-mounts=/etc:/home/x/y,/etc/hostname:/home/x/z/file,tmpfs:/mnt/tmp,/etc:/opt/etc,/etc/hostname:/far/file", "sh", "-c",
                        "cat /var/home/x/y/hostname /var/home/x/z/file /var/mnt/opt/etc/hostname /var/near/file; stat -f -c %T /var/mnt/tmp; readlink /home", image=image)
    done.good("node01\nnode01\nnode01\nnode01\ntmpfs\nvar/home")


@test
def home_through_image_link_is_made_or_mounted(cluster):
    expect_home_through_link(cluster, ostree("ostree", cluster.base_layout), mark="squashfs")
    with rules(cluster, 'layer_format = "erofs"'):
        expect_home_through_link(cluster, ostree("ostree-erofs", cluster.base_layout), mark="erofs")
    with rules(cluster, 'squashfs = "fuse"'):
        expect_home_through_link(cluster, ostree("ostree", cluster.base_layout), mark="fuse")
    with rules(cluster, "mount_home = true\n"):
        cluster.srun("sh", "-c", "readlink -f ~; test -e ~/.. && stat -c %m ~", image=ostree("ostree", cluster.base_layout)).good("/var/home/alice\n/var/home/alice")


@test
def image_links_lead_mounts_through_earlier_mounts(cluster):
    image = ostree("ostree", cluster.base_layout)
    here = directory_of_alice(cluster, "through")
    mounts = "/home/alice/through:/var/mnt,/etc:/mnt/deep/etc,/etc/hostname:/opt/file,umount:/var/home/q,tmpfs:/home/z,umount:/var/home/z"
    done = cluster.bash("cat /mnt/deep/etc/hostname /var/mnt/opt/file; test -e /var/home/z || echo dropped", f"--container-mounts=tmpfs:/home/q,{mounts}", image=image)
    equal(done.good(), "node01\nnode01\ndropped", "output", done)
    equal(sorted(os.listdir(here)), ["deep", "opt"], "what was made in the mounted directory")
    subprocess.run(["rm", "-rf", here], check=True)


@test
def image_links_to_no_directory_are_named(cluster):
    image = ostree("ostree", cluster.base_layout)
    end = "too many levels of symbolic links (hint: choose another target)"
    for target, reason in (("/loop/x", f'link "/loop" to "loop": {end}'), ("/self", f'link "/self" to "./self": {end}'), ("/ping/../x", f'link "/ping" to "pong": {end}'),
                           ("/to-file/x", '"/etc/a-file": not a directory (hint: choose another target)')):
        for source in ("/etc", "/etc/hostname"):
            done = cluster.srun(f"--container-mounts={source}:{target}", "true", image=image)
            equal((done.rc, done.errors()), (1, [f'--container-mounts: open mount target "{target}": {reason}']), "error", done)
    done = cluster.srun("--container-mounts=/etc/hostname:/var/dangling", "cat", "/no/where", image=image)
    equal(done.good(), "node01" if "node01" in done.out else "node02", "file that a dangling link leads to", done)
    looped = Image("suites/home-loop", [[("home", "-> home")]], below=cluster.base_layout)
    cluster.bash("cat /workspace/replaced", image=looped).good("upper")
    done = cluster.srun("--container-mount-home", "true", image=looped)
    equal((done.rc, done.errors()), (1, [f'--container-mount-home: open mount target "/home/alice": link "/home" to "home": {end}']), "error", done)
    with rules(cluster, "mount_home = true\n"):
        done = cluster.bash("cat /workspace/replaced", image=looped)
        said = [line for line in done.messages() if not line.startswith(("pulling ", "pulled "))]  # on a busy machine
        equal((done.good(), said), ("upper", ['warning: not mounted: open mount target "/home/alice": link "/home" to "home": too many levels of symbolic links']), "it", done)


@test
def image_links_in_files_of_users_lead_mounts(cluster):
    here = directory_of_alice(cluster, "of-ostree")
    for entry, data in ostree("plain").layers[0]:
        path = os.path.join(here, entry)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if isinstance(data, bytes):
            pathlib.Path(path).write_bytes(data)
            os.chmod(path, 0o755)
        elif not os.path.lexists(path):
            os.symlink(data.removeprefix("-> "), path)
    for top, directories, _ in os.walk(here):
        for name in directories + [""]:
            os.lchown(os.path.join(top, name), 2001, 2001)
    subprocess.run(["mksquashfs", here, here + ".sqsh", "-quiet", "-no-progress", "-noappend"], check=True, stdout=subprocess.DEVNULL)
    for image in ("/home/alice/of-ostree.sqsh", "/home/alice/of-ostree"):
        done = cluster.srun("--container-mounts=/etc/hostname:/opt/x/file", "/probe", "/var/home/alice", "/var/mnt/opt/x/file", image=image)
        expect("/var/home/alice: mode 40755 uid 2001" in done.good() and "node0" in done.out, "links were not followed", done)
    subprocess.run(["rm", "-rf", here, here + ".sqsh"], check=True)


@test
def files_not_requested_never_fail_a_step(cluster):
    """An odd image: the host's files, accounts and links have no usable place in it."""
    show = ("sh", "-c", "test -c /dev/null && grep -c '^127.*localhost' /etc/hosts; grep -o ^alice: /etc/passwd; cat /workspace/replaced")
    names = ("resolv.conf", "hosts", "hostname", "passwd", "group", "localtime")

    def odd(name, entries):
        return Image(f"suites/odd-{name}", [entries], below=cluster.base_layout)

    def links(to):
        return [(f"etc/{name}", f"-> {to.format(name)}") for name in names]

    loops = odd("loops", links("{}"))
    for name, to in (("loops", "{}"), ("null", "/dev/null"), ("gone", "/no/{}/there"), ("proc", "/proc/self/mounts"), ("roots", "/"), ("files", "/etc/debian_version/x")):
        done = cluster.srun(*show, image=odd(name, links(to)))
        expect(done.good() == "1\nalice:\nupper" and "warning" not in done.err, name, done)
    done = cluster.srun(*show, image=odd("directories", [(f"etc/{name}/x", b"") for name in ("resolv.conf", "hosts", "passwd", "localtime")]))
    equal((done.good(), sorted(line for line in done.messages() if line.startswith("warning: "))), (
        "0\nupper", ['warning: not mounted: open mount target "/etc/hosts": is a directory', 'warning: not mounted: open mount target "/etc/resolv.conf": is a directory',
                  'warning: not written: "/etc/passwd": is a directory']), "directories", done)
    for option in ("--container-remap-root", "--container-readonly", "--container-private", "--container-contain", "--container-mounts=/etc/hosts:/etc/hosts"):
        expect(cluster.srun(option, *show, image=loops).good().endswith("upper"), f"not with {option}")


@test
def shared_propagation_is_reported_once_as_without_effect(cluster):
    done = cluster.bash("test -e /a/apt -a -e /b/apt -a -e /c/apt", "-N2", "--container-mounts=/etc:/a:rshared,/etc:/b:ro+shared,/etc:/c:rslave")
    done.good()
    equal(done.messages(), ['warning: --container-mounts: "/etc:/a:rshared": rshared has no effect: the host does not see mounts made in a container'], "messages", done)
