"""Reports of guests, read from lines of their output, and tables made of them."""
import contextlib
import re
import statistics

from harness import say

COLUMNS = ("kernel", "cgroup", "Slurm", "store", "layers served by")
POWER_GOES = "the power goes"  # printed by a guest that is to be cut off
COUNTS = ("passed", "failed", "skipped")
# Allowed time of a kernel, relative to the newest one.
AIMS = {"a step in a container": 2.0, "the start of a container": 2.0, "modules imported again, in a container": 1.1, "files read again, in a container": 1.1,
        "import torch again, in a container": 1.1}
LINE = re.compile(r"(?P<kind>fact|figure) (?P<name>[^:]+): (?P<value>.+)")
BY_FUSE = re.compile(r"(ok|FAILED|skipped) by_fuse\.")


def tell_fact(name, value):
    say(f"fact {name}: {value}")


suffix = ""


@contextlib.contextmanager
def figures_of(what):
    """Returns the figures. Those reported meanwhile have this suffix."""
    global suffix
    suffix = what
    try:
        yield
    finally:
        suffix = ""


def tell_figure(name, seconds):
    say(f"figure {name}{suffix}: {statistics.median(seconds):.3f} s (median of {len(seconds)}, {min(seconds):.3f} to {max(seconds):.3f} s)")


class Report:
    """Report of one guest."""

    def __init__(self, system):
        self.kernel, self.name = system.kernel, system.name
        self.facts, self.figures, self.minutes = {"kernel": system.kernel, "cgroup": system.cgroup}, {}, 0.0
        self.count = (0, 1, 0)  # until the guest reports its count
        self.by_fuse = dict.fromkeys(("ok", "FAILED", "skipped"), 0)

    def take(self, line):
        found, outcome = LINE.fullmatch(line), BY_FUSE.match(line)
        if outcome:
            self.by_fuse[outcome[1]] += 1
        elif found and found["kind"] == "fact":
            self.facts[found["name"]] = found["value"]
        elif found:
            self.figures[found["name"]] = float(found["value"].split()[0])

    def rows(self):
        """Returns one row for each way in which layers were served."""
        def row(served, count, minutes):
            return [*(self.facts.get(name, "?") for name in COLUMNS[:-1]), served, *map(str, count), minutes]

        fuse = tuple(self.by_fuse.values())
        others = tuple(max(0, number - part) for number, part in zip(self.count, fuse))
        yield row(self.facts.get(COLUMNS[-1], "?"), others if any(fuse) else self.count, f"{self.minutes:.0f}")
        if any(fuse):
            yield row("FUSE, as the site says", fuse, "with it")


def table(rows):
    """Formats a table. The first row is the heading. Columns of numbers are right-aligned."""
    columns = list(zip(*rows))
    widths = [max(map(len, column)) for column in columns]
    numbers = [all(re.match(r"[0-9.-]+( |$)", cell) for cell in column[1:]) for column in columns]
    for row in rows:
        cells = (cell.rjust(width) if number else cell.ljust(width) for cell, width, number in zip(row, widths, numbers))
        yield "  ".join(cells).rstrip()


def figure_row(name, reports):
    """Returns the seconds on each kernel, then the others' ratio to the last one."""
    seconds = [report.figures.get(name) for report in reports]
    cells = [f"{number:.3f} s" if number else "-" for number in seconds]
    for number in seconds[:-1]:
        cells.append(f"{number / seconds[-1]:.2f}" if number and seconds[-1] else "-")
    return [name, *cells, *([f"{AIMS[name]:.2f}" if name in AIMS else "-"] if seconds[1:] else [])]


def text(reports):
    """Formats one row per guest and way of serving layers, then the figures relative to the newest
    kernel."""
    reports = sorted(reports, key=lambda report: tuple(map(int, report.kernel.split("."))))
    lines = list(table([[*COLUMNS, *COUNTS, "minutes"], *(row for report in reports for row in report.rows())]))
    measured = [report for report in reports if report.figures]
    if measured:
        names = list(dict.fromkeys(name for report in measured for name in report.figures))
        kernels = [report.name for report in measured]
        ratios = [f"{kernel} / {kernels[-1]}" for kernel in kernels[:-1]]
        lines += ["", *table([["figure", *kernels, *ratios, *(["at most"] if ratios else [])], *(figure_row(name, measured) for name in names)])]
    return "\n".join(lines)
