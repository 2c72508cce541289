"""Mirrors, proxies, pinned digests and several connections: how a pull is routed, and properties that routing must not change."""

import concurrent.futures
import contextlib
import functools
import gzip
import http.server
import json
import os
import socket
import socketserver
import threading
import time
import urllib.request

import agent
import oci
from login_cases import nothing_leaked, wants_basic
from scene import Skipped, big_image, config, elsewhere, fails, new_store, noise, pull, registry, small, succeeds, wait_for
from server import Server
from user import alice
from outcomes import outcome


def site(*servers, **keys):
    """Returns the configuration with these keys of the table `registry`. All `servers` use plain
    HTTP."""
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    return config(f'[registries."{registry.name}"]\ninsecure = true\n{table}', elsewhere, *servers)


def asked(server, repository, method="GET"):
    return [path.split("/")[-2] for command, path, _ in server.seen(f"/v2/{repository}/") if command == method]

# --- mirrors ---

def test_mirror_delivers_blobs_named_by_the_registry():
    mirror = Server()
    image = big_image(1, layers=2)
    registry.repository("mirrored", image)
    mirror.repository("hub/mirrored", image)
    result = succeeds(pull("mirrored", settings=site(mirror, mirrors=[f"{mirror.name}/hub"])), image)
    assert asked(registry, "mirrored") == [] and asked(registry, "mirrored", "HEAD") == ["manifests"], registry.seen("mirrored")
    assert sorted(asked(mirror, "hub/mirrored")) == ["blobs"] * 3 + ["manifests"]
    assert result.store.names("names") == [f"{registry.name}%2Fmirrored:1"], "the image is the registry's, not the mirror's"


def test_mirror_resolves_tags_only_when_configured():
    mirror = Server()
    old = oci.Image([oci.Layer({"old": b"1"})])
    registry.repository("tagged", small)
    mirror.repository("tagged", old).add(small)
    succeeds(pull("tagged", settings=site(mirror, mirrors=[mirror.name])), small)
    before = len(registry.requests)
    succeeds(pull("tagged", settings=site(mirror, mirrors=[mirror.name], mirror_tags=True)), old)
    assert len(registry.requests) == before


def test_mirrors_missing_or_broken_are_skipped():
    image = big_image(1, layers=3)
    registry.repository("fallback", image)
    empty, broken, closed = Server(), Server(), Server()
    broken.repository("fallback", image, lambda h, *_: h.answer(500) or True)
    closed.shutdown()
    closed.server_close()
    result = succeeds(pull("fallback", settings=site(empty, broken, closed, mirrors=[s.name for s in (empty, closed, broken)])), image)
    assert result.seconds < 8, result
    # A broken mirror is asked once, not for each layer. One that lacks a blob is asked again for
    # others.
    assert len(broken.requests) == 1 and len(empty.requests) >= 4, (len(broken.requests), len(empty.requests))
    assert sum("trying the next one" in line for line in result.progress) == 2, result


def test_mirror_with_unknown_host_name_is_skipped():
    registry.repository("unknown", small)
    succeeds(pull("unknown", settings=site(mirrors=["mirror.invalid"])), small)


def test_blob_interrupted_at_mirror_continues_at_the_registry():
    image = big_image(4)
    mirror = Server()
    blob = image.layers[0]
    mirror.repository("cut", image, lambda h, kind, name: name == blob.digest and (h.part_then_reset(blob.blob, 2_000_000) or True))
    registry.repository("cut", image)
    succeeds(pull("cut", settings=site(mirror, mirrors=[mirror.name])), image)
    ranges = [headers.get("Range") for _, path, headers in registry.seen("/v2/cut/blobs/")]
    assert ranges == ["bytes=2000000-"], ranges


