"""Nodes of a step without an image fetch it from each other: the registry's requests, and recovery
after a node dies. Runs on the two nodes of all suites, or more: `tests/run suites.peers --nodes 8`.
"""
import contextlib
import http.server
import json
import os
import socket
import socketserver
import struct
import threading
import time

from cluster import kill_all
from command import await_true
from faulty_registry import serve_in_network
from harness import equal, expect, test
from images import Image, digest_of, probe
from private_images_test import DOCKER, PRIVATE, in_home
from site_files import rules
from tags_test import Asked, publish, shown

VARIABLE = "SLURM_SCONTAINER_TRACKER"


def everywhere(cluster):
    """Runs one task on each node."""
    return (f"-N{len(cluster.nodes)}", f"-n{len(cluster.nodes)}")


def publish_large(cluster, repository, layers=3, size=400_000):
    """Publishes an image that a test can observe during the pull: name and digests of the layers,
    the first of which has the program."""
    image = Image(f"suites/{repository}", [[("probe", probe()), ("content", b"same\n"), ("name", repository.encode())], *([(f"noise{number}", os.urandom(size))] for number in range(layers - 1))])
    return cluster.faulty.publish(image)


def gets(asked):
    return {what: count for what, count in asked.all().items() if what.startswith("GET")}


def nodes_with(cluster, program):
    return [node for node in cluster.nodes if cluster.processes(node, program)]


@contextlib.contextmanager
def half_way(cluster, repository, layers=2, as_digest=False):
    """Starts a step on all nodes whose last layer stops in the middle at the registry until all
    nodes need it. A node that arrives after the tasks of the others have ended finds no peer.
    Yields the step, the node that requested the layer, and the event that lets it continue."""
    name, digests = publish_large(cluster, repository, layers)
    if as_digest:
        name = name.replace(":1", f"@{manifest_of(cluster, repository)}")
    gate = cluster.faulty.hold(digests[-1])
    path = f"/v2/suites/{repository}/blobs/{digests[-1]}"
    running = cluster.start_srun(*everywhere(cluster), "/probe", "/content", image=name)
    try:
        await_true(lambda: cluster.faulty.clients[path], 15, "nobody asks for the layer")
        await_true(lambda: len(nodes_with(cluster, "import")) == len(cluster.nodes), 20, "not all nodes pull")
        time.sleep(0.5)  # the others get their sources
        yield running, node_of(cluster.faulty.clients[path][0]), gate
    finally:
        gate.set()
        del cluster.faulty.slow[digests[-1]]


def is_one_pull(cluster, repository, layers, as_digest=False):
    asked = Asked(cluster, repository)
    with half_way(cluster, repository, layers, as_digest) as (running, _, gate):
        gate.set()
        equal(shown(running.end(90)), ["same"] * len(cluster.nodes), "content")
    found = gets(asked)
    equal(set(found.values()), {1}, f"how often each was fetched: {found}")
    expect(len(found) == layers + 2, f"fetched: {found}")
    return {what: count for what, count in asked.all().items() if what.startswith("HEAD")}


def node_of(address):
    return f"node{int(address.rpartition('.')[2]) - 10:02}"


# --- requests to the registry ---------------------------------------------------------------------

@test
def concurrent_nodes_pull_once(cluster):
    equal(is_one_pull(cluster, "peers-once", 3), {"HEAD manifests/1": 1}, "questions: srun's, and none of the nodes'")
    cluster.must_be_quiet()


@test
def concurrent_nodes_pull_once_by_digest(cluster):
    equal(is_one_pull(cluster, "peers-digest", 3, as_digest=True), {}, "questions")


def manifest_of(cluster, repository):
    return next(reference for reference in cluster.faulty.manifests if reference.startswith(f"suites/{repository}@")).partition("@")[2]


