"""Environment files: scontainer env, and run and shell --environment, without root and with."""

import contextlib
import json
import os
import shutil

import machine
from machine import base, root, run, user


@contextlib.contextmanager
def files(**texts):
    """Writes ~/.edf/NAME.toml of alice. Yields the directory."""
    directory = os.path.join(machine.home, ".edf")
    os.makedirs(directory)
    try:
        for name, text in texts.items():
            machine.write(f"{directory}/{name}.toml", text)
        yield directory
    finally:
        shutil.rmtree(directory)


def test_environment_runs_without_root():
    text = f'image = "{base()}"\nmounts = ["/etc/spank-container:/opt/etc:ro"]\nworkdir = "/opt/etc"\nwritable = false\n[env]\nA = "1,2"\nLANG = ""\n'
    script = "pwd; ls config.toml; echo $A; touch /new 2>/dev/null || echo read-only"
    with files(one=text, two='base_environment = "one"\nenv.A = "${HOME}"\nworkdir = "/"\n') as directory:
        expected = "/opt/etc\nconfig.toml\n1,2\nread-only\n"
        assert user("run", "-q", "--environment=one", "sh", "-c", script).succeeds().out == expected
        assert user("run", "-q", "--environment", directory + "/one.toml", "--", "sh", "-c", script).succeeds().out == expected
        assert user("run", "-q", "--environment=one", "--writable", "--env=A=typed", "--workdir=/", "sh", "-c", "pwd; echo $A; touch /new").succeeds().out == "/\ntyped\n"
        assert user("run", "-q", "--environment=two", "sh", "-c", "pwd; echo $A").succeeds().out == f"/\n{machine.home}\n"
        explained = user("run", "-q", "--environment=one", "--explain=json", "true").succeeds()
        origins = {one["option"]: one["source"] for one in json.loads(explained.out)["options"]}
        assert origins["--workdir=/opt/etc"] == f"{directory}/one.toml:3", origins
        assert origins["--readonly"] == f"{directory}/one.toml:4", origins


def test_environment_runs_for_root():
    with files(one=f'image = "{base()}"\nenv.A = "root"\n') as directory:
        assert root("run", "-q", f"--environment={directory}/one.toml", "sh", "-c", "echo $A").succeeds().out == "root\n"


def test_environment_mistakes_are_refused():
    with files(cycle='base_environment = "cycle"\n', typo='\nimagee = "a"\n', none='env.A = "1"\n', mount='image = "a"\nmounts = ["a:b"]\n'):
        user("run", "--environment=cycle", "true").fails(125, "line 1: base_environment: is a cycle")
        user("run", "--environment=typo", "true").fails(125, 'typo.toml", line 2: imagee: unknown key (hint: did you mean "image"?)')
        user("run", "--environment=none", "true").fails(125, "has no image")
        user("run", "--environment=tipo", "true").fails(125, '(hint: did you mean "typo"?)')
        user("env", "validate", "mount").fails(1, 'mount.toml", line 2: --mounts: ')
        user("env", "validate", "/none.toml").fails(1, "no such file or directory")
        user("env", "shew", "typo").fails(1, "unknown action")
        user("env", "show").fails(1, "needs a name or file")
        user("env", "list", "typo").fails(1, "takes no name")


def test_environments_are_listed_and_shown():
    site = "/etc/edf"
    os.makedirs(site)
    machine.write(site + "/site.toml", 'image = "debian:12"\n')
    machine.write(site + "/one.toml", 'image = "hidden"\n')
    machine.write("/etc/spank-container/config.toml", f'environments = ["{site}"]\n' + machine.settings)
    text = 'base_environment = "site"\nmounts = ["${HOME}:/h"]\n[annotations]\ncom.hooks.dcgm.enabled = "true"\n'
    try:
        with files(one=text, bad="image = 1\n") as directory:
            shown = json.loads(user("env", "list", "--json").succeeds().out)
            assert [(one["name"], one["image"], one["file"]) for one in shown["environments"]] == [
                ("bad", "", directory + "/bad.toml"), ("one", "debian:12", directory + "/one.toml"), ("site", "debian:12", site + "/site.toml")], shown
            assert "(invalid)" in user("env", "list").succeeds().out
            done = user("env", "show", "one").succeeds()
            assert ["mounts", machine.home + ":/h", directory + "/one.toml:2"] in [line.split() for line in done.out.splitlines()], done.out
            assert "annotations without effect, unless a hook of the site reads them: com.hooks.dcgm.enabled" in done.err, done.err
            values = json.loads(user("env", "show", "--json", "one").succeeds().out)["values"]
            assert values[0] == {"key": "image", "value": "debian:12", "option": "--container-image=debian:12", "origin": site + "/site.toml:1"}, values
            assert json.loads(user("env", "render", "one").succeeds().out) == {
                "image": "debian:12", "mounts": [machine.home + ":/h"], "devices": [], "env": {}, "annotations": {"com.hooks.dcgm.enabled": "true"}}
            assert user("env", "validate", "one").succeeds().out == directory + "/one.toml is valid\n"
            assert user("env", "list", EDF_PATH=site).succeeds().out.count(".toml") == 2
    finally:
        machine.write("/etc/spank-container/config.toml", machine.settings)
        shutil.rmtree(site)


def test_catalogue_entries_are_environments():
    directory = "/etc/spank-container/catalogue.d"
    os.makedirs(directory)
    machine.write(directory + "/toy.toml", f'image = "{base()}"\ndescription = "a toy"\nenv.A = "site"\n')
    try:
        assert user("run", "-q", "--environment=toy", "sh", "-c", "echo $A").succeeds().out == "site\n"
        assert user("run", "-q", "toy", "sh", "-c", "echo ${A-unset}").succeeds().out == "unset\n"
        assert "a toy" in user("catalogue").succeeds().out
    finally:
        shutil.rmtree(directory)
