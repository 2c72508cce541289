"""Real libfabric, UCX and rdma-core of the node, given to images of other releases by fabric_libraries: programs of Debian's packages
say, and the loader with LD_DEBUG shows, whose they run with. The adapter is fake; libibverbs and its provider take it for real."""
import os
import re
from dataclasses import dataclass

LIBRARIES = f"/usr/lib/{os.uname().machine}-linux-gnu"
NAMES = ("libfabric.so.1", "libucp.so.0", "libuct.so.0", "libucs.so.0", "libucm.so.0", "libibverbs.so.1", "libibverbs/libmlx5-rdmav34.so")
OURS = "/usr/lib/spank-container/fabric/"

# The files that libibverbs reads of an adapter (rdma-core, libibverbs/ibdev_sysfs.c), here of a ConnectX-6.
ADAPTER = """
mount -t tmpfs -o mode=755 fake-class /sys/class
verbs=/sys/class/infiniband_verbs adapter=/sys/class/infiniband/mlx5_0
mkdir -p $verbs/uverbs0 $adapter/ports/1 $adapter/device /dev/infiniband
echo 6 >$verbs/abi_version
echo mlx5_0 >$verbs/uverbs0/ibdev
echo 1 >$verbs/uverbs0/abi_version
echo 1:3 >$verbs/uverbs0/dev
echo pci:v000015B3d0000101Bsv000015B3sd00000007bc02sc07i00 >$adapter/device/modalias
echo '1: CA' >$adapter/node_type
echo 0c42:a103:0065:4321 >$adapter/node_guid
echo InfiniBand >$adapter/ports/1/link_layer
ln -s ../../bus/pci/drivers/mlx5_core $adapter/device/driver
mknod -m 666 /dev/infiniband/uverbs0 c 1 3
"""


@dataclass(frozen=True)
class Program:
    words: str
    says: str      # a pattern for what it prints
    libraries: tuple  # that it has to load


PROGRAMS = (
    Program("fi_info --version", r"libfabric: (\S+)", ("libfabric.so.1",)),
    Program("ucx_info -v", r"(?:Library version: |# Version |# UCT version=)(\S+)", ("libucp.so.0", "libucs.so.0")),
    Program("ibv_devices", r"mlx5_0\s+(0c42a10300654321)", ("libibverbs.so.1", "libmlx5-rdmav34.so")),
)


@dataclass(frozen=True)
class Outcome:
    """Of a program in an image: with the node's libraries, or with the image's own and these words as the reason."""

    nodes: bool
    words: str = ""


OLD_IMAGE = "but the image's C library goes up to 2.30: it"
OUTCOMES = {
    "fabric-debian-11": {program.words: Outcome(False, OLD_IMAGE) for program in PROGRAMS},
    "fabric-debian-12": {program.words: Outcome(True) for program in PROGRAMS},
    # Its libfabric has no need of PSM any more, and its UCX is newer, as --container-explain says.
    "fabric-debian-13": {"fi_info --version": Outcome(False, "the node's libfabric.so.1 needs libpsm_infinipath.so.1, which neither the image"),
                         "ucx_info -v": Outcome(False, "it and 4 more are left out"),
                         "ibv_devices": Outcome(True)},
}


def prepare(cluster):
    names = ", ".join(f'"{LIBRARIES}/{name}"' for name in NAMES)
    cluster.good("exec", "head", "sh", "-euc", f"sed -i '1i fabric_libraries = [{names}]' /etc/spank-container/config.toml")
    cluster.good("exec", "node01", "sh", "-euc", ADAPTER)


def run(cluster, image, program):
    """Runs two tasks: a single one has no peer and loads no transport."""
    script = f"test $SLURM_PROCID != 0 || LD_DEBUG=libs {program.words}"
    return cluster.srun("-w", "node01", "-n2", f"--container-image={image}", "sh", "-c", script)


def loaded(done):
    """{"libfabric.so.1": path} of what the loader says that it initialised."""
    paths = re.findall(r"calling init: (\S+)", done.stderr)
    return {os.path.basename(path): path for path in paths}


def judge(done, image, program):
    """(why it is wrong or "", what was seen)."""
    outcome, paths = OUTCOMES[image][program.words], loaded(done)
    said = re.search(program.says, done.stdout)
    if done.returncode != 0 or said is None:
        return f"exit status {done.returncode}, output {done.stdout.strip()[-200:]!r}", ""
    seen = f"{said[1]} of " + ("the node" if all(paths.get(name, "").startswith(OURS) for name in program.libraries) else "the image")
    for name in program.libraries:
        if name in paths and paths[name].startswith(OURS) != outcome.nodes:
            return f"loaded {paths[name]}", seen
        if name not in paths and outcome.nodes:
            return f"{name} was not loaded", seen
    if outcome.words and outcome.words not in done.stderr:
        return f"the user is not told {outcome.words!r}", seen
    return "", seen
