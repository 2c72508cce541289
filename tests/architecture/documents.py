"""Documents tell the truth about names: paths that exist, options and settings as the source has them."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from report import ROOT, difference, relative

DOCUMENTS = ("README.md", ".github/CONTRIBUTING.md", "hooks/README.md", "runtime/ARCHITECTURE.md", "runtime/DECISIONS.md",
             "runtime/agent/README.md", "runtime/hook_engine/README.md", "runtime/image/README.md")
TOP_LEVEL = ("spank", "runtime", "hooks", "benchmarks", "tests", "packaging")
OPTIONS = "runtime/request/options.cpp"
OPTIONS_PAGE = ROOT / "packaging/man/spank-container.7"
CLASSES = "runtime/launch/spec/environment.cpp"
SETTINGS = "runtime/config/config.hpp"
SETTINGS_PAGE = ROOT / "packaging/man/spank-container.conf.5"
HOOKS_PAGE = ROOT / "packaging/man/spank-container-hooks.7"
TOOL_PAGE = ROOT / "packaging/man/scontainer.1"
METRICS = "runtime/doctor/node.hpp"
METRICS_PAGE = ROOT / "packaging/man/spank-container-operation.8"
STRING = r'(nullptr|(?:"(?:\\.|[^"\\])*"\s*)+)'


# --- paths ---


def named_paths(document):
    """Line number and path: everything that begins with a directory of the top level, and in backquotes also what begins
    with a directory beside the document."""
    beside = [path.name for path in document.parent.iterdir() if path.is_dir()]
    anywhere = re.compile(rf"(?<![\w/.@-])(?:{'|'.join(TOP_LEVEL)})/[\w./-]*")
    in_backquotes = re.compile(rf"`((?:{'|'.join(beside) or '-'})/[\w./-]*)[^`]*`")
    for number, line in enumerate(document.read_text().splitlines(), 1):
        for name in anywhere.findall(line) + in_backquotes.findall(line):
            yield number, name.rstrip(".")


def path_problems(document):
    if not document.exists():
        yield f"{relative(document)} does not exist"
        return
    for number, name in named_paths(document):
        if not (ROOT / name).exists() and not (document.parent / name).exists():
            yield f"{relative(document)}:{number}: there is no {name}"


# --- tutorials ---

TUTORIALS_PAGE = ROOT / "packaging/migration/tutorials.md"
COMMANDS_OF_TUTORIALS = 74


def tutorial_problems():
    """The page numbers all commands, and each test that it names types commands of that tutorial."""
    tutorial, rows = "", 0
    tests = {path.stem: re.findall(r"(?m)^== (\w+)$", path.read_text()) for path in (ROOT / "tests/tutorials").glob("*.txt")}
    for number, line in enumerate(TUTORIALS_PAGE.read_text().splitlines(), 1):
        if found := re.match(r"Tests: `tutorials\.(\w+)\.\*`", line):
            tutorial = found[1]
        if row := re.match(r"\| (\d+) \|.*\|([^|]*)\|$", line):
            rows += 1
            if int(row[1]) != rows:
                yield f"{relative(TUTORIALS_PAGE)}:{number}: row {row[1]} instead of {rows}"
            for name in re.findall(r"\b[a-z]+(?:_[a-z0-9]+){2,}\b", row[2]):
                if name not in tests.get(tutorial, []):
                    yield f"{relative(TUTORIALS_PAGE)}:{number}: there is no test tutorials.{tutorial}.{name}"
    if rows != COMMANDS_OF_TUTORIALS:
        yield f"{relative(TUTORIALS_PAGE)} has {rows} rows instead of {COMMANDS_OF_TUTORIALS}"


# --- pictures ---


def picture_problems():
    """The pictures that tables of benchmarks/README.md determine show these tables."""
    done = subprocess.run([sys.executable, "-B", ROOT / "benchmarks/lib/plot.py", "--check"], stdout=subprocess.PIPE, text=True, check=True)
    yield from (f"benchmarks/{name} is not what the tables say (hint: benchmarks/lib/plot.py)" for name in done.stdout.split())


# --- thoughts ---

# The most files that a reader has to open for one thought (runtime/ARCHITECTURE.md, "Where to read one thought").
MOST_FILES_OF_A_THOUGHT = {"`--container-mounts`": 9, "may this user use this image": 4, "make room in the store": 4,
                           "401 to the login hint": 3, "kernel, copy or FUSE": 4}


def thought_problems():
    page = (ROOT / "runtime/ARCHITECTURE.md").read_text()
    table = page.partition("## Where to read one thought")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"(?m)^\| ([^|]+) \| (`[^|]+) \|$", table))
    yield from difference(rows, MOST_FILES_OF_A_THOUGHT, "thought")
    for thought, files in rows.items():
        count, most = len(re.findall(r"`[^`]+`", files)), MOST_FILES_OF_A_THOUGHT.get(thought, 0)
        if count > most:
            yield f"{thought}: {count} files, at most {most}"


# --- options ---


def text_of(literal):
    """A C string, adjacent ones joined; nullptr is None."""
    return None if literal == "nullptr" else "".join(re.findall(r'"((?:\\.|[^"\\])*)"', literal))


def option_table():
    """name -> (argument or None, environment twin or None), from OPTIONS."""
    source = (ROOT / OPTIONS).read_text()
    table = source[source.index("kOptions[] = {") : source.index("\n};", source.index("kOptions[] = {"))]
    rows = re.findall(rf'\{{"([\w-]+)",\s*{STRING},\s*{STRING},\s*{STRING},\s*Kind::', table)
    if len(rows) != len(re.findall(r'^    \{"', table, re.M)) or not rows:
        raise ValueError(f"{OPTIONS}: the option table is not written as documents.py reads it")
    return {name: (text_of(argument), text_of(twin)) for name, argument, _, twin in rows}


def plain(page):
    """A manual page without fonts and escapes."""
    return re.sub(r"\\f[A-Z]", "", page.read_text()).replace("\\-", "-")


def documented_options(page):
    """name -> (argument, twin) of each paragraph with a tag that is an option."""
    options = {}
    for tag, body in re.findall(r"^\.TP\n--(.*)\n((?:(?:[^.\n].*|\.IP)\n)*)", plain(page), re.M):
        name, _, argument = tag.replace("[=", "=").removesuffix("]" * ("[=" in tag)).partition("=")
        twin = re.search(r"Environment: SCONTAINER_(\w+)\.", body)
        options[name] = (argument or None, twin[1] if twin else None)
    return options


def option_problems():
    table, page = option_table(), documented_options(OPTIONS_PAGE)
    yield from difference(page, table, f"{relative(OPTIONS_PAGE)} against {OPTIONS}")
    for name in sorted(set(table) & set(page)):
        if table[name] != page[name]:
            yield f"--{name}: argument and twin are {table[name]} in {OPTIONS}, {page[name]} in the manual page"


def mentioned_option_problems():
    table = option_table()
    twins = {twin for _, twin in table.values()} | {"IMAGE_NAME", "IMAGE_DIGEST", "CONTAINER_NAME"}  # what every task is told
    for page in (OPTIONS_PAGE, SETTINGS_PAGE, ROOT / "README.md", *sorted(ROOT.glob("packaging/migration/*.md"))):
        for name in set(re.findall(r"--((?:no-)?container-[a-z-]+)", plain(page))) - set(table):
            yield f"{relative(page)}: there is no option --{name}"
        for twin in set(re.findall(r"\b(?:SCONTAINER|PYXIS_CONTAINER)_([A-Z_]+)", plain(page))) - twins:
            yield f"{relative(page)}: there is no variable SCONTAINER_{twin}"


# --- environment ---


def variable_classes():
    """name -> names of variables and rule, as the manual page says them, from CLASSES."""
    source = (ROOT / CLASSES).read_text()
    names = {array: re.findall(r'"([^"]+)"', body) for array, body in re.findall(r"string_view (k\w+)\[\] = \{([^}]*)\}", source)}
    table = source[source.index("kVariableClasses[] = {") : source.index("\n};", source.index("kVariableClasses[] = {"))]
    rows = re.findall(rf'\{{"(\w+)", (k\w+), ImageValue::\w+, Origin::\w+,\s*{STRING}\}}', table)
    if len(rows) != len(re.findall(r'^    \{"', table, re.M)) or not rows:
        raise ValueError(f"{CLASSES}: the table of classes is not written as documents.py reads it")
    return {name: f"{', '.join(names[array])}: {text_of(rule)}." for name, array, rule in rows}


def variable_class_problems():
    part = plain(OPTIONS_PAGE).split("\n.SS Classes of variables\n")[1].split("\n.SS ")[0]
    page = {name: " ".join(text.split()) for name, _, text in (row.partition("\n") for row in part.split("\n.TP\n")[1:])}
    table = variable_classes()
    yield from difference(page, table, "classes of variables in the manual page")
    for name in sorted(set(page) & set(table)):
        if page[name] != table[name]:
            yield f"variables of class {name}: {table[name]!r} in {CLASSES}, {page[name]!r} in the manual page"


# --- settings ---


def rows_of(table):
    """The rows of one type with keys: name, type, default and meaning, the last three as written."""
    source = (ROOT / SETTINGS).read_text()
    start = source.index(f"struct {table} {{")
    part = source[start : source.index("\n};", start)]
    rows = re.findall(rf'\{{"(\w+)",\s*{STRING},\s*{STRING},\s*{STRING},\s*&', part)
    if len(rows) != len(re.findall(r'^ +\{"', part, re.M)) or not rows:
        raise ValueError(f"{SETTINGS}: {table} is not written as documents.py reads it")
    return rows


def settings_of(*tables):
    """key -> type and default text, from the rows of these tables."""
    return {name: (text_of(kind), text_of(default)) for table in tables for name, kind, default, _ in rows_of(table)}


def documented_settings(section):
    """key -> type, default and example of one section of the manual page."""
    part = plain(SETTINGS_PAGE).split(f"\n.SH {section}\n")[1].split("\n.SH ")[0]
    entries = [entry for entry in re.split(r"^\.TP\n", part, flags=re.M) if re.match(r"\w+ \(", entry)]
    found = {}
    for entry in entries:
        name, kind, default = re.match(r"(\w+) \((.*); default: (.*)\)\n", entry).groups()
        found[name] = kind, "" if default == "none" else default, re.findall(rf"^Example: ({name} = .*)$", entry, re.M)
    return found


# Types, section and the line above its keys in config.toml.
SETTING_SECTIONS = ((("Config", "SitePolicy"), "KEYS", ""), (("StoreConfig",), "STORE", "[store]"), (("SharedConfig",), "SHARED STORE", "[shared]"),
                    (("PeersConfig",), "NODES OF A STEP", "[peers]"), (("NodesConfig",), "NODES BEFORE THE QUEUE", "[nodes]"),
                    (("RegistryConfig",), "REGISTRIES", '[registries."registry.example.org"]'))


def setting_problems():
    for tables, section, _ in SETTING_SECTIONS:
        source, page = settings_of(*tables), documented_settings(section)
        yield from difference(page, source, "settings in the manual page")
        for key in sorted(set(page) & set(source)):
            if page[key][:2] != source[key]:
                yield f"{key} is {source[key]} in the rows: type and default; the manual page says {page[key][:2]}"


def setting_example_problems(stage):
    """Each key has one example in the manual page, which the reader accepts and which is not the default."""
    tool = stage / "usr/bin/scontainer"
    for _, section, table in SETTING_SECTIONS:
        for key, (_, _, examples) in documented_settings(section).items():
            if len(examples) != 1:
                yield f"{key}: {len(examples)} examples in the manual page"
                continue
            with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
                file.write(f"{table}\n{examples[0]}\n")
                file.flush()
                done = subprocess.run([tool, "doctor", f"--config={file.name}", "--json"], env=environment_of(tool), stdout=subprocess.PIPE, text=True)
            told = json.loads(done.stdout)
            wrong = [check["detail"] for check in told["checks"] if check["verdict"] == "failed"]
            if wrong or not any(change["key"].endswith(key) for change in told["changes"]):
                yield f"{key}: the example {examples[0]!r}: {wrong or 'is the default'}"


def key_kinds():
    """key -> how a hook reads it: flag, list or text, from the rows of the site's policy."""
    types = {key: text_of(kind) for key, kind, _, _ in rows_of("SitePolicy")}
    return {key: "flag" if kind == "yes or no" else "settings_of" if kind.startswith("list") else "setting" for key, kind in types.items()}


