#!/usr/bin/python3
"""Plots of comparisons, in addition to the tables: PNG if the machine has matplotlib
(packaging/install-deps bench). tools() draws SVG without it.

    benchmarks/lib/plot.py [--check]    draws benchmarks/goals.svg and peers.svg again, from the tables of benchmarks/README.md;
                                        --check: only prints the names of those that would change
"""

import re
import statistics
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from compare import quartiles, ratio_interval
from machine import say


def canvas(columns, rows=1):
    """Returns (figure, axes), or None without matplotlib."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as pyplot
    except ImportError:
        say("no picture: there is no matplotlib (hint: packaging/install-deps bench)")
        return None
    figure, axes = pyplot.subplots(rows, columns, figsize=(5.2 * columns, 3.8 * rows), squeeze=False)
    return figure, list(axes.flat)


def save(figure, path, title):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    say(f"picture: {path}")
    return path


def ratios(comparison, path):
    """Plots every pair's ratio with its interval, beside the line of no difference."""
    drawn = canvas(1)
    pairs = comparison.measured()
    if drawn is None or not pairs:
        return None
    figure, (axis,) = drawn
    for row, pair in enumerate(pairs):
        low, high = ratio_interval(pair.ours, pair.reference)
        axis.plot([low, high], [row, row], color="tab:blue", linewidth=2)
        axis.plot([pair.ratio], [row], "o", color="tab:blue")
    axis.axvspan(0.98, 1.02, color="0.9")
    axis.axvline(1, color="0.4", linewidth=1)
    axis.set_yticks(range(len(pairs)), [pair.name for pair in pairs])
    axis.invert_yaxis()
    axis.set_xlabel(f"{comparison.labels[1]} / {comparison.labels[0]}, 95 % interval; grey: 2 %")
    return save(figure, path, comparison.title)


def tables(comparison, path):
    """Plots a panel for each of the tables' values: medians and quartiles, bare and in a
    container."""
    panels = [(title, value, {row: comparison.pairs[names[column]] for row, names in rows.items()})
              for title, ((_, *values), rows) in comparison.tables.items() for column, value in enumerate(values)]
    drawn = canvas(2, (len(panels) + 1) // 2)
    if drawn is None:
        return None
    figure, axes = drawn
    for axis, (title, value, pairs) in zip(axes, panels):
        for label, color, sides in ((comparison.labels[0], "0.5", [pair.reference for pair in pairs.values()]),
                                    (comparison.labels[1], "tab:blue", [pair.ours for pair in pairs.values()])):
            axis.plot(range(len(pairs)), [statistics.median(side) for side in sides], marker="o", color=color, label=label)
            quarters = [quartiles(side) for side in sides]
            axis.fill_between(range(len(pairs)), [q[0] for q in quarters], [q[1] for q in quarters], alpha=0.2, color=color)
        axis.set_xticks(range(len(pairs)), list(pairs))
        axis.set_yscale("log" if value in ("us", "MB/s") and len(pairs) == 4 else "linear")
        axis.set_ylabel(value)
        axis.set_title(title, fontsize=8)
        axis.legend(fontsize=7)
    for axis in axes[len(panels):]:
        axis.set_visible(False)
    return save(figure, path, comparison.title)


def phases(kinds, path):
    """Plots a bar for each kind of step, stacked from the medians of its phases."""
    drawn = canvas(1)
    if drawn is None or not kinds:
        return None
    figure, (axis,) = drawn
    for number, of_kind in enumerate(kinds.values()):
        begin = 0.0
        for color, (phase, took) in enumerate(of_kind.items()):
            length = statistics.median(took)
            axis.barh(number, length, left=begin, color=f"C{color}", label=phase if number == 0 else None)
            begin += length
        axis.text(begin, number, f" {begin:.0f} ms", va="center", fontsize=8)
    axis.set_yticks(range(len(kinds)), list(kinds))
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_xlabel("ms")
    axis.legend(ncols=len(next(iter(kinds.values()))), fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1))
    figure.set_size_inches(7, 2.4)
    return save(figure, path, "srun /bin/true, one task: bare, and with --container-image")


