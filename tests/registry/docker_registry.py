"""The real docker-registry, for one run of the tests."""

import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from scene import children, work
from server import Server


class DockerRegistry:
    """`settings` are added to its configuration; `authorization` is the header with which images are pushed."""

    def __init__(self, settings="", authorization=None):
        self.name = f"127.0.0.1:{Server().port + 7}"
        self.authorization = authorization
        directory = tempfile.mkdtemp(dir=work)
        path = os.path.join(directory, "config.yml")
        with open(path, "w") as file:
            file.write(f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {directory}/data}}}}\n"
                       f"http: {{addr: '{self.name}'}}\n{settings}")
        program = shutil.which("docker-registry") or shutil.which("registry")
        assert program, "docker-registry is not installed (packaging/install-deps)"
        children.append(subprocess.Popen([program, "serve", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for _ in range(100):
            try:
                self.send("GET", "")
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)

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