def confirmed(cluster, repository, name):
    """Runs a step on nodes that have the image but no longer know that it is public. Returns its
    result while all nodes were active at once, and the requests."""
    asked, nodes = Asked(cluster, repository), len(cluster.nodes)
    path = f"/v2/suites/{repository}/manifests/{manifest_of(cluster, repository)}"
    gate = cluster.faulty.silent[path] = threading.Event()
    running = cluster.start_srun(*everywhere(cluster), "/probe", "/content", image=name)
    try:
        await_true(lambda: cluster.faulty.heads[path] and len(nodes_with(cluster, "relay")) == nodes, 15, "not all nodes have met")
        time.sleep(0.5)  # by now nodes that ask the registry have done so
    finally:
        del cluster.faulty.silent[path]
        gate.set()
    done = running.end(30)
    return done, {what.replace(path.rpartition("/")[2], "DIGEST"): count for what, count in asked.all().items()}


@test
def nodes_with_the_image_revalidate_it_once(cluster):
    name, _ = publish_large(cluster, "peers-confirm", layers=1)
    with rules(cluster, "public_ttl = 1\n"):
        cluster.srun(*everywhere(cluster), "/probe", image=name).good()
        time.sleep(2)
        done, questions = confirmed(cluster, "peers-confirm", name)
        equal(shown(done), ["same"] * len(cluster.nodes), "content")
        equal(questions, {"HEAD manifests/1": 1, "HEAD manifests/DIGEST": 1}, "questions: srun's, and one of the nodes'")
        cluster.must_be_quiet()
        time.sleep(2)
        cluster.faulty.answers[f"/v2/suites/peers-confirm/manifests/{manifest_of(cluster, 'peers-confirm')}"] = (403, {"code": "DENIED", "message": "not any more"})
        done, _ = confirmed(cluster, "peers-confirm", name)
        expect(done.rc == 1 and "same" not in done.out and "is forbidden" in done.err, "it is not public any more", done)


@test
def nodes_ask_the_registry_each_without_peers(cluster):
    name, digests = publish_large(cluster, "peers-off")
    asked = Asked(cluster, "peers-off")
    with rules(cluster, "[peers]\nenabled = false\n"):
        equal(shown(cluster.srun(*everywhere(cluster), "/probe", "/content", image=name)), ["same"] * len(cluster.nodes), "content")
    expect(all(gets(asked)[f"GET blobs/{digest}"] == len(cluster.nodes) for digest in digests), f"fetched: {gets(asked)}")


@test
def single_node_connects_to_no_peer(cluster):
    name, digests = publish_large(cluster, "peers-single", layers=2)
    gate = cluster.faulty.hold(digests[-1])
    running = cluster.start_srun("-N1", "-n1", "/probe", image=name)
    try:
        await_true(lambda: nodes_with(cluster, "import"), 10, "nobody pulls")
        time.sleep(0.5)
        equal(nodes_with(cluster, "relay") + nodes_with(cluster, "user-source"), [], "nodes with processes for others")
    finally:
        gate.set()
    running.end(30).good()


@test
def nodes_pull_each_when_srun_is_unreachable(cluster):
    for number, value in enumerate(("1:" + "0" * 32, "x", "%n:" + "0" * 32)):
        name, _ = publish(cluster, f"peers-alone{number}", b"alone\n")
        asked = Asked(cluster, f"peers-alone{number}")
        # Otherwise it prints its port.
        with rules(cluster, '[peers]\nsrun_ports = "61000-61000"\n'):
            done = cluster.run("srun", *everywhere(cluster), f"--container-image={name}", f"--export=ALL,{VARIABLE}={value}", "/probe", "/content")
        equal(shown(done), ["alone"] * len(cluster.nodes), f"content with {value}")
        expect(all("do not take the image from each other" in line for line in done.errors()), "errors", done)
        expect(max(gets(asked).values()) == len(cluster.nodes), f"nodes have met with {value}: {gets(asked)}")


@test
def srun_listens_at_the_configured_address(cluster):
    with rules(cluster, '[peers]\nsrun_ports = "61000-61003"\n'):
        with half_way(cluster, "peers-ports") as (running, _, gate):
            found = listening(cluster, range(61000, 61004))
            gate.set()
            equal(shown(running.end(90)), ["same"] * len(cluster.nodes), "content")
        equal(len(found), 2, f"of the site's ports srun listens at {found}: for errors, and for nodes that lack the image")
    with rules(cluster, '[peers]\nsrun_ports = "61000-61000"\n'):
        name, _ = publish(cluster, "peers-one-port", b"one\n")
        asked = Asked(cluster, "peers-one-port")
        equal(shown(cluster.srun(*everywhere(cluster), "/probe", "/content", image=name)), ["one"] * len(cluster.nodes), "content")
        expect(max(gets(asked).values()) == len(cluster.nodes), f"nodes have met without a port: {gets(asked)}")


