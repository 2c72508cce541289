"""The fabric: information for the job, NCCL's settings, the node's libraries. The adapters are
fake: files in place of the kernel's, and device nodes of /dev/null. Limits, /dev/shm and the
loader's results are real."""
import os
import resource
import subprocess
import tempfile

from cluster import NODES
from images import Image
from harness import equal, expect, test
from site_files import Files, rules
from outcomes import outcome

BASE = "registry:5000/suites/base:1"
TWO_BY_TWO = ("-N2", "--ntasks-per-node=2")
ADAPTER = """
mount -t tmpfs -o mode=755 fake-class /sys/class
mkdir -p /sys/class/infiniband/mlx5_0/ports/1 /sys/class/infiniband/mlx5_0/device /sys/class/infiniband_verbs/uverbs0 /dev/infiniband
ln -s ../../bus/pci/drivers/mlx5_core /sys/class/infiniband/mlx5_0/device/driver
echo InfiniBand >/sys/class/infiniband/mlx5_0/ports/1/link_layer
echo mlx5_0 >/sys/class/infiniband_verbs/uverbs0/ibdev
mknod -m 666 /dev/infiniband/uverbs0 c 1 3
"""
NO_ADAPTER = "umount /sys/class; rm -rf /dev/infiniband"


class FakeAdapter:
    """A fake adapter on each node."""

    def __init__(self, cluster):
        self.cluster = cluster

    def __enter__(self):
        for node in NODES:
            self.cluster.root(node, "sh", "-euc", ADAPTER).good()

    def __exit__(self, *_):
        for node in NODES:
            self.cluster.root(node, "sh", "-uc", NO_ADAPTER)


def talking(cluster, *libraries):
    """Makes an image that could communicate by NCCL, with empty files as libraries."""
    files = [(name, b"") for name in libraries]
    return cluster.name_of(Image(f"suites/talking-{len(files)}", [[("marker", b""), *files]], {"Env": ["NCCL_VERSION=2", "PATH=/usr/bin:/bin"]},
                                 below=cluster.base_layout))


def with_verbs(cluster):
    return talking(cluster, "usr/lib/x86_64-linux-gnu/libibverbs.so.1", "usr/lib/aarch64-linux-gnu/libibverbs.so.1", "etc/libibverbs.d/mlx5.driver")


ENOUGH = 1 << 30  # bytes that may be locked


class LockedMemory:
    """A soft limit of the nodes' slurmd, which tasks inherit: the cluster does not pass on the
    user's."""

    def __init__(self, cluster, soft):
        self.soft, self.daemons = soft, [pid for node in NODES for pid in cluster.processes(node, "slurmd")]

    def __enter__(self):
        self.before = [resource.prlimit(pid, resource.RLIMIT_MEMLOCK) for pid in self.daemons]
        for pid, (_, hard) in zip(self.daemons, self.before):
            resource.prlimit(pid, resource.RLIMIT_MEMLOCK, (self.soft, hard))

    def __exit__(self, *_):
        for pid, before in zip(self.daemons, self.before):
            resource.prlimit(pid, resource.RLIMIT_MEMLOCK, before)


def hard_limit(cluster):
    """Returns the hard limit of tasks in bytes."""
    said = cluster.bash("ulimit -Hl").good()
    return resource.RLIM_INFINITY if said == "unlimited" else int(said) << 10


def is_enough(limit):
    return limit in (resource.RLIM_INFINITY, -1) or limit >= ENOUGH


def warnings(done):
    return [line for line in done.messages() if line.startswith("warning: ")]


def warned(done, text):
    """Returns the warnings. Only those of the first node are shown."""
    return [line for line in warnings(done) if text in line]


def notes(done, hook):
    return [line.split(": ", 2)[2] for line in done.messages() if line.startswith("hook:") and line.split(": ")[1].strip() == hook]


@test
def fabric_hook_is_silent_on_ordinary_node(cluster):
    done = cluster.srun(*TWO_BY_TWO, "true", image=talking(cluster))
    done.good("")
    equal(warnings(done), [], "warnings", done)
    done = cluster.srun("--container-explain=all", *TWO_BY_TWO, "true", image=talking(cluster))
    equal(notes(done, "99-fabric"), ["TCP: the node has no fabric adapter"], "verdict", done)


@test
def explain_reports_state_of_fake_adapter(cluster):
    with FakeAdapter(cluster):
        good = cluster.srun("--container-explain=all", *TWO_BY_TWO, "true", image=with_verbs(cluster))
        bad = cluster.srun("--container-explain=all", *TWO_BY_TWO, "true")
    expect(notes(good, "99-fabric")[0].startswith("mlx5_0 (InfiniBand); locked memory: "), "not the adapter", good)
    expect(notes(bad, "99-fabric")[0].startswith("TCP: the image has no libibverbs.so.1"), "not what is missing", bad)


