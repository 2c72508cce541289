"""Acts as the process that reads for the user: answers import's requests for credentials
(runtime/protocol/user_source.hpp)."""

import array
import fcntl
import os
import socket
import struct
import threading

CREDENTIALS, SECRET, NONE, FAILED, PROGRESS = 1, 16, 17, 19, 20
MESSAGE = struct.Struct("I32s4xQQ256s600sH2xi1000s400s")  # followed by data
TRACKER = 608  # bytes: step.py


def sealed(records):
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(fd, b"".join(f"{key}={value}\0".encode() for key, value in records.items()))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    return fd


class User:
    """The user. `answer` is the reply: records, None for nothing, text for a failure, or a function
    of (registry, user)."""

    def __init__(self, answer=None):
        self.answer, self.asked = answer, []

    def socket_for_import(self, request):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.send(request)
        threading.Thread(target=self._serve, args=(ours,), daemon=True).start()
        return theirs

    def _serve(self, connection):
        with connection:
            while data := connection.recv(MESSAGE.size + TRACKER):
                self._answer(connection, data[:MESSAGE.size])

    def _answer(self, connection, data):
        kind, _, _, _, user, text, *_ = MESSAGE.unpack(data)
        assert kind == CREDENTIALS, kind
        question = (text.split(b"\0")[0].decode(), user.split(b"\0")[0].decode())
        self.asked.append(question)
        answer = self.answer(*question) if callable(self.answer) else self.answer
        self._send(connection, *([FAILED, answer] if isinstance(answer, str) else [NONE] if answer is None else [SECRET, "", sealed(answer)]))

    @staticmethod
    def _send(connection, kind, text="", descriptor=None):
        said, error = ("", text) if kind == FAILED else (text, "")
        message = MESSAGE.pack(kind, bytes(32), 0, 0, b"", said.encode(), 3 if kind == FAILED else 0, 0, error.encode(), b"")
        control = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        connection.sendmsg([message + bytes(TRACKER)], control)
        if descriptor is not None:
            os.close(descriptor)


ALICE = {"username": "alice", "password": "wonder:land", "source": "/home/alice/.docker/config.json"}


def alice(**more):
    return User({**ALICE, **more})