def peers(report, path):
    """Simulated: the longest wait over the number of nodes, and the effect of failures with 1,024.
    Measured: when the real endpoints were ready, in each of the runs."""
    from simulated import failures
    measured = getattr(report, "endpoints", {})
    drawn = canvas(3 if measured else 2)
    if drawn is None or not report.simulated:
        return None
    figure, (over_nodes, failing, *real) = drawn
    for label, waits in measured.items():
        real[0].step([0, *waits], [0, *range(1, len(waits) + 1)], where="post", label=label)
        real[0].set_xlabel("s since each node began (measured)")
        real[0].set_ylabel("nodes that are ready")
        real[0].set_xlim(left=0)
        real[0].legend(fontsize=7, loc="upper left")
    for label, points in report.curves.items():
        over_nodes.plot(*zip(*sorted(points)), marker="o", markersize=3, label=label)
    over_nodes.set_xscale("log", base=2)
    over_nodes.set_ylim(bottom=0)
    over_nodes.set_xlabel("nodes")
    over_nodes.set_ylabel("s until ready: longest wait of a node")
    if report.curves:
        over_nodes.legend(fontsize=7)
    for number, (end, label) in enumerate((("1024sim", "one node converts 0.14 GB/s"), ("1024sim.fast", "1 GB/s"))):
        ratios_of = failures(report, end)
        failing.barh([row + 0.4 * number for row in range(len(ratios_of))], list(ratios_of.values()), height=0.4, label=label)
        for row, ratio in enumerate(ratios_of.values()):
            failing.text(min(ratio, 4), row + 0.4 * number, f" {ratio:.2f}", va="center", ha="left" if ratio < 3.5 else "right", fontsize=6)
        failing.set_yticks([row + 0.2 for row in range(len(ratios_of))], list(ratios_of), fontsize=7)
    failing.axvline(1.3, color="0.4", linewidth=1)
    failing.set_xlim(0, 4)
    failing.invert_yaxis()
    failing.set_xlabel("x the time of one node; line: 1.3")
    failing.legend(fontsize=7, loc="upper right")
    return save(figure, path, "simulated: an image of 1.46 GB that all nodes lack, one pull; middle: 1,024 nodes, 25 Gb/s"
                + ("; right: real import and relay in namespaces" if measured else ""))


def curve(axis, points, label, marker="o"):
    """Plots the median of points {x: values}, and a band from the first to the third quartile."""
    xs = sorted(points)
    axis.plot(xs, [statistics.median(points[x]) for x in xs], marker=marker, markersize=3, label=label)
    quarters = [quartiles(points[x]) for x in xs]
    axis.fill_between(xs, [q[0] for q in quarters], [q[1] for q in quarters], alpha=0.2)


# --- without matplotlib ---

COLORS = ("#2a6fb0", "#b0b0b0", "#888888", "#b0b0b0", "#888888")
WIDTH, LEFT, BAR, GAP = 760, 170, 16, 8


def tools(report, path):
    """Draws one panel each for cold start, warm start and bytes on disk. The bars of a panel share
    a scale."""
    panels = [(title, unit, [(label, report.rows[f"tools.{name}.{way}"].median) for way, label in report.ways.items()])
              for name, title, unit in (("cold", "cold start", "s"), ("warm", "warm start", "ms"), ("bytes", "on disk", "MB"))]
    path.write_text(drawing(panels, report.picture))
    return path


def sandbox(report, path):
    """Draws one panel for each of the values of idle containers."""
    panels = [(title, unit, [(label, report.rows[f"sandbox.{way}.{name}"].median) for way, label in report.sandboxes.items()])
              for name, title, unit in (("rate", "creates", "/s"), ("exec.p50", "exec, p50", "ms"), ("exec.p99", "exec, p99", "ms"),
                                        ("memory", "memory, each", "kB"))]
    path.write_text(drawing(panels, f"{report.title}; medians; bwrap: an unpacked image"))
    return path


def cold(report, path):
    """Draws one panel for each link, and one for connections that are limited."""
    panels = [(f"{rate} Gb/s", "s", [("import", report.rows[f"cold.{rate}g"].median), ("floor", report.rows[f"floor.cold.{rate}g"].median)])
              for rate in report.links]
    limited = [report.rows[f"{name}cold.limited"].median for name in ("", "floor.")]
    panels.append(("a tenth each", "s", [("import", limited[0]), ("one connection", limited[1])]))
    if "cold.place" in report.rows:
        panels.append(("in place", "s", [("import", report.rows["cold.place"].median), ("pull, 10 Gb/s", report.rows["cold.10g"].median)]))
    path.write_text(drawing(panels, f"{report.title}; floor: curl, SHA-256, inflate, SHA-256; output discarded"))
    return path


def drawing(panels, caption):
    parts, y = [], 12
    for title, unit, bars in panels:
        parts.append(text(0, y + BAR + 1, title, 'font-weight="bold"'))
        longest = max(value for _, value in bars)
        for (label, value), color in zip(bars, COLORS):
            length = max(1.5, (WIDTH - LEFT - 250) * value / longest)
            parts.append(text(LEFT + 80, y + BAR - 3, label, 'text-anchor="end"'))
            parts.append(f'<rect x="{LEFT + 88}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{color}"/>')
            parts.append(text(LEFT + 94 + length, y + BAR - 3, f"{rounded(value)} {unit}"))
            y += BAR + 4
        y += GAP
    parts.append(text(0, y + BAR, caption, 'font-size="10" fill="#666"'))
    height = y + BAR + 8
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">\n'
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