def listening(cluster, ports):
    """Returns those of `ports` at which a process on the head listens."""
    with open(f"/proc/{cluster.pid('head')}/net/tcp6") as table:
        fields = [line.split() for line in table.readlines()[1:]]
    return [port for port in ports if any(int(one[1].rpartition(":")[2], 16) == port and one[3] == "0A" for one in fields)]


def bound_to(cluster, node, program):
    """Returns the addresses to which processes of this name are bound on a node, from /proc/net."""
    found = set()
    for pid in cluster.processes(node, program):
        own = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{pid}/net/{table}") as file:
                rows = [line.split() for line in file.readlines()[1:]]
            found |= {one[1].rpartition(":")[0] for one in rows if one[3] == "0A" and f"socket:[{one[9]}]" in own}
    return found


@test
def relay_listens_at_its_address_only(cluster):
    address = {node: "".join(f"{int(byte):02X}" for byte in reversed(f"10.77.0.{10 + int(node[4:])}".split("."))) for node in cluster.nodes}
    for text in ("", '[peers]\nnetworks = ["10.77.0.0/24"]\n'):
        with rules(cluster, text), half_way(cluster, f"peers-bound{len(text)}") as (running, _, gate):
            for node in cluster.nodes:
                found = bound_to(cluster, node, "relay")
                equal({one[-8:] for one in found}, {address[node]}, f"where {node} listens: {found}")
            gate.set()
            equal(shown(running.end(90)), ["same"] * len(cluster.nodes), "content")


@test
def relay_spool_is_counted_by_metrics_and_doctor(cluster):
    def spooled(node):
        text = cluster.root(node, "scontainer", "metrics").good()
        return max(int(line.split()[1]) for line in text.splitlines() if line.startswith("spank_container_spool_bytes"))
    equal([spooled(node) for node in cluster.nodes], [0] * len(cluster.nodes), "bytes before")
    with half_way(cluster, "peers-counted", layers=3) as (running, node, gate):
        found = spooled(node)
        expect(400_000 <= found < 2_000_000, f"a layer of 400 kB and a half are spooled: {found}")
        said = cluster.root(node, "scontainer", "doctor", "--node").out
        expect("are kept for other nodes of running steps" in said, f"doctor says: {said}")
        gate.set()
        running.end(90).good()
    cluster.must_be_quiet()
    equal([spooled(node) for node in cluster.nodes], [0] * len(cluster.nodes), "bytes afterwards")


# --- node deaths ----------------------------------------------------------------------------------

@test
def nodes_go_on_when_the_pulling_node_is_killed(cluster):
    with half_way(cluster, "peers-kill") as (running, leader, gate):
        kill_all(cluster.processes(leader, "import"))
        time.sleep(0.2)
        gate.set()
        done = running.end(60)
    equal(done.out.splitlines().count("same"), len(cluster.nodes) - 1, "nodes that run", done)
    expect(done.rc == 1 and f"{leader}: pull the image: import exited unexpectedly" in done.err, "the node that was killed says nothing", done)
    cluster.must_be_quiet()


@test
def killed_relay_does_not_disturb_the_pull(cluster):
    with half_way(cluster, "peers-relay") as (running, leader, gate):
        expect(cluster.processes(leader, "relay"), f"no relay on {leader}")
        kill_all(cluster.processes(leader, "relay"))
        time.sleep(0.2)
        gate.set()
        done = running.end(60)
    equal(shown(done), ["same"] * len(cluster.nodes), "content")
    cluster.must_be_quiet()


@test
def scancel_during_peer_pull_leaves_nothing(cluster):
    before = cluster.stores()
    with half_way(cluster, "peers-cancel") as (running, _, _):
        cluster.run("scancel", "-u", "alice").good()  # 20.11 has no --me
        done = running.end(30)
        expect(done.rc != 0, "it was not cancelled", done)
    cluster.await_idle()
    cluster.must_be_quiet()
    left = {node: set(cluster.store_entries(node)) - set(before[node]) for node in cluster.nodes}
    expect(not any("tmp" in entry for entries in left.values() for entry in entries), f"left: {left}")


