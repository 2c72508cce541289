"""scontainer sandbox: many short containers of an ordinary user."""

import json
import os
import subprocess

import machine
from machine import base


def user(*arguments, **variables):
    return machine.user(*arguments, XDG_RUNTIME_DIR=machine.runtime, **variables)


def create(*options, image=None):
    return user("sandbox", "create", "--json", *options, image or base()).json()


def inside(name, *command, options=(), **more):
    return user("sandbox", "exec", "--json", *options, name, *command, **more)


def sh(name, script, *options):
    done = inside(name, "sh", "-c", script, options=options)
    assert done.out.startswith("{"), done
    return json.loads(done.out)


def test_sandbox_is_created_used_listed_and_stopped():
    made = create("--name=first")
    assert made["name"] == "first" and made["limits"] == "none", made
    ran = sh("first", "echo $$ >/kept; id -u; echo wrong >&2; exit 3")
    assert ran["exit_status"] == 3 and ran["stdout"] == f"{machine.UID}\n" and ran["stderr"] == "wrong\n", ran
    user("sandbox", "exec", "first", "cat", "/kept").succeeds()
    assert [one["name"] for one in user("sandbox", "list", "--json").json()] == ["first"]
    user("sandbox", "create", "--name=first", base()).fails(125, 'sandbox "first" runs already')
    user("sandbox", "stop", "first").succeeds()
    assert user("sandbox", "list", "--json").json() == []
    user("sandbox", "exec", "first", "true").fails(125, 'no sandbox "first"')


def test_unfinished_records_of_killed_commands_are_removed():
    user("sandbox", "list").succeeds()
    directory = os.path.join(machine.runtime, "spank-container/sandboxes")
    ended, lives = "half.4194304~.4194304~", f"half.{os.getpid()}~"  # the first number is above those of Linux
    for name in (ended, lives):
        machine.write(os.path.join(directory, name), '{"pid": 1')
    assert user("sandbox", "list", "--json").json() == []
    assert os.listdir(directory) == [lives], os.listdir(directory)
    os.unlink(os.path.join(directory, lives))


def test_sandbox_without_network_has_only_the_loopback():
    create("--name=alone", "--no-network")
    seen = sh("alone", "grep -c : /proc/net/dev; grep -q 127.0.0.1 /proc/net/fib_trie && echo up")
    user("sandbox", "stop", "alone").succeeds()
    assert seen["stdout"] == "1\nup\n", seen


def test_sandbox_sees_nothing_of_the_host():
    machine.write(f"{machine.home}/secret", "mine\n")
    host = subprocess.Popen(machine.as_user(["sleep", "1000"]))
    try:
        create("--name=a")
        create("--name=b", "--remap-root")
        sh("a", "echo of-a >/tmp/mine; sleep 1000 & echo $!")
        for name in ("a", "b"):
            seen = sh(name, f"ls {machine.home} /proc | cat; kill {host.pid}; cat {machine.home}/secret /tmp/mine; "
                            "grep -c . /proc/[0-9]*/cmdline; env")
            processes = [line for line in seen["stdout"].split() if line.isdigit()]
            assert len(processes) < 12 and "mine\n" not in seen["stdout"].replace("of-a", ""), seen
            assert "SECRET" not in seen["stdout"], seen
        assert host.poll() is None
        assert sh("b", "id -u")["stdout"] == "0\n"
        # process 1 shows neither its files nor its memory, and cannot be killed
        for name in ("a", "b"):
            tried = sh(name, "kill -9 1; cat /proc/1/mem /proc/1/environ; ls /proc/1/root/; echo alive")
            assert tried["stdout"].endswith("alive\n"), tried
            sh(name, "true")
    finally:
        host.kill()
        host.wait()
        user("sandbox", "stop", "--all").succeeds()


