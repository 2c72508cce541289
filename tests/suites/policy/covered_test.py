"""Directories that an administrator covers by a mount on the node stay covered in containers, for
any way of mounting them."""
import contextlib
import os

from enroot_hooks_test import Hooks
from harness import equal, expect, same_as_golden, test
from images import probe
import local_files

ON = ("-w", "node01")
PLACE = "/home/shared/covering"


@contextlib.contextmanager
def covered(cluster):
    """Prepares PLACE on node01: the directory `below` is covered by an empty tmpfs, and the file
    `hidden` by an empty one."""
    here = os.path.join(cluster.shared, "covering")
    for name in ("below/secret", "hidden"):
        local_files.put(f"{here}/{name}", "uncovered\n")
    with open(f"{here}/probe", "wb") as file:
        file.write(probe())
    os.chmod(f"{here}/probe", 0o755)
    mounts = (("-t", "tmpfs", "-o", "ro,mode=755", "cover", f"{PLACE}/below"), ("--bind", "/dev/null", f"{PLACE}/hidden"))
    try:
        for mount in mounts:
            cluster.root("node01", "mount", *mount).good()
        yield
    finally:
        for mount in mounts:
            cluster.root("node01", "umount", mount[-1])


@test
def mount_flags_uncover_nothing(cluster):
    with covered(cluster):
        for flags in ("", ":bind", ":rbind", ":bind+ro+private", ":rw+bind+noexec"):
            done = cluster.bash("ls -A /x/below /home/shared/covering/below; cat /x/hidden 2>&1 || true", *ON,
                                f"--container-mounts=/home/shared:{'/home/shared' + flags},{PLACE}:/x{flags}")
            done.good()
            expect("uncovered" not in done.out and "secret" not in done.out, f"{flags or 'no flag'} shows what is covered", done)


@test
def bind_flag_shows_mounts_below_its_source(cluster):
    with covered(cluster):
        cluster.bash("stat -f -c %T /x/below", *ON, f"--container-mounts={PLACE}:/x:bind").good("tmpfs")


@test
def shell_hook_uncovers_nothing(cluster):
    hook = 'printf "%s /x none x-create=dir,bind\\n" ' + PLACE + ' >> "${ENROOT_MOUNTS}"\n'
    with covered(cluster), Hooks(cluster, {"50-mounts.sh": hook}):
        done = cluster.bash("ls -A /x/below", *ON)
        equal(done.good(), "", "what is seen of the covered directory", done)


@test
def directory_with_mounts_is_refused_as_image(cluster):
    with covered(cluster):
        done = cluster.srun(*ON, "/probe", "/below/secret", "/hidden", image=PLACE)
        expect("uncovered" not in done.out, "the image shows what is covered", done)
        equal(done.rc, 1, "exit code", done)
        same_as_golden("a_directory_with_mounts_in_it", "\n".join(done.errors()) + "\n", done)
    cluster.srun(*ON, "/probe", "/below/secret", image=PLACE).good()
    cluster.must_be_quiet()
