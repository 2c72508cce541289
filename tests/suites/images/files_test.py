"""--container-mounts, --container-mount-home, read-only containers and the files a container gets from the host."""
import os

from images import with_probe
from harness import equal, expect, test


def share(cluster, name, text="shared\n"):
    """Creates a new file in /home/shared."""
    path = os.path.join(cluster.shared, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o666)
    return f"/home/shared/{name}"


def share_directory(cluster, name, *files):
    path = os.path.join(cluster.shared, name)
    os.makedirs(path, exist_ok=True)
    os.chmod(path, 0o777)
    for file in files:
        share(cluster, f"{name}/{file}", file + "\n")
    return f"/home/shared/{name}"


def mounts(*specs):
    return "--container-mounts=" + ",".join(specs)


@test
def mount_without_target_keeps_the_source_path(cluster):
    source = share_directory(cluster, "plain", "a")
    cluster.srun(mounts(source), "cat", f"{source}/a").good("a")


@test
def mount_creates_missing_target(cluster):
    source = share_directory(cluster, "plain", "a")
    cluster.srun(mounts(f"{source}:/not/there/yet"), "cat", "/not/there/yet/a").good("a")


@test
def file_mounts_over_image_file(cluster):
    cluster.srun(mounts(f"{share(cluster, 'file')}:/etc/issue"), "cat", "/etc/issue").good("shared")


@test
def file_mounts_at_missing_path(cluster):
    cluster.srun(mounts(f"{share(cluster, 'file')}:/not/there/file"), "cat", "/not/there/file").good("shared")


@test
def mount_writes_reach_the_host_as_the_user(cluster):
    source = share_directory(cluster, "writable")
    cluster.bash("echo new >/mnt/new", mounts(f"{source}:/mnt")).good()
    status = os.stat(os.path.join(cluster.shared, "writable/new"))
    equal((status.st_uid, status.st_gid), (2001, 2001), "owner of the new file")


@test
def mount_inside_earlier_mount_works(cluster):
    outer, inner = share_directory(cluster, "outer", "o"), share_directory(cluster, "inner", "i")
    cluster.srun(mounts(f"{outer}:/x", f"{inner}:/x/sub"), "cat", "/x/o", "/x/sub/i").good("o\ni")
    expect(os.path.isdir(os.path.join(cluster.shared, "outer/sub")), "the target was not made in the outer mount")


@test
def mount_over_earlier_mount_covers_it(cluster):
    first, second = share_directory(cluster, "first", "f"), share_directory(cluster, "second", "s")
    cluster.srun(mounts(f"{first}:/x", f"{second}:/x"), "ls", "/x").good("s")


@test
def mounts_of_repeated_options_accumulate(cluster):
    first, second = share_directory(cluster, "first", "f"), share_directory(cluster, "second", "s")
    cluster.srun(mounts(f"{first}:/x"), mounts(f"{second}:/y", f"{first}:/x"), "ls", "/x", "/y").good("/x:\nf\n\n/y:\ns")


@test
def mounts_of_options_accumulate_in_every_kind_of_job(cluster):
    first, second = share_directory(cluster, "first", "f"), share_directory(cluster, "second", "s")
    options = [mounts(f"{first}:/x"), mounts(f"{second}:/y")]
    cluster.srun("-N2", *options, "ls", "/x", "/y").good("/x:\nf\n\n/y:\ns\n" * 2)
    step = "srun --container-image=registry:5000/suites/base:1 sh -c 'test -e /x/f -a -e /y/s && echo both'"
    cluster.batch("#!/bin/sh\nls /x /y\n", "--container-image=registry:5000/suites/base:1", *options).good("/x:\nf\n\n/y:\ns")
    cluster.run("salloc", "-N1", "--container-image=registry:5000/suites/base:1", *options, "sh", "-c", step).good("both")


@test
def target_that_is_an_image_link_stays_inside(cluster):
    source, file = share_directory(cluster, "plain", "a"), share(cluster, "file")
    cluster.bash("cat /usr/lib/x/a /workspace/file; test -L /lib; test -L /workspace/symbolic-link",
                 mounts(f"{source}:/lib/x", f"{file}:/workspace/symbolic-link")).good("a\nshared")


@test
def target_that_is_a_dangling_link_is_created_at_its_end(cluster):
    image = with_probe("dangling", [("data", "-> /far/away"), ("file", "-> away"), ("deep", None), ("deep/file", "-> ../there")])
    source, file = share_directory(cluster, "plain", "a"), share(cluster, "file")
    out = cluster.srun(mounts(f"{source}:/data", f"{file}:/file", f"{file}:/deep/file"), "/probe", "/far/away/a", "/away", "/there", image=image).good()
    equal((out.count("\na\n"), out.count("\nshared\n")), (1, 2), "mounts behind the links")


@test
def read_only_mount_cannot_be_written_to(cluster):
    source = share_directory(cluster, "plain", "a")
    done = cluster.bash("cat /mnt/a; echo x >>/mnt/a", mounts(f"{source}:/mnt:ro"))
    expect(done.rc != 0 and "Read-only file system" in done.err, "it was written to", done)
    done = cluster.bash("echo x >>/mnt", mounts(f"{share(cluster, 'file')}:/mnt:ro"), image=with_bash_free_target(cluster))
    expect(done.rc != 0 and "Read-only file system" in done.err, "a file was written to", done)


def with_bash_free_target(cluster):
    from images import Image
    return Image("suites/file-target", [[("usr/empty", b"")], [(".wh.mnt", b"")]], below=cluster.base_layout)


