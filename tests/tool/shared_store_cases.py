"""The site's shared store: what scontainer puts there, lists and removes, as root, who becomes the service user, and as that user."""

import contextlib
import ctypes
import os
import shutil
import socket
import stat
import subprocess
import time

import machine
from machine import image, root, user

HERE = os.path.dirname(os.path.abspath(__file__))
DIRECTORY = "/run/shared-store"
CONFIG = "/etc/spank-container/config.toml"
DAY = 24 * 3600


@contextlib.contextmanager
def shared_store(*keys):
    os.mkdir(DIRECTORY, 0o700)
    os.chown(DIRECTORY, machine.SERVICE_UID, machine.SERVICE_UID)
    machine.write(CONFIG, "\n".join([machine.settings, "[shared]", f'directory = "{DIRECTORY}"', *keys, ""]))
    try:
        yield
    finally:
        machine.write(CONFIG, machine.settings)
        shutil.rmtree(DIRECTORY)


def service(*arguments):
    ids = [f"--reuid={machine.SERVICE_UID}", f"--regid={machine.SERVICE_UID}", "--clear-groups"]
    return machine.run(["setpriv", *ids, "scontainer", *arguments], "", machine.environment(HOME="/", USER="spank-container"), "/")


def blobs():
    return os.listdir(f"{DIRECTORY}/blobs/sha256")


def listed():
    return [one for one in root("images", "--json").json() if one["store"] == "shared"]


def age(digest, days):
    when = time.time() - days * DAY
    os.utime(f"{DIRECTORY}/blobs/sha256/{digest[7:]}", (when, when))


def layers_asked(name):
    return sum("/blobs/" in path for _, path, _ in machine.registry.seen(f"/v2/{name}/"))


def test_pull_shared_fills_the_shared_store_only():
    name = image("for-all", [{"a": os.urandom(300_000)}, {"b": b"2"}, {"b": b"2"}])
    with shared_store():
        digest = root("pull", "--shared", name).succeeds().out.strip()
        assert len(blobs()) == 4 and digest[7:] in blobs(), blobs()
        assert {os.stat(f"{DIRECTORY}/{path}").st_uid for path in ("blobs/sha256", f"blobs/sha256/{digest[7:]}")} == {machine.SERVICE_UID}
        assert not os.path.exists(f"/var/lib/spank-container/records/{digest[7:]}")
        asked = layers_asked("for-all")
        # Once more it is only read; a node, too, takes all of it from there.
        assert service("pull", "--shared", "--quiet", name).succeeds().out.strip() == digest
        root("pull", name).succeeds(digest)
        assert layers_asked("for-all") == asked
        assert os.listdir(f"{DIRECTORY}/tmp") == os.listdir(f"{DIRECTORY}/leases") == []


def test_pull_shared_repairs_damaged_blobs():
    name = image("mended", [{"a": os.urandom(100_000)}])
    with shared_store():
        root("pull", "--shared", name).succeeds()
        largest = max((f"{DIRECTORY}/blobs/sha256/{blob}" for blob in blobs()), key=lambda path: os.stat(path).st_size)
        with open(largest, "r+b") as file:
            file.write(b"?")
        root("pull", "--shared", name).fails(1, "has digest", "is removed: try again")
        root("pull", "--shared", name).succeeds()


def test_pull_shared_of_missing_image_reads_no_others():
    name = image("missing", [{"a": os.urandom(100_000)}, {"b": os.urandom(50_000)}])
    with shared_store():
        digest = root("pull", "--shared", "--pull=missing", name).succeeds().out.strip()
        by_size = sorted((f"{DIRECTORY}/blobs/sha256/{blob}" for blob in blobs()), key=lambda path: os.stat(path).st_size)
        os.unlink(by_size[-2])
        with open(by_size[-1], "r+b") as file:
            file.write(b"?")
        asked = layers_asked("missing")
        assert root("pull", "--shared", "--pull=missing", name).succeeds().out.strip() == digest
        assert layers_asked("missing") == asked + 1 and os.path.exists(by_size[-2])
        root("pull", "--shared", name).fails(1, "has digest")


