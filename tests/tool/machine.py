"""Shared by the cases: a machine with the product installed, a registry, a user named alice, and ways to run scontainer."""

import contextlib
import json
import os
import signal
import subprocess
import time

import oci
from server import Server

HERE = os.path.dirname(os.path.abspath(__file__))
UID = 61234
SERVICE_UID = 61235
write_golden = False
work = os.environ["SPC_TOOL_MACHINE"]
home = os.path.join(work, "home")
runtime = os.path.join(work, "runtime")  # of sandboxes: /tmp belongs to all machines
registry = Server()
settings = f'stall_timeout = 3\n[registries."{registry.name}"]\ninsecure = true\n'


def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)


def overlay(directory):
    """`directory` can be written to, and nothing of it stays."""
    at = os.path.join(work, "over" + directory.replace("/", "-"))
    os.makedirs(at + "/up")
    os.makedirs(at + "/work")
    mount("-t", "overlay", "-o", f"lowerdir={directory},upperdir={at}/up,workdir={at}/work", "overlay", directory)


def install(stage, layouts):
    os.chmod(work, 0o755)
    mount("-t", "tmpfs", "-o", "mode=755", "tool", work)
    mount("-t", "overlay", "-o", f"ro,lowerdir={stage}/usr:/usr", "overlay", "/usr")
    for directory in ("/etc", "/var/lib"):
        overlay(directory)
    mount("-t", "tmpfs", "-o", "mode=755", "tool", "/run")
    # On most machines everybody may open it; a file system of our own could not hold the device if it were nodev.
    device = os.path.join(work, "fuse")
    os.mknod(device, 0o666 | 0o020000, os.makedev(10, 229))
    os.chmod(device, 0o666)
    mount("--bind", device, "/dev/fuse")
    os.makedirs(home)
    os.chown(home, UID, UID)
    os.makedirs(runtime)
    os.chown(runtime, UID, UID)
    with open("/etc/passwd", "a") as file:
        file.write(f"alice:x:{UID}:{UID}::{home}:/bin/sh\nspank-container:x:{SERVICE_UID}:{SERVICE_UID}::/:/usr/sbin/nologin\n")
    with open("/etc/group", "a") as file:
        file.write(f"alice:x:{UID}:\nspank-container:x:{SERVICE_UID}:\nproject:x:61300:alice\n")
    os.makedirs("/etc/spank-container", exist_ok=True)
    write("/etc/spank-container/config.toml", settings)
    # The agent tells its own files by their file system, which an overlay does not let it.
    os.makedirs("/var/lib/spank-container", exist_ok=True)
    mount("-t", "tmpfs", "-o", "mode=755", "tool", "/var/lib/spank-container")
    registry.paths.append((r"/v2/", lambda handler: handler.answer(200, b"{}", "application/json")))
    for name, layout in layouts.items():
        serve_layout(name, layout)


def forget_last_valid():
    """Removes what keep_last_valid keeps, as a reboot does."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink("/run/spank-container/policy")


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def serve_layout(name, layout):
    def blob(digest):
        with open(os.path.join(layout, "blobs/sha256", digest[7:]), "rb") as file:
            return file.read()
    with open(os.path.join(layout, "index.json")) as file:
        descriptor = json.load(file)["manifests"][0]
    manifest = blob(descriptor["digest"])
    repository = registry.repository(name)
    repository.add_document(descriptor["mediaType"], manifest, "1", "latest", descriptor["digest"])
    document = json.loads(manifest)
    for one in [document["config"], *document["layers"]]:
        repository.blobs[one["digest"]] = blob(one["digest"])


def image(name, layers, **options):
    """Serves a synthetic image; returns its reference."""
    made = oci.Image([oci.Layer(files) for files in layers], **options)
    registry.repository(name, made)
    return f"{registry.name}/{name}:1"


def base():
    return f"{registry.name}/base:1"


def as_user(command):
    return ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--init-groups", *command]


def environment(**more):
    variables = {"PATH": "/usr/bin:/bin", "HOME": home, "USER": "alice", "LC_ALL": "C.UTF-8"}
    variables.update(more)
    return {name: value for name, value in variables.items() if value is not None}


class Done:
    def __init__(self, command, process):
        self.command, self.status, self.out, self.err = command, process.returncode, process.stdout, process.stderr

    def __repr__(self):
        return f"{' '.join(self.command)}: status {self.status}\n{self.out}{self.err}"

    def succeeds(self, *texts):
        assert self.status == 0, self
        for text in texts:
            assert text in self.out, f"{text!r} is not in the output of {self}"
        return self

    def fails(self, status, *texts):
        """With one line of error that has these texts in it."""
        assert self.status == status, self
        lines = [line for line in self.err.splitlines() if line.startswith("scontainer: ")]
        assert len(lines) == 1, self
        for text in texts:
            assert text in lines[0], f"{text!r} is not in the error of {self}"
        return self

    def json(self):
        return json.loads(self.succeeds().out)


def user(*arguments, stdin="", cwd=None, **variables):
    return run(as_user(["scontainer", *arguments]), stdin, environment(**variables), cwd or home)


def root(*arguments, stdin=""):
    return run(["scontainer", *arguments], stdin, environment(HOME="/root", USER="root"), "/")


def run(command, stdin, variables, cwd):
    process = subprocess.run(command, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables,
                             cwd=cwd, timeout=60)
    return Done(command, process)


started = []  # in the background


def start(*arguments, **options):
    """In the background; as the leader of a process group."""
    started.append(subprocess.Popen(as_user(["scontainer", *arguments]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, env=environment(), cwd=home, start_new_session=True, **options))
    return started[-1]


def wait_for(what, condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} seconds"
        time.sleep(0.02)


def store(*parts):
    return os.path.join(home, ".local/share/spank-container", *parts)


def stored(what):
    return sorted(os.listdir(store(what))) if os.path.isdir(store(what)) else []


def names():
    """Returns the contents of the files in names/."""
    return "".join(open(store("names", file)).read() for file in stored("names"))


def golden(name, text):
    path = os.path.join(HERE, "golden", name)
    if write_golden:
        write(path, text)
    with open(path) as file:
        assert file.read() == text, f"differs from {path} (--write-golden rewrites it: look at the difference):\n{text}"


def our_processes():
    """Helper programs of this machine: they were started from its own /usr, which no other run of these tests has."""
    found, usr = [], os.stat("/usr/bin/scontainer").st_dev
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline", errors="replace") as file:  # others may be anything
                command = file.read().split("\0")[0]
            if command.startswith("/usr/libexec/spank-container/") and os.stat(f"/proc/{entry}/exe").st_dev == usr:
                found.append((entry, command))
        except OSError:
            continue
    return found


def must_be_clean():
    """No helper survives its container or its pull, and no container is noted that does not run."""
    try:
        wait_for("helpers are gone", lambda: not our_processes())
    except AssertionError as error:
        raise AssertionError(f"{error}: {our_processes()}") from None
    assert stored("running") == [], stored("running")
    started.clear()


def clean_up():
    """After a test that has failed: what it left would fail all that follow."""
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for process, _ in our_processes():
        try:
            os.kill(int(process), signal.SIGKILL)
        except ProcessLookupError:
            pass
    started.clear()
    user("sandbox", "stop", "--all", XDG_RUNTIME_DIR=runtime)
    user("containers")  # removes the notes of those that were killed
