"""--container-device: devices described by CDI files of the nodes. A directory, /dev/zero and a
library are real. Tests with a simulated GPU have "fake" in their name."""
import contextlib
import json
import os
import shutil

import local_files
from fake_driver import FakeDriver, parts_of_gpu0
from harness import equal, expect, test
from site_files import Files, rules
from outcomes import outcome

QUICK = True

LIBRARY = "/usr/lib/x86_64-linux-gnu/libmunge.so.2"
YAML = f"""cdiVersion: 0.5.0
kind: example.org/data
devices:
- name: one
  containerEdits:
    env:
    - DATA=/opt/data
    mounts:
    - hostPath: /home/shared/cdi
      containerPath: /opt/data
      options:
      - ro
      - rbind
    hooks:
    - hookName: createContainer
      path: /usr/bin/nvidia-cdi-hook
      args:
      - nvidia-cdi-hook
      - create-symlinks
      - --link
      - data/file::/opt/link
"""


def edits(**containerEdits):
    return {"cdiVersion": "0.5.0", "kind": "example.org/x", "devices": [{"name": "one", "containerEdits": containerEdits}]}


ZERO = edits(deviceNodes=[{"path": "/opt/zero", "hostPath": "/dev/zero"}], env=["OF=etc"])


def files(cluster, **specs):
    """Puts CDI files into /etc of all machines: `a_json={...}`, `b_yaml="..."`."""
    return Files(cluster, {"cdi/" + name.replace("_", "."): text if isinstance(text, str) else json.dumps(text) for name, text in specs.items()})


@contextlib.contextmanager
def run_file(cluster, name, spec):
    directory = cluster.inside("node01", "/run/cdi")
    os.makedirs(directory)
    try:
        with open(os.path.join(directory, name), "w") as file:
            file.write(json.dumps(spec))
        yield
    finally:
        shutil.rmtree(directory)


def data(cluster):
    local_files.put(os.path.join(cluster.shared, "cdi/file"), "of the node\n")


def step(cluster, script, *devices, **how):
    return cluster.bash(script, "-w", "node01", *(f"--container-device={device}" for device in devices), **how)


def refused(cluster, device, *texts, **how):
    done = step(cluster, "echo started", device, **how)
    expect(done.rc == 1 and "started" not in done.out, "the step was not refused", done)
    for text in texts:
        expect(any(text in line for line in done.errors()), f"nothing says {text!r}", done)
    return done


@test
def devices_from_json_and_yaml_files_are_added(cluster):
    data(cluster)
    with files(cluster, a_json=ZERO, b_yaml=YAML):
        script = 'head -c 3 /opt/zero | wc -c; cat $DATA/file /opt/link; echo $OF; touch $DATA/x 2>/dev/null || echo read-only'
        step(cluster, script, "example.org/x=one,example.org/data=one").good("3\nof the node\nof the node\netc\nread-only")
        step(cluster, script, "example.org/data=one", "example.org/x=one").good("3\nof the node\nof the node\netc\nread-only")
    step(cluster, "test ! -e /opt/zero; test ! -e /opt/data; echo ${DATA-none}").good("none")


@test
def device_is_present_in_each_task_on_each_node(cluster):
    with files(cluster, a_json=ZERO):
        done = cluster.bash("head -c 2 /opt/zero | wc -c", "-N2", "-n4", "--container-device=example.org/x=all")
        done.good("2\n2\n2\n2")


@test
def option_is_read_from_its_variable(cluster):
    with files(cluster, a_json=ZERO):
        cluster.bash("echo $OF", "-w", "node01", env=["SCONTAINER_DEVICE=example.org/x=one"]).good("etc")


@test
def user_variable_overrides_device_variable(cluster):
    with files(cluster, a_json=ZERO):
        cluster.bash("echo $OF", "-w", "node01", "--container-device=example.org/x=one", "--container-env=OF=mine").good("mine")


@test
def device_library_is_found_by_soname(cluster):
    source = os.path.realpath(LIBRARY)
    if not os.path.exists(source):
        source = os.path.realpath("/usr/lib/x86_64-linux-gnu/libc.so.6")
    soname = os.path.basename(LIBRARY) if "munge" in source else "libc.so.6"
    spec = edits(mounts=[{"hostPath": source, "containerPath": "/opt/lib/the-library.so.9.9", "options": ["ro"]}],
                 hooks=[{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook",
                         "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/opt/lib"]}])
    with files(cluster, a_json=spec):
        done = step(cluster, "ldconfig -p 2>/dev/null || /sbin/ldconfig -p", "example.org/x=one")
        expect(f"{soname} " in done.good(), "the loader does not know the library", done)


@test
def file_in_run_overrides_file_in_etc(cluster):
    with files(cluster, a_json=ZERO), run_file(cluster, "z.json", edits(env=["OF=run"])):
        step(cluster, "echo $OF", "example.org/x=one").good("run")