@test
def read_only_mount_covers_host_mounts_below_it(cluster):
    source = share_directory(cluster, "tree")
    share_directory(cluster, "tree/sub")
    try:
        cluster.root("node01", "mount", "-t", "tmpfs", "-o", "mode=777", "sub", f"{source}/sub").good()
        done = cluster.bash("echo x >/mnt/sub/file", "-w", "node01", mounts(f"{source}:/mnt:ro"))
        expect(done.rc != 0 and "Read-only file system" in done.err, "the mount below was written to", done)
        cluster.bash("echo x >/mnt/sub/file", "-w", "node01", mounts(f"{source}:/mnt")).good()
        cluster.bash("test -e /mnt/sub/file", "-w", "node01", mounts(f"{source}:/mnt:bind")).good()
    finally:
        cluster.root("node01", "umount", f"{source}/sub")


@test
def noexec_mount_runs_no_program(cluster):
    source = share_directory(cluster, "programs", "run")
    share(cluster, "programs/run", "#!/bin/sh\necho ran\n")
    os.chmod(os.path.join(cluster.shared, "programs/run"), 0o755)
    cluster.srun(mounts(f"{source}:/mnt"), "/mnt/run").good("ran")
    done = cluster.bash("/mnt/run", mounts(f"{source}:/mnt:ro+noexec"))
    expect(done.rc == 126 and "Permission denied" in done.err, "the program ran", done)


@test
def pyxis_and_enroot_flags_are_accepted(cluster):
    source = share_directory(cluster, "plain", "a")
    flags = "rw+rbind+nosuid+nodev+rslave+x-create=auto"
    cluster.srun(mounts(f"{source}:/mnt:{flags}"), "cat", "/mnt/a").good("a")


@test
def relative_source_starts_at_the_job_directory(cluster):
    source = share_directory(cluster, "plain", "a")
    cluster.srun(f"--chdir={source}", mounts("./a:/mnt/a"), "cat", "/mnt/a").good("a")


@test
def source_that_is_a_link_shows_its_target(cluster):
    source = share_directory(cluster, "plain", "a")
    link = os.path.join(cluster.shared, "link")
    if not os.path.islink(link):
        os.symlink("plain", link)
    cluster.srun(mounts("/home/shared/link:/mnt"), "cat", "/mnt/a").good("a")


@test
def two_hundred_mounts_work(cluster):
    source = share(cluster, "file")
    specs = [f"{source}:/many/{number}" for number in range(200)]
    cluster.bash("cat /many/* | wc -l", mounts(*specs)).good("200")


@test
def mounted_host_directory_follows_later_host_mounts(cluster):
    source = share_directory(cluster, "late")
    cluster.root("node01", "sh", "-ec", f"mount -t tmpfs -o mode=755 late {source}; mount --make-shared {source}; mkdir {source}/sub").good()
    running = cluster.start_srun("-w", "node01", mounts(f"{source}:/mnt"), "sh", "-c", "echo up; while ! test -e /mnt/sub/file; do sleep 0.02; done")
    try:
        running.await_text("up")
        cluster.root("node01", "sh", "-ec", f"mount -t tmpfs later {source}/sub; touch {source}/sub/file").good()
        running.end(5).good()
    finally:
        cluster.root("node01", "umount", "-R", source)


@test
def read_only_container_allows_writes_to_tmp_and_mounts_only(cluster):
    source = share_directory(cluster, "writable")
    cluster.bash("! touch /etc/new && ! touch /new && touch /tmp/new && touch /mnt/new", "--container-readonly",
                 mounts(f"{source}:/mnt")).good()


@test
def read_only_container_has_user_passwd_and_workdir(cluster):
    cluster.bash("id -un; pwd", "--container-readonly").good("alice\n/workspace")


@test
def home_is_hidden_unless_requested(cluster):
    path = os.path.join(cluster.home, "alice/at-home")
    open(path, "w").close()
    cluster.bash("test ! -e ~/at-home; test -d ~; test -w ~").good()
    cluster.bash("test ! -e ~/at-home", "--no-container-mount-home").good()
    cluster.bash("test -e ~/at-home", "--container-mount-home").good()


@test
def host_names_resolve_as_outside(cluster):
    outside = open(os.path.join(cluster.etc, "hosts")).read().strip()
    cluster.srun("cat", "/etc/hosts").good(outside)
    cluster.srun("-w", "node02", "cat", "/etc/hostname").good("node02")


@test
def proc_sys_dev_and_shared_memory_are_those_of_the_host(cluster):
    os.close(os.open(cluster.inside("node01", "/dev/shm/of-the-host"), os.O_CREAT))
    try:
        cluster.bash("test -e /dev/shm/of-the-host; test -c /dev/null; test -d /proc/1; test -d /sys/class; echo x >/dev/null; "
                     "echo x >/dev/shm/of-alice; rm /dev/shm/of-alice; test -e /dev/pts/ptmx; grep -q slurmd /proc/*/comm", "-w", "node01").good()
    finally:
        os.unlink(cluster.inside("node01", "/dev/shm/of-the-host"))


@test
def sys_is_read_only(cluster):
    cluster.bash("grep -E ' /sys (ro|.*,ro)[, ]' /proc/self/mountinfo | grep -q .").good()


@test
def writable_size_is_limited_by_the_site(cluster):
    config = os.path.join(cluster.etc, "spank-container/config.toml")
    text = open(config).read()
    with open(config, "w") as file:
        file.write('upper_size = "8M"\n' + text)
    try:
        done = cluster.bash("head -c 20000000 /dev/zero >/big")
        expect(done.rc != 0 and "No space left" in done.err, "more than upper_size was written", done)
    finally:
        with open(config, "w") as file:
            file.write(text)
    cluster.bash("head -c 20000000 /dev/zero >/big").good()
