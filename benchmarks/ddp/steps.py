"""Training steps per second of packaging/examples/train.py, which is beside this file: one process
per Slurm task.

Rank 0 prints one line of JSON with a checksum of the parameters. The checksum is the same on every
machine and in every container with the same arithmetic.
"""

import gc
import json
import os
import sys
import time

import train

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 12
SAMPLES, BATCH = 8192, 64


def take_ranks_from_slurm(env):
    """Sets the variables that containers have, unless they are set."""
    env.setdefault("RANK", env["SLURM_PROCID"])
    env.setdefault("WORLD_SIZE", env["SLURM_NTASKS"])
    env.setdefault("LOCAL_RANK", env["SLURM_LOCALID"])
    env.setdefault("MASTER_ADDR", train.hosts_of(env["SLURM_STEP_NODELIST"])[0])
    env.setdefault("MASTER_PORT", str(20000 + (int(env["SLURM_JOB_ID"]) * 64 + int(env["SLURM_STEP_ID"])) % 10000))
    train.complete(env)


def main():
    take_ranks_from_slurm(os.environ)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # One-time initialization happens here.
    train.train(torch, dist, epochs=1, samples=SAMPLES, batch=BATCH)
    dist.barrier()
    begin = time.perf_counter()
    model, losses = train.train(torch, dist, epochs=EPOCHS, samples=SAMPLES, batch=BATCH)
    dist.barrier()
    seconds = time.perf_counter() - begin
    if dist.get_rank() == 0:
        steps = EPOCHS * (SAMPLES // dist.get_world_size() // BATCH)
        print(json.dumps({"steps": steps / seconds, "ranks": dist.get_world_size(), "loss": losses[-1],
                          "parameters": f"{train.parameter_checksum(model):014x}", "torch": torch.__version__}), flush=True)
    dist.barrier()
    del model  # before the process group is destroyed: see train.py
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
