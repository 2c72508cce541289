"""tests/hardware/run, the script for a person with a real node, on fake ones: what it finds, and that it says what is wrong."""

import os
import re
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def look(*words, env=None):
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([os.path.join(ROOT, "tests/hardware/run"), "--out", out, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=120, check=False, env={**os.environ, **(env or {})})
        with open(os.path.join(out, "report.txt")) as file:
            assert all(line in file.read() or line == "" for line in ["=== 1-found.log"]), "the report lacks a log"
    return done.returncode, done.stdout


def fake_node(directory, files):
    """files: path -> text, or an octal mode for a device node."""
    for path, what in files.items():
        os.makedirs(os.path.dirname(directory + path), exist_ok=True)
        with open(directory + path, "w") as file:
            file.write(what if isinstance(what, str) else "")
        if not isinstance(what, str):
            os.chmod(directory + path, what)


def test_rehearsal_finds_every_fake_kind_of_hardware():
    status, said = look("--rehearse", *map(str, range(1, 10)))
    assert status == 0 and "9 passed, 0 failed, 0 skipped" in said and "REHEARSAL" in said, said
    found = re.findall(r"found: ([\w-]+): ", said)
    assert found == ["NVIDIA", "MIG", "AMD", "InfiniBand", "EFA", "Slingshot", "Omni-Path"], found


def test_fake_node_without_hardware_skips_all_checks():
    with tempfile.TemporaryDirectory() as node:
        os.makedirs(node + "/dev")
        status, said = look("--look", "--node", node)
    assert status == 0 and "0 passed, 0 failed, 10 skipped" in said, said


def test_faults_of_a_fake_node_fail():
    gpu = "/proc/driver/nvidia"
    files = {"/dev/nvidia0": 0o660, "/dev/nvidiactl": 0o666, "/dev/nvidia-caps/nvidia-cap12": 0o400, "/dev/nvidia-nvswitchctl": 0o666,
             f"{gpu}/gpus/0000:1b:00.0/information": "Device Minor: \t 0\n",
             f"{gpu}/capabilities/gpu0/mig/gi1/access": "DeviceFileMinor: 12\nDeviceFileMode: 292\n",
             "/sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n", "/sys/class/cxi/cxi0/x": ""}
    with tempfile.TemporaryDirectory() as node:
        fake_node(node, files)
        os.makedirs(node + "/sys/class/infiniband/hfi1_0/device")
        os.symlink("../../../bus/pci/drivers/hfi1", node + "/sys/class/infiniband/hfi1_0/device/driver")
        status, said = look("--look", "--node", node)
    wrong = re.findall(r"^FAILED  (\w+): (.*)$", said, re.M)
    assert status == 1 and [name for name, _ in wrong] == ["modes", "order", "manager", "verbs", "cxi", "opa"], said
    assert "nvidia0:660 nvidia-cap12:400" in said and "/dev/nvidia-uvm is missing" in said and "modprobe cxi-user): cxi0" in said, said


def test_fake_slurm_step_sees_no_more_inside_than_outside():
    outside = "/dev/nvidia0\n/dev/nvidia1\n/dev/nvidia-caps/nvidia-cap12\nvariable CUDA_VISIBLE_DEVICES=1\n"
    for inside, word, status in ((outside, "ok      step: 3 nodes of 3", 0), ("/dev/nvidia1\nvariable CUDA_VISIBLE_DEVICES=0\n", "ok      step: 1 nodes of 3", 0),
                                 (outside + "/dev/nvidia2\n", "FAILED  step: only in the container: /dev/nvidia2", 1),
                                 ("", "FAILED  step: nothing can be opened in the container", 1)):
        with tempfile.TemporaryDirectory() as fakes:
            with open(fakes + "/srun", "w") as file:
                file.write(f"#!/bin/sh\ncase $3 in --container-image=an-image) printf '{inside}';; *) printf '{outside}';; esac\n")
            os.chmod(fakes + "/srun", 0o755)
            said = look("--look", "1", "step", env={"PATH": fakes + ":" + os.environ["PATH"], "STEP_IMAGE": "an-image", "STEP_OPTIONS": "--gpus=2"})
        assert said[0] == status and word in said[1], said[1]


def test_unknown_check_is_named():
    done = subprocess.run([os.path.join(ROOT, "tests/hardware/run"), "--look", "10a"], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and 'there is no "10a"' in done.stderr, done.stderr


def test_benchmark_in_existing_slurm_needs_its_programs():
    for words, said in ((["cuda", "--here", "image"], "--here and --programs need each other"),
                        (["mpi", "--here", "image", "--programs", "/"], "with --here there are cuda and nccl")):
        done = subprocess.run([os.path.join(ROOT, "benchmarks/run"), *words], stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 2 and said in done.stderr, done.stderr