@test
def srun_ends_while_nodes_are_connected(cluster):
    with half_way(cluster, "peers-srun") as (running, _, _):
        kill_all(cluster.everybody("srun"))
        running.end(10)
    cluster.run("scancel", "--me")
    cluster.await_idle()
    cluster.must_be_quiet()


# --- rights ----------------------------------------------------------------------------------------------------------

@test
def private_image_is_for_its_user_on_every_node(cluster):
    for node in cluster.nodes:
        cluster.root(node, "sh", "-c", "scontainer rm --force registry:5001/suites/base:1 2>/dev/null; true")
    with in_home(cluster, ".docker/config.json", DOCKER):
        cluster.srun(*everywhere(cluster), "true", image=PRIVATE, timeout=60).good()
    for node in cluster.nodes:
        done = cluster.srun("-w", node, "true", image=PRIVATE, user="bob")
        expect(done.rc == 1 and "scontainer login registry:5001" in done.err, f"bob has got alice's image on {node}", done)


@test
def public_state_is_believed_from_service_users_only(cluster):
    image = Image("suites/peers-forged", [[("probe", probe()), ("content", b"same\n")]])
    manifest, blobs = image.parts()
    digest = digest_of(manifest)
    place = f"{cluster.faulty.host}/suites/peers-forged@{digest}"
    for path in (f"manifests/{digest}", *(f"blobs/{blob}" for blob in blobs)):
        cluster.faulty.answers[f"/v2/suites/peers-forged/{path}"] = (403, {"code": "DENIED", "message": "not for you"})
    said = f"spank-container: public {place}"
    as_service_user = ("setpriv", "--reuid=spank-container", "--regid=spank-container", "--clear-groups")
    signed = {"alice": cluster.run("munge", "-s", f"{said} {int(time.time())}").good(),
              "another image's": cluster.root("node01", *as_service_user, "munge", "-s", f"{said[:-1]}{'0' if said[-1] != '0' else '1'} {int(time.time())}").good(),
              "no credential": said,
              "the service user": cluster.root("node01", *as_service_user, "munge", "-s", f"{said} {int(time.time())}").good()}
    for who, statement in signed.items():
        has = {digest_of(said.encode()): statement.strip().encode(), digest: manifest, **blobs}
        # srun may listen only at the user's port, so it does not announce one.
        with UsersOwnSrun(cluster, has) as srun, rules(cluster, '[peers]\nsrun_ports = "61000-61000"\n'):
            done = cluster.run("srun", "-N2", "-n2", f"--container-image={place}", f"--export=ALL,{VARIABLE}={srun.where}", "/probe", "/content", timeout=60)
        expect(srun.asked, f"nobody has asked the relay: {who}", done)
        if who == "the service user":
            equal(shown(done), ["same", "same"], "content")
        else:
            expect(done.rc == 1 and "same" not in done.out and "is forbidden" in done.err, f"signed by {who}", done)


class UsersOwnSrun:
    """A user's replacement of srun, and the user's own relay, to which it sends all nodes."""
    RECORD = struct.Struct("IIII32sQQ48s384s48s32sQQQQ")
    JOIN, PLACE = 1, 16

    def __init__(self, cluster, has):
        self.has, self.asked, self.token = has, [], os.urandom(16)
        pid = cluster.pid("head")
        self.relay = serve_in_network(pid, lambda: http.server.ThreadingHTTPServer(("10.77.0.1", 0), self.relay_handler()))
        self.srun = serve_in_network(pid, lambda: socketserver.ThreadingTCPServer(("10.77.0.1", 0), self.srun_handler()))
        self.where = f"{self.srun.server_address[1]}:{self.token.hex()}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in (self.relay, self.srun):
            server.shutdown()
            server.server_close()

    def srun_handler(self):
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                self.rfile.read(8 + 16 + 64)
                while record := self.rfile.read(outer.RECORD.size):
                    kind, _, _, _, image, *_ = outer.RECORD.unpack(record)
                    if kind == outer.JOIN:
                        address = bytes(10) + b"\xff\xff" + socket.inet_aton("10.77.0.1")
                        source = struct.pack("II16sH6x", 0, 0, address, outer.relay.server_address[1])
                        self.wfile.write(outer.RECORD.pack(outer.PLACE, 1, 0, 1, image, 0, 0, b"", source, b"", bytes(32), 0, 0, 0, 0))

        return Handler

    def relay_handler(self):
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                name = self.path.partition("?")[0].rpartition("/")[2]
                outer.asked.append(name)
                body = b"1 1 0" if name == "alive" else outer.has.get(name)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

        return Handler


