"""MPI of the image between tasks of one node and of two. What goes wrong here mostly hangs: everything has a time limit."""
import functools
import os
import subprocess

from cluster import BUILD_IMAGE
from harness import equal, expect, test

HERE = os.path.dirname(os.path.abspath(__file__))
RING = os.path.join(HERE, "../mpi/ring.c")
PROGRAMS = "--container-mounts=/home/shared/mpi:/mpi:ro"
SECONDS = 60  # ring ends itself after 40


@functools.cache
def mpi_layout():
    built = subprocess.run([BUILD_IMAGE, "mpi"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return built.split()[-1]


def prepare(cluster):
    """The image's name in the registry; /home/shared/mpi/ring.openmpi and ring.mpich, as users compile them."""
    directory = os.path.join(cluster.shared, "mpi")
    for family in ("openmpi", "mpich"):
        program = os.path.join(directory, f"ring.{family}")
        if not os.path.exists(program):
            os.makedirs(directory, exist_ok=True)
            subprocess.run([f"mpicc.{family}", "-O1", "-o", program, RING], check=True)
    cluster.program("push", mpi_layout(), "suites/mpi:1").good()
    return "registry:5000/suites/mpi:1"


def ring(cluster, mpi, family, *options, image=None, mib=(), **how):
    return cluster.srun(f"--mpi={mpi}", PROGRAMS, *options, f"/mpi/ring.{family}", *mib, image=image or prepare(cluster),
                        timeout=SECONDS, **how)


@test
def open_mpi_of_the_image_runs_over_pmix_on_two_nodes(cluster):
    done = ring(cluster, "pmix", "openmpi", "-N2", "-n8")
    done.good("ring of 8 on 2 hosts, 4 share memory")
    equal(done.err, "", "standard error", done)


@test
def mpich_of_the_image_runs_over_pmi2_on_two_nodes(cluster):
    done = ring(cluster, "pmi2", "mpich", "-N2", "-n8")
    done.good("ring of 8 on 2 hosts, 4 share memory")
    equal(done.err, "", "standard error", done)
