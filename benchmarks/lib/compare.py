"""Comparison of two ways in alternation: ratio of the medians with its confidence interval."""

import json
import random
import statistics
import sys
from dataclasses import dataclass, field

from machine import BenchmarkError
from report import number

RESAMPLES = 2000
PARITY = 0.02  # the whole interval must be this close to 1


def quartiles(values):
    """Returns the first and third quartile, (x, x) for a single value."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def ratio_interval(values, reference, confidence=0.95, seed=1):
    """Returns the interval of the ratio of the medians: bootstrap percentiles, with independent
    draws of the two sides. The fixed seed makes it reproducible."""
    draw = random.Random(seed)
    ratios = sorted(statistics.median(draw.choices(values, k=len(values))) / statistics.median(draw.choices(reference, k=len(reference)))
                    for _ in range(RESAMPLES))
    cut = int(RESAMPLES * (1 - confidence) / 2)
    return ratios[cut], ratios[-1 - cut]


@dataclass
class Pair:
    """One measurement of the reference and of this project. `better`: "lower" or "higher"."""
    name: str
    unit: str
    what: str
    better: str = "lower"
    reference: list = field(default_factory=list)
    ours: list = field(default_factory=list)
    noisy: int = 0  # samples that began while other work used the processors

    def add(self, side, value, quiet=True):
        """Adds a sample. `side`: "bare" for the reference."""
        (self.reference if side == "bare" else self.ours).append(value)
        self.noisy += not quiet

    @property
    def ratio(self):
        return statistics.median(self.ours) / statistics.median(self.reference)

    @property
    def more(self):
        return statistics.median(self.ours) - statistics.median(self.reference)

    def verdict(self):
        if self.noisy > 0:
            return f"noisy: {self.noisy} of {len(self.ours) + len(self.reference)}"
        low, high = ratio_interval(self.ours, self.reference)
        if 1 - PARITY <= low and high <= 1 + PARITY:
            return "parity"
        if low <= 1 <= high:
            return "no difference seen"
        return "better" if (high < 1) == (self.better == "lower") else "worse"


class Comparison:
    """Pairs of one benchmark, in the order in which names were first used. `labels`: of the
    reference and of this project."""

    def __init__(self, title, labels=("bare", "container")):
        self.title, self.labels = title, labels
        self.pairs, self.notes = {}, []

    def pair(self, name, unit, what, better="lower"):
        return self.pairs.setdefault(name, Pair(name, unit, what, better))

    def note(self, text):
        self.notes.append(text)

    def measured(self):
        return [pair for pair in self.pairs.values() if pair.ours and pair.reference]

    def print_table(self, machine):
        reference, ours = self.labels
        rows = [("name", reference, "IQR", ours, "IQR", "unit", "n", "more", "ratio", "95 %", "", "")]
        for pair in self.measured():
            low, high = ratio_interval(pair.ours, pair.reference)
            rows.append((pair.name, number(statistics.median(pair.reference)), span(quartiles(pair.reference)),
                         number(statistics.median(pair.ours)), span(quartiles(pair.ours)), pair.unit, str(len(pair.ours)),
                         f"{pair.more:+.3g}", f"{pair.ratio:.3f}", f"{low:.3f}..{high:.3f}", pair.verdict(), pair.what))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        print(f"\n{self.title}\n{machine}\n")
        for row in rows:
            print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
        for note in self.notes:
            print(f"note: {note}")
        sys.stdout.flush()

    def print_json(self):
        """Prints JSON like report.py, with the bootstrap interval of `ratio` in `low` and `high`,
        and the difference of the medians in `more`."""
        for pair in self.measured():
            low, high = ratio_interval(pair.ours, pair.reference)
            first, third = quartiles(pair.ours)
            print(json.dumps({"name": pair.name, "value": round(statistics.median(pair.ours), 4), "unit": pair.unit,
                              "more": round(pair.more, 4), "ratio": round(pair.ratio, 4), "of": self.labels[0], "low": round(low, 4), "high": round(high, 4),
                              "verdict": pair.verdict(), "noisy": pair.noisy, "n": len(pair.ours), "q1": round(first, 4), "q3": round(third, 4),
                              "reference": round(statistics.median(pair.reference), 4)}))
        sys.stdout.flush()


def span(quarters):
    return f"{number(quarters[0])}..{number(quarters[1])}"


def in_turns(repetitions, *ways):
    """Calls each way once per round, in an order that changes between rounds, so that drift affects
    all of them."""
    if not ways:
        raise BenchmarkError("nothing to compare")
    for round_ in range(repetitions):
        shift = round_ % len(ways)
        for way in ways[shift:] + ways[:shift]:
            way()
