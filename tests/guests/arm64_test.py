"""What only guests of arm64 have to show: the unit tests, compiled for it."""
import glob
import os
import re

from guest import NODE
from harness import expect, indent, say, test


def unit_tests():
    """Their programs, where the tree of the host lies in this guest; none in other guests."""
    try:
        with open("/opt/spank-container/tree") as file:
            return sorted(glob.glob(f"{file.read()}/build/arm64/tests/unit/*_test"))
    except OSError:
        return []


@test
def the_unit_tests(guest):
    failed = []
    for program in unit_tests():
        name, done = os.path.basename(program), guest.enter(NODE, "root", program, "--no-colors").end(1800)
        cases = re.search(r"test cases: +(\d+) \| +(\d+) passed \| 0 failed", done.out)
        say(f"    {name}: {f'{cases[2]} cases' if done.rc == 0 and cases else f'exit status {done.rc}'}")
        if done.rc != 0 or not cases or cases[2] == "0":
            failed.append(name)
            say(indent(done.out + done.err))
    expect(unit_tests() and not failed, f"unit tests fail: {', '.join(failed)}")