def test_sandbox_command_has_a_time_limit():
    create("--name=slow")
    ran = sh("slow", "sleep 1000 & setsid sleep 1001 & echo begun; sleep 1002", "--timeout=1")
    assert ran["timed_out"] and ran["exit_status"] == 124 and ran["stdout"] == "begun\n", ran
    left = sh("slow", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")["stdout"]
    assert "sleep 1000" not in left and "sleep 1002" not in left, left
    user("sandbox", "exec", "--timeout=1", "slow", "sleep", "1000").fails(124, "killed after 1 s")
    # a server in the background does not delay the end
    assert sh("slow", "sleep 1000 & echo begun", "--timeout=50")["stdout"] == "begun\n"
    user("sandbox", "stop", "slow").succeeds()
    process = create("--timeout=1")
    machine.wait_for("its end", lambda: not user("sandbox", "list", "--json").json())
    assert not os.path.exists(f"/proc/{process['pid']}/root/etc"), process


def test_sandbox_has_limits():
    made = create("--name=small", "--memory=64M", "--pids=20", "--cpus=1")
    assert made["limits"] == "rlimits" and made["memory"] == 64 << 20, made
    assert sh("small", "ulimit -d; nproc")["stdout"] == f"{64 << 10}\n1\n"
    filled = sh("small", "dd if=/dev/zero of=/full bs=1M count=100")
    assert "No space" in filled["stderr"], filled
    forked = sh("small", "for i in $(seq 40); do sleep 1000 & done; echo all")
    assert "all" not in forked["stdout"], forked
    user("sandbox", "stop", "small").succeeds()
    many = {"SCONTAINER_SANDBOX_MOST": "1", "SCONTAINER_SANDBOX_PIDS": "30"}
    assert user("sandbox", "create", "--json", base(), **many).json()["pids"] == 30
    user("sandbox", "create", base(), **many).fails(125, "1 sandboxes run already")
    user("sandbox", "stop", "--all").succeeds()


def test_sandbox_snapshot_is_forked():
    create("--name=origin", "--remap-root")
    sh("origin", "echo one >/one; rm /etc/debian_version; rm -r /var/lib/dpkg; mkdir /var/lib/dpkg; chmod 0 /one; ln -s /one /link")
    assert user("sandbox", "snapshot", "--json", "origin", "ready").json()["name"] == "ready"
    user("sandbox", "snapshot", "origin", "ready").fails(125, 'snapshot "ready" exists')
    for name in ("x", "y"):
        user("sandbox", "create", f"--name={name}", "--remap-root", "--from=ready").succeeds()
    sh("x", "echo two >/two")
    seen = sh("y", "cat /one /link; ls /etc/debian_version /two; ls -A /var/lib/dpkg")
    assert seen["stdout"] == "one\none\n", seen
    user("sandbox", "snapshot", "x", "second").succeeds()
    user("sandbox", "create", "--name=z", "--remap-root", "--from=second").succeeds()
    assert sh("z", "cat /one /two")["stdout"] == "one\ntwo\n"
    user("sandbox", "rm", "ready").fails(125, "is made of it")
    user("sandbox", "stop", "--all").succeeds()
    user("sandbox", "rm", "second", "ready").succeeds()
    user("sandbox", "create", "--from=ready").fails(125, 'no snapshot "ready"')


def test_sandbox_files_are_copied():
    create("--name=files")
    machine.write(f"{machine.home}/box-data", "data\n")
    user("sandbox", "cp", "box-data", "files:/etc/new").succeeds()
    user("sandbox", "cp", "box-data", "files:/tmp").succeeds()
    assert sh("files", "cat /etc/new /tmp/box-data; ln -s / /tmp/root; ln -s /etc/passwd /tmp/pass; mkfifo /tmp/pipe")["stdout"] == "data\ndata\n"
    user("sandbox", "cp", "files:/etc/new", "back").succeeds()
    assert open(f"{machine.home}/back").read() == "data\n"
    # links of the sandbox lead into the sandbox
    user("sandbox", "cp", "box-data", f"files:/tmp/root/tmp/through").succeeds()
    assert sh("files", "cat /tmp/through")["stdout"] == "data\n"
    user("sandbox", "cp", "files:/tmp/pass", "passwd").succeeds()
    assert "spank-container" not in open(f"{machine.home}/passwd").read()
    user("sandbox", "cp", "files:/tmp/pipe", "pipe").fails(125, "is not a file")
    user("sandbox", "cp", "files:/tmp/none", "none").fails(125, "no such file")
    user("sandbox", "stop", "files").succeeds()


def test_sandbox_example_for_python_works():
    program = """import sys
sys.path.insert(0, sys.argv[1])
from spank_container import Sandbox, SandboxError, sandboxes, stop_all
with Sandbox(sys.argv[2], name="py", pids=50, env={"SET": "a=b"}) as sandbox:
    open("up", "w").write("up\\n")
    sandbox.upload("up", "/tmp/up")
    done = sandbox.run("sh", "-c", "cat /tmp/up -; echo $SET $MORE; pwd; exit 4", env={"MORE": "c"}, workdir="/etc", stdin="in\\n")
    assert (done.exit_status, done.stdout) == (4, "up\\nin\\na=b c\\n/etc\\n"), done
    assert sandbox.run("sleep", "100", timeout=1).timed_out
    sandbox.snapshot("of-python")
    fork = Sandbox(snapshot="of-python")
    fork.download("/tmp/up", "down")
    assert open("down").read() == "up\\n"
    assert {one["name"] for one in sandboxes()} == {"py", fork.name}
assert [one["name"] for one in sandboxes()] == [fork.name]
stop_all()
try:
    fork.run("true")
except SandboxError as error:
    assert "no sandbox" in str(error), error
print("done")
"""
    # The user may be unable to read the directory of the tests.
    with open(os.path.join(machine.HERE, "../../packaging/examples/sandbox/spank_container.py"), encoding="utf-8") as file:
        machine.write(os.path.join(machine.home, "spank_container.py"), file.read())
    machine.run(machine.as_user(["/usr/bin/python3", "-B", "-c", program, machine.home, base()]), "",
                machine.environment(XDG_RUNTIME_DIR=machine.runtime), machine.home).succeeds("done\n")
    user("sandbox", "rm", "of-python").succeeds()
