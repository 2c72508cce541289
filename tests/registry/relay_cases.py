"""The relay, which sends a node's fetched blobs to other nodes: its answers, its end, nodes without
a relay, and nodes that lie."""

import os
import socket
import tempfile
import time

import agent
from peer_cases import ask, big_and_slow, new_relay, relays, start
from scene import big_image, config, registry, succeeds, wait_for
from server import Server
from shared_cases import fetched
from step import CUT_OFF, DONE, LEFT, Node, Step
from store_cases import image_of_its_own, refused
from user import ALICE as SECRET

# --- answers of a relay ---

def test_relay_answers_only_with_the_step_key():
    image, step = big_image(10), Step()
    registry.repository("peers/answers", image)
    succeeds(start(step, "peers/answers").wait(), image)
    node, layer = step.nodes[0], image.layers[0]
    path = f"/v2/any/blobs/{layer.digest}?node="
    assert ask(node, path + "1", step.key).read() == layer.blob
    part = ask(node, path + "1", step.key, headers={"Range": "bytes=1000000-"})
    assert part.status == 206 and part.read() == layer.blob[1_000_000:] and part.headers["Content-Range"].startswith("bytes 1000000-")
    assert ask(node, path + "1", step.key, headers={"Range": f"bytes={len(layer.blob)}-"}).status == 416
    assert len(ask(node, "/alive", step.key).read()) <= 64
    for key in (b"", bytes(32), step.key[:-1], step.key[:-1] + bytes([step.key[-1] ^ 1])):
        assert ask(node, path + "1", key).status == 401 and ask(node, "/alive", key).status == 401
    assert ask(node, f"/v2/any/blobs/sha256:{'0' * 64}?node=1", step.key).status == 404
    assert ask(node, "/v2/any/blobs/etc/passwd?node=1", step.key).status == 404
    assert ask(node, f"/v2/any/blobs/{layer.digest}", step.key).status == 404
    assert ask(node, path + "1", step.key, method="DELETE").status == 405
    # Four nodes at a time. A fifth is redirected until one has ended. More are served only if they
    # have no other source.
    open_ones = [ask(node, path + str(number), step.key) for number in range(1, 5)]
    assert [one.status for one in open_ones] == [200] * 4
    assert ask(node, path + "5", step.key).status == 503 and ask(node, path + "4", step.key).status == 200
    open_ones += [ask(node, path + f"{number}&last=1", step.key) for number in range(5, 10)]
    assert [one.status for one in open_ones[4:]] == [200] * 4 + [503]
    for one in open_ones:
        one.read()
    wait_for(lambda: ask(node, path + "5", step.key).status == 200)


def test_relay_holds_only_its_sockets_and_spool():
    image, step = image_of_its_own(), Step()
    registry.repository("peers/fds", image)
    before = set(relays())
    succeeds(start(step, "peers/fds", answer=SECRET).wait(), image)
    relay = new_relay(before)

    def status_fields():
        with open(f"/proc/{relay}/status") as status:
            return dict(line.split(":\t", 1) for line in status.read().splitlines() if ":\t" in line)
    # import does not wait for the sandbox.
    wait_for(lambda: status_fields()["Seccomp"].strip() == "2")
    fields = status_fields()
    assert fields["NoNewPrivs"].strip() == "1" and fields["Threads"].strip() == "1", fields
    assert os.getpgid(relay) == os.getpgid(0)  # the agent's, which slurmstepd waits for and kills
    if os.geteuid() == 0:
        links = [os.readlink(f"/proc/{relay}/fd/{fd}") for fd in os.listdir(f"/proc/{relay}/fd")]
        kinds = sorted(link.split(":")[0] for link in links if link != "/dev/null")
        assert len([kind for kind in kinds if kind == "socket"]) == 1 and len(kinds) <= 8, links

# --- end ---

def ends_with_agent(name, kill_import):
    image, step = big_image(2), Step()
    hook, _ = big_and_slow(image, 1 if kill_import else 50)
    registry.repository(name, image, hook)
    wrapper = tempfile.mktemp(suffix=".sh")
    with open(wrapper, "w") as file:
        file.write(f"#!/bin/sh\n{agent.IMPORT}\nsleep 100\n")
    os.chmod(wrapper, 0o755)
    before = set(relays())
    run = start(step, name, program=wrapper)
    relay = new_relay(before)
    if not kill_import:
        wait_for(lambda: step.said(DONE))
    time.sleep(0.5)
    assert relay in relays(), "it has ended before the step"
    run.process.kill()
    began = time.monotonic()
    wait_for(lambda: relay not in relays())
    assert time.monotonic() - began < 5
    os.unlink(wrapper)


def test_relay_outlives_its_import_and_ends_with_the_agent():
    ends_with_agent("peers/ends", False)


def test_relay_ends_with_the_agent_during_a_pull():
    ends_with_agent("peers/cancelled", True)

# --- without a relay ---

def test_node_that_cannot_serve_peers_still_pulls():
    image, step = image_of_its_own(), Step()
    registry.repository("peers/full", image)
    result = succeeds(start(step, "peers/full", largest_file=1000).wait(), image)
    assert LEFT in [kind for kind, *_ in step.told] and not step.said(DONE) and not result.warnings, step.told


def test_node_with_full_disk_pulls_on_and_serves_no_peers():
    image, step = big_image(8, layers=2), Step()
    registry.repository("peers/fills", image)

    for nodes in (2, 3):  # from the registry, and from the first node
        result = succeeds(start(step, "peers/fills", nodes, largest_file=5_000_000 if nodes == 3 else None).wait(), image)
        assert not result.warnings, result
    assert set(step.said(LEFT)) == {1}, step.told
    step = Step()
    succeeds(start(step, "peers/fills", largest_file=5_000_000).wait(), image)
    assert 0 in step.said(LEFT), step.told


