"""The command enroot on top of scontainer, as scripts call it."""

import hashlib
import json
import os
import re
import signal
import subprocess

import machine
from machine import as_user, base, environment, home, image, run, user, wait_for

data = os.path.join(home, ".local/share/enroot")


def enroot(*arguments, stdin="", **variables):
    return run(as_user(["enroot", *arguments]), stdin, environment(**variables), home)


def refuses(done, *texts):
    """As enroot does: status 1, one line."""
    errors = [line for line in done.err.splitlines() if line.startswith("[ERROR] ")]
    assert done.status == 1 and len(errors) == 1, done
    for text in texts:
        assert text in errors[0], f"{text!r} is not in the error of {done}"
    return done


def plain():
    """The base image without its entrypoint, which prints what it is given."""
    there = machine.registry.repositories["base"]
    media_type, text = there.manifests["1"]
    manifest = json.loads(text)
    config = json.loads(there.blobs[manifest["config"]["digest"]])
    del config["config"]["Entrypoint"]
    made = machine.registry.repository("plain")

    def add(document):
        data = json.dumps(document).encode()
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        made.blobs[digest] = data
        return data, digest

    data, manifest["config"]["digest"] = add(config)
    manifest["config"]["size"] = len(data)
    made.blobs.update(there.blobs)
    data, digest = add(manifest)
    made.add_document(media_type, data, "1", digest)
    return f"{machine.registry.name}/plain:1"


def uri(reference=None):
    registry, name = (reference or base()).split("/", 1)
    return f"docker://{registry}#{name}"


def path(name):
    return os.path.join(home, name)


def imported(name="box.sqsh"):
    if not os.path.exists(path(name)):
        enroot("import", "-o", name, uri(plain())).succeeds()
    return name


