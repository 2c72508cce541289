"""A real nginx between many nodes and the registry, configured as in packaging/examples/mirrors."""

import collections
import concurrent.futures
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time

import oci
from docker_registry import DockerRegistry
from network_cases import site
from scene import Skipped, children, new_store, noise, pull, registry, succeeds, work
from server import Server

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(HERE, "../../packaging/examples/mirrors/nginx.conf")
NODES = 8
PIECE = 1 << 20


class Nginx:
    """The example's server before `upstream`."""

    def __init__(self, upstream, sliced=True):
        program = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
        if not program:
            raise Skipped("nginx is not installed (packaging/install-deps test)")
        assert any(self.starts(program, upstream, sliced) for _ in range(5)), "nginx does not start"

    def starts(self, program, upstream, sliced):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.name = f"127.0.0.1:{free.getsockname()[1]}"
        directory = tempfile.mkdtemp(dir=work)
        with open(EXAMPLE) as file:
            text = file.read()
        for old, new in (("registry.example.org:5000", upstream), ("listen 5080", f"listen {self.name}"),
                         ("/var/cache/nginx/images", f"{directory}/images"), ("slice 16m", f"slice {PIECE}")):
            assert old in text, f"{EXAMPLE} does not say {old}"
            text = text.replace(old, new)
        if not sliced:  # as documented for a pull-through registry
            text = re.sub(r"^ *(slice \d+|proxy_set_header Range .*);\n", "", text, flags=re.M).replace("$slice_range", "")
        path = os.path.join(directory, "nginx.conf")
        temporary = "".join(f"{kind}_temp_path {directory}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        with open(path, "w") as file:
            file.write(f"daemon off; pid {directory}/pid; error_log {directory}/error.log; events {{}}\n"
                       f"{'user root;' if os.geteuid() == 0 else ''}\nhttp {{ access_log off; {temporary}\n{text}\n}}\n")
        server = subprocess.Popen([program, "-e", f"{directory}/error.log", "-c", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        children.append(server)
        for _ in range(200):
            if server.poll() is not None:
                return False
            try:
                socket.create_connection(self.name.split(":")).close()
                return True
            except ConnectionError:
                time.sleep(0.05)
        return False


def at_once(name, image, mirror):
    """NODES nodes pull the image at the same time."""
    settings = site(mirror, mirrors=[mirror.name])
    stores = [new_store() for _ in range(NODES)]
    with concurrent.futures.ThreadPoolExecutor(NODES) as nodes:
        for result in nodes.map(lambda store: pull(name, store=store, settings=settings), stores):
            succeeds(result, image)


def seen(server, name, kind):
    """Counts requests by path and range."""
    asked = [(path, headers.get("Range")) for command, path, headers in server.seen(f"/v2/{name}/{kind}/") if command == "GET"]
    return collections.Counter(asked)


def new_image(name, size):
    image = oci.Image([oci.Layer({"data": noise.randbytes(size)}), oci.Layer({"few": b"1"})])
    registry.repository(name, image)
    return image


def test_nodes_behind_nginx_fetch_each_piece_once():
    image = new_image("coalesced", PIECE * 3 // 2)
    at_once("coalesced", image, Nginx(registry.name))
    blobs = seen(registry, "coalesced", "blobs")
    # Two pieces of one layer, the other layer, the configuration.
    assert set(blobs.values()) == {1} and len(blobs) == 4, blobs
    manifests = seen(registry, "coalesced", "manifests")
    assert list(manifests.values()) == [1], manifests


def test_nodes_behind_nginx_and_pull_through_count_as_one_client():
    """docker-registry itself fetches missing blobs twice: for its client, and for itself."""
    image = new_image("through", 1 << 20)
    hub = DockerRegistry(f"proxy: {{remoteurl: 'http://{registry.name}'}}\n")
    at_once("through", image, Nginx(hub.name, sliced=False))
    blobs = seen(registry, "through", "blobs")
    assert max(blobs.values()) <= 2 and len(blobs) == 3, blobs


def test_cache_without_its_registry_costs_nodes_only_time():
    image = new_image("lost", 1 << 20)
    gone = Server()
    gone.shutdown()
    gone.server_close()
    at_once("lost", image, Nginx(gone.name))
    assert set(seen(registry, "lost", "blobs").values()) == {NODES}
