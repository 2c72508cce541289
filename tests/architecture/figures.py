"""The figures that the house is measured by. Each is printed; one that is held to must not be above its limit.

    tests/architecture/figures.py [--stage DIR]     (only these, and what makes each of them up; default: build/stage)
"""

import argparse
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.dont_write_bytecode = True
from binaries import LIBRARY, only  # noqa: E402
from definitions import Scanner  # noqa: E402
from report import ROOT, Report, output_of, relative, sources, text_files  # noqa: E402
from source_rules import Modules, includes, resolve, strip  # noqa: E402

TEXT = "KB of text in libspank_container.so"
LARGER_BY_NEWER_GCC = 1.05  # the limit is for GCC 12; of the same sources GCC 14 and the libstdc++ in it make 4 % more
# Figure, limit (None: it is only printed), whether we are held to it.
LIMITS = (
    ("lines of the longest function", 80, True),
    ("per cent of all lines of functions that are in functions above 60", 2, True),
    ("C++ files in spank, runtime, hooks and packaging", 380, True),
    ("source files in the fullest folder", 25, True),
    ("per cent of lines that include, name a namespace or are a pragma", 8, True),
    ("per cent of the lines of runtime in its largest room", 12, True),
    ("names of types with two definitions in one namespace", 0, True),
    ("files outside the root side that make processes", 1, True),
    ("cycles of includes between folders", 0, True),
    ("files that include nlohmann's JSON", 2, True),
    ("installed programs", 8, False),
    ("installed MB", 40, True),
    (TEXT, 1707, True),
    ("lines of a C++ file on average", None, False),
    ("thousand tokens of C++, without comments, each string one", None, False),
    ("lines of the median function", None, False),
    ("lines of the function that nine in ten are shorter than", None, False),
    ("names of types of single files that another file has too", None, False),
)

PRODUCT = ("spank", "runtime", "hooks", "packaging/compat")
SOURCES = (".c", ".cpp", ".h", ".hpp", ".py")
LONG = 60
FRAME = re.compile(r"\s*#\s*include\b|#pragma\b|(?:inline )?namespace\b|\}  // namespace")
TOKENS = re.compile(r"\"\"|\w+|::|->|<<|>>|&&|\|\||[=!<>]=|[^\s\w]")
MAKES_PROCESSES = re.compile(r"\b(?:v?fork|posix_spawnp?|clone3?)\s*\(|\bSYS_(?:v?fork|clone3?)\b")
# Code that runs as root or between root and task makes processes by system calls only.
ROOT_SIDE = ("runtime/agent/", "runtime/task/", "spank/")


# --- functions and types ---


