"""The cluster under test, its users' commands, and what may not change on its nodes."""
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile

import images
from command import Done, Inquirer, Running, await_true
from faulty_registry import FaultyRegistry
from harness import Failed, expect, say
from loop_files import loop_backing

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "../../cluster/cluster")
BUILD_IMAGE = os.path.join(HERE, "../../images/build")
NODES = ("node01", "node02")


class Cluster:
    program_path = PROGRAM  # for those who have to run it otherwise
    gpus = ("--gpus", "2")  # options of `cluster up`

    def __init__(self, stage, use=None, nodes=NODES, keep=False):
        """`use`: the state directory of a cluster that is up. `keep`: leaves the cluster up at the end."""
        self.stage, self.is_ours, self.nodes, self.is_kept = stage, use is None, nodes, keep
        # Users' home directories are in it, and what is in memory counts as one that does not last.
        self.state = use or os.path.join(tempfile.mkdtemp(prefix="spc-suites-", dir="/var/tmp"), "cluster")
        self.pushed = set()
        self.scenery = set()  # processes on nodes that a test needs to the end, whatever recover() ends

    def __enter__(self):
        if self.is_ours:
            self.program("up", str(len(self.nodes)), *self.gpus, "--stage", self.stage, timeout=120).good()
        try:
            self.etc = self.inside("head", "/etc")  # that of all machines
            self.home = os.path.join(self.state, "home")
            self.shared = os.path.join(self.home, "shared")
            self.images = tempfile.mkdtemp(prefix="spc-images-")
            self.faulty = FaultyRegistry(self.pid("head"))
            self.inquirer = Inquirer(PROGRAM, "as", "alice", "sh", env={**os.environ, "SPC_CLUSTER_DIR": self.state})
            self._allow_faulty_registry()
            self.push_base()
            self._warm_up()
        except BaseException:
            self.is_kept = False
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_):
        for name in ("faulty", "inquirer"):
            if hasattr(self, name):
                getattr(self, name).stop()
        if hasattr(self, "images"):
            shutil.rmtree(self.images, ignore_errors=True)
        if self.is_kept:
            say(f"kept: --use {self.state} (down: SPC_CLUSTER_DIR={self.state} tests/cluster/cluster down)")
        elif self.is_ours:
            self.program("down", timeout=60)
            shutil.rmtree(os.path.dirname(self.state), ignore_errors=True)

    # --- commands ------------------------------------------------------------------------------------------------

    def start_program(self, *argv, stdin=None):
        return Running([PROGRAM, *argv], {**os.environ, "SPC_CLUSTER_DIR": self.state}, stdin)

    def program(self, *argv, stdin=None, timeout=60):
        return self.start_program(*argv, stdin=stdin).end(timeout)

    def start(self, *argv, user="alice", env=(), stdin=None):
        """`env`: NAME=VALUE texts, as for env(1)."""
        return self.enter("head", user, *(["env", *env] if env else []), *argv, stdin=stdin)

    def enter(self, machine, user, *argv, stdin=None):
        """Does the work of `cluster as` and `cluster exec` without their shell, which takes as long as the rest."""
        return Running([os.path.join(self.state, "enter"), str(self.pid(machine)), user, *argv], None, stdin)

    def run(self, *argv, timeout=30, **how):
        return self.start(*argv, **how).end(timeout)

    def start_srun(self, *argv, image="base", **how):
        return self.start("srun", f"--container-image={self.name_of(image)}", *argv, **how)

    def srun(self, *argv, timeout=30, **how):
        """Runs a command in a container as alice; `image` is a synthetic image or the name of one that was pushed."""
        return self.start_srun(*argv, **how).end(timeout)

    def bash(self, script, *options, **how):
        """Runs a script in a container; it ends at the first command that fails."""
        return self.srun(*options, "bash", "-euc", script, **how)

    def root(self, node, *argv, stdin=None):
        return self.enter(node, "root", *argv, stdin=stdin).end(60)

    # --- batch jobs ----------------------------------------------------------------------------------------------

    def submit(self, script, *options, env=(), user="alice"):
        """Returns the job's number; its output goes to the file JOB.out in the user's home."""
        done = self.run("sbatch", "--parsable", "-o", f"/home/{user}/%A.out", *options, user=user, env=env, stdin=script)
        return int(done.good())

    def await_state(self, job, state, timeout=10):
        await_true(lambda: self.inquirer.ask(f"squeue -h -j {job} -o %T") == [state], timeout, f"job {job} did not become {state}")

    def await_job(self, job, timeout=20):
        """Returns the job's fields when it has ended."""
        found = {}

        def ended():
            text = self.inquirer.ask(f"scontrol -o show job {job}")
            found.update(re.findall(r"(\w+)=(\S+)", " ".join(text)))
            return found["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")

        await_true(ended, timeout, f"job {job} did not end within {timeout} s")
        return found

    def batch(self, script, *options, user="alice", **how):
        """Runs a batch job to its end: its output, and its exit code as Slurm tells it."""
        job = self.submit(script, *options, user=user, **how)
        fields = self.await_job(job)
        path = os.path.join(self.home, user, f"{job}.out")
        rc = int(fields["ExitCode"].split(":")[0])
        return Done("sbatch " + shlex.join(options) + " <<END\n" + script + "END", rc, open(path).read(), "")

    @contextlib.contextmanager
    def users_file_system(self, content=None, shared=False):
        """/run/fuse on node01: alice's own FUSE mount with one file, which even root has no access to. Yields its server's number.
        `content`: the path of what the file holds. `shared`: for everybody but root, who waits for ever; yields the server. "sites": root has mounted it."""
        source = open(os.path.join(HERE, "fuse_server.py")).read()
        how = ([content] if content else []) + ([shared if shared == "sites" else "shared"] if shared else [])
        server = self.start_program("exec", "node01", "python3", "-c", source, "/run/fuse", "2001", *how)
        try:
            server.await_text("serving")
            yield server if shared else self.processes("node01", "python3")[0]
        finally:
            kill_all(self.processes("node01", "python3"))
            server.send(signal.SIGCONT)  # it stops with a server that a test has stopped
            self.root("node01", "umount", "-l", "/run/fuse")
            server.end(5)
            self.root("node01", "rmdir", "/run/fuse")

    # --- images --------------------------------------------------------------------------------------------------

    def push(self, image):
        """Puts a synthetic image into the cluster's registry once and returns its name there."""
        name = f"registry:5000/{image.repository}:{image.tag}"
        if name not in self.pushed:
            directory = image.write_layout(self.images)
            # An upload is four requests a layer: 500 layers took over a minute on a loaded machine.
            self.program("push", directory, f"{image.repository}:{image.tag}", timeout=300).good()
            self.pushed.add(name)
        return name

    def push_base(self):
        built = subprocess.run([BUILD_IMAGE, "base"], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.base_layout = built.split()[-1]
        self.program("push", self.base_layout, "suites/base:1").good()

    def name_of(self, image):
        if image == "base":
            return "registry:5000/suites/base:1"
        return image if isinstance(image, str) else self.push(image)

    def _allow_faulty_registry(self):
        config = os.path.join(self.etc, "spank-container/config.toml")
        text = open(config).read()
        if self.faulty.host not in text:
            with open(config, "a") as file:
                file.write(f'[registries."{self.faulty.host}"]\ninsecure = true\n')

    def _warm_up(self):
        """Afterwards what a first use leaves on purpose is there: image, policy, table of loop devices."""
        self.srun(f"-N{len(self.nodes)}", "true").good()
        self.await_idle()
        await_true(lambda: not any(self.processes(node, "slurmstepd") for node in self.nodes), 10, "slurmstepd does not end")
        self.quiet = {node: self.traces(node) for node in self.nodes}

    # --- what is on a node ---------------------------------------------------------------------------------------

    def pid(self, machine):
        return int(open(os.path.join(self.state, "machines", machine, "pid")).read())

    def inside(self, machine, path):
        """The machine's file, as a path on this host."""
        return f"/proc/{self.pid(machine)}/root{path}"

    def processes(self, node, name=None):
        """Host numbers of the node's processes, or of those with this name."""
        space = os.stat(f"/proc/{self.pid(node)}/ns/pid").st_ino
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.stat(f"/proc/{entry}/ns/pid").st_ino == space:
                    if name is None or name_of(entry) == name:
                        if open(f"/proc/{entry}/stat").read().rpartition(")")[2].split()[0] != "Z":
                            found.append(int(entry))
            except OSError:
                pass
        return found

    def step_agents(self, node):
        """Not that of a job's epilog, which may still be there when the next job begins."""
        return [pid for pid in self.processes(node, "agent") if agent_command(pid) == "step"]

    def everybody(self, name=None):
        """Host numbers of the cluster's processes, or of those with this name, in whatever pid namespace."""
        with open(f"/proc/{self.pid('head')}/cgroup") as file:
            mark = re.search(r"/spc-cluster-[0-9]+/(?=head$)", file.read(), re.MULTILINE)[0]
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cgroup") as file:
                if mark in file.read() and (name is None or name_of(pid) == name):
                    found.append(pid)
        return found

    def names(self, node):
        return sorted(filter(None, map(name_of, self.processes(node))))

    def strangers(self, node):
        """Processes that are not the node's own; slurmstepd counts as its own, and so do a job's epilog (who killed it would keep what
        the job held) and what a test has said to be scenery."""
        return [pid for pid in self.processes(node) if pid not in self.scenery and agent_command(pid) != "epilog"
                and name_of(pid) not in ("machine", "munged", "slurmd", "slurmstepd", None)]

    def mounts(self, node):
        return open(f"/proc/{self.pid(node)}/mountinfo").read()

    def store(self, node):
        return os.path.join(self.state, "machines", node, "lib/spank-container")

    def layers(self, node):
        return set(os.listdir(os.path.join(self.store(node), "layers/sha256")))

    def store_entries(self, node):
        """A name is there as the image that it is of. A second one, of its tag without the digest, is no trace: it is written when the
        node asks what the tag stands for, which it does when srun did not hear of it in time."""
        store, images = self.store(node), set()
        names = os.path.join(store, "names")
        for name in os.listdir(names):
            with contextlib.suppress(FileNotFoundError), open(os.path.join(names, name)) as file:  # a newer one may take its place
                images.add(f"/names of {file.read().split()[0]}")
        return sorted(images | {os.path.join(where, name).removeprefix(store)
                                for where, directories, files in os.walk(store) if where != names for name in directories + files})

    def loops(self, node):
        """The loop devices behind which there is a file of this node's store, or a user's copy of one."""
        directory = self.inside(node, "/var/lib/spank-container/layers/sha256")  # which a test may have mounted there
        files = {(status.st_dev, status.st_ino) for status in (entry.stat() for entry in os.scandir(directory))}
        file_system, found = os.stat(directory).st_dev, []
        for name in os.listdir("/sys/block"):
            if name.startswith("loop") and os.path.exists(f"/sys/block/{name}/loop"):
                device, inode, given = loop_backing(self.inside(node, f"/dev/{name}")) or (0, 0, "")
                if (device, inode) in files or (device == file_system and re.match("[0-9]+[.][0-9]+[.][0-9a-f]+", given)):
                    found.append(name)
        return sorted(found)

    def traces(self, node):
        """Returns the state of a node that a step must leave unchanged."""
        runtime = self.inside(node, "/run/spank-container")
        return {"processes": self.names(node), "mounts": self.mounts(node), "loop devices": self.loops(node),
                "run directory": sorted(os.listdir(runtime)),
                "sockets": sorted(os.listdir(f"{runtime}/steps")) if os.path.isdir(f"{runtime}/steps") else []}

    def must_be_quiet(self, within=5, store=None):
        """Every node is as before all tests, within so many seconds of a quiet machine; `store`: what store_entries said before.

        slurmctld and slurmd take part in every end, and on a machine with other work they are late. slurmstepd itself has five
        seconds more: once the tasks are gone it looks for what they left, and sleeps in between."""
        within = 2 + within * max(1, os.getloadavg()[0] / os.cpu_count())
        left = {}

        def clean(ours_only):
            left.clear()
            for node in self.nodes:
                now, before = self.traces(node), dict(self.quiet[node])
                if ours_only:
                    for seen in (now, before):
                        seen["processes"] = [name for name in seen["processes"] if name != "slurmstepd"]
                left.update({f"{node}: {kind}": changed(before[kind], now[kind]) for kind in now if now[kind] != before[kind]})
                if store is not None and self.store_entries(node) != store[node]:
                    left[f"{node}: store"] = sorted(set(self.store_entries(node)) ^ set(store[node]))
            return not left

        try:
            await_true(lambda: clean(ours_only=True), within, "")
            within += 5
            await_true(lambda: clean(ours_only=False), 5, "")
        except Failed:
            raise Failed(f"not as before after {within:.0f} s: " + "; ".join(f"{kind}: {left[kind]}" for kind in left)) from None

    def stores(self):
        return {node: self.store_entries(node) for node in self.nodes}

    def states(self):
        found = self.inquirer.ask("sinfo -h -N -o '%N %T'")
        expect(len(found) == len(self.nodes), "slurmctld does not answer")
        return found

    def await_idle(self, timeout=15):
        try:
            await_true(lambda: all(state.endswith((" idle", " planned")) for state in self.states()), timeout, "")
        except Failed:
            told = [*self.states(), *self.inquirer.ask("squeue -h -o 'job %i %j %T'")]
            for node in self.nodes:
                told += ["", node, *self.names(node), *self.program("logs", node).out.splitlines()[-20:]]
            raise Failed("\n".join(["the nodes do not become idle", *told])) from None

    def must_be_well(self):
        """No test may leave a job, and no failure of a job may cost a node."""
        now = self.inquirer.ask("sinfo -h -N -o '%N %T'; squeue -h -o 'job %i %T'")
        expect(len(now) >= len(self.nodes), "slurmctld does not answer")
        jobs = [line for line in now if line.startswith("job ")]
        if jobs:
            await_true(lambda: not self.inquirer.ask("squeue -h"), 10, f"jobs are left: {', '.join(jobs)}")
        bad = [line for line in now if line not in jobs and not re.search(r" (idle|planned|completing|mixed|allocated)\*?$", line)]
        expect(not bad, f"a node is out of order: {', '.join(bad)}")

    def restart_all(self):
        """Lets all daemons read their configuration, and waits for idle nodes."""
        for machine in ("head", *self.nodes):
            self.program("restart", machine).good()
        self.await_idle()

    def recover(self):
        """After a failed test: the next one finds nothing of it."""
        self.run("scancel", "--me")
        for node in self.nodes:
            kill_all(self.strangers(node))
            self.run("scontrol", "update", f"nodename={node}", "state=resume", user="root")
        try:
            self.must_be_well()
        except Failed:
            pass


def changed(before, now):
    """Of a table of mounts, the lines that have come and gone."""
    if isinstance(now, str):
        before, now = before.splitlines(), now.splitlines()
        return [f"+{line}" for line in now if line not in before] + [f"-{line}" for line in before if line not in now]
    return now


def name_of(pid):
    """None when it has ended meanwhile. From 24.05 on, Debian's daemons of Slurm have another name once they have replaced themselves at
    `scontrol reconfigure`."""
    try:
        return open(f"/proc/{pid}/comm", errors="replace").read().strip().removesuffix("-wlm")
    except OSError:
        return None


def agent_command(pid):
    """Returns the purpose of an agent, "step" or "epilog"; None for other processes."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
        if len(words) > 1 and words[0].endswith(b"/agent"):
            return words[1].decode(errors="replace")
    return None


def kill_all(pids, number=signal.SIGKILL):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
