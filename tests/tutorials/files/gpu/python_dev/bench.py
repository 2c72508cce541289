#!/usr/bin/env python
import timeit

import torch

import pt_bench

x = torch.randn(100, 1024)
print(f"loaded pt_bench from {pt_bench.__file__}")
print(f"dot_products(x, x):  {timeit.timeit(lambda: pt_bench.dot_products(x, x), number=10) / 10 * 1e6:>6.1f} us")
