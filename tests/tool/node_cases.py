"""Questions of a site to a node: scontainer doctor --node for HealthCheckProgram, scontainer metrics for Prometheus."""

import contextlib
import ctypes
import json
import os
import re
import time

import machine
from machine import image, root, user

STORE = "/var/lib/spank-container"
PLUGSTACK = "/etc/slurm/plugstack.conf"
CONFIG = "/etc/spank-container/config.toml"


@contextlib.contextmanager
def node():
    """It can run jobs: slurmd was started, and plugstack.conf includes a file that names the plugin."""
    root("pull", image("on-a-node", [{"etc/hello": b"hello\n"}])).succeeds()
    os.makedirs("/etc/slurm/plugstack.conf.d", exist_ok=True)
    machine.write(PLUGSTACK, "include plugstack.conf.d/*.conf\n")
    machine.write("/etc/slurm/plugstack.conf.d/container.conf", "required spank_container.so\n")
    try:
        yield
    finally:
        os.unlink("/etc/slurm/plugstack.conf.d/container.conf")
        os.unlink(PLUGSTACK)


@contextlib.contextmanager
def small_store(megabytes):
    machine.mount("-t", "tmpfs", "-o", f"mode=755,size={megabytes}m", "small", STORE)
    try:
        root("pull", image("small", [{"a": b"1"}])).succeeds()
        yield
    finally:
        machine.run(["umount", STORE], "", machine.environment(), "/").succeeds()


def wrong(status, *texts):
    """Lines of --quiet, all of them about what is expected to be wrong."""
    done = root("doctor", "--node", "--quiet")
    lines = done.err.splitlines()
    assert done.status == status and done.out == "" and len(lines) == len(texts), done
    for text, line in zip(texts, lines):
        assert line.startswith("scontainer: ") and text in line, f"{text!r} is not in {line!r}"
    return lines


def test_healthy_node_is_silent():
    with node():
        done = root("doctor", "--node", "--quiet")
        assert (done.status, done.out, done.err) == (0, "", ""), done
        told = root("doctor", "--node", "--json").json()
        assert {one["verdict"] for one in told} == {"ok"}, told
        checks = {one["check"] for one in told}
        assert {"kernel", "programs", "node store", "space of the store", "config.toml", "Slurm plugin"} <= checks, told
        assert not any("registry" in one["check"] for one in told), told
        assert len(root("doctor", "--node").succeeds("ok      programs: ").out.splitlines()) == len(told)
    root("doctor", "--node", "--job").fails(2, "--node")
    root("doctor", "--quiet").fails(2, "--node")
    root("doctor", "--node", "--quiet", "--json").fails(2, "--json")


def test_missing_plugin_line_is_a_warning():
    with node():
        machine.write(PLUGSTACK, "")
        wrong(3, "warning: Slurm plugin: no plugstack.conf")
        machine.write(PLUGSTACK, "required /nowhere/spank_container.so\n")
        wrong(1, "Slurm plugin: /nowhere/spank_container.so")


def test_doctor_suid_dumpable_1_is_a_warning():
    setting = os.path.join(machine.work, "suid_dumpable")
    with node():
        for value, found in (("0", ()), ("2", ()), ("1", ("warning: core dumps: fs.suid_dumpable is 1",))):
            machine.write(setting, value + "\n")
            machine.mount("--bind", setting, "/proc/sys/fs/suid_dumpable")
            try:
                wrong(3 if found else 0, *found)
            finally:
                machine.run(["umount", "/proc/sys/fs/suid_dumpable"], "", machine.environment(), "/").succeeds()


