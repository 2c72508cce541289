"""The mechanical part of the rules for text: habits that make a sentence hard to read.

    tests/architecture/words.py [--count] [PART...]

Parts: pages (Markdown, manuals, examples), comments, messages, tests (names of unit tests; test_names.py has the others), commits. Prints the number and each
place; --count only the number. Text in quotation marks, in backquotes and in code blocks is not read.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import namedtuple

sys.dont_write_bytecode = True
from report import ROOT, relative, text_files  # noqa: E402

# The parts that fail the check. Of the others only the number is printed.
ENFORCED = {"pages", "comments", "messages", "tests", "commits"}
# Commits after this one have to keep the rules for subjects.
FIRST_COMMIT = "2a28e7512064e7d3ba6c7182485efabee4e5d4a5"
LONGEST_SUBJECT = 72
LONGEST_TEST_NAME = 60
GLOSSARY = "runtime/ARCHITECTURE.md"
MOST_TERMS = 55

HABITS = {
    "a person in place of a thing": re.compile(r"\b(he|his|him|nobody|somebody|whoever)\b", re.I),
    "a clause as the subject": re.compile(r"(?:\A|(?<=[.!?:;|]))\s*(?:Who|What|Whoever|Whatever|Of what|Of those)\s"),
    "a negation in place of a statement": re.compile(r"\bnothing\s+but\b|\bno\s+more\s+than\s+that\b", re.I),
    "a verb of place": re.compile(r"\b(lies|stands|bears)\b", re.I),
}
# Exceptions: removed before the text is read. At most ten.
ALLOWED = re.compile("|".join((
    r"\b(user|group|owner|as|by|to) nobody\b",  # the account of this name
    r"\bstands for\b",
)))
TEST_NAME = re.compile(r"_(he|who|what|it_is|nobody)_")

COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
C_FAMILY = (".c", ".cpp", ".h", ".hpp", ".cu")
PRODUCT = ("spank/", "runtime/", "hooks/", "packaging/compat/")
MANUAL = re.compile(r"\.[1-8]$")
TEST_CASE = re.compile(r'(?:TEST_CASE|SCENARIO)(?:_FIXTURE|_METHOD)?\(\s*(?:\w+,\s*)?((?:"(?:\\.|[^"\\\n])*"\s*)+)')

Unit = namedtuple("Unit", "line text")
Found = namedtuple("Found", "place habit text")


# --- text of a file, as units that begin and end a sentence ---


def paragraphs(lines, is_text):
    """Units of neighbouring lines. is_text returns the text of a line, None for none, and begins a unit with "\\0"."""
    unit = None
    for number, line in enumerate(lines, 1):
        text = is_text(line)
        if text is None or text.startswith("\0") or not text.strip():
            if unit:
                yield unit
            unit = None
        if text is not None and text.strip("\0 \n"):
            unit = Unit(unit.line, unit.text + "\n" + text) if unit else Unit(number, text.lstrip("\0"))
    if unit:
        yield unit


def markdown_units(text):
    """Headings and code are left out; each cell of a table is a unit."""
    fenced = False

    def is_text(line):
        nonlocal fenced
        if line.lstrip().startswith("```"):
            fenced = not fenced
            return None
        if fenced or re.match(r"#|    +\S", line) and not re.match(r"    +[-*\d]", line):
            return None
        return re.sub(r"^\s*([-*]|\d+\.)\s", "\0", line)

    for unit in paragraphs(text.splitlines(), is_text):
        yield from cells(unit) if unit.text.startswith("|") else (unit,)


def cells(unit):
    for offset, line in enumerate(unit.text.split("\n")):
        for cell in re.split(r"(?<!\\)\|", line):
            yield Unit(unit.line + offset, cell.strip())


def manual_units(text):
    """Text between requests; fonts are left out, and so is what is not filled."""
    filled = True

    def is_text(line):
        nonlocal filled
        if re.match(r"\.(nf|EX)\b", line):
            filled = False
        elif re.match(r"\.(fi|EE)\b", line):
            filled = True
        elif filled and re.match(r"\.(B|I|BR|RB|IR|RI|BI|IB)\s", line):
            return line.split(None, 1)[1]
        elif filled and not re.match(r"[.']", line):
            return line
        return None

    return paragraphs(re.sub(r"\\f[A-Z]|\\&", "", text).replace("\\-", "-").splitlines(), is_text)


def c_comments(text):
    """Neighbouring lines of // are one unit if nothing else is on them."""
    text = re.sub(r"(?<=\d)'(?=\d)", "", text)
    unit, end = None, 0
    for match in COMMENT.finditer(text):
        if not match[0].startswith("/"):
            continue
        line = text.count("\n", 0, match.start()) + 1
        alone = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
        words = re.sub(r"^\s*(//[/!]?<?|/\*+!?<?|\*+/?)|\*/$", "", match[0], flags=re.M)
        if unit and alone and text[end : match.start()].strip(" ") == "\n":
            unit = Unit(unit.line, unit.text + "\n" + words)
        else:
            if unit:
                yield unit
            unit = Unit(line, words)
        end = match.end()
        if not alone:
            yield unit
            unit = None
    if unit:
        yield unit


