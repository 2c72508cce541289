"""Completion as each shell does it."""

import os
import pty
import select
import subprocess
import time

import machine
from machine import base, user


def test_bash_completes():
    script = user("completion", "bash").succeeds().out

    def completed(*words):
        ask = f"{script}\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _scontainer; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        return subprocess.run(machine.as_user(["bash", "-c", ask]), stdout=subprocess.PIPE, text=True, check=True,
                              env=machine.environment(), cwd=machine.home).stdout.split()
    assert completed("scontainer", "ins") == ["inspect"]
    assert "--mounts=" in completed("scontainer", "run", "--m")
    user("pull", base()).succeeds()
    assert base() in completed("scontainer", "run", "'" + base()[:6] + "'")
    user("completion", "tcsh").fails(1, "bash")


def test_fish_completes():
    script = user("completion", "fish").succeeds().out
    machine.write(os.path.join(machine.home, "it.fish"), script)
    user("pull", "-q", base()).succeeds()

    def completes(line):
        done = machine.run(machine.as_user(["fish", "--no-config", "-c", f"source it.fish; complete -C '{line}'"]), "", machine.environment(), machine.home)
        return [one.split("\t")[0] for one in done.succeeds().out.splitlines()]

    assert completes("scontainer att") == ["attach"], completes("scontainer att")
    assert "--remap-root" in completes("scontainer run --rem"), completes("scontainer run --rem")
    assert base() in completes("scontainer run 127"), completes("scontainer run 127")


def test_zsh_completes():
    machine.write(os.path.join(machine.home, "it.zsh"), user("completion", "zsh").succeeds().out)
    shell, theirs = pty.openpty()
    process = subprocess.Popen(machine.as_user(["zsh", "-f", "-i"]), stdin=theirs, stdout=theirs, stderr=theirs, cwd=machine.home,
                               env=machine.environment(TERM="dumb"), start_new_session=True)
    os.close(theirs)
    said = ""

    def hears(text, typed, seconds=15):
        nonlocal said
        said = ""
        os.write(shell, typed.encode())
        end = time.monotonic() + seconds
        while text not in said and time.monotonic() < end:
            if select.select([shell], [], [], 0.2)[0]:
                said += os.read(shell, 4096).decode(errors="replace")
        assert text in said, said
        time.sleep(1)  # until it edits a line again: before, the terminal itself would take the keys

    try:
        hears("ready-it-is", "autoload -U compinit; compinit -u -D; source it.zsh; echo ready-it-$(echo is)\n")
        for typed, completed in (("att", "ach"), ("run --rem", "ap-root"), ("login --no", "-check")):
            hears(completed, f"scontainer {typed}\t")
            os.write(shell, b"\x15")
    finally:
        process.kill()
        process.wait()
        os.close(shell)
