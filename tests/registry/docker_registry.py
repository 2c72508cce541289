"""A real docker-registry for one test run."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from scene import children, work


class DockerRegistry:
    """A registry. `settings` are added to its configuration. `authorization` is the header for
    pushes."""

    def __init__(self, settings="", authorization=None):
        self.authorization = authorization
        program = shutil.which("docker-registry") or shutil.which("registry")
        assert program, "docker-registry is not installed (packaging/install-deps)"
        # It accepts only a port number, which another process may take first. It then ends, and
        # another port is tried.
        assert any(self.starts(program, settings) for _ in range(5)), "docker-registry does not start"

    def starts(self, program, settings):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.name = f"127.0.0.1:{free.getsockname()[1]}"
        directory = tempfile.mkdtemp(dir=work)
        path = os.path.join(directory, "config.yml")
        with open(path, "w") as file:
            file.write(f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {directory}/data}}}}\n"
                       f"http: {{addr: '{self.name}'}}\n{settings}")
        server = subprocess.Popen([program, "serve", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        children.append(server)
        for _ in range(200):
            if server.poll() is not None:
                return False
            try:
                self.send("GET", "")
                return True
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        return False

    def send(self, method, url, data=b"", media_type="application/octet-stream"):
        url = url if url.startswith("http") else f"http://{self.name}/v2/{url}"
        headers = {"Content-Type": media_type} | ({"Authorization": self.authorization} if self.authorization else {})
        with urllib.request.urlopen(urllib.request.Request(url, data=data, method=method, headers=headers)) as answer:
            return answer.headers.get("Location")

    def push(self, image, name):
        for digest, blob in image.blobs().items():
            if digest == image.digest:
                continue
            location = self.send("POST", f"{name}/blobs/uploads/")
            self.send("PUT", location + ("&" if "?" in location else "?") + "digest=" + digest, blob)
        self.send("PUT", f"{name}/manifests/1", image.bytes, image.media_type)
