"""Acts as srun for the nodes of a step, and as the users' processes that talk to it
(runtime/protocol/tracker.hpp)."""

import os
import socket
import struct
import threading

import user

ASK, TELL, ANSWER = 4, 5, 21
JOIN, MORE, PROGRESS, DONE, LEFT, SLOW, CUT_OFF, PLACE = 1, 2, 3, 4, 5, 6, 7, 16
MOST = 12
ADDRESS = struct.Struct("16sH6x")
RECORD = struct.Struct(f"IIII32sQQ{2 * ADDRESS.size}s{MOST * 32}s{MOST * 4}s32sQQQQ")
QUESTION = struct.Struct(f"I{user.MESSAGE.size - 4}s")


class Node:
    def __init__(self, index, ip, port):
        self.index, self.ip, self.port, self.gone, self.total = index, ip, port, False, 0

    @property
    def host(self):
        return socket.inet_ntop(socket.AF_INET6, self.ip).removeprefix("::ffff:")


class Step:
    """A step. `place` returns the sources of the node with this index. By default these are all
    earlier nodes, the nearest of a binary tree first."""

    def __init__(self, place=None):
        self.nodes, self.told, self.asked_for_more, self.asked_for_faster = [], [], [], []
        # By index: bytes from the registry, from nodes, from the shared store, from mirrors.
        self.came = {}
        self.key, self.lock = os.urandom(32), threading.Lock()
        self.place = place or (lambda index: sorted(range(index), reverse=True, key=lambda other: (other == (index - 1) // 2, -other)))

    def answer(self, record):
        """Takes the bytes of a record. Returns the answer, or None."""
        kind, index, _, count, image, done, total, addresses, _, indices, _, *came = RECORD.unpack(record)
        with self.lock:
            if kind == JOIN:
                ip, port = ADDRESS.unpack(addresses[: ADDRESS.size])
                index = len(self.nodes)
                self.nodes.append(Node(index, ip, port))
            elif kind == MORE:
                dead = struct.unpack(f"{count}I", indices[: 4 * count])
                self.asked_for_more.append((index, dead))
                self.question = ("more", index, *dead)
                for one in dead:
                    self.nodes[one].gone = True
            elif kind == SLOW:
                slow = struct.unpack(f"{count}I", indices[: 4 * count])
                self.asked_for_faster.append((index, slow))
                self.question = ("slow", index, *slow)
            else:
                self.told.append((kind, index, done, total))
                self.nodes[index].gone |= kind in (LEFT, CUT_OFF)
                self.came[index] = came
                return None
            slow = {one for who, dead in self.asked_for_faster if who == index for one in dead}
            order = sorted(self.place(index), key=lambda one: one in slow)
            sources = [self.nodes[one] for one in order if not self.nodes[one].gone][:MOST]
        packed = b"".join(struct.pack("I4x", one.index) + ADDRESS.pack(one.ip, one.port) for one in sources)
        return RECORD.pack(PLACE, index, 0, len(sources), image, 0, 0, b"", packed, b"", self.key, 0, 0, 0, 0)

    def said(self, kind):
        return [index for told, index, *_ in self.told if told == kind]


class OnNode(user.User):
    """Acts for one node of the step, and for its user."""

    def __init__(self, step, answer=None):
        super().__init__(answer)
        self.step = step

    def _serve(self, connection):
        with connection:
            while data := connection.recv(user.MESSAGE.size + RECORD.size):
                kind = struct.unpack_from("I", data)[0]
                if kind not in (ASK, TELL):
                    self._answer(connection, data[: user.MESSAGE.size])
                elif place := self.step.answer(data[user.MESSAGE.size:]):
                    connection.send(user.MESSAGE.pack(ANSWER, bytes(32), 0, 0, b"", b"", 0, 0, b"", b"") + place)
