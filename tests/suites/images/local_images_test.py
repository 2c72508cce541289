"""Images that are files or directories of users: --container-image=./x.sqsh, ./x.sif, ./dir/."""
import os
import re
import shutil
import signal
import time

import local_files
from harness import equal, expect, test
from outcomes import outcome

ON = ("-w", "node01")
COMPRESSORS = {"gzip": ("-comp", "gzip", "-Xcompression-level", "1"), "lzo": ("-comp", "lzo", "-Xalgorithm", "lzo1x_1"), "lz4": ("-comp", "lz4"),
               "xz": ("-comp", "xz", "-wildcards", "-e", "usr/share", "usr/lib/python3*", "usr/lib/*/perl*", "var"), "zstd": ("-comp", "zstd", "-Xcompression-level", "1"), "none": ("-noI", "-noD", "-noF", "-noX")}


def refused(cluster, path, reason, *options):
    """Checks that the step fails at once with this line and leaves nothing behind."""
    done = cluster.srun(*ON, *options, "true", image=path)
    expect(done.rc != 0, "it was accepted", done)
    equal([re.sub(r"^.*?--container-image: ", "", line) for line in done.errors()], [reason], "messages", done)
    cluster.must_be_quiet()


def file_of(cluster, name, data=b"", mode=0o644):
    here, there = local_files.shared(cluster, name)
    with open(here, "wb") as file:
        file.write(data)
    os.chmod(here, mode)
    return there


def start_test_of(compressor, options):
    def starts(cluster):
        image = local_files.squashfs(cluster, f"{compressor}.sqsh", *options)
        cluster.bash("cat /data/one /data/sub/three; bash --version | grep -c ^GNU", image=image).good("one\nsub/three\n1")
    starts.__name__ = f"squashfs_compressed_with_{compressor}_starts"
    starts.__module__ = __name__
    return test(starts)


for each, how in COMPRESSORS.items():
    start_test_of(each, how)


FILE_SYSTEMS = {"ext4": local_files.mke2fs("-t", "ext4"), "ext4_inline": local_files.mke2fs("-t", "ext4", "-O", "inline_data,^metadata_csum"),
                "ext3": local_files.mke2fs("-t", "ext3"), "erofs": local_files.mkfs_erofs()}


@test
def file_systems_read_like_their_source_tree(cluster):
    # Without files that the start itself makes or mounts.
    script = ("cd /; find . -xdev -path ./etc -prune -o -path ./lost+found -prune -o -type f -print0 -o -type l -print0 | sort -z | "
              "xargs -0 sh -c 'for f; do [ -L \"$f\" ] && readlink \"$f\"; done; cat \"$@\"' sh | sha256sum; "
              "find usr bin lib data -printf '%y %m %s %p %l\\n' | grep -v ^d | sort | sha256sum; cat /data/sub/three")
    wanted = cluster.bash(script, *ON, image=local_files.squashfs(cluster), timeout=120).good()
    for name, make in FILE_SYSTEMS.items():
        image = local_files.file_system(cluster, f"base.{name}.img", make)
        equal(cluster.bash(script, *ON, image=image, timeout=120).good(), wanted, f"what is in the {name}")
    cluster.bash("echo more >>/data/one; cat /data/one; rm -r /data/sub; test ! -e /data/sub; stat -c %u:%a /data/setuid", *ON, image=image).good("one\nmore\n2001:755")
    cluster.must_be_quiet()


@test
def unreadable_file_system_is_refused_with_reason(cluster):
    local_files.file_system(cluster, "base.ext4.img", FILE_SYSTEMS["ext4"])
    with open(local_files.shared(cluster, "base.ext4.img")[0], "rb") as file:
        good = bytearray(file.read(1 << 20))
    journal = good[:1024 + 96] + bytes([good[1024 + 96] | 4]) + good[1024 + 97:]
    for name, data, reason in (("cut.img", good, "the file system is truncated: it ends beyond the end of the file"),
                               ("journal.img", journal, "the file system was not unmounted, its journal has changes (hint: e2fsck -fy FILE applies them)")):
        path = file_of(cluster, name, bytes(data))
        done = cluster.srun(*ON, "true", image=path)
        expect(done.rc != 0 and len(done.errors()) == 1 and done.errors()[0].endswith(reason), "it is not told", done)
        cluster.must_be_quiet()


