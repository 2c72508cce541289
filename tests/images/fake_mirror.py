"""A mirror of Debian in front of the real one, which fails now and then."""

import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

BAD_FILES = 10  # every tenth file, from the first one on,
FAILURES = 10  # fails so often: apt gives up after four attempts, of up to two requests each


class FakeMirror(ThreadingHTTPServer):
    """Listens on loopback. A request fails by an early end of the connection or by status 503, in turns."""

    daemon_threads = True

    def __init__(self, upstream):
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = upstream.rstrip("/")
        self.url = f"http://127.0.0.1:{self.server_port}/debian"
        self.requests = {}  # path -> number
        self.failed = 0
        self.lock = Lock()

    def __enter__(self):
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def fails(self, path):
        """None, or the number of this failure."""
        with self.lock:
            self.requests[path] = self.requests.get(path, 0) + 1
            if list(self.requests).index(path) % BAD_FILES != 0 or self.requests[path] > FAILURES:
                return None
            self.failed += 1
            return self.failed

    def handle_error(self, request, client_address):
        """apt may close a connection at any time."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        failure = self.server.fails(self.path)
        if failure is None:
            self.forward()
        elif failure % 2 == 1:
            self.close_connection = True
            self.connection.close()
        else:
            self.send_error(503)

    def forward(self):
        request = urllib.request.Request(self.server.upstream + self.path.removeprefix("/debian"))
        try:
            with urllib.request.urlopen(request) as answer:
                body = answer.read()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                if "Last-Modified" in answer.headers:
                    self.send_header("Last-Modified", answer.headers["Last-Modified"])
                self.end_headers()
                self.wfile.write(body)
        except urllib.error.HTTPError as error:
            self.send_error(error.code)

    def log_message(self, *_):
        """No log: the counters suffice."""
