"""Completion as each shell does it."""

import contextlib
import os
import pty
import select
import subprocess
import time

import machine
from machine import base, user


def answer(*words):
    """Returns the first line and the candidates of `scontainer complete`, which all shells' scripts call."""
    kind, *lines = user("complete", "--", *words).succeeds().out.splitlines()
    assert all("\t" in line for line in lines), lines
    return kind, [line.split("\t")[0] for line in lines]


def test_complete_answers_from_rows_of_the_parser():
    assert user("complete", "--", "scontainer", "att").out == "none\nattach\trun a shell in the container of a job's step\n"
    assert answer("scontainer", "help", "ins") == ("none", ["inspect"])
    assert answer("scontainer", "pull", "--pull=n") == ("none", ["--pull=newer", "--pull=never"])
    assert answer("scontainer", "pull", "--pull", "al") == ("none", ["always"])
    assert answer("scontainer", "pull", "-o", "x") == ("files", [])
    assert answer("scontainer", "export", "--changes=x") == ("files", [])
    assert answer("scontainer", "containers", "ex") == ("none", ["export"])
    assert answer("scontainer", "containers", "export", "x", "y") == ("none", [])
    assert answer("scontainer", "completion", "") == ("none", ["bash", "fish", "zsh"])
    assert answer("scontainer", "doctor", "") == ("files", [])
    assert answer("scontainer", "nothing", "") == ("none", [])
    assert answer("/usr/bin/srun", "-N2", "--container-mpi=") == ("none", ["--container-mpi=image", "--container-mpi=host"])
    assert answer("sbatch", "--container-batch", "st") == ("none", ["steps"])
    assert answer("srun", "--container-mpi=host", "--container-im") == ("slurm", ["--container-image="])
    for slurms in ("--nodel", "--nodelist=", "host"):
        assert answer("srun", slurms) == ("slurm", []), slurms
    # Options behind the image are the command's.
    assert "--mounts=" in answer("scontainer", "run", "--env", "A=1", "--m")[1]
    assert answer("scontainer", "run", "--env", "A=1", "x", "--m") == ("files", [])
    user("complete").fails(2, "unknown command")


def test_complete_knows_each_command_and_option():
    _, names = answer("scontainer", "")
    helps = user("--help").out.split("commands:\n")[1].split("\n\n")[0].splitlines()
    assert names == [line.split()[0] for line in helps] + ["--help", "--version"], names
    for name in names[:-2]:
        text = user(name, "--help").out.partition("\noptions:\n")[2].split("\n\n")[0]
        words = [word.strip(",").partition("[=")[0] for line in text.splitlines() for word in line[2:28 if line[27:28] == " " else None].split() if word.startswith("-")]
        wanted = ["--help", *(word.partition("=")[0] + "=" * ("=" in word) for word in words)]
        assert answer("scontainer", name, "-") == ("none", wanted), (name, wanted)


def test_complete_knows_images_and_containers():
    user("pull", "-q", base()).succeeds()
    for kind, names in (answer("scontainer", "inspect", "127"), answer("srun", "--container-image", "127")):
        assert kind == "files" and base() in names, names
    assert f"--container-image={base()}" in answer("srun", "--container-image=127")[1]
    user("run", "-q", "-d", "--name=complete-me", base(), "sleep", "60").succeeds()
    try:
        assert answer("scontainer", "exec", "complete-") == ("none", ["complete-me"])
        assert answer("scontainer", "stop", "x", "complete-") == ("none", ["complete-me"])
        assert answer("scontainer", "containers", "inspect", "complete-") == ("none", ["complete-me"])
    finally:
        user("stop", "complete-me").succeeds()


def test_bash_completes_scontainer():
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


def fish():
    """A function: what fish offers for a line."""
    script = user("completion", "fish").succeeds().out
    machine.write(os.path.join(machine.home, "it.fish"), script)
    user("pull", "-q", base()).succeeds()

    def completes(line):
        done = machine.run(machine.as_user(["fish", "--no-config", "-c", f"source it.fish; complete -C '{line}'"]), "", machine.environment(), machine.home)
        return [one.split("\t")[0] for one in done.succeeds().out.splitlines()]

    return completes


def test_fish_completes_scontainer():
    completes = fish()
    assert completes("scontainer att") == ["attach"], completes("scontainer att")
    assert "--remap-root" in completes("scontainer run --rem"), completes("scontainer run --rem")
    assert base() in completes("scontainer run 127"), completes("scontainer run 127")


@contextlib.contextmanager
def shell_with_keys(before, *argv):
    """An interactive shell on a terminal, which has run `before`. Yields a function: types something and a tabulator, and waits until
    the shell says what it adds. From 24.11 on, Slurm's commands complete only with a configuration."""
    slurm_conf = os.path.join(machine.home, "slurm.conf")
    machine.write(slurm_conf, "ClusterName=test\nSlurmctldHost=localhost\nNodeName=localhost\nPartitionName=main Nodes=ALL\n")
    shell, theirs = pty.openpty()
    process = subprocess.Popen(machine.as_user(list(argv)), stdin=theirs, stdout=theirs, stderr=theirs, cwd=machine.home,
                               env=machine.environment(TERM="dumb", SLURM_CONF=slurm_conf), start_new_session=True)
    os.close(theirs)

    def hears(text, typed, seconds=15):
        said = ""
        os.write(shell, typed.encode())
        end = time.monotonic() + seconds
        while text not in said and time.monotonic() < end:
            if select.select([shell], [], [], 0.2)[0]:
                said += os.read(shell, 4096).decode(errors="replace")
        assert text in said, (typed, said)

    def completes(typed, completed):
        hears(completed, typed + "\t")
        os.write(shell, b"\x15")

    try:
        hears("ready-it-is", f"PS1='> '; {before}; echo ready-it-$(echo is)\n")
        time.sleep(1)  # until it edits a line again: before, the terminal itself would take the keys
        yield completes
    finally:
        process.kill()
        process.wait()
        os.close(shell)


