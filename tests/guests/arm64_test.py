"""Tests for arm64 guests only: the unit tests compiled for arm64."""
import glob
import os
import re

from guest import NODE
from harness import expect, indent, say, test


def unit_tests():
    """Returns the unit test programs in the host's tree. None in other guests."""
    try:
        with open("/opt/spank-container/tree") as file:
            return sorted(glob.glob(f"{file.read()}/build/arm64/tests/unit/*_test"))
    except OSError:
        return []


@test
def unit_tests_pass(guest):
    failed = []
    for program in unit_tests():
        name, done = os.path.basename(program), guest.enter(NODE, "root", program).end(1800)
        cases = re.search(r"All tests passed \(\d+ assertions? in (\d+) test cases?\)", done.out)
        say(f"    {name}: {f'{cases[1]} cases' if done.rc == 0 and cases else f'exit status {done.rc}'}")
        if done.rc != 0 or not cases:
            failed.append(name)
            say(indent(done.out + done.err))
    expect(unit_tests() and not failed, f"unit tests fail: {', '.join(failed)}")