@test
def locked_memory_is_raised_for_fake_adapter_only(cluster):
    with LockedMemory(cluster, 64 << 10):
        cluster.bash("ulimit -Sl").good("64")
        with FakeAdapter(cluster):
            cluster.bash("test $(ulimit -Sl) = $(ulimit -Hl) -a $(ulimit -Sl) != 64").good()


@test
@outcome(219, "degraded", "no /dev/infiniband, a small memlock limit")
def low_locked_memory_is_reported_with_hint_for_fake_adapter(cluster):
    limit, image = hard_limit(cluster), with_verbs(cluster)
    with FakeAdapter(cluster):
        done = cluster.srun(*TWO_BY_TWO, "true", image=image)
        alone = cluster.srun("true", image=image)
        silent = cluster.srun(*TWO_BY_TWO, "true")
    told = warned(done, "of memory can be locked, too little for the fabric (hint: set LimitMEMLOCK=infinity for slurmd, and PropagateResourceLimitsExcept=MEMLOCK")
    equal(len(told), 0 if is_enough(limit) else 1, f"warnings with {limit} bytes", done)
    equal(warnings(done), told, "warnings", done)
    equal(warnings(alone), [], "warnings of one task", alone)
    equal(warnings(silent), [], "warnings of an image with nothing to talk by", silent)


@test
def image_without_verbs_is_reported_for_fake_adapter(cluster):
    with FakeAdapter(cluster):
        for _ in range(6):  # independent of which task comes first
            done = cluster.srun(*TWO_BY_TWO, "true", image=talking(cluster))
            equal(len(warned(done, "the fabric is not used: the image has no libibverbs.so.1")), 1, "warnings", done)
        plain = cluster.srun(*TWO_BY_TWO, "true")
    equal(warnings(plain), [], "warnings of an image with nothing to talk by", plain)


@test
def fake_adapter_not_selected_cannot_be_opened(cluster):
    look = "exec 3<>/dev/infiniband/uverbs0 && echo open"
    with FakeAdapter(cluster):
        cluster.bash(look).good("open")
        cluster.bash(look, env=["MELLANOX_VISIBLE_DEVICES=mlx5_0"]).good("open")
        for variable in ("MELLANOX_VISIBLE_DEVICES", "FABRIC_VISIBLE_DEVICES"):
            done = cluster.bash(look, env=[f"{variable}=none"])
            expect(done.rc != 0 and "Permission denied" in done.err, "it can be opened", done)
        done = cluster.srun("true", env=["FABRIC_VISIBLE_DEVICES=mlx5_7"])
        expect(done.rc != 0 and 'FABRIC_VISIBLE_DEVICES: no adapter "mlx5_7" on this node' in done.err, "no refusal", done)
        with rules(cluster, 'fabric = "off"\n'):
            cluster.bash(look, env=["MELLANOX_VISIBLE_DEVICES=none"]).good("open")


@test
def required_fabric_refuses_tcp_between_nodes(cluster):
    with rules(cluster, 'fabric = "require"\n'):
        done = cluster.srun(*TWO_BY_TWO, "true", image=with_verbs(cluster))
        expect(done.rc != 0 and "hook 99-fabric: the site requires the fabric: the node has no fabric adapter" in done.err, "no refusal", done)
        cluster.srun("-N1", "-n2", "true").good("")


@test
@outcome(219, "degraded", "no /dev/infiniband, a small memlock limit")
def required_fabric_names_parts_missing_of_fake_adapter(cluster):
    with rules(cluster, 'fabric = "require"\n'), FakeAdapter(cluster):
        done = cluster.srun(*TWO_BY_TWO, "true")
        expect(done.rc != 0 and "the site requires the fabric: the fabric is not used: the image has no libibverbs.so.1" in done.err, "image", done)
        done = cluster.srun(*TWO_BY_TWO, "true", image=with_verbs(cluster))
        if is_enough(hard_limit(cluster)):
            done.good("")
        else:
            expect(done.rc != 0 and "the site requires the fabric: only " in done.err and "of memory can be locked" in done.err, "memory", done)
        cluster.root("node02", "chmod", "600", "/dev/infiniband/uverbs0").good()
        done = cluster.srun(*TWO_BY_TWO, "true", image=with_verbs(cluster))
        expect(done.rc != 0 and "/dev/infiniband/uverbs0 is not accessible" in done.err, "node", done)


@test
def low_shared_memory_is_reported_once(cluster):
    done = cluster.srun(*TWO_BY_TWO, "--container-mounts=tmpfs:/dev/shm:size=16M", "true")
    equal(len(warned(done, "/dev/shm has 16 MiB, too little")), 1, "warnings", done)
    equal(warnings(cluster.srun("-n1", "--container-mounts=tmpfs:/dev/shm:size=16M", "true")), [], "warnings of one task")


