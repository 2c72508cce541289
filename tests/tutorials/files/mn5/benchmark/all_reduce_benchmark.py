#!/usr/bin/env python
"""Bandwidth of all-reduce, counted as by nccl-tests. By gloo: the tutorial's program uses NCCL."""
import os
import time

import torch
import torch.distributed as dist

TRIALS = 5
PAYLOAD = 4 << 20  # bytes

os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0")
torch.set_num_threads(1)
dist.init_process_group("gloo")
ranks = dist.get_world_size()
numbers = torch.rand(PAYLOAD // 4)
rate = torch.zeros(1)
for trial in range(TRIALS):
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(numbers)
    rate += PAYLOAD / (time.perf_counter() - begin) / TRIALS
dist.reduce(rate, dst=0)
if dist.get_rank() == 0:
    algbw = rate.item() / ranks / 1e9
    print(f"The average bandwidth of all_reduce with a {PAYLOAD / 1e9}GB payload ({TRIALS} trials, {ranks} ranks):")
    print(f" algbw: {algbw:.3f} GBps ({algbw * 8:.1f} Gbps)\n busbw: {algbw * 2 * (ranks - 1) / ranks:.3f} GBps", flush=True)
dist.barrier()
dist.destroy_process_group()