@test
def device_defined_by_two_files_is_refused(cluster):
    with files(cluster, a_json=ZERO, b_json=edits(env=["OF=b"])):
        refused(cluster, "example.org/x=one", '"/etc/cdi/a.json" and "/etc/cdi/b.json" both describe it (hint: remove one of these CDI files)')
        with run_file(cluster, "c.json", edits(env=["OF=run"])):
            step(cluster, "echo $OF", "example.org/x=one").good("run")


@test
@outcome(220, "refused", "a CDI file that is malformed, huge, has a shell or mounts of /, or is not root's")
def malformed_file_is_reported_and_drops_its_devices_only(cluster):
    with files(cluster, a_json=ZERO, b_yaml="cdiVersion: &v 0.5.0\n", c_json="{", d_json="x" * (2 << 20)):
        done = step(cluster, "echo $OF", "example.org/x=one")
        done.good("etc")
        warnings = [line for line in done.messages() if line.startswith("warning: ")]
        for text in ('"/etc/cdi/b.yaml": line 1: unsupported YAML: an anchor', '"/etc/cdi/c.json": is not JSON', '"/etc/cdi/d.json"'):
            expect(any(text in line for line in warnings), f"no warning says {text!r}", done)
        refused(cluster, "example.org/y=one", "not in any CDI file of this node", "unsupported YAML")
        step(cluster, "true").good()


@test
@outcome(220, "refused", "a CDI file that is malformed, huge, has a shell or mounts of /, or is not root's")
def root_mounts_and_programs_are_refused(cluster):
    for spec, text in ((edits(mounts=[{"hostPath": "/", "containerPath": "/host"}]), "not a single file or directory of the node"),
                       (edits(mounts=[{"hostPath": "/etc", "containerPath": "/../"}]), "is the image's root"),
                       (edits(hooks=[{"hookName": "createContainer", "path": "/bin/sh", "args": ["sh", "-c", "touch /home/shared/ran"]}]),
                        'a shell is not run for a device'),
                       (edits(deviceNodes=[{"path": "/dev/x", "hostPath": "/etc/shadow"}]), "is outside /dev"),
                       (edits(deviceNodes=[{"path": "/dev/new", "hostPath": "/dev/zero"}]), "in which nothing can be created"),
                       (edits(mounts=[{"hostPath": "/usr/lib/gone.so", "containerPath": "/usr/lib/gone.so"}]), "recreate it if the driver has changed")):
        with files(cluster, a_json=spec):
            refused(cluster, "example.org/x=one", text, "/etc/cdi/a.json")
    expect(not os.path.exists(os.path.join(cluster.shared, "ran")), "the program was executed")


@test
@outcome(220, "refused", "a CDI file that is malformed, huge, has a shell or mounts of /, or is not root's")
def world_writable_file_is_ignored(cluster):
    with files(cluster, a_json=ZERO) as made:
        os.chmod(made.path("cdi/a.json"), 0o666)
        refused(cluster, "example.org/x=one", "is writable by others (hint: chmod go-w PATH)")
        os.chmod(made.path("cdi/a.json"), 0o644)
        os.chown(made.path("cdi/a.json"), 2001, 2001)
        refused(cluster, "example.org/x=one", "is not owned by root")
        os.chown(made.path("cdi/a.json"), 0, 0)
        os.chmod(made.path("cdi"), 0o777)
        refused(cluster, "example.org/x=one", "is writable by others")


@test
def malformed_name_fails_at_submission_unknown_name_on_node(cluster):
    with files(cluster, a_json=ZERO):
        for name in ("gpu", "example.org/x", "example.org/x=", "example.org/x=a/b", "=x"):
            done = step(cluster, "echo started", name)
            expect(done.rc != 0 and "not a device name" in done.err and "step" not in done.err.lower(), f"{name} was submitted", done)
        refused(cluster, "example.org/x=two", 'device "example.org/x=two": not in any CDI file of this node (hint: available: example.org/x=one)')
    refused(cluster, "example.org/x=one", "no CDI files in /etc/cdi and /run/cdi")


@test
def device_works_as_root_inside(cluster):
    data(cluster)
    with files(cluster, a_json=ZERO, b_yaml=YAML):
        cluster.bash("id -u; head -c 3 /opt/zero | wc -c; cat /opt/link", "-w", "node01", "--container-remap-root",
                     "--container-device=example.org/x=all,example.org/data=all").good("0\n3\nof the node")


@test
def device_works_in_read_only_container(cluster):
    with files(cluster, a_json=ZERO):
        cluster.bash("head -c 3 /opt/zero | wc -c", "-w", "node01", "--container-readonly", "--container-device=example.org/x=one").good("3")


@test
def devices_can_be_disabled_by_the_site(cluster):
    with files(cluster, a_json=ZERO), rules(cluster, 'features_off = ["container-device"]\n'):
        refused(cluster, "example.org/x=one", "--container-device")