def test_pyxis_in_plugstack_conf_is_reported():
    ours = "required spank_container.so\n"
    theirs = "/run/spank_pyxis.so"  # a file that is not linked with our library
    with node():
        machine.write(theirs, "NVIDIA's\n")
        machine.write(PLUGSTACK, f"required {theirs}\n")
        wrong(3, "warning: Slurm plugin: no plugstack.conf")
        machine.write(PLUGSTACK, f"{ours}required {theirs}\n")
        wrong(1, "beside NVIDIA's pyxis")
        machine.write(PLUGSTACK, "required spank_pyxis.so\n")
        wrong(3, "names spank_pyxis.so and not spank_container.so")
        machine.write(PLUGSTACK, f"{ours}required spank_pyxis.so\n")
        root("doctor", "--node").succeeds("ok      Slurm plugin: ")


def test_node_unable_to_start_containers_is_reported():
    with node():
        root("run", "-q", machine.base(), "true").succeeds()
        machine.write(CONFIG, machine.settings + "nonsense = 1\n")
        try:
            wrong(3, "warning: config.toml: jobs use the last valid one until a reboot: configuration ")
            machine.forget_last_valid()
            wrong(1, "config.toml: ")
            assert "spank_container_node_status 2" in root("metrics").succeeds().out
        finally:
            machine.write(CONFIG, machine.settings)
        machine.write(CONFIG, 'apparmor_profile = "jobs"\n' + machine.settings)
        try:
            root("run", "-q", machine.base(), "echo", "ran").succeeds("ran")
            wrong(3, "security labels: this kernel has neither AppArmor nor SELinux")
        finally:
            machine.write(CONFIG, machine.settings)
            root("run", "-q", machine.base(), "true").succeeds()
        machine.mount("-t", "tmpfs", "-o", "mode=755", "empty", STORE)
        try:
            wrong(1, "node store: /var/lib/spank-container/layers: ")
        finally:
            machine.run(["umount", STORE], "", machine.environment(), "/").succeeds()
        os.chmod(STORE + "/grants", 0o755)
        try:
            wrong(1, "node store: /var/lib/spank-container/grants has a wrong owner or mode")
        finally:
            os.chmod(STORE + "/grants", 0o750)
        os.chmod("/run/spank-container/steps", 0o755)
        try:
            wrong(1, "node's state: /run/spank-container/steps has a wrong owner or mode")
        finally:
            os.chmod("/run/spank-container/steps", 0o700)


@contextlib.contextmanager
def moved_store(directory):
    """Moves the store and leaves a link to it."""
    os.makedirs(directory)
    machine.mount("--move", STORE, directory)
    os.rmdir(STORE)
    os.symlink(directory, STORE)
    try:
        yield
    finally:
        os.unlink(STORE)
        os.mkdir(STORE)
        machine.mount("--move", directory, STORE)


def test_moved_store_is_used_and_reported():
    with node(), moved_store("/var/lib/other-disk/store"):
        ids = [str(number) for number in (machine.SERVICE_UID, machine.SERVICE_UID)]
        machine.run(["/usr/libexec/spank-container/agent", "setup", *ids], "", machine.environment(), "/").succeeds()
        digest = root("pull", image("moved", [{"etc/hello": b"hello\n"}])).succeeds().out.strip()
        assert os.path.exists(f"/var/lib/other-disk/store/records/{digest[7:]}")
        root("run", "-q", machine.base(), "cat", "/etc/os-release").succeeds("Debian")
        wrong(0)
        root("doctor", "--node").succeeds("ok      node store: /var/lib/spank-container", "in /var/lib/other-disk/store")
        os.chmod("/var/lib/other-disk", 0o777)
        wrong(1, "node store: ")


def test_store_filled_by_other_data_is_reported():
    with node(), small_store(16):
        wrong(0)
        with open(STORE + "/junk", "wb") as junk:
            junk.write(bytes(15 << 20))
        wrong(3, "warning: space of the store: ")
        with contextlib.suppress(OSError), open(STORE + "/more", "wb", buffering=0) as junk:
            while junk.write(bytes(4096)):
                pass
        wrong(3, "warning: space of the store: no room: ")
        found = metrics(root("metrics").succeeds().out)
        assert found["spank_container_store_free_bytes"][""] == 0 and found["spank_container_node_status"][""] == 1, found


