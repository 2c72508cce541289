"""Examples of spank-container(7), scontainer(1) and README.md, unchanged, submitted by a user. The names of their images lead to test images."""
import contextlib
import os
import re
import shutil
import subprocess

import mpi_test
from cluster import HERE
from frameworks_test import python_layout
from harness import equal, expect, test
from images import Image
from site_files import rules

TOP = os.path.join(HERE, "../../..")
SECONDS = 60
SITE = "".join(f'[registries."{name}"]\nmirrors = ["registry:5000"]\nmirror_tags = true\n' for name in ("docker.io", "nvcr.io", "registry.example.org"))
NETWORK = "the cluster has no network for it"
PASSWORD = "asks for a password"
NOT_RUN = {
    "scontainer login nvcr.io --username='$oauthtoken'": PASSWORD,
    "scontainer login nvcr.io": PASSWORD,
    "scontainer login registry.example.org": PASSWORD,
    "scontainer push ./tools.sqsh registry.example.org/lab/tools:1": NETWORK,
    "scontainer attach 1234": "needs a running job, as the suite attach has them",
    "scontainer run app:1 python3 train.py": "is of the part tool: tests/tool/build_cases.py",
    "scontainer push ./more.tar registry.example.org/lab/debian-make:1": NETWORK,
    "srun -N2 --gpus-per-node=4 --ntasks-per-node=4 --container-image=nvcr.io/nvidia/pytorch:24.05-py3 "
    "--container-mounts=/scratch/data:/data:ro,./src:/src --container-workdir=/src python3 train.py": "a node of the cluster has two GPUs",
    "srun --gpus=2 --container-image=nvcr.io/nvidia/cuda:12.6.2-base-ubuntu24.04 nvidia-smi": "the cluster has no driver",
    "srun --container-image=oras://registry.example.org/lab/app.sif:1 app": NETWORK,
    "srun --container-image=nvcr.io/nvidia/pytorch:24.05-py3 --container-save=oci-layer:./more.tar pip install einops": NETWORK,
    "scontainer build -t app:1 -o app.sif .": "is of the part tool: tests/tool/build_cases.py",
    "srun --container-image=debian:12 --container-mounts=/scratch,./data:/data:ro ls /data": "the nodes have no /scratch",
}
NAMES_DEV = "srun -w node01 --container-image=debian:12 --container-name=dev true"  # for "containers rm dev"
FINDS_FAULTS = ("scontainer doctor slurm-12.out", "srun scontainer doctor --job")  # status 1: of the log, and no driver
APT_GET = b"#!/bin/sh\n[ $1 != install ] || printf '#!/bin/sh\\necho made\\n' >/usr/bin/make\n[ $1 != install ] || chmod 755 /usr/bin/make\n"
ALL = "registry:5000/examples/all:1"
PROGRAM = b"#!/bin/sh\necho program\n"


def manual_lines(page="spank-container.7"):
    """Returns the command lines of the manual's EXAMPLES."""
    page = open(os.path.join(TOP, "packaging/man", page)).read().split("\n.SH EXAMPLES\n")[1].split("\n.SH ")[0]
    return lines_of(re.sub(r"\\e\n *", "", page).replace("\\-", "-"))


def readme_lines():
    """Returns the command lines of README's section "Use"."""
    return lines_of(open(os.path.join(TOP, "README.md")).read().split("\n## Use\n")[1].split("\n## ")[0])


def lines_of(text):
    found = re.findall(r"^(?:\w+=\S+ )?(?:srun|sbatch|scontainer|mkdir) .*", text, re.M)
    return [re.sub(r"\s+#.*", "", line) for line in found]


@contextlib.contextmanager
def scenery(cluster, files):
    """Yields the directory of alice in which the examples are typed. `files`: image files that they name, and none makes."""
    here, there = os.path.join(cluster.shared, "examples"), "/home/shared/examples"
    mpi_test.prepare(cluster)
    ring = open(os.path.join(cluster.shared, "mpi/ring.openmpi"), "rb").read()
    python = {"x.py": b"print('x')\n", "train.py": b"print('trained')\n"}
    programs = {"program": PROGRAM, **python}
    # A SIF has no work directory: its programs start in "/".
    inside = [("usr/bin/make", PROGRAM), *((where + name, text) for where in ("", "workspace/") for name, text in programs.items())]
    everything = Image("examples/all", [inside], {"WorkingDir": "/workspace"}, below=python_layout())
    for image in (Image("library/debian", [[("usr/bin/apt-get", APT_GET)]], below=cluster.base_layout, tag="12"),
                  Image("org/private", [[("workspace/program", PROGRAM)]], below=cluster.base_layout),
                  everything,
                  Image("library/python", [[]], below=python_layout(), tag="3.12"),
                  *(Image(name, [[("workspace/ring", ring)]], {"WorkingDir": "/workspace"}, below=mpi_test.mpi_layout(), tag=tag)
                    for name, tag in (("lab/mpi", "4.1"), ("library/mpi", "latest")))):
        cluster.push(image)
    for name in ("data", "edf"):
        os.makedirs(os.path.join(here, name))
    for name, text in {"job.sh": b"#!/bin/sh\ntrue\n", "slurm-12.out": b"srun: error: task 0: Out Of Memory\n", "data.json": b"{}\n",
                       "edf/pytorch.toml": f'image = "{ALL}"\n'.encode(), **python}.items():
        with open(os.path.join(here, name), "wb") as file:
            file.write(text)
    for top, _, names in os.walk(here):
        for name in (".", *names):
            os.chown(os.path.join(top, name), 2001, 2001)
    try:
        typed(cluster, there, f"scontainer pull -q {ALL} && for file in {files}; do scontainer export {ALL} $file || exit; done").good()
        subprocess.run(["skopeo", "copy", "-q", f"oci:{everything.write_layout(cluster.images)}", f"docker-archive:{here}/saved.tar"], check=True)
        os.chmod(f"{here}/saved.tar", 0o644)
        yield there
    finally:
        shutil.rmtree(here)
        for node in cluster.nodes:
            cluster.run("srun", "-w", node, "sh", "-c", "scontainer containers rm dev >/dev/null 2>&1 || true")


def typed(cluster, there, line):
    return cluster.run("sh", "-c", f"cd {there} && export EDF_PATH={there}/edf && {line}", timeout=SECONDS)


@test
def reasons_name_examples_that_exist(_cluster):
    pages = (manual_lines(), manual_lines("scontainer.1"), readme_lines())
    expect(all(len(lines) > 10 for lines in pages), f"the pages are not written as this test reads them: {pages}")
    equal(sorted(set(NOT_RUN).difference(*pages)), [], "reasons for examples that no page has")


def submit_all(cluster, lines, files):
    with rules(cluster, SITE), scenery(cluster, files) as there:
        failed = []
        for line in lines:
            done = typed(cluster, there, line) if line not in NOT_RUN else None
            if done and done.rc != (1 if line in FINDS_FAULTS else 0):
                failed.append(f"{line}\n{done.out}{done.err}")
        expect(not failed, "examples fail\n" + "\n".join(failed))


@test
def manual_examples_run_unchanged(cluster):
    submit_all(cluster, manual_lines(), "app.sif tools.sqsh")


@test
def tool_examples_run_unchanged(cluster):
    submit_all(cluster, [NAMES_DEV, *manual_lines("scontainer.1")], "app.sif")


@test
def readme_examples_run_unchanged(cluster):
    submit_all(cluster, readme_lines(), "app.sif tools.sqsh oci-archive:more.tar")
