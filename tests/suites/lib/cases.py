"""Runs the functions test_NAME of the modules FILE_cases, as tests/registry/run and tests/tool/run have them."""
import glob
import os
import re
import sys
import time
import traceback


class Skipped(Exception):
    """A requirement of the test is missing; the text names it."""


def listed(directory):
    """The tests as FILE.NAME, without importing them."""
    found = []
    for path in sorted(glob.glob(os.path.join(directory, "*_cases.py"))):
        file = os.path.basename(path).removesuffix("_cases.py")
        with open(path) as source:
            found += [f"{file}.{name}" for name in re.findall(r"^def test_(\w+)", source.read(), re.M)]
    return found


def is_meant(test, names):
    """Names are FILE, NAME or FILE.NAME; without names all tests are meant."""
    return not names or any(name in (test, *test.split(".")) for name in names)


def check_names(tests, names):
    """Ends the program at a name that no test has."""
    for name in names:
        if not any(is_meant(test, [name]) for test in tests):
            sys.exit(f"there is no test {name!r}; --list shows them")


def run(modules, names, *, is_left_out=lambda module: None, after_each=lambda: None, after_failure=lambda: None):
    """Runs what is meant, module by module. Prints a line each and the closing line; returns the exit code.
    `is_left_out` returns why a module's tests are skipped, or None."""
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for module in modules:
        file = module.__name__.removesuffix("_cases")
        for title, test in list(vars(module).items()):
            name = f"{file}.{title.removeprefix('test_')}"
            if title.startswith("test_") and is_meant(name, names):
                count[run_one(name, test, is_left_out(module), after_each, after_failure)] += 1
    print(", ".join(f"{number} {kind}" for kind, number in count.items()))
    return 1 if count["failed"] or not count["passed"] + count["skipped"] else 0


def run_one(name, test, why_not, after_each, after_failure):
    began = time.monotonic()
    try:
        if why_not:
            raise Skipped(why_not)
        test()
        after_each()
    except Skipped as why:
        print(f"skipped {name}: {why}", flush=True)
        return "skipped"
    except Exception as error:  # a failed check or a mistake in the test: both are failures
        text = str(error) if isinstance(error, AssertionError) else "".join(traceback.format_exception(error)[-3:])
        place = traceback.extract_tb(error.__traceback__)[-1]
        print(f"FAILED {name}: {text.rstrip()} [{os.path.basename(place.filename)}:{place.lineno}]", flush=True)
        after_failure()
        return "failed"
    print(f"ok {name} ({time.monotonic() - began:.1f} s)", flush=True)
    return "passed"
