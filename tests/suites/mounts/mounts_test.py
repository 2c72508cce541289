"""What --container-mounts, --container-contain and --container-tmpfs-size do; what is refused is in errors_test.py."""
import contextlib
import json
import os
import pathlib
import subprocess
import time

from cluster import kill_all
from command import OPEN
from images import Image
from harness import equal, expect, test
from site_files import Files, rules

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
def a_tmpfs_is_empty_the_users_own_and_as_large_as_he_said(cluster):
    done = cluster.bash("stat -c '%n %a %U' /new /etc/apt; ls -A /etc/apt | wc -l; echo x >/new/file; "
                        "stat -f -c '%b * %S' /new | xargs expr; grep ' /new ' /proc/mounts | grep -o 'nosuid,nodev,noexec'",
                        "--container-mounts=tmpfs:/new:size=8M+mode=1700+noexec,tmpfs:/etc/apt")
    done.good("/new 1700 alice\n/etc/apt 755 alice\n0\n8388608\nnosuid,nodev,noexec")


@test
def what_is_full_says_so_and_nothing_else_breaks(cluster):
    done = cluster.bash("head -c 2M /dev/zero >/new/file || echo rc $?; echo x >/tmp/file; cat /tmp/file",
                        "--container-mounts=tmpfs:/new:size=1M")
    equal(done.good(), "rc 1\nx", "output", done)
    expect("No space left on device" in done.err, "the program was not told that it is full", done)


@test
def a_directory_can_be_mounted_into_a_tmpfs(cluster):
    cluster.bash("ls /etc/apt; cat /etc/apt/deep/here/hostname; touch /etc/apt/mine",
                 "--container-mounts=tmpfs:/etc/apt,/etc:/etc/apt/deep/here:ro").good("deep\n" + "node01")


@test
def tmp_proc_sys_and_hosts_files_can_be_left_out(cluster):
    cluster.bash("test ! -e /proc/self; test ! -e /sys/class; test ! -e /etc/hosts; test -e /etc/hostname; stat -f -c %T / /tmp",
                 "--container-mounts=umount:/tmp,umount:/sys,umount:/etc/hosts,umount:/proc").good("overlayfs\noverlayfs")


@test
def an_earlier_mount_can_be_left_out_with_what_lies_below(cluster):
    done = cluster.bash("ls /mnt/shared | head -n 1; stat -c %m /mnt /srv",
                        "--container-mounts=tmpfs:/mnt,/etc:/srv,umount:/srv,tmpfs:/opt,/home/shared:/opt/x,umount:/opt/.,/etc:/mnt/shared")
    equal(done.good().splitlines()[-2:], ["/mnt", "/"], "where they are mounted", done)


@test
def a_removal_follows_the_links_of_the_image(cluster):
    cluster.bash("grep -c ' /run/lock ' /proc/mounts || true", "--container-mounts=tmpfs:/run/lock,umount:/var/run/lock").good("0")


@test
def a_single_ro_is_a_flag(cluster):
    done = cluster.bash("test -d /home/shared; touch /home/shared/x", "--container-mounts=/home/shared:ro")
    expect(done.rc == 1 and "Read-only file system" in done.err, "it can be written to", done)


@test
def names_with_commas_colons_and_spaces_can_be_mounted(cluster):
    directory = directory_of_alice(cluster, 'odd, na:me "x"')
    open(os.path.join(directory, "file"), "w").write("found\n")
    cluster.bash("cat '/a, b/file' /c:d/file",
                 r'--container-mounts="/home/alice/odd, na:me \"x\"":"/a, b":ro,/home/alice/odd\,\ na\:me\ \"x\":/c\:d').good("found\nfound")


@test
def a_mount_that_may_be_missing_is_skipped_with_a_warning_or_silently(cluster):
    done = cluster.bash("test ! -e /mnt/a; test ! -e /mnt/b; test ! -e /mnt/d; ls /mnt/c | wc -l",
                        "--container-mounts=/no/such:/mnt/a:nofail,/nor/this:/mnt/b:nofail+silent,/etc/apt:/mnt/c:nofail,umount:/opt/x:nofail,"
                        "/etc:/mnt/d:x-create=file+nofail+silent")
    done.good()
    equal([line for line in done.messages() if line.startswith("warning: ")],
          ['warning: --container-mounts: open mount source "/no/such": no such file or directory (hint: the source must exist on every node of the step)'],
          "warnings", done)


@test
def devices_that_are_mounted_again_can_be_used(cluster):
    cluster.bash("head -c 3 /devices/zero | wc -c; echo x >/dev/null; echo x >/my-null",
                 "--container-mounts=/dev:/devices,/dev/null,/dev/null:/my-null").good("3")