def test_pull_shared_failure_is_explained():
    name = image("cannot", [{"a": os.urandom(300_000)}])
    root("pull", "--shared", name).fails(1, "no shared store")
    with shared_store('max_size = "100K"'):
        done = root("pull", "--shared", name)
        assert done.status == 1 and "more than its max_size" in done.err and "is not in shared store" in done.err, done
        root("pull", "--shared", "--pull=never", name).fails(1, "--pull but missing")
        root("pull", "--shared", "/etc/passwd").fails(1, "images of registries only")
        root("pull", "--shared", f"{machine.registry.name}/nope:1").fails(1, "nope", "into the shared store")
        user("pull", "--shared", name).fails(1, "service user", "run it as root")
        user("gc", "--shared").fails(1, "service user")
        os.chown(DIRECTORY, 0, 0)
        root("pull", "--shared", name).fails(1, "shared store")


def test_images_lists_the_shared_store_for_permitted_users():
    name = image("listed-shared", [{"a": os.urandom(300_000)}])
    with shared_store():
        digest = root("pull", "--shared", name).succeeds().out.strip()
        age(digest, 3)
        found, = listed()
        assert found["digest"] == digest and found["names"][0]["name"] == name.rsplit(":", 1)[0], found
        assert found["platform"] == "linux/amd64" and found["layers"] == 1 and found["complete"], found
        assert found["bytes"] == sum(os.stat(f"{DIRECTORY}/blobs/sha256/{blob}").st_size for blob in blobs()), found
        assert abs(time.time() - 3 * DAY - found["last_used"]) < 60, found
        line, = [line for line in root("images").succeeds().out.splitlines() if line.endswith("shared")]
        assert line.split()[0].endswith("/listed-shared") and "3 days" in line, line
        assert listed()[0]["last_used"] == found["last_used"], "who looks does not use it"
        assert digest[7:19] not in user("images").succeeds().out
        for blob in blobs():
            if os.stat(f"{DIRECTORY}/blobs/sha256/{blob}").st_size > 300_000:
                os.unlink(f"{DIRECTORY}/blobs/sha256/{blob}")
        assert "(incomplete)" in service("images").succeeds().out
        os.chmod(DIRECTORY, 0o755)
        done = root("images").succeeds()
        assert "can be entered by others" in done.err, done


def test_gc_shared_removes_unused_images():
    names = [image(f"old-{days}", [{"a": os.urandom(200_000)}]) for days in (1, 40)]
    with shared_store():
        digests = [root("pull", "--shared", name).succeeds().out.strip() for name in names]
        root("gc", "--shared").succeeds("would remove 0 files")
        for blob in blobs():
            age(f"sha256:{blob}", 2)
        age(digests[1], 40)
        for path, seconds in (("tmp/x", 2 * DAY), ("tmp/y", 60), ("leases/x", 3600), ("leases/y", 60)):
            machine.write(f"{DIRECTORY}/{path}", "")
            os.utime(f"{DIRECTORY}/{path}", (time.time() - seconds,) * 2)
        assert root("gc", "--shared", "--older=30", "--json").json()["dry_run"] and digests[1][7:] in blobs()
        root("gc", "--shared", "--older=30", "--yes").succeeds("removed 1 file, ", "and 2 leftovers of dead nodes")
        assert digests[1][7:] not in blobs() and digests[0][7:] in blobs() and len(blobs()) == 5
        assert [os.listdir(f"{DIRECTORY}/{directory}") for directory in ("tmp", "leases")] == [["y"], ["y"]]
        assert service("gc", "--shared", "--older=1", "--yes", "--json").json()["files"] == 5
        root("gc", "--shared", "--older=x").fails(1, "number of days")
        root("gc", "--older=1").fails(1, "--shared")