def read_key_problems():
    """Hooks read settings by name: each is a key, and read as what it is."""
    kinds = key_kinds()
    for directory in ("hooks", "runtime/hook_engine", "runtime/launch/hooks"):
        for path in sorted((ROOT / directory).rglob("*.cpp")):
            for function, key in re.findall(r'\b(setting|flag|settings_of)\("(\w+)"', path.read_text()):
                if kinds.get(key) != function:
                    yield f"{relative(path)}: {function}(\"{key}\"): {'it is read by ' + kinds[key] if key in kinds else 'there is no such key'}"


# --- hooks ---


def hook_key_problems():
    """Every key of the JSON that hooks read and write, and of their descriptions, is in the manual page."""
    page = plain(HOOKS_PAGE)
    for name in ("hooks/hook_json.cpp", "hooks/hook_json.cpp", "runtime/hook_engine/hook_directory.cpp"):
        keys = set(re.findall(r'(?:\btake(?:_\w+)?\(|read_list\(object, )"(\w+)"', (ROOT / name).read_text()))
        if len(keys) < 5:
            raise ValueError(f"{name} is not written as documents.py reads it")
        for key in sorted(keys):
            if f'"{key}"' not in page and not re.search(rf"\b{key}\b", page):
                yield f"{relative(HOOKS_PAGE)} does not name {key}, which {name} reads"


