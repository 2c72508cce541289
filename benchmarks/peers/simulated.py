"""Simulated rows in addition to the measured ones: nodes of a step that fetch an image from each
other."""

import json

from machine import call, say


def add_simulated(report, build, quick):
    """Adds the rows of bench-peers, and the data of plot.peers: report.simulated, report.curves."""
    say("simulated nodes")
    lines = [json.loads(line) for line in call(build / "benchmarks/bench-peers", *(["--quick"] if quick else [])).splitlines()]
    report.simulated, report.curves = {}, {}
    for line in lines:
        if "curve" in line:
            report.curves.setdefault(line["curve"], []).append((line["nodes"], line["longest"]))
        else:
            report.samples(line["name"], line["unit"], line["what"]).values.append(line["value"])
            report.simulated[line["name"]] = line["value"]
    report.note("rows that say \"simulated\" are of bench-peers: the real order and time-outs, links and converters that are numbers; "
                "*.fast: one node converts 1 GB/s, else 0.14 GB/s; links of 25 Gb/s, or of what the name says")


def failures(report, end):
    """Returns {failure: longest wait} of the rows with this suffix."""
    names = [name for name in report.simulated if name.endswith(f"_ratio.{end}")]
    return {name.removeprefix("scale.").removesuffix(f"_ratio.{end}").replace("_", " "): report.simulated[name] for name in names}
