"""A registry with one image behind a shaped link, in a network namespace of its own.

    shaped.py DIRECTORY PORT [BYTES_PER_SECOND]

serves the image that make() has written to the directory, to each connection at most at this rate.
"""

import hashlib
import http.server
import json
import os
import random
import re
import socket
import subprocess
import sys
import tarfile
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
HERE, THERE, PORT = "10.77.0.2", "10.77.0.1", 5000
ADDRESS = f"{THERE}:{PORT}"

# --- the image ---

LARGE = (0.36, 0.33)  # parts of the image's size
SMALL = 40            # layers that share the rest
PIECE = 256 << 10


def make(directory, megabytes):
    """Writes an image of about this compressed size, once: two large layers and forty small ones,
    made of pieces of this machine's libraries."""
    if (directory / "manifest.json").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    small = (1 - sum(LARGE)) / SMALL
    sizes = [int(megabytes * 1e6 * part) for part in (*[small] * (SMALL // 2), *LARGE, *[small] * (SMALL // 2))]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        layers = list(workers.map(make_layer, [directory] * len(sizes), sizes, range(len(sizes))))
    config = json.dumps({"architecture": "arm64" if os.uname().machine == "aarch64" else "amd64", "os": "linux", "config": {"Cmd": ["/bin/true"]},
                         "rootfs": {"type": "layers", "diff_ids": [diff_id for _, _, diff_id in layers]}}).encode()
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(CONFIG, put(directory, config), len(config)),
                "layers": [descriptor(LAYER, digest, size) for digest, size, _ in layers]}
    (directory / "manifest.json").write_text(json.dumps(manifest))


def descriptor(media_type, digest, size):
    return {"mediaType": media_type, "digest": digest, "size": size}


def put(directory, content):
    digest = hashlib.sha256(content).hexdigest()
    (directory / digest).write_bytes(content)
    return f"sha256:{digest}"


def make_layer(directory, size, number):
    """Returns digest, size and diffID of a layer of about `size` compressed bytes."""
    chance = random.Random(number)
    libraries = [file for file in Path("/usr/lib").rglob("*.so*") if file.is_file() and not file.is_symlink() and file.stat().st_size > PIECE]
    writer = Writer(directory / f"layer-{number}")
    with tarfile.open(fileobj=writer, mode="w|", bufsize=PIECE) as archive:
        file = 0
        while writer.written < size:
            entry = tarfile.TarInfo(f"opt/layer-{number}/lib{file}.so")
            pieces = 1 << chance.randrange(0, 8 if size > 100e6 else 4)  # up to 32 MiB
            entry.size, entry.mode = pieces * PIECE, 0o755
            archive.addfile(entry, Pieces(chance, libraries))
            file += 1
    return writer.finish(directory)


class Pieces:
    """Reads pieces of libraries in random order, without an end."""

    def __init__(self, chance, libraries):
        self.chance, self.libraries, self.rest = chance, libraries, b""

    def read(self, size):
        while len(self.rest) < size:
            with open(self.chance.choice(self.libraries), "rb") as file:
                file.seek(self.chance.randrange(0, os.fstat(file.fileno()).st_size - PIECE + 1))
                self.rest += file.read(PIECE)
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken


class Writer:
    """Compresses and hashes what is written to it."""

    def __init__(self, path):
        self.path, self.written = path, 0
        self.file, self.gzip = open(path, "wb"), zlib.compressobj(1, zlib.DEFLATED, 31)
        self.plain, self.compressed = hashlib.sha256(), hashlib.sha256()

    def write(self, content):
        self.plain.update(content)
        self.add(self.gzip.compress(content))

    def add(self, content):
        self.compressed.update(content)
        self.written += len(content)
        self.file.write(content)

    def finish(self, directory):
        self.add(self.gzip.flush())
        self.file.close()
        self.path.rename(directory / self.compressed.hexdigest())
        return f"sha256:{self.compressed.hexdigest()}", self.written, f"sha256:{self.plain.hexdigest()}"


def layers(directory):
    """Returns the size and path of each layer, largest first."""
    manifest = json.loads((directory / "manifest.json").read_text())
    return sorted(((layer["size"], f"/v2/cold/blobs/{layer['digest']}") for layer in manifest["layers"]), reverse=True)

# --- the link ---


class Link:
    """The registry at the other end of a link with this rate. `each`: limit of a connection. Rates
    are in Gb/s."""

    def __init__(self, directory, rate, each=None):
        arguments = [str(each * 1e9 / 8)] if each else []
        self.server = subprocess.Popen(["unshare", "--net", "--kill-child", sys.executable, __file__, directory, str(PORT), *arguments],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.server.stdout.readline()  # it is in its namespace
        inside = ["nsenter", "-t", str(self.server.pid), "--net"]
        for command in (["ip", "link", "add", "cold0", "type", "veth", "peer", "name", "cold1", "netns", str(self.server.pid)],
                        ["ip", "address", "add", f"{HERE}/24", "dev", "cold0"], ["ip", "link", "set", "cold0", "mtu", "9000", "up"],
                        [*inside, "ip", "address", "add", f"{THERE}/24", "dev", "cold1"], [*inside, "ip", "link", "set", "cold1", "mtu", "9000", "up"],
                        [*inside, "tc", "qdisc", "add", "dev", "cold1", "root", "tbf", "rate", f"{rate * 1000:.0f}mbit",
                         "burst", f"{max(256, int(rate * 1000))}k", "latency", "50ms"]):
            subprocess.run(command, check=True)
        self.server.stdin.write(b"\n")
        self.server.stdin.flush()
        self.server.stdout.readline()  # it listens

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.kill()
        self.server.wait()
        subprocess.run(["ip", "link", "delete", "cold0"], check=False, stderr=subprocess.DEVNULL)

# --- the registry ---


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    directory, rate = None, None

    def setup(self):
        if self.rate:
            self.request.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_MAX_PACING_RATE", 47), int(self.rate))
        super().setup()

    def do_HEAD(self):
        self.do_GET(False)

    def do_GET(self, with_body=True):
        path = re.fullmatch(r"/v2/cold/(manifests|blobs)/(?:sha256:([0-9a-f]{64})|\w+)", self.path)
        manifest = self.directory / "manifest.json"
        if self.path == "/v2/" or path is None:
            return self.answer(200 if self.path == "/v2/" else 404)
        if path[1] == "blobs":
            return self.send(self.directory / path[2], with_body)
        content = manifest.read_bytes()
        self.answer(200, len(content), {"Content-Type": MANIFEST, "Docker-Content-Digest": f"sha256:{hashlib.sha256(content).hexdigest()}"})
        if with_body:
            self.wfile.write(content)

    def send(self, file, with_body):
        with open(file, "rb") as blob:
            size = os.fstat(blob.fileno()).st_size
            span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            first, last = (int(span[1]), int(span[2] or size - 1)) if span else (0, size - 1)
            self.answer(206 if span else 200, last + 1 - first, {"Content-Range": f"bytes {first}-{last}/{size}"} if span else {})
            while with_body and first <= last:
                first += os.sendfile(self.connection.fileno(), blob.fileno(), first, last + 1 - first)

    def answer(self, status, length=0, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        pass  # clients end connections that they do not need


def serve(directory, port, rate):
    print("in the namespace", flush=True)
    sys.stdin.readline()
    Handler.directory, Handler.rate = Path(directory), rate
    server = Server(("", port), Handler)
    print("listening", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else None)