def text(x, y, words, style=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def rounded(value):
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.1 else f"{value:.3f}"


# --- from the tables of benchmarks/README.md ---

FOLDER = Path(__file__).resolve().parent.parent
MET, MISSED = "#2a6fb0", "#d07020"
# Panels: title, unit, factor, bars of (label, row of the table Results, which of its values).
PEERS = (
    ("import, cold", "s", 1, (("ours", "import.cold", 0), ("skopeo + tar", "import.peer.skopeo-tar / -tar2sqfs", 0),
                              ("skopeo + tar2sqfs", "import.peer.skopeo-tar / -tar2sqfs", 1))),
    ("start, whole", "ms", 1, (("ours, first step", "start.mounted.whole, 5 layers / shared", 0),
                               ("bwrap, directory", "start.peer.bwrap / ch-run / ch-run on squashfs", 0),
                               ("ch-run, directory", "start.peer.bwrap / ch-run / ch-run on squashfs", 1),
                               ("ch-run, squashfs", "start.peer.bwrap / ch-run / ch-run on squashfs", 2),
                               ("unsquashfs", "start.peer.unsquashfs", 0))),
    ("start, mounted", "ms", 1, (("ours, later step", "start.mounted.whole, 5 layers / shared", 1),
                                 ("bwrap, directory", "start.peer.bwrap / ch-run / ch-run on squashfs", 0))),
    ("srun true", "ms", 1, (("first step", "srun bare / later step / first step", 2), ("later step", "srun bare / later step / first step", 1),
                            ("bare", "srun bare / later step / first step", 0))),
    ("import torch", "ms", 1000, (("ours", "io.torch.warm", 0), ("squashfuse_ll", "io.peer.squashfuse_ll.torch.warm / walk.warm", 0))),
    ("find /", "ms", 1000, (("ours", "io.walk.warm", 0), ("squashfuse_ll", "io.peer.squashfuse_ll.torch.warm / walk.warm", 1))),
)


def rows_of(page, section):
    """Returns the cells of the first table below a heading, without its head; the first cell has no backquotes."""
    part = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    table = re.search(r"(?m)^\|[-|]+\|\n((?:\|.*\n)+)", part)[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.replace("`", "").splitlines()]


def numbers(cell):
    return [float(number) for number in re.findall(r"[0-9]+(?:\.[0-9]+)?", cell.replace(",", ""))]


def goals(page):
    """Returns an SVG of the measured values relative to their goals. Goals with a range on both sides are left out."""
    rows = [(name, measured, goal, reference) for name, _, reference, goal, measured in rows_of(page, "Goals") if "±" not in goal]
    parts, y, scale, same = [], 28, 190, ""
    parts.append(text(LEFT + 60 + scale, 14, "goal", 'text-anchor="middle" fill="#666"'))
    for name, measured, goal, reference in rows:
        value, limit = numbers(measured)[0], numbers(goal)[0]
        same = reference if reference != "the same" else same
        length = scale * min(value / limit, 1.5)
        parts.append(text(LEFT + 52, y + BAR - 3, name, 'text-anchor="end" font-size="11"'))
        parts.append(f'<rect x="{LEFT + 60}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{MET if value <= limit else MISSED}"/>')
        unit = measured.split()[1] if re.search(r"^[0-9.]+ (MiB|ms)$", measured) else f"x {same}" if same else ""
        parts.append(text(LEFT + 66 + max(length, scale), y + BAR - 3, f"{value:g} of {limit:g} {unit}", 'font-size="11"'))
        y += BAR + 4
    parts.append(f'<line x1="{LEFT + 60 + scale}" y1="20" x2="{LEFT + 60 + scale}" y2="{y}" stroke="#444"/>')
    parts.append(text(0, y + BAR, "measured relative to the goal; shorter is better; orange: missed; from the table of goals", 'font-size="10" fill="#666"'))
    height = y + BAR + 8
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">\n'
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


def beside_peers(page):
    """Returns an SVG of the results that peers have as well."""
    results = {row[0]: numbers(row[1]) for row in rows_of(page, "Results")}
    panels = [(title, unit, [(label, factor * results[row][number]) for label, row, number in bars]) for title, unit, factor, bars in PEERS]
    return drawing(panels, "medians of the table of results, 2 cores; bars of a panel share a scale; programs that read a directory had it unpacked")


def recorded():
    """Returns the text of each SVG that the page's tables determine, by path."""
    page = (FOLDER / "README.md").read_text()
    return {FOLDER / "goals.svg": goals(page), FOLDER / "peers.svg": beside_peers(page)}


if __name__ == "__main__":
    for svg, drawn in recorded().items():
        if sys.argv[1:] == ["--check"]:
            if not svg.exists() or svg.read_text() != drawn:
                print(svg.name)
        else:
            svg.write_text(drawn)
            say(f"picture: {svg}")
