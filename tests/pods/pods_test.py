"""Containers in pods with the securityContexts of pod.LEVELS, and with volumes of several kinds."""
import contextlib
import os
import re

import local_files
from command import await_true
from harness import add, equal, expect
from images import Image
from loop_files import loop_backing
from pod import BASE, LEVELS, NO_CGROUPS, Pod

SLOW = Image("pods/slow", [[("slow", os.urandom(4 << 20))]])
WRITES = ("sh", "-euc", "id -un; echo kept >/root-of-image; cat /root-of-image")


def pod_of(cluster, level, **how):
    """A level without a writable cgroup view needs other plugins of Slurm."""
    return Pod(cluster, LEVELS[level], slurm=() if LEVELS[level].privileged else NO_CGROUPS, **how)


def doctor(pod):
    """Returns the command and its findings, verdict and text by name."""
    done = pod.execute("scontainer", "doctor", "--node")
    return done, {what: (verdict, text) for verdict, what, text in re.findall(r"^(\w+) +([^:\n]+): (.*)$", done.out + done.err, re.MULTILINE)}


def last_start(pod):
    """The fields of the newest start in slurmd's log."""
    lines = [line for line in pod.sh(f"cat {BASE}/root/var/log/slurm/slurmd.log").out.splitlines() if "spank-container: start job=" in line]
    return dict(re.findall(r"(\w+)=(\S+)", lines[-1]))


def listing(pod):
    """Paths in the pod's volume."""
    return sorted(pod.sh(f"cd {BASE}/volume && find . -mindepth 1").good().splitlines())


def loops_of(pod):
    """Loop devices of this machine over files of the pod's volume."""
    files = set(pod.sh(f"find {BASE}/volume -type f -exec stat -c %i {{}} +").good().splitlines())
    device = os.stat(pod.cluster.inside("node01", BASE)).st_dev
    found = [(name, loop_backing(f"/dev/{name}")) for name in os.listdir("/sys/block")
             if name.startswith("loop") and os.path.exists(f"/sys/block/{name}/loop")]
    return [name for name, back in found if back and back[0] == device and str(back[1]) in files]


def refused(pod, *words, image="base", options=()):
    """One clear error, and the node stays in order."""
    done = pod.cluster.srun(*options, "true", image=image)
    equal((done.rc, len(done.errors())), (1, 1), "exit code, and number of errors", done)
    for word in words:
        expect(word in done.errors()[0], f"the error has no {word!r}", done)
    pod.await_idle()


# --- rows of every level that can start containers ---

def registry_image_starts(pod):
    pod.cluster.srun(*WRITES).good("alice\nkept")
    served = last_start(pod)
    wanted = "0" if pod.level.privileged else served["layers"]
    equal(served["fuse"], wanted, f"layers of {served['layers']} served by FUSE")


def squashfs_file_starts(pod):
    pod.cluster.srun(*WRITES, image=local_files.squashfs(pod.cluster)).good("alice\nkept")
    equal(last_start(pod)["fuse"], "1", "layers served by FUSE")


def remapped_root_starts(pod):
    pod.cluster.srun("--container-remap-root", *WRITES).good("root\nkept")


def pid_namespace_has_its_own_proc(pod):
    pod.cluster.srun("--container-unshare=pid", "sh", "-c", "test $(readlink /proc/self) -lt 20 && echo own").good("own")


def named_container_keeps_files(pod):
    pod.cluster.srun("--container-name=pod", *WRITES).good("alice\nkept")
    pod.cluster.srun("--container-name=pod", "cat", "/root-of-image").good("kept")


def scancel_ends_the_step(pod):
    running = pod.cluster.start_srun("sh", "-c", "echo ready; sleep 300")
    running.await_text("ready")
    pod.cluster.run("scancel", "--me").good()
    running.end(20)
    pod.await_idle()


def doctor_finds_no_fault(pod):
    done, found = doctor(pod)
    equal(done.rc, 0, "exit code", done)
    equal(found["machine"], ("ok", "a pod of Kubernetes"), "what the doctor reports of the machine", done)
    done = pod.execute("env", "-u", "KUBERNETES_SERVICE_HOST", "scontainer", "doctor", "--node")
    expect("machine: a container" in done.out, "the doctor needs a variable of Kubernetes", done)
    expect(("FUSE serves layers" in found["loop devices"][1]) != pod.level.privileged, "wrong method of reading layers", done)


WORKING = (registry_image_starts, squashfs_file_starts, remapped_root_starts, pid_namespace_has_its_own_proc,
           named_container_keeps_files, scancel_ends_the_step, doctor_finds_no_fault)


