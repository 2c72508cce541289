"""Rules about the source text: module arrows, size of the root code, banned calls, length of files."""

import re

from report import ROOT, data_lines, relative, sources, text_files

MOST_ROOT_LINES = 3062  # 2808 at 130 columns
MOST_ENTERING_LINES = 1507  # 1451 at 130 columns
MOST_LINES_OF_A_FILE = 900
MOST_COLUMNS = 100
LONGER_BY_NATURE = {"LICENSE", "packaging/man/spank-container.7", "packaging/man/spank-container.conf.5"}

# Calls banned everywhere, and calls banned in the agent, which sees numbers, digests and descriptors only.
BANNED_EVERYWHERE = {
    r"\bsystem\s*\(": "starts a shell",
    r"\bpopen\s*\(": "starts a shell",
    r"\bexec[lv]pe?\s*\(": "looks for the program along PATH",
    r"\b(tmpnam|tempnam|mktemp)\s*\(": "races for a name",
    r"\bgets\s*\(|\bstrcpy\s*\(|\bsprintf\s*\(": "writes without a limit",
    r"\bin_quotes\((\w+(\.|->))*(request|options|asked|wanted_|arguments_?)(\.|->)(image\b|words\[0\])": "shows secrets of a URL: without_secrets()",
}
BANNED_IN_ROOT_CODE = {r"\bin_quotes\s*\(": "handles text of a user: quoted() is for names of ours"}
BANNED_WHILE_ENTERING = {
    r"\b(spank_)?getenv\s*\(|\benviron\b|\bS_JOB_ARGV\b": "reads what the user has written",
    r"\bspc_(configure|summarize|check|site_flag)\s*\(|\bSitePolicy\b|\bSPC_(CONFIG|RUN)_": "reads a file of the site",
    r"\.read\s*\(|\bread_file\s*\(|\bifstream\b|\bTaskEntry::": "reads texts",
    r"\bfrom_chars\b|\bsto(i|l|ul)\s*\(|\bsscanf\s*\(|\bin_quotes\s*\(|\bprintable\s*\(": "looks into a text",
}
BANNED_IN_AGENT = {
    r"\brealpath\s*\(|\bcanonicalize_file_name\s*\(": "resolves a path with privilege",
    r"\bget(pw|gr)\w*\s*\(": "asks name services with privilege",
    r"\bstd::filesystem\b|<filesystem>": "resolves paths with privilege",
    r"\bgetenv\s*\(": "believes an environment",
    r"\bdlopen\s*\(": "loads code",
}
SHELL = re.compile(r'"(/usr)?/bin/(ba|da)?sh"|"sh"')


# --- reading C++ ---

TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def strip(text, strings_too):
    """The text without comments, and without the content of strings if asked; lines keep their numbers."""

    def replace(match):
        token = match[0]
        if token.startswith("/"):
            return " " + "\n" * token.count("\n")
        return '""' + "\n" * token.count("\n") if strings_too else token

    # A quote between digits is 1'000'000.
    return TOKEN.sub(replace, re.sub(r"(?<=\d)'(?=\d)", "", text))


def includes(path):
    """Line number and what is between the quotes or after the angle bracket: `base/file.hpp`, `<curl/curl.h`."""
    for number, line in enumerate(strip(path.read_text(), False).splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*(?:"([^"]+)"|(<[^>]+)>)', line)
        if found:
            yield number, found[1] or found[2]


def resolve(path, name):
    """The file that a quoted include means, as the compiler finds it."""
    for directory in (path.parent, ROOT / "runtime", ROOT, ROOT / "runtime/include"):
        if (directory / name).is_file():
            return directory / name
    return None


# --- module arrows ---