@test
def explain_lists_edits_of_a_device(cluster):
    with files(cluster, a_json=ZERO):
        done = cluster.bash("true", "-w", "node01", "--container-explain=all", "--container-device=example.org/x=one")
        said = done.good() + done.err
        for text in ("example.org/x=one as /etc/cdi/a.json describes it", "/opt/zero", 'OF="etc"'):
            expect(text in said, f"nothing says {text!r}", done)


GPUS = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
        "devices": [{"name": str(i), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{i}"}], "env": [f"GPU{i}=yes"]}} for i in (0, 1)],
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "deviceNodes": [{"path": "/dev/nvidiactl"}]}}


@test
def fake_gpus_are_added_by_cdi_when_configured(cluster):
    script = 'echo ${GPU0-no}${GPU1-no} ${NVIDIA_VISIBLE_DEVICES-none}'
    with files(cluster, nvidia_json=GPUS), rules(cluster, "prefer_cdi = true\n"):
        done = cluster.bash(script, "-w", "node01", "--gres=gpu:1")
        expect(done.good() in ("yesno void", "noyes void"), "not one GPU", done)
        cluster.bash(script, "-w", "node01", "--gres=gpu:2").good("yesyes void")
        cluster.bash(script, "-w", "node01", "--no-container-gpu", "--gres=gpu:2").good("nono none")


def part(index, number):
    nodes = [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (number, number + 1)]
    return {"name": f"0:{index}", "containerEdits": {"deviceNodes": [{"path": path} for path in ("/dev/nvidia0", *nodes)], "env": [f"PART{index}=yes"]}}


@test
def fake_gpu_partitions_are_added_by_cdi_when_configured(cluster):
    """Their nodes are readable, not writable."""
    spec = {**GPUS, "devices": [part(0, 12), part(1, 21)]}
    with FakeDriver(cluster), parts_of_gpu0(cluster), files(cluster, nvidia_json=spec), rules(cluster, "prefer_cdi = true\n"):
        cluster.bash("echo ${PART0-no}${PART1-no}", "-w", "node01", "--gres=gpu:1").good("yesyes")


@test
def fake_daemon_directory_closed_to_users_is_left_out(cluster):
    path = "/run/nvidia-persistenced/socket"
    spec = edits(env=["OF=etc"], mounts=[{"hostPath": path, "containerPath": path, "options": ["nosuid", "nodev", "noexec"]}])
    try:
        cluster.root("node01", "sh", "-euc", f"mkdir -m 700 {os.path.dirname(path)}; touch {path}").good()
        with files(cluster, a_json=spec):
            step(cluster, f"echo $OF; test -e {path} || echo none", "example.org/x=one").good("etc\nnone")
            cluster.root("node01", "chmod", "755", os.path.dirname(path)).good()
            step(cluster, f"echo $OF; test -e {path} || echo none", "example.org/x=one").good("etc")
    finally:
        cluster.root("node01", "rm", "-r", os.path.dirname(path))


@test
def fake_gpu_outside_allocation_is_reported(cluster):
    with files(cluster, nvidia_json=GPUS):
        done = cluster.bash("echo $GPU0", "-w", "node01", "--container-device=nvidia.com/gpu=0", "--gres=gpu:0")
        done.good("yes")
        expect(any('this step cannot open "/dev/nvidia0"' in line for line in done.messages()), "it is not told", done)


@test
def program_of_cdi_file_runs_as_user_before_the_container(cluster):
    program = os.path.join(cluster.etc, "vendor-hook")
    seen = os.path.join(cluster.home, "alice/seen")
    try:
        with open(program, "w") as file:
            file.write('#!/bin/sh\nid -u >/home/alice/seen\necho "$1 $OF" >>/home/alice/seen\ncat >>/home/alice/seen\n')
        os.chmod(program, 0o755)
        spec = edits(env=["OF=etc"], hooks=[{"hookName": "createContainer", "path": "/etc/vendor-hook", "args": ["vendor-hook", "one"], "env": ["OF=file"]}])
        with files(cluster, a_json=spec):
            step(cluster, "echo $OF", "example.org/x=one").good("etc")
            user, words, state = open(seen).read().split("\n", 2)
            equal((user, words), ("2001", "one file"), "what the program was given")
            equal(json.loads(state)["status"], "creating", "the state")
            os.chmod(program, 0o777)
            os.unlink(seen)
            refused(cluster, "example.org/x=one", "is writable by others")
            expect(not os.path.exists(seen), "it was executed")
            os.chmod(program, 0o755)
            with open(program, "w") as file:
                file.write('#!/bin/sh\necho the device is broken >&2\nexit 3\n')
            refused(cluster, "example.org/x=one", "the device is broken")
    finally:
        for path in (program, seen):
            if os.path.exists(path):
                os.unlink(path)