@test
def squashfs_is_owned_by_user_and_writable_everywhere(cluster):
    out = cluster.bash("""
        test "$(stat -c %u:%g /data/two /etc/passwd /)" = "$(printf '%s\\n' "$(id -u):$(id -g)" "$(id -u):$(id -g)" "$(id -u):$(id -g)")"
        test "$(stat -c %a /data/setuid)" = 755
        echo more >>/data/one; cat /data/one
        rm /data/two; test ! -e /data/two
        mv /data/sub /data/moved; cat /data/moved/three
        chmod 600 /data/one; stat -c %a /data/one
        mkdir /data/new; echo x >/data/new/file; ln /data/new/file /data/link; ln -s file /data/new/soft; cat /data/new/soft
        rm -r /data/moved; ls /data
        touch -d 2001-01-01 /data/one; chmod -R go-w /usr/share/doc""", *ON, image=local_files.squashfs(cluster)).good()
    equal(out.split(), ["one", "more", "sub/three", "600", "x", "link", "new", "one", "setuid"], "what the tests in it saw")
    cluster.must_be_quiet()


@test
def squashfs_can_be_read_only(cluster):
    done = cluster.bash("cat /data/one; echo x >/data/one", *ON, "--container-readonly", image=local_files.squashfs(cluster))
    expect(done.rc != 0 and "Read-only file system" in done.err and done.out == "one\n", "it was written to", done)


@test
@outcome(136, "refused", "the path is a link, FIFO, socket, device")
def squashfs_is_found_from_job_directory_and_home(cluster):
    local_files.squashfs(cluster)
    cluster.srun(*ON, "--chdir=/home/shared", "cat", "/data/one", image="./base.sqsh").good("one")
    cluster.srun(*ON, "--chdir=/home/alice", "cat", "/data/one", image="../shared/base.sqsh").good("one")
    link = os.path.join(cluster.home, "alice/link.sqsh")
    os.path.islink(link) or os.symlink("../shared/base.sqsh", link)
    cluster.srun(*ON, "cat", "/data/one", image="~/link.sqsh").good("one")


@test
def enroot_squashfs_brings_environment_and_directory(cluster):
    out = cluster.srun(*ON, "sh", "-c", "echo $FROM_FILE; echo $QUOTED; echo ${ENROOT_SECRET-unset}; pwd; echo $PWD", image=local_files.squashfs(cluster)).good()
    equal(out.splitlines(), ["enroot", "two words", "unset", "/data/sub", "/data/sub"], "environment")
    out = cluster.srun(*ON, "--container-env=FROM_FILE", "--container-workdir=/data", "sh", "-c", "echo $FROM_FILE; pwd",
                       image=local_files.squashfs(cluster), env=["FROM_FILE=job"]).good()
    equal(out.splitlines(), ["job", "/data"], "what the job asked for")


@test
def sif_file_starts_with_its_environment(cluster):
    done = cluster.srun(*ON, "sh", "-c", "cat /data/one; echo $PATH; echo $FROM_DOCKER; echo $PLAIN; echo ${NOT_THIS-unset}; echo ${FROM_FILE-unset}",
                        image=local_files.sif(cluster))
    equal(done.good().splitlines(), ["one", "/opt/tool/bin:/usr/bin:/bin", "docker value", "a b", "unset", "unset"], "what it saw")
    equal(done.messages(), [], "what was said")


SCRIPTS = {
    "10-docker2singularity.sh": "export PATH=\"/usr/bin:/bin\"\n",
    "90-environment.sh": "if [ -d /opt ]; then\n  export IN_A_CONDITION=yes\nfi\nexport WORDS=$(printf 'two\\nlines')\n"
                         "activate() { export PATH=/opt/tool/bin:$PATH; unset DROPPED; }\nactivate\nexport JOBS=${JOBS}:image\n",
    "91-it's.sh": "export QUOTE=read\n",
}