@test
def mounts_of_several_options_add_up_and_count_once(cluster):
    done = cluster.bash("grep -c ' /mnt ' /proc/mounts; ls -d /mnt /srv/x", "--container-mounts=/etc:/mnt", "--container-mounts=tmpfs:/srv/x,/etc:/mnt")
    done.good("1\n/mnt\n/srv/x")


@test
def a_twin_that_has_only_mounts_is_the_option(cluster):
    cluster.bash("stat -f -c %T /mnt", env=["PYXIS_CONTAINER_MOUNTS=tmpfs:/mnt"]).good("tmpfs")


# --- what hurts nobody -----------------------------------------------------------------------------------------------

@test
def a_tmpfs_at_a_link_of_the_image_stays_inside(cluster):
    before = cluster.mounts("node01")
    done = cluster.bash("grep -c spank-container /proc/mounts", "--container-mounts=tmpfs:/var/run/x,tmpfs:/proc/self/root/x")
    expect(done.rc != 0 and "/proc/self/root/x" in done.err, "a link of /proc was followed", done)
    equal(cluster.mounts("node01"), before, "mounts of the node")


@test
def a_tmpfs_takes_what_is_mounted_into_it(cluster):
    cluster.bash("ls /srv; ls /srv/x/shared >/mnt/seen; ls /mnt", "--container-mounts=tmpfs:/srv,/home:/srv/x:ro,tmpfs:/mnt").good("x\nseen")


@test
def what_shows_the_kernel_is_not_covered(cluster):
    for mount in ("tmpfs:/proc", "/home/shared:/proc", "/home/shared:/x/../proc/self/attr", "tmpfs:/sys", "/home/shared:/dev/", "tmpfs:/proc/sys",
                  "/etc/hosts:/proc/self/status", "/sys:/proc", "/proc/self/root/etc:/proc"):
        for options in ([f"--container-mounts={mount}"], [f"--container-mounts=umount:/proc,{mount}"]):
            done = cluster.srun(*options, "true")
            expect(done.rc == 1 and "shows the kernel and cannot be covered" in done.err, f"{mount} is not refused at submission", done)
    # Files that lxcfs serves, the host's own, and what is in /dev and /sys.
    cluster.bash("cat /proc/uptime; test -c /dev/null; ls /sys/class | grep -c .; ls /sys/kernel; test -d /proc/self",
                 "--container-mounts=/etc/hostname:/proc/uptime,/dev:/dev,/sys:/sys,/proc:/proc,/home/shared:/dev/shm,tmpfs:/sys/kernel").good()


@test
def no_link_of_an_image_leads_a_mount_there(cluster):
    links = ("ln -s /proc /p; ln -s /proc/self /q; ln -s /sys /s; ln -s dev /d", )
    cluster.bash(links[0], "-w", "node01", "--container-name=links").good()
    for target, view in (("/p", "/proc"), ("/q/attr", "/proc"), ("/s", "/sys"), ("/d", "/dev")):
        done = cluster.run("srun", "-w", "node01", "--container-name=links", f"--container-mounts=/home/shared:{target}", "true")
        expect(done.rc == 1 and f"the target leads to {view}, which cannot be covered" in done.err, f"{target} is not refused", done)
    cluster.run("srun", "-w", "node01", "--container-name=links", "--container-mounts=/home/shared:/d/shm", "test", "-e", "/dev/shm").good()
    cluster.run("scontainer", "rm", "links")


@test
def a_site_may_cover_more(cluster):
    with rules(cluster, 'mounts = ["/etc/hostname:/proc/version"]\n'):
        cluster.bash("cat /proc/version", "-w", "node01").good("node01")


@test
def hundreds_of_tmpfs_are_made_or_refused(cluster):
    many = ",".join(f"tmpfs:/m/{i}:size=4K" for i in range(400))
    cluster.bash("grep -c ' /m/' /proc/mounts", f"--container-mounts={many}").good("400")
    done = cluster.srun(f"--container-mounts={many},tmpfs:/m/more", "true")
    equal((done.rc, done.errors()), (1, ["--container-mounts: more than 400 mounts"]), "answer", done)
    cluster.must_be_quiet(within=3)


# --- --container-contain, --container-tmpfs-size ---------------------------------------------------------------------

SIZES = "for where in / /tmp /mnt; do stat -f -c '%b * %S' $where | xargs expr; done"