def test_hung_file_system_does_not_hang_doctor():
    libc = ctypes.CDLL(None, use_errno=True)
    with node():
        device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
        assert libc.mount(b"hangs", b"/etc/slurm", b"fuse", 0, options) == 0, os.strerror(ctypes.get_errno())
        try:
            began = time.monotonic()
            wrong(3, "warning: Slurm plugin: no answer in time")
            assert time.monotonic() - began < 10
        finally:
            os.close(device)
            libc.umount2(b"/etc/slurm", 2)


def test_drain_example_drains_only_nodes_unable_to_start_containers():
    fakes, said = os.path.join(machine.work, "fakes"), os.path.join(machine.work, "scontrol-said")
    os.makedirs(fakes)
    machine.write(fakes + "/scontrol", f'#!/bin/sh\nprintf "%s|" "$@" >>{said}\n')
    os.chmod(fakes + "/scontrol", 0o755)
    script = "/usr/share/doc/spank-container/examples/node-health.sh"
    variables = machine.environment(PATH=f"{fakes}:/usr/bin:/bin", SLURMD_NODENAME="n1")
    with node():
        machine.run([script], "", variables, "/").succeeds()
        machine.write(PLUGSTACK, "")
        machine.run([script], "", variables, "/").succeeds()
        assert not os.path.exists(said), open(said).read()
        machine.write(PLUGSTACK, "required /nowhere/spank_container.so\n")
        machine.run([script], "", variables, "/").succeeds()
    told = open(said).read()
    assert told.startswith("update|NodeName=n1|State=DRAIN|Reason=containers: scontainer: Slurm plugin: /nowhere/"), told


# --- many nodes ------------------------------------------------------------------------------------------------------


def lines_of(node_name, **changed):
    """The output of a node of this name. `changed`: check (with _ for blanks) -> verdict, detail."""
    done = machine.run(["scontainer", "doctor", "--node", "--json"], "", machine.environment(SLURMD_NODENAME=node_name), "/").succeeds()
    found = json.loads(done.out)
    assert {one["node"] for one in found} == {node_name}, found
    lines = []
    for one in found:
        if (change := changed.get(one["check"].replace(" ", "_"))) is not None:
            one["verdict"], one["detail"] = change
        lines.append(json.dumps(one) + ",")
    return ["[", *lines, "]"]


def mixed(*nodes):
    """Mixes the lines as srun does."""
    width = max(map(len, nodes))
    return "".join(line + "\n" for at in range(width) for line in (one[at] for one in nodes if at < len(one)))


def test_doctor_merge_shows_failures_and_differences_first():
    with node():
        nodes = [lines_of(f"node{number:02}") for number in (9, 10, 12, 1)]
        nodes.append(lines_of("gpu1", programs=("failed", "no import"), kernel=("ok", "Linux 9.1")))
        nodes.append(lines_of("node11", Slurm_plugin=("warning", "no plugstack.conf"), space_of_the_store=("ok", "12.5 TB of 900 TB free, images use 4 kB")))
    done = user("doctor", "--merge", stdin=mixed(*nodes))
    assert done.status == 1 and done.err == "", done
    head, columns, *rows = done.out.splitlines()
    assert head == "6 nodes, 1 failed (gpu1), 1 with warnings (node11)" and columns.split() == ["VERDICT", "CHECK", "NODES", "DETAIL"], done
    cells = [re.split(r"  +", row, maxsplit=3) for row in rows]
    others = "gpu1,node[01,09-10,12]"
    assert [cell[:3] for cell in cells[:6]] == [
        ["failed", "programs", "gpu1"], ["ok", "programs", "node[01,09-12]"], ["warning", "Slurm plugin", "node11"], ["ok", "Slurm plugin", others],
        ["ok", "kernel", "node[01,09-12]"], ["ok", "kernel", "gpu1"]], done
    assert cells[0][3].startswith("no import") and cells[5][3] == "Linux 9.1", done
    everywhere = {cell[1]: cell[2] for cell in cells[6:]}
    assert set(everywhere.values()) == {"gpu1,node[01,09-12]"} and "space of the store" in everywhere, done
    merged = json.loads(user("doctor", "--merge", "--json", stdin=mixed(*nodes)).out)
    assert (merged["nodes"], merged["failed"], merged["warning"]) == ("gpu1,node[01,09-12]", "gpu1", "node11"), merged
    assert [one["check"] for one in merged["checks"]] == list(dict.fromkeys(cell[1] for cell in cells)), merged
    first = merged["checks"][0]
    assert first["verdict"] == "failed" and [one["nodes"] for one in first["answers"]] == ["gpu1", "node[01,09-12]"], first