def function_figures(scans):
    found = sorted(((each.last - each.first + 1, f"{relative(path)}:{each.first}: {each.name}")
                    for path, scan in scans.items() for each in scan.functions), reverse=True)
    if not found:
        raise LookupError("there are no functions in the product")
    longest = [f"{lines} lines: {place}" for lines, place in found if lines > LONG]
    all_lines, long_lines = sum(lines for lines, _ in found), sum(lines for lines, _ in found if lines > LONG)
    yield "lines of the longest function", found[0][0], longest
    yield "per cent of all lines of functions that are in functions above 60", round(100 * long_lines / all_lines, 1), longest
    yield "lines of the median function", found[len(found) // 2][0], ()
    yield "lines of the function that nine in ten are shorter than", found[len(found) // 10][0], ()


def type_figures(scans):
    places, hidden = defaultdict(set), defaultdict(set)
    for path, scan in scans.items():
        for each in scan.types:
            (hidden if each.hidden else places)[each.name].add(relative(path))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    alike = {name: files | places[name] for name, files in hidden.items() if len(files | places.get(name, set())) > 1}
    for figure, names in (("names of types with two definitions in one namespace", twice),
                          ("names of types of single files that another file has too", alike)):
        yield figure, len(names), [f"{name}: {' '.join(sorted(files))}" for name, files in sorted(names.items())]


# --- files and folders ---


def file_figures():
    folders = Counter(relative(path.parent) for path, _ in text_files() if path.suffix in SOURCES)
    yield "source files in the fullest folder", max(folders.values()), [
        f"{count} in {folder}" for folder, count in folders.most_common() if count > 25]
    product = list(sources(*PRODUCT))
    making = [relative(path) for path in product if not relative(path).startswith(ROOT_SIDE)
              and MAKES_PROCESSES.search(strip(path.read_text(), True))]
    yield "files outside the root side that make processes", len(making), making
    json = [relative(path) for path in product if any(name.startswith("<nlohmann/") for _, name in includes(path))]
    yield "files that include nlohmann's JSON", len(json), json
    cycles = list(folder_cycles(product))
    yield "cycles of includes between folders", len(cycles), cycles


def folder_cycles(files):
    """Sets of folders each of which reaches all others of its set by includes."""
    arrows = defaultdict(set)
    for path in files:
        for _, name in includes(path):
            target = None if name.startswith("<") else resolve(path, name)
            if target and target.parent.resolve() != path.parent.resolve():
                arrows[relative(path.parent)].add(relative(target.parent))
    reached = {folder: reachable(folder, arrows) for folder in arrows}
    told = set()
    for folder in sorted(reached):
        others = {other for other in reached[folder] if folder in reached.get(other, ())}
        if folder in others and folder not in told:
            told |= others
            yield " <-> ".join(sorted(others))


def reachable(folder, arrows):
    found, waiting = set(), [folder]
    while waiting:
        for other in arrows.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def room_figures():
    """How the house is divided: tests/architecture/modules names the rooms."""
    files = list(sources("spank", "runtime", "hooks", "packaging"))
    lines = {path: path.read_text().splitlines() for path in files}
    all_lines = sum(map(len, lines.values()))
    frame = sum(1 for text in lines.values() for line in text if FRAME.match(line))
    modules, rooms = Modules(), Counter()
    for path, text in lines.items():
        if relative(path).startswith("runtime/"):
            rooms[modules.of(path)] += len(text)
    yield "C++ files in spank, runtime, hooks and packaging", len(files), ()
    yield "lines of a C++ file on average", round(all_lines / len(files)), ()
    yield "per cent of lines that include, name a namespace or are a pragma", round(100 * frame / all_lines, 1), ()
    largest = max(rooms, key=rooms.get)
    yield "per cent of the lines of runtime in its largest room", round(100 * rooms[largest] / sum(rooms.values()), 1), [largest]
    tokens = sum(len(TOKENS.findall(strip(path.read_text(), True))) for path in files)
    yield "thousand tokens of C++, without comments, each string one", round(tokens / 1000), ()


# --- what is installed ---


def installed_figures(stage):
    files = [path for path in stage.rglob("*") if path.is_file() and not path.is_symlink()]
    programs = [path for path in files if path.stat().st_mode & 0o111 and ".so" not in path.name and is_elf(path)]
    yield "installed programs", len(programs), [str(path.relative_to(stage)) for path in sorted(programs)]
    yield "installed MB", round(sum(path.stat().st_size for path in files) / 1e6, 1), [
        f"{path.stat().st_size / 1e6:.1f} MB: {path.relative_to(stage)}" for path in
        sorted(files, key=lambda path: -path.stat().st_size)[:8]]
    text = output_of("size", "--format=berkeley", library_in(stage)).splitlines()[1].split()[0]
    yield TEXT, round(int(text) / 1024), ()


def library_in(stage):
    return only(stage, f"usr/lib*/**/{LIBRARY}")


def is_of_newer_gcc(library):
    version = re.search(rb"GCC: \([^)]*\) (\d+)\.", Path(library).read_bytes())
    return version is not None and int(version[1]) > 12


def is_elf(path):
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


# -----


def all_figures(stage):
    scans = {path: Scanner(path) for path in sources(*PRODUCT)}
    yield from function_figures(scans)
    yield from type_figures(scans)
    yield from file_figures()
    yield from room_figures()
    if stage.is_dir():
        yield from installed_figures(stage)


def check(report, stage, tell_places=False):
    figures = {name: (value, places) for name, value, places in all_figures(stage)}
    unknown = set(figures) ^ {name for name, _, _ in LIMITS} if stage.is_dir() else ()
    report.check("every figure has a line in the table of limits", sorted(unknown))
    for name, limit, held in LIMITS:
        if name not in figures:
            continue
        value, places = figures[name]
        if name == TEXT and is_of_newer_gcc(library_in(stage)):
            limit = round(limit * LARGER_BY_NEWER_GCC)
        if held:
            report.check(f"{name}: {value}, at most {limit}", [f"{value}", *places] if value > limit else ())
        else:
            print(f"figure: {name}: {value}" + (f", wanted at most {limit}" if limit is not None else ""))
            if tell_places:
                print("".join(f"    {place}\n" for place in places), end="")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--stage", type=Path, default=ROOT / "build/stage")
    report = Report()
    check(report, parser.parse_args().stage.resolve(), tell_places=True)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
