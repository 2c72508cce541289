"""The guest as a cluster of one node: this machine is node and head, and Slurm's daemons are
systemd units."""
import hashlib
import json
import os
import re
import stat
import time
import urllib.error
import urllib.request

from cluster import Cluster, name_of
from command import Inquirer, Running, await_true
from faulty_registry import FaultyRegistry
from harness import expect, indent, say
from report import POWER_GOES, tell_fact

NODE = "node01"
PACKAGES = ("/opt/spank-container/spank-container-tools.deb", "/opt/spank-container/spank-container.deb")
MEMORY = "/var/lib/guest-memory.json"
STORE_DISK = "/dev/vdc"
LAYOUTS = "/opt/spank-container/images"
REGISTRY = "http://registry:5000/v2"
CGROUPS = "/sys/fs/cgroup"
# Of devices without a driver: opening one fails with ENXIO, or with EPERM outside the allocation.
LOCAL_MAJOR = 240
SLURMCTLD_LOG = "/var/log/slurm/slurmctld.log"
SLURMD_LOG = "/var/log/slurm/slurmd.log"
AS_ALICE = ("setpriv", "--reuid=alice", "--regid=alice", "--init-groups", "env", "-i", "-C", "/home/alice", "HOME=/home/alice",
            "USER=alice", "LOGNAME=alice", "SHELL=/bin/bash", "PATH=/usr/local/bin:/usr/bin:/bin")


def is_too_old():
    """Returns whether this kernel lacks features that containers need."""
    return tuple(map(int, os.uname().release.split(".")[:2])) < (5, 12)


def kind_of_store():
    """Returns the file system selected by the host."""
    return re.search(r"guest\.store=(\w+)", read("/proc/cmdline"))[1]


def is_as_before_5_19():
    """Returns whether the kernel was started without erofs."""
    return "module_blacklist=erofs" in read("/proc/cmdline")


