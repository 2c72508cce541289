#!/usr/bin/env python
import argparse

import lightning as L
import torch

parser = argparse.ArgumentParser()
parser.add_argument("-N", default=1, type=int, help="Number of nodes")
parser.add_argument("-p", default=1, type=int, help="Number of gpus per node")
options = parser.parse_args()
torch.set_num_threads(1)
batches = [(torch.rand(64, 20), torch.rand(64, 1)) for _ in range(8)]
L.Trainer(max_epochs=3, devices=options.p, num_nodes=options.N).fit(torch.nn.Linear(20, 1), batches)
