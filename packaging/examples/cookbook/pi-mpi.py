"""Pi by all ranks: the integral of 4 / (1 + x^2) from 0 to 1, with mpi4py."""
import math
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
slices = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
mine = sum(4 / (1 + ((i + 0.5) / slices) ** 2) for i in range(world.rank, slices, world.size))
pi = world.reduce(mine / slices, MPI.SUM, 0)
nodes = len(set(world.allgather(MPI.Get_processor_name())))
if world.rank == 0:
    print(f"{world.size} ranks on {nodes} nodes: pi is {pi:.10f}, error {abs(pi - math.pi):.1e}")
