"""Commands of the suites: what has been started, how it ended, and what it said."""
import contextlib
import os
import re
import shlex
import subprocess
import tempfile
import time

from harness import Failed, equal, expect

OURS = "spank-container: "
# Messages of srun while the job or the step before still ends: it depends on how busy the machine is.
WAITING = re.compile(r"^srun: (job [0-9]+ (queued and waiting for|has been allocated) resources"
                     r"|Job [0-9]+ step creation (still|temporarily) disabled, retrying.*|Step created for .*)\n", re.MULTILINE)


class Done:
    """A command that has ended."""

    def __init__(self, command, rc, out, err):
        self.command, self.rc, self.out, self.err = command, rc, out, err

    def good(self, out=None):
        """It succeeded, and printed `out` if that is given. Returns what it printed."""
        equal(self.rc, 0, "exit code", self)
        if out is not None:
            equal(self.out.strip(), out.strip(), "output", self)
        return self.out.strip()

    def messages(self):
        """The lines that are ours, wherever Slurm put them."""
        lines = [line for line in self.err.splitlines() if OURS in line]
        return [line[line.index(OURS) + len(OURS):] for line in lines]

    def errors(self):
        """Our lines but those that only tell how it goes."""
        return [line for line in self.messages() if not line.startswith(("pulling ", "pulled ", "using ", "warning: ", "waiting: ", "making room ")) and ": retrying in " not in line
                and not line.endswith(": going on elsewhere")]


OPEN = object()  # as stdin: ends when the command is waited for, so that `read` in a script keeps it until the test has looked


class Running:
    """A command that has been started; `end` waits for it."""

    def __init__(self, argv, env, stdin):
        self.command = shlex.join(argv)
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(argv, env=env, stdout=self.out, stderr=self.err,
                                        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL)
        if stdin not in (None, OPEN):
            with contextlib.suppress(BrokenPipeError):  # it may end without reading
                self.process.stdin.write(stdin.encode())
                self.process.stdin.close()

    def end(self, timeout=30):
        if self.process.stdin:
            self.process.stdin.close()
        try:
            rc = self.process.wait(patience(timeout))
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            raise Failed(f"did not end within {timeout} s", self._done("none")) from None
        return self._done(rc)

    def said(self):
        """Returns the output so far, both streams."""
        return self._text(self.out) + self._text(self.err)

    def await_text(self, text, timeout=15):
        await_true(lambda: text in self.said() or self.process.poll() is not None, timeout, f"it did not say {text!r}")
        expect(text in self.said(), f"it ended without saying {text!r}", self._done(self.process.poll()))

    def send(self, number):
        self.process.send_signal(number)

    def _done(self, rc):
        return Done(self.command, rc, self._text(self.out), WAITING.sub("", self._text(self.err)))

    @staticmethod
    def _text(file):
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), size, 0).decode(errors="replace")


def patience(seconds):
    """The time limit on this machine now: longer where more processes want to run than there are processors."""
    return seconds * max(1, os.getloadavg()[0] / os.cpu_count())


def await_true(condition, timeout, otherwise):
    deadline = time.monotonic() + patience(timeout)
    pause = 0.01  # s; longer and longer: to ask takes the processor from what is waited for
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(otherwise)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


class Inquirer:
    """A shell on the head that answers questions all the time: a new command for each would double the tests' time."""

    def __init__(self, *shell, **how):
        self.process = subprocess.Popen(shell, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **how)

    def ask(self, question):
        """The lines that the command prints."""
        print(f"{question}; echo .", file=self.process.stdin, flush=True)
        lines = []
        while (line := self.process.stdout.readline()) not in (".\n", ""):
            lines.append(line.rstrip("\n"))
        return lines

    def stop(self):
        self.process.stdin.close()
        self.process.wait(10)
