"""MPI of the image between tasks of one node and of two. Most failures here are hangs, so
everything has a time limit."""
import functools
import os
import subprocess

from cluster import BUILD_IMAGE
from harness import equal, expect, test
from images import Image, with_probe
from site_files import rules
from outcomes import outcome

HERE = os.path.dirname(os.path.abspath(__file__))
RING = os.path.join(HERE, "../../mpi/ring.c")
PROGRAMS = "--container-mounts=/home/shared/mpi:/mpi:ro"
SECONDS = 60  # ring ends itself after 40


@functools.cache
def mpi_layout():
    built = subprocess.run([BUILD_IMAGE, "mpi"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return built.split()[-1]


def prepare(cluster):
    """Returns the image's name in the registry. Makes /home/shared/mpi/ring.openmpi and ring.mpich,
    as users compile them.

    Debian 12's MPICH sometimes waits in MPI_Finalize forever, also without a container: one rank
    still closes connections after the others have stopped serving theirs. Therefore the program
    ends without it."""
    directory = os.path.join(cluster.shared, "mpi")
    for family, flags in (("openmpi", []), ("mpich", ["-DWITHOUT_FINALIZE"])):
        program = os.path.join(directory, f"ring.{family}")
        if not os.path.exists(program):
            os.makedirs(directory, exist_ok=True)
            subprocess.run([f"mpicc.{family}", "-O1", *flags, "-o", program, RING], check=True)
    cluster.program("push", mpi_layout(), "suites/mpi:1").good()
    return "registry:5000/suites/mpi:1"


def node_glibc_is_newer():
    """Returns whether the node has a newer C library than the image, which is of Debian 12."""
    return tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))) > (2, 36)


def start_ring(cluster, mpi, family, *options, image=None, mounts="", words=(), **how):
    return cluster.start_srun(f"--mpi={mpi}", PROGRAMS + mounts, *options, f"/mpi/ring.{family}", *words, image=image or prepare(cluster), **how)


def ring(*arguments, **how):
    """Runs the program, twice if needed. Open MPI 4.1 sometimes calls address 0 in MPI_Init and
    dies, also without a container: its TCP receives a message from a rank of the other node, which
    is ahead, before ob1 has registered its handler."""
    done = start_ring(*arguments, **how).end(SECONDS)
    if done.rc == 139 and "Failing at address: (nil)" in done.err:
        done = start_ring(*arguments, **how).end(SECONDS)
    return done


@test
def mpi_program_without_pmi_names_the_option(cluster):
    """Of a program that several tasks start by its own name, the hook 50-slurm-pmi has warned."""
    image, step = prepare(cluster), ("--mpi=none", PROGRAMS, "-w", "node01", "--overcommit")
    line = ('spank-container: start MPI for "/mpi/ring.openmpi": the step has no PMI, by which its tasks find each other (hint: srun '
            "--mpi=pmix, or --mpi=pmi2 for MPICH)")
    for argv, lines in ((["-n1", "/mpi/ring.openmpi"], [line]), (["-n2", "sh", "-c", "/mpi/ring.openmpi"], [line]),
                        (["-n2", "/mpi/ring.openmpi"], []), (["-n1", "sh", "-c", "exit 3"], [])):
        done = cluster.srun(*step, *argv, image=image, timeout=SECONDS)
        expect(done.rc != 0, "the step succeeds", done)
        equal([text for text in done.err.splitlines() if text.startswith("spank-container: start MPI")], lines, f"lines of {argv}", done)


def must_be_quiet(done):
    """Checks standard error, where MPI and PMIx report unavailable features."""
    lines = [line for line in done.err.splitlines() if "pulling " not in line and "pulled " not in line]
    equal(lines, [], "standard error", done)


TWICE_FOUR = ("-N2", "--ntasks-per-node=4")


@test
def image_open_mpi_runs_over_pmix_on_two_nodes(cluster):
    done = ring(cluster, "pmix", "openmpi", *TWICE_FOUR)
    done.good("ring of 8 on 2 hosts, 4 share memory")
    must_be_quiet(done)


@test
def image_mpich_runs_over_pmi2_on_two_nodes(cluster):
    done = ring(cluster, "pmi2", "mpich", *TWICE_FOUR)
    done.good("ring of 8 on 2 hosts, 4 share memory")
    must_be_quiet(done)