def test_enroot_import_file_is_named_like_enroots():
    made = image("team/app", [{"file": b"x"}])
    enroot("import", uri(made)).succeeds()
    assert os.path.exists(path("team+app+1.sqsh")), os.listdir(home)
    refuses(enroot("import", uri(made)), "File already exists: " + path("team+app+1.sqsh"))
    for text, name in (("docker://ubuntu", "ubuntu"), ("docker://nvcr.io#nvidia/pytorch:24.03-py3", "nvidia+pytorch+24.03-py3"),
                       ("docker://me@nvcr.io/nvidia/cuda:12@sha256:" + 64 * "0", "nvidia+cuda+12"),
                       ("docker://$oauthtoken@localhost:5000#a/b", "a+b"), ("dockerd://host/app:1", "host+app+1")):
        machine.write(path(name + ".sqsh"), "")
        refuses(enroot("import", text), f"File already exists: {path(name)}.sqsh")
        os.unlink(path(name + ".sqsh"))
    refuses(enroot("import", "oci:" + made), "Invalid argument: oci:")
    refuses(enroot("import", "-z", uri(made)), "Invalid option: -z")
    failed = enroot("import", "-o", "none.sqsh", uri(f"{machine.registry.name}/nope:1"))
    assert failed.status == 1 and "nope" in failed.err and not os.path.exists(path("none.sqsh")), failed
    listed = subprocess.run(["unsquashfs", "-lln", path("team+app+1.sqsh")], stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in ("etc/rc", "etc/environment", "etc/fstab"):
        assert f"squashfs-root/{name}" in listed, name


def test_enroot_digest_is_that_of_the_registry():
    made = image("only/asked", [{"file": b"never fetched"}])
    before = len(machine.registry.seen("/only/asked/blobs/"))
    digest = enroot("digest", uri(made)).succeeds().out.strip()
    assert re.fullmatch("sha256:[0-9a-f]{64}", digest) and digest in machine.registry.repositories["only/asked"].manifests, digest
    assert len(machine.registry.seen("/only/asked/blobs/")) - before == 1  # the configuration, which says the platform
    assert digest[7:] not in machine.stored("images")
    assert digest == user("pull", "-q", made).out.strip()
    enroot("import", "-o", "by-digest.sqsh", f"{uri(made)}@{digest}").succeeds()


def test_enroot_containers_are_created_listed_and_removed():
    imported()
    enroot("create", "--name", "one", "box.sqsh").succeeds()
    enroot("create", "box.sqsh").succeeds()
    assert enroot("list").succeeds().out == "box\none\n"
    refuses(enroot("create", "-n", "one", "box.sqsh"), f"File already exists: {data}/one")
    enroot("create", "-f", "-n", "one", "box.sqsh").succeeds()
    refuses(enroot("create", "-n", "a/b", "box.sqsh"), "Invalid argument: a/b")
    refuses(enroot("create", "missing.sqsh"), "No such file or directory: missing.sqsh")
    machine.write(path("text"), "no image")
    refuses(enroot("create", "text"), "Invalid image format: " + path("text"))
    enroot("remove", "box", stdin="n\n").succeeds()
    assert enroot("list").out == "box\none\n"
    asked = enroot("remove", "box", stdin="y\n").succeeds()
    assert f"Do you really want to delete {data}/box? [y/N]" in asked.err, asked
    enroot("remove", "-f", "one").succeeds()
    refuses(enroot("remove", "-f", "one"), f"No such file or directory: {data}/one")
    assert os.listdir(data) == [], os.listdir(data)


def test_enroot_containers_outlive_image_file_and_keep_changes():
    enroot("import", "-o", "short-lived.sqsh", uri(plain())).succeeds()
    enroot("create", "-n", "kept", "short-lived.sqsh").succeeds()
    os.unlink(path("short-lived.sqsh"))
    assert enroot("start", "kept", "sh", "-c", "echo lost > /etc/new").status != 0
    enroot("start", "-w", "kept", "sh", "-c", "echo stays > /etc/new; rm /etc/debian_version").succeeds()
    enroot("start", "kept", "sh", "-c", "cat /etc/new; ls /etc/debian_version || echo gone").succeeds("stays\ngone\n")
    enroot("start", "kept", "sh", "-c", "echo more >> /etc/new", ENROOT_ROOTFS_WRITABLE="yes").succeeds()
    enroot("start", "--root", "kept", "id", "-u", ENROOT_ROOTFS_WRITABLE="no").succeeds("0\n")
    enroot("export", "kept").succeeds()
    refuses(enroot("export", "kept"), "File already exists: " + path("kept.sqsh"))
    enroot("export", "-f", "-o", "kept.sqsh", "kept").succeeds()
    enroot("start", "kept.sqsh", "sh", "-c", "cat /etc/new; pwd; echo $GREETER; test ! -e /etc/debian_version").succeeds(
        "stays\nmore\n/workspace\nbase\n")
    enroot("remove", "-f", "kept").succeeds()


def test_enroot_shares_the_image_file_or_copies_it():
    imported()
    enroot("create", "-n", "same", "box.sqsh").succeeds()
    assert os.path.samefile(f"{data}/same/image.sqsh", path("box.sqsh"))  # the file system here cannot share blocks
    enroot("remove", "-f", "same").succeeds()
    os.mkdir("/run/of-alice")  # another file system than home
    os.chown("/run/of-alice", machine.UID, machine.UID)
    elsewhere = {"ENROOT_DATA_PATH": "/run/of-alice"}
    enroot("create", "-n", "copy", "box.sqsh", **elsewhere).succeeds()
    with open(path("box.sqsh"), "rb") as ours, open("/run/of-alice/copy/image.sqsh", "rb") as theirs:
        assert ours.read() == theirs.read()
    assert os.listdir("/run/of-alice/copy") == ["image.sqsh"]
    enroot("start", "copy", "cat", "/etc/os-release", **elsewhere).succeeds("Debian")
    enroot("remove", "-f", "copy", **elsewhere).succeeds()


def test_enroot_container_has_one_writer_at_a_time():
    enroot("create", "-n", "busy", imported()).succeeds()
    first = subprocess.Popen(as_user(["enroot", "start", "-w", "busy", "sh", "-c", "echo ready; read line"]), text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), cwd=home)
    assert first.stdout.readline() == "ready\n"
    second = enroot("start", "-w", "busy", "true")
    assert second.status == 125 and "another container is using" in second.err, second
    enroot("start", "busy", "true").succeeds()
    first.communicate("\n", timeout=10)
    assert first.returncode == 0
    enroot("start", "-w", "busy", "true").succeeds()
    enroot("remove", "-f", "busy").succeeds()