# Typed text, and the text that the shell adds: Slurm's option, ours, and values of ours.
OF_SRUN = (("srun --container-im", "age="), ("sbatch --container-remap-r", "oot"), ("salloc --no-container-mount-h", "ome"),
           ("srun --container-pull=mis", "sing"), ("srun --container-mpi=ho", "st"))


def test_bash_completes_srun_options_beside_slurms_own():
    machine.write(os.path.join(machine.home, "it.bash"), user("completion", "bash").succeeds().out)
    user("pull", "-q", base()).succeeds()
    in_function = "load() { source it.bash; }; load"  # as bash-completion does when it has to
    with shell_with_keys(f". /usr/share/bash-completion/bash_completion; {in_function}", "bash", "--norc", "-i") as completes:
        completes("squeue --noh", "eader")
        completes("srun --nodel", "ist=")
        for typed, completed in OF_SRUN:
            completes(typed, completed)
        completes(f"srun --container-image={base()[:-2]}", base()[-2:])
        completes(f"scontainer run {base()[:-2]}", base()[-2:])
        completes("scontainer run --pull=mis", "sing")
        completes("true; scontainer doctor it.b", "ash")
        completes("srun --container-image it.b", "ash")
        completes("srun --open-mode=app", "end")


def test_bash_completes_srun_options_without_bash_completion():
    machine.write(os.path.join(machine.home, "it.bash"), user("completion", "bash").succeeds().out)
    with shell_with_keys("source it.bash", "bash", "--norc", "-i") as completes:
        for typed, completed in (*OF_SRUN, ("srun cat it.b", "ash")):
            completes(typed, completed)


def test_fish_completes_srun_options():
    completes = fish()
    for typed, completed in OF_SRUN:
        assert (typed.split()[-1] + completed).rstrip("=") in completes(typed), completes(typed)
    assert base() in [one.partition("=")[2] for one in completes("srun --container-image=127")], completes("srun --container-image=127")
    for line, file in (("srun cat it.f", "it.fish"), ("scontainer doctor it.f", "it.fish"), ("srun --container-save=it.f", "--container-save=it.fish")):
        assert completes(line) == [file], (line, completes(line))


def test_zsh_completes_scontainer():
    machine.write(os.path.join(machine.home, "it.zsh"), user("completion", "zsh").succeeds().out)
    with shell_with_keys("autoload -U compinit; compinit -u -D; source it.zsh", "zsh", "-f", "-i") as completes:
        for typed, completed in (("scontainer att", "ach"), ("scontainer run --rem", "ap-root"), ("scontainer login --no", "-check"), *OF_SRUN,
                                 ("scontainer run --pull=mis", "sing"), ("scontainer doctor it.z", "sh"), ("srun cat it.z", "sh")):
            completes(typed, completed)


def test_zsh_completes_by_a_file_of_its_path():
    os.makedirs(os.path.join(machine.home, "functions"), exist_ok=True)
    machine.write(os.path.join(machine.home, "functions/_scontainer"), user("completion", "zsh").succeeds().out)
    for typed, completed in (("scontainer att", "ach"), ("srun --container-im", "age=")):
        with shell_with_keys("fpath=(~/functions $fpath); autoload -U compinit; compinit -u -D", "zsh", "-f", "-i") as completes:
            completes(typed, completed)


# --- files of the packages ---


def packaged(name):
    """Returns the text of a packaged file, which gets the script from the program."""
    with open(os.path.join(machine.HERE, "../../packaging/completions", name), encoding="utf-8") as file:
        return file.read()


def write_below_home(path, text):
    path = os.path.join(machine.home, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    machine.write(path, text)


def test_bash_completes_by_the_packaged_files():
    write_below_home("slurm.bash", packaged("slurm.bash"))
    write_below_home("packaged/completions/scontainer", packaged("scontainer.bash"))
    before = "export BASH_COMPLETION_USER_DIR=$PWD/packaged; . /usr/share/bash-completion/bash_completion; . ./slurm.bash"
    with shell_with_keys(before, "bash", "--norc", "-i") as completes:
        completes("srun --nodel", "ist=")
        completes("srun --container-im", "age=")
        completes("scontainer att", "ach")
    with shell_with_keys(before, "bash", "--norc", "-i") as completes:
        completes("scontainer att", "ach")
        completes("sbatch --container-remap-r", "oot")
        completes("sbatch --nodel", "ist=")


def test_zsh_completes_by_the_packaged_file():
    write_below_home("packaged/_scontainer", packaged("_scontainer"))
    for typed, completed in (("scontainer att", "ach"), ("srun --container-im", "age=")):
        with shell_with_keys("fpath=(~/packaged $fpath); autoload -U compinit; compinit -u -D", "zsh", "-f", "-i") as completes:
            completes(typed, completed)
            completes("scontainer run --rem", "ap-root")


def test_fish_completes_by_the_packaged_file():
    for name in ("scontainer", "srun"):
        write_below_home(f".config/fish/completions/{name}.fish", packaged("scontainer.fish"))
    for line, whole in (("scontainer att", ["attach"]), ("srun --container-remap-r", ["--container-remap-root"])):
        done = machine.run(machine.as_user(["fish", "-c", f"complete -C '{line}'; complete -C '{line}'"]), "", machine.environment(), machine.home).succeeds()
        assert [one.split("\t")[0] for one in done.out.splitlines()] == whole * 2, done.out
