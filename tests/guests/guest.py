"""The guest as a cluster of one node: this machine is the node and the head, and Slurm's daemons are units of systemd."""
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
PACKAGE = "/opt/spank-container/spank-container.deb"
MEMORY = "/var/lib/guest-memory.json"
STORE_DISK = "/dev/vdc"
LAYOUTS = "/opt/spank-container/images"
REGISTRY = "http://registry:5000/v2"
CGROUPS = "/sys/fs/cgroup"
LOCAL_MAJOR = 240  # of devices without a driver: opening one fails with ENXIO, or with EPERM if the job has it not
SLURMCTLD_LOG = "/var/log/slurm/slurmctld.log"
SLURMD_LOG = "/var/log/slurm/slurmd.log"
AS_ALICE = ("setpriv", "--reuid=alice", "--regid=alice", "--init-groups", "env", "-i", "-C", "/home/alice", "HOME=/home/alice",
            "USER=alice", "LOGNAME=alice", "SHELL=/bin/bash", "PATH=/usr/local/bin:/usr/bin:/bin")


def is_too_old():
    """Whether this kernel has not what a container needs."""
    return tuple(map(int, os.uname().release.split(".")[:2])) < (5, 12)


def kind_of_store():
    """The file system, as the host has chosen."""
    return re.search(r"guest\.store=(\w+)", read("/proc/cmdline"))[1]


def is_as_before_5_19():
    """Whether the kernel was started without erofs."""
    return "module_blacklist=erofs" in read("/proc/cmdline")


def read(path):
    """Empty when it is gone."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


class Guest(Cluster):
    """What differs from a cluster in namespaces: how a command gets there, and what counts as a trace."""

    def __init__(self):
        self.nodes, self.home, self.etc, self.is_ours = (NODE,), "/home", "/etc", False
        self.kernel = tuple(map(int, os.uname().release.split(".")[:2]))
        self.memory = json.loads(read(MEMORY) or "{}")  # what is known when the power comes back
        self.is_back = bool(self.memory)

    def __enter__(self):
        if not self.is_back:
            with open("/etc/os-release", "a") as file:
                file.write("VARIANT_ID=guest\n")
        self.mount_store()
        for number in range(2):
            os.mknod(f"/dev/card{number}", stat.S_IFCHR | 0o666, os.makedev(LOCAL_MAJOR, number))
        self.root(NODE, "ip", "address", "add", "10.77.0.1/32", "dev", "lo").good()  # getaddrinfo() wants one that is not 127.0.0.1
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
        """On a file system of its own, before anything of ours is there, as spank-container-operation(7) says."""
        if kind_of_store() != "ext4":
            os.makedirs(self.store(NODE), exist_ok=True)
        if kind_of_store() == "tmpfs":
            self.root(NODE, "mount", "-t", "tmpfs", "-o", "size=600M,mode=755,nr_inodes=1m", "tmpfs", self.store(NODE)).good()
        elif kind_of_store() == "xfs":
            if not self.is_back:
                self.root(NODE, "mkfs.xfs", "-q", STORE_DISK).good()
            self.root(NODE, "mount", "-o", "prjquota", STORE_DISK, self.store(NODE)).good()

    def install(self):
        self.dpkg("--install", PACKAGE)
        with open("/etc/slurm/plugstack.conf", "a") as file:
            file.write("required spank_container.so\n")
        self.root(NODE, "useradd", "--uid", "2001", "--create-home", "--shell", "/bin/bash", "alice").good()
        for directory in ("/var/lib/slurm/slurmctld", "/var/lib/slurm/slurmd", "/var/log/slurm"):
            self.root(NODE, "install", "-d", "-o", "slurm", directory).good()

    # --- the power -------------------------------------------------------------------------------------------------

    def lose_power(self):
        """Does not return. The host waits for this line; and nobody writes to a disk between it and the end."""
        with open(MEMORY, "w") as file:
            json.dump(self.memory, file)
            file.flush()
            os.fsync(file.fileno())
        say(POWER_GOES)
        time.sleep(600)

    def resume(self):
        """Slurm keeps a node that has started again unexpectedly out of service until root says otherwise, and its jobs."""
        self.root(NODE, "scancel", "--user=alice")

        def is_idle():
            self.root(NODE, "scontrol", "update", f"nodename={NODE}", "state=resume")
            return all(state.endswith(" idle") for state in self.states())

        await_true(is_idle, 240, "the node does not come back")

    def settle(self):
        """What a first use leaves on purpose is there."""
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
        """How busy the host is no guest can see. That an end is a matter of seconds is shown elsewhere."""
        super().must_be_quiet(4 * within, store)

    def must_be_well(self):
        await_true(lambda: not self.inquirer.ask("squeue -h"), 60, "jobs are left")
        super().must_be_well()

    def dpkg(self, *argv):
        """What it said."""
        done = self.enter(NODE, "root", "sh", "-c", 'exec dpkg "$@" 2>&1', "sh", *argv).end(300)
        expect(done.rc == 0, f"dpkg {' '.join(argv)} failed", done)
        return done.out

    def push_layout(self, image):
        """Returns the image's name. By hand: skopeo would be a large part of the disk."""
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
        """The same, for another one, as its configuration says. Returns its name."""
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

    # --- what it tells of itself -----------------------------------------------------------------------------------

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
        """Of the layers in the store; all have the same."""
        with os.scandir(os.path.join(self.store(NODE), "layers/sha256")) as layers, open(next(layers).path, "rb") as layer:
            return "squashfs" if layer.read(4) == b"hsqs" else "erofs"

    def layers_served(self, *options, **how):
        """Of a container of alice: how many layers it has, and how many of them a server of FUSE serves."""
        done = self.srun(*options, "--container-verbose", "true", **how)
        found = re.search(r"(\d+) layers \(\d+ shared, (\d+) by FUSE\)", "\n".join(done.messages()))
        expect(done.rc == 0 and found, "it is not said how the layers are served", done)
        return int(found[1]), int(found[2])

    # --- what is on the node -------------------------------------------------------------------------------------

    def pid(self, machine):
        return 1

    def store(self, node):
        return "/var/lib/spank-container"

    def processes(self, node, name=None):
        """Those of programs, which threads of the kernel have not. One slurmstepd keeps the scope of all, for ever; udev's come and go."""
        return [pid for pid in super().processes(node, name) if (line := read(f"/proc/{pid}/cmdline").split("\0")) != [""]
                and "infinity" not in line and "udevd" not in line[0] and not line[0].startswith("(")]

    def strangers(self, node):
        """What runs in a job's cgroups, but not Slurm's own."""
        return [pid for pid in self.processes(node) if re.search(r"/job_\d+/", read(f"/proc/{pid}/cgroup")) and name_of(pid) != "slurmstepd"]

    def cgroups(self):
        """Those of jobs and steps."""
        return sorted(path.removeprefix(CGROUPS) for path, _, _ in os.walk(CGROUPS) if re.search(r"/job_\d+", path))

    def recover(self):
        if hasattr(self, "quiet"):
            super().recover()
        else:  # it did not even start
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
