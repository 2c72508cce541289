"""packaging/migration/terminal.md: commands as they are in a terminal. --write-golden types them again; otherwise the shapes are compared."""
import contextlib
import os
import re
import shlex

import harness
from command import WAITING
from examples_test import SITE, TOP, scenery
from harness import equal, expect, test
from site_files import rules

PAGE = os.path.join(TOP, "packaging/migration/terminal.md")
SECONDS = 60
BLOCK = re.compile(r"^```\n(.*?)^```\n", re.M | re.S)
PROMPT = re.compile(r"^(alice@head|root@node01):[^ ]*[$#] (.*)$", re.M)
# Text that differs between machines, runs, and versions of packages.
VARIABLE = (
    (r"\x1b\[[0-9;?]*[A-Za-z]|\r", ""),
    (r"sha256:[0-9a-f]{12,64}", "DIGEST"), (r"\b[0-9a-f]{12}\b", "DIGEST"),
    (r"[0-9]+(\.[0-9]+)? (B|kB|MB|GB|TB|MiB|GiB)\b", "SIZE"),
    (r"\b(just now|[0-9]+ (s|seconds?|minutes?|hours?)\b)( ago)?", "TIME"),
    (r"(kernel: Linux) \S+", r"\1 VERSION"),
    (r"\b[0-9]+(\.[0-9]+)*\b", "N"),
    (r"node0N|\bnodeN\b", "NODE"),
    (r" {2,}", "  "),
    # Only in a container, as this machine may be one.
    (r"(?m)^ok  (machine|loop devices|capabilities): .*\n", ""),
    # Other tests have left images and containers, and progress depends on that.
    (r"(?m)^(?!dev )\S+  alice  \S+  -  made TIME  node \S+\n", ""),
    (r"(?m)^\S+  DIGEST  linux/amd64  SIZE  TIME  (own|site|own,site)$", "IMAGE"), (r"(IMAGE\n)+", "IMAGE\n"),
    (r"(?m)^spank-container: pull(ing|ed) .*\n", ""),
)


def shape(text):
    for pattern, replacement in VARIABLE:
        text = re.sub(pattern, replacement, text)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def captures():
    """Returns the page's (prompt line, output) pairs in their order."""
    found = []
    for block in BLOCK.findall(open(PAGE).read()):
        parts = PROMPT.split(block)
        expect(parts[0] == "", f"a block begins without a prompt: {block}")
        found += [(user, command, output) for user, command, output in zip(parts[1::3], parts[2::3], (text[1:] for text in parts[3::3]))]
    return found


def type_line(cluster, there, user, command):
    """Returns what a terminal of 100 columns shows."""
    script = f"stty cols 100 rows 40; cd {there} 2>/dev/null; export TERM=xterm NO_COLOR=1; {command}"
    words = ["script", "-qec", f"sh -c {shlex.quote(script)}", "/dev/null"]
    done = cluster.enter("head", "alice", *words).end(SECONDS) if user == "alice@head" else cluster.root("node01", *words)
    lines = WAITING.sub("", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.out.replace("\r\n", "\n"))).split("\n")
    # A line of progress is overwritten: what remains is behind the last carriage return.
    return "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in lines if line.strip()) + "\n"


def written(page, outputs):
    """Returns the page with other outputs."""
    left = iter(outputs)
    return BLOCK.sub(lambda block: "```\n" + "".join(f"{match[0]}\n{next(left)}" for match in PROMPT.finditer(block[1])) + "```\n", page)


@contextlib.contextmanager
def stage(cluster):
    """Yields the directory of alice, whose own store has one image, and a container on node01."""
    with rules(cluster, SITE), scenery(cluster, "app.sif tools.sqsh") as there:
        cluster.run("scontainer", "rm", "debian:12")  # if another test has pulled it
        cluster.run("srun", "-w", "node01", "--container-image=debian:12", "--container-name=dev", "true").good()
        yield there


@test
def terminal_captures_have_the_shape_of_real_output(cluster):
    with stage(cluster) as there:
        outputs = [type_line(cluster, there, user, command) for user, command, _ in captures()]
    page = open(PAGE).read()
    if harness.write_golden:
        with open(PAGE, "w") as file:
            file.write(written(page, outputs))
        return
    for (_, command, capture), output in zip(captures(), outputs):
        equal(shape(output).splitlines(), shape(capture).splitlines(), command)


@test
def terminal_page_shows_each_command(_cluster):
    commands = "\n".join(command for _, command, _ in captures())
    for command in ("inspect", "images", "containers", "doctor", "doctor --node", "doctor slurm-12.out"):
        expect(re.search(rf"\bscontainer {command}\b", commands), f"{command} is not shown")