def c_messages(text):
    """Strings with a blank in them; neighbouring ones are one."""
    code = COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]) if match[0].startswith("/") else match[0], text)
    for match in re.finditer(r'(?:"(?:\\.|[^"\\\n])*"\s*)+', code):
        words = "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', match[0]))
        if " " in words:
            yield Unit(code.count("\n", 0, match.start()) + 1, words.replace(r"\"", '"').replace("\\n", "\n\n"))


def python_comments(text):
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        tree = ast.parse(text)
    except (SyntaxError, tokenize.TokenError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            for unit in paragraphs(ast.get_docstring(node).splitlines(), lambda line: None if line.startswith("    ") else line):
                yield Unit(node.body[0].lineno + unit.line - 1, unit.text)
    comments = {token.start[0]: token for token in tokens if token.type == tokenize.COMMENT}
    yield from paragraphs(text.splitlines(), numbered(lambda number, line: comment_at(comments.get(number), line)))


def numbered(function):
    number = 0

    def call(line):
        nonlocal number
        number += 1
        return function(number, line)

    return call


def comment_at(token, line):
    if token is None:
        return None
    alone = not line[: token.start[1]].strip()
    return ("" if alone else "\0") + token.string.lstrip("#! ")


def hash_comments(text, mark="#"):
    """Comments of shell, CMake, TOML and the like. Indented text in a comment is a command line."""

    def is_text(line):
        match = re.match(rf"\s*{mark}+(?!!)( ?)(.*)", line)
        if match:
            return None if match[2].startswith("   ") or match[2].startswith("SBATCH") else match[2]
        match = re.search(rf"\s{mark} ([^'\"`]*)$", line)
        return "\0" + match[1] if match else None

    return paragraphs(text.splitlines(), is_text)


def comments(path, text):
    name = path.name
    if name.endswith(C_FAMILY):
        return c_comments(text)
    first = text.split("\n", 1)[0]
    if name.endswith(".py") or (first.startswith("#!") and "python" in first):
        return python_comments(text)
    if name.endswith(".lua"):
        return hash_comments(text, "--")
    if name.endswith((".sh", ".cmake", ".toml", ".txt", ".yaml", ".sbatch", ".conf")) or first.startswith("#!"):
        return hash_comments(text)
    return ()


# --- the parts ---


def without_quotations(text):
    def blank(match):
        return '"' + "\n" * match[0].count("\n") + '"'

    text = re.sub(r"``.+?``|`[^`]+`", blank, text, flags=re.S)
    return ALLOWED.sub("", re.sub(r'"[^"]{1,300}?"|“[^”]+”', blank, text, flags=re.S))


def habits_in(path, units, quotations_too=False):
    for unit in units:
        text = unit.text if quotations_too else without_quotations(unit.text)
        for habit, pattern in HABITS.items():
            for match in pattern.finditer(text):
                if habit == "a clause as the subject" and is_question(text, match.end()):
                    continue
                line = unit.line + text.count("\n", 0, match.end() - 1)
                yield Found(f"{relative(path)}:{line}", habit, excerpt(text, match))


def is_question(text, start):
    end = re.compile(r"[.?!](?:\s|$)").search(text, start)
    return end is not None and end[0].startswith("?")


def excerpt(text, match):
    return re.sub(r"\s+", " ", text[max(0, match.start() - 30) : match.end() + 40]).strip()


def is_page(name):
    return name.endswith(".md") or MANUAL.search(name) is not None and "/" in name or name.startswith("packaging/examples/")


def pages():
    for path, text in text_files():
        name = relative(path)
        if not is_page(name):
            continue
        units = markdown_units(text) if name.endswith(".md") else manual_units(text) if MANUAL.search(name) else comments(path, text)
        yield from habits_in(path, units)


def code_comments():
    for path, text in text_files():
        if not is_page(relative(path)):
            yield from habits_in(path, comments(path, text))


def messages():
    for path, text in text_files():
        if relative(path).startswith(PRODUCT) and path.name.endswith(C_FAMILY):
            yield from habits_in(path, c_messages(text))


def test_names():
    for path, text in text_files():
        if not relative(path).startswith("tests/"):
            continue
        for match in TEST_CASE.finditer(text) if path.name.endswith(C_FAMILY) else ():
            name = "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', match[1]))
            line = text.count("\n", 0, match.start(1)) + 1
            if TEST_NAME.search("_" + re.sub(r"\W+", "_", name.lower()) + "_"):
                yield Found(f"{relative(path)}:{line}", "a sentence as a name", name)
            if len(name) > LONGEST_TEST_NAME:
                yield Found(f"{relative(path)}:{line}", f"more than {LONGEST_TEST_NAME} characters", name)


def commits():
    """Nothing where there is no history: in an archive, or a clone that ends before."""
    log = subprocess.run(["git", "-C", str(ROOT), "log", "--no-merges", "--format=%h %s", f"{FIRST_COMMIT}..HEAD"],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in log.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > LONGEST_SUBJECT:
            yield Found(commit, f"a subject of more than {LONGEST_SUBJECT} characters", subject)
        if ";" in subject:
            yield Found(commit, "a subject with a semicolon", subject)


def glossary():
    """A term that one file uses needs none."""
    text = (ROOT / GLOSSARY).read_text()
    terms = re.findall(r"^\| (?!term \|)(.+?) \| ", text[text.index("\n## Glossary\n") :], re.M)
    if len(terms) > MOST_TERMS or not terms:
        yield f"{GLOSSARY}: {len(terms)} terms"


PARTS = {"pages": pages, "comments": code_comments, "messages": messages, "tests": test_names, "commits": commits}


def check(report):
    report.check(f"the glossary has at most {MOST_TERMS} terms", glossary())
    for part, find in PARTS.items():
        found = list(find())
        if part in ENFORCED:
            report.check(f"{part} have no habit that makes them hard to read", [f"{each.place}: {each.habit}: {each.text}" for each in found])
        else:
            print(f"figure: habits in {part}: {len(found)}, wanted none")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    arguments = parser.parse_args()
    failed = False
    for part in arguments.parts or PARTS:
        found = list(PARTS[part]())
        failed = failed or bool(found)
        print(f"{part}: {len(found)}")
        if not arguments.count:
            print("".join(f"    {each.place}: {each.habit}: {each.text}\n" for each in found), end="")
    return 1 if failed and not arguments.count else 0


if __name__ == "__main__":
    sys.exit(main())
