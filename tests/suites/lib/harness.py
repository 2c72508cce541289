"""How a suite registers its tests and says what it expects."""
import difflib
import os
import re
import sys
import time
import traceback

TESTS = []
write_golden = False
running = None  # the test that runs now
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden")


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


def run_one(one, cluster):
    """Prints the outcome; returns the kind of it."""
    global running
    start = time.monotonic()
    running = one
    try:
        one.function(cluster)
        cluster.must_be_well()
    except Skipped as why:
        say(f"skipped {one.name}: {why}")
        return "skipped"
    except Failed as failed:
        say(f"FAILED {one.name}: {failed.why}\n{failed.details()}")
        cluster.recover()
        return "failed"
    except Exception as error:  # a mistake in the test must not hide the others
        say(f"FAILED {one.name}: {error!r}\n{indent(traceback.format_exc())}")
        cluster.recover()
        return "failed"
    say(f"ok {one.name} ({time.monotonic() - start:.1f} s)")
    return "passed"


def say(text):
    """Writes the text with one system call, so that concurrent output does not split it."""
    os.write(sys.stdout.fileno(), (text + "\n").encode())


VARIABLE = (
    (r"sha256:[0-9a-f]{64}", "sha256:DIGEST"),
    (r"sha256-[0-9a-f]{64}", "sha256-DIGEST"),
    (r"\bnode0[0-9]\b", "NODE"),
    (r"\b[0-9]+ MB\b", "N MB"),
    (r"\b[0-9]+ inodes\b", "N inodes"),
    (r"\b[0-9]+ bytes instead of [0-9]+\b", "N bytes instead of N"),
    (r"\b(not valid TOML): .*", r"\1"),  # the library's words, which differ from version to version
    (r"\bslurm_script_[0-9]+\b", "slurm_script_N"),
    (r"(\"suites/base\" \(hint: it has: )[^)]*", r"\1TAGS"),  # other suites push some there
)


class Golden:
    """The expected messages of a suite, golden/SUITE.txt: under each "== NAME" a text, and behind it an empty line."""

    def __init__(self, suite):
        self.path = os.path.join(GOLDEN, suite + ".txt")
        text = open(self.path).read() if os.path.exists(self.path) else ""
        parts = re.split(r"^== (\w+)\n", text, flags=re.M)
        self.texts = dict(zip(parts[1::2], parts[2::2]))
        for name in list(self.texts)[:-1]:
            self.texts[name] = self.texts[name].removesuffix("\n")

    def write(self, name, text):
        self.texts[name] = text
        with open(self.path, "w") as file:
            file.write("\n".join(f"== {name}\n{text}" for name, text in sorted(self.texts.items())))


def same_as_golden(name, text, done=None):
    """Compares messages with those of that name of the running suite, exactly but for what changes from run to run."""
    for pattern, replacement in VARIABLE:
        text = re.sub(pattern, replacement, text)
    golden = Golden(running.suite)
    if write_golden:
        golden.write(name, text)
        return
    wanted = golden.texts.get(name, "")
    if text != wanted:
        lines = difflib.unified_diff(wanted.splitlines(), text.splitlines(), f"golden/{running.suite}.txt: {name}", "what was said", lineterm="")
        raise Failed("unexpected message\n" + "\n".join(lines), done)
