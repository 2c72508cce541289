"""Every fault of the catalogue has an outcome and tests that show it, which the tests themselves say (tests/suites/lib/outcomes.py)."""

import ast
import re
import sys
from dataclasses import dataclass

from report import ROOT, output_of

TESTS = ROOT / "tests"
NUMBERS = {*range(1, 161), *range(206, 221)}
OUTCOMES = {"accepted", "refused", "contained", "degraded"}
MARKER = re.compile(r"\s*(?:#|//) outcome (\d+) (\w+): (.+)")
REMARK = re.compile(r"\s*(?:#|//)     (differs|untested): (.+)")
PYTHON_TEST = re.compile(r"^def test_(\w+)", re.M)
TEST_CASE = re.compile(r'TEST_CASE\(\s*"((?:\\.|[^"\\])*)"')

# Faults without any test: number -> (outcome, fault, reason).
UNTESTED = {
    47: ("accepted", "IPv6 black hole", "needs a network that drops packets"),
    147: ("refused", "quota", "needs a file system with quotas"),
    148: ("refused", "EIO on read, fsync, close", "needs a device that fails"),
    150: ("accepted", "short writes, EINTR",
          "the loops are in base/file.cpp and layer/data_writer.cpp, and the kernel cannot be made to write less"),
    155: ("refused", "loop devices exhausted", "max_loop cannot be changed without disturbing the machine"),
}


@dataclass
class Claim:
    """Outcome of one fault, as one test states it."""
    number: int
    outcome: str
    fault: str
    where: str
    kind: str
    test: object  # the name, of which known_tests() has to know; for layers the number
    remarks: dict


def titles(pattern, *places):
    found = set()
    for place in places:
        for path in TESTS.glob(place):
            found |= set(pattern.findall(path.read_text()))
    return found


def known_tests():
    """Kind -> names."""
    layers = titles(re.compile(r"^\s+add\(\[([\d, ]+)\]", re.M), "layers/odd.py")
    return {
        "unit": {re.sub(r"\\(.)", r"\1", title) for title in titles(TEST_CASE, "unit/**/*.cpp", "privileged/*.cpp")},
        "registry": titles(PYTHON_TEST, "registry/*.py"),
        "tool": titles(PYTHON_TEST, "tool/*.py"),
        "suite": set(output_of(sys.executable, TESTS / "suites/run", "--list").split()),
        "fuzz": {path.stem for folder in ("fuzz", "fuzz/nodes") for path in (TESTS / folder).glob("*.cpp")},
        "layers": {int(number) for numbers in layers for number in numbers.split(",")},
    }


def is_call_of(node, name):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def claims_of_decorators(path, kind, name_of):
    for node in ast.walk(ast.parse(path.read_text())):
        for decorator in getattr(node, "decorator_list", ()):
            if is_call_of(decorator, "outcome"):
                number, result, fault = (ast.literal_eval(argument) for argument in decorator.args)
                remarks = {keyword.arg: ast.literal_eval(keyword.value) for keyword in decorator.keywords}
                where = f"{path.relative_to(ROOT)}:{decorator.lineno}"
                yield Claim(number, result, fault, where, kind, name_of(node.name), remarks)


def claims_of_comments(path, kind, name_of):
    """`name_of` gets the text that follows the comment, and the number."""
    lines, claims = path.read_text().splitlines(), []
    for index, line in enumerate(lines):
        if match := MARKER.match(line):
            claims.append(Claim(int(match[1]), match[2], match[3], f"{path.relative_to(ROOT)}:{index + 1}", kind, None, {}))
        elif (match := REMARK.match(line)) and claims and claims[-1].test is None:
            claims[-1].remarks[match[1]] = match[2]
        elif not re.match(r"\s*(#|//)", line):
            for claim in claims:
                if claim.test is None:
                    claim.test = name_of("\n".join(lines[index:index + 3]), claim.number)
    return claims


def name_of_row(suite, known):
    """Tests of a table have its key in their names."""
    def name(text, _):
        key = re.search(r'"(\w+)"', text)
        return next((one for one in sorted(known) if key and one.startswith(suite + ".") and key[1] in one), f"{suite}: {key and key[1]}")
    return name


def name_of_case(text, _):
    match = TEST_CASE.search(text)
    return re.sub(r"\\(.)", r"\1", match[1]) if match else "no TEST_CASE"


def all_claims(known):
    for kind in ("registry", "tool"):
        for path in sorted((TESTS / kind).glob("*_cases.py")):
            yield from claims_of_decorators(path, kind, lambda name: name.removeprefix("test_"))
    for path in sorted(TESTS.glob("suites/*/*_test.py")):
        suite = path.stem.removesuffix("_test")
        yield from claims_of_decorators(path, "suite", lambda name, suite=suite: f"{suite}.{name}")
        yield from claims_of_comments(path, "suite", name_of_row(suite, known["suite"]))
    yield from claims_of_comments(TESTS / "layers/odd.py", "layers", layers_of_row)
    for path in sorted([*TESTS.glob("fuzz/*.cpp"), *TESTS.glob("fuzz/nodes/*.cpp")]):
        yield from claims_of_comments(path, "fuzz", lambda *_, path=path: path.stem)
    for path in sorted([*TESTS.glob("unit/**/*.cpp"), *TESTS.glob("privileged/*.cpp")]):
        yield from claims_of_comments(path, "unit", name_of_case)


def layers_of_row(text, number):
    numbers = re.match(r"\s+add\(\[([\d, ]+)\]", text)
    return number if numbers and str(number) in numbers[1].split(", ") else "no archive"


def problems(claims, known):
    said = {number: (outcome, fault) for number, (outcome, fault, _) in UNTESTED.items()}
    for claim in claims:
        here = f"{claim.where}: outcome {claim.number}"
        if claim.outcome not in OUTCOMES:
            yield f"{here}: {claim.outcome} is no outcome"
        if said.setdefault(claim.number, (claim.outcome, claim.fault)) != (claim.outcome, claim.fault):
            yield f"{here}: another test says {said[claim.number]}"
        if claim.number in UNTESTED:
            yield f"{here}: it is in the list of those without a test"
        if claim.test not in known[claim.kind]:
            yield f"{here}: there is no {claim.kind} {claim.test}"
        for remark, reason in claim.remarks.items():
            if remark not in ("differs", "untested") or not reason:
                yield f"{here}: {remark}, but not why"
    for number in sorted(NUMBERS ^ set(said)):
        yield f"outcome {number} is {'not one of the catalogue' if number in said else 'shown by no test'}"


def check(report):
    known = known_tests()
    claims = list(all_claims(known))
    partly = len({claim.number for claim in claims if "untested" in claim.remarks})
    differs = len({claim.number for claim in claims if "differs" in claim.remarks})
    promise = (f"the tests of {len(NUMBERS)} bad inputs and faults exist ({len(NUMBERS) - len(UNTESTED) - partly} tested, {partly} in part, "
               f"{len(UNTESTED)} not; {differs} end differently)")
    report.check(promise, problems(claims, known))
