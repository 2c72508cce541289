"""Phases of a step, from the kernel's trace of its processes (tracefs): `srun /bin/true`, one task
on one node."""

import os
import re
import subprocess
from contextlib import contextmanager

from machine import call

EVENTS = ("exec", "fork", "exit")
LINE = re.compile(r" ([\d.]+): sched_process_(\w+): (.*)$", re.MULTILINE)
PHASES = {"srun": "until slurmstepd is executed", "slurmstepd": "until it forks the task; most of it makes cgroups",
          "task": "until /bin/true is executed", "program": "/bin/true", "end": "until srun has ended"}


@contextmanager
def recorded(directory):
    """Yields a list that finally contains, for each step that ran meanwhile, whether it had a
    container, and its phases in ms."""
    directory.mkdir()
    call("mount", "-t", "tracefs", "tracefs", directory)
    buffer, found = directory / "instances/spank-container", []
    try:
        buffer.mkdir()
        (buffer / "trace_clock").write_text("mono")
        (buffer / "buffer_size_kb").write_text(str(max(512, 16384 // os.cpu_count())))  # of each processor
        for event in EVENTS:
            (buffer / f"events/sched/sched_process_{event}/enable").write_text("1")
        yield found
        found += steps_in((buffer / "trace").read_text())
    finally:
        if buffer.exists():
            buffer.rmdir()
        subprocess.run(["umount", directory], check=True)
        directory.rmdir()


def steps_in(trace):
    events = [(float(at) * 1000, event, said) for at, event, said in LINE.findall(trace)]
    steps = (step_of(events[first:]) for first, event in enumerate(events) if executes(event, "srun"))
    return [step for step in steps if step]


def step_of(events):
    """Returns the step of the first executed srun, None if it has run no task."""
    def find(begin, test):
        return next(index for index in range(begin, len(events)) if test(events[index]))

    try:
        daemon = find(0, lambda event: executes(event, "slurmstepd"))
        program = find(daemon, lambda event: executes(event, "true"))
        task = number(events[program], "pid")
        forked = find(daemon, lambda event: event[1] == "fork" and number(event, "child_pid") == task)
        ended = find(program, lambda event: event[1] == "exit" and number(event, "pid") == task)
        over = find(ended, lambda event: event[1] == "exit" and number(event, "pid") == number(events[0], "pid"))
    except StopIteration:
        return None
    moments = [events[index][0] for index in (0, daemon, forked, program, ended, over)]
    in_container = any(executes(event, "agent") for event in events[:program])
    return in_container, {phase: end - begin for phase, begin, end in zip(PHASES, moments, moments[1:])}


def executes(event, program):
    return event[1] == "exec" and re.match(rf"filename=\S*/{program} ", event[2]) is not None


def number(event, name):
    found = re.search(rf"\b{name}=(\d+)", event[2])
    return int(found[1]) if found else None
