"""Commands of users accustomed to pyxis and enroot, with the results that they expect."""
import os

from entrypoint_test import with_entrypoint
from harness import equal, expect, test
from images import Image
from named_test import run, start

ON = ("-w", "node01")


# --- joining a container that runs ------------------------------------------------------------------------------------

@test
def mounts_joining_remapped_root_are_ignored_with_warning(cluster):
    first = start(cluster, "as-root", "echo up; sleep 60", "-J", "as-root", "--container-remap-root", image="base")
    first.await_text("up")
    done = run(cluster, "as-root", "id -u; test ! -e /extra && echo none", "--container-mounts=/home/shared:/extra", "--container-mount-home")
    done.good("0\nnone")
    equal([line for line in done.messages() if not line.startswith("using ")], [f"warning: ignoring --{option} when attaching to a running container with remapped root"
                            for option in ("container-mounts", "container-mount-home")], "messages", done)
    cluster.run("scancel", "-n", "as-root").good()
    first.end()
    run(cluster, "as-root:remove", "true").good()


# --- the image's entrypoint -------------------------------------------------------------------------------------------

@test
def entrypoint_gets_image_and_container_env_variables(cluster):
    image = with_entrypoint(cluster, "sees", 'export SAW="${OF_IMAGE-unset} ${OF_JOB-unset} ${KEPT-unset}" OF_JOB=${OF_JOB:-entry}; exec "$@"',
                            Env=["OF_IMAGE=image", "PATH=/usr/bin:/bin"])
    done = cluster.srun(*ON, "--container-entrypoint", "--container-env=KEPT", "sh", "-c", "echo $SAW, $OF_JOB $ONLY_JOB $KEPT",
                        image=image, env=["OF_JOB=job", "ONLY_JOB=only", "KEPT=kept"])
    done.good("image unset kept, entry only kept")


# --- /etc/shadow ------------------------------------------------------------------------------------------------------

@test
def shadow_file_of_image_gets_a_line_for_the_user(cluster):
    shadow = Image("suites/shadow", [[("etc/shadow", b"root:*:19000:0:99999:7:::\n")]], below=cluster.base_layout)
    done = cluster.bash("cat /etc/shadow; stat -c %a /etc/shadow", image=shadow)
    done.good("root:*:19000:0:99999:7:::\nalice:*:::::::\n640")


@test
def libc_of_the_image_reads_the_shadow_line(cluster):
    """As PAM does, without which sshd refuses logins. perl's getpwnam reads both files."""
    shadow = Image("suites/shadow", [[("etc/shadow", b"root:*:19000:0:99999:7:::\n")]], below=cluster.base_layout)
    cluster.srun("perl", "-e", "print join(' ', (getpwnam('alice'))[0, 1, 2])", image=shadow).good("alice * 2001")


# --- flags of enroot's fstab ------------------------------------------------------------------------------------------

@test
def tmpfs_accepts_kernel_mount_options(cluster):
    mounts = "tmpfs:/few:nr_inodes=5+uid=2001+gid=2001+mode=0700,tmpfs:/plain:huge=never"
    done = cluster.bash("stat -c '%u %g %a' /few; for i in 1 2 3 4 5 6; do echo x >/few/$i || break; done 2>&1 | tail -n1; ls /few | wc -l",
                        f"--container-mounts={mounts}")
    lines = done.good().splitlines()
    equal((lines[0], lines[-1]), ("2001 2001 700", "4"), "owner, mode and files", done)
    expect("No space left on device" in lines[1], "the limit of files is not said", done)
    options = cluster.bash("grep ' /huge ' /proc/mounts", "--container-mounts=tmpfs:/huge:huge=within_size+size=16M").good()
    expect("huge=within_size" in options, f"no huge pages: {options}")


@test
def unbindable_mount_is_unbindable(cluster):
    os.makedirs(os.path.join(cluster.shared, "tree"), exist_ok=True)
    done = cluster.bash("grep ' /tree ' /proc/self/mountinfo; grep ' /other ' /proc/self/mountinfo",
                        "--container-mounts=/home/shared/tree:/tree:unbindable+ro,/home/shared/tree:/other")
    one, other = done.good().splitlines()
    expect(" unbindable " in one and " ro," in one, "it is bindable", done)
    expect("unbindable" not in other, "all are unbindable", done)


@test
def target_outside_the_root_is_refused(cluster):
    for target in ("/../mnt", "/a/../../mnt", "../mnt"):
        done = cluster.srun(f"--container-mounts=/home/shared:{target}", "true")
        equal((done.rc, done.errors()), (1, [f'--container-mounts: "/home/shared:{target}": the target leaves the container\'s root: Cross-device link']), "error", done)
    cluster.srun("--container-mounts=/home/shared:/srv/../mnt", "test", "-d", "/mnt").good()


# --- namespaces -------------------------------------------------------------------------------------------------------

@test
def ipc_namespace_has_a_private_dev(cluster):
    """As with enroot: the usual nodes, no other ones and no files of the node."""
    script = ("stat -c %d /dev; ls -d /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/pts/ptmx /dev/ptmx /dev/fd /dev/stdin | wc -l; "
              "test ! -e /dev/loop-control; test ! -e /dev/of-node; echo x >/dev/shm/x; stat -c %d /dev/shm; readlink /proc/self/ns/ipc; sleep 0.3")
    on_node = cluster.inside("node01", "/dev/of-node")
    open(on_node, "w").close()
    try:
        node = cluster.run("srun", *ON, "sh", "-c", "stat -c %d /dev /dev/shm").good().split()
        for options in ([], ["--container-remap-root"], ["-n2"], ["-n2", "--container-private"]):
            lines = cluster.bash(script, *ON, "--container-unshare=ipc", *options).good().splitlines()
            expect(lines.count("10") == (2 if "-n2" in options else 1), f"nodes with {options}: {lines}")
            expect(not set(node) & set(lines), f"/dev or /dev/shm is the node's with {options}: {lines}")
    finally:
        os.unlink(on_node)


@test
def ipc_namespace_has_own_shared_memory_and_queues(cluster):
    done = cluster.bash("stat -f -c %T /dev/shm; ls -A /dev/shm; test ! -d /dev/mqueue || ls /dev/mqueue; echo x >/dev/shm/x; readlink /proc/self/ns/ipc",
                        *ON, "--container-unshare=ipc")
    lines = done.good().splitlines()
    equal((lines[0], len(lines)), ("tmpfs", 2), "shared memory, and what is in it and in the queues")
    outside = cluster.run("srun", *ON, "readlink", "/proc/self/ns/ipc").good().strip()
    expect(lines[-1] != outside, "it is the node's IPC namespace", done)
    cluster.run("srun", *ON, "test", "!", "-e", "/dev/shm/x").good()
