"""--container-mpi=host: the node's MPI replaces the image's, or is refused with a reason. Fake
libraries have only names and symbols. The last test has Debian's MPICH on both sides."""
import os
import re

import mpi_test
from fake_libraries import GLIBC, LIBRARIES, library, program, versioned
from harness import equal, expect, same_as_golden, test
from images import Image
from site_files import rules

SONAME = "libmpi.so.12"
DIRECTORY = "/home/shared/fake-mpi"
OURS = "/usr/lib/spank-container/mpi"
FABRIC = library("libfakefabric.so.1", "a fabric", symbol="from_0")
NODES = library(SONAME, "of the node")


def image_with(cluster, name, soname=SONAME, file=SONAME + ".1.0", **config):
    directory = LIBRARIES[1:]
    return Image(f"suites/mpi-abi-{name}", [[(f"{directory}/{file}", library(soname, "of the image")), (f"{directory}/{soname}", f"-> {file}"),
                                             ("prog", program(GLIBC, soname))]], config, below=cluster.base_layout)


def node_with(cluster, libraries, dependencies=(), more=""):
    """Returns rules(). Arguments: file names and bytes."""
    directory = os.path.join(cluster.shared, os.path.basename(DIRECTORY))
    os.makedirs(directory, exist_ok=True)
    for name, data in (*libraries, *dependencies):
        with open(os.path.join(directory, name), "wb") as file:
            file.write(data)

    def paths(files):
        return str([f"{DIRECTORY}/{name}" for name, _ in files]).replace("'", '"')

    return rules(cluster, f"mpi_libraries = {paths(libraries)}\nmpi_dependencies = {paths(dependencies)}\n{more}")


def step(cluster, image, *options, command=("/prog",)):
    return cluster.srun("-w", "node01", *options, *command, image=image)


def host(cluster, image, *options, **how):
    return step(cluster, image, "--container-mpi=host", *options, **how)


def refused(name, done):
    expect(done.rc != 0 and done.out == "", "it was not refused", done)
    same_as_golden(f"mpi_abi_{name}", "\n".join(done.errors()) + "\n", done)


@test
def fake_node_mpi_replaces_image_mpi(cluster):
    image = image_with(cluster, "plain")
    nodes = library(SONAME, "of the node", needs=(FABRIC,))
    with node_with(cluster, [(SONAME + ".2.0", nodes)], [("libfakefabric.so.1", FABRIC)]):
        host(cluster, image).good("of the node")
        step(cluster, image).good("of the image")
        done = host(cluster, image, "--container-explain=all")
        for part in (f"the node's {DIRECTORY}/{SONAME}.2.0 replaces the image's /", f"/{SONAME} ({SONAME}.1.0)"):
            expect(part in done.err, "it does not say what it did", done)
        done = host(cluster, image, "--container-readonly", command=("bash", "-euc", f"/prog; ls {OURS}; touch {OURS}/x 2>/dev/null || echo no"))
        equal(done.good().split(), ["of", "the", "node", "libfakefabric.so.1", SONAME, SONAME + ".2.0", "no"], "what lies inside", done)


@test
def fake_node_mpi_is_used_in_every_container_when_configured(cluster):
    image = image_with(cluster, "plain")
    with node_with(cluster, [(SONAME + ".2.0", NODES)], more='mpi = "host"\nmpi_mounts = ["/home/shared/fake-mpi:/opt/switch:ro"]\n'):
        step(cluster, image).good("of the node")
        step(cluster, image, command=("bash", "-euc", "ls /opt/switch; touch /opt/switch/x || echo no")).good(f"libfakefabric.so.1\n{SONAME}.2.0\nno")
        step(cluster, image, "--container-mpi=image").good("of the image")
        step(cluster, "base", command=("bash", "-euc", f"test ! -e {OURS}; test ! -e /opt/switch")).good("")


@test
def fake_node_mpi_comes_before_image_directories(cluster):
    image = image_with(cluster, "directories", Env=[f"LD_LIBRARY_PATH={LIBRARIES}", "PATH=/usr/bin:/bin"])
    with node_with(cluster, [(SONAME + ".2.0", NODES)]):
        step(cluster, image).good("of the image")
        host(cluster, image).good("of the node")


