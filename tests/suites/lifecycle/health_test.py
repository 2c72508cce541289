"""A node's health as reported to HealthCheckProgram and Prometheus."""
import json
import os
import re
import shutil

from cluster import HERE
from harness import equal, expect, test
from images import with_probe

LOG = "/var/log/slurm/slurmd.log"


def counters(cluster, node="node01"):
    text = cluster.root(node, "scontainer", "metrics", f"--log={LOG}").good()
    return {name: float(value) for name, value in re.findall(r"^(spank_container_\S+) (\S+)$", text, re.M)}


def risen(before, after):
    """Returns the counters except those of time, and their increase."""
    return {name.removeprefix("spank_container_"): after[name] - before[name] for name in after
            if "_total" in name and "seconds" not in name and "bytes" not in name and after[name] != before[name]}


@test
def login_host_needs_no_store(cluster):
    done = cluster.root("head", "scontainer", "doctor", "--node")
    for check in ("node store", "space of the store", "node's state"):
        expect(re.search(f"ok +{check}: none: no slurmd runs here, and a login host needs none", done.out), check, done)
    expect(not re.search(r": *$", done.out, re.M), "a verdict without text", done)


@test
def image_of_the_node_is_inspected_by_users(cluster):
    cluster.srun("-w", "node01", "true").good("")
    done = cluster.run("srun", "-w", "node01", "scontainer", "inspect", "registry:5000/suites/base:1")
    expect(re.search(r"^size +[0-9.]+ MB in 3 layers$", done.out, re.M) and re.search(r"^platform +linux/", done.out, re.M), "not the image", done)


@test
def healthy_node_is_silent_and_counts_starts(cluster):
    done = cluster.root("node01", "scontainer", "doctor", "--node", "--quiet")
    equal((done.rc, done.out, done.err), (0, "", ""), "what a healthy node says", done)
    # A layer that no image in the store has.
    name = cluster.push(with_probe("health", [("data", os.urandom(1000))]))
    begin = counters(cluster)
    equal(begin["spank_container_node_status"], 0, "node_status")
    srun = ("srun", "-w", "node01", "-n2", f"--container-image={name}", "/probe")
    cluster.run(*srun).good()
    pulled = counters(cluster)
    equal(risen(begin, pulled), {"starts_total": 1, "pulls_total": 1}, "counters of a start that pulls")
    cluster.run(*srun).good()
    again = counters(cluster)
    equal(risen(pulled, again), {"starts_total": 1}, "counters of a start that does not")
    phase = 'spank_container_start_seconds_total{phase="%s"}'
    expect(all(again[phase % one] > pulled[phase % one] for one in ("layers", "root", "start")), f"no time has passed: {again}")
    done = cluster.run("srun", "-w", "node01", "-n2", "--container-image=registry:5000/suites/nothing:1", "true")
    expect(done.rc != 0, "an image that does not exist was started", done)
    equal(risen(again, counters(cluster)), {'failures_total{kind="not_found"}': 1}, "counters of a failure")
    told = [json.loads(line) for line in cluster.root("node01", "scontainer", "audit", LOG).good().splitlines()][-4:]
    equal([(one["event"], one["image"]) for one in told],
          [("pull", name), ("start", name), ("start", name), ("failed", "registry:5000/suites/nothing:1")], "the log as JSON")
    equal([(one["user"], one["pulled"], one["digest"] == told[0]["digest"]) for one in told[1:3]], [("alice", True, True), ("alice", False, True)], "starts in it")


# --- the page for administrators ------------------------------------------------------------------

PAGE = os.path.join(HERE, "../../..", "packaging/migration/administration.md")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", open(PAGE).read(), re.M | re.S)


@test
def configurations_of_the_administration_page_are_valid(cluster):
    path = os.path.join(cluster.shared, "site.toml")
    equal(len(blocks("toml")), 3, "configurations on the page")
    for text in blocks("toml"):
        with open(path, "w") as file:
            file.write(text)
        done = cluster.root("node01", "scontainer", "doctor", "--config=/home/shared/site.toml")
        expect(done.rc in (0, 3) and "failed" not in done.out and "\nchange  " in done.out, "the configuration", done)
    os.unlink(path)


@test
def commands_of_the_administration_page_work(cluster):
    config = os.path.join(cluster.etc, "spank-container/config.toml")
    text = open(config).read()
    new = os.path.join(cluster.shared, "new")
    os.makedirs(new, exist_ok=True)
    with open(os.path.join(new, "config.toml"), "w") as file:
        file.write("job_tag_ttl = 61\n" + text)
    lines = "".join(blocks("sh")).splitlines()
    expect(len(lines) > 15, f"only {len(lines)} commands")
    try:
        for line in lines:
            words = line.split()
            # Nodes without hardware fail checks of --job.
            allowed = (0, 1) if "--job" in words else (0,)
            if words[0] == "srun":
                done = cluster.run(*words)
            else:
                done = cluster.root("head" if words[0] in ("scontrol", "sinfo") else "node01", *words)
            expect(done.rc in allowed, line, done)
            if line == "scontainer doctor --config=/home/shared/new/config.toml":
                expect("change  job_tag_ttl: 60 -> 61 (for: " in done.out, line, done)
            if line == "sinfo -R":
                expect("canary" in done.out and "node02" in done.out, line, done)
        equal(open(config).read(), "job_tag_ttl = 61\n" + text, "the installed configuration")
    finally:
        with open(config, "w") as file:
            file.write(text)
        cluster.root("head", "scontrol", "delete", "reservation=canary")
        cluster.root("head", "scontrol", "update", "nodename=node02", "state=resume")
        shutil.rmtree(new)
        cluster.await_idle()


