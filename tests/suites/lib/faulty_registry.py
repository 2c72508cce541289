"""A registry in a thread of the tests' own process that can be slow, count, refuse and lie. It listens in the network of
the cluster's head; registry:5050 is allowed to speak plain HTTP by the cluster's config.toml."""
import contextlib
import ctypes
import http.server
import json
import os
import threading
from collections import Counter, defaultdict

from images import INDEX, MANIFEST, digest_of

CLONE_NEWNET = 0x40000000


def serve_in_network(pid, make):
    """The server that `make` makes, in a thread, in the network of this process."""
    made, ready = [], threading.Event()

    def serve():
        space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(space, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "join the network of the head")
        os.close(space)
        server = make()
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # a client that has gone
        made.append(server)
        ready.set()
        server.serve_forever()

    threading.Thread(target=serve, daemon=True).start()
    if not ready.wait(5):
        raise RuntimeError("a server of the tests does not start")
    return made[0]


class FaultyRegistry:
    host = "registry:5050"

    def __init__(self, pid_of_head):
        self.manifests = {}          # "repository:tag" or "repository@digest" -> bytes
        self.blobs = {}              # digest -> bytes
        self.answers = {}            # path of a request -> (status, {"code": …} or text)
        self.slow = {}               # digest -> threading.Event: half of the blob is sent, the rest after the event
        self.cut = set()             # digests of blobs whose connection breaks after a half
        self.requests = Counter()    # path -> number of GETs and HEADs
        self.heads = Counter()       # path -> number of HEADs
        self.clients = defaultdict(list)  # path -> addresses that have asked for it
        self.silent = {}             # path -> threading.Event: HEADs are answered after it
        self.moves = {}              # path -> what happens as soon as it was answered
        self.server = serve_in_network(pid_of_head, lambda: http.server.ThreadingHTTPServer(("10.77.0.1", 5050), handler_for(self)))

    def stop(self):
        for gate in (*self.slow.values(), *self.silent.values()):
            gate.set()
        self.server.shutdown()
        self.server.server_close()

    def publish(self, image):
        """Returns the image's name and the digests of its layers."""
        manifest, blobs = image.parts()
        self.manifests[f"{image.repository}:{image.tag}"] = manifest
        self.manifests[f"{image.repository}@{digest_of(manifest)}"] = manifest
        self.blobs.update(blobs)
        return f"{self.host}/{image.repository}:{image.tag}", [layer["digest"] for layer in json.loads(manifest)["layers"]]

    def hold(self, digest):
        """The blob's second half waits for the event that is returned."""
        gate = self.slow[digest] = threading.Event()
        return gate


def handler_for(registry):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            registry.requests[self.path] += 1
            registry.clients[self.path].append(self.client_address[0])
            registry.heads[self.path] += self.command == "HEAD"
            if self.command == "HEAD" and self.path in registry.silent:
                registry.silent[self.path].wait(60)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.respond()
            registry.moves.get(self.path, lambda: None)()

        def respond(self):
            if self.path in registry.answers:
                status, body = registry.answers[self.path]
                return self.answer(status, json.dumps({"errors": [body]}).encode())
            if self.path == "/v2/":
                return self.answer(200, b"{}")
            repository, _, rest = self.path.removeprefix("/v2/").rpartition("/")
            repository, _, kind = repository.rpartition("/")
            if kind == "blobs" and rest in registry.blobs:
                return self.send_blob(rest, registry.blobs[rest])
            separator = "@" if rest.startswith("sha256:") else ":"
            manifest = registry.manifests.get(repository + separator + rest)
            if kind == "manifests" and manifest is not None:
                return self.answer(200, manifest, INDEX if b'"manifests": [' in manifest else MANIFEST)
            self.answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}')

        do_HEAD = do_GET

        def answer(self, status, body, kind="application/json"):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if kind in (MANIFEST, INDEX):
                self.send_header("Docker-Content-Digest", digest_of(body))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def send_blob(self, digest, data):
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            half = len(data) // 2
            try:
                self.wfile.write(data[:half])
                self.wfile.flush()
                if digest in registry.cut:
                    self.close_connection = True
                    return
                if digest in registry.slow:
                    registry.slow[digest].wait(60)
                self.wfile.write(data[half:])
            except OSError:  # the client was ended by the test
                self.close_connection = True

    return Handler