@test
def contained_nothing_of_the_user_is_there(cluster):
    open(os.path.join(cluster.home, "alice/secret"), "w").write("x")
    script = "ls -A ~ /tmp; stat -c '%U %m' ~; echo x >~/file; cat ~/file; ls /mnt | wc -l"
    cluster.bash(script, "--container-contain", "--container-mounts=/etc/apt:/mnt", env=["SCONTAINER_MOUNT_HOME=0"]).good(
        "/home/alice:\n\n/tmp:\nalice /home/alice\nx\n" + str(len(os.listdir("/etc/apt"))))
    expect(not os.path.exists(os.path.join(cluster.home, "alice/file")), "it was written to the real home")


BASIC = "console fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"


@test
def contained_dev_has_what_every_program_needs_only(cluster):
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
def contained_a_terminal_and_its_console_work(cluster):
    command = "tty; test -c /dev/console && echo to the console >/dev/console; exec 3<>/dev/ptmx && echo made a terminal; ls /dev/pts"
    spawn = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    done = cluster.run("python3", "-c", spawn, "srun", "--pty", "-w", "node01", f"--container-image={cluster.name_of('base')}", "--container-contain",
                       "bash", "-ec", command)
    expect(done.rc == 0 and "/dev/console" in done.out and "to the console" in done.out and "made a terminal" in done.out, "no terminal", done)


@test
def contained_the_devices_of_cdi_are_there(cluster):
    text = ('{"cdiVersion": "0.5.0", "kind": "example.org/tun", "devices": [{"name": "all", '
            '"containerEdits": {"deviceNodes": [{"path": "/dev/full"}, {"path": "/dev/fuse"}]}}]}')
    with Files(cluster, {"cdi/tun.json": text}):
        cluster.bash("test -c /dev/fuse; ls /dev | wc -w", "-w", "node01", "--container-contain", "--container-device=example.org/tun=all").good()


@test
def contained_the_batch_script_is_still_there(cluster):
    done = cluster.batch("#!/bin/sh\ntest -s $0 && ls -A /home/alice && echo ran\n", f"--container-image={cluster.name_of('base')}",
                         "--container-contain")
    equal((done.rc, done.out), (0, "ran\n"), "exit code and output", done)


@test
def the_size_of_what_can_be_written_is_as_asked_for(cluster):
    cluster.bash(SIZES, "--container-tmpfs-size=6M", "--container-mounts=tmpfs:/mnt").good("\n".join([str(6 << 20)] * 3))


