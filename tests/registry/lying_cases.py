"""Nodes of a step that send what they should not, and places where no node is to be asked: who asks takes no harm, and gets the image."""

import socket

from peer_cases import start
from scene import big_image, registry, succeeds
from server import Server
from shared_cases import fetched
from step import CUT_OFF, Node, Step
from store_cases import image_of_its_own


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


def test_a_node_that_sends_wrong_bytes_costs_a_line():
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


def test_of_nodes_that_all_send_wrong_bytes_the_registry_is_asked_in_the_end():
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


def test_nodes_are_not_sent_where_they_may_not_go():
    """The user writes what srun says: no service of this node, no privileged port, no other network; and whatever it is, only with the step's key."""
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

def test_nodes_that_cannot_be_reached_are_tried_all_at_once():
    image, step = image_of_its_own(), Step()
    registry.repository("peers/firewall", image)
    closed = [socket.create_server(("0.0.0.0", 0), backlog=0) for _ in range(8)]  # takes a connection or two, and says nothing
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
