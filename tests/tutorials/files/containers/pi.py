#!/usr/bin/env python3
"""Pi by random points in a square. Prints the estimate from so many attempts."""
import random
import sys

attempts = int(sys.argv[1])
tried = min(attempts, 200000)  # a test need not be exact
inside = sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in range(tried))
print(f"Final pi estimate from {attempts} attempts = {4 * inside / tried}")