def test_gc_shared_keeps_the_limit():
    name = image("limited", [{"a": os.urandom(200_000)}, {"b": os.urandom(100_000)}])
    with shared_store():
        digest = root("pull", "--shared", name).succeeds().out.strip()
        for number, blob in enumerate(sorted(blobs(), key=lambda blob: -os.stat(f"{DIRECTORY}/blobs/sha256/{blob}").st_size)):
            age(f"sha256:{blob}", 100 - number)
        machine.write(CONFIG, open(CONFIG).read() + 'max_size = "150K"\n')
        removed = root("gc", "--shared", "--yes", "--json").json()
        assert removed["files"] == 1 and removed["bytes"] > 200_000 and digest[7:] in blobs(), removed


def test_doctor_reports_the_image_path():
    def sources():
        return {one["check"]: one for one in user("doctor", "--job", "--json").json()}["image sources"]
    root("pull", image("any", [{"a": b"1"}])).succeeds()
    assert sources()["detail"] == "the node's store, then the registry" and sources()["verdict"] == "ok", sources()
    with shared_store():
        machine.write(CONFIG, open(CONFIG).read().replace("insecure = true", 'insecure = true\nmirrors = ["cache:5080", "127.0.0.1:4001"]'))
        told = sources()
        assert told["detail"] == (f"the node's store, then shared store {DIRECTORY}, then for images of {machine.registry.name} "
                                  "mirrors cache:5080, 127.0.0.1:4001, then the registry"), told
        os.chmod(DIRECTORY, 0o755)
        told = sources()
        assert told["verdict"] == "warning" and f"{DIRECTORY} (not used: " in told["detail"] and "chmod 0700" in told["cure"], told


def test_doctor_reports_whether_nodes_share_images():
    def peers(keys="", **step):
        machine.write(CONFIG, "\n".join([machine.settings, "[peers]", keys, ""]))
        told = {one["check"]: one for one in user("doctor", "--job", "--json", **step).json()}["other nodes"]
        return told["verdict"], told["detail"], told["cure"]
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_NODES": "3", "SLURMD_NODENAME": "n1", "SLURM_STEP_NODELIST": "n1,127.0.0.[1,7-9]"}
    try:
        assert peers() == ("ok", peers()[1], "") and peers()[1].startswith("on, for steps on several nodes, at "), peers()
        assert peers("enabled = false", **step) == ("ok", "off, each node pulls by itself: [peers] enabled is false", "")
        assert peers(SLURM_STEP_NUM_NODES="1") == ("ok", "none: this step has one node", "")
        assert peers(SLURM_JOB_NUM_NODES="1")[1] == "none: this job has one node"
        verdict, detail, cure = peers('ports = "5000-5009"', **step, SLURM_LAUNCH_NODE_IPADDR="127.0.0.1", SLURM_SRUN_COMM_PORT="9")
        assert verdict == "ok" and detail.startswith("on, before the shared store and the registry: 3 nodes, at "), detail
        assert detail.endswith(", ports 5000-5009; srun at 127.0.0.1 says who takes from whom"), detail
        for keys, more, why, what in [
                ('networks = ["198.51.100.0/24"]', {}, "this node has no address in [peers] networks", "correct [peers] networks"),
                ("", {"SLURM_STEP_NODELIST": "255.255.255.255"}, "255.255.255.255 at port ", "open the firewall of the nodes"),
                ('ports = "5000-5009"', {"SLURM_STEP_NODELIST": "n1,no-such-node"}, "no-such-node at port 5000: ", "open the firewall"),
                ("", {"SLURM_LAUNCH_NODE_IPADDR": "255.255.255.255", "SLURM_SRUN_COMM_PORT": "9"}, "srun at 255.255.255.255: ", "firewall of srun's host")]:
            verdict, detail, cure = peers(keys, **{**step, **more})
            assert verdict == "warning" and detail.startswith(f"not used, each node pulls by itself: {why}") and what in cure, (detail, cure)
        with socket.create_server(("0.0.0.0", 0)) as taken:
            port = taken.getsockname()[1]
            verdict, detail, cure = peers(f'ports = "{port}-{port}"', **step)
            assert verdict == "warning" and f"no port of {port}-{port} is free" in detail and "more ports" in cure, (detail, cure)
    finally:
        machine.write(CONFIG, machine.settings)


