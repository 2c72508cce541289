"""Data-parallel training: each rank has samples of its own, and gradients are averaged over all."""
import random

from mpi4py import MPI

comm = MPI.COMM_WORLD
random.seed(comm.rank)
samples = [(x, 3 * x + 1) for x in (random.random() for _ in range(200))]
weight = bias = 0.0
for epoch in range(1, 41):
    errors = [(weight * x + bias - y, x) for x, y in samples]
    gradient = [sum(error * x for error, x in errors), sum(error for error, _ in errors)]
    gradient = [comm.allreduce(one) / comm.size / len(samples) for one in gradient]
    weight, bias = weight - gradient[0], bias - gradient[1]
loss = comm.allreduce(sum(error ** 2 for error, _ in errors)) / comm.size / len(samples)
if comm.rank == 0:
    print(f"Epoch {epoch}/40 of {comm.size} processes - loss: {loss:.4f}")
