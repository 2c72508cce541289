"""Runs commands in turns on the head of a cluster. Prints one JSON object per round. For each way
it contains the output, the duration, the CPU time of the whole machine meanwhile (both in ms),
whether the machine was idle just before, and the remaining patience (see quiet.py).

on_head.py PATIENCE ROUNDS {"WAY": ["PROGRAM", "WORD", ...], ...}
"""

import json
import os
import subprocess
import sys
import time

import quiet

TICK = 1000 / os.sysconf("SC_CLK_TCK")  # ms


def once(name, command):
    is_quiet = quiet.pause()
    worked, begun = quiet.ticks()[0], time.monotonic()
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600)
    except subprocess.TimeoutExpired as slow:
        sys.exit(f"{name}: not within 10 minutes: {(slow.stderr or b'').decode(errors='replace').strip()[-1500:]}")
    took, worked = time.monotonic() - begun, quiet.ticks()[0] - worked
    if done.returncode != 0:
        sys.exit(f"{name}: status {done.returncode}: {(done.stderr + done.stdout).strip()[-1500:]}")
    return {"out": done.stdout, "ms": took * 1000, "cpu": worked * TICK, "quiet": is_quiet, "patience": quiet.patience}


def main():
    quiet.patience, rounds, ways = float(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    names = list(ways)
    for round_ in range(rounds):  # the order changes from round to round
        shift = round_ % len(names)
        print(json.dumps({name: once(name, ways[name]) for name in names[shift:] + names[:shift]}), flush=True)


main()