@test
def mpi_variables_and_paths_follow_the_fake_mpi_in_use(cluster):
    image = image_with(cluster, "places", Env=["OPAL_PREFIX=/opt/of-image", "PATH=/usr/bin:/bin"])
    show = ("sh", "-c", "echo ${OPAL_PREFIX-unset} ${MPICH_GPU_SUPPORT_ENABLED-unset}")
    with node_with(cluster, [(SONAME + ".2.0", NODES)], more='mpi_env = ["MPICH_GPU_SUPPORT_ENABLED=1"]\n'):
        host(cluster, image, command=show).good("unset 1")
        step(cluster, image, command=show).good("/opt/of-image unset")
        step(cluster, "base", command=show).good("unset unset")


@test
def fake_node_mpi_is_mpich_for_debian_programs(cluster):
    image = image_with(cluster, "debian", "libmpich.so.12", "libmpich.so.12.1.0")
    with node_with(cluster, [(SONAME + ".2.0", NODES)]):
        step(cluster, image).good("of the image")
        host(cluster, image).good("of the node")


@test
def incompatible_fake_mpi_is_refused_with_reason(cluster):
    image = image_with(cluster, "plain")
    with node_with(cluster, [(SONAME + ".2.0", NODES)]):
        refused("of_another_family", host(cluster, image_with(cluster, "open", "libmpi.so.40", "libmpi.so.40.30.2")))
    with node_with(cluster, [(SONAME + ".0.9", NODES)]):
        refused("older", host(cluster, image))
    with node_with(cluster, [(SONAME + ".0.9", NODES)], more='mpi_abi = "major"\n'):
        done = host(cluster, image)
        done.good("of the node")
        expect(f"the node's {SONAME}.0.9 is older than the image's {SONAME}.1.0" in done.err, "no warning", done)
    with node_with(cluster, [(SONAME + ".1.1", NODES)], more='mpi_abi = "strict"\n'):
        refused("not_the_same", host(cluster, image))
    with rules(cluster, f'mpi_libraries = ["/no/{SONAME}"]\n'):
        refused("not_there", host(cluster, image))
    refused("not_said", host(cluster, image))


@test
def unloadable_fake_mpi_is_refused_before_mounting(cluster):
    image = image_with(cluster, "plain")
    newer = library(SONAME, "of the node", needs=(versioned("libc.so.6", "from_0", "GLIBC_9.99"),))
    with node_with(cluster, [(SONAME + ".2.0", newer)]):
        refused("newer_glibc", host(cluster, image))
    with node_with(cluster, [(SONAME + ".2.0", library(SONAME, "of the node", needs=(FABRIC,)))]):
        refused("missing_dependency", host(cluster, image))


def is_refused_for_glibc(text):
    return re.search(r"hook 70-mpi-abi: the node's libmpich\.so\.12 needs GLIBC_2\.[0-9]+, but the image's C library goes up to 2\.36 ", text)


@test
def node_mpich_runs_program_of_mpich_image(cluster):
    image = mpi_test.prepare(cluster)
    with rules(cluster, f'mpi_libraries = ["{LIBRARIES}/libmpich.so.12"]\n'):
        done = cluster.srun("-w", "node01", "-n2", "--mpi=pmi2", mpi_test.PROGRAMS, "--container-mpi=host", "bash", "-euc",
                            f"if test $SLURM_PROCID = 0; then {GLIBC} --list /mpi/ring.mpich | grep mpich >&2; fi; exec /mpi/ring.mpich",
                            image=image, timeout=mpi_test.SECONDS)
        if mpi_test.node_glibc_is_newer():
            expect(done.rc == 1 and is_refused_for_glibc(done.err), "not refused", done)
            return
        done.good("ring of 2 on 1 hosts, 2 share memory")
        expect(f"libmpich.so.12 => {OURS}/libmpich.so.12 " in done.err, "it was the image's", done)