# --- the command for people ---


def environment_of(tool):
    return {**os.environ, "LD_LIBRARY_PATH": str(next(tool.parent.parent.glob("lib*/**/libspank_container.so.1")).parent)}


def help_of(tool, *words):
    return subprocess.run([tool, *words, "--help"], env=environment_of(tool), stdout=subprocess.PIPE, text=True, check=True).stdout


def options_in_help(text):
    return set(re.findall(r"^  ((?:-\w, )?--[a-z-]+(?:\[?=\S+)?)(?: |$)", text, re.M))


def tool_problems(stage):
    """Commands, their words and options: the manual page says what --help says."""
    tool = stage / "usr/bin/scontainer"
    parts = re.split(r"^\.SS ", plain(TOOL_PAGE).split("\n.SH COMMANDS\n")[1].split("\n.SH ")[0], flags=re.M)[1:]
    page = {part.split()[0]: part for part in parts}
    commands = re.findall(r"^  ([a-z]+) +\S", help_of(tool).split("commands:\n")[1].split("\nexamples")[0], re.M)
    yield from difference(page, commands, f"commands in {relative(TOOL_PAGE)}")
    for name in sorted(set(page) & set(commands)):
        text = help_of(tool, name)
        usage = text.splitlines()[0].removeprefix("usage: scontainer ").replace(" [OPTION...]", "")
        if page[name].splitlines()[0] != usage:
            yield f"{name}: the page says {page[name].splitlines()[0]!r}, --help says {usage!r}"
        told = set(re.findall(r"^\.TP\n((?:-\w, )?--.*)$", page[name], re.M))
        if name == "shell":  # "The options are those of run."
            told = set(re.findall(r"^\.TP\n((?:-\w, )?--.*)$", page["run"], re.M))
        yield from difference(told, options_in_help(text), f"options of scontainer {name} in {relative(TOOL_PAGE)}")


