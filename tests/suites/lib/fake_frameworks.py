"""Programs that are not in Debian or want GPUs, as fakes: they find each other as the real ones do, and believe the same variables; what
the real ones compute, they do not."""

# As Lightning 2's SLURMEnvironment, which finds out by these variables that Slurm has started the ranks, and checks them against what the
# Trainer was given (lightning/fabric/plugins/environments/slurm.py).
LIGHTNING = r"""
import os, re, socket, time

class Trainer:
    def __init__(self, num_nodes, devices, strategy):
        assert strategy == "ddp" and os.environ["SLURM_JOB_NAME"] not in ("bash", "interactive")
        for name, given in (("SLURM_NTASKS_PER_NODE", devices), ("SLURM_NNODES", num_nodes)):
            assert int(os.environ[name]) == given, f"{name} is {os.environ[name]}, the Trainer was given {given}"
        self.global_rank, self.world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
        self.local_rank, self.node_rank = int(os.environ["SLURM_LOCALID"]), int(os.environ["SLURM_NODEID"])

    def fit(self):
        nodes = os.environ["SLURM_NODELIST"]
        address = re.sub(r"\[(.*?)[,-].*\]", r"\1", nodes).split(" ")[0].split(",")[0]
        port = int(os.environ.get("MASTER_PORT", 15000 + int(os.environ["SLURM_JOB_ID"][-4:])))
        total = self.global_rank
        if self.global_rank == 0:
            peers = [server.accept()[0] for server in [socket.create_server(("", port))] for _ in range(self.world_size - 1)]
            total = sum(int.from_bytes(peer.recv(1), "big") for peer in peers)
            for peer in peers:
                peer.sendall(bytes([total]))
            return total
        for _ in range(300):
            try:
                line = socket.create_connection((address, port), 30)
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        line.sendall(bytes([self.global_rank]))
        return line.recv(1)[0]
"""

LIGHTNING_TRAIN = """
import os
from lightning import Trainer
trainer = Trainer(num_nodes=int(os.environ["SLURM_NNODES"]), devices=int(os.environ["SLURM_NTASKS_PER_NODE"]), strategy="ddp")
print(f"rank {trainer.global_rank} of {trainer.world_size}, {trainer.local_rank} on node {trainer.node_rank}: {trainer.fit()}")
"""

# Horovod's own: with MPI, ranks are MPI's, and those on a node are counted by it (horovod/common/mpi/mpi_controller.cc).
HOROVOD = """
from mpi4py import MPI
world = MPI.COMM_WORLD
init = lambda: None
rank, size = world.Get_rank, world.Get_size
local_rank = world.Split_type(MPI.COMM_TYPE_SHARED).Get_rank
allreduce = lambda value: world.allreduce(value)
"""

HOROVOD_TRAIN = """
import os
import horovod.torch as hvd
hvd.init()
print(f"rank {hvd.rank()} of {hvd.size()}, {hvd.local_rank()} on node {os.environ['NODE_RANK']}: {hvd.allreduce(hvd.rank())}", flush=True)
"""

# nccl-tests built with MPI=1: a rank for each GPU, which it takes by its number on the node (src/common.cu); the reduction is MPI's here.
NCCL_TEST = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static double bytes_of(int argc, char **argv, const char *option) {
  for (int i = 1; i + 1 < argc; ++i) {
    char *unit;
    if (strcmp(argv[i], option) != 0) continue;
    const double number = strtod(argv[i + 1], &unit);
    return number * (*unit == 'G' ? 1 << 30 : *unit == 'M' ? 1 << 20 : *unit == 'K' ? 1 << 10 : 1);
  }
  fprintf(stderr, "fake: no %s\n", option);
  exit(2);
}
int main(int argc, char **argv) {
  int rank, size;
  const double least = bytes_of(argc, argv, "--minbytes"), most = bytes_of(argc, argv, "--maxbytes"), factor = bytes_of(argc, argv, "--stepfactor");
  if (bytes_of(argc, argv, "--ngpus") != 1) return 2;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  float *in = calloc(1, most), *out = calloc(1, most);
  if (rank == 0) printf("# nccl-tests, fake: %d ranks\n#%12s %10s %10s\n", size, "size", "time(us)", "busbw(GB/s)");
  for (double bytes = least; bytes <= most; bytes *= factor) {
    const double begin = MPI_Wtime();
    MPI_Allreduce(in, out, bytes / sizeof *in, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double took = MPI_Wtime() - begin;
    if (rank == 0) printf("%13.0f %10.2f %10.3f\n", bytes, took * 1e6, bytes / took / 1e9 * 2 * (size - 1) / size);
  }
  fflush(stdout);
  MPI_Finalize();
  return 0;
}
"""

# Meets as jax.distributed.initialize() does by Slurm's variables (jax, _src/distributed.py and _src/clusters/slurm_cluster.py).
JAX = """
import os, socket, time

process_index = lambda: int(os.environ["SLURM_PROCID"])
process_count = lambda: int(os.environ["SLURM_NTASKS"])
local_devices = lambda: ["fake:" + os.environ["SLURM_LOCALID"]]

class distributed:
    def initialize():
        host, _, port = os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")
        if process_index() == 0:
            server = socket.create_server(("", int(port)))
            for peer in [server.accept()[0] for _ in range(process_count() - 1)]:
                peer.sendall(b"go")
            return
        end = time.monotonic() + 30
        while True:
            try:
                line = socket.create_connection((host, int(port)), 30)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < end
                time.sleep(0.1)
        assert line.recv(2) == b"go"
"""
