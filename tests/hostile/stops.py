"""Stop sweep: at each system call of a start, a pull or a join, the user makes Slurm stop the whole
step, as scancel -s STOP does if proctrack signals process trees. Another user's step on the same
node must still work, and another node of the step must continue. After the stopped step has ended,
the previous state must be restored.

A task that waits for its stopped server cannot be killed, and its stopped agent does not notice.
The test then kills both, as Slurm would."""
import os
import signal
import time

from cluster import kill_all
from command import await_true
from harness import expect
from scene import NODE, ON, PATIENCE, Traced
from sweeps import Sweep, all_in_any_order, sweep, tasks_that_probed

MOST = 20  # seconds for the other user's step on a quiet machine
STOPPED = ("start", "pull", "nodes", "join", "file")
ROOT_SIDE = ("agent", "agent+", "import", "layer-writer", "layer-verifier", "leader", "fuse", "relay")


class StopSweep(Sweep):
    def run(self, scenario, role, *what):
        if what == ("list",):
            return super().run(scenario, role, *what)
        self.number += 1
        others, stopped = self.cluster.strangers(NODE), []
        with Traced(self.cluster, self.tracer, role, *what) as traced:
            step = scenario.start(self.cluster, self.number)
            if traced.await_done(lambda: step.process.poll() is not None):
                stopped = [pid for pid in self.cluster.strangers(NODE) if pid not in others]
                kill_all(stopped, signal.SIGSTOP)
        try:
            if step.process.poll() is None:
                self.other_node_goes_on(scenario, step)
                self.other_user_works(scenario)
        finally:
            self.cancel_steps()
            if not self.has_ended(step, 3):
                kill_all(stopped)
        return step.end(PATIENCE), traced

    def other_node_goes_on(self, scenario, step):
        """Checks that the other node treats a silent one as dead and goes on at the registry."""
        if scenario.nodes > 1:
            within = MOST * max(1, os.getloadavg()[0] / os.cpu_count())
            await_true(lambda: step.process.poll() is not None or "1" in tasks_that_probed(step.said()), within, "the other node waits for the one that was stopped")

    def has_ended(self, step, within):
        deadline = time.monotonic() + within
        while step.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return step.process.poll() is not None

    def other_user_works(self, scenario):
        began = time.monotonic()
        if scenario.pulls:
            done = self.cluster.srun(*ON, "/probe", image=self.cluster.hostile_image, user="bob", timeout=90)
        else:
            done = self.cluster.srun(*ON, "cat", "/workspace/replaced", user="bob", timeout=90)
        seconds = (time.monotonic() - began) / max(1, os.getloadavg()[0] / os.cpu_count())
        expect(done.rc == 0, "another user's step fails", done)
        expect(seconds < MOST, f"another user's step took {seconds:.0f} s", done)

    def must_be_right(self, scenario, role, done):
        """Checks the step's result: it was cancelled."""
        expect("core dumped" not in done.err and "terminate called" not in done.err, "a crash", done)


def stops(cluster, options, count, budget, seed):
    def points_of(calls, chance):
        return all_in_any_order((("stop", at) for at in range(1, len(calls) + 1)), chance)

    def roles_of(scenario):
        return [role for role in scenario.roles if role in ROOT_SIDE] if scenario.name in STOPPED else []

    sweep(cluster, options, count, budget, seed, roles_of, points_of, StopSweep)