def test_hung_shared_store_does_not_hang_readers():
    libc = ctypes.CDLL(None, use_errno=True)
    with shared_store():
        device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        assert libc.mount(b"hangs", DIRECTORY.encode(), b"fuse", 0, options) == 0, os.strerror(ctypes.get_errno())
        try:
            began = time.monotonic()
            told = {one["check"]: one for one in user("doctor", "--job", "--json").json()}["image sources"]
            assert told["verdict"] == "warning" and "no answer in time" in told["detail"], told
            assert time.monotonic() - began < 8
        finally:
            os.close(device)
            libc.umount2(DIRECTORY.encode(), 2)

# --- before there are nodes ---

STAND_INS = """
slurm = {SUCCESS = 0, ERROR = -1, log_info = function(...) io.stderr:write(string.format(...), "\\n") end}
dofile(arg[1])
for _, name in ipairs({"pools", "job_teardown", "setup", "real_size", "paths", "pre_run", "post_run", "data_out", "get_status"}) do
  assert(_G["slurm_bb_" .. name]("7", "/nowhere", "0", "0") == slurm.SUCCESS, name)
end
local verdict, why = slurm_bb_job_process(arg[2], "1000", "1000")
print(verdict, why or "")
if verdict == slurm.SUCCESS then print(slurm_bb_data_in("7", arg[2], "1000", "1000")) end
"""
SUDO = '#!/bin/sh\nset -e\n[ "$1 $2 $3" = "-n -u spank-container" ]; shift 3\nexec setpriv --reuid={0} --regid={0} --clear-groups "$@"\n'


def stage_in(script):
    """As Slurm's plugin burst_buffer/lua does it, with stand-ins for Slurm and for sudo."""
    lua = shutil.which("lua5.4")
    assert lua, "lua5.4 is not installed (packaging/install-deps test)"
    directory = os.path.join(machine.work, "stage-in")
    os.makedirs(directory, exist_ok=True)
    for name, text in (("script", script), ("stand-ins.lua", STAND_INS), ("sudo", SUDO.format(machine.SERVICE_UID))):
        machine.write(f"{directory}/{name}", text)
    os.chmod(f"{directory}/sudo", stat.S_IRWXU)
    example = os.path.join(HERE, "../../packaging/examples/burst_buffer.lua")
    return subprocess.run([lua, f"{directory}/stand-ins.lua", example, f"{directory}/script"], capture_output=True, text=True, timeout=60, cwd="/",
                          env=machine.environment(PATH=f"{directory}:/usr/bin:/bin", HOME="/root"))


def test_burst_buffer_script_pulls_images_before_the_job_starts():
    name = image("staged", [{"a": os.urandom(100_000)}])
    with shared_store():
        done = stage_in(f"#!/bin/sh\n#BB_LUA pull {name}\n#BB_LUA pull {machine.registry.name}/nope:1\nsrun true\n")
        assert done.stdout.split() == ["0", "0"], done
        assert f"image {name} is in the shared store after" in done.stderr and "nope:1 could not be brought" in done.stderr, done
        assert [one["names"][0]["name"] for one in listed()] == [name.rsplit(":", 1)[0]]


def test_burst_buffer_script_passes_only_names_to_a_shell():
    for line in ("pull $(touch${IFS}/run/found)", "pull a;touch /run/found", "pull -v", "pull `id`", "push a", "pull a b", "pull",
                 "pull oci-archive:/etc/shadow", "pull oci:layout", "pull docker-archive:x", "pull oras://r/x", "pull https://r/x", "pull ./x",
                 "pull docker://oci:x", f"pull {'a' * 600}", "pull a\n#BB_LUA " * 20 + "pull a", "pull \x1b[31mred"):
        done = stage_in(f"#!/bin/sh\n#BB_LUA {line}\n")
        assert done.stdout.startswith("-1") and "#BB_LUA pull IMAGE" in done.stdout, (line, done)
        assert done.stdout.rstrip("\n").replace("\t", " ").isprintable() and len(done.stdout) < 250, (line, done)
    assert not os.path.exists("/run/found")


