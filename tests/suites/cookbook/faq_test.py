"""spank-container-faq(7): each entry's command prints its message, and its cure works; messages that need another cluster are in the sources."""
import os
import re

from examples_test import PASSWORD, SITE, TOP, scenery, typed
from harness import equal, expect, test
from site_files import rules

PAGE = os.path.join(TOP, "packaging/man/spank-container-faq.7")
MOST = 60
NOT_RUN = {  # cures
    "scontainer login registry:5000": PASSWORD,
    "scontainer login registry:5001": PASSWORD,
    "scontainer login docker.io": PASSWORD,
    "docker build --platform=linux/amd64 -t registry.example.org/lab/app:1 .": "the cluster has no docker",
}
OF_OTHERS = {"srun: unrecognized option '--container-image=debian:12'": "srun's, of a host without the plugin"}


def entries():
    """Returns (title, symptom, cure) of each entry; both are lists of unfolded lines."""
    page = open(PAGE).read()
    found = []
    for title, body in re.findall(r"^\.SS (.*)\n((?:(?!\.S[SH] ).*\n)*)", page, re.M):
        blocks = [unfolded(block) for block in re.findall(r"^\.EX\n(.*?)^\.EE$", body, re.M | re.S)]
        expect(len(blocks) == 2, f"{title}: {len(blocks)} blocks instead of symptom and cure")
        found.append((plain(title), *blocks))
    return found


def plain(text):
    for escape, character in (("\\(aq", "'"), ("\\(ti", "~"), ("\\(ha", "^"), ("\\(ga", "`"), ("\\-", "-"), ("\\&", ""), ("\\e", "\\")):
        text = text.replace(escape, character)
    return text


def unfolded(block):
    lines = []
    for line in plain(block).splitlines():
        if lines and line.startswith("    "):
            lines[-1] = lines[-1].removesuffix(" \\") + " " + line.strip()
        else:
            lines.append(line)
    return lines


def masked(text):
    """Numbers differ from run to run."""
    return re.sub(r"[0-9]+(\.[0-9]+)?", "N", " ".join(text.split()))


def missing_lines(lines, done):
    output = masked(done.out + done.err)
    return [line for line in lines if masked(line) not in output]


def wrong_cures(cluster, there, cure):
    for line in cure:
        if line.startswith("$ ") and line[2:] not in NOT_RUN:
            done = typed(cluster, there, line[2:])
            if done.rc:
                yield f"{line}\n{done.out}{done.err}"


def problems_of(cluster, there, entry):
    title, symptom, cure = entry
    if symptom[0].startswith("$ "):
        done = typed(cluster, there, symptom[0][2:])
        for line in missing_lines(symptom[1:], done):
            yield f"{title}: does not print {line!r}\n{done.command}\n{done.out}{done.err}"
    yield from (f"{title}: the cure fails: {problem}" for problem in wrong_cures(cluster, there, cure))


@test
def faq_commands_print_messages_and_cures_work(cluster):
    with rules(cluster, SITE), scenery(cluster, "app.sif tools.sqsh") as there:
        problems = [problem for entry in entries() for problem in problems_of(cluster, there, entry)]
    expect(not problems, f"{len(problems)} entries do not hold\n" + "\n".join(problems))


def sources():
    """Returns the strings of the product's C++ files, adjacent ones joined."""
    text = ""
    for top in ("spank", "runtime", "hooks", "packaging"):
        for where, _, names in os.walk(os.path.join(TOP, top)):
            text += "".join(open(os.path.join(where, name)).read() for name in names if name.endswith((".cpp", ".hpp")))
    return re.sub(r'"\s*\n\s*"', "", text).replace('\\"', '"')


@test
def faq_messages_without_command_are_in_sources(_cluster):
    text = sources()
    lines = [line for _, symptom, _ in entries() for line in symptom if not symptom[0].startswith("$ ") and line not in OF_OTHERS]
    expect(len(lines) >= 8, f"only {len(lines)} messages")
    for line in lines:
        # Names, numbers and the punctuation of reason and hint are put in when a message is made.
        parts = [part for part in re.split(r'"[^"]*"|\bhint: |[0-9]+|\blinux/\w+|[():]', line) if len(part.strip()) > 11]
        expect(parts and all(part.strip(" ,") in text for part in parts), f"{line!r}: no source has all of {parts}")


@test
def faq_titles_are_unique_and_hints_name_them(_cluster):
    titles = [title for title, _, _ in entries()]
    expect(40 <= len(titles) <= MOST, f"{len(titles)} entries")
    equal(sorted(set(titles)), sorted(titles), "titles")
    named = re.findall(r'spank-container-faq\(7\), "([^"]*)"', sources().replace("\\", ""))
    expect(named, "no message names an entry")
    equal([title for title in named if title not in titles], [], "entries that messages name and the page does not have")


@test
def faq_reasons_name_lines_that_exist(_cluster):
    lines = {line.removeprefix("$ ") for _, symptom, cure in entries() for line in (*symptom, *cure)}
    equal(sorted({*NOT_RUN, *OF_OTHERS} - lines), [], "reasons for lines that the page does not have")
