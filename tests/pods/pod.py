"""A container of runc on a node of the test cluster, as a kubelet makes one for a pod with slurmd."""
import contextlib
import json
import os
import re

from command import await_true
from harness import Failed

# Capabilities that containerd grants without a securityContext.
DEFAULT_CAPABILITIES = ["CAP_" + name for name in (
    "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP", "NET_BIND_SERVICE",
    "SYS_CHROOT", "KILL", "AUDIT_WRITE")]
MASKED = ["/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
          "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"]
READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
RUNC = ("runc", "--root", "/run/pods")
BASE = "/var/tmp/pod"  # on the node: a directory on the disk
STORE = "/var/lib/spank-container"

# The image has a skeleton. The programs are the node's, with the product.
SKELETON = f"""mkdir -p {BASE}/image {BASE}/up {BASE}/work {BASE}/root {BASE}/volume
cd {BASE}/image
mkdir -p usr root mnt opt proc dev sys run home tmp var/tmp var/lib/slurm var/log var/spool .{STORE}
chmod 1777 tmp var/tmp
cp -a /bin /sbin /lib /lib64 .
cp -a /etc .
ln -sf ../run var/run
mount -t overlay -o lowerdir={BASE}/image,upperdir={BASE}/up,workdir={BASE}/work pod {BASE}/root
"""

# PID 1: a shell, which collects what daemons leave, as the init of a pod does.
INIT = """#!/bin/bash
install -d -m 755 -o munge -g munge /run/munge
install -d -m 711 -o munge -g munge /var/lib/munge
install -d -m 700 -o munge -g munge /var/log/munge
install -d /var/spool/slurmd /var/log/slurm
setpriv --reuid munge --regid munge --clear-groups munged
slurmd -D &
wait
"""


def all_capabilities():
    """Those of this machine, which may be a container."""
    bounding = int(re.search(r"CapBnd:\s*(\w+)", open("/proc/self/status").read())[1], 16)
    names = """CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
        NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT
        SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG
        WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE""".split()
    return ["CAP_" + name for number, name in enumerate(names) if bounding >> number & 1]


class Level:
    """A securityContext: privileged, capabilities beside the default ones, whether the seccomp profile is the default one,
    devices of a device plugin, and how many loop devices /dev has in a privileged one."""

    def __init__(self, name, privileged=False, capabilities=(), confined=False, devices=(), loops=256):
        self.name, self.privileged, self.capabilities = name, privileged, capabilities
        self.confined, self.devices, self.loops = confined, devices, loops


LEVELS = {level.name: level for level in (
    Level("privileged", privileged=True),
    Level("no_loop_nodes", privileged=True, loops=0),
    Level("least", capabilities=("CAP_SYS_ADMIN",), devices=("fuse",)),
    Level("no_fuse", capabilities=("CAP_SYS_ADMIN",)),
    Level("none", confined=True),
)}
# Edits of slurm.conf for a pod whose cgroups are read-only.
NO_CGROUPS = ("s,proctrack/cgroup,proctrack/linuxproc,; s,task/cgroup,task/none,",)


def seccomp():
    """The part of containerd's default profile that matters here: without CAP_SYS_ADMIN no namespaces and no mounts."""
    refused = ["mount", "umount2", "pivot_root", "setns", "unshare", "fsopen", "fsconfig", "fsmount", "fspick", "open_tree", "move_mount",
               "mount_setattr", "bpf", "perf_event_open", "quotactl", "syslog", "sethostname", "setdomainname"]
    clone = {"index": 0, "value": 0x7E020000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    return {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"], "syscalls": [
        {"names": refused, "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
        *({"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1,
           "args": [{**clone, "value": bit, "valueTwo": bit}]} for bit in (1 << 17, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30, 1 << 25))]}


def mount(destination, kind, *options, source=None):
    return {"destination": destination, "type": kind, "source": source or kind, "options": list(options)}


def mounts_of(level, volume):
    privileged = level.privileged
    made = [mount("/proc", "proc"),
            mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
            mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
            mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
            mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),
            mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "rw" if privileged else "ro"),
            mount("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev", "relatime", "rw" if privileged else "ro"),
            mount("/run", "tmpfs", "nosuid", "nodev", "mode=755"),
            mount("/usr", "bind", "rbind", "ro", source="/usr"),
            mount("/home", "bind", "rbind", source="/home")]
    if volume == "memory":
        made.append(mount(STORE, "tmpfs", "mode=777", "size=2g"))
    elif volume:
        made.append(mount(STORE, "bind", "rbind", "rw", source=volume))
    return made


def devices_of(level):
    if not level.privileged:
        return [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o666, "uid": 0, "gid": 0}
                for name in level.devices if name == "fuse"]
    loops = [{"path": f"/dev/loop{n}", "type": "b", "major": 7, "minor": n, "fileMode": 0o660, "uid": 0, "gid": 6} for n in range(level.loops)]
    return [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o666, "uid": 0, "gid": 0},
            {"path": "/dev/loop-control", "type": "c", "major": 10, "minor": 237, "fileMode": 0o660, "uid": 0, "gid": 6}, *loops]


