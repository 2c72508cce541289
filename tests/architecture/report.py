"""Shared by the checks of this directory: the count, and where things are."""

import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SKIPPED_DIRECTORIES = {".git", "build", "__pycache__", ".cache"}


class Report:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, promise, problems):
        """A promise is kept when there is no problem to tell."""
        problems = list(problems)
        if problems:
            self.failed += 1
            print(f"FAILED: {promise}")
            for problem in problems:
                print(f"    {problem}")
        else:
            self.passed += 1
            print(f"ok: {promise}")

    def closing_line(self):
        return f"{self.passed} passed, {self.failed} failed, 0 skipped"


def data_lines(name):
    """The lines of a data file of this directory, without comments."""
    for line in (HERE / name).read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            yield line


def relative(path):
    return str(Path(path).resolve().relative_to(ROOT))


def text_files():
    """Every file of the tree that is text, by name."""
    for path in sorted(ROOT.rglob("*")):
        if SKIPPED_DIRECTORIES & set(path.relative_to(ROOT).parts) or not path.is_file() or path.is_symlink():
            continue
        try:
            yield path, path.read_text()
        except UnicodeDecodeError:
            continue


def sources(*directories):
    for directory in directories:
        for path in sorted((ROOT / directory).rglob("*")):
            if path.suffix in (".cpp", ".hpp", ".h", ".c"):
                yield path


def output_of(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def difference(found, expected, what):
    """Problems: what is too much and what is missing, against a list."""
    found, expected = set(found), set(expected)
    for name in sorted(found - expected):
        yield f"{what}: \"{name}\" is not in the list"
    for name in sorted(expected - found):
        yield f"{what}: \"{name}\" is in the list, but not there"
