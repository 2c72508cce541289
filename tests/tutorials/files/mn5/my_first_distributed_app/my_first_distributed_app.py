"""Pi by trapezoids, a part of them in each process, and the sum by gloo."""
import math
import os
import time

import torch
import torch.distributed as dist

TRAPEZOIDS = 1000000

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
torch.set_num_threads(1)
dist.init_process_group(backend="gloo")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
begin = time.perf_counter()
width = 1 / TRAPEZOIDS
x = (torch.arange(rank, TRAPEZOIDS, world, dtype=torch.float64) + 0.5) * width
estimate = (4 / (1 + x * x)).sum() * width
dist.all_reduce(estimate, op=dist.ReduceOp.SUM)
assert abs(estimate.item() - math.pi) < 1e-5
if rank == 0:
    print(f"pi is {estimate.item():.6f}, by {world} processes\nAVG Time: {time.perf_counter() - begin}\n", flush=True)
dist.barrier()
dist.destroy_process_group()