def sif_with(cluster, name, scripts):
    here, there = local_files.shared(cluster, name)
    if not os.path.exists(here):
        root = os.path.join(cluster.images, name + "-tree")
        shutil.copytree(local_files.tree(cluster), root, symlinks=True)
        for script, text in scripts.items():
            local_files.put(f"{root}/.singularity.d/env/{script}", text)
        plain = os.path.join(cluster.images, name + ".sqsh")
        local_files.mksquashfs(root, plain)
        with open(plain, "rb") as file:
            local_files.put(here, local_files.sif_bytes(file.read()))
        shutil.rmtree(root)
        os.unlink(plain)
    return there


@test
def sif_environment_scripts_are_read_by_its_shell(cluster):
    show = 'echo "$PATH"; echo "$IN_A_CONDITION"; echo "$WORDS"; echo "$QUOTE"; echo "$JOBS"; echo "${DROPPED-unset}"; echo "$OPTION"'
    image = sif_with(cluster, "scripts.sif", SCRIPTS)
    job = ["JOBS=of-the-job", "DROPPED=x", "OPTION=job"]
    done = cluster.srun(*ON, "-n2", "--label", "--container-env=OPTION=option", "sh", "-c", show, image=image, env=job)
    seen = ["/opt/tool/bin:/usr/bin:/bin", "yes", "two", "lines", "read", "of-the-job:image", "unset", "option"]
    for task in "0", "1":
        equal([line[3:] for line in done.good().splitlines() if line.startswith(task + ": ")], seen, f"what task {task} saw")
    equal(done.messages(), [], "what was said")
    plain = cluster.srun(*ON, "--no-container-entrypoint", "sh", "-c", 'echo "$PATH"; echo "${IN_A_CONDITION-unset}"', image=image)
    equal(plain.good().splitlines(), ["/usr/bin:/bin", "unset"], "without entrypoint")


@test
def failing_sif_script_ends_the_task_with_a_line(cluster):
    image = sif_with(cluster, "failing-script.sif", {"90-environment.sh": "echo no such licence >&2; exit 3\n"})
    done = cluster.srun(*ON, "true", image=image)
    expect(done.rc != 0 and any("run the image's environment scripts: exited with status 3; last output: \"no such licence\"" in line
                                  for line in done.messages()), "the failure was not told", done)


@test
@outcome(132, "refused", "not squashfs, version 3, truncated, tables past the end")
def unusable_sif_files_are_refused_by_name(cluster):
    for name, how, reason in (
            ("encrypted.sif", {"file_system": local_files.ENCRYPTED}, "the SIF file's root file system is encrypted (hint: decrypt it where the key is available: apptainer build --sandbox)"),
            ("ext3.sif", {"file_system": local_files.EXT3}, "the SIF file's root file system is ext3, which is not supported (hint: rebuild it: apptainer build NEW.sif OLD.sif)"),
            ("arm.sif", {"architecture": b"04"}, "the SIF file is for arm64, this node is amd64 (hint: build it for amd64, on a machine of that architecture)"),
            ("overlay.sif", {"part": 4}, "the SIF file contains only an overlay (hint: use the image it belongs to)")):
        path = file_of(cluster, name, local_files.sif_bytes(b"x" * 4096, **how))
        refused(cluster, path, f'open image "{path}": {reason}')


@test
def directory_is_an_image_and_stays_unchanged(cluster):
    here, there = local_files.shared(cluster, "directory")
    if not os.path.isdir(here):
        os.system(f"cp -a '{local_files.tree(cluster)}' '{here}' && chown -R 2001:2001 '{here}'")
    cluster.bash("cat /data/one; echo changed >/data/one; cat /data/one; pwd; echo $FROM_FILE", *ON, image=there + "/").good("one\nchanged\n/data/sub\nenroot")
    equal(open(f"{here}/data/one").read(), "one\n", "the file in the directory")
    cluster.bash("mv /data /moved; cat /moved/sub/three; rm -r /moved; mkdir /moved; ls -A /moved", *ON, image=there).good("sub/three")
    cluster.must_be_quiet()


