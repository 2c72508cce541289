"""Root: the node's store, and containers by the agent with kernel mounts."""

import os

import machine
from machine import base, root, user


def test_pull_as_root_fills_the_node_store():
    digest = root("pull", base()).succeeds().out.strip()
    assert digest.startswith("sha256:"), digest
    assert os.path.exists(f"/var/lib/spank-container/records/{digest[7:]}")
    listed = [one for one in root("images", "--json").json() if one["digest"] == digest]
    assert listed[0]["store"] == "site" and listed[0]["bytes"] > 1_000_000 and listed[0]["complete"], listed
    # Others see name and digest of what is public.
    assert [one["store"] for one in user("images", "--json").json() if one["digest"] == digest].count("site") == 1
    root("pull", f"{machine.registry.name}/nope:1").fails(1, "nope")


def test_users_see_facts_and_size_of_public_images_of_the_node():
    name = machine.image("of-node", [{"etc/os-release": b"PRETTY_NAME='Node 1'\n", "a": os.urandom(50_000)}], env=["CUDA_VERSION=12.4.1"])
    digest = root("pull", name).succeeds().out.strip()
    requests = len(machine.registry.requests)
    mine, = [one for one in user("images", "--json").json() if one["digest"] == digest]
    node, = [one for one in root("images", "--json").json() if one["digest"] == digest]
    assert (mine["store"], mine["platform"], mine["layers"], mine["complete"]) == ("site", "linux/amd64", 1, True), mine
    assert mine["bytes"] == node["bytes"] > 50_000, (mine, node)
    found, of_root = user("inspect", "--json", name).json(), root("inspect", "--json", name).json()
    assert found["facts"]["os"] == "Node 1" and found == of_root, (found, of_root)
    told = user("inspect", name).succeeds("Node 1", "linux/amd64", " kB in 1 layers").out
    assert "not pulled" not in told and "bytes=" not in told, told
    user("inspect", digest[7:19]).succeeds("Node 1")
    assert len(machine.registry.requests) == requests, "the registry was asked"
    root("rm", name).succeeds("removed 1 image")
    assert not os.listdir("/var/lib/spank-container/public") or digest[7:] not in os.listdir("/var/lib/spank-container/public")
    user("inspect", name).succeeds("not pulled")


def test_pull_as_root_makes_no_container():
    """Mounts, restrictions and hooks of the site for containers do not apply: none of them would work here."""
    os.makedirs("/etc/spank-container/config.d", exist_ok=True)
    path = "/etc/spank-container/config.d/50-pull.toml"
    machine.write(path, 'mounts = ["/nowhere:/nowhere"]\nfeatures_off = ["container-readonly"]\n')
    name = machine.image("only-pulled", [{"etc/hello": b"hello\n"}])
    try:
        root("run", "-q", base(), "true").fails(125, "/nowhere")
        digest = root("pull", name).succeeds().out.strip()
        assert [one for one in root("images", "--json").json() if one["digest"] == digest][0]["complete"]
        root("pull", name).succeeds(digest)
    finally:
        os.unlink(path)
    root("pull", "/etc/passwd").fails(1, "/etc/passwd")
    root("pull", "/usr").fails(1, "the store takes no squashfs and no directory")


def test_node_holds_layers_with_any_processor_affinity():
    """Linux 6.18 numbers mount namespaces by processor, and lets none be kept that has a lower number than the keeper's."""
    allowed = sorted(os.sched_getaffinity(0))
    ids = [str(number) for number in (machine.SERVICE_UID, machine.SERVICE_UID)]
    script = ('mount -t tmpfs -o mode=755 tool /run && taskset --cpu-list "$1" "$2" setup "$3" "$4" && '
              'grep " /run/spank-container/steps/held .* nsfs " /proc/self/mountinfo')
    for first in allowed[:2]:
        for second in allowed[-2:]:
            node = ["taskset", "--cpu-list", str(first), "unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh"]
            setup = [str(second), "/usr/libexec/spank-container/agent", *ids]
            machine.run([*node, *setup], "", machine.environment(), "/").succeeds(" nsfs ")


def test_agent_ends_unless_started_by_the_plugin():
    agent = "/usr/libexec/spank-container/agent"
    for arguments, status in (([], 2), (["step"], 2), (["step", "1", "1", "1", "1"], 1)):
        done = machine.run([agent, *arguments], "", machine.environment(), "/")
        assert done.status == status, done


def test_run_as_root_is_a_step_of_root():
    done = root("run", "-q", base(), "sh", "-c", "id -u; cat /etc/os-release; grep squashfs /proc/mounts; exit 3")
    assert done.status == 3 and "0\n" in done.out and "Debian" in done.out, done
    root("run", "-q", base()).succeeds("hello from base")
    root("run", "-q", base(), "nothing").fails(127, "nothing")
    root("run", "-q", "--mounts=/nope", base(), "true").fails(125, "/nope")
    root("run", "--remap-root", base(), "true").fails(125, "--remap-root")
    root("shell", base(), stdin="exit 5\n").status == 5


def test_image_file_belongs_to_root_in_a_step_of_root():
    """It is served by a process of the service user."""
    path = os.path.join(machine.work, "served.sqsh")
    root("pull", base()).succeeds()
    root("export", base(), path).succeeds()
    root("run", "-q", path, "sh", "-c", "echo more >>/etc/passwd; touch /usr/bin/new; stat -c %u /etc /etc/passwd /usr/bin/new").succeeds("0\n0\n0\n")


def test_inspect_export_and_rm_as_root_use_the_node_store():
    root("pull", base()).succeeds()
    found = root("inspect", "--json", base()).json()
    assert "Debian" in found["facts"]["os"]
    with open("/var/lib/spank-container/records/" + found["digest"].removeprefix("sha256:"), "rb") as record:
        assert b"\0fact=os=Debian" in record.read()
    target = os.path.join(machine.work, "root.sqsh")
    root("export", base(), target).succeeds()
    assert os.path.getsize(target) > 1_000_000
    root("import", target, "localhost/x:1").fails(1, "the node's store")
    root("gc").succeeds("would remove")
    root("rm", base()).succeeds("removed 1 image")
    assert base() not in root("images").succeeds().out


def test_doctor_examines_the_node():
    root("pull", base()).succeeds()
    found = {one["check"]: one for one in root("doctor", "--json", f"--registry={machine.registry.name}").json()}
    assert found["service user"]["verdict"] == "ok" and found["node store"]["verdict"] == "ok", found
    os.makedirs("/etc/slurm", exist_ok=True)
    try:
        machine.write("/etc/slurm/plugstack.conf", "# comment\nrequired spank_container.so\n")
        found = {one["check"]: one for one in root("doctor", "--json", f"--registry={machine.registry.name}").json()}
        assert found["Slurm plugin"]["verdict"] == "ok", found["Slurm plugin"]
        machine.write("/etc/slurm/plugstack.conf", "required /nowhere/spank_container.so\n")
        done = root("doctor", f"--registry={machine.registry.name}")
        assert done.status == 1 and "failed  Slurm plugin" in done.out, done
    finally:
        os.unlink("/etc/slurm/plugstack.conf")
