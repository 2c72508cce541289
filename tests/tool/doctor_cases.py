"""scontainer doctor: the machine, logs of jobs, and jobs."""

import contextlib
import json
import os
import re
import socket
import tempfile

import machine
from machine import golden, image, registry, root, user


def test_doctor_prints_one_line_per_check():
    name = f"--registry={registry.name}"
    found = {one["check"]: one for one in user("doctor", "--json", name).json()}
    for check in ("kernel", "user namespaces", "FUSE", "unprivileged overlay", "scontainer build", "your store", "config.toml", "programs",
                  f"registry {registry.name}"):
        assert found[check]["verdict"] == "ok", found[check]
    assert found["Slurm plugin"]["verdict"] == "warning" and "plugstack.conf" in found["Slurm plugin"]["cure"]
    lines = user("doctor", name).succeeds().out.splitlines()
    assert len(lines) == len(found) and all(line.split()[0] in ("ok", "warning", "failed") for line in lines), lines
    os.chmod("/dev/fuse", 0o600)
    try:
        done = user("doctor", name)
        assert done.status == 1 and "failed  FUSE: " in done.out and "0666" in done.out, done
        assert "scontainer build: needs user namespaces and FUSE" in done.out, done
        build = user("build", "-", stdin=f"FROM {machine.base()}\nRUN true\n")
        build.fails(1, "-:2: RUN", "/dev/fuse")
    finally:
        os.chmod("/dev/fuse", 0o666)
    machine.write("/etc/spank-container/config.toml", machine.settings + "nonsense = 1\n")
    try:
        machine.forget_last_valid()
        assert "failed  config.toml: " in user("doctor", name).out
    finally:
        machine.write("/etc/spank-container/config.toml", machine.settings)


LOG = """\
0: Starting epoch 1
1: node01:412:498 [1] NCCL WARN Error: failed to extend /dev/shm/nccl-9q3Iqs to 33030532 bytes, error: No space left on device (28)
0: node01:411:490 [0] NCCL WARN socketProgress: Connection closed by remote peer node01<51312>
3: node02:411:490 [0] NCCL WARN socketProgress: Connection closed by remote peer node01<51312>
"""


def test_doctor_explains_output_of_a_job():
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = os.path.join(directory, "job.log")
        machine.write(path, LOG)
        done = user("doctor", path)
        assert done.status == 1 and not done.err, done
        golden("doctor-log.txt", done.out)
        assert user("doctor", "-", stdin=LOG).out == done.out
        found = json.loads(user("doctor", "--json", path).out)
        assert [(one["failure"], one["line"], one["times"], one["task"], one["consequence"]) for one in found] == [
            ("shm-small", 2, 1, "1", False), ("nccl-peer", 3, 2, "0", True)], found
        assert all(one[key] for one in found for key in ("says", "text", "cause", "cure", "look", "checks")), found


def test_doctor_takes_the_cure_from_messages_with_a_hint():
    log = "3: spank-container: pull image \"x\": no such host (hint: check the registry's name)\r\n"
    done = user("doctor", "-", stdin=log)
    assert done.status == 1 and '  cause:  pull image "x": no such host\n  fix:    check the registry\'s name\n' in done.out, done
    found = json.loads(user("doctor", "--json", "-", stdin=log).out)
    assert [(one["failure"], one["cure"], one["task"]) for one in found] == [("own-message", "check the registry's name", "3")], found


def test_doctor_reads_the_end_of_a_huge_log():
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = os.path.join(directory, "job.log")
        with open(path, "w") as file:
            os.truncate(path, 10 << 30)
            file.seek(10 << 30)
            file.write("\nslurmstepd: error: *** STEP 1.0 ON node01 CANCELLED AT 2026-11-27T06:00:00 DUE TO TIME LIMIT ***\n")
        done = machine.run(machine.as_user(["sh", "-c", f"ulimit -v 500000; timeout 60 scontainer doctor {path}"]), "", machine.environment(), machine.home)
        assert done.status == 1 and "the job reached its time limit" in done.out and "last 64 MiB" in done.err, done