def test_doctor_merge_status_and_missing_nodes():
    with node():
        good, other, warned, failed = lines_of("n1"), lines_of("n2"), lines_of("n2", kernel=("warning", "old")), lines_of("n2", kernel=("failed", "none"))
    for lines, options, status in ((good, (), 0), (warned, (), 3), (good, ("--nodes=n1",), 0), (good, ("--nodes=n[1-3]",), 1)):
        done = user("doctor", "--merge", *options, stdin=mixed(lines))
        assert done.status == status, done
    assert done.out.splitlines()[0] == "3 nodes, 2 failed (n[2-3])", done
    assert re.search(r"^failed +answer +n\[2-3\] +", done.out, re.M), done
    # Labels of srun and clush, and a node that was asked twice: its worst answer counts.
    labelled = mixed(["0: " + line for line in good], ["n2: " + line for line in other], failed)
    done = user("doctor", "--merge", stdin=labelled)
    assert (done.status, done.out.splitlines()[0]) == (1, "2 nodes, 1 failed (n2)"), done
    path = os.path.join(machine.work, "answers")
    machine.write(path, labelled)
    assert user("doctor", "--merge", path).out == done.out
    os.unlink(path)


def test_doctor_merge_distrusts_its_input():
    with node():
        good = mixed(lines_of("n1"))
    done = user("doctor", "--merge", stdin="Welcome\x1b[2J\n" + good)
    assert done.status == 0 and done.err == "scontainer: warning: line 1 is no check: Welcome\\x1b[2J\n", done
    object_ = '{"node": "n\\u001b[2J", "check": "k\\u001b", "verdict": "ok", "detail": "d\\u001b", "cure": ""}'
    done = user("doctor", "--merge", stdin=object_).succeeds()
    assert "\x1b" not in done.out, done
    for text in ("{", '{"node": "n1"}', object_.replace('"ok"', '"fine"'), object_.replace('"n\\u001b[2J"', "7"), object_ + "{}", '{"a": ' * 100):
        user("doctor", "--merge", stdin=good + text).fails(2, "merge checks: line ", "(hint: srun")
    user("doctor", "--merge", stdin="").fails(2, "has none")
    user("doctor", "--merge", "/nowhere").fails(2, "/nowhere")
    user("doctor", "--merge", "--node").fails(2, "only one")
    user("doctor", "--node", "--nodes=n1").fails(2, "--merge")
    # A node that differs each time does not make the table longer.
    many = mixed(*(lines for lines in [[f'{{"node": "n{i}", "check": "c", "verdict": "ok", "detail": "kind {i}"}}'] for i in range(2000)]))
    done = user("doctor", "--merge", stdin=many).succeeds("n[0-1999]", "kind 0; 2000 kinds of answers")
    assert len(done.out.splitlines()) == 3, done


# --- metrics ---------------------------------------------------------------------------------------------------------


