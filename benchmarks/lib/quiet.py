"""Detection of other load: samples wait for idle processors, and noisy ones are marked. Runs on the
machines of a cluster as well."""

import time

SLICE = 0.3  # seconds, enough for the kernel to remove the mounts of the last sample
BUSY = 0.1  # share of all processors: permanent background load
patience = 120.0  # seconds left for waiting, in the whole benchmark
last = True  # last result of pause()


def ticks():
    """Returns (busy, all) since boot. Time stolen by a hypervisor counts as busy."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, idle, iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    busy = user + nice + system + irq + softirq + steal
    return busy, busy + idle + iowait


def pause():
    """Waits for idle processors. Returns True when they were idle for a moment, False if patience
    ran out."""
    global patience, last
    while True:
        busy, all_ = ticks()
        time.sleep(SLICE)
        busy_now, all_now = ticks()
        last = busy_now - busy <= BUSY * (all_now - all_)
        if last or patience <= 0:
            return last
        patience -= SLICE