def example_problems():
    """Examples name commands and options that exist."""
    parts = re.split(r"^\.SS ", plain(TOOL_PAGE).split("\n.SH COMMANDS\n")[1].split("\n.SH ")[0], flags=re.M)[1:]
    commands = {part.split()[0]: part for part in parts}
    options = option_table()
    for page in (OPTIONS_PAGE, TOOL_PAGE):
        examples = plain(page).split("\n.SH EXAMPLES\n")[1].split("\n.SH ")[0]
        lines = re.findall(r"^(?:srun|sbatch|scontainer|mkdir) (?:.*\\\\e\n)*.*", examples, re.M)
        if len(lines) < 10:
            raise ValueError(f"{relative(page)}: the examples are not written as documents.py reads them")
        for line in lines:
            for name in re.findall(r"--(container-[\w-]+)", line):
                if name not in options:
                    yield f"{relative(page)}: {line}: there is no option --{name}"
            tool = re.search(r"\bscontainer ([a-z]+)(.*)", line)
            if tool and tool[1] not in commands:
                yield f"{relative(page)}: {line}: there is no command {tool[1]}"
            elif tool:
                known = commands["run" if tool[1] == "shell" else tool[1]]
                yield from (f"{relative(page)}: {line}: {tool[1]} has no option {name}"
                            for name in re.findall(r" (--[a-z-]+)", tool[2]) if not re.search(rf"^(?:-\w, )?{name}\b", known, re.M))