@test
def image_mpis_run_as_root_inside(cluster):
    """PMIx by munge, which reports the user outside of the namespace."""
    done = ring(cluster, "pmix", "openmpi", "--container-remap-root", "-N2", "--ntasks-per-node=2")
    done.good("ring of 4 on 2 hosts, 2 share memory")
    must_be_quiet(done)
    ring(cluster, "pmi2", "mpich", "--container-remap-root", "-N1", "-n2").good("ring of 2 on 1 hosts, 2 share memory")


@test
def program_without_mpi_runs_as_root_inside_with_pmix(cluster):
    """As with pyxis: it is unknown whether the program uses MPI. An image with MPI and no munge
    causes a warning, which has a unit test."""
    done = cluster.srun("--mpi=pmix", "--container-remap-root", "-n2", "id", "-u")
    done.good("0\n0")
    equal(done.messages(), [], "messages", done)


@test
def pmix_without_node_network_is_refused_with_reason(cluster):
    done = cluster.srun("--mpi=pmix", "--container-unshare=net", "-n2", "true")
    expect(done.rc == 1 and "--container-unshare=net removes" in "".join(done.errors()), "it is not refused", done)
    cluster.srun("--mpi=none", "--container-unshare=net", "-n2", "true").good("")
    ring(cluster, "pmi2", "mpich", "--container-unshare=net", "-N1", "-n2").good("ring of 2 on 1 hosts, 2 share memory")


@test
@outcome(217, "accepted", "the PMIx server's directory is absent or hidden",
         untested="PMIx 3 and 5 on the node, and paths as long as a socket's name may be")
def pmix_with_hidden_server_directory_uses_tcp_silently(cluster):
    done = ring(cluster, "pmix", "openmpi", "-N1", "-n2", mounts=",tmpfs:/var/spool/slurmd")
    done.good("ring of 2 on 1 hosts, 2 share memory")
    must_be_quiet(done)


@test
def pmix_component_lists_stay_outside_the_image(cluster):
    done = ring(cluster, "pmix", "openmpi", "-N1", "-n2", env=["PMIX_MCA_psec=nonsense,native", "PMIX_MCA_gds=ds99"])
    done.good("ring of 2 on 1 hosts, 2 share memory")
    cluster.srun("--mpi=pmix", "--container-env=PMIX_MCA_gds", "sh", "-c", "echo $PMIX_MCA_gds",
                 env=["PMIX_MCA_gds=ds21"]).good("ds21")


@test
@outcome(218, "accepted", "ranks in different containers; shared memory", untested="XPMEM: no module here")
def private_ranks_share_memory_unless_ipc_or_pid_is_unshared(cluster):
    ring(cluster, "pmix", "openmpi", "--container-private", "-N1", "-n2").good("ring of 2 on 1 hosts, 2 share memory")
    for space in ("ipc", "pid"):
        ring(cluster, "pmix", "openmpi", f"--container-unshare={space}", "-N1", "-n2").good("ring of 2 on 1 hosts, 2 share memory")
        done = cluster.srun("--mpi=pmix", "--container-private", f"--container-unshare={space}", "-N1", "-n2", "true")
        expect(done.rc == 1 and "cannot share memory" in "".join(done.errors()), "it is not refused", done)


@test
def saved_variables_do_not_replace_those_of_the_task(cluster):
    stale = with_probe("stale-pmi", [], Env=["PMI_RANK=7", "PMI_FD=99", "PMIX_RANK=7", "PMIX_NAMESPACE=old"])
    done = cluster.srun("--mpi=pmi2", "-n2", "-l", "/probe", "/proc/self/environ", image=stale)
    for rank in "01":
        text = done.good().replace("\0", "\n")
        expect(f"PMI_RANK={rank}" in text, f"no task is rank {rank}", done)
    for line in ("PMI_RANK=7", "PMIX_RANK=7", "PMI_FD=99", "PMIX_NAMESPACE=old"):
        expect(line not in text, f"{line} of the image is there", done)


@test
def mpi_type_wrong_for_image_is_reported(cluster):
    only_open_mpi = with_probe("only-open-mpi", [("usr", None), ("usr/lib", None), ("usr/lib/libmpi.so.40", b"")])
    done = cluster.srun("--mpi=pmi2", "-n2", "/probe", image=only_open_mpi)
    expect(done.rc == 0 and "hint: --mpi=pmix" in done.err, "it is not said", done)
    equal(cluster.srun("--mpi=pmix", "-n2", "/probe", image=only_open_mpi).errors(), [], "errors")