def test_doctor_reports_a_log_without_known_errors():
    assert user("doctor", "-", stdin="all is well\n").succeeds().out == "1 line, no failure in it known to doctor\n"
    assert user("doctor", "--json", "-", stdin="").json() == []
    user("doctor", "/nowhere.log").fails(2, "/nowhere.log", "no such file")
    user("doctor", "/tmp").fails(2, "directory")
    user("doctor", "--registry=x", "-").fails(2, "--registry")
    user("doctor", "--job", "-").fails(2, "--job")
    user("doctor", "a", "b").fails(2, "usage")


def test_doctor_examines_a_job():
    found = {one["check"]: one for one in json.loads(user("doctor", "--job", "--json").out)}
    assert found["job"]["verdict"] == "warning" and "srun" in found["job"]["cure"], found["job"]
    for check in ("GPU nodes", "driver", "/dev/shm", "locked memory", "PMIx", "MASTER_PORT", "InfiniBand", "NCCL settings"):
        assert found[check]["verdict"] in ("ok", "warning", "failed") and found[check]["detail"], found[check]
    lines = user("doctor", "--job").out.splitlines()
    assert len(lines) == len(found) and all(line.split()[0] in ("ok", "warning", "failed") for line in lines), lines


def test_doctor_reports_missing_step_variables():
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = user("doctor", "--job", **step, MASTER_PORT=str(port), NCCL_SOCKET_IFNAME="nowhere", PMIX_RANK="0",
                    LD_LIBRARY_PATH="/usr/local/cuda/lib64/stubs")
    assert done.status == 1, done
    for line in ("ok      job: 7.0, task 0", f"failed  MASTER_PORT: {port}: Address already in use (fix: ",
                 "failed  NCCL settings: NCCL_SOCKET_IFNAME=nowhere, ", "failed  PMIx: PMIX_NAMESPACE is not set",
                 "failed  stub libraries: LD_LIBRARY_PATH has /usr/local/cuda/lib64/stubs", "warning MPI of the step: "):
        assert line in done.out, f"{line!r} is not in the output of {done}"


# Texts that must not be in a report, each where an administrator could have written it.
SECRETS = ("in-a-comment", "of-the-proxy", "of-a-variable", "of-a-mirror", "of-an-unknown-key", "of-an-image", "of-the-query")


@contextlib.contextmanager
def config(text):
    machine.write("/etc/spank-container/config.toml", text)
    try:
        yield
    finally:
        machine.write("/etc/spank-container/config.toml", machine.settings)


def test_doctor_report_contains_no_secrets():
    settings = f"""# password: in-a-comment
pull = "missing" # in-a-comment
https_proxy = "http://proxy-user:of-the-proxy@proxy.example.org:3128"
env = ["WANDB_API_KEY=of-a-variable", "LANG=of-a-variable"]
[registries."{machine.registry.name}"]
insecure = true
"""
    log = os.path.join(machine.work, "slurmd.log")
    record = '[2026-11-28T05:00:00.123] [{}.0] spank-container: failed job={} step=0 node=node01 image="{}" kind=not_found\n'
    machine.write(log, "password=in-a-comment\n" + "".join(record.format(job, job, image) for job, image in (
        (11, "alice:of-an-image@registry.example.org/team/app:1"), (12, "https://host.example.org/x.sif?key=of-the-query"))))
    with config(settings):
        report = root("doctor", "--report", f"--log={log}").succeeds().out
    parts = re.findall("(?m)^--- (.*)$", report)
    assert [part.split()[0] for part in parts] == ["versions", "settings", "checks", "last"], report
    assert "discarded_files" not in report, report  # its default, a size, may be written in several ways
    for text in ('pull = missing', "https_proxy = http://(removed)@proxy.example.org:3128", "env = WANDB_API_KEY=(removed), LANG=(removed)", "Linux ",
                 f'registries."{machine.registry.name}".insecure = true', "spank-container "):
        assert text in report, (text, report)
    assert not [secret for secret in SECRETS if secret in report], report