# --- metrics ---


def metric_problems():
    """name -> (type, help): the manual page has the rows."""
    source = (ROOT / METRICS).read_text()
    table = source[source.index("kMetricRows[] = {") : source.index("\n};", source.index("kMetricRows[] = {"))]
    rows = {name: (kind, text_of(text)) for name, kind, text in re.findall(rf'\{{"(\w+)", "(\w+)",\s*{STRING}\}}', table)}
    if len(rows) != len(re.findall(r'^    \{"', table, re.M)) or not rows:
        raise ValueError(f"{METRICS}: the table is not written as documents.py reads it")
    part = plain(METRICS_PAGE).split("\n.SH METRICS\n")[1].split("\n.SH ")[0]
    page = {name: (kind, text) for name, kind, text in re.findall(r"^\.TP\n(spank_container_\w+) \((\w+)\)\n(.*)$", part, re.M)}
    yield from difference(page, rows, f"metrics in {relative(METRICS_PAGE)}")
    for name in sorted(set(page) & set(rows)):
        if page[name] != rows[name]:
            yield f"{name} is {rows[name]} in {METRICS}, {page[name]} in the manual page"


# --- links ---


def anchors_of(page):
    """The names by which a forge knows the page's headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def link_problems(pages, top):
    """Files and headings that Markdown pages link to, and paths of the source tree that an installation has elsewhere."""
    for page in pages:
        text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
        for target in re.findall(r"\]\(([^()\s]+)\)", text):
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            if re.match(r"https?://|mailto:", target):
                continue
            if not file.exists():
                yield f"{page.relative_to(top)}: there is no {target}"
            elif anchor and anchor not in anchors_of(file):
                yield f"{page.relative_to(top)}: no heading is {target}"


def installed_link_problems(stage):
    documents = stage / "usr/share/doc/spank-container"
    pages = sorted(documents.rglob("*.md"))
    if len(pages) < 10:
        yield f"only {len(pages)} pages are installed"
    yield from link_problems(pages, documents)
    for page in pages:
        for name in re.findall(r"`((?:packaging/(?:migration|examples|man|compat)|\.github|benchmarks)/[^`*\s]*)`", page.read_text()):
            if not (documents / name).exists() and (ROOT / name).exists() and page.parent == documents:
                yield f"{page.relative_to(documents)}: {name} is a path of the source tree"


def tree_link_problems():
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "*.md"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return link_problems([ROOT / name for name in names if (ROOT / name).exists()], ROOT)


# --- changelog ---


def changelog_problems():
    """Assembles the fragments of a copy, then one more, as a release does."""
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        shutil.copytree(ROOT / "packaging/changes.d", top / "packaging/changes.d")
        for name in ("packaging/changelog", "CMakeLists.txt", *(["packaging/CHANGELOG.md"] if (ROOT / "packaging/CHANGELOG.md").exists() else [])):
            shutil.copy(ROOT / name, top / name)

        def changelog(*words):
            return subprocess.run([top / "packaging/changelog", *words], stdout=subprocess.PIPE, text=True, check=True).stdout

        number = changelog("version").strip()
        for note, name in (("First `note`.", "gpu-first"), ("- Second note.\n- Third note.\n\nWhy: left-out.", "push-second")):
            (top / f"packaging/changes.d/{name}.md").write_text(note + "\n")
            changelog("assemble")
            if rest := [path.name for path in (top / "packaging/changes.d").glob("*.md") if path.name != "README.md"]:
                yield f"fragments remain: {' '.join(rest)}"
        notes = changelog("notes")
        for wanted in ("- First `note`.", "- Second note.\n- Third note.", "### GPUs, MPI and fabrics", "### Build, save and push"):
            if wanted not in notes:
                yield f"the notes lack {wanted!r}"
        if "left-out" in notes:
            yield "the notes have more than a fragment's first paragraph"
        if not changelog("deb", "7").startswith(f"spank-container ({number}-7) unstable; urgency=medium\n\n  * "):
            yield "the changelog of the Debian package does not begin with this version"
        times = re.findall(r"^ -- .*>  (.*)", changelog("deb"), re.M)
        if len(times) != len(set(times)):
            yield "entries in the changelog of the Debian package have the same time"
        if not re.match(rf"\* \w{{3}} \w{{3}} \d\d \d{{4}} .* - {re.escape(number)}-7\n- ", changelog("rpm", "7")):
            yield "the changelog of the RPM package does not begin with this version"


def check(report, stage):
    report.check("fragments become notes of a release and of packages", changelog_problems())
    report.check("every link in the Markdown pages resolves", tree_link_problems())
    report.check("every link in the installed Markdown pages resolves", installed_link_problems(stage))
    report.check("five thoughts are in few files each", thought_problems())
    for document in DOCUMENTS:
        report.check(f"every path that {document} names exists", path_problems(ROOT / document))
    report.check("every test that packaging/migration/tutorials.md names exists", tutorial_problems())
    report.check("pictures of benchmarks show the tables of their page", picture_problems())
    report.check("the manual page has the options of the option table, with arguments and twins", option_problems())
    report.check("the manual page has the table of classes of variables", variable_class_problems())
    report.check("no document names an option or a twin that does not exist", mentioned_option_problems())
    report.check("the manual page of scontainer says what --help says", tool_problems(stage))
    report.check("examples in the manual pages use options and commands that exist", example_problems())
    report.check("the manual page of scontainer has the metrics of the rows", metric_problems())
    report.check("the manual page of hooks names every key that is read", hook_key_problems())
    report.check("the manual page has the settings of the rows, with types and defaults", setting_problems())
    report.check("each setting of the manual page has an example that the reader accepts", setting_example_problems(stage))
    report.check("hooks read no setting that does not exist, and each as what it is", read_key_problems())
