"""How a suite registers its tests and says what it expects."""
import difflib
import os
import re

TESTS = []
write_golden = False
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")


class Test:
    def __init__(self, suite, title, function):
        self.suite, self.name, self.function = suite, f"{suite}.{title}", function

    def matches(self, name):
        return name in (self.suite, self.name)


class Skipped(Exception):
    pass


class Failed(Exception):
    """`done` is the command that went wrong, if it was one."""

    def __init__(self, why, done=None):
        super().__init__(why)
        self.why, self.done = why.split("\n")[0], done
        self.more = why.split("\n")[1:]

    def details(self):
        text = "\n".join(self.more)
        if self.done is not None:
            text += f"\n$ {self.done.command}\n{self.done.out}{self.done.err}exit code {self.done.rc}"
        return indent(text.strip("\n"))


def indent(text):
    return "\n".join("    " + line for line in text.splitlines())


def add(module, title, function):
    TESTS.append(Test(module.removesuffix("_test"), title, function))


def test(function):
    """Decorator: the function, which takes the cluster, is a test whose promise is its name."""
    add(function.__module__, function.__name__, function)
    return function


def expect(condition, why, done=None):
    if not condition:
        raise Failed(why, done)


def equal(got, wanted, what, done=None):
    expect(got == wanted, f"{what}: {got!r} instead of {wanted!r}", done)


VARIABLE = (
    (r"sha256:[0-9a-f]{64}", "sha256:DIGEST"),
    (r"\bnode0[0-9]\b", "NODE"),
    (r"\b[0-9]+ MB\b", "N MB"),
    (r"\b[0-9]+ inodes\b", "N inodes"),
    (r"\b[0-9]+ bytes instead of [0-9]+\b", "N bytes instead of N"),
    (r"\bslurm_script_[0-9]+\b", "slurm_script_N"),
)


def same_as_golden(name, text, done=None):
    """Compares messages with golden/NAME.txt, exactly but for what changes from run to run."""
    for pattern, replacement in VARIABLE:
        text = re.sub(pattern, replacement, text)
    path = os.path.join(GOLDEN, name + ".txt")
    if write_golden:
        with open(path, "w") as file:
            file.write(text)
        return
    wanted = open(path).read() if os.path.exists(path) else ""
    if text != wanted:
        lines = difflib.unified_diff(wanted.splitlines(), text.splitlines(), f"golden/{name}.txt", "what was said", lineterm="")
        raise Failed("unexpected message\n" + "\n".join(lines), done)
