"""The invariants of the file `invariants`: each has a test, and every listed test exists. With
--whole the tests are run."""
import os
import re
import subprocess
import sys

from scene import HERE, ROOT

sys.path.append(os.path.join(ROOT, "tests/architecture"))
COUNT = 31


def table():
    """Returns number -> (invariant, [(kind, name)])."""
    found = {}
    for line in open(os.path.join(HERE, "invariants")):
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith(" "):
            kind, _, name = line.strip().partition(" ")
            found[number][1].append((kind, name))
        else:
            number, _, words = line.rstrip("\n").partition(" ")
            number = int(number)
            found[number] = (words, [])
    return found


def known(parts):
    import catalogue
    found = catalogue.known_tests()
    sources = "".join(open(os.path.join(ROOT, "tests/architecture", name)).read() for name in os.listdir(os.path.join(ROOT, "tests/architecture"))
                      if name.endswith(".py"))
    return {**found, "architecture": set(re.findall(r'"([^"\n]+)"', sources)), "hostile": set(parts)}


def runs(kind, names, build):
    """Returns the commands that run tests of a kind."""
    if kind == "suite":
        return [[os.path.join(ROOT, "tests/suites/run"), *names]]
    if kind == "registry":
        return [[os.path.join(ROOT, "tests/registry/run"), "--build", build, *names]]
    if kind == "architecture":
        return [[os.path.join(ROOT, "tests/architecture/run")]]
    if kind == "unit":
        return [[os.path.join(ROOT, "tests/privileged/run"), "--build", build], ["ctest", "--test-dir", build, "-L", "", "-j2", "--output-on-failure"]]
    return []  # fuzz targets and parts of this program run separately


def run_all(rows, count, build):
    by_kind = {}
    for _, tests in rows.values():
        for kind, name in tests:
            by_kind.setdefault(kind, set()).add(name)
    for kind, names in sorted(by_kind.items()):
        for command in runs(kind, sorted(names), build):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
            if done.returncode != 0:
                count.is_wrong(f"{' '.join(command)[:200]}:\n" + "\n".join(done.stdout.splitlines()[-40:]))


def invariants(count, parts, build, whole):
    rows, there = table(), known(parts)
    for number in range(1, COUNT + 1):
        count.tried += 1
        words, tests = rows.get(number, ("", []))
        if not tests:
            count.is_wrong(f"invariant {number} has no test")
        for kind, name in tests:
            if name not in there.get(kind, ()):
                count.is_wrong(f"invariant {number}, {words}: there is no {kind} {name}")
    if whole:
        run_all(rows, count, build)