@test
def start_histograms_count_by_kind_of_image(cluster):
    def counts():
        found = counters(cluster)
        return {kind: found[f'spank_container_start_duration_seconds_count{{image="{kind}"}}'] for kind in
                ("registry", "store", "archive", "squashfs", "directory")}, found
    name = cluster.push(with_probe("histograms", [("data", os.urandom(1000))]))
    before, first = counts()
    cluster.run("srun", "-w", "node01", f"--container-image={name}", "/probe").good()
    cluster.run("srun", "-w", "node01", f"--container-image={name}", "/probe").good()
    cluster.run("srun", "-w", "node01", f"--container-image={name}", "--container-save=/home/alice/numbers.sqsh", "/probe").good()
    cluster.run("srun", "-w", "node01", "--container-image=./numbers.sqsh", "/probe").good()
    cluster.run("rm", "numbers.sqsh").good()
    after, last = counts()
    equal({kind: after[kind] - before[kind] for kind in after if after[kind] != before[kind]}, {"registry": 1, "store": 2, "squashfs": 1}, "starts by kind")
    for phase in ("import", "sources", "layers", "overlay", "pivot", "root"):
        label = f'spank_container_phase_duration_seconds_%s{{phase="{phase}"}}'
        equal(last[label % "count"] - first[label % "count"], 4, phase)
        expect(last[label % "sum"] >= first[label % "sum"], f"{phase}: {last}")
    equal(last["spank_container_pull_size_bytes_count"] - first["spank_container_pull_size_bytes_count"], 1, "pulls")
    expect(last['spank_container_pull_bytes_total{source="registry"}'] - first['spank_container_pull_bytes_total{source="registry"}'] > 1000, "bytes of the pull")


@test
def timer_keeps_counters_when_the_log_is_rotated(cluster):
    """Runs the timer's program twice, with a rotation in between."""
    directory = "/tmp/numbers"
    variables = (f"SLURMD_LOG={directory}/slurmd.log", f"TEXTFILE_DIRECTORY={directory}/textfile", f"METRICS_STATE={directory}/cache/metrics.json")

    def starts():
        cluster.root("node01", "env", *variables, "/usr/share/spank-container/write-metrics").good("")
        text = cluster.root("node01", "cat", f"{directory}/textfile/spank-container.prom").good()
        return int(re.search(r"^spank_container_starts_total (\d+)$", text, re.M)[1])
    cluster.srun("-w", "node01", "true").good("")
    cluster.root("node01", "sh", "-c", f"mkdir -p {directory}/textfile; cp {LOG} {directory}/slurmd.log").good()
    try:
        first = starts()
        expect(first > 0 and starts() == first, f"starts: {first}, then {starts()}")
        # The log is rotated, and its last start is the first line of the new one.
        cluster.root("node01", "sh", "-c", f"cd {directory}; mv slurmd.log slurmd.log.1; grep ': start job=' slurmd.log.1 | tail -n 1 >slurmd.log").good()
        equal((starts(), starts()), (first + 1, first + 1), "starts")
        equal(cluster.root("node01", "stat", "-c", "%a %U", f"{directory}/cache/metrics.json").good().strip(), "600 root", "state")
    finally:
        cluster.root("node01", "rm", "-r", directory)


@test
def checks_of_nodes_are_merged_into_one_table(cluster):
    many = f"srun -N{len(cluster.nodes)} scontainer doctor --node --json | scontainer doctor --merge"
    done = cluster.run("sh", "-c", many)
    expect(done.rc == 0, "healthy nodes", done)
    expect(re.search(r"^2 nodes$", done.out, re.M) and re.search(r"^ok +programs +node\[01-02\] ", done.out, re.M), "the table", done)
    grants = "/var/lib/spank-container/grants"
    cluster.root("node02", "chmod", "755", grants).good()
    try:
        done = cluster.run("sh", "-c", many + " 2>/dev/null")
        as_json = cluster.run("sh", "-c", many + " --json")
    finally:
        cluster.root("node02", "chmod", "750", grants).good()
    equal(done.rc, 1, "status with a broken node", done)
    lines = [re.split("  +", line) for line in done.out.splitlines()]
    equal(lines[0], ["2 nodes, 1 failed (node02)"], "summary", done)
    equal([line[:3] for line in lines[2:4]], [["failed", "node store", "node02"], ["ok", "node store", "node01"]], "differences first", done)
    expect(f"{grants} has a wrong owner or mode (fix: restart slurmd" in lines[2][3], "the reason and the fix", done)
    merged = json.loads(as_json.out)
    equal((as_json.rc, merged["failed"], merged["checks"][0]["check"]), (1, "node02", "node store"), "as JSON", as_json)
    done = cluster.run("sh", "-c", "srun -N1 -w node01 scontainer doctor --node --json | scontainer doctor --merge --nodes='node[01-02]'")
    equal((done.rc, done.out.splitlines()[0]), (1, "2 nodes, 1 failed (node02)"), "a node without an answer", done)