def test_enroot_start_has_environment_mounts_and_command_script():
    imported()
    os.makedirs(path("shown"), exist_ok=True)
    machine.write(path("shown/file"), "of the host\n")
    machine.write(path("script"), "echo script: $@\n")
    done = enroot("start", "-e", "SET=a=b,c", "--env", "TAKEN", "box.sqsh", "sh", "-c", "echo $SET $TAKEN $LEFT $GREETER; echo $HOME",
                  TAKEN="outside", LEFT="must not be seen").succeeds()
    assert done.out == f"a=b,c outside base\n{home}\n", done
    enroot("start", "-m", f"{home}/shown:/made/here:none:x-create=dir,bind,ro", "-m", f"{home}/no:/no:none:bind,nofail", "box.sqsh",
           "cat", "/made/here/file").succeeds("of the host\n")
    enroot("start", "--mount", "shown:/there", "box.sqsh", "cat", "/there/file").succeeds("of the host\n")
    enroot("start", "--rc", "script", "box.sqsh", "--and", "words").succeeds("script: --and words\n")
    enroot("import", "-o", "entrypoint.sqsh", uri()).succeeds()
    enroot("start", "entrypoint.sqsh", "two", "words").succeeds("hello from base in /workspace: two words\n")
    assert enroot("start", "box.sqsh", "sh", "-c", "exit 7").status == 7
    assert "shown" not in enroot("start", "box.sqsh", "ls", "-A", home).out
    enroot("start", "box.sqsh", "ls", "-A", home, ENROOT_MOUNT_HOME="y").succeeds("shown")
    refuses(enroot("start", "-m", "tmpfs:/x", "box.sqsh", "true"), "Cannot mount")
    refuses(enroot("start", "-m", "nothing", "box.sqsh", "true"), "Invalid argument: nothing")
    refuses(enroot("start", "-e", "1X=y", "box.sqsh", "true"), "Invalid argument: 1X=y")
    refuses(enroot("start", "-c", "script", "box.sqsh", "true"), "not run here")
    refuses(enroot("start", "--net", "box.sqsh", "true"), "net namespace")
    refuses(enroot("start", "unknown", "true"), f"No such file or directory: {data}/unknown")


def test_enroot_list_shows_running_container_and_exec_joins_it():
    enroot("create", "-n", "served", imported()).succeeds()
    process = subprocess.Popen(as_user(["enroot", "start", "-e", "OF=container", "served", "sleep", "1000"]), env=environment(), cwd=home)
    try:
        wait_for("it runs", lambda: re.search(r"^served +\d+ +sleep +S", enroot("list", "-f").out, re.M))
        heading, *rows = enroot("list", "--fancy").succeeds().out.splitlines()
        assert heading.split() == ["NAME", "PID", "COMM", "STATE", "STARTED", "TIME", "MNTNS", "USERNS", "COMMAND"], heading
        row = next(row for row in rows if row.startswith("served")).split()
        assert row[2:4] == ["sleep", "S"] and row[8:] == ["sleep", "1000"], row
        assert os.readlink(f"/proc/{row[1]}/ns/mnt") == f"mnt:[{row[6]}]", row
        enroot("exec", "-e", "MORE=x", row[1], "sh", "-c", "echo $OF $MORE; pwd").succeeds("container x\n/workspace\n")
        assert enroot("exec", row[1], "sh", "-c", "exit 5").status == 5
    finally:
        process.terminate()
        assert process.wait(10) == 143
    assert enroot("list", "-f").succeeds().out.splitlines()[1:] == ["served"]
    enroot("remove", "-f", "served").succeeds()