def configuration(level, volume, rootfs):
    """The bundle's config.json."""
    capabilities = all_capabilities() if level.privileged else sorted({*DEFAULT_CAPABILITIES, *level.capabilities})
    devices = devices_of(level)
    rules = [{"allow": True, "access": "rwm"}] if level.privileged else [{"allow": False, "access": "rwm"}] + [
        {"allow": True, "type": one["type"], "major": one["major"], "minor": one["minor"], "access": "rwm"} for one in devices]
    linux = {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")] + ([] if level.privileged else [{"type": "cgroup"}]),
             "resources": {"devices": rules}, "devices": devices, "cgroupsPath": "/pod"}
    if not level.privileged:
        linux["maskedPaths"], linux["readonlyPaths"] = MASKED, READ_ONLY
        if level.confined:
            linux["seccomp"] = seccomp()
    return {"ociVersion": "1.0.2", "hostname": "node01", "root": {"path": rootfs}, "mounts": mounts_of(level, volume), "linux": linux,
            "process": {"user": {"uid": 0, "gid": 0}, "args": ["/pod-init"], "cwd": "/", "noNewPrivileges": False,
                        "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "KUBERNETES_SERVICE_HOST=10.96.0.1"],
                        "capabilities": {kind: capabilities for kind in ("bounding", "effective", "permitted")}}}


class Pod:
    """`slurm`: edits of slurm.conf in the pod, as for sed(1)."""

    def __init__(self, cluster, level, volume="disk", config="", slurm=()):
        self.cluster, self.level, self.volume = cluster, level, volume
        self.config, self.slurm = config, slurm

    def sh(self, script, timeout=60):
        """On the node, outside the pod."""
        return self.cluster.enter("node01", "root", "sh", "-euc", script).end(timeout)

    def execute(self, *argv, timeout=60):
        return self.cluster.enter("node01", "root", *RUNC, "exec", "pod", *argv).end(timeout)

    def _volume(self):
        return {"disk": f"{BASE}/volume", "memory": "memory", None: None}.get(self.volume, self.volume)

    def outside(self):
        """Mounts on the node."""
        return [line.split(" ", 3)[3] for line in self.sh("cat /proc/1/mountinfo").good().splitlines()]

    def start_or_remove(self):
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def start(self, within=30, resume=False):
        """The root is an overlay on the node's own, as that of a container of containerd."""
        root, inside = f"{BASE}/root", self.cluster.inside("node01", BASE)
        self.sh(SKELETON).good()
        for edit in self.slurm:
            self.sh(f"sed -i '{edit}' {root}/etc/slurm/slurm.conf {root}/etc/slurm/cgroup.conf").good()
        with open(f"{inside}/root/pod-init", "w") as file:
            file.write(INIT)
        os.chmod(f"{inside}/root/pod-init", 0o755)
        with open(f"{inside}/root/etc/spank-container/config.toml", "r+") as file:
            before = file.read()
            file.seek(0)
            file.write(self.config + before)
        with open(f"{inside}/config.json", "w") as file:
            json.dump(configuration(self.level, self._volume(), root), file)
        self.sh(f"{' '.join(RUNC)} run --detach --bundle {BASE} pod </dev/null >{BASE}/log 2>&1 || {{ cat {BASE}/log >&2; exit 1; }}").good()
        if resume:
            self.cluster.run("scontrol", "update", "nodename=node01", "state=resume", user="root").good()
        self.await_idle(within)
        return self

    def await_idle(self, timeout=30):
        try:
            await_true(self.is_idle, timeout, "")
        except Failed:
            why = self.cluster.run("scontrol", "show", "node", "node01").out + self.cluster.run("squeue").out
            raise Failed("the node of the pod does not become idle\n" + why + self.log()) from None

    def log(self):
        return self.sh(f"cat {BASE}/log; tail -n 30 {BASE}/root/var/log/slurm/slurmd.log || true").out

    def is_idle(self):
        return self.cluster.states() == ["node01 idle"]

    def init(self):
        """Its PID in the node's namespace."""
        return json.loads(self.sh(f"{' '.join(RUNC)} state pod").good())["pid"]

    def vanish(self):
        """Kills PID 1 and with it all processes of the pod, as an eviction does after its grace period."""
        self.sh(f"kill -KILL {self.init()}; until {' '.join(RUNC)} delete pod; do sleep 0.05; done 2>/dev/null; "
                f"umount {BASE}/root; rm -rf {BASE}/image {BASE}/up {BASE}/work {BASE}/config.json").good()

    def __enter__(self):
        return self.start_or_remove()

    def __exit__(self, *_):
        self.cluster.run("scancel", "--me")
        with contextlib.suppress(Failed):
            await_true(self.is_idle, 10, "")
        self.sh(f"{' '.join(RUNC)} delete --force pod || true; umount {BASE}/root || true; rm -rf --one-file-system {BASE}")
