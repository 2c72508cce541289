"""Measures as tutorials on PyTorch in containers do, with gloo on processors: GFLOP/s of a matrix
product per size (one process), bus bandwidth of an all-reduce, and seconds per epoch.

One process per Slurm task; train.py and steps.py are beside this file. Rank 0 prints JSON lines.
"""

import gc
import json
import os
import sys
import time

import steps
import train

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 6
MATRICES = (256, 512, 1024)
PAYLOAD = 16 << 20  # bytes
TRIALS = 8
SAMPLES, BATCH = 8192, 64


def say(dist, **fields):
    if dist.get_rank() == 0:
        print(json.dumps(fields), flush=True)


def multiply(torch, dist):
    for size in MATRICES:
        left, right = torch.rand(size, size), torch.rand(size, size)
        torch.matmul(left, right)
        repetitions = max(1, (1024 // size) ** 2)
        begin = time.perf_counter()
        for _ in range(repetitions):
            torch.matmul(left, right)
        seconds = (time.perf_counter() - begin) / repetitions
        say(dist, name="matmul", size=size, value=2 * size ** 3 / seconds / 1e9)


def all_reduce(torch, dist):
    """The mean over trials and ranks; the bus factor is that of nccl-tests."""
    ranks = dist.get_world_size()
    numbers = torch.ones(PAYLOAD // 4)
    rates = torch.zeros(1)
    for trial in range(TRIALS + 2):
        numbers.fill_(1)
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(numbers)
        if trial >= 2:
            rates += PAYLOAD / (time.perf_counter() - begin) / TRIALS
    if numbers[0].item() != ranks or numbers[-1].item() != ranks:
        sys.exit("processes.py: all_reduce: wrong sum")
    dist.all_reduce(rates)
    say(dist, name="allreduce", ranks=ranks, value=rates.item() / ranks * 2 * (ranks - 1) / ranks / 1e6)


def main():
    steps.take_ranks_from_slurm(os.environ)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_world_size() == 1:
        multiply(torch, dist)
    else:
        all_reduce(torch, dist)
    train.train(torch, dist, epochs=1, samples=SAMPLES, batch=BATCH)  # one-time initialization
    dist.barrier()
    begin = time.perf_counter()
    model, losses = train.train(torch, dist, epochs=EPOCHS, samples=SAMPLES, batch=BATCH)
    dist.barrier()
    say(dist, name="epoch", ranks=dist.get_world_size(), value=(time.perf_counter() - begin) / EPOCHS,
        loss=losses[-1], parameters=f"{train.parameter_checksum(model):014x}", torch=torch.__version__)
    dist.barrier()
    del model  # before the process group is destroyed: see train.py
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