def test_enroot_serves_the_sandboxes_of_a_trainer():
    """The commands of NeMo Gym's enroot provider (github.com/NVIDIA-NeMo/Gym, pull request 1952, nemo_gym/sandbox/providers/enroot/
    provider.py at 08ae2e1c), in its order and with its options, for an image with an entrypoint."""
    name, work = "nemo-gym-0123456789abcdef0123456789abcdef", path("gym")
    for part in ("data", "cache", "runtime", "sqsh", "staging"):
        os.makedirs(f"{work}/{part}")
    subprocess.run(["chown", "-R", f"{machine.UID}:{machine.UID}", work], check=True)
    places = {f"ENROOT_{part.upper()}_PATH": f"{work}/{part}" for part in ("data", "cache", "runtime")} | {"ENROOT_UNSHARE_PID": "yes"}
    enroot("import", "-o", f"{work}/sqsh/.key.tmp", uri(), **places).succeeds()
    os.replace(f"{work}/sqsh/.key.tmp", f"{work}/sqsh/key.sqsh")
    enroot("create", "-n", name, f"{work}/sqsh/key.sqsh", **places).succeeds()
    loop = f"while true; do sleep 86400; done  # {name}"
    process = subprocess.Popen(as_user(["enroot", "start", "--rw", "-m", f"{work}/staging:/sandbox", "-e", "TASK=one", "-e",
                                        "ENROOT_ENTRYPOINT=", name, "sh", "-c", loop]),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(**places),
                               cwd=home, start_new_session=True)

    def running():
        rows = [line.split() for line in enroot("list", "-f", **places).succeeds().out.splitlines()[1:]]
        return [row[1] for row in rows if row[0] == name and len(row) > 1 and row[1].isdigit()]
    try:
        wait_for("it is listed", lambda: running() or process.poll() is not None)
        assert process.poll() is None, process.stdout.read()
        pid = running()[0]
        with open(f"/proc/{pid}/cmdline") as file:
            assert name in file.read()

        def execute(script, *options, stdin=""):
            return enroot("exec", "-e", "TASK=one", *options, pid, "sh", "-c", script, stdin=stdin, **places)
        execute("printf enroot-sandbox-ready > /sandbox/.nemo-gym-ready && printf enroot-sandbox-ready").succeeds("enroot-sandbox-ready")
        execute("cd /tmp && echo $TASK $MORE; cat", "-e", "MORE=two", stdin="given").succeeds("one two\ngiven")
        machine.write(f"{work}/staging/up", "uploaded\n")
        execute("mkdir -p /opt/x && cp /sandbox/up /opt/x/file").succeeds()
        execute("cp /opt/x/file /sandbox/down").succeeds()
        assert open(f"{work}/staging/down").read() == "uploaded\n"
        failed = execute("echo wrong >&2; exit 3")
        assert failed.status == 3 and failed.err == "wrong\n", failed
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                pass
        process.wait(10)
    wait_for("it has ended", lambda: not running())
    enroot("remove", "-f", name, **places).succeeds()
    assert enroot("list", "-f", **places).succeeds().out.splitlines()[1:] == []


def test_enroot_load_and_directories_of_the_environment_work():
    places = {"ENROOT_DATA_PATH": path("enroot-data"), "ENROOT_CACHE_PATH": path("cache")}
    enroot("load", "-n", "loaded", uri(plain()), **places).succeeds()
    assert os.listdir(path("enroot-data")) == ["loaded"], os.listdir(path("enroot-data"))
    assert os.path.isdir(path("cache/spank-container/layers")), list(os.walk(path("cache")))
    enroot("start", "loaded", "sh", "-c", "cat /etc/os-release; echo [$XDG_DATA_HOME]", **places).succeeds("Debian", "[]")
    refuses(enroot("load", "-n", "loaded", uri(), **places), "File already exists")
    failed = enroot("load", "-n", "none", uri(f"{machine.registry.name}/nope:1"), **places)
    assert failed.status == 1 and os.listdir(path("enroot-data")) == ["loaded"], failed
    enroot("info", **places).succeeds(f"ENROOT_DATA_PATH={path('enroot-data')}\n")
    assert re.fullmatch(r"4\.\d+\.\d+\n", enroot("version").succeeds().out)
    enroot("remove", "-f", "loaded", **places).succeeds()


