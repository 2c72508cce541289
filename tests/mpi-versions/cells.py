"""The cells of the table: a row for each MPI of an image, a column for each Slurm and --mpi; and known failures with their reasons."""
from dataclasses import dataclass

SLURM = {"22.05": "Debian 12", "24.11": "Debian 13", "26.05": "Debian unstable"}
PLUGINS = ("pmix", "pmi2")


@dataclass(frozen=True)
class Row:
    """An MPI of an image. `image` is one of tests/images/recipes, `family` says which program is run."""

    name: str
    image: str
    family: str
    of_job: tuple = ()  # variables of the job, as a module of the login node sets them
    complains_of: tuple = ()  # words of what its own libraries print where it works


# A module of another MPI that the container does not have: its variables must not reach the image's MPI.
OF_A_MODULE = ("OPAL_PREFIX=/opt/of-the-node/mpi", "PMIX_INSTALL_PREFIX=/opt/of-the-node/mpi", "PMIX_PREFIX=/opt/of-the-node/mpi")

ROWS = (
    # PMIx 4.0 takes what the server can (PMIX_SECURITY_MODE, PMIX_GDS_MODULE) for an order to have it, says for each rank what it
    # lacks, and goes on with what it has. PMIX_MCA_psec=native and PMIX_MCA_gds=hash in the job silence it.
    Row("open-mpi-debian-11", "open-mpi-debian-11", "openmpi", (), ("A requested component was not found", "Framework: psec")),
    Row("open-mpi-debian-12", "open-mpi-debian-12", "openmpi"),
    Row("open-mpi-debian-13", "open-mpi-debian-13", "openmpi"),
    Row("open-mpi-moved-12", "open-mpi-moved-12", "openmpi"),
    Row("open-mpi-moved-13", "open-mpi-moved-13", "openmpi"),
    Row("open-mpi-moved-12-beside-a-module", "open-mpi-moved-12", "openmpi", OF_A_MODULE),
    Row("open-mpi-debian-13-beside-a-module", "open-mpi-debian-13", "openmpi", OF_A_MODULE),
    Row("mpich-debian-12", "mpich-debian-12", "mpich"),
    Row("mpich-debian-13", "mpich-debian-13", "mpich"),
)


@dataclass(frozen=True)
class Red:
    """Why a cell cannot work, what the user is told about it, and the lines that the ranks print all the same."""

    why: str
    words: str
    ranks: tuple = ("ring of 1 on 1 hosts, 1 share memory",) * 4
    by: str = "spank-container: "  # who says it


OLD_OPEN_MPI = Red("Debian's Open MPI 4.1 is built without PMI-2", 
                   "the image has Open MPI without PMI-2: --mpi=pmi2 is not supported (hint: --mpi=pmix)", ())
NEW_OPEN_MPI = Red("Open MPI 5.0 has PMIx only",
                   "the image has Open MPI 5, which has PMIx only: --mpi=pmi2 is not supported (hint: --mpi=pmix)")
MPICH = Red("Debian's MPICH is built without PMIx",
            "the image has MPICH and no libpmix.so.2: ranks will not find each other (hint: --mpi=pmi2)")

NO_PMIX = Red("Debian's Slurm 26.05 is built without PMIx", "Invalid MPI type 'pmix', --mpi=list", (), "srun: ")


def red(row, slurm, plugin):
    """The reason why a cell does not work, or None if it has to."""
    if plugin == "pmix" and slurm == "26.05":
        return NO_PMIX
    if plugin == "pmix":
        return MPICH if row.family == "mpich" else None
    if row.family == "mpich":
        return None
    return NEW_OPEN_MPI if "13" in row.image else OLD_OPEN_MPI