def test_stalled_mirror_costs_only_its_timeout():
    """A daemon on this node that hangs at once or in the middle, ends early, or is killed while it
    sends."""
    image = big_image(2, layers=2)
    blob = image.layers[0]
    released = threading.Event()

    def part_then(end):
        def hook(handler, kind, name):
            if name != blob.digest:
                return False
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(blob.blob)))
            handler.end_headers()
            handler.wfile.write(blob.blob[:1_000_000])
            handler.wfile.flush()
            end(handler)
            handler.close_connection = True
            return True
        return hook

    def killed(handler):
        handler.server.shutdown()
        handler.server.server_close()

    def late(handler, kind, name):
        return name == blob.digest and released.wait(20) and False

    hooks = {"late": late, "hangs": part_then(lambda _: released.wait(20)), "half": part_then(lambda _: None), "killed": part_then(killed)}

    def goes_on(way):
        mirror = Server()
        mirror.repository(f"stops/{way}", image, hooks[way])
        registry.repository(f"stops/{way}", image)
        result = succeeds(pull(f"stops/{way}", settings=site(mirror, mirrors=[mirror.name])), image)
        # libcurl averages over some seconds
        assert result.seconds < 15, (way, result.seconds, result)
        ranges = [headers.get("Range") for _, _, headers in registry.seen(f"/v2/stops/{way}/blobs/{blob.digest}")]
        assert ranges == [None if way == "late" else "bytes=1000000-"], (way, ranges)

    try:
        with concurrent.futures.ThreadPoolExecutor(len(hooks)) as ways:
            list(ways.map(goes_on, hooks))
    finally:
        released.set()


@outcome(38, "contained", "wrong Docker-Content-Digest")
def test_mirror_with_forged_manifest_is_detected():
    mirror = Server()
    registry.repository("lied", small)
    other = oci.Image([oci.Layer({"evil": b"1"})])
    mirror.repository("lied", other).manifests[small.digest] = (other.media_type, other.bytes)
    result = succeeds(pull("lied", settings=site(mirror, mirrors=[mirror.name])), small)
    assert any("has digest" in line and mirror.name in line for line in result.warnings), result
    blob = small.layers[0]
    mirror.repository("lied", small).blobs[blob.digest] = blob.blob[:-1] + b"x"
    fails(pull("lied", settings=site(mirror, mirrors=[mirror.name])), "has digest", blob.digest)


def test_mirror_never_gets_user_credentials():
    mirror = Server()
    mirror.repository("secret", small, wants_basic)
    registry.repository("secret", small, wants_basic)
    user = alice()
    result = pull("secret", settings=site(mirror, mirrors=[mirror.name]), user=user, more=["registry_user=alice"])
    assert result.done == small.digest[7:], result
    nothing_leaked(result, mirror)
    assert mirror.requests and not result.store.names("names"), "a private image became public"

# --- proxies ---