@test
def nccl_settings_of_the_node_are_inside(cluster):
    image = Image("suites/nccl-conf", [[("etc/nccl.conf", b"NCCL_DEBUG=INFO\n")]], {"Env": ["PATH=/usr/bin:/bin"]}, below=cluster.base_layout)
    conf = "NCCL_TOPO_FILE=/etc/site-topology.xml\nNCCL_NET_PLUGIN=none\n"
    amd = "NCCL_NET_PLUGIN=/etc/librccl-net-site.so\n"
    behind = "\n# Of the image. Lines above have precedence.\nNCCL_DEBUG=INFO\n"
    show = "cat /etc/nccl.conf /etc/site-topology.xml /etc/rccl.conf /etc/librccl-net-site.so; env | grep ^NCCL || true"
    with Files(cluster, {"nccl.conf": conf, "rccl.conf": amd, "site-topology.xml": "<system/>\n", "librccl-net-site.so": "fake\n"}):
        cluster.bash(show).good(conf + "<system/>\n" + amd + "fake")
        for options in ((), ("--container-readonly",)):
            cluster.bash(show, *options, image=image).good(conf + behind + "<system/>\n" + amd + "fake")
        done = cluster.srun("--container-explain=all", "true", image=image)
        equal(notes(done, "50-nccl"), ["the node's /etc/nccl.conf is mounted", "also /etc/site-topology.xml, which it names",
                                       "the node's /etc/rccl.conf is mounted", "also /etc/librccl-net-site.so, which it names",
                                       "the image's /etc/nccl.conf is added to it: where both set a variable, the node's counts"], "notes", done)
        with rules(cluster, 'hooks_off = ["50-nccl"]\n'):
            cluster.bash("cat /etc/nccl.conf", image=image).good("NCCL_DEBUG=INFO")
    cluster.bash("cat /etc/nccl.conf", image=image).good("NCCL_DEBUG=INFO")


@test
def sharp_request_sets_its_variables(cluster):
    show = "echo ${NCCL_COLLNET_ENABLE-unset} ${SHARP_COLL_LOCK_ON_COMM_INIT-unset} ${NCCL_SHARP_GROUP_SIZE_THRESH-unset}"
    done = cluster.bash(show, "-N2", "-n2", env=["SLURM_NETWORK=sharp"])
    equal(done.good().splitlines(), ["1 1 2", "1 1 2"], "variables", done)
    cluster.bash(show).good("unset unset unset")


PLUGIN = '#include <unistd.h>\n__attribute__((constructor)) static void loaded(void) { (void)!write(1, SAYS, sizeof SAYS - 1); }\n'


def build_plugin(says, path):
    """Builds a plugin that prints its name when it is loaded."""
    subprocess.run(["cc", "-shared", "-fPIC", f'-DSAYS="{says}\\n"', "-Wl,-soname,libsite-net.so.0", "-x", "c", "-", "-o", path], input=PLUGIN, text=True, check=True)
    with open(path, "rb") as file:
        return file.read()


@test
def site_libraries_are_found_by_image_loader(cluster):
    with tempfile.TemporaryDirectory(dir=cluster.shared) as directory:
        os.chmod(directory, 0o755)
        library = os.path.join(directory, "libsite-net.so")
        of_image = build_plugin("of the image", library)
        build_plugin("loaded", library)
        image = Image("suites/own-plugin", [[("opt/own/libsite-net.so", of_image)]], {"Env": ["LD_LIBRARY_PATH=/opt/own", "PATH=/usr/bin:/bin"]},
                      below=cluster.base_layout)
        cluster.bash("LD_PRELOAD=libsite-net.so /bin/true", image=image).good("of the image")
        path = f"/home/shared/{os.path.basename(directory)}/libsite-net.so"
        with rules(cluster, f'fabric_libraries = ["{path}"]\n'):
            for name in ("libsite-net.so", "libsite-net.so.0"):
                cluster.bash(f"LD_PRELOAD={name} /bin/true").good("loaded")
            cluster.bash("LD_PRELOAD=libsite-net.so /bin/true", image=image).good("loaded")
        with rules(cluster, f'fabric_libraries = ["{path}.missing"]\n'):
            done = cluster.srun("true")
            equal(len(warned(done, "libsite-net.so.missing\" of the node: no such file or directory")), 1, "warnings", done)
        with rules(cluster, f'fabric = "off"\nfabric_libraries = ["{path}"]\n'):
            done = cluster.bash("LD_PRELOAD=libsite-net.so /bin/true")
            expect("loaded" not in done.out, "it is there although the fabric is off", done)