def test_enroot_starts_containers_unpacked_by_enroot():
    imported()
    os.makedirs(data, exist_ok=True)
    subprocess.run(as_user(["unsquashfs", "-no-progress", "-d", f"{data}/unpacked", path("box.sqsh")]), stdout=subprocess.DEVNULL, check=True)
    os.chmod(f"{data}/unpacked/etc/rc", 0o644)  # as enroot writes it
    enroot("start", "unpacked", "sh", "-c", "pwd; echo $GREETER").succeeds("/workspace\nbase\n")
    refuses(enroot("start", "-w", "unpacked", "true"), "Cannot write")
    enroot("remove", "-f", "unpacked").succeeds()
    assert not os.path.exists(f"{data}/unpacked")


def test_enroot_refuses_unsupported_options():
    refuses(enroot("batch", "x"), "batch")
    refuses(enroot("bundle", "box.sqsh"), "bundle")
    refuses(enroot("frobnicate"), "Invalid command: frobnicate")
    refuses(enroot("import"), "Invalid argument")
    enroot().succeeds("Usage: enroot COMMAND")


def test_enroot_hooks_run_before_the_container_begins():
    script = """#!/bin/bash
set -eu
source "${ENROOT_LIBRARY_PATH}/common.sh"
test "$OF_HOST" = yes; grep -q '^CapEff:.0*1ff' /proc/self/status || grep -q '^CapEff:.*[1-9a-f]' /proc/self/status
echo hook > "${ENROOT_ROOTFS}/by-hook"
echo "OF_HOOK=$OF_HOST" >> "${ENROOT_ENVIRON}"
enroot-mount --root "${ENROOT_ROOTFS}" - << EOF
/usr/share /opt/a none x-create=dir,rbind,ro,nosuid,nodev,private
tmpfs /opt/t tmpfs x-create=dir,mode=711,size=1m
tmpfs /opt/u tmpfs x-create=dir
none /opt/u none x-detach
/missing /opt/x none x-create=dir,bind,nofail,silent
none /opt/t none remount,ro,nosuid,nodev
EOF
! enroot-mount --root "${ENROOT_ROOTFS}" - <<< "tmpfs /../x tmpfs x-create=dir" 2> /dev/null
printf '%s /etc/of-hook x-create=file,bind\\n' "${ENROOT_ENVIRON}" > /dev/null
echo "/etc/hostname /etc/of-hook" >> "${ENROOT_MOUNTS}"
"""
    show = ("cat /by-hook; echo $OF_HOOK/${OF_HOST-unset}/${OF_USER-unset}; touch /opt/a/x 2> /dev/null || echo read-only; "
            "stat -c %a /opt/t; touch /opt/t/x 2> /dev/null || echo read-only; grep -c /opt/u /proc/self/mountinfo; test -e /etc/of-hook && echo mounted")
    wanted = ["hook", "yes/unset/1", "read-only", "711", "read-only", "0", "mounted"]
    os.makedirs("/etc/enroot/hooks.d", exist_ok=True)
    of_user = os.path.join(home, ".config/enroot/hooks.d")
    try:
        for path, text in (("/etc/enroot/hooks.d/10-it.sh", script), (f"{of_user}/20-own.sh", "#!/bin/sh\necho OF_USER=1 >> $ENROOT_ENVIRON\n")):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            machine.write(path, text)
            os.chmod(path, 0o755)
        enroot("import", "-o", f"{home}/of-hooks.sqsh", uri(plain())).succeeds()
        assert enroot("create", "-n", "of-hooks", f"{home}/of-hooks.sqsh").status == 0
        done = enroot("start", "--rw", "of-hooks", "sh", "-c", show, OF_HOST="yes")
        assert done.status == 0 and done.out.splitlines() == wanted, done
        done = enroot("start", "--root", "--rw", "of-hooks", "sh", "-c", show, OF_HOST="yes")
        assert done.status == 0 and done.out.splitlines() == wanted, done
        machine.write("/etc/enroot/hooks.d/10-it.sh", "#!/bin/sh\necho why >&2; exit 3\n")
        done = enroot("start", "--rw", "of-hooks", "echo", "came in")
        assert done.status != 0 and "came in" not in done.out and "10-it.sh exited with return code 3" in done.err and "why" in done.err, done
    finally:
        subprocess.run(["rm", "-rf", "/etc/enroot", os.path.join(home, ".config"), f"{home}/of-hooks.sqsh"], check=False)
        enroot("remove", "-f", "of-hooks")