class Modules:
    def __init__(self):
        self.files = {}  # path prefix -> module
        self.allowed = {}  # module -> names of modules and "<header" prefixes
        for line in data_lines("modules"):
            name, files, allowed = re.split(r"\s{2,}", line)
            self.allowed[name] = [] if allowed == "-" else allowed.split()
            for file in files.split():
                self.files[file.removesuffix("*")] = name
        self.libraries = {word for allowed in self.allowed.values() for word in allowed if word.startswith("<")}

    def of(self, path):
        name = relative(path)
        fitting = [prefix for prefix in self.files if name.startswith(prefix)]
        return self.files[max(fitting, key=len)] if fitting else None

    def problem(self, path, included):
        """Why this include is not allowed, or None."""
        module = self.of(path)
        if module is None:
            return "belongs to no module of tests/architecture/modules"
        if included.startswith("<"):
            library = [prefix for prefix in self.libraries if included.startswith(prefix)]
            if library and not set(library) & set(self.allowed[module]):
                return f"includes {included}>: {module} may not"
            return None
        target = resolve(path, included)
        if target is None:
            return f'includes "{included}", which is not in the tree'
        other = self.of(target)
        if other != module and other not in self.allowed[module]:
            return f'includes "{included}" of {other}: {module} may include {" ".join(self.allowed[module]) or "nothing"}'
        return None


def include_problems(modules):
    for path in sources("spank", "runtime", "hooks", "packaging/compat"):
        for number, included in includes(path):
            problem = modules.problem(path, included)
            if problem:
                yield f"{relative(path)}:{number}: {problem}"


def module_problems(modules):
    """The data file itself: every module has files, and every arrow leads somewhere."""
    used = {modules.of(path) for path in sources("spank", "runtime", "hooks", "packaging/compat")}
    for module, allowed in modules.allowed.items():
        if module not in used:
            yield f"tests/architecture/modules: no file belongs to {module}"
        for word in allowed:
            if not word.startswith("<") and word not in modules.allowed:
                yield f"tests/architecture/modules: {module} may include {word}, which is no module"


# --- root code ---


def agent_files():
    return set(sources("runtime/agent", "runtime/mount"))


def with_base(files, also=()):
    """The files and, of runtime/base and `also`, what they include, with the .cpp beside each header."""
    found, waiting = set(), list(files)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for _, name in includes(path):
            header = None if name.startswith("<") else resolve(path, name)
            if header and relative(header).startswith(("runtime/base/", *also)):
                waiting += [file for file in (header, header.with_suffix(".cpp")) if file.exists()]
    return found


def root_files():
    """The files, and the names in each that run as the user only."""
    files, user_code = [], {}
    for line in data_lines("root_code"):
        name, *user_names = line.split()
        if not (ROOT / name).exists():
            raise FileNotFoundError(f"tests/architecture/root_code names {name}, which does not exist")
        files += sources(name) if name.endswith("/") else [ROOT / name]
        user_code[ROOT / name] = user_names
    return {path: user_code.get(path, []) for path in with_base(files)}


def entering_files():
    """The code of each file that is meant. root_code leaves out the same parts of included files as for root."""
    files, only, without = [], {}, root_files()
    for line in data_lines("entering_code"):
        name, *rest = line.split()
        if not (ROOT / name).exists():
            raise FileNotFoundError(f"tests/architecture/entering_code names {name}, which does not exist")
        if rest[:1] == ["only"]:
            only[ROOT / name] = rest[1:]
        elif rest:
            without[ROOT / name] = rest
        else:
            files += sources(name) if name.endswith("/") else [ROOT / name]
    texts = {path: "\n".join(code_of(path, without.get(path, []))) for path in with_base(files, ("runtime/protocol/",))}
    for path, names in only.items():
        lines = code_of(path, [])
        kept = [line for name in names for line in sorted_out(lines, name, path)]
        texts[path] = "\n".join(kept)
    return texts


def sorted_out(lines, name, path):
    """The lines of one definition."""
    rest = remove_definition(lines, name, path)
    first = next((i for i, line in enumerate(rest) if line != lines[i]), len(rest))
    return lines[first : first + len(lines) - len(rest)]


def code_lines(path, without=()):
    return sum(1 for line in code_of(path, without) if line.strip())


def code_of(path, without):
    """Its lines without comments and the named definitions; none if it is data."""
    if without == ["data"]:
        return []
    lines = strip(path.read_text(), False).splitlines()
    for name in without:
        lines = remove_definition(lines, name, path)
    return lines


def remove_definition(lines, name, path):
    """Definitions begin in the first column and end with a brace there, or on their first line."""
    for first, line in enumerate(lines):
        if re.match(rf"\S.*\b{name}\(|class {name}\b", line) and not line.endswith(";"):
            last = next(i for i in range(first, len(lines)) if lines[i].startswith("}") or (i == first and line.endswith("}")))
            return lines[:first] + lines[last + 1 :]
    raise LookupError(f"tests/architecture/root_code names {name}, which {relative(path)} does not define")


