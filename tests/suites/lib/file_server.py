"""A web server with TLS in a thread of the tests' own process, in the network of the cluster's head: https://registry:5051."""
import ctypes
import http.server
import os
import ssl
import threading
from collections import Counter

from images import digest_of

CLONE_NEWNET = 0x40000000


class FileServer:
    """`files`: path -> bytes; `requests` counts "GET PATH" and "HEAD PATH". It knows no HEAD where `heads` is false. `key`: what the
    query has to be, if anything. While `gate` is not set only half of a file comes."""
    host = "registry:5051"

    def __init__(self, cluster):
        self.files, self.requests, self.heads, self.down, self.key = {}, Counter(), True, False, None
        self.gate = threading.Event()
        self.gate.set()
        directory = cluster.inside("head", "/etc/spank-container-cluster")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{directory}/server.crt", f"{directory}/server.key")
        self.config = f'[registries."{self.host}"]\nca = "/etc/spank-container/certs.d/registry:5443/ca.crt"\n'
        self._listen(cluster.pid("head"), context)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def _listen(self, pid, context):
        ready = threading.Event()

        def serve():
            space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            ctypes.CDLL(None, use_errno=True).setns(space, CLONE_NEWNET)
            os.close(space)
            self.server = http.server.ThreadingHTTPServer(("10.77.0.1", 5051), handler_for(self))
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.server.handle_error = lambda *_: None
            self.server.daemon_threads = True
            ready.set()
            self.server.serve_forever()

        threading.Thread(target=serve, daemon=True).start()
        if not ready.wait(5):
            raise RuntimeError("the web server does not start")


def handler_for(server):
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            path, _, query = self.path.partition("?")
            server.requests[f"{self.command} {path}"] += 1
            if server.down or path not in server.files or (self.command == "HEAD" and not server.heads):
                return self.send_error(503 if server.down else 405 if path in server.files else 404)
            if server.key not in (None, query):
                return self.send_error(403)
            data = server.files[path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{digest_of(data)}"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data[:len(data) // 2])
                self.wfile.flush()
                server.gate.wait(30)
                self.wfile.write(data[len(data) // 2:])

        do_HEAD = do_GET

    return Handler
