"""What only guests of arm64 have to show, where qemu-user cannot."""
import os
import re

from harness import expect, say, test

TESTS = "tests/arm64/unit"


def unit_tests():
    """The program that runs them, where the tree of the host lies in this guest; nothing in other guests."""
    try:
        with open("/opt/spank-container/tree") as file:
            return os.path.join(file.read(), TESTS)
    except OSError:
        return None


@test
def the_unit_tests_that_qemu_user_cannot_run(guest):
    done = guest.run(unit_tests(), "--listed", timeout=900)
    lines = done.out.splitlines()
    expect(done.rc == 0 and re.match(r"[1-9][0-9]* passed, 0 failed", lines[-1]), "a unit test fails", done)
    for line in lines:
        say(f"    {line}")