def test_doctor_report_of_a_wrong_setting_contains_no_secrets():
    for line in ('https_proxy = "ftp://user:of-the-proxy@host"', 'password = "of-an-unknown-key"', 'env = ["of-a-variable"]', 'pull = "of-a-variable'):
        with config(line + "\n"):
            report = root("doctor", "--report", "--log=/dev/null").succeeds().out
        assert "not valid: " in report and not [secret for secret in SECRETS if secret in report], (line, report)


def test_doctor_log_belongs_to_report():
    user("doctor", "--log=x").fails(2, "--report")
    user("doctor", "--report", "--node").fails(2, "only one of")


def test_doctor_config_prints_changes_and_doubts():
    stored = image("checked", [{"a": b"checked"}])
    root("pull", stored).succeeds()
    new = os.path.join(machine.home, "new")
    os.makedirs(os.path.join(new, "config.d"), exist_ok=True)
    with config('pull = "missing"\n' + machine.settings):
        machine.write(os.path.join(new, "config.toml"), """mounts = ["/nowhere/data:/data", "/nowhere/more:/more:nofail"]
allowed_registries = ["registry.example.org"]
hooks_off = ["50-nccl", "50-typo"]
signature_policy = "/nowhere/policy.json"
[store]
max_size = "1K"
""")
        done = root("doctor", f"--config={new}")
        assert done.status == 3, done
        for line in ('warning allowed_registries: refuses ', 'warning mounts: /nowhere/data does not exist on this host',
                     'warning hooks_off: no hook "50-typo" on this host', "warning signature_policy: /nowhere/policy.json does not exist",
                     "warning store.max_size: the layers of this node have ",
                     "change  pull: missing -> newer (for: steps with an image that the node already has",
                     "change  allowed_registries: (none) -> registry.example.org (for: ", "change  store.max_size: 0 -> 1024 (for: "):
            assert line in done.out, (line, done)
        assert stored in done.out and "/nowhere/more" not in re.sub("(?m)^change.*", "", done.out) and "50-nccl" not in re.sub("(?m)^change.*", "", done.out), done
        told = root("doctor", f"--config={new}", "--json")
        document = json.loads(told.out)
        assert {"key": "pull", "from": ["missing"], "to": ["newer"]}.items() <= {one["key"]: one for one in document["changes"]}["pull"].items(), document
        assert told.status == 3 and {one["verdict"] for one in document["checks"]} == {"ok", "warning"}, document
        # A file of a config.d is added to the installed configuration.
        drop_in = os.path.join(new, "config.d", "50-new.toml")
        machine.write(drop_in, 'writable = false\n')
        done = user("doctor", "--config", drop_in).succeeds("change  writable: true -> false (for: jobs without --container-writable or ")
        assert done.out.count("change ") == 1, done
        machine.write(drop_in, 'pull = "missing"\n')
        user("doctor", "--config", drop_in).succeeds("no key changes its value")
        # Each file's error has its line and a cure.
        machine.write(drop_in, "\nwritabel = false\nmount_home = 1\n")
        done = root("doctor", f"--config={new}")
        assert done.status == 1 and f'failed  configuration: "{drop_in}", line 2: writabel: unknown key (fix: did you mean "writable"?)' in done.out, done
        assert f'failed  configuration: "{drop_in}", line 3: mount_home: expected true or false (fix: ' in done.out, done
        machine.write(drop_in, "writable = \n")
        done = root("doctor", f"--config={new}")
        assert done.status == 1 and f'failed  configuration: "{drop_in}", line 1: not valid TOML' in done.out, done
        user("doctor", "--config=/nowhere").fails(2, "/nowhere")
        user("doctor", "--config=/nowhere", "--node").fails(2, "only one of")


def test_doctor_config_refuses_wrong_values():
    for text in ("[store]\nlow_watermark = 90\nhigh_watermark = 80\n", 'mounts = ["/tmp:/tmp:no-such-flag"]\n', 'no_proxy = ["a,b"]\n'):
        path = os.path.join(machine.home, "wrong.toml")
        machine.write(path, text)
        done = user("doctor", f"--config={path}")
        assert done.status == 1 and "failed  " in done.out, (text, done)
