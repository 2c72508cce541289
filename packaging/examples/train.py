#!/usr/bin/env python3
"""A small DistributedDataParallel training: one process per Slurm task, gloo between them.

    srun -N2 --ntasks-per-node=2 --container-image=IMAGE --container-mounts=$PWD:/workspace python3 train.py

Exits 1 when the loss did not fall or when the ranks end with different parameters.
"""

import array
import fcntl
import gc
import hashlib
import os
import re
import socket
import struct
import sys

SIOCGIFADDR = 0x8915


def hosts_of(nodelist):
    """The host names of a Slurm node list: node[01-03,7],login -> node01 node02 node03 node7 login."""
    hosts = []
    for prefix, ranges, suffix in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?([^,\[]*)", nodelist):
        for part in ranges.split(",") if ranges else [""]:
            first, _, last = part.partition("-")
            if not first:
                hosts.append(prefix + suffix)
                continue
            for number in range(int(first), int(last or first) + 1):
                hosts.append(f"{prefix}{number:0{len(first)}d}{suffix}")
    return hosts


def address_towards(host):
    """This node's own address on the way to host; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return probe.getsockname()[0]


def interface_of(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def interface_towards(hosts):
    """The interface that leads to the other hosts of the job. The own name may mean 127.0.1.1, so ask them all."""
    found = None
    for host in hosts:
        try:
            name = interface_of(address_towards(host))
        except OSError:
            continue
        if name and name != "lo":
            return name
        found = found or name
    return found


def complete(env):
    """In a container of several tasks, RANK and the like are there; torchrun sets its own. Without any, this is the only rank."""
    env.setdefault("RANK", "0")
    env.setdefault("WORLD_SIZE", "1")
    env.setdefault("MASTER_ADDR", "localhost")
    env.setdefault("MASTER_PORT", "29500")
    hosts = hosts_of(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "localhost")
    if "GLOO_SOCKET_IFNAME" not in env:
        interface = interface_towards([env["MASTER_ADDR"], *hosts])
        if interface:
            env["GLOO_SOCKET_IFNAME"] = interface


def rank_layout(dist):
    """'node01: 0 1, node02: 2 3', the same on every rank."""
    places = [None] * dist.get_world_size()
    dist.all_gather_object(places, socket.gethostname())
    ranks = {}
    for rank, host in enumerate(places):
        ranks.setdefault(host, []).append(str(rank))
    return ", ".join(f"{host}: {' '.join(own)}" for host, own in ranks.items())


def training_data(torch, samples):
    """Points of a smooth surface: the same on every rank, which is what the fixed seed is for."""
    x = torch.rand(samples, 4) * 2 - 1
    y = torch.sin(3 * x[:, :1]) * x[:, 1:2] + x[:, 2:3] ** 2 - 0.5 * x[:, 3:4]
    return x, y


def train(torch, dist, epochs=6, samples=8192, batch=64):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(20)
    x, y = training_data(torch, samples)
    x, y = x[rank::world], y[rank::world]

    network = torch.nn.Sequential(
        torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    )
    model = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    losses = []
    for epoch in range(1, epochs + 1):
        total = torch.zeros(2)  # sum of the losses, number of samples
        for i in range(0, len(x) - batch + 1, batch):
            loss = torch.nn.functional.mse_loss(model(x[i : i + batch]), y[i : i + batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * batch, batch])
        dist.all_reduce(total)
        losses.append((total[0] / total[1]).item())
        if rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.5f}", flush=True)
    return model, losses


def parameter_checksum(model):
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(array.array("f", parameter.detach().flatten().tolist()).tobytes())
    return int.from_bytes(digest.digest()[:7], "big")


def main():
    complete(os.environ)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layout = rank_layout(dist)
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}, {dist.get_world_size()} ranks ({layout})", flush=True)

    model, losses = train(torch, dist)

    own = torch.tensor([parameter_checksum(model)])
    everyones = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, own)
    checksums = {int(one) for one in everyones}
    failure = None
    if len(checksums) > 1:
        failure = f"the ranks disagree: parameter checksums {', '.join(f'{one:014x}' for one in sorted(checksums))}"
    elif not losses[-1] < losses[0] / 2:
        failure = f"the loss did not fall: {losses[0]:.5f} at first, {losses[-1]:.5f} at last"
    elif dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks agree: parameter checksum {checksums.pop():014x}", flush=True)
    dist.barrier()
    # The model goes first: if it were the last to hold the process group, PyTorch 1.13 would wait for the group's threads with the
    # interpreter's lock in hand, and one of them may want that lock.
    del model
    gc.collect()
    dist.destroy_process_group()
    if failure:
        sys.exit(f"train.py: {failure}")


if __name__ == "__main__":
    main()