def size_problems(counts, most):
    if not counts or sum(counts.values()) > most:
        yield f"{sum(counts.values())} lines in {len(counts)} files"
        yield from (f"{lines:5} {relative(path)}" for path, lines in sorted(counts.items()))


# --- calls and lengths ---


def banned(files, rules):
    yield from banned_in({path: path.read_text() for path in files}, rules)


def banned_in(texts, rules):
    for path in sorted(texts):
        for number, line in enumerate(strip(texts[path], True).splitlines(), 1):
            for pattern, reason in rules.items():
                if re.search(pattern, line):
                    yield f"{relative(path)}:{number}: {line.strip()}: {reason}"


def leaking_tries(files):
    """An SPC_TRY that returns out of a braced initialiser: what was made before it in there is never destroyed."""
    for path in sorted(files):
        code = strip(path.read_text(), True)
        for found in re.finditer(r"\bSPC_TRY", code):
            if behind_another_member(code, found.start()):
                yield f"{relative(path)}:{code.count(chr(10), 0, found.start()) + 1}: SPC_TRY in braces, behind another member"


def behind_another_member(code, at):
    closed, comma = 0, False
    for character in reversed(code[:at]):
        if character in ")}]":
            closed += 1
        elif character in "([{" and closed:
            closed -= 1
        elif character == "{":
            return comma
        elif character in "([" or (character == ";" and not closed):
            if character == ";":
                return False
            comma = False
        elif character == "," and not closed:
            comma = True
    return False


def shells(files):
    for path in sorted(files):
        for number, line in enumerate(strip(path.read_text(), False).splitlines(), 1):
            if SHELL.search(line):
                yield f"{relative(path)}:{number}: {line.strip()}: names a shell"


def long_lines():
    for path in sources("spank", "runtime", "hooks", "packaging", "benchmarks"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if len(line) > MOST_COLUMNS:
                yield f"{relative(path)}:{number}: {len(line)} columns"


def long_files():
    for path, text in text_files():
        lines = text.count("\n")
        if lines > MOST_LINES_OF_A_FILE and relative(path) not in LONGER_BY_NATURE:
            yield f"{relative(path)}: {lines} lines, which is probably two ideas"


def check(report):
    modules = Modules()
    report.check("the list of modules is complete", module_problems(modules))
    report.check("files include only what the module arrows allow", include_problems(modules))
    root = root_files()
    counts = {path: code_lines(path, user_names) for path, user_names in root.items()}
    promise = f"code that runs as root has {sum(counts.values())} lines, at most {MOST_ROOT_LINES}"
    report.check(promise, size_problems(counts, MOST_ROOT_LINES))
    entering = entering_files()
    counts = {path: sum(1 for line in text.splitlines() if line.strip()) for path, text in entering.items()}
    own = {path: text for path, text in entering.items()
           if not relative(path).startswith(("runtime/base/", "runtime/protocol/"))}
    promise = (f"code that runs in tasks with capabilities has {sum(counts.values())} lines, at most {MOST_ENTERING_LINES}; "
               f"{sum(counts[path] for path in own)} without base and protocol")
    report.check(promise, size_problems(counts, MOST_ENTERING_LINES))
    report.check("a task with capabilities reads no text", banned_in(own, BANNED_WHILE_ENTERING))
    everywhere = set(sources("spank", "runtime", "hooks", "packaging/compat"))
    report.check("nobody makes a banned call", banned(everywhere, BANNED_EVERYWHERE))
    report.check("no error leaks what a braced initialiser has made", leaking_tries(everywhere))
    report.check("the agent makes no call that is banned for it", banned(with_base(agent_files()), BANNED_IN_AGENT))
    report.check("root's own code quotes no text of a user",
                 banned([path for path in root if not relative(path).startswith("runtime/base/")], BANNED_IN_ROOT_CODE))
    report.check("code that runs as root names no shell", shells(root))
    report.check("code that runs as root does without the formatting library",
                 [relative(path) for path in root if relative(path).startswith("runtime/base/format.")])
    report.check(f"no line of C++ has more than {MOST_COLUMNS} columns", long_lines())
    report.check(f"no file has more than {MOST_LINES_OF_A_FILE} lines", long_files())