def test_nodes_excluded_from_peering_do_not_connect():
    image, step = image_of_its_own(), Step()
    registry.repository("peers/off", image)
    for options in ({"nodes": 1}, {"nodes": 0}, {"settings": config("[peers]\nenabled = false")}, {"more": ["user_store=yes"]}):
        succeeds(start(step, "peers/off", **options).wait(), image)
    assert not step.nodes


def test_nodes_pull_each_without_srun():
    class Silent(Step):
        def answer(self, record):
            return None
    image, step = image_of_its_own(), Silent()
    registry.repository("peers/alone", image)
    result = succeeds(start(step, "peers/alone").wait(), image)
    assert result.seconds < 5 and not result.warnings, result

# --- nodes that lie, and forbidden addresses ---

class Liar:
    """A user's own server in place of a node."""

    def __init__(self, image):
        self.image, self.asked = image, []
        self.server = Server(address="0.0.0.0")
        self.server.paths.append((".*", self.answer))

    def answer(self, handler):
        name = handler.path.split("?")[0].split("/")[-1]
        self.asked.append((name, handler.headers.get("Authorization")))
        if name in self.image.blobs() and not any(layer.digest == name for layer in self.image.layers):
            return handler.answer(200, self.image.blobs()[name])
        if name == self.image.digest:
            return handler.answer(200, self.image.bytes)
        layer = next((layer for layer in self.image.layers if layer.digest == name), None)
        return handler.answer(200, bytes(len(layer.blob))) if layer else handler.answer(200, b"1")


def test_node_sending_wrong_bytes_costs_a_line():
    image, step = big_image(1, layers=2), Step()
    registry.repository("peers/liar", image)
    liars = [Liar(image), Liar(image)]
    truthful = start(step, "peers/liar", 4)
    succeeds(truthful.wait(), image)
    for liar in liars:
        step.nodes.append(Node(len(step.nodes), step.nodes[0].ip, liar.server.port))
    step.place = lambda index: [1, 2, 0]
    result = succeeds(start(step, "peers/liar", 4).wait(), image)
    assert len([line for line in result.warnings if "sent wrong bytes" in line]) == 2, result
    assert all(any(layer.digest == name for liar in liars for name, _ in liar.asked) for layer in image.layers[:1])


def test_nodes_all_sending_wrong_bytes_fall_back_to_the_registry():
    image, step = big_image(1), Step()
    registry.repository("peers/liars", image)
    step.nodes = [Node(number, b"", Liar(image).server.port) for number in range(4)]

    def place(index):
        for node in step.nodes:
            node.ip = step.nodes[index].ip
        return range(index)
    step.place = place
    result = succeeds(start(step, "peers/liars", 5).wait(), image)
    assert len([line for line in result.warnings if "sent wrong bytes" in line]) == 2, result


def test_damaged_blob_is_reported_once_and_blames_the_registry():
    image, step = big_image(1), Step()
    damaged = bytearray(image.layers[0].blob)
    damaged[-1000] ^= 1

    def wrong(handler, kind, name):
        if name != image.layers[0].digest:
            return False
        wait_for(lambda: len(step.nodes) >= 2)
        handler.answer(200, bytes(damaged))
        return True
    registry.repository("peers/damaged", image, wrong)
    runs = []
    for number in range(2):
        runs.append(start(step, "peers/damaged"))
        wait_for(lambda joined=number + 1: len(step.nodes) >= joined)
    failures = set()
    for run in runs:
        result = run.wait()
        assert not result.warnings, result
        refused(result, f'layer "{image.layers[0].digest}": has digest ', "(hint: the registry or a proxy changed it)")
        failures.add(result.failed)
    assert len(failures) == 1, failures


def test_nodes_never_connect_to_forbidden_addresses():
    """The user controls srun's messages. Connections to services of this node, privileged ports and
    other networks are refused, and all others need the step's key."""
    image, step = image_of_its_own(), Step()
    registry.repository("peers/ssrf", image)
    liar = Liar(image)
    mapped = b"\0" * 10 + b"\xff\xff"
    places = [(mapped + bytes((127, 0, 0, 1)), liar.server.port), (b"\0" * 15 + b"\1", liar.server.port),
              (mapped + bytes((169, 254, 169, 254)), liar.server.port), (mapped + bytes((198, 51, 100, 9)), 5000), (None, 80)]

    def place(index):
        for node in step.nodes[:-1]:
            node.ip = node.ip or step.nodes[-1].ip
        return range(len(places))
    step.nodes = [Node(number, ip, port) for number, (ip, port) in enumerate(places)]
    step.place = place
    succeeds(start(step, "peers/ssrf", 9).wait(), image)
    assert not liar.asked and len(fetched(registry, "peers/ssrf")) == 4, liar.asked

def test_unreachable_nodes_are_tried_in_parallel():
    image, step = image_of_its_own(), Step()
    registry.repository("peers/firewall", image)
    # Accept a connection or two, and never answer.
    closed = [socket.create_server(("0.0.0.0", 0), backlog=0) for _ in range(8)]
    step.nodes = [Node(number, b"", one.getsockname()[1]) for number, one in enumerate(closed)]

    def place(index):
        for node in step.nodes:
            node.ip = step.nodes[index].ip
        return range(index)
    step.place = place
    closed[0].close()
    result = succeeds(start(step, "peers/firewall", 9).wait(), image)
    assert CUT_OFF in [kind for kind, *_ in step.told], step.told
    assert result.seconds < 4 and len([line for line in result.progress if "going on elsewhere" in line]) == 4, result
