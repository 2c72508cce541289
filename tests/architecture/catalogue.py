"""Every row of tests/catalogue has its tests, and every test that it names exists."""

import re
import sys

from report import ROOT, output_of

FILE = ROOT / "tests/catalogue"
ROWS = {*range(1, 161), *range(206, 221)}
OUTCOMES = {"A", "R", "C", "D"}


def rows():
    """Number -> (line, outcome, [(kind, text)])."""
    found = {}
    for line_number, line in enumerate(FILE.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            number, outcome, _ = line.split(maxsplit=2)
            if int(number) in found:
                raise ValueError(f"tests/catalogue:{line_number}: row {number} is there twice")
            tests = []
            found[int(number)] = (line_number, outcome, tests)
        else:
            kind, _, text = line.strip().partition(" ")
            tests.append((kind, text))
    return found


def titles(pattern, *places):
    found = set()
    for place in places:
        for path in (ROOT / "tests").glob(place):
            found |= set(re.findall(pattern, path.read_text(), re.M))
    return found


def known_tests():
    """Kind -> names."""
    layers = titles(r"^\s+add\(\[([\d, ]+)\]", "layers/odd.py")
    return {
        "unit": {re.sub(r"\\(.)", r"\1", title) for title in titles(r'TEST_CASE\(\s*"((?:\\.|[^"\\])*)"', "unit/**/*.cpp", "privileged/*.cpp")},
        "registry": titles(r"^def test_(\w+)", "registry/*.py"),
        "tool": titles(r"^def test_(\w+)", "tool/*.py"),
        "suite": set(output_of(sys.executable, ROOT / "tests/suites/run", "--list").split()),
        "fuzz": {path.stem for folder in ("fuzz", "fuzz/nodes") for path in (ROOT / "tests" / folder).glob("*.cpp")},
        "layers": {int(number) for numbers in layers for number in numbers.split(",")},
    }


def problems(found, known):
    for number in sorted(ROWS ^ set(found)):
        yield f"row {number} is {'too much' if number in found else 'missing'}"
    for number, (line, outcome, tests) in sorted(found.items()):
        where = f"tests/catalogue:{line}: row {number}"
        if outcome not in OUTCOMES:
            yield f"{where}: outcome {outcome}"
        if not tests:
            yield f"{where}: no test, and no reason why"
        for kind, text in tests:
            if kind in ("untested", "differs"):
                if not text:
                    yield f"{where}: {kind}, but not why"
            elif kind not in known:
                yield f"{where}: {kind} is no kind of test"
            elif (number if kind == "layers" else text) not in known[kind]:
                yield f"{where}: there is no {kind} {text}"


def check(report):
    found = rows()
    kinds = [{kind for kind, _ in tests} for _, _, tests in found.values()]
    bare = sum(kind <= {"untested"} for kind in kinds)
    partly = sum("untested" in kind for kind in kinds) - bare
    differs = sum("differs" in kind for kind in kinds)
    promise = (f"the tests of {len(ROWS)} bad inputs and faults exist ({len(ROWS) - bare - partly} rows tested, {partly} in part, {bare} not; "
               f"{differs} end differently)")
    report.check(promise, problems(found, known_tests()))
