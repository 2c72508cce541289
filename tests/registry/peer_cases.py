"""Nodes of a step fetch an image from each other. Each import has its own store, as on another
node."""

import contextlib
import http.client
import os
import signal
import socket
import threading
import time

import agent
import oci
from login_cases import wants_basic
from scene import big_image, config, new_store, pull, registry, succeeds, wait_for
from shared_cases import fetched, requests_of, slowly
from step import DONE, LEFT, PROGRESS, OnNode, Step
from store_cases import image_of_its_own, refused
from user import ALICE as SECRET


def start(step, name, nodes=2, tag=":1", settings=None, answer=None, store=None, **options):
    store = store or new_store()
    run = agent.Import(store, f"{registry.name}/{name}{tag}", config=settings or config(), user=OnNode(step, answer),
                       more=[f"step_nodes={nodes}", *options.pop("more", [])], **options)
    run.result.store = store
    return run


def on_nodes(step, name, count, image, **options):
    runs = []
    for number in range(count):
        runs.append(start(step, name, count, **options))
        wait_for(lambda joined=number + 1: len(step.nodes) >= joined)
    return [succeeds(run.wait(), image) for run in runs]


def relays():
    """Returns the process IDs of relays started by this process's imports."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/comm") as comm, open(f"/proc/{pid}/stat") as stat:
                if comm.read().strip() == "relay" and stat.read().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(pid))
    return found


def new_relay(before):
    """Returns the relay that is not among these. It may still be starting, under the name of its
    import."""
    wait_for(lambda: set(relays()) - before)
    return (set(relays()) - before).pop()


@contextlib.contextmanager
def no_relay_left():
    before = set(relays())
    try:
        yield
    finally:
        for pid in set(relays()) - before:
            os.kill(pid, signal.SIGKILL)


def ask(node, path, key, method="GET", headers=None):
    connection = http.client.HTTPConnection(node.host, node.port, timeout=5)
    connection.request(method, path, headers={"Authorization": "Bearer " + key.hex(), **(headers or {})})
    return connection.getresponse()


def test_nodes_of_a_step_pull_once():
    image, step = big_image(4, layers=3), Step()
    registry.repository("peers/app", image, slowly(0.2))
    requests = requests_of(registry, "peers/app")
    results = on_nodes(step, "peers/app", 4, image)
    gets = fetched(registry, "peers/app")
    blobs = [path for path in gets if "blobs" in path]
    assert len(blobs) == len(set(blobs)) == 4, gets
    # Each resolves the tag, and thereby checks that its user may have the image.
    assert len(requests()) == 8, requests()
    assert not any(result.warnings for result in results), results
    assert sorted(step.said(DONE)) == [0, 1, 2, 3] and not step.said(LEFT) and step.said(PROGRESS), step.told


def test_nodes_with_tag_resolved_by_srun_pull_once():
    image, step = image_of_its_own(), Step()
    registry.repository("peers/resolved", image)
    requests = requests_of(registry, "peers/resolved")
    on_nodes(step, "peers/resolved", 3, image, more=[f"resolved={image.digest}"])
    gets = fetched(registry, "peers/resolved")
    assert len(gets) == len(set(gets)) == 4, gets
    # The others get the answer to the permission check.
    assert requests().count(("HEAD", "manifests")) == 2, requests()


def test_objects_present_on_nodes_are_not_requested():
    known, step = image_of_its_own(1), Step()
    image = oci.Image([*known.layers, *image_of_its_own(1).layers])
    registry.repository("peers/known", known)
    registry.repository("peers/half", image, slowly(0.3))
    settings, stores = config("public_ttl = 3600"), [new_store(), new_store()]
    for store in stores:
        succeeds(pull("peers/known", store=store, settings=settings), known)
    runs = [start(step, "peers/half", settings=settings, store=store) for store in stores]
    for run in runs:
        succeeds(run.wait(), image)
    blobs = [path.split("/")[-1] for path in fetched(registry, "peers/half") if "blobs" in path]
    assert len(blobs) == 2 and known.layers[0].digest not in blobs, blobs


def test_layer_is_relayed_while_it_arrives():
    image, step, go_on = big_image(3), Step(), threading.Event()

    def halts(handler, kind, name):
        if name != image.layers[0].digest:
            return False
        blob = image.layers[0].blob
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(blob)))
        handler.end_headers()
        handler.wfile.write(blob[:2_000_000])
        handler.wfile.flush()
        go_on.wait(20)
        handler.wfile.write(blob[2_000_000:])
        return True

    registry.repository("peers/through", image, halts)
    runs = [start(step, "peers/through") for _ in range(2)]
    wait_for(lambda: len({index for kind, index, done, _ in step.told if kind == PROGRESS and done > 1_500_000}) == 2)
    assert not step.said(DONE)
    time.sleep(2.5)  # silence does not count as death
    go_on.set()
    for run in runs:
        succeeds(run.wait(), image)
    assert len([path for path in fetched(registry, "peers/through") if "blobs" in path]) == 2 and not step.asked_for_more, step.asked_for_more


def big_and_slow(image, megabytes_a_second=4, after=None):
    """A registry that serves layers slowly and supports ranges. From request number `after` on it
    is fast."""
    seen = []

    def hook(handler, kind, name):
        blob = next((layer.blob for layer in image.layers if layer.digest == name), None)
        if blob is None:
            return False
        seen.append(handler.headers.get("Range", ""))
        if after is not None and len(seen) > after:
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(blob)))
        handler.end_headers()
        with contextlib.suppress(OSError):
            for at in range(0, len(blob), 100_000):
                handler.wfile.write(blob[at:at + 100_000])
                time.sleep(0.1 / megabytes_a_second)
        handler.close_connection = True
        return True
    return hook, seen


def dies_in_the_middle(name, die):
    """Kills the first of two runs. `die` gets that run and the step. The second run must continue
    where it was."""
    # Lasts two seconds: on a busy machine a short pull ends before the kill.
    image, step = big_image(8), Step()
    hook, seen = big_and_slow(image, after=1)
    registry.repository(name, image, hook)
    before = set(relays())
    first = start(step, name)
    wait_for(lambda: len(step.nodes) == 1)
    relay = new_relay(before)
    second = start(step, name)
    wait_for(lambda: any(index == 1 and done > 500_000 for _, index, done, _ in step.told))
    died = time.monotonic()
    die(first, relay)
    result = succeeds(second.wait(), image)
    assert time.monotonic() - died < 15, result  # the site gives up after 2 s without a byte
    assert step.asked_for_more == [(1, (0,))], step.asked_for_more
    assert len(seen) == 2 and int(seen[1].removeprefix("bytes=").rstrip("-")) > 500_000, seen
    return first, image


def test_lost_source_node_is_replaced_by_the_registry_at_same_byte():
    dies_in_the_middle("peers/leader", lambda first, relay: first.kill())


def test_node_with_killed_relay_pulls_on_and_peers_go_elsewhere():
    first, image = dies_in_the_middle("peers/relay", lambda first, relay: os.kill(relay, signal.SIGKILL))
    succeeds(first.wait(), image)


def test_silent_node_is_abandoned_within_two_seconds():
    stopped = []

    def stop(first, relay):
        os.kill(relay, signal.SIGSTOP)
        stopped.append(relay)
    first, image = dies_in_the_middle("peers/silent", stop)
    os.kill(stopped[0], signal.SIGKILL)
    succeeds(first.wait(), image)


def comes_back(name, had):
    """The relay of the first node stops answering for a while, as on an overloaded node, once the
    second one has this number of bytes. Meanwhile the second node fetches from the registry, and
    only those bytes."""
    image, step = big_image(8), Step()
    hook, seen = big_and_slow(image, 2)
    registry.repository(name, image, hook)
    before = set(relays())
    first = start(step, name)
    wait_for(lambda: seen)
    relay = new_relay(before)
    second = start(step, name) if had else None
    wait_for(lambda: not had or any(index == 1 and done > had for _, index, done, _ in step.told))
    os.kill(relay, signal.SIGSTOP)
    second = second or start(step, name)
    wait_for(lambda: len(seen) == 2)
    os.kill(relay, signal.SIGCONT)
    result = succeeds(second.wait(), image)
    succeeds(first.wait(), image)
    from_registry, from_nodes = step.came[1][:2]
    assert len(seen) == 2 and from_registry < from_nodes, (seen, step.came, result)
    assert sum("answers again: going on there" in line for line in result.progress) == 1, result


def test_abandoned_node_is_used_again_when_it_answers():
    comes_back("peers/back", 500_000)


def test_unreached_node_is_used_when_it_answers():
    comes_back("peers/late-start", 0)


def test_lost_node_is_replaced_by_another():
    image, step = big_image(4), Step(place=lambda index: [[], [0], [1, 0]][index])
    hook, seen = big_and_slow(image)
    registry.repository("peers/other", image, hook)
    runs = []
    for number in range(3):
        runs.append(start(step, "peers/other", 3))
        wait_for(lambda: len(step.nodes) > number)
    wait_for(lambda: any(index == 2 and done > 300_000 for _, index, done, _ in step.told))
    runs[1].kill()
    for run in (runs[0], runs[2]):
        succeeds(run.wait(), image)
    assert len(seen) == 1 and not step.asked_for_more, (seen, step.asked_for_more, [run.result.progress for run in runs])


def test_silent_node_delays_no_node_with_another_source():
    image, step = big_image(12), Step(place=lambda index: [[], [0], [1, 0]][index])
    hook, seen = big_and_slow(image)
    registry.repository("peers/doubt", image, hook)
    runs, found = [], []
    for number in range(3):
        before = set(relays())
        runs.append(start(step, "peers/doubt", 3))
        wait_for(lambda joined=number: len(step.nodes) > joined)
        found.append(new_relay(before))
    wait_for(lambda: any(index == 2 and done > 300_000 for _, index, done, _ in step.told))
    os.kill(found[1], signal.SIGSTOP)
    result = succeeds(runs[2].wait(), image)
    os.kill(found[1], signal.SIGKILL)
    for run in runs:
        succeeds(run.wait(), image)
    assert len(seen) == 1 and not step.asked_for_more and not any("does not answer" in line for line in result.progress), (step.asked_for_more, result)


def test_node_at_capacity_serves_peers_without_another_source():
    image, step = big_image(3), Step()
    hook, seen = big_and_slow(image, 2)
    registry.repository("peers/last", image, hook)
    first = start(step, "peers/last")
    wait_for(lambda: step.nodes and seen)
    others = [ask(step.nodes[0], f"/v2/any/blobs/{image.layers[0].digest}?node={number}", step.key) for number in range(10, 14)]
    succeeds(start(step, "peers/last").wait(), image)
    succeeds(first.wait(), image)
    assert [one.status for one in others] == [200] * 4 and len(seen) == 1 and not step.asked_for_more, (seen, step.asked_for_more)


def test_layer_of_another_job_is_fetched_elsewhere():
    image, step = big_image(3), Step()
    hook, seen = big_and_slow(image, 2)
    registry.repository("peers/locked", image, hook)
    store = new_store()
    other = agent.Import(store, f"{registry.name}/peers/locked:1", config=config())
    wait_for(lambda: seen)
    first = start(step, "peers/locked", store=store)
    wait_for(lambda: step.nodes)
    second = start(step, "peers/locked")
    succeeds(second.wait(), image)
    assert len(seen) == 2 and seen[1] == "", seen  # the first had none of it
    result = succeeds(first.wait(), image)
    assert result.done == image.digest[7:] and other.wait().done == image.digest[7:]
    assert len(seen) == 2, seen


class Throttle:
    """A proxy before a relay that limits its answers to this number of bytes per second. Liveness
    requests are not limited."""

    def __init__(self, node, rate):
        self.relay, self.rate, self.sent = (node.host, node.port), rate, 0
        self.listener = socket.create_server(("0.0.0.0", 0))
        node.port = self.listener.getsockname()[1]
        self.at, self.lock = time.monotonic(), threading.Lock()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                client = self.listener.accept()[0]
                relay = socket.create_connection(self.relay)
                threading.Thread(target=self.passes, args=(client, relay, False), daemon=True).start()
                threading.Thread(target=self.passes, args=(relay, client, True), daemon=True).start()

    def passes(self, source, sink, is_slow):
        with contextlib.suppress(OSError):
            sink.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
            while data := source.recv(16384):
                if is_slow and len(data) > 1000:
                    self.sent += len(data)
                    with self.lock:
                        self.at = max(self.at, time.monotonic()) + len(data) / self.rate
                        wait = self.at - time.monotonic()
                    time.sleep(max(0, wait))
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def test_slow_node_is_replaced_by_another_at_the_same_byte():
    image, step = big_image(30), Step(place=lambda index: [[], [0], [1, 0], [1, 0]][index])
    hook, seen = big_and_slow(image, 6)
    registry.repository("peers/slow", image, hook)
    runs, slow = [], None
    for number in range(4):
        runs.append(start(step, "peers/slow", 4))
        wait_for(lambda joined=number + 1: len(step.nodes) >= joined)
        if number == 1:
            slow = Throttle(step.nodes[1], 400_000)
    results = [succeeds(run.wait(), image) for run in runs]
    size = len(image.layers[0].blob)
    assert sorted(step.asked_for_faster) == [(2, (1,)), (3, (1,))], step.asked_for_faster
    assert len(seen) == 1 and not step.asked_for_more, (seen, step.asked_for_more)
    # With the slow source it would take 75 s for each of them.
    assert all(result.seconds < 15 for result in results), [result.seconds for result in results]
    assert 500_000 < slow.sent < size / 2, slow.sent
    assert all(sum("is slow: going on elsewhere" in line for line in result.progress) == (number > 1) for number, result in enumerate(results))


class LateAnswers(Throttle):
    """A saturated link of the requesting node: bytes have gaps, and answers to liveness requests
    come too late."""

    def passes(self, source, sink, is_slow):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_slow:
                    time.sleep(0.6 if len(data) > 1000 else 0.9)
                sink.sendall(data)


def test_sending_node_with_late_answers_is_not_taken_for_dead():
    image, step = big_image(1), Step()
    hook, seen = big_and_slow(image, 8)
    registry.repository("peers/late", image, hook)
    first = start(step, "peers/late")
    wait_for(lambda: step.nodes)
    LateAnswers(step.nodes[0], 0)
    second = start(step, "peers/late")
    for run in (first, second):
        succeeds(run.wait(), image)
    assert len(seen) == 1 and not step.asked_for_more, (seen, step.asked_for_more, second.result.progress)


def test_slow_registry_causes_no_change_of_source():
    image, step = big_image(6), Step()
    hook, seen = big_and_slow(image, 1)
    registry.repository("peers/slowreg", image, hook)
    on_nodes(step, "peers/slowreg", 4, image)
    assert len(seen) == 1 and not step.asked_for_faster and not step.asked_for_more, (step.asked_for_faster, step.asked_for_more)


def test_private_image_requires_registry_access_on_each_node():
    image, step = image_of_its_own(), Step()
    registry.repository("peers/private", image, wants_basic)
    first = start(step, "peers/private", answer=SECRET, uid=1001)
    succeeds(first.wait(), image)
    refused(start(step, "peers/private", uid=1002).wait())
    second = start(step, "peers/private", answer=SECRET, uid=1001)
    result = succeeds(second.wait(), image)
    assert result.store.grants(1001)
    gets = [path for path in fetched(registry, "peers/private") if "blobs" in path]
    assert len(gets) == len(set(gets)), gets
