"""Whether anybody else uses the processors: waited for before a sample, and told beside it. Runs on the machines of a cluster, too."""

import time

SLICE = 0.3  # seconds, in which the kernel has taken down the mounts of the last sample
BUSY = 0.1  # of all processors: what is always there
patience = 120.0  # seconds that are left for waiting, in the whole benchmark
last = True  # what pause() said last


def ticks():
    """(busy, all) since the machine was started. What a hypervisor gave to others is busy."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, idle, iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    busy = user + nice + system + irq + softirq + steal
    return busy, busy + idle + iowait


def pause():
    """Returns when the processors had little to do for a moment: True. False: they had, longer than there is patience for."""
    global patience, last
    while True:
        busy, all_ = ticks()
        time.sleep(SLICE)
        busy_now, all_now = ticks()
        last = busy_now - busy <= BUSY * (all_now - all_)
        if last or patience <= 0:
            return last
        patience -= SLICE