def metrics(text):
    """name -> labels -> value; every line as Prometheus's format has it, each metric in one block below its HELP and TYPE."""
    found, name, kind = {}, None, None
    assert text.endswith("\n"), text
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("# HELP "):
            name = re.fullmatch(r"# HELP (spank_container_[a-z_]+) \S.*", line)[1]
            assert name not in found, f"{name} is there twice"
            kind = re.fullmatch(rf"# TYPE {name} (counter|gauge|histogram)", next(lines))[1]
            assert (kind == "counter") == name.endswith("_total"), line
            found[name] = {}
            continue
        parts = re.fullmatch(r'(spank_container_[a-z_]+)(?:\{((?:,?[a-z]+="[^"\\]*")+)\})? (\d+(?:\.\d+)?)', line)
        sample, labels, value = parts.groups(default="")
        if kind == "histogram":
            assert re.fullmatch(f"{name}_(bucket|sum|count)", sample), line
            labels = sample.removeprefix(name) + (labels and " " + labels)
        else:
            assert sample == name, line
        assert labels not in found[name], line
        found[name][labels] = float(value)
    assert all(found.values()), found
    check_histograms(text)
    return found


# Debian's package belongs to its own Python, which need not be the one of the tests.
READER = """
import json, sys
from prometheus_client.parser import text_string_to_metric_families as read
print(json.dumps([[f.name, f.type, f.documentation, [[s.name, s.labels, s.value] for s in f.samples]] for f in read(sys.stdin.read())]))
"""


def read_by_prometheus(text):
    """Metrics as Prometheus's own library reads them: name, type, help, and samples with name, labels and value."""
    return json.loads(machine.run(["/usr/bin/python3", "-c", READER], text, machine.environment(), "/").succeeds().out)


def check_histograms(text):
    """Buckets are cumulative, and the last one is the count."""
    for family, kind, text_of_help, samples in read_by_prometheus(text):
        assert text_of_help and kind in ("counter", "gauge", "histogram"), family
        if kind != "histogram":
            continue
        series = {}
        for name, labels, value in samples:
            one = series.setdefault(tuple(item for item in labels.items() if item[0] != "le"), {"buckets": []})
            if name.endswith("_bucket"):
                one["buckets"].append((float(labels["le"]), value))
            else:
                one[name.rsplit("_", 1)[1]] = value
        for one in series.values():
            limits, counts = zip(*one["buckets"])
            assert list(limits) == sorted(set(limits)) and limits[-1] == float("inf"), family
            assert list(counts) == sorted(counts) and counts[-1] == one["count"] and (one["sum"] > 0 or one["count"] == 0), (family, one)


def test_metrics_describe_the_store():
    with node():
        before = metrics(root("metrics").succeeds().out)
        assert before["spank_container_node_status"][""] == 0, before
        assert list(before["spank_container_info"]) == [f'version="{root("version").out.split()[1]}"'], before
        assert before["spank_container_high_watermark_ratio"][""] == 0.9, before
        assert before["spank_container_store_limit_bytes"][""] == 0, before
        assert "spank_container_starts_total" not in before, before
        root("pull", image("one-more", [{"one": b"1"}, {"two": b"2"}])).succeeds()
        os.makedirs(STORE + "/containers/1000/a-name")
        try:
            after = metrics(root("metrics").succeeds().out)
        finally:
            os.removedirs(STORE + "/containers/1000/a-name")
        for name, more in (("images", 1), ("layers", 2), ("named_containers", 1)):
            assert after[f"spank_container_{name}"][""] == before[f"spank_container_{name}"][""] + more, (name, before, after)
        assert after["spank_container_layer_bytes"][""] > before["spank_container_layer_bytes"][""]
    user("metrics").fails(1, "root")


START = ('start job=7 step=0 node=n1 uid=1000 user=ann image="IMAGE" digest=sha256:00 from=store layers=5 shared=0 fuse=0 pulled=1 '
         "import_ms=900.1 sources_ms=0.1 layers_ms=2.0 overlay_ms=0.2 pivot_ms=0.1 root_ms=1.0 start_ms=905.2")
PULL = ('pull job=7 step=0 node=n1 image="IMAGE" digest=sha256:00 nodes=8 index=3 layers=2 converted=1 registry_bytes=0 mirror_bytes=5 node_bytes=1460000000000 shared_bytes=0 '
        "pull_ms=905.2")
FAILED = 'failed job=7 step=0 node=n1 image="IMAGE" kind=not_found'
PLACE = "[2026-01-02T03:04:05.678] [7.0] spank-container: "