# Opens it like Open MPI's component for PMI-2 (open-mpi 4.1, opal/mca/pmix/s2).
PMI2 = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
  void *library = dlopen("libpmi2.so.0", RTLD_NOW);
  if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 2;
  int (*init)(int *, int *, int *, int *) = (int (*)(int *, int *, int *, int *))dlsym(library, "PMI2_Init");
  int (*finalize)(void) = (int (*)(void))dlsym(library, "PMI2_Finalize");
  int spawned, size, rank, application;
  if (init(&spawned, &size, &rank, &application) != 0) return 3;
  printf("rank %d of %d\n", rank, size);
  return finalize();
}
"""


def pmi2_program(cluster):
    """Makes /home/shared/mpi/pmi2, with the C library's old symbol versions only."""
    program = os.path.join(cluster.shared, "mpi/pmi2")
    os.makedirs(os.path.dirname(program), exist_ok=True)
    subprocess.run(["cc", "-x", "c", "-", "-o", program], input=PMI2, text=True, check=True)
    return "/mpi/pmi2"


@test
def open_mpi_4_with_pmi2_finds_slurm_by_node_library(cluster):
    files = [("usr/lib/libmpi.so.40", b""), ("usr/lib/openmpi", None), ("usr/lib/openmpi/mca_pml_ob1.so", b"")]
    without = Image("suites/open-mpi-without-pmi2", [files], below=cluster.base_layout)
    having = Image("suites/open-mpi-with-pmi2", [[*files, ("usr/lib/openmpi/mca_pmix_s2.so", b"")]], below=cluster.base_layout)
    program = pmi2_program(cluster)
    done = cluster.srun("--mpi=pmi2", "-N2", "-n4", PROGRAMS, program, image=having)
    equal(sorted(done.good().splitlines()), [f"rank {rank} of 4" for rank in range(4)], "ranks", done)
    must_be_quiet(done)
    done = cluster.srun("--mpi=pmi2", "-N2", "-n4", PROGRAMS, program, image=without)
    expect(done.rc == 2 and "the image has Open MPI without PMI-2: --mpi=pmi2 is not supported" in done.err, "it is not said", done)


# An MPI linked with Slurm's library, like MVAPICH2 built --with-pm=slurm --with-pmi=pmi2.
FAKE_MVAPICH2 = r"""
int PMI2_Init(int *, int *, int *, int *);
int PMI2_Finalize(void);
int MPI_Init(int *rank, int *size) { int spawned, application; return PMI2_Init(&spawned, size, rank, &application); }
int MPI_Finalize(void) { return PMI2_Finalize(); }
"""
FAKE_PROGRAM = r"""
#include <stdio.h>
int MPI_Init(int *, int *);
int MPI_Finalize(void);
int main(void) {
  int rank = -1, size = -1;
  if (MPI_Init(&rank, &size) != 0) return 3;
  printf("rank %d of %d\n", rank, size);
  return MPI_Finalize();
}
"""