@test
def a_percentage_is_one_of_the_jobs_memory(cluster):
    done = cluster.bash(SIZES, "--mem=200M", "--container-tmpfs-size=50%", "--container-mounts=tmpfs:/mnt:size=10%")
    page = 4096

    def part(percent):
        return str(-(-((200 << 20) // 100 * percent) // page) * page)
    done.good("\n".join([part(50), part(50), part(10)]))


@test
def contained_the_size_follows_the_jobs_memory(cluster):
    size = int(cluster.bash("stat -f -c '%b * %S' ~ | xargs expr", "--mem=200M", "--container-contain").good())
    expect(size <= 100 << 20 and size > 90 << 20, f"half of the job's memory is {size}")


def filling_test_of(memory):
    def fills(cluster):
        """A message of the program or the end of the step by the OOM killer, but no waiting for memory."""
        started = time.monotonic()
        done = cluster.srun("-w", "node01", f"--mem={memory}", "bash", "-c", "head -c 300M /dev/zero >/full; echo rc $?; rm /full", timeout=20)
        took = time.monotonic() - started
        by_limit = "No space left on device" in done.err and "rc 1" in done.out
        expect(by_limit or done.rc != 0, "the job has written more than it has memory", done)
        expect(took < 10, f"it took {took:.0f} s", done)
    fills.__name__ = f"a_job_with_{memory}_megabytes_cannot_fill_the_root_with_more"
    fills.__module__ = __name__
    return test(fills)


for each in (20, 60, 100):
    filling_test_of(each)


@test
def a_job_is_told_that_its_root_is_full(cluster):
    """Half of its memory, in the root and in /tmp each, and not more where the site sets bytes."""
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
def the_sites_limit_is_named_when_more_is_asked_for(cluster):
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


# --- squashfs files of data ------------------------------------------------------------------------------------------

def data_file(cluster, name="data.sqsh", options=()):
    path = os.path.join(cluster.home, "alice", name)
    tree = os.path.join(cluster.images, "data")
    os.makedirs(os.path.join(tree, "below"), exist_ok=True)
    open(os.path.join(tree, "below/file"), "w").write("data\n")
    if os.path.exists(path):
        os.unlink(path)
    subprocess.run(["mksquashfs", tree, path, "-quiet", "-no-progress", *options], check=True, stdout=subprocess.DEVNULL)
    return owned_by_alice(path)


@test
def a_file_of_data_is_mounted_and_served_by_the_user(cluster):
    data_file(cluster)
    running = cluster.start_srun("-w", "node01", "--container-mounts=data.sqsh:/data:sqsh,./data.sqsh:/again:sqsh+noexec", "--chdir=/home/alice",
                                 "bash", "-euc", "cat /data/below/file /again/below/file; grep -c fuse /proc/mounts; stat -c %U /data/below/file; "
                                 "touch /data/x || echo up; read end || :", stdin=OPEN)
    running.await_text("up")
    servers = cluster.processes("node01", "fuse")
    equal(len(servers), 2, "servers")
    equal({os.stat(f"/proc/{server}").st_uid for server in servers}, {2001}, "whose they are")
    done = running.end()
    done.good("data\ndata\n2\nalice\nup")
    expect("Read-only file system" in done.err, "it can be written to", done)
    cluster.must_be_quiet(within=2)


@test
def a_file_of_data_needs_not_be_there_with_nofail_and_must_be_a_squashfs(cluster):
    cluster.bash("test ! -e /data", "--container-mounts=/no/such.sqsh:/data:sqsh+nofail+silent").good()
    for what, why in (("/etc/issue", "not a squashfs"), ("/etc", "not a file"), ("/dev/zero", "not a file"), ("/no/such", "no such file")):
        done = cluster.srun(f"--container-mounts={what}:/data:sqsh", "true")
        equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
        expect(f'open mount source "{what}": {why}' in done.errors()[0], "not refused for its content", done)
    cluster.must_be_quiet(within=2)


@test
def a_damaged_file_of_data_harms_only_its_readers(cluster):
    path = data_file(cluster)
    with open(path, "r+b") as file:
        file.seek(96)
        file.write(b"\xff" * 200)
    done = cluster.srun("--container-mounts=/home/alice/data.sqsh:/data:sqsh", "ls", "/data/below")
    expect(done.rc != 0, "it can be read", done)
    cluster.must_be_quiet(within=2)


@test
def a_server_of_data_that_is_killed_is_an_error_of_the_read(cluster):
    data_file(cluster)
    running = cluster.start_srun("-w", "node01", "--container-mounts=/home/alice/data.sqsh:/data:sqsh", "bash", "-c",
                                 "echo up; sleep 1; cat /data/below/file; ls / | grep -c etc")
    running.await_text("up")
    kill_all(cluster.processes("node01", "fuse"))
    done = running.end()
    done.good("up\n1")
    expect("not connected" in done.err, "the reader saw no error", done)
    cluster.must_be_quiet(within=2)


# --- the home directory ----------------------------------------------------------------------------------------------

IN_IMAGE = "cat /workspace/replaced"

@contextlib.contextmanager
def home_of_alice(cluster, home):
    path = pathlib.Path(cluster.inside("node01", "/etc/passwd"))  # the head has one of its own
    before = path.read_text()
    path.write_text(before.replace(":/home/alice:", f":{home}:"))
    try:
        yield
    finally:
        path.write_text(before)


@test
def home_of_an_unknown_user_is_that_of_the_job(cluster):
    show = ("bash", "-c", "id -un; echo $HOME $USER $SHELL; grep :2003: /etc/passwd")
    known = "carol\n/home/carol carol /bin/bash\ncarol:x:2003:2003::/home/carol:/bin/bash"
    for options in ((), ("--container-mount-home",), ("--container-contain",), ("-n1", "--container-private")):
        cluster.srun(*options, *show, user="carol").good(known)
    cluster.bash(f"{IN_IMAGE}; touch ~/of-carol; test -O ~/of-carol", "--container-mount-home", user="carol").good("upper")
    expect(os.path.exists(os.path.join(cluster.home, "carol/of-carol")), "the home that was mounted is not carol's")
    cluster.batch(f"#!/bin/bash\n{show[2]}\n", f"--container-image={cluster.name_of('base')}", "--chdir=/tmp", "-o/home/carol/%A.out", user="carol").good(known)
    cluster.srun("--container-remap-root", "bash", "-c", "id -un; echo $HOME", user="carol").good("root\n/root")
    # Another user's name would be hers in the image's passwd.
    cluster.srun("--container-mount-home", "bash", "-c", "id -un; ! grep -E '^(root|alice):[^:]*:2003' /etc/passwd", env=["USER=root", "LOGNAME=alice"], user="carol").good("carol")


@test
def home_that_is_none_never_covers_the_image(cluster):
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
def link_to_the_root_is_no_target(cluster):
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