def counted(*lines, end="\n"):
    path = os.path.join(machine.work, "slurmd.log")
    with open(path, "w", errors="surrogateescape") as log:
        log.write("\n".join(lines) + end)
    found = metrics(root("metrics", "--log", path).succeeds().out)
    os.unlink(path)
    return (int(found["spank_container_starts_total"][""]), int(sum(found["spank_container_failures_total"].values())), found)


def test_metrics_count_log_events():
    starts, failures, found = counted("[2026-01-02T03:04:05.678] slurmd started", PLACE + START, PLACE + FAILED, PLACE + PULL,
                                      PLACE + START.replace("fuse=0 pulled=1", "fuse=5 pulled=0"),
                                      PLACE.replace("spank-container", "pyxis").replace("7.0", "7.batch") + START,
                                      PLACE.replace("7.0", "6+1.0") + START)
    assert (starts, failures) == (4, 1), found
    assert found["spank_container_pulls_total"][""] == 3 and found["spank_container_fuse_starts_total"][""] == 1, found
    assert found["spank_container_failures_total"]['kind="not_found"'] == 1, found
    assert found["spank_container_start_seconds_total"] == {
        'phase="import"': 3.6004, 'phase="sources"': 0.0004, 'phase="layers"': 0.008, 'phase="overlay"': 0.0008,
        'phase="pivot"': 0.0004, 'phase="root"': 0.004, 'phase="start"': 3.6208}, found
    assert counted()[:2] == (0, 0)
    root("metrics", "--log", "/nowhere.log").fails(1, "/nowhere.log")
    root("metrics", "--log", "/dev/zero").fails(1, "not a regular file")


def buckets(found, name, label=""):
    """The upper limits of a histogram's buckets that have counted, each with its own count."""
    before, counted_in = 0, {}
    for labels, value in found["spank_container_" + name].items():
        limit = re.fullmatch(rf'_bucket {label}{"," if label else ""}le="([^"]+)"', labels)
        if limit and value > before:
            counted_in[limit[1]] = int(value - before)
            before = value
    return counted_in


def test_metrics_histograms_by_phase_and_image():
    def start(image, source, pulled=0, fuse=0, ms=905.2):
        return PLACE + START.replace("IMAGE", image).replace("from=store", f"from={source}").replace("fuse=0 pulled=1", f"fuse={fuse} pulled={pulled}").replace(
            "start_ms=905.2", f"start_ms={ms}")
    lines = (start("debian:12", "store", pulled=1), start("debian:12", "store", ms=30.4), start("debian:12", "store", ms=50.0), start("debian:12", "store", fuse=2),
             start("docker-archive:a.tar", "store", pulled=1), start("./more.tar", "store"), start("./a.sqsh", "file"), start("/b.sif", "file"),
             start("/c.ext4", "file", ms=600000.1), start("/d", "directory"), PLACE + PULL, PLACE + PULL.replace("node_bytes=1460000000000", "node_bytes=1500000").replace("905.2", "20.0"))
    found = counted(*lines)[2]
    duration = "start_duration_seconds"
    expected = {"registry": {"1": 1}, "store": {"0.05": 2}, "fuse": {"1": 1}, "archive": {"1": 2}, "squashfs": {"1": 1}, "sif": {"1": 1}, "file": {"+Inf": 1}, "directory": {"1": 1}}
    assert {kind: buckets(found, duration, f'image="{kind}"') for kind in expected} == expected, found["spank_container_" + duration]
    assert found["spank_container_" + duration]['_sum image="store"'] == 0.0804, found["spank_container_" + duration]
    assert buckets(found, "phase_duration_seconds", 'phase="import"') == {"1": 10} and buckets(found, "phase_duration_seconds", 'phase="root"') == {"0.001": 10}
    assert 'start' not in "".join(found["spank_container_phase_duration_seconds"]), "the whole start is no phase of it"
    assert buckets(found, "pull_duration_seconds") == {"0.02": 1, "1": 1} and buckets(found, "pull_size_bytes") == {"2e+06": 1, "+Inf": 1}
    assert found["spank_container_pull_bytes_total"] == {'source="registry"': 0, 'source="mirror"': 10, 'source="node"': 1460001500000, 'source="shared"': 0}


