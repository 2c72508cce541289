"""Transcripts: what a user types, as the tutorial has it, and what must be said.

    == NAME             a section: a test of this name
    [WORDS...]          what starts the shell in which it is typed, e.g. srun -N1 bash; without: a shell on the head
    # TEXT              a remark
    root$ COMMAND       run by root on the head, before the section; below typed lines: after it
    $ COMMAND           typed; a line that begins with "> " continues it
    = LINE              the output of the command above has this line
    ~ PATTERN           it has something that matches this regular expression
    ! STATUS            its exit status; without: 0. "! *": any but 0

A command that opens a shell, as apptainer shell does, gets the commands below it, up to "$ exit".
"""

import re
import subprocess
from dataclasses import dataclass, field

MARK = "@@typed"


@dataclass
class Typed:
    command: str
    number: int  # of its line in the file
    status: str = "0"
    lines: list = field(default_factory=list)
    patterns: list = field(default_factory=list)
    output: str = ""
    ended: str = ""  # its exit status, as text; empty: it was not reached


@dataclass
class Section:
    name: str
    shell: str = "bash"
    before: list = field(default_factory=list)  # root's commands
    after: list = field(default_factory=list)
    typed: list = field(default_factory=list)


def read(path):
    """Returns the sections of a file."""
    sections, last = [], None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        mark, _, rest = line.partition(" ")
        if mark == "==":
            sections.append(Section(rest))
            last = None
        elif line.startswith("[") and line.endswith("]"):
            sections[-1].shell = line[1:-1]
        elif mark == "root$":
            (sections[-1].after if last else sections[-1].before).append(rest)
        elif mark == "$":
            last = Typed(rest, number)
            sections[-1].typed.append(last)
        elif mark == ">" and last:
            last.command += "\n" + rest
        elif mark == "=" and last:
            last.lines.append(rest)
        elif mark == "~" and last:
            last.patterns.append(rest)
        elif mark == "!" and last:
            last.status = rest
        elif line and mark != "#" and sections:
            raise ValueError(f"{path}:{number}: {line!r} is no line of a transcript")
    return sections


OPENS_SHELL = re.compile(r"(apptainer|singularity|scontainer) shell\b")


def script(section):
    """Returns the commands, with a mark behind each. A shell in a container reads those up to "exit"."""
    text, inside = "", False
    for index, typed in enumerate(section.typed):
        mark = f"printf '\\n{MARK} {index} %s\\n' $?\n"
        if inside and typed.command == "exit":
            inside, mark = False, f"exit\n{MARK}\n{mark}"
        elif not inside and OPENS_SHELL.match(typed.command):
            inside, mark = True, f"{typed.command} <<'{MARK}'\n{mark}"
        else:
            mark = f"{typed.command}\n{mark}"
        text += mark
    return text


def play(section, command, seconds):
    """Types the section into the shell that `command` starts. Fills in outputs and statuses. Returns
    the output behind the last command that ended."""
    try:
        done = subprocess.run([*command, script(section)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=seconds, check=False)
        said = done.stdout
    except subprocess.TimeoutExpired as slow:
        said = (slow.stdout or b"").decode(errors="replace") + f"\nended after {seconds:.0f} s"
    begin = 0
    for mark in re.finditer(rf"\n?{MARK} (\d+) (\d+)\n", said):
        typed = section.typed[int(mark[1])]
        typed.output, typed.ended = said[begin:mark.start()], mark[2]
        begin = mark.end()
    return said[begin:]


def faults(section, rest):
    """Returns a line for each command that went otherwise than expected."""
    found = []
    for typed in section.typed:
        if not typed.ended:
            return [*found, f"line {typed.number}: not reached: {typed.command}\n{rest}"]
        wrong = [] if (typed.ended != "0" if typed.status == "*" else typed.ended == typed.status) else [f"exit status {typed.ended}"]
        said = typed.output.splitlines()
        wrong += [f"no line {line!r}" for line in typed.lines if line not in (one.strip() for one in said)]
        wrong += [f"nothing matches {pattern!r}" for pattern in typed.patterns if not re.search(pattern, typed.output, re.M)]
        if wrong:
            found.append(f"line {typed.number}: {', '.join(wrong)}: $ {typed.command}\n{typed.output}")
    return found
