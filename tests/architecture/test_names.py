"""Names of tests: feature_condition_result, in the field's words, short enough for a line."""

import re
import sys

from report import ROOT, output_of

TESTS = ROOT / "tests"
LONGEST = 60
SHAPE = re.compile(r"[a-z0-9]+(_[a-z0-9]+)+")
HABITS = re.compile(r"^(an?|the|it|of|where|without|under|in)_|(^|_)(he|his|him|who|whose|whom|what|whoever|whatever|nobody|somebody|it_is|say|says|told)(_|$)")
MOST_EXCEPTIONS = 10
EXCEPTIONS = set()
SHELL = {"cluster": ("cluster/selftest",), "slurm": ("slurm-versions/run", "slurm-versions/checks.sh"), "packages": ("packages/run",),
         "pytorch": ("pytorch/run",)}


def listed(runner, *arguments):
    return output_of(sys.executable, TESTS / runner, "--list", *arguments).split()


def names():
    """(part, name of the test without part and suite)."""
    for part in ("unit", "privileged"):
        for path in (TESTS / part).glob("**/*.cpp"):
            yield from ((part, name) for name in re.findall(r'TEST_CASE\(\s*"([^"]*)"', path.read_text()))
    for runner in ("suites/run", "guests/run", "registry/run", "tool/run", "layers/run", "tutorials/run"):
        for name in listed(runner):
            yield runner.split("/")[0], name.split(".")[-1]
    for part, files in SHELL.items():
        for file in files:
            text = (TESTS / file).read_text().replace("\\\n", " ")
            for found in re.findall(r"^\s+(?:check|job) ([a-z]\w+) ", text, re.M):
                yield part, found
            for line in re.findall(r"^\s+check_all ([\w ]+)$", text, re.M):
                yield from ((part, name) for name in line.split())


def problems():
    if len(EXCEPTIONS) > MOST_EXCEPTIONS:
        yield f"there are {len(EXCEPTIONS)} exceptions, at most {MOST_EXCEPTIONS} may be"
    found = set(names())
    for part, name in sorted(found):
        if name in EXCEPTIONS:
            continue
        if len(name) > LONGEST:
            yield f"{part}: {name} has {len(name)} characters, at most {LONGEST} may be"
        if not SHAPE.fullmatch(name):
            yield f"{part}: {name} is not feature_condition_result"
        if HABITS.search(name):
            yield f"{part}: {name} does not name the thing first, or uses a word that words.md drops"
    for name in sorted(EXCEPTIONS - {name for _, name in found}):
        yield f"the exception {name} is no test"


def check(report):
    report.check("test names are feature_condition_result and have at most 60 characters", problems())