def test_metrics_state_survives_rotation_and_damage():
    directory = "/var/lib/spank-state"
    os.mkdir(directory)
    log, state = directory + "/slurmd.log", directory + "/state"
    record = PLACE + START + "\n"

    def starts(*options):
        done = root("metrics", "--log", log, "--state", state, *options).succeeds()
        return int(metrics(done.out)["spank_container_starts_total"][""]), done.err
    machine.write(log, record * 2 + record[:50])
    assert starts() == (2, "") and starts() == (2, "")
    with open(log, "a") as file:
        file.write(record[50:] + record)
    assert starts() == (4, ""), "the line that was incomplete, and one more"
    assert os.stat(state).st_mode & 0o7777 == 0o600
    with open(log, "a") as file:
        file.write(record)
    os.rename(log, log + ".1")
    machine.write(log, record * 3)
    assert starts() == (8, ""), "one before the rotation, three behind it"
    machine.write(log, "")
    machine.write(log, record)
    assert starts() == (9, ""), "emptied in place"
    size = len(root("metrics", "--log", log, "--state", state).succeeds().out)
    with open(log, "a") as file:
        file.writelines(PLACE + START.replace("IMAGE", f"image-{i}").replace("user=ann", f"user=u{i}") + "\n" for i in range(5000))
    assert starts() == (5009, "")
    assert os.path.getsize(state) < 8192 and len(root("metrics", "--log", log, "--state", state).succeeds().out) < size + 1000, "grows with the log"
    for damage in ("", "{", '{"version": 0, "numbers": []}', "[1]", "x" * 100_000):
        machine.write(state, damage)
        assert starts()[0] == 5001 and starts() == (5001, ""), damage
    machine.write(state, "{")
    assert starts()[1].startswith(f'scontainer: warning: state "{state}": is not JSON') and starts()[1] == ""
    os.chmod(state, 0o666)
    root("metrics", "--log", log, "--state", state).fails(1, "state")
    root("metrics", "--state", state).fails(1, "--log")
    for name in os.listdir(directory):
        os.unlink(f"{directory}/{name}")
    os.rmdir(directory)


def test_metrics_board_names_only_printed_metrics():
    board = json.load(open("/usr/share/doc/spank-container/examples/grafana/spank-container.json"))
    with node():
        path = os.path.join(machine.work, "slurmd.log")
        machine.write(path, PLACE + START + "\n" + PLACE + PULL + "\n")
        os.makedirs(STORE + "/containers/1000")
        printed = {sample[0] for *_, samples in read_by_prometheus(root("metrics", "--log", path).succeeds().out) for sample in samples}
        os.unlink(path)
        os.removedirs(STORE + "/containers/1000")
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    named = {name for one in expressions for name in re.findall(r"spank_container_\w+", one)}
    assert len(expressions) > 10 and named <= printed, named - printed
    for needed in ("phase_duration_seconds_bucket", "start_duration_seconds_bucket", "pull_duration_seconds_bucket", "failures_total", "store_free_bytes", "node_status"):
        assert "spank_container_" + needed in named, needed
    for one in expressions:
        assert one.count("(") == one.count(")") and ("_total" not in one and "_bucket" not in one or "rate(" in one or "increase(" in one), one
    identifiers = [panel["id"] for panel in board["panels"]]
    assert len(identifiers) == len(set(identifiers)) and all(panel["title"] and panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])