JOB_SUBMIT = """
slurm = {SUCCESS = 0}
dofile(arg[1])
local job = {admin_comment = "of the site", spank_job_env_size = #arg - 1, spank_job_env = {}}
for i = 2, #arg do job.spank_job_env[i - 2] = arg[i] end
assert(slurm_job_submit(job, nil, 1000) == slurm.SUCCESS)
io.write(job.admin_comment)
"""


def test_job_submit_example_writes_names_and_digests_only():
    script = os.path.join(machine.work, "job-submit.lua")
    machine.write(script, JOB_SUBMIT)
    example = os.path.join(HERE, "../../packaging/examples/job_submit.lua")

    def comment(image, digest=None):
        variables = [f"SCONTAINER_IMAGE={image}"] + ([f"SCONTAINER_DIGEST={digest}"] if digest else [])
        return subprocess.run(["lua5.4", script, example, *variables], capture_output=True, text=True, timeout=10, check=True).stdout

    digest = "sha256:" + "0a" * 32
    assert comment("nvcr.io/nvidia/cuda:12.6@x", digest) == f"of the site container=nvcr.io/nvidia/cuda:12.6@x digest={digest}"
    for odd in (f"good:1 digest={digest}", "good:1\n|fake row|COMPLETED", "a|b", "a\tb", "\x1b[31m", "https://r/x?sig=secret", "a" * 513, "\xe4"):
        assert comment(odd, digest) == f"of the site container=? digest={digest}", odd
    for odd in ("sha256:0", digest + "|x", digest + "\n", digest.upper(), "md5:" + "0a" * 32):
        assert comment("a:1", odd) == "of the site container=a:1", odd


def at_submission(image, **variables):
    """The example of pull_at_submit with a stand-in for sudo. Not as a user: the stand-in could not change to the service user."""
    directory = os.path.join(machine.work, "at-submit")
    os.makedirs(directory, exist_ok=True)
    machine.write(f"{directory}/sudo", SUDO.format(machine.SERVICE_UID))
    os.chmod(f"{directory}/sudo", stat.S_IRWXU)
    example = os.path.join(HERE, "../../packaging/examples/pull-at-submit.sh")
    return subprocess.run(["/bin/sh", example, image], capture_output=True, text=True, timeout=60, cwd="/",
                          env=machine.environment(PATH=f"{directory}:/usr/bin:/bin", HOME="/root", XDG_RUNTIME_DIR=directory, **variables))


def test_pull_at_submit_example_pulls_the_image():
    name = image("at-submit", [{"a": os.urandom(100_000)}])
    with shared_store():
        for _ in range(2):
            done = at_submission(name)
            assert done.returncode == 0, done
        assert layers_asked("at-submit") == 2, "configuration and layer, once"
        assert [one["names"][0]["name"] for one in listed()] == [name.rsplit(":", 1)[0]]
        asked = len(machine.registry.seen("/v2/"))
        for odd in ("", "-x", "a b", "a;touch /run/found", "$(id)", "--config=/x", "a\nb", "a" * 513, "\xe4"):
            assert at_submission(odd).returncode == 2, odd
        assert len(machine.registry.seen("/v2/")) == asked and not os.path.exists("/run/found")


def test_arguments_after_two_dashes_are_image_names_only():
    """The line in sudoers allows any text there."""
    with shared_store():
        for text in (["--quiet"], ["--output=/run/x", "a"], ["--platform=linux/arm64"], ["-v"]):
            done = service("pull", "--quiet", "--shared", "--pull=missing", "--", *text)
            assert done.status == 1 and text[0] in done.err, done
        assert not os.path.exists("/run/x")
