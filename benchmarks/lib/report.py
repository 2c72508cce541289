"""Samples of one run and their output."""

import json
import statistics
import sys

import quiet


class Samples:
    """All values measured under one name."""

    def __init__(self, name, unit, what):
        self.name = name
        self.unit = unit
        self.what = what
        self.values = []
        self.noisy = 0  # samples that began while other work used the processors

    def add(self, value):
        """Adds a sample that began after the last pause."""
        self.values.append(value)
        self.noisy += not quiet.last

    @property
    def median(self):
        return statistics.median(self.values)


class Report:
    """Samples of one benchmark, in the order in which names were first used."""

    def __init__(self, title, page_cache):
        self.title = title
        self.page_cache = page_cache
        self.rows = {}
        self.references = {}
        self.notes = []

    def samples(self, name, unit, what, of=None):
        """Returns the samples of `name`. With `of`, (a short label, a name), their ratio to the
        samples of that name is shown."""
        if name not in self.rows:
            self.rows[name] = Samples(name, unit, what)
            self.references[name] = of or (None, None)
        return self.rows[name]

    def note(self, text):
        self.notes.append(text)

    def ratio(self, name):
        reference = self.rows.get(self.references[name][1])
        if reference is None or not reference.values or not reference.median:
            return None
        return self.rows[name].median / reference.median

    def measured(self):
        return [row for row in self.rows.values() if row.values]

    def print_table(self, machine):
        rows = [("name", "median", "min", "max", "n", "unit", "ratio", "", "")]
        widest = {unit: scale([row.median for row in self.measured() if row.unit == unit]) for unit in {row.unit for row in self.measured()}}
        for row in self.measured():
            ratio = self.ratio(row.name)
            rows.append((row.name, number(row.median), number(min(row.values)), number(max(row.values)), str(len(row.values)),
                         row.unit, f"{ratio:.2f} x {self.references[row.name][0]}" if ratio else "",
                         bar(row.median, widest[row.unit]), row.what + (f" (noisy: {row.noisy} of {len(row.values)})" if row.noisy else "")))
        widths = [max(len(row[i]) for row in rows) for i in range(8)]
        print(f"\n{self.title}\n{machine}; page cache: {self.page_cache}\n")
        for row in rows:
            left, right = row[0].ljust(widths[0]), "  ".join(row[i].rjust(widths[i]) for i in range(1, 5))
            print(f"{left}  {right}  {row[5].ljust(widths[5])}  {row[6].ljust(widths[6])}  {row[7].ljust(widths[7])}  {row[8]}".rstrip())
        for note in self.notes:
            print(f"note: {note}")
        sys.stdout.flush()

    def print_json(self):
        for row in self.measured():
            ratio = self.ratio(row.name)
            q1, _, q3 = statistics.quantiles(row.values, n=4) if len(row.values) > 1 else [row.median] * 3
            print(json.dumps({"name": row.name, "value": round(row.median, 4), "unit": row.unit,
                              "ratio": round(ratio, 4) if ratio else None, "of": self.references[row.name][0] if ratio else None,
                              "n": len(row.values), "noisy": row.noisy, "q1": round(q1, 4), "q3": round(q3, 4), "min": round(min(row.values), 4), "max": round(max(row.values), 4)}))
        sys.stdout.flush()


def number(value):
    """Formats a number with about three significant digits."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def scale(values):
    """Returns the value of a full bar. Outliers are ignored: one would make the other bars look
    alike."""
    return max(value for value in values if value <= 30 * statistics.median(values))


def bar(value, full):
    return "#" * 20 + ">" if value > full else "#" * max(1, round(20 * value / full))
