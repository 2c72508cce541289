"""Devices as CDI files describe them: scontainer cdi, and run --device, without root and with. /dev/zero, a
directory and variables are real here."""

import contextlib
import json
import os
import shutil

import machine
from machine import base, root, run, user

SPEC = {"cdiVersion": "0.5.0", "kind": "example.org/x",
        "containerEdits": {"env": ["OF=all"]},
        "devices": [{"name": "one", "containerEdits": {"deviceNodes": [{"path": "/opt/zero", "hostPath": "/dev/zero"}], "env": ["ONE=1"],
                                                       "mounts": [{"hostPath": "/etc/cdi", "containerPath": "/opt/cdi", "options": ["ro"]}]}},
                    {"name": "two", "containerEdits": {"env": ["TWO=2"]}}]}
SCRIPT = "head -c 3 /opt/zero | wc -c; ls /opt/cdi; echo $OF$ONE${TWO-}"


@contextlib.contextmanager
def files(**specs):
    os.makedirs("/etc/cdi")
    try:
        for name, spec in specs.items():
            machine.write("/etc/cdi/" + name.replace("_", "."), spec if isinstance(spec, str) else json.dumps(spec))
        yield
    finally:
        shutil.rmtree("/etc/cdi")


def test_device_works_without_root():
    with files(a_json=SPEC):
        assert user("run", "-q", "--device=example.org/x=one", base(), "sh", "-c", SCRIPT).succeeds().out == "3\na.json\nall1\n"
        assert user("run", "-q", "--device=example.org/x=all", "--readonly", base(), "sh", "-c", SCRIPT).succeeds().out == "3\na.json\nall12\n"
        assert user("run", "-q", "--device=example.org/x=two,example.org/x=one", "--remap-root", base(), "sh", "-c", "id -u;" + SCRIPT).succeeds().out == \
            "0\n3\na.json\nall12\n"
        assert user("run", "-q", "--device=example.org/x=two", "--device=example.org/x=one", base(), "sh", "-c", SCRIPT).succeeds().out == "3\na.json\nall12\n"
        user("run", "-q", base(), "sh", "-c", "test ! -e /opt/zero && echo ${ONE-none}").succeeds("none")


def test_device_works_for_root():
    with files(a_json=SPEC):
        assert root("run", "-q", "--device=example.org/x=one", base(), "sh", "-c", SCRIPT).succeeds().out == "3\na.json\nall1\n"


def test_missing_devices_are_refused():
    user("run", "-q", "--device=example.org/x=one", base(), "true").fails(125, "not in any CDI file of this node")
    with files(a_json=SPEC):
        user("run", "-q", "--device=example.org/x=six", base(), "true").fails(125, "available: example.org/x=one, example.org/x=two")
        user("run", "-q", "--device=gpu", base(), "true").fails(125, "--device", '"gpu" is not a device name')
        user("cdi", "show", "example.org/x=six").fails(1, "available: example.org/x=one")
        user("cdi", "show", "x").fails(1, "is not a device name")
        user("cdi", "show").fails(1, "device required")
        user("cdi", "shew").fails(1, '"shew" is not list, show or generate')
    with files(a_json=SPEC):
        os.chmod("/etc/cdi/a.json", 0o666)
        user("run", "-q", "--device=example.org/x=one", base(), "true").fails(125, "is writable by others")


def test_devices_are_listed_with_their_files():
    with files(a_json=SPEC, b_json={**SPEC, "devices": SPEC["devices"][1:]}, c_yaml="a: &b\n"):
        listed = user("cdi", "list").succeeds()
        assert listed.out == "DEVICE             FILE\nexample.org/x=one  /etc/cdi/a.json\n", listed
        assert 'CDI file "/etc/cdi/c.yaml": line 1: unsupported YAML: an anchor' in listed.err, listed
        assert '"/etc/cdi/a.json" and "/etc/cdi/b.json" both describe it' in listed.err, listed
        document = user("cdi", "list", "--json").json()
        assert document["devices"] == [{"name": "example.org/x=one", "file": "/etc/cdi/a.json"}], document
        assert document["conflicts"] == ["example.org/x=two"] and len(document["problems"]) == 1, document
    assert "no devices found" in user("cdi", "list").succeeds().err


def test_device_edits_are_shown():
    with files(a_json=SPEC):
        shown = user("cdi", "show", "example.org/x=one").succeeds().out
        assert shown == ("note      example.org/x=one as /etc/cdi/a.json describes it\nvariable  OF=all\nvariable  ONE=1\n"
                         "device    /opt/zero from /dev/zero\nmount     /etc/cdi at /opt/cdi (ro)\n"), shown
        document = user("cdi", "show", "--json", "example.org/x=one").json()
        assert document["mounts"][0]["target"] == "/opt/cdi", document


def test_machine_without_gpus_gets_no_gpu_file():
    user("cdi", "generate").fails(1, "no working NVIDIA GPU found")
    user("cdi", "generate", "--format=xml").fails(1, '"xml" is not json or yaml')
    user("cdi", "generate", "--output=/tmp/x.txt").fails(1, "the name of a CDI file must end in .json or .yaml")


def test_completion_lists_the_devices():
    with files(a_json=SPEC):
        script = user("completion", "bash").succeeds().out
        words = "COMP_WORDS=(scontainer cdi show e); COMP_CWORD=3; _scontainer; echo ${COMPREPLY[@]}"
        done = run(machine.as_user(["bash", "-c", script + words]), "", machine.environment(), "/")
        assert done.out == "example.org/x=one example.org/x=two\n", done


def test_program_of_a_device_runs_as_the_user():
    machine.write("/etc/vendor-hook", '#!/bin/sh\nid -u >"$HOME/seen"\ncat >>"$HOME/seen"\n')
    os.chmod("/etc/vendor-hook", 0o755)
    hooks = [{"hookName": "createContainer", "path": "/etc/vendor-hook"}]
    seen = os.path.join(machine.home, "seen")
    try:
        with files(a_json={**SPEC, "containerEdits": {"hooks": hooks}}):
            user("run", "-q", "--device=example.org/x=two", base(), "sh", "-c", "echo $TWO").succeeds("2")
            with open(seen) as file:
                text = file.read()
            assert text.startswith(f"{machine.UID}\n") and '"creating"' in text, text
            os.chmod("/etc/vendor-hook", 0o777)
            user("run", "-q", "--device=example.org/x=two", base(), "true").fails(125, "is writable by others")
    finally:
        os.unlink("/etc/vendor-hook")
        if os.path.exists(seen):
            os.unlink(seen)
