"""A small registry that can be made to misbehave, per repository."""

import http.server
import json
import re
import socketserver
import ssl
import struct
import socket
import threading
import urllib.parse


class Repository:
    """A repository. `hooks` are called in turn with (handler, kind, name) and return True if they
    handled the request."""

    def __init__(self):
        self.manifests, self.blobs, self.hooks, self.uploads = {}, {}, [], {}

    def add(self, image, *tags):
        for name in (*tags, image.digest):
            self.manifests[name] = (image.media_type, image.bytes)
        self.blobs.update(image.blobs())
        return self

    def add_document(self, media_type, data, *names):
        for name in names:
            self.manifests[name] = (media_type, data)
        return self


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_POST(self):
        self.do_GET()

    do_PATCH = do_PUT = do_POST

    def do_GET(self):
        server = self.server
        with server.lock:
            server.requests.append((self.command, self.path, dict(self.headers)))
        for pattern, function in server.paths:
            if re.fullmatch(pattern, self.path):
                return function(self)
        listed = re.fullmatch(r"/v2/(.+)/tags/list(\?.*)?", self.path)
        if listed and listed[1] in server.repositories:
            tags = [name for name in server.repositories[listed[1]].manifests if ":" not in name]
            return self.answer_json(200, json.dumps({"name": listed[1], "tags": tags}))
        if server.takes_pushes and (match := re.fullmatch(r"/v2/(.+)/blobs/uploads/([^?]*)(\?.*)?", self.path)):
            return self.take_blob(server.repositories.setdefault(match[1], Repository()), match[1], match[2],
                                  dict(urllib.parse.parse_qsl((match[3] or "?")[1:])))
        match = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/]+)", self.path)
        repository = server.repositories.get(match[1]) if match else None
        if repository is None:
            return self.answer_json(404, '{"errors":[{"code":"NAME_UNKNOWN","message":"repository name not known"}]}')
        kind, name = match[2], match[3]
        for hook in list(repository.hooks):
            if hook(self, kind, name):
                return
        if server.takes_pushes and self.command == "PUT" and kind == "manifests":
            data = self.rfile.read(int(self.headers["Content-Length"]))
            import oci
            repository.add_document(self.headers["Content-Type"], data, name, oci.digest(data))
            return self.answer(201, extra={"Location": self.path})
        self.serve(repository, kind, name)

    def take_blob(self, repository, name, upload, query):
        """Accepts an upload as in the distribution specification. A hook is called with the kind
        `uploads` and the method before any byte is read."""
        import oci
        for hook in list(repository.hooks):
            if hook(self, "uploads", self.command):
                return
        if self.command == "POST":
            source = self.server.repositories.get(query.get("from"))
            if source and query.get("mount") in source.blobs:
                repository.blobs[query["mount"]] = source.blobs[query["mount"]]
                return self.answer(201, extra={"Location": f"/v2/{name}/blobs/{query['mount']}"})
            upload = f"upload{len(repository.uploads)}"
            repository.uploads[upload] = bytearray()
        if upload not in repository.uploads:
            return self.answer_json(404, '{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN","message":"upload unknown"}]}')
        there = repository.uploads[upload]
        begin = re.fullmatch(r"(\d+)-(\d+)", self.headers.get("Content-Range", ""))
        if begin and int(begin[1]) != len(there):
            return self.answer(416, extra={"Location": f"/v2/{name}/blobs/uploads/{upload}", "Range": f"0-{max(len(there) - 1, 0)}"})
        left = int(self.headers.get("Content-Length", 0))
        while left > 0 and (piece := self.rfile.read1(min(left, 1 << 16))):
            there += piece
            left -= len(piece)
        if left > 0:
            return None
        place = {"Location": f"/v2/{name}/blobs/uploads/{upload}", "Range": f"0-{max(len(there) - 1, 0)}"}
        if self.command != "PUT":
            return self.answer(204 if self.command == "GET" else 202, extra=place)
        if oci.digest(bytes(there)) != query["digest"]:
            return self.answer_json(400, '{"errors":[{"code":"DIGEST_INVALID","message":"digest is invalid"}]}')
        repository.blobs[query["digest"]] = bytes(repository.uploads.pop(upload))
        return self.answer(201, extra={"Location": f"/v2/{name}/blobs/{query['digest']}"})

    def serve(self, repository, kind, name):
        if kind == "manifests":
            if name not in repository.manifests:
                return self.answer_json(404, '{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}')
            media_type, data = repository.manifests[name]
            import oci
            return self.answer(200, data, media_type, {"Docker-Content-Digest": oci.digest(data)})
        if name not in repository.blobs:
            return self.answer_json(404, '{"errors":[{"code":"BLOB_UNKNOWN","message":"blob unknown"}]}')
        self.serve_bytes(repository.blobs[name])

    def serve_bytes(self, data):
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and int(wanted[1]) < len(data):
            first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
            return self.answer(206, data[first:last + 1], extra={"Content-Range": f"bytes {first}-{last}/{len(data)}"})
        self.answer(200, data)

    def answer(self, status, data=b"", media_type="application/octet-stream", extra=None, length=None):
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        for name, value in (extra or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def answer_json(self, status, text, extra=None):
        self.answer(status, text.encode(), "application/json", extra)

    def part_then_reset(self, data, size, status=200, extra=None):
        """Announces the full size, sends `size` bytes and resets the connection."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (extra or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[:size])
        self.wfile.flush()
        import time
        time.sleep(0.2)  # a reset would overtake bytes in flight
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, certificate=None, address="127.0.0.1", clients=None):
        """`clients`: the CA of certificates that clients must have."""
        super().__init__((address, 0), Handler)
        self.repositories, self.paths, self.requests, self.lock = {}, [], [], threading.Lock()
        self.takes_pushes = False
        self.port = self.server_address[1]
        self.name = f"{address}:{self.port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            if clients:
                context.load_verify_locations(clients)
                context.verify_mode = ssl.CERT_REQUIRED
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, *_):
        pass

    def repository(self, name, image=None, *hooks):
        repository = self.repositories[name] = Repository()
        if image:
            repository.add(image, "1")
        repository.hooks.extend(hooks)
        return repository

    def seen(self, text):
        with self.lock:
            return [request for request in self.requests if text in request[1]]