@test
def directory_on_overlay_is_refused_with_reason(cluster):
    made = cluster.root("node01", "sh", "-ec", """mkdir -p /run/stack; mount -t tmpfs none /run/stack; cd /run/stack; mkdir up work root
        mount -t overlay -o lowerdir=/usr,upperdir=up,workdir=work none root""")
    try:
        made.good()
        done = cluster.srun(*ON, "true", image="/run/stack/root")
        reason = "use the directory as an image: its file system does not allow executables, or is overlayfs"
        expect(done.rc == 1 and done.err.count(reason) == 1, "it was not refused with the cure", done)
    finally:
        cluster.root("node01", "sh", "-c", "umount /run/stack/root; umount /run/stack; rmdir /run/stack")
    cluster.must_be_quiet()


@test
def directory_of_another_owner_is_an_image(cluster):
    """As on CVMFS, or in a site's sandbox: another user owns its files."""
    here, there = local_files.shared(cluster, "of-root")
    if not os.path.isdir(here):
        os.system(f"cp -a '{local_files.tree(cluster)}' '{here}' && rmdir '{here}/home' '{here}/mnt'; rm -f '{here}/etc/resolv.conf'")
    done = cluster.bash("cat /data/one; id -u; touch /made && echo made; touch /etc/x || echo not mine", *ON, image=there)
    equal(done.good().splitlines(), ["one", "2001", "made", "not mine"], "what it is")
    said = [line for line in done.messages() if line.startswith("warning: the image belongs to another user or group: ")]
    expect(len(said) == 1 and "/etc/passwd, /etc/group" in said[0], "what is left out was not said once", done)
    reason = 'make directory "/usr/new" in the container: permission denied (hint: the directory above it belongs to another user in the image'
    done = cluster.srun(*ON, "--container-mounts=/home/alice:/usr/new/there", "true", image=there)
    expect(done.rc == 1 and reason in done.err, "the mount target was not refused by name", done)
    cluster.must_be_quiet()


@test
def directory_listable_but_not_searchable_is_refused(cluster):
    here, there = local_files.shared(cluster, "listed")
    os.makedirs(here, exist_ok=True)
    os.chmod(here, 0o744)
    refused(cluster, there, f'open image "{there}": permission denied (hint: it is opened with the user\'s permissions on the node)')


@test
def directory_closed_by_users_server_is_refused_with_hint(cluster):
    with cluster.users_file_system():
        done = cluster.srun(*ON, "true", image="/run/fuse")
    reason = "read the image directory: permission denied (hint: its FUSE file system must allow other users, root included: copy it to a local disk)"
    expect(done.rc != 0 and done.err.count(reason) == 1, "it was not refused with the cure", done)
    cluster.must_be_quiet()


@test
def oci_layout_named_as_path_gets_a_hint(cluster):
    here, there = local_files.shared(cluster, "layout")
    os.makedirs(here, exist_ok=True)
    file_of(cluster, "layout/oci-layout", b"{}")
    refused(cluster, there, f'open image "{there}": it is an OCI image layout, not a root directory (hint: use oci:{there})')


@test
@outcome(132, "refused", "not squashfs, version 3, truncated, tables past the end")
def files_that_are_no_images_are_refused_by_their_kind(cluster):
    hint = "(hint: an image is a squashfs (.sqsh), a SIF file, an ext4 or EROFS file system, a tar archive or a directory)"
    good = open(local_files.shared(cluster, "base.sqsh")[0], "rb").read() if local_files.squashfs(cluster) else b""
    for name, data, reason in (
            ("empty.sqsh", b"", f"it is an empty file {hint}"), ("text.sqsh", b"hello\n", f"it is no image {hint}"),
            ("version3.sqsh", good[:28] + b"\3\0\1\0" + good[32:4096], None), ("truncated.sqsh", good[:9000], None),
            ("tables.sqsh", good[:72] + b"\xff" * 8 + good[80:], "the squashfs is corrupt: inode or directory table out of bounds")):
        path = file_of(cluster, name, data)
        reason = reason or {"version3.sqsh": "it is a squashfs of version 3.1, only version 4.0 is supported (hint: recreate it with squashfs-tools 4.0 or newer)",
                            "truncated.sqsh": f"the squashfs is truncated: 9000 of {int.from_bytes(good[40:48], 'little')} bytes are there (hint: copy it again)"}[name]
        refused(cluster, path, f'open image "{path}": {reason}')


