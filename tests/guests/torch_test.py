"""Measures `import torch` from the store's layers, and in the same container from a copy of
/usr/lib on the node's ext4. This separates a slower kernel from slower layers. Runs only if named,
as the pull alone takes minutes."""
import os
import re
import time

from guest import LAYOUTS, NODE
from harness import equal, expect, test
from report import tell_figure

LAYOUT = f"{LAYOUTS}/pytorch"
IMAGE = f"oci:{LAYOUT}"
COPY = "/home/alice/lib"
PLACES = {"layers": "in a container", "copy": "from the node's ext4"}

# Alternate, so that other load of this machine affects both. The job keeps the layers mounted
# between its steps.
IMPORTS = f"""
    imports='time python3 -B -c "import torch"'
    for round in 0 1 2 3; do
        srun --container-image={IMAGE} bash -c "TIMEFORMAT='layers %R %U %S'; $imports" || exit 5
        srun --container-image={IMAGE} --container-mounts={COPY}:/usr/lib bash -c "TIMEFORMAT='copy %R %U %S'; $imports" || exit 5
    done"""


def is_there():
    """The host provides the image if this suite is named."""
    return os.path.isdir(LAYOUT)


@test
def pytorch_import_is_measured(guest):
    began = time.monotonic()
    layers, by_fuse = guest.layers_served("--mem=1400", image=IMAGE, timeout=1800)
    tell_figure("the pull of PyTorch's image", [time.monotonic() - began])
    equal(by_fuse, 0, f"of {layers} layers by FUSE")
    guest.bash(f"cp -a /usr/lib {COPY}", "--container-mounts=/home/alice", image=IMAGE, timeout=900).good()
    try:
        guest.root(NODE, "sh", "-c", "sync; echo 3 >/proc/sys/vm/drop_caches").good()
        done = guest.run("salloc", "-n1", "--mem=1400", "bash", "-c", IMPORTS, timeout=1800)
        expect(done.rc == 0, "a step failed", done)
    finally:
        guest.run("rm", "-r", COPY, timeout=300)
    for name, where in PLACES.items():
        found = re.findall(rf"^{name} ([0-9.]+) ([0-9.]+) ([0-9.]+)$", done.err, re.M)
        equal(len(found), 4, f"imports {where}", done)
        real, user, system = (list(map(float, column)) for column in zip(*found))
        tell_figure(f"import torch at first, {where}", real[:1])
        tell_figure(f"import torch again, {where}", real[1:])
        tell_figure(f"import torch again, {where}, user", user[1:])
        tell_figure(f"import torch again, {where}, system", system[1:])
    guest.must_be_quiet(within=10)
