"""scontainer doctor: the machine, logs of jobs, and jobs."""

import json
import os
import socket
import tempfile

import machine
from machine import golden, registry, user


def test_doctor_says_one_line_for_each_check():
    name = f"--registry={registry.name}"
    found = {one["check"]: one for one in user("doctor", "--json", name).json()}
    for check in ("kernel", "user namespaces", "FUSE", "unprivileged overlay", "your store", "config.toml", "programs",
                  f"registry {registry.name}"):
        assert found[check]["verdict"] == "ok", found[check]
    assert found["Slurm plugin"]["verdict"] == "warning" and "plugstack.conf" in found["Slurm plugin"]["cure"]
    lines = user("doctor", name).succeeds().out.splitlines()
    assert len(lines) == len(found) and all(line.split()[0] in ("ok", "warning", "failed") for line in lines), lines
    os.chmod("/dev/fuse", 0o600)
    try:
        done = user("doctor", name)
        assert done.status == 1 and "failed  FUSE: " in done.out and "0666" in done.out, done
    finally:
        os.chmod("/dev/fuse", 0o666)
    machine.write("/etc/spank-container/config.toml", machine.settings + "nonsense = 1\n")
    try:
        assert "failed  config.toml: " in user("doctor", name).out
    finally:
        machine.write("/etc/spank-container/config.toml", machine.settings)


LOG = """\
0: Starting epoch 1
1: node01:412:498 [1] NCCL WARN Error: failed to extend /dev/shm/nccl-9q3Iqs to 33030532 bytes, error: No space left on device (28)
0: node01:411:490 [0] NCCL WARN socketProgress: Connection closed by remote peer node01<51312>
3: node02:411:490 [0] NCCL WARN socketProgress: Connection closed by remote peer node01<51312>
"""


def test_doctor_explains_what_a_job_wrote():
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


def test_doctor_says_when_a_log_has_nothing_known():
    assert user("doctor", "-", stdin="all is well\n").succeeds().out == "1 line, no failure in it known to doctor\n"
    assert user("doctor", "--json", "-", stdin="").json() == []
    user("doctor", "/nowhere.log").fails(2, "/nowhere.log", "no such file")
    user("doctor", "/tmp").fails(2, "directory")
    user("doctor", "--registry=x", "-").fails(2, "--registry")
    user("doctor", "--job", "-").fails(2, "--job")
    user("doctor", "a", "b").fails(2, "usage")


def test_doctor_looks_at_a_job():
    found = {one["check"]: one for one in json.loads(user("doctor", "--job", "--json").out)}
    assert found["job"]["verdict"] == "warning" and "srun" in found["job"]["cure"], found["job"]
    for check in ("GPU nodes", "driver", "/dev/shm", "locked memory", "PMIx", "MASTER_PORT", "InfiniBand", "NCCL settings"):
        assert found[check]["verdict"] in ("ok", "warning", "failed") and found[check]["detail"], found[check]
    lines = user("doctor", "--job").out.splitlines()
    assert len(lines) == len(found) and all(line.split()[0] in ("ok", "warning", "failed") for line in lines), lines


def test_doctor_tells_a_step_what_its_variables_lack():
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