@test
def srun_listen_address_is_hidden_from_user_programs(cluster):
    for image in ("base", None):
        options = [f"--container-image={cluster.name_of(image)}"] if image else []
        done = cluster.run("srun", *everywhere(cluster), *options, "sh", "-c", f"env | grep -c {VARIABLE}; true", env=[f"{VARIABLE}=1:x"])
        equal(set(done.good().split()), {"0"}, "variables")


# --- messages to the user -------------------------------------------------------------------------

@test
def srun_reports_progress_of_all_nodes(cluster):
    with half_way(cluster, "peers-line") as (running, _, gate):
        running.await_text(f"peers-line:1 on {len(cluster.nodes)} nodes, slowest node", 10)
        gate.set()
        done = running.end(30)
    done.good()
    expect(" came to " not in done.err, "statistics without --container-verbose", done)


@test
def verbose_reports_byte_sources_at_the_end(cluster):
    # A node that another one does not answer within 250 ms asks the registry, as on a busy machine.
    for attempt in range(5):
        name, _ = publish_large(cluster, f"peers-statistics-{attempt}", layers=2)
        done = cluster.srun(*everywhere(cluster), "--container-verbose", "/probe", "/content", image=name)
        equal(shown(done), ["same"] * len(cluster.nodes), "content")
        lines = [line for line in done.err.splitlines() if f"{name} came to {len(cluster.nodes)} of {len(cluster.nodes)} nodes in " in line]
        equal(len(lines), 1, "lines of statistics", done)
        if ": registry 1.00 x, nodes " in lines[0]:
            break
    expect(": registry 1.00 x, nodes " in lines[0], "the registry sends more than one copy", done)
    whole = json.loads(next(line for line in done.err.splitlines() if '"event": "step_pull"' in line).partition("{")[2].join(("{", "")))
    nodes = len(cluster.nodes)
    expect(whole["image"] == name and (whole["nodes"], whole["ready"], whole["failed"]) == (nodes, nodes, 0), f"told: {whole}")
    size = whole["pulled_bytes"]
    equal((whole["registry_bytes"], whole["node_bytes"], whole["mirror_bytes"], whole["shared_bytes"]), (size, (nodes - 1) * size, 0, 0), "bytes")
    expect(0 < whole["first_s"] <= whole["median_s"] <= whole["p99_s"] <= whole["last_s"] < 60, f"times: {whole}")
    # Each node's own part is in its slurmd's log.
    records = {}
    for node in cluster.nodes:
        log = cluster.program("logs", node).good()
        record, = [line for line in log.splitlines() if f' image="{name}" ' in line and "spank-container: pull job=" in line]
        records[node] = dict(word.split("=", 1) for word in record.split() if "=" in word)
    equal(sorted(int(one["index"]) for one in records.values()), list(range(nodes)), "indices")
    equal(sorted(int(one["registry_bytes"]) for one in records.values()), [0] * (nodes - 1) + [size], "bytes from the registry")
    equal(sum(int(one["node_bytes"]) for one in records.values()), (nodes - 1) * size, "bytes from nodes")


@test
def doctor_reports_how_nodes_of_a_step_connect(cluster):
    done = cluster.run("srun", *everywhere(cluster), "scontainer", "doctor", "--job")
    lines = [line for line in done.out.splitlines() if "other nodes: " in line]
    expect(len(lines) == len(cluster.nodes) and all(f"on, before the shared store and the registry: {len(cluster.nodes)} nodes, at " in line for line in lines),
           "doctor says nothing of other nodes", done)
