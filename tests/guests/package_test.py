"""The package: an upgrade during a running step, and its removal in the last case."""
import os
import stat

from guest import NODE, PACKAGES, read
from harness import equal, expect, test

PROGRAMS = "/usr/libexec/spank-container/"


def other_versions(guest, version):
    """Builds the same packages with another version."""
    for number, package in enumerate(PACKAGES):
        tree = f"/root/other{number}"
        guest.root(NODE, "dpkg-deb", "-R", package, tree).good()
        guest.root(NODE, "sed", "-i", f"s/^Version:.*/Version: {version}/; /^Depends:/s/(= [^)]*)/(= {version})/", f"{tree}/DEBIAN/control").good()
        guest.root(NODE, "dpkg-deb", "-Znone", "-b", tree, f"{tree}.deb").good()
        yield f"{tree}.deb"


def mounts_of_run():
    return [line.split()[4] for line in read("/proc/self/mountinfo").splitlines() if line.split()[4].startswith("/run/spank-container")]


@test
def running_step_outlives_upgrade_and_downgrade(guest):
    agent = os.stat(PROGRAMS + "agent").st_ino
    step = guest.start_srun("--container-mounts=/home/alice", "sh", "-c", """
        echo up; until test -e /home/alice/go; do sleep 0.2; done; cat /usr/bin/* >/dev/null; cat /workspace/replaced""")
    step.await_text("up", 60)
    guest.dpkg("--install", *other_versions(guest, "99"))
    expect(os.stat(PROGRAMS + "agent").st_ino != agent, "the agent is the same file: the test is void")
    equal(stat.S_IMODE(os.stat(PROGRAMS + "agent").st_mode), 0o711, "mode of the agent")
    guest.srun("cat", "/workspace/replaced").good("upper")
    guest.dpkg("--install", *PACKAGES)
    guest.srun("cat", "/workspace/replaced").good("upper")
    guest.run("touch", "go").good()
    step.end(60).good("up\nupper")
    guest.must_be_quiet(within=10)


@test
def package_removal_and_purge_leave_nothing(guest):
    files = guest.dpkg("--listfiles", "spank-container", "spank-container-tools").split()
    files = [path for path in files if not path.startswith("/etc/")]  # purged
    expect(mounts_of_run(), "the node holds no mount: the test is void")
    expect("still requires the plugin" in guest.dpkg("--remove", "spank-container", "spank-container-tools"), "dpkg does not warn of plugstack.conf")
    equal(mounts_of_run(), [], "mounts")
    expect(not os.path.exists("/run/spank-container"), "/run/spank-container is there")
    expect(os.listdir("/var/lib/spank-container/layers"), "the images are gone")
    equal([path for path in files if os.path.lexists(path) and not os.path.isdir(path)], [], "files")
    guest.dpkg("--purge", "spank-container", "spank-container-tools")
    store = guest.store(NODE)
    expect(not os.path.exists(store) or (os.path.ismount(store) and not os.listdir(store)), "the store is there")
    expect(guest.root(NODE, "dpkg", "--status", "spank-container").rc != 0, "dpkg still knows the package")
    with open("/etc/slurm/plugstack.conf", "r+") as file:
        lines = [line for line in file if "spank_container" not in line]
        file.seek(0)
        file.truncate()
        file.writelines(lines)
    guest.run("srun", "hostname").good("node01")
