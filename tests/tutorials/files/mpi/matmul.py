"""Products of larger and larger matrices, and how many operations a second they take."""
import argparse
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--sizes", default="128,256,512")
parser.add_argument("--no-gpu", action="store_true")
options = parser.parse_args()
device = "cuda" if torch.cuda.is_available() and not options.no_gpu else "cpu"
print("PyTorch version:", torch.__version__)
print("Using device:", device)
print("| Matrix Size | Computation Time (s) | Performance |")
for size in map(int, options.sizes.split(",")):
    left, right = torch.rand(size, size, device=device), torch.rand(size, size, device=device)
    torch.matmul(left, right)
    begin = time.perf_counter()
    torch.matmul(left, right)
    took = time.perf_counter() - begin
    print(f"| {size}x{size} | {took:.4f} | {2 * size ** 3 / took / 1e9:.2f} GFLOPS |")
