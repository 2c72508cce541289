"""The nodes of a step take an image from each other: each import here has a store of its own, as another node has."""

import contextlib
import http.client
import os
import signal
import threading
import time

import agent
import oci
from login_cases import wants_basic
from scene import big_image, config, new_store, registry, succeeds
from shared_cases import fetched, requests_of, slowly, wait_for
from step import DONE, LEFT, PROGRESS, OnNode, Step
from store_cases import image_of_its_own, refused
from user import ALICE as SECRET


def start(step, name, nodes=2, tag=":1", settings=None, answer=None, **options):
    store = new_store()
    run = agent.Import(store, f"{registry.name}/{name}{tag}", config=settings or config(), user=OnNode(step, answer),
                       more=[f"meet={nodes}", *options.pop("more", [])], **options)
    run.result.store = store
    return run


def on_nodes(step, name, count, image, **options):
    runs = []
    for number in range(count):
        runs.append(start(step, name, count, **options))
        wait_for(lambda joined=number + 1: len(step.nodes) >= joined)
    return [succeeds(run.wait(), image) for run in runs]


def relays():
    """Process ids of the relays that this process's imports have started."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/comm") as comm, open(f"/proc/{pid}/stat") as stat:
                if comm.read().strip() == "relay" and stat.read().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(pid))
    return found


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


def test_nodes_of_a_step_are_one_pull():
    image, step = big_image(4, layers=3), Step()
    registry.repository("peers/app", image, slowly(0.2))
    requests = requests_of(registry, "peers/app")
    results = on_nodes(step, "peers/app", 4, image)
    gets = fetched(registry, "peers/app")
    assert len(gets) == len(set(gets)) == 5, gets
    assert requests().count(("HEAD", "manifests")) == 4, requests()  # each is told whether its user may have it
    assert not any(result.warnings for result in results), results
    assert sorted(step.said(DONE)) == [0, 1, 2, 3] and not step.said(LEFT) and step.said(PROGRESS), step.told