@test
@outcome(136, "refused", "the path is a link, FIFO, socket, device",
         differs="a symbolic link and a directory are accepted: people keep links to images, and a directory is an image")
def fifo_device_and_standard_input_are_refused_at_once(cluster):
    hint = "(hint: an image is a squashfs (.sqsh), a SIF file, an ext4 or EROFS file system, a tar archive or a directory)"
    here, fifo = local_files.shared(cluster, "fifo.sqsh")
    os.path.exists(here) or os.mkfifo(here, 0o666)
    os.chmod(here, 0o666)
    start = time.monotonic()
    refused(cluster, fifo, f'open image "{fifo}": it is a FIFO {hint}')
    refused(cluster, "/dev/null", f'open image "/dev/null": it is a device {hint}')
    done = cluster.srun(*ON, "true", image="/dev/stdin")
    expect(done.rc != 0 and re.search(r'open image "/dev/stdin": it is a (FIFO|socket|device)', done.err), "standard input was not refused", done)
    expect(time.monotonic() - start < 15, "it took long")


@test
@outcome(137, "accepted", "files of others, writable by all, of mode 0000")
def file_is_opened_with_the_users_rights_alone(cluster):
    path = file_of(cluster, "private.sqsh", b"secret", 0o600)
    refused(cluster, path, f'open image "{path}": permission denied (hint: it is opened with the user\'s permissions on the node)')


@test
@outcome(137, "accepted", "files of others, writable by all, of mode 0000")
def world_writable_file_is_used_with_a_warning(cluster):
    here, there = local_files.shared(cluster, "writable.sqsh")
    local_files.squashfs(cluster, "writable.sqsh")
    os.chmod(here, 0o666)
    done = cluster.srun(*ON, "cat", "/data/one", image=there)
    done.good("one")
    expect(any("is writable by others" in line for line in done.messages()), "nothing was said", done)


@test
@outcome(134, "contained", "damaged tables")
def damaged_image_fails_its_readers_only(cluster):
    here, there = local_files.shared(cluster, "damaged.sqsh")
    data = bytearray(open(local_files.shared(cluster, "base.sqsh")[0], "rb").read()) if local_files.squashfs(cluster) else b""
    middle = len(data) // 4
    data[middle:middle + 400000] = os.urandom(400000)
    done = cluster.srun(*ON, "sh", "-c", "cat $(find / -xdev -type f) >/dev/null", image=file_of(cluster, "damaged.sqsh", bytes(data)))
    expect("Input/output error" in done.err or done.rc != 0, "no error was seen", done)
    cluster.must_be_quiet()
    cluster.srun(*ON, "cat", "/data/one", image=local_files.squashfs(cluster)).good("one")


@test
@outcome(138, "contained", "file replaced, truncated, rewritten while mounted")
def file_truncated_while_used_harms_its_step_only(cluster):
    here, there = local_files.shared(cluster, "victim.sqsh")
    local_files.squashfs(cluster, "victim.sqsh", *COMPRESSORS["none"])
    running = cluster.start_srun(*ON, "sh", "-c", "echo up; read line; cat /usr/lib/x86_64-linux-gnu/* >/dev/null; echo end $?", image=there, stdin=None)
    running.await_text("up")
    os.truncate(here, 5000)
    running.end(30)
    os.unlink(here)
    cluster.must_be_quiet()