@test
def fake_mvapich2_gets_libpmi2_of_the_node(cluster):
    directory = os.path.join(cluster.shared, "mpi")
    os.makedirs(directory, exist_ok=True)
    library = subprocess.run("ldconfig -p | sed -n 's/.*libpmi2.so.0 .*=> //p' | head -n 1", shell=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    for name, text, words in (("libmpi.so.12", FAKE_MVAPICH2, ["-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", library]),
                              ("fake-mvapich2", FAKE_PROGRAM, [f"{directory}/libmpi.so.12", "-Wl,--allow-shlib-undefined"])):
        subprocess.run(["cc", "-x", "c", "-", "-x", "none", *words, "-o", f"{directory}/{name}"], input=text, text=True, check=True)
    image = Image("suites/fake-mvapich2", [[("usr/lib/libmpi.so.12", open(f"{directory}/libmpi.so.12", "rb").read())]], below=cluster.base_layout)
    with rules(cluster, 'hooks_off = ["50-slurm-pmi"]\n'):
        done = cluster.srun("--mpi=pmi2", PROGRAMS, "/mpi/fake-mvapich2", image=image)
        expect(done.rc == 127 and "libpmi2.so.0" in done.err, "it starts without", done)
    done = cluster.srun("--mpi=pmi2", "-N2", "-n4", PROGRAMS, "/mpi/fake-mvapich2", image=image)
    equal(sorted(done.good().splitlines()), [f"rank {rank} of 4" for rank in range(4)], "ranks", done)
    must_be_quiet(done)


# Intel MPI loads the library that the variable names (Intel MPI Library Developer Reference, I_MPI_PMI_LIBRARY).
FAKE_INTEL_MPI = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
  int spawned, size = -1, rank = -1, application;
  const char *name = getenv("I_MPI_PMI_LIBRARY");
  void *library = name == NULL ? NULL : dlopen(name, RTLD_NOW);
  if (library == NULL) return fprintf(stderr, "fake: no PMI library: %s\n", name == NULL ? "I_MPI_PMI_LIBRARY is not set" : dlerror()), 3;
  int (*init)(int *, int *, int *, int *) = dlsym(library, "PMI2_Init");
  if (init(&spawned, &size, &rank, &application) != 0) return 4;
  printf("rank %d of %d\n", rank, size);
  return ((int (*)(void))dlsym(library, "PMI2_Finalize"))();
}
"""


@test
def fake_intel_mpi_finds_slurm_by_node_library(cluster):
    directory = os.path.join(cluster.shared, "mpi")
    os.makedirs(directory, exist_ok=True)
    subprocess.run(["cc", "-x", "c", "-", "-o", f"{directory}/fake-intel"], input=FAKE_INTEL_MPI, text=True, check=True)
    image = Image("suites/fake-intel", [[("opt/intel/mpi/lib/release/libmpi.so.12", b"fake")]], {"Env": ["I_MPI_ROOT=/opt/intel/mpi", "PATH=/usr/bin:/bin"]},
                  below=cluster.base_layout)
    with rules(cluster, 'hooks_off = ["50-slurm-pmi"]\n'):
        done = cluster.srun("--mpi=pmi2", PROGRAMS, "/mpi/fake-intel", image=image)
        expect(done.rc == 3 and "I_MPI_PMI_LIBRARY is not set" in done.err, "it starts without", done)
    done = cluster.srun("--mpi=pmi2", "-N2", "-n4", PROGRAMS, "/mpi/fake-intel", image=image, env=["I_MPI_PMI_LIBRARY=/usr/lib64/of-the-login-node.so"])
    equal(sorted(done.good().splitlines()), [f"rank {rank} of 4" for rank in range(4)], "ranks", done)
    must_be_quiet(done)


HYBRID = ("scontainer", "run", "-q", "--mounts=/home/shared/mpi:/mpi:ro")


@test
def node_mpirun_runs_ranks_in_one_container_per_node(cluster):
    image = prepare(cluster)
    cluster.run("srun", "-n1", "scontainer", "pull", "-q", image).good()
    # The nodes claim more processors than the machine has, and Open MPI 5 binds ranks to them.
    unbound = ("mpirun", "--bind-to", "none")
    done = cluster.run("salloc", "-Q", *TWICE_FOUR, *unbound, *HYBRID, image, "/mpi/ring.openmpi", "16", timeout=SECONDS)
    done.good("ring of 8 on 2 hosts, 4 share memory")
    script = "readlink /proc/self/ns/user; readlink /proc/self/ns/mnt; sleep 0.3"
    done = cluster.run("salloc", "-Q", "-N1", "-n3", *unbound, "-n", "3", *HYBRID, image, "sh", "-c", script, timeout=SECONDS)
    equal(len(set(done.good().split())), 2, "namespaces of the three", done)


@test
@outcome(218, "accepted", "ranks in different containers; shared memory")
def srun_ranks_that_each_start_a_container_share_one(cluster):
    image = prepare(cluster)
    cluster.run("srun", "-n1", "scontainer", "pull", "-q", image).good()
    for mpi, family in (("pmix", "openmpi"), ("pmi2", "mpich")):
        done = cluster.run("srun", f"--mpi={mpi}", "-N2", "--ntasks-per-node=2", *HYBRID, image, f"/mpi/ring.{family}", "16",
                           timeout=SECONDS)
        done.good("ring of 4 on 2 hosts, 2 share memory")


@test
def steps_of_one_job_have_images_of_their_own(cluster):
    image = prepare(cluster)
    again = with_probe("beside-mpi", [("mark", b"x")])
    step = f"srun --overlap -N1 -n2 --mpi=pmix --container-image={image} {PROGRAMS} /mpi/ring.openmpi"
    other = f"srun --overlap -N1 -n2 --mpi=none --container-image={cluster.name_of(again)} /probe /mark"
    done = cluster.run("salloc", "-Q", "-N1", "-n2", "sh", "-euc", f"{step} & {other}; wait $!", timeout=SECONDS)
    equal(sorted(set(done.good().splitlines())), ["/mark: mode 100755 uid 2001", "ring of 2 on 1 hosts, 2 share memory",
                                                  "xuid 2001, in /"], "output", done)
