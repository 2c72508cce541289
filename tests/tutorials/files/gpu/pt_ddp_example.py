#!/usr/bin/env python
"""Strong scaling of DistributedDataParallel: each rank takes its part of the samples."""
import os
import time

import torch
import torch.distributed as dist

os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0")
torch.set_num_threads(1)
dist.init_process_group(backend="gloo")
rank, world = dist.get_rank(), dist.get_world_size()
x, y = torch.rand(2048, 20), torch.rand(2048, 1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(3):
    begin, mine = time.time(), list(zip(x[rank::world].split(64), y[rank::world].split(64)))
    print(f"[GPU{rank}] Epoch {epoch} | Batchsize: 64 | Steps: {len(mine)}", flush=True)
    for source, target in mine:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(source), target).backward()
        optimizer.step()
    if rank == 0:
        print(f"Finished epoch {epoch} in {time.time() - begin:.2f} seconds", flush=True)
dist.barrier()
del model
dist.destroy_process_group()