@test
def server_killed_fails_the_tasks_and_leaves_a_clean_node(cluster):
    # The kernel caches read data, so each turn reads files that no earlier turn has read.
    reads = 'files=$(find /usr/lib /usr/share -type f | head -n 400); echo up; for file in $files; do cat "$file" >/dev/null || exit 1; sleep 0.1; done'
    running = cluster.start_srun(*ON, "sh", "-c", reads, image=local_files.squashfs(cluster))
    running.await_text("up")
    servers = cluster.processes("node01", "fuse")
    equal(len(servers), 1, "servers")
    status = open(f"/proc/{servers[0]}/status").read()
    expect("Uid:\t2001\t2001\t2001\t2001" in status and "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status, status)
    os.kill(servers[0], signal.SIGKILL)
    done = running.end(20)
    # The next file is gone, or a page of a program.
    expect("Transport endpoint is not connected" in done.err or "Bus error" in done.err, "the task did not get an error", done)
    cluster.must_be_quiet()


@test
def agent_killed_keeps_task_files_and_leaves_nothing(cluster):
    running = cluster.start_srun(*ON, "sh", "-c", "echo up; sleep 1; cat /data/one /data/sub/three && echo still there", image=local_files.squashfs(cluster))
    running.await_text("up")
    for agent in cluster.processes("node01", "agent"):
        os.kill(agent, signal.SIGKILL)
    done = running.end(20)
    equal(done.out.splitlines(), ["up", "one", "sub/three", "still there"], "what the task could read", done)
    cluster.must_be_quiet()


@test
def cancel_leaves_nothing(cluster):
    running = cluster.start_srun(*ON, "-J", "cancelled", "sh", "-c", "echo up; sleep 60", image=local_files.squashfs(cluster))
    running.await_text("up")
    cluster.run("scancel", "-n", "cancelled").good()
    running.end(20)
    cluster.must_be_quiet()


@test
def concurrent_reads_of_many_tasks_return_right_bytes(cluster):
    script = "find /usr -xdev -type f -size -200k | sort | head -100 | xargs cat | sha256sum"
    out = cluster.srun("-N1", "-n", "64", "--overcommit", "sh", "-c", script, image=local_files.squashfs(cluster), timeout=60).good()
    sums = set(out.splitlines())
    root = local_files.tree(cluster)
    names = sorted((os.path.join(where, name) for where, _, files in os.walk(f"{root}/usr") for name in files
                    if os.path.isfile(os.path.join(where, name)) and not os.path.islink(os.path.join(where, name))))
    expect(len(out.splitlines()) == 64 and len(sums) == 1 and len(names) > 100, f"checksums: {sums}")
    plain = cluster.srun(*ON, "sh", "-c", script, image="base").good()
    equal(sums, {plain}, "checksum, compared with the same image from the registry")


@test
def file_named_without_path_gets_a_hint(cluster):
    local_files.squashfs(cluster)
    done = cluster.srun(*ON, "--chdir=/home/shared", "true", image="base.sqsh")
    expect(done.rc != 0 and 'did you mean "./base.sqsh"?' in done.err, "it was not said", done)
    file_of(cluster, "registry-less", b"x")
    done = cluster.srun(*ON, "--chdir=/home/shared", "--container-pull=never", "true", image="registry-less")
    expect(done.rc != 0 and 'did you mean "./registry-less"?' in done.err, "it was not said in the task", done)


@test
def compressed_erofs_is_refused_by_the_name_of_its_compression(cluster):
    small = os.path.join(cluster.images, "small")
    os.makedirs(small, exist_ok=True)
    with open(os.path.join(small, "file"), "w", encoding="ascii") as file:
        file.write("text\n" * 9999)
    cure = "make it by mkfs.erofs without -z, or by mksquashfs"
    for name, options, reason in (("lz4", ["-zlz4"], "is compressed with lz4, which is supported for squashfs only"), ("hc", ["-zlz4hc", "-C65536"], "is compressed with lz4, which is supported for squashfs only")):
        here, there = local_files.shared(cluster, f"{name}.erofs")
        local_files.mkfs_erofs(*options)(small, here)
        os.chmod(here, 0o644)
        done = cluster.srun(*ON, "true", image=there)
        expect(done.rc != 0 and len(done.errors()) == 1 and done.errors()[0].endswith(f"the EROFS image {reason} (hint: {cure})"), f"{name} is not named", done)