def pod_vanishes_in_a_pull(cluster, level):
    """Its volume outlives it: the next pod finds a store that is in order."""
    name, (digest,) = cluster.faulty.publish(SLOW)
    with pod_of(cluster, level) as pod:
        cluster.srun("true").good()
        pod.await_idle()
        before, mounts = listing(pod), pod.outside()
        gate = cluster.faulty.hold(digest)
        sleeper = cluster.start_srun("sh", "-c", "echo ready; sleep 300")
        sleeper.await_text("ready")
        cluster.faulty.requests.clear()
        pull = cluster.start_srun("true", image=name)
        await_true(lambda: cluster.faulty.requests[f"/v2/pods/slow/blobs/{digest}"] > 0, 15, "the pull does not begin")
        equal(bool(loops_of(pod)), pod.level.privileged, "whether loop devices serve the layers of the running container")
        pod.vanish()
        # slurm-operator does this, too. Otherwise slurmctld keeps jobs of a node that has not rebooted, with and without containers.
        cluster.run("scontrol", "update", "nodename=node01", "state=down", "reason=pod is gone", user="root").good()
        gate.set()
        del cluster.faulty.slow[digest]
        equal((loops_of(pod), pod.outside()), ([], [line for line in mounts if BASE not in line]), "loop devices and mounts on the node")
        pod.start(within=60, resume=True)
        for one in (sleeper, pull):
            one.end(60)
        left = [path for path in listing(pod) if path not in before]
        equal(left, [], "what the pull has left in the store")
        cluster.srun("true").good()
        equal(last_start(pod)["pulled"], "0", "pulls of the image that the volume has")
        cluster.srun("--container-mounts=/usr,/lib,/lib64,/bin", "cat", "/slow", image=name, timeout=60)
        expect(any("/layers/sha256/" in path for path in listing(pod) if path not in before), "the store has no new layer")


for level in ("privileged", "least"):
    def in_pod(case, level=level):
        def run(cluster):
            with shared_pod(cluster, level) as pod:
                case(pod)
                pod.await_idle()
        return run
    for case in WORKING:
        add(level, case.__name__, in_pod(case))
    add(level, "pod_vanishes_in_a_pull", lambda cluster, level=level: (shared_pod.end(), pod_vanishes_in_a_pull(cluster, level))[1])


class SharedPod:
    """One pod for the successive tests of a level."""

    def __init__(self):
        self.pod = self.level = None

    @contextlib.contextmanager
    def __call__(self, cluster, level):
        if self.level != level:
            self.end()
            self.pod, self.level = pod_of(cluster, level).start_or_remove(), level
        yield self.pod

    def end(self):
        if self.pod:
            self.pod.__exit__()
        self.pod = self.level = None


shared_pod = SharedPod()


# --- pods that lack something ---

def without_privilege_start_is_refused(cluster):
    with pod_of(cluster, "none") as pod:
        equal(cluster.run("srun", "hostname").good(), "node01", "what a task without container prints")
        for image in ("base", local_files.squashfs(cluster)):
            refused(pod, "SYS_ADMIN", image=image)


def without_privilege_doctor_names_the_fields(cluster):
    with pod_of(cluster, "none") as pod:
        done, found = doctor(pod)
        expect(done.rc not in (0, 3), "the doctor finds no fault", done)
        for what, cure in (("capabilities", "add: [SYS_ADMIN]"), ("user namespaces", "seccompProfile: {type: Unconfined}"),
                           ("FUSE", "device plugin"), ("loop devices", "privileged: true")):
            expect(what in found and found[what][0] in ("failed", "warning") and cure in found[what][1], f"no cure for {what}", done)
        expect("modprobe" not in done.out + done.err, "a command of the host for a pod", done)


def without_fuse_device_start_is_refused(cluster):
    with pod_of(cluster, "no_fuse") as pod:
        refused(pod, "/dev/fuse")
        refused(pod, "/dev/fuse", image=local_files.squashfs(cluster))
        done, found = doctor(pod)
        equal((found["loop devices"][0], found["FUSE"][0]), ("failed", "warning"), "what the doctor reports", done)


def without_loop_nodes_fuse_serves_layers(cluster):
    """/dev of a privileged pod has the devices of the pod's start. The kernel makes more when they are used up."""
    with pod_of(cluster, "no_loop_nodes") as pod:
        cluster.srun(*WRITES).good("alice\nkept")
        served = last_start(pod)
        equal(served["fuse"], served["layers"], "layers served by FUSE")
        done, found = doctor(pod)
        expect("0 devices, FUSE serves others" in found["loop devices"][1], "wrong number of loop devices", done)


for case in (without_loop_nodes_fuse_serves_layers, without_privilege_start_is_refused, without_privilege_doctor_names_the_fields, without_fuse_device_start_is_refused):
    add("lacking", case.__name__, lambda cluster, case=case: (shared_pod.end(), case(cluster))[1])


# --- volumes of the store ---

def store_in_memory(cluster, level):
    with pod_of(cluster, level, volume="memory") as pod:
        registry_image_starts(pod)
        named_container_keeps_files(pod)
        pod.await_idle()
        equal(doctor(pod)[0].rc, 0, "exit code of the doctor")


def store_on_the_pods_root(cluster, level):
    with pod_of(cluster, level, volume=None) as pod:
        registry_image_starts(pod)
        refused(pod, "the store must be on a local file system", options=("--container-name=pod",))
        done, found = doctor(pod)
        verdict, text = found["store's volume"]
        expect(verdict == "warning" and "emptyDir" in text, "no warning of the store's place", done)


for level in ("privileged", "least"):
    for case in (store_in_memory, store_on_the_pods_root):
        add("volumes", f"{case.__name__}_of_{level}", lambda cluster, case=case, level=level: (shared_pod.end(), case(cluster, level))[1])