class Proxy(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Forwards plain requests and tunnels CONNECT. `seen` contains method and target."""

    daemon_threads = True

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.server.seen.append((self.command, self.path))
            request = urllib.request.Request(self.path, method=self.command, headers={k: v for k, v in self.headers.items() if k != "Proxy-Connection"})
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request) as answer:
                data = answer.read()
                self.send_response(answer.status)
                for name in ("Content-Type", "Docker-Content-Digest", "Content-Range"):
                    if answer.headers.get(name):
                        self.send_header(name, answer.headers[name])
                self.send_header("Content-Length", answer.headers["Content-Length"])
                self.end_headers()
                self.wfile.write(data)

        do_HEAD = do_GET

        def do_CONNECT(self):
            self.server.seen.append((self.command, self.path))
            if self.server.refuses:
                return self.send_error(self.server.refuses)
            host, port = self.path.rsplit(":", 1)
            with socket.create_connection((host, int(port))) as there:
                self.send_response(200)
                self.end_headers()
                back = threading.Thread(target=self.copy, args=(there, self.connection), daemon=True)
                back.start()
                self.copy(self.connection, there)
                back.join()
            self.close_connection = True

        @staticmethod
        def copy(source, target):
            try:
                while data := source.recv(65536):
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def __init__(self, refuses=0):
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.seen, self.refuses = [], refuses
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, *_):
        pass


@outcome(43, "contained", "proxy variables of the user")
def test_shared_store_ignores_job_proxy_and_uses_site_proxy():
    registry.repository("proxied", small)
    proxy, users = Proxy(), Proxy()
    environment = {"http_proxy": users.url, "HTTPS_PROXY": users.url, "all_proxy": users.url}
    succeeds(pull("proxied", import_environment=environment), small)
    succeeds(pull("proxied", import_environment=environment, settings=config(f'http_proxy = "{proxy.url}"')), small)
    assert not users.seen and len(proxy.seen) == 3, (users.seen, proxy.seen)
    succeeds(pull("proxied", settings=config(f'http_proxy = "{proxy.url}"\nno_proxy = ["127.0.0.1"]')), small)
    assert len(proxy.seen) == 3, proxy.seen


@outcome(43, "contained", "proxy variables of the user")
def test_user_store_uses_the_users_proxy_in_either_case():
    registry.repository("own", small)
    mine = ["user_store=yes"]
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        proxy = Proxy()
        succeeds(pull("own", import_environment={name: proxy.url}, more=mine), small)
        assert len(proxy.seen) == 3, (name, proxy.seen)
        for exception in ("NO_PROXY", "no_proxy"):
            succeeds(pull("own", import_environment={name: proxy.url, exception: "localhost, .0.0.1,127.0.0.1"}, more=mine), small)
        assert len(proxy.seen) == 3, (name, proxy.seen)


@outcome(43, "contained", "proxy variables of the user")
def test_https_proxy_tunnel_sees_only_ciphertext():
    from site_cases import make_certificates
    certificates = make_certificates("tunnel")
    server = Server(certificates["good"])
    server.repository("tls", small, wants_basic)
    settings = lambda proxy: config(f'https_proxy = "{proxy.url}"\n[registries."{server.name}"]\nca = "{certificates["directory"]}/ca.crt"', elsewhere)
    proxy = Proxy()
    result = pull("tls", server=server, settings=settings(proxy), user=alice())
    assert result.done == small.digest[7:], result
    assert proxy.seen and set(proxy.seen) == {("CONNECT", server.name)}, proxy.seen
    fails(pull("tls", server=server, settings=settings(Proxy(refuses=403))), "the proxy refuses to connect (status 403)")
    fails(pull("tls", server=server, settings=settings(Proxy(refuses=407))), "https_proxy=http://USER")
    dead = Proxy()
    dead.shutdown()
    dead.server_close()
    fails(pull("tls", server=server, settings=settings(dead)), "the proxy cannot be reached")


def test_proxy_password_is_in_no_message():
    registry.repository("proxypassword", small)
    result = fails(pull("proxypassword", settings=config('http_proxy = "http://u:hidden@127.0.0.1:1"')), "the proxy cannot be reached")
    assert "hidden" not in result.failed


@outcome(32, "refused", "redirects in a loop, to nowhere, to files, in the clear, to this node")
def test_redirect_to_this_node_through_a_proxy_is_refused():
    proxy = Proxy()
    for target in ("http://169.254.169.254/latest", "http://[fe80::1]/x"):
        registry.repository("inner", small, lambda h, *_: h.answer(302, extra={"Location": target}) or True)
        result = pull("inner", settings=config(f'http_proxy = "{proxy.url}"'))
        assert result.failed, result
    assert not any("169.254" in path or "fe80" in path for _, path in proxy.seen), proxy.seen

# --- false claims of servers about content ---

@outcome(37, "contained", "Content-Encoding on a blob")
def test_blob_content_encoding_is_checked_by_digest():
    image = big_image(1)
    blob = image.layers[0]

    def labelled(data):
        return lambda h, kind, name: kind == "blobs" and name == blob.digest and (h.answer(200, data, extra={"Content-Encoding": "gzip"}) or True)
    registry.repository("labelled", image, labelled(blob.blob))
    succeeds(pull("labelled"), image)
    registry.repository("labelled", image, labelled(gzip.compress(blob.blob)))
    fails(pull("labelled"), blob.digest)


@outcome(38, "contained", "wrong Docker-Content-Digest")
def test_wrong_docker_content_digest_is_ignored():
    image = big_image(1)
    lie = {"Docker-Content-Digest": small.digest}
    registry.repository("misled", image, lambda h, kind, _: kind == "manifests" and (h.answer(200, image.bytes, image.media_type, lie) or True))
    store = new_store()
    succeeds(pull("misled", store=store), image)
    result = succeeds(pull("misled", store=store), image)
    assert not result.published, "the HEAD request lied, so the manifest was got again; the layers were there"

# --- the site's rules ---

def test_registries_outside_the_allowed_list_are_refused():
    registry.repository("rules", small)
    allowed = lambda *names: config(f"allowed_registries = {json.dumps(list(names))}")
    fails(pull("rules", settings=allowed("registry.example.org", "*.example.org")), f'this site does not allow registry "{registry.name}"')
    succeeds(pull("rules", settings=allowed("registry.example.org", registry.name)), small)


def test_required_digest_error_names_the_current_digest():
    registry.repository("pinned", small)
    settings = site(require_digest=True)
    fails(pull("pinned", settings=settings), "by digest only", f"{registry.name}/pinned@{small.digest}")
    store = new_store()
    succeeds(pull("pinned", "@" + small.digest, settings=settings, store=store), small)
    # An image pulled under the tag before the rule is not started either.
    store = new_store()
    succeeds(pull("pinned", store=store), small)
    result = pull("pinned", settings=settings, store=store)
    assert result.failed and "by digest only" in result.failed, result


def test_user_agent_names_this_product():
    registry.repository("agent", small)
    succeeds(pull("agent"), small)
    agents = {headers["User-Agent"] for _, _, headers in registry.seen("/v2/agent/")}
    assert len(agents) == 1 and agents.pop().startswith("spank-container/"), agents


def test_too_long_header_is_not_reported_as_out_of_memory():
    def boast(handler, *_):
        handler.send_response(200)
        handler.send_header("X-Long", "a" * (1 << 20))
        handler.end_headers()
        return True
    registry.repository("boasting", small, boast)
    fails(pull("boasting"), "the response has a header that is too long")

# --- several connections ---

PIECE = 128 << 10


@functools.cache
def large():
    return big_image(64)


class Link:
    """Serves the layer at a rate, of each connection or of all together, and counts."""

    def __init__(self, image, each=None, together=None, answers=None):
        self.image, self.each, self.together, self.answers = image, each, together, answers or (lambda handler, first: False)
        self.lock, self.wire, self.due = threading.Lock(), threading.Lock(), 0
        self.at_once = self.most = 0
        self.ranges = []

    def __call__(self, handler, kind, name):
        if kind != "blobs" or name != self.image.layers[0].digest:
            return False
        wanted = handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")
        blob = self.image.layers[0].blob
        first, last = int(wanted[0]), int(wanted[1] or len(blob) - 1)
        with self.lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            if wanted[1]:
                self.ranges.append(first)
        try:
            return bool(self.answers(handler, first if wanted[1] else None)) or self.serve(handler, blob, first, last)
        finally:
            with self.lock:
                self.at_once -= 1

    def serve(self, handler, blob, first, last):
        handler.send_response(206 if first or last + 1 < len(blob) else 200)
        handler.send_header("Content-Length", str(last + 1 - first))
        if first or last + 1 < len(blob):
            handler.send_header("Content-Range", f"bytes {first}-{last}/{len(blob)}")
        handler.end_headers()
        due = 0
        with contextlib.suppress(OSError):
            for at in range(first, last + 1, PIECE):
                with self.wire if self.together else contextlib.nullcontext():
                    handler.wfile.write(blob[at:min(at + PIECE, last + 1)])
                    due = self.pause(self.due if self.together else due)
                    self.due = due
            return True
        handler.close_connection = True
        return True

    def pause(self, due):
        """Waits for the time of the next piece. Late pieces, on a machine that does much else, are followed by early ones: the rate
        stays what it is."""
        due = max(due, time.monotonic() - 0.3) + PIECE / (self.together or self.each)
        time.sleep(max(0, due - time.monotonic()))
        return due


def test_blob_is_fetched_by_several_connections_if_each_is_slow():
    link = Link(large(), each=8e6)
    registry.repository("ranges/each", large(), link)
    result = succeeds(pull("ranges/each"), large())
    assert 4 < link.most <= 11 and len(link.ranges) == len(set(link.ranges)) > 4, (link.most, link.ranges)
    # one connection gets 8 MB/s: 8 s
    assert result.seconds < 6, result.seconds


def test_smaller_blobs_use_several_connections_once_they_helped():
    image = oci.Image([*large().layers, *(oci.Layer({"data": noise.randbytes(megabytes << 20)}) for megabytes in (6, 5))])
    link = Link(image, each=8e6)
    ranges = {layer.digest: [] for layer in image.layers[1:]}

    def look(handler, kind, name):
        if name not in ranges:
            return link(handler, kind, name)
        ranges[name].append(handler.headers.get("Range"))
        wait_for(lambda: link.most >= 7)  # four and then more connections: they have helped
        return False
    registry.repository("ranges/smaller", image, look)
    succeeds(pull("ranges/smaller", settings=config("max_parallel_layers = 2")), image)
    first, last = (ranges[layer.digest] for layer in image.layers[1:])
    assert first == [None], first  # it began before
    assert None in last and len(last) > 3 and len(last) == len(set(last)), last


def test_small_layers_are_fetched_together():
    image = oci.Image([oci.Layer({f"data{i}": noise.randbytes(5000)}) for i in range(8)])
    blobs = {layer.digest for layer in image.layers}
    lock, underway, at_once = threading.Lock(), set(), []

    def look(handler, kind, name):
        if kind != "blobs" or name not in blobs:
            return False
        with lock:
            underway.add(name)
            at_once.append(len(underway))
        wait_for(lambda: max(at_once) >= 4)
        with lock:
            underway.discard(name)
        return False
    registry.repository("small", image, look)
    succeeds(pull("small", settings=config("import_cpus = 1")), image)
    assert max(at_once) == 4, at_once


def test_blob_stays_on_one_connection_if_the_link_is_full():
    image = big_image(50)
    link = Link(image, together=8e6)
    registry.repository("ranges/together", image, link)
    succeeds(pull("ranges/together"), image)
    assert link.most <= 5 and len(link.ranges) <= 4, (link.most, link.ranges)


def test_server_without_ranges_gets_one_request_for_the_rest():
    link = Link(large(), each=8e6)
    def ignores(handler, first):
        return first is not None and link.serve(handler, large().layers[0].blob, 0, len(large().layers[0].blob) - 1)
    link.answers = ignores
    registry.repository("ranges/ignored", large(), link)
    succeeds(pull("ranges/ignored"), large())
    assert 1 <= len(link.ranges) <= 4, link.ranges


def test_too_many_requests_end_the_ranges():
    link = Link(large(), each=8e6, answers=lambda handler, first: first is not None and (handler.answer(429) or True))
    registry.repository("ranges/many", large(), link)
    result = succeeds(pull("ranges/many"), large())
    assert 1 <= len(link.ranges) <= 8 and not any("retrying" in line for line in result.progress), (link.ranges, result)


def test_broken_range_is_fetched_again():
    broken = []

    def breaks(handler, first):
        if first is None or len(broken) == 2:
            return False
        broken.append(first)
        blob = large().layers[0].blob
        handler.send_response(206)
        last = int(handler.headers["Range"].split("-")[1])
        handler.send_header("Content-Length", str(last + 1 - first))
        handler.send_header("Content-Range", f"bytes {first}-{last}/{len(blob)}")
        handler.end_headers()
        handler.wfile.write(blob[first:first + 1_000_000])
        handler.close_connection = True
        return True
    link = Link(large(), each=8e6, answers=breaks)
    registry.repository("ranges/broken", large(), link)
    succeeds(pull("ranges/broken"), large())
    assert len(broken) == 2 and all(first + 1_000_000 in link.ranges for first in broken), (broken, link.ranges)


def test_wrong_bytes_of_a_range_are_a_wrong_digest():
    def lies(handler, first):
        if first is None:
            return False
        last = int(handler.headers["Range"].split("-")[1])
        handler.answer(206, bytes(last + 1 - first), extra={"Content-Range": f"bytes {first}-{last}/{len(large().layers[0].blob)}"})
        return True
    registry.repository("ranges/wrong", large(), Link(large(), each=8e6, answers=lies))
    fails(pull("ranges/wrong"), "has digest", "the registry or a proxy changed it")


# --- a thread for each large blob ---

def test_large_blobs_have_threads_of_their_own():
    if len(os.sched_getaffinity(0)) < 2:
        raise Skipped("one processor converts one layer at a time")
    for name, image, most in (("small", big_image(1, layers=2), 1), ("large", big_image(9, layers=2), 3)):
        blobs, underway, runs, threads = {layer.digest for layer in image.layers}, set(), [], []

        def look(handler, kind, digest):
            if kind == "blobs" and digest in blobs:
                underway.add(digest)
                wait_for(lambda: runs and underway == blobs)
                threads.append(len(os.listdir(f"/proc/{runs[0].process.pid}/task")))
            return False
        registry.repository(f"threads/{name}", image, look)
        store = new_store()
        runs.append(agent.Import(store, f"{registry.name}/threads/{name}:1", config=config()))
        result = runs[0].wait()
        result.store = store
        succeeds(result, image)
        assert threads == [most] * 2, (name, threads)


def test_large_corrupt_archive_is_read_to_its_end():
    layer = oci.Layer({"data": noise.randbytes(24 << 20)})
    layer.blob = layer.blob[:1 << 20] + bytes(1 << 20) + layer.blob[2 << 20:]
    layer.digest = oci.digest(layer.blob)
    image = oci.Image([layer])
    repository = registry.repository("threads/corrupt", image)
    fails(pull("threads/corrupt"), "convert layer", "the image is corrupt")
    repository.blobs[layer.digest] = layer.blob[:-1] + b"X"
    fails(pull("threads/corrupt"), "has digest", "the registry or a proxy changed it")