def test_json_log_has_each_start_and_failure_once():
    path = os.path.join(machine.work, "slurmd.log")
    with open(path, "w", errors="surrogateescape") as log:
        log.write("\n".join(("[2026-01-02T03:04:05.678] slurmd started", PLACE + START, START, PLACE + FAILED.replace("IMAGE", 'a\\"b\udcff'), PLACE + PULL, PULL,
                             PLACE + PULL.replace("shared_bytes=0", "shared_bytes=12345678901234567"),
                             PLACE + START.replace("sha256:00 from=store", "- from=directory").replace("pulled=1", "pulled=0"))) + "\n")
    start, failure, pull, other = map(json.loads, user("audit", path).succeeds().out.splitlines())
    time = "2026-01-02T03:04:05.678"
    phases = {"import_ms": 900.1, "sources_ms": 0.1, "layers_ms": 2, "overlay_ms": 0.2, "pivot_ms": 0.1, "root_ms": 1, "start_ms": 905.2}
    assert start == {"time": time, "event": "start", "job": "7", "step": "0", "node": "n1", "image": "IMAGE", "uid": 1000, "user": "ann",
                     "digest": "sha256:00", "from": "store", "layers": 5, "shared": 0, "fuse": 0, "pulled": True, **phases}, start
    assert failure == {"time": time, "event": "failed", "job": "7", "step": "0", "node": "n1", "image": 'a\\"b\ufffd', "kind": "not_found"}, failure
    assert pull == {"time": time, "event": "pull", "job": "7", "step": "0", "node": "n1", "image": "IMAGE", "digest": "sha256:00", "nodes": 8, "index": 3, "layers": 2, "converted": 1,
                    "registry_bytes": 0, "mirror_bytes": 5, "node_bytes": 1460000000000, "shared_bytes": 0, "pull_ms": 905.2}, pull
    assert (other["digest"], other["from"], other["pulled"]) == (None, "directory", False), other
    assert len(user("audit", path, path).succeeds().out.splitlines()) == 8
    user("audit", "/nowhere.log").fails(1, "/nowhere.log")
    os.unlink(path)


def test_metrics_distrust_user_texts():
    hostile = [
        START, "spank-container: " + START, "[2026] " + START, PLACE + " " + START, PLACE + START + " ", PLACE + START + " more=1",
        PLACE + "x " + START, PLACE + START.replace("job=7", "job=8"), PLACE + START.replace("user=ann", "user=ann uid=0"),
        PLACE + START.replace("layers=5", "layers=-5"), PLACE + START.replace("start_ms=905.2", "start_ms=9e9"),
        PLACE + START.replace("905.2", "99999999999999.9"), PLACE + START.replace("pulled=1", "pulled=2"),
        PLACE + START.replace(" root_ms=1.0", ""),
        PLACE.replace("7.0", "x.0") + START, PLACE.replace("] [7.0]", "]") + START, PLACE + "error: " + START,
        PLACE[:32] + "task 0 (job name " + PLACE + START + ")", "[t] launch task 7.0 request: " + PLACE + START,
        PLACE + START.replace("IMAGE", "x" * 5000), PLACE + "pull image \"" + START + "\": not found",
        PLACE + START[:-1] + "\0", PLACE + FAILED.replace("not_found", 'a"b'), PLACE + FAILED + " kind=refused", "\udcff" * 100,
        PLACE, "[", "[] [] ", "[a] [1.", "[a] [.] spank-container: ", "[a] [] spank-container: " + START,
    ]
    for line in hostile:
        assert counted(line)[:2] == (0, 0), line
    assert counted(*hostile, PLACE + START)[:2] == (1, 0)
    # An image can be called anything: it counts once, as what it is.
    for name in ('x\\', "x\\\" digest=- from=store", START.replace('"', '\\"'), PLACE + FAILED.replace('"', '\\"'), "", "\udcff"):
        assert counted(PLACE + START.replace("IMAGE", name))[:2] == (1, 0), name
        assert counted(PLACE + FAILED.replace("IMAGE", name))[:2] == (0, 1), name
    assert counted(PLACE + FAILED.replace("not_found", "unheard_of"))[:2] == (0, 0)
    assert counted(PLACE + START, PLACE + START, end="")[0] == 1, "a line without an end is counted next time"