def read(path):
    """Returns the file's content, empty if the file is gone."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


class Guest(Cluster):
    """Differences from a cluster in namespaces: how commands are run, and which leftovers count."""

    def __init__(self):
        self.nodes, self.home, self.etc, self.is_ours = (NODE,), "/home", "/etc", False
        self.kernel = tuple(map(int, os.uname().release.split(".")[:2]))
        self.memory = json.loads(read(MEMORY) or "{}")  # results that survive a power loss
        self.is_back = bool(self.memory)

    def __enter__(self):
        if not self.is_back:
            with open("/etc/os-release", "a") as file:
                file.write("VARIANT_ID=guest\n")
        self.mount_store()
        for number in range(2):
            os.mknod(f"/dev/card{number}", stat.S_IFCHR | 0o666, os.makedev(LOCAL_MAJOR, number))
        # getaddrinfo() requires an address other than 127.0.0.1
        self.root(NODE, "ip", "address", "add", "10.77.0.1/32", "dev", "lo").good()
        if not self.is_back:
            self.install()
        self.root(NODE, "systemctl", "start", "dbus.socket", "munge", "docker-registry", "slurmctld", "slurmd").good()
        self.inquirer, self.faulty = Inquirer(*AS_ALICE, "sh"), FaultyRegistry(self.pid(NODE))
        if self.is_back:
            self.resume()
            return self
        self.await_idle(120)
        await_true(lambda: answers(REGISTRY + "/suites/base/tags/list"), 30, "the registry does not answer")
        self.push_layout("base")
        if is_too_old():
            self.quiet = {NODE: self.traces(NODE)}
        else:
            self._warm_up()
        self.tell_facts()
        return self

    def mount_store(self):
        """Mounts a separate file system for the store before the product is installed, as in
        spank-container-operation(8)."""
        if kind_of_store() != "ext4":
            os.makedirs(self.store(NODE), exist_ok=True)
        if kind_of_store() == "tmpfs":
            self.root(NODE, "mount", "-t", "tmpfs", "-o", "size=600M,mode=755,nr_inodes=1m", "tmpfs", self.store(NODE)).good()
        elif kind_of_store() == "xfs":
            if not self.is_back:
                self.root(NODE, "mkfs.xfs", "-q", STORE_DISK).good()
            self.root(NODE, "mount", "-o", "prjquota", STORE_DISK, self.store(NODE)).good()

    def install(self):
        self.dpkg("--install", *PACKAGES)
        with open("/etc/slurm/plugstack.conf", "a") as file:
            file.write("required spank_container.so\n")
        self.root(NODE, "useradd", "--uid", "2001", "--create-home", "--shell", "/bin/bash", "alice").good()
        for directory in ("/var/lib/slurm/slurmctld", "/var/lib/slurm/slurmd", "/var/log/slurm"):
            self.root(NODE, "install", "-d", "-o", "slurm", directory).good()

    # --- power loss -------------------------------------------------------------------------------

    def lose_power(self):
        """Does not return. The host waits for this line, after which nothing is written."""
        with open(MEMORY, "w") as file:
            json.dump(self.memory, file)
            file.flush()
            os.fsync(file.fileno())
        say(POWER_GOES)
        time.sleep(600)

    def resume(self):
        """Resumes the node and its jobs: Slurm keeps a node out of service after an unexpected
        restart."""
        self.root(NODE, "scancel", "--user=alice")

        def is_idle():
            self.root(NODE, "scontrol", "update", f"nodename={NODE}", "state=resume")
            return all(state.endswith(" idle") for state in self.states())

        await_true(is_idle, 240, "the node does not come back")

    def settle(self):
        """Creates the files that a first use leaves intentionally."""
        self._warm_up()

    # --- commands --------------------------------------------------------------------------------------------------

    def enter(self, machine, user, *argv, stdin=None):
        return Running([*(AS_ALICE if user == "alice" else ()), *argv], None, stdin)

    def run(self, *argv, timeout=120, **how):
        return super().run(*argv, timeout=timeout, **how)

    def srun(self, *argv, timeout=120, **how):
        return super().srun(*argv, timeout=timeout, **how)

    def await_job(self, job, timeout=120):
        return super().await_job(job, timeout)

    def must_be_quiet(self, within=5, store=None):
        """Checks for leftovers without a short time limit, as a guest cannot see the host's load.
        Other suites check that ends take seconds only."""
        super().must_be_quiet(4 * within, store)

    def must_be_well(self):
        await_true(lambda: not self.inquirer.ask("squeue -h"), 60, "jobs are left")
        super().must_be_well()

    def dpkg(self, *argv):
        """Runs dpkg and returns its output."""
        done = self.enter(NODE, "root", "sh", "-c", 'exec dpkg "$@" 2>&1', "sh", *argv).end(300)
        expect(done.rc == 0, f"dpkg {' '.join(argv)} failed", done)
        return done.out

    def push_layout(self, image):
        """Pushes a layout without skopeo, which would take much of the disk. Returns the image's
        name."""
        repository, blobs = f"{REGISTRY}/suites/{image}", os.path.join(LAYOUTS, image, "blobs/sha256")
        with open(os.path.join(LAYOUTS, image, "index.json")) as file:
            manifest = json.load(file)["manifests"][0]
        digest = manifest["digest"].removeprefix("sha256:")
        for name in os.listdir(blobs):
            if name != digest:
                where = request("POST", f"{repository}/blobs/uploads/").headers["Location"]
                request("PUT", f"{where}{'&' if '?' in where else '?'}digest=sha256:{name}", content(blobs, name), "application/octet-stream")
        request("PUT", f"{repository}/manifests/1", content(blobs, digest), manifest["mediaType"])
        return f"registry:5000/suites/{image}:1"

    def push_for(self, architecture):
        """Pushes the image for another architecture, set in its configuration. Returns its name."""
        repository, blobs = f"{REGISTRY}/suites/{architecture}", os.path.join(LAYOUTS, "base/blobs/sha256")
        with open(os.path.join(LAYOUTS, "base/index.json")) as file:
            entry = json.load(file)["manifests"][0]
        manifest = json.loads(content(blobs, entry["digest"].removeprefix("sha256:")))
        config = json.loads(content(blobs, manifest["config"]["digest"].removeprefix("sha256:")))
        parts = [content(blobs, layer["digest"].removeprefix("sha256:")) for layer in manifest["layers"]]
        parts.append(json.dumps({**config, "architecture": architecture}).encode())
        for part in parts:
            where = request("POST", f"{repository}/blobs/uploads/").headers["Location"]
            request("PUT", f"{where}{'&' if '?' in where else '?'}digest={digest_of(part)}", part, "application/octet-stream")
        manifest["config"].update(digest=digest_of(parts[-1]), size=len(parts[-1]))
        request("PUT", f"{repository}/manifests/1", json.dumps(manifest).encode(), entry["mediaType"])
        return f"registry:5000/suites/{architecture}:1"

    # --- reports ----------------------------------------------------------------------------------

    def tell_facts(self):
        tell_fact("kernel", os.uname().release)
        tell_fact("cgroup", "v2" if os.path.exists(f"{CGROUPS}/cgroup.controllers") else "v1")
        tell_fact("store", kind_of_store())
        tell_fact("Slurm", self.root(NODE, "slurmd", "-V").good().split()[-1])
        tell_fact("layers served by", "none: has no mount_setattr" if is_too_old() else self.who_serves())

    def who_serves(self):
        layers, by_fuse = self.layers_served()
        copies = " copies" if is_as_before_5_19() else ""
        return {0: f"the kernel, {self.form()}{copies}", layers: "FUSE"}.get(by_fuse, f"the kernel, {by_fuse} of {layers} by FUSE")

    def form(self):
        """Returns the format of the layers in the store, which is the same for all."""
        with os.scandir(os.path.join(self.store(NODE), "layers/sha256")) as layers, open(next(layers).path, "rb") as layer:
            return "squashfs" if layer.read(4) == b"hsqs" else "erofs"

    def layers_served(self, *options, **how):
        """Returns the number of layers of a container of alice, and how many of them a FUSE server
        serves."""
        done = self.srun(*options, "--container-verbose", "true", **how)
        found = re.search(r"(\d+) layers \(\d+ shared, (\d+) by FUSE\)", "\n".join(done.messages()))
        expect(done.rc == 0 and found, "it is not said how the layers are served", done)
        return int(found[1]), int(found[2])

    # --- state of the node ------------------------------------------------------------------------

    def pid(self, machine):
        return 1

    def store(self, node):
        return "/var/lib/spank-container"

    def processes(self, node, name=None):
        """Returns the processes with a program, so no kernel threads. Ignores the slurmstepd that
        keeps the common scope, and udev's workers."""
        return [pid for pid in super().processes(node, name) if (line := read(f"/proc/{pid}/cmdline").split("\0")) != [""]
                and "infinity" not in line and "udevd" not in line[0] and not line[0].startswith("(")]

    def strangers(self, node):
        """Returns processes in a job's cgroups other than Slurm's own."""
        return [pid for pid in self.processes(node) if re.search(r"/job_\d+/", read(f"/proc/{pid}/cgroup")) and name_of(pid) != "slurmstepd"]

    def cgroups(self):
        """Returns the cgroups of jobs and steps."""
        return sorted(path.removeprefix(CGROUPS) for path, _, _ in os.walk(CGROUPS) if re.search(r"/job_\d+", path))

    def recover(self):
        if hasattr(self, "quiet"):
            super().recover()
        else:  # it did not start at all
            say(indent(self.root(NODE, "sh", "-c", f"sinfo -R; tail -n 25 {SLURMD_LOG} {SLURMCTLD_LOG}; systemctl --no-pager --failed").out))

    def traces(self, node):
        return {**super().traces(node), "cgroups": self.cgroups()}


def digest_of(part):
    return "sha256:" + hashlib.sha256(part).hexdigest()


def content(directory, name):
    with open(os.path.join(directory, name), "rb") as file:
        return file.read()


def request(method, url, data=b"", media_type=None):
    headers = {"Content-Type": media_type} if media_type else {}
    with urllib.request.urlopen(urllib.request.Request(url, data=data, method=method, headers=headers), timeout=60) as answer:
        return answer


def answers(url):
    try:
        urllib.request.urlopen(url, timeout=10)
    except urllib.error.HTTPError:
        return True  # there is nothing of that name yet
    except OSError:
        return False
    return True
