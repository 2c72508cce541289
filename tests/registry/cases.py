"""The cases: good images, misbehaving registries, hostile documents, concurrency. Each function is one."""

import atexit
import json
import os
import random
import shutil
import struct
import subprocess
import tempfile
import time
from email.utils import formatdate

import agent
import oci
from server import Server

work = tempfile.mkdtemp(prefix="spc-registry-test-")
children = []


def clean_up():
    for child in children:
        child.terminate()
        child.wait()
    children.clear()
    shutil.rmtree(work, ignore_errors=True)


atexit.register(clean_up)

registry, elsewhere = Server(), Server()
small = oci.Image([oci.Layer({"etc/hello": b"hello\n"})])
noise = random.Random(1)


def big_image(megabytes=6, layers=1):
    return oci.Image([oci.Layer({f"data{i}": noise.randbytes(megabytes << 20)}) for i in range(layers)])


def new_store():
    return agent.Store(tempfile.mkdtemp(dir=work))


def config(text="", *servers):
    path = tempfile.mktemp(dir=work, suffix=".toml")
    with open(path, "w") as file:
        file.write("stall_timeout = 2\n" + text + "\n")
        for server in servers or (registry, elsewhere):
            file.write(f'[registries."{server.name}"]\ninsecure = true\n')
    os.chmod(path, 0o644)
    return path


def pull(name, tag="1", store=None, settings=None, server=registry, **options):
    store = store or new_store()
    separator = "" if tag.startswith("@") else ":"
    result = agent.run(store, f"{server.name}/{name}{separator}{tag}", config=settings or config(), **options)
    result.store = store
    return result


def succeeds(result, image):
    assert result.failed is None and result.status == 0, result
    assert result.done == image.digest[7:], result
    for layer in image.layers:
        assert layer.digest[7:] + ".sqsh" in result.store.layers(), f"no layer {layer.digest}: {result.store.layers()}"
    assert image.digest[7:] in result.store.names("images")
    return result


def fails(result, *texts):
    """With one line that has all `texts` in it, and nothing left behind."""
    assert result.done is None and result.failed is not None and result.status == 1, result
    for text in texts:
        assert text in result.failed, f"{text!r} is not in: {result.failed}"
    assert "\n" not in result.failed and "\\n" not in result.failed, result.failed
    assert result.store.empty(), f"left behind: {result.store.layers()} {result.store.names('images')} {result.store.names('refs')}"
    return result


def once(hook):
    state = {"left": 1}

    def wrapper(handler, kind, name):
        if state["left"] and hook(handler, kind, name):
            state["left"] = 0
            return True
        return False
    return wrapper


# --- what works ---

def test_pulls_an_oci_image_and_writes_record_and_reference():
    registry.repository("good", small)
    result = succeeds(pull("good"), small)
    assert result.progress and result.progress[0].startswith(f"pulling {registry.name}/good:1: 0 of 1 layers, 0 of 0 MB"), result
    assert result.store.ref(f"{registry.name}/good:1").startswith(small.digest + " ")
    record = result.store.record(small.digest[7:])
    magic, layers, _, public_until = struct.unpack_from("<8sIIq", record)
    assert magic == b"SPCIMG1\0" and layers == 1 and abs(public_until - time.time() - 3600) < 60
    assert record[88:120].hex() == small.layers[0].digest[7:]
    offset, size = struct.unpack_from("<QQ", record, 24)
    settings = record[offset:offset + size].split(b"\0")
    assert b"env=PATH=/usr/bin" in settings and b"workdir=/srv" in settings and b"cmd=/bin/sh" in settings, settings
    offset, size = struct.unpack_from("<QQ", record, 40)
    assert record[offset:offset + size] == small.bytes
    offset, size = struct.unpack_from("<QQ", record, 56)
    assert record[offset:offset + size] == small.config_bytes


def test_pulls_docker_schema_2_and_lists():
    image = oci.Image([oci.Layer({"a": b"1"}), oci.Layer({"b": b"2"})], docker=True)
    arm = oci.Image([oci.Layer({"c": b"3"})], docker=True, architecture="arm64")
    repository = registry.repository("docker", image).add(arm)
    repository.add_document(oci.DOCKER_LIST, oci.index([(arm, "linux/arm64"), (image, "linux/amd64")], oci.DOCKER_LIST), "list")
    succeeds(pull("docker"), image)
    result = succeeds(pull("docker", "list"), image)
    assert len(result.store.layers()) == 2
    succeeds(pull("docker", "list", platform="linux/arm64"), arm)


def test_follows_an_index_in_an_index():
    inner = oci.index([(small, "linux/amd64")])
    outer = json.dumps({"schemaVersion": 2, "manifests": [oci.descriptor(oci.OCI_INDEX, inner)]}).encode()
    registry.repository("nested", small).add_document(oci.OCI_INDEX, inner, oci.digest(inner)).add_document(oci.OCI_INDEX, outer, "index")
    succeeds(pull("nested", "index"), small)


def test_pulls_by_digest_and_asks_nothing_the_second_time():
    registry.repository("digest", small)
    store = new_store()
    succeeds(pull("digest", "@" + small.digest, store=store), small)
    before = len(registry.requests)
    result = succeeds(pull("digest", "@" + small.digest, store=store), small)
    assert len(registry.requests) == before and not result.progress


def test_same_layer_many_times_and_no_layers():
    layer = oci.Layer({"x": b"y"})
    many = oci.Image([layer] * 50)
    registry.repository("fifty", many)
    assert len(succeeds(pull("fifty"), many).published) == 1
    none = oci.Image([])
    registry.repository("none", none)
    succeeds(pull("none"), none)


def test_an_unchanged_tag_costs_one_head_request():
    registry.repository("warm", small)
    store = new_store()
    succeeds(pull("warm", store=store), small)
    before = len(registry.requests)
    result = succeeds(pull("warm", store=store), small)
    new = registry.requests[before:]
    assert [r[0] for r in new] == ["HEAD"] and not result.progress, new


def test_an_unchanged_index_costs_one_head_request():
    data = oci.index([(small, "linux/amd64")])
    registry.repository("warmindex", small).add_document(oci.OCI_INDEX, data, "index")
    store = new_store()
    succeeds(pull("warmindex", "index", store=store), small)
    before = len(registry.requests)
    succeeds(pull("warmindex", "index", store=store), small)
    assert [r[0] for r in registry.requests[before:]] == ["HEAD"]


def test_a_moved_tag_is_followed():
    other = oci.Image([small.layers[0], oci.Layer({"new": b"1"})])
    repository = registry.repository("moved", small)
    store = new_store()
    succeeds(pull("moved", store=store), small)
    repository.add(other, "1")
    result = succeeds(pull("moved", store=store), other)
    assert len(result.published) == 1, "the common layer was brought again"


def test_pull_missing_and_tag_ttl_ask_nothing():
    registry.repository("missing", small)
    store = new_store()
    succeeds(pull("missing", store=store, pull="missing"), small)
    before = len(registry.requests)
    succeeds(pull("missing", store=store, pull="missing"), small)
    succeeds(pull("missing", store=store, settings=config("tag_ttl = 60")), small)
    assert len(registry.requests) == before
    succeeds(pull("missing", store=store, pull="always"), small)
    assert len(registry.requests) > before


def test_an_unreachable_registry_is_a_warning_while_the_image_is_public():
    server = Server()
    server.repository("gone", small)
    store, settings = new_store(), config("", server)
    succeeds(pull("gone", store=store, server=server, settings=settings), small)
    server.shutdown()
    server.server_close()
    result = succeeds(pull("gone", store=store, server=server, settings=settings), small)
    assert len(result.warnings) == 1 and "connection refused" in result.warnings[0] and "using the stored image" in result.warnings[0], result


def test_an_image_that_is_public_no_longer_is_asked_for_again():
    repository = registry.repository("ttl", small)
    store, settings = new_store(), config("public_ttl = 0")
    succeeds(pull("ttl", store=store, settings=settings), small)
    before = len(registry.requests)
    succeeds(pull("ttl", store=store, settings=settings, pull="missing"), small)
    assert [r[0] for r in registry.requests[before:]] == ["HEAD"]
    repository.hooks.append(lambda h, kind, name: h.answer(403) or True)
    result = pull("ttl", store=store, settings=settings, pull="missing")
    assert result.failed and "is forbidden" in result.failed, result


def test_anonymous_bearer_token_and_its_renewal_in_mid_pull():
    image = big_image(1, layers=3)
    tokens = []

    def give(handler):
        tokens.append(f"token{len(tokens)}")
        handler.answer_json(200, json.dumps({"token": tokens[-1]}))

    def guard(handler, kind, name):
        uses = guard.uses = getattr(guard, "uses", 0) + 1
        if uses % 4 == 0 or not tokens or handler.headers.get("Authorization") != f"Bearer {tokens[-1]}":
            if uses % 4 == 0:
                tokens.append("expired")
            challenge = f'Bearer realm="http://{registry.name}/token",service="test",scope="repository:token:pull"'
            handler.answer_json(401, "{}", {"WWW-Authenticate": challenge})
            return True
        return False
    registry.paths.append((r"/token\?.*", give))
    registry.repository("token", image, guard)
    succeeds(pull("token"), image)
    asked = registry.seen("/token?")
    assert all("service=test" in r[1] and "scope=repository%3Atoken%3Apull" in r[1] for r in asked), asked
    assert len(asked) >= 2


def test_a_redirect_to_another_origin_gets_no_token():
    image = big_image(1)
    challenge = {"WWW-Authenticate": f'Bearer realm="http://{registry.name}/cdntoken"'}
    registry.paths.append((r"/cdntoken\?.*", lambda h: h.answer_json(200, '{"access_token":"secret"}')))
    elsewhere.paths.append((r"/cdn/(.*)", lambda h: h.serve_bytes(image.blobs()[h.path[5:]])))

    def hook(handler, kind, name):
        if handler.headers.get("Authorization") != "Bearer secret":
            handler.answer_json(401, "{}", challenge)
            return True
        if kind == "blobs":
            handler.answer(307, extra={"Location": f"http://{elsewhere.name}/cdn/{name}"})
            return True
        return False
    registry.repository("cdn", image, hook)
    succeeds(pull("cdn"), image)
    assert elsewhere.seen("/cdn/"), "not redirected"
    assert not any("Authorization" in headers for _, _, headers in elsewhere.requests), "the token went elsewhere"


def test_relative_redirect():
    registry.paths.append((r"/moved/(.*)", lambda h: h.serve_bytes(small.blobs()[h.path[7:]])))
    registry.repository("relative", small, lambda h, kind, name: kind == "blobs" and (h.answer(302, extra={"Location": f"/moved/{name}"}) or True))
    succeeds(pull("relative"), small)


# --- what heals ---

def test_429_with_retry_after_is_waited_for_and_told():
    for value in ("1", formatdate(time.time() + 2, usegmt=True), None):
        hook = once(lambda h, kind, name: h.answer(429, extra={"Retry-After": value} if value else {}) or True)
        registry.repository("slowdown", small, hook)
        result = succeeds(pull("slowdown"), small)
        assert any("too many requests" in line and "trying again in" in line for line in result.progress), result


def test_one_server_error_heals():
    for status in (500, 502, 503):
        registry.repository("flaky", small, once(lambda h, kind, name: h.answer(status) or True))
        succeeds(pull("flaky"), small)


def test_a_broken_blob_goes_on_where_it_broke():
    image = big_image()
    hook = once(lambda h, kind, name: kind == "blobs" and name == image.layers[0].digest and
                (h.part_then_reset(image.layers[0].blob, 3_000_000) or True))
    registry.repository("reset", image, hook)
    before = len(registry.requests)
    succeeds(pull("reset"), image)
    ranges = [r[2].get("Range") for r in registry.requests[before:] if "Range" in r[2]]
    assert ranges == ["bytes=3000000-"], ranges


def test_a_broken_blob_without_range_or_with_a_wrong_one_starts_over():
    image = big_image()
    blob, name_of = image.layers[0].blob, image.layers[0].digest

    def whole(handler, kind, name):
        if kind != "blobs" or name != name_of:
            return False
        handler.answer(200, blob)
        return True

    def wrong_part(handler, kind, name):
        if kind != "blobs" or name != name_of or "Range" not in handler.headers:
            return False
        handler.answer(206, blob[5:], extra={"Content-Range": f"bytes 5-{len(blob) - 1}/{len(blob)}"})
        return True

    def unsatisfiable(handler, kind, name):
        return kind == "blobs" and "Range" in handler.headers and (handler.answer(416) or True)
    for after in (whole, wrong_part, unsatisfiable):
        breaks = once(lambda h, kind, name: kind == "blobs" and name == name_of and (h.part_then_reset(blob, 2_000_000) or True))
        registry.repository("norange", image, breaks, after)
        succeeds(pull("norange"), image)


def test_a_slow_blob_is_not_a_stall():
    image = big_image(5)

    def slow(handler, kind, name):
        if kind != "blobs" or name != image.layers[0].digest:
            return False
        blob = image.layers[0].blob
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(blob)))
        handler.end_headers()
        for i in range(0, len(blob), len(blob) // 10 + 1):
            handler.wfile.write(blob[i:i + len(blob) // 10 + 1])
            handler.wfile.flush()
            time.sleep(0.35)
        return True
    registry.repository("slow", image, slow)
    result = succeeds(pull("slow"), image)
    # One line at once, one after two seconds, then fewer and fewer: they stay in the job's output.
    assert len(result.progress) == 2, result


def test_chunked_without_length():
    def chunked(handler, kind, name):
        if kind != "blobs":
            return False
        data = small.blobs()[name]
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n0\r\n\r\n")
        return True
    registry.repository("chunked", small, chunked)
    succeeds(pull("chunked"), small)


# --- what is refused: the registry ---

def test_unknown_host_and_refused_connection():
    store = new_store()
    result = agent.run(store, "no-such-host.invalid/x:1", config=config())
    result.store = store
    fails(result, 'registry "no-such-host.invalid"', "no such host")
    closed = Server()
    closed.shutdown()
    closed.server_close()
    fails(pull("x", server=closed, settings=config("", closed)), "connection refused", closed.name)


def test_missing_repository_tag_blob():
    fails(pull("nowhere"), 'there is no repository "nowhere"')
    repository = registry.repository("part", small)
    fails(pull("part", "2"), 'there is no such tag or digest in repository "part"', "part:2")
    del repository.blobs[small.layers[0].digest]
    fails(pull("part"), f'layer "{small.layers[0].digest}"', "the registry has lost it")
    repository.add(small)
    del repository.blobs[oci.digest(small.config_bytes)]
    fails(pull("part"), "image configuration", "the registry has lost it")


def test_401_403():
    registry.repository("basic", small, lambda h, *_: h.answer_json(401, "{}", {"WWW-Authenticate": 'Basic realm="x"'}) or True)
    fails(pull("basic"), "a login is needed", f"log in to {registry.name}")
    registry.repository("forbidden", small, lambda h, *_: h.answer(403) or True)
    fails(pull("forbidden"), 'access to repository "forbidden" is forbidden')
    challenge = {"WWW-Authenticate": f'Bearer realm="http://{registry.name}/useless"'}
    registry.paths.append((r"/useless\?.*", lambda h: h.answer_json(200, '{"token":"x"}')))
    registry.repository("never", small, lambda h, *_: h.answer_json(401, "{}", challenge) or True)
    fails(pull("never"), "is private or does not exist")
    assert len(registry.seen("/useless?")) <= 3


def test_bad_token_servers():
    answers = {"500": lambda h: h.answer(500), "html": lambda h: h.answer(200, b"<html>", "text/html"),
               "empty": lambda h: h.answer_json(200, '{"token":""}'), "newline": lambda h: h.answer_json(200, '{"token":"a\\r\\nX: y"}'),
               "huge": lambda h: h.answer_json(200, '{"token":"' + "a" * 10_000_000 + '"}')}
    for name, answer in answers.items():
        registry.paths.append((rf"/bad{name}\?.*", answer))
        challenge = {"WWW-Authenticate": f'Bearer realm="http://{registry.name}/bad{name}"'}
        registry.repository("badtoken", small, lambda h, *_: h.answer_json(401, "{}", challenge) or True)
        result = fails(pull("badtoken"), "badtoken")
        assert name in ("500", "huge") or "login server" in result.failed, result
    for realm in ("file:///etc/passwd", f"http://{elsewhere.name}/token", "gopher://x/"):
        before = len(elsewhere.requests)
        registry.repository("badrealm", small, lambda h, *_: h.answer_json(401, "{}", {"WWW-Authenticate": f'Bearer realm="{realm}"'}) or True)
        fails(pull("badrealm"), "login server", realm)
        assert len(elsewhere.requests) == before


def test_429_and_500_for_ever_and_too_long_waits():
    registry.repository("limited", small, lambda h, *_: h.answer(429, extra={"Retry-After": "0"}) or True)
    before = len(registry.requests)
    fails(pull("limited"), "too many requests", "use a mirror")
    assert len(registry.requests) - before == 4
    registry.repository("broken", small, lambda h, *_: h.answer(500, extra={"Retry-After": "0"}) or True)
    fails(pull("broken"), "the registry failed with status 500")
    registry.repository("patience", small, lambda h, *_: h.answer(503, extra={"Retry-After": "86400"}) or True)
    assert fails(pull("patience"), "asks to wait 86400 s").seconds < 2


def test_reset_every_time():
    image = big_image(1)
    registry.repository("always", image, lambda h, kind, name: kind == "blobs" and name == image.layers[0].digest and
                        (h.part_then_reset(image.layers[0].blob, 10) or True))
    fails(pull("always"), "closed the connection in the middle", "tried 4 times")


def test_redirect_loops_and_forbidden_targets():
    loop = lambda h, kind, name: h.answer(302, extra={"Location": h.path}) or True
    registry.repository("loop", small, loop)
    fails(pull("loop"), "redirects more than 5 times")
    for target, text in (("file:///etc/passwd", "not a web address"), ("http://169.254.169.254/x", "only this node can mean"),
                         (None, "to nowhere")):
        registry.repository("target", small, lambda h, *_: h.answer(302, extra={"Location": target} if target else {}) or True)
        fails(pull("target"), text)


def test_html_instead_of_json():
    registry.repository("portal", small, lambda h, *_: h.answer(200, b"<!doctype html><html>log in</html>", "text/html") or True)
    fails(pull("portal"), "is an HTML page, not JSON")


def test_hung_headers_and_body():
    image = big_image(1)

    def hang(handler, kind, name):
        if kind != "blobs" or name != image.layers[0].digest:
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(image.layers[0].blob)))
        handler.end_headers()
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(15)
        return True
    registry.repository("hungbody", image, hang)
    assert fails(pull("hungbody"), "sends nothing any more").seconds < 15
    registry.repository("hunghead", small, lambda h, *_: time.sleep(12) or True)
    assert fails(pull("hunghead"), "sends nothing any more").seconds < 15


def test_endless_manifest_and_headers():
    def endless(handler, *_):
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(1000):
                handler.wfile.write(b" " * 65536)
        except OSError:
            pass
        handler.close_connection = True
        return True
    registry.repository("endless", small, endless)
    fails(pull("endless"), "is longer than 4194304 bytes")

    def headers(handler, *_):
        handler.send_response(200)
        try:
            for i in range(100_000):
                handler.send_header(f"X-{i}", "y" * 50)
                if i % 100 == 0:
                    handler.flush_headers()
        except OSError:
            pass
        handler.close_connection = True
        return True
    registry.repository("headers", small, headers)
    fails(pull("headers"), "headers")


# --- what is refused: bytes that are not what they should be ---

def test_wrong_bytes_in_a_layer():
    image = big_image(1)
    blob, name_of = image.layers[0].blob, image.layers[0].digest
    for data, text in ((blob[:-1] + b"X", "has digest"), (b"\0" * len(blob), "has digest"), (blob[:-7], "bytes instead of"),
                       (blob + b"more", "is longer than"), (small.layers[0].blob, "bytes instead of")):
        registry.repository("tampered", image).blobs[name_of] = data
        fails(pull("tampered"), name_of, text)


def test_truncated_blob_with_the_right_length_header():
    image = big_image(1)
    blob, name_of = image.layers[0].blob, image.layers[0].digest

    def short(handler, kind, name):
        if kind != "blobs" or name != name_of:
            return False
        handler.answer(200, blob[:500_000], length=len(blob))
        handler.close_connection = True
        return True
    registry.repository("short", image, short)
    fails(pull("short"), "closed the connection in the middle")


def test_wrong_manifest_and_config_bytes():
    repository = registry.repository("swapped", small)
    other = oci.Image([oci.Layer({"z": b"z"})])
    repository.manifests[small.digest] = (small.media_type, other.bytes)
    fails(pull("swapped", "@" + small.digest), "has digest", other.digest)
    repository.add(small)
    repository.blobs[oci.digest(small.config_bytes)] = small.config_bytes.replace(b"hello", b"hullo").replace(b"srv", b"svr")
    fails(pull("swapped"), "image configuration", "has digest")


def test_wrong_diff_id_and_their_number():
    image = oci.Image([oci.Layer({"q": b"q"})])
    image.config["rootfs"]["diff_ids"] = ["sha256:" + "0" * 64]
    registry.repository("diff", image.seal())
    fails(pull("diff"), "its archive has digest", image.layers[0].diff_id)
    image.config["rootfs"]["diff_ids"] = []
    registry.repository("diff", image.seal())
    fails(pull("diff"), "describes 0 layers, the manifest 1")


def test_a_layer_that_is_no_archive():
    layer = oci.Layer({"a": b"a"})
    layer.blob = b"this is not gzip at all, and no tar either" * 100
    layer.digest = oci.digest(layer.blob)
    registry.repository("garbage", oci.Image([layer]))
    fails(pull("garbage"), "convert layer", layer.digest)


def test_wrong_platform_before_any_layer():
    arm = oci.Image([oci.Layer({"a": b"arm"})], architecture="arm64")
    registry.repository("arm", arm)
    fails(pull("arm"), "is made for linux/arm64, this node needs linux/amd64")
    data = oci.index([(arm, "linux/arm64"), (arm, "linux/arm/v7")])
    registry.repository("armindex", arm).add_document(oci.OCI_INDEX, data, "1")
    fails(pull("armindex"), "has no image for linux/amd64, only for linux/arm/v7, linux/arm64")
    assert not registry.seen(arm.layers[0].digest)


def test_documents_that_are_not_images():
    manifest = json.loads(small.bytes)
    index = json.loads(oci.index([(small, "linux/amd64")]))
    artifact = {**manifest, "config": {**manifest["config"], "mediaType": "application/vnd.cncf.helm.config.v1+json"}}
    layer = manifest["layers"][0]

    def with_layer(**changes):
        return {**manifest, "layers": [{**layer, **changes}]}
    documents = [
        (small.bytes.replace(b'{"schemaVersion": 2', b'{"schemaVersion": 2, "schemaVersion": 2', 1), "is given twice"),
        ({**manifest, "manifests": index["manifests"]}, "at once"),
        ({**manifest, "mediaType": oci.OCI_INDEX}, "has layers"),
        ({"schemaVersion": 1, "fsLayers": [], "name": "x"}, "schema 1"),
        ({**manifest, "schemaVersion": 3}, "schemaVersion 3"),
        (artifact, "is not a container image but an artifact"),
        (with_layer(mediaType="application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"), "foreign layer"),
        (with_layer(mediaType="application/vnd.oci.image.layer.v1.tar+gzip+encrypted"), "encrypted"),
        (with_layer(mediaType="text/plain"), "unknown type"),
        (with_layer(size=-1), '"size" is not a number'), (with_layer(size="5"), '"size" is not a number'),
        (with_layer(size=2**63 - 1), "is impossible"), (with_layer(size=1.5), '"size" is not a number'),
        (with_layer(digest="sha256:../../etc/passwd"), "hexadecimal"), (with_layer(digest="md5:" + "0" * 32), "only sha256"),
        (with_layer(digest="sha256:" + "A" * 64), "lower-case"), (with_layer(digest=None), "has no digest"),
        ({**manifest, "layers": [layer] * 501}, "501 layers"), ({**manifest, "layers": {}}, '"layers" is not an array'),
        (small.bytes[:-1], "is not JSON"), (small.bytes + b"x", "is not JSON"), (b"\xef\xbb\xbf" + small.bytes, "is not a JSON object"),
        (b"[]", "is not a JSON object"), (b"", "is empty"), (b'{"a":' + b"[" * 200_000, "32 levels"),
        (b'{"mediaType":"\xff"}', "is not JSON"), ({**manifest, "config": None}, "has no config"),
        ({"schemaVersion": 2, "mediaType": oci.OCI_INDEX, "manifests": []}, "lists no image"),
    ]
    for document, text in documents:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        media_type = oci.OCI_INDEX if b"image.index" in data[:90] else oci.OCI_MANIFEST
        registry.repository("odd").add_document(media_type, data, "1").blobs.update(small.blobs())
        fails(pull("odd"), text)


def test_indexes_nested_too_deep_and_to_absent_manifests():
    repository = registry.repository("deep", small)
    data = oci.index([(small, "linux/amd64")])
    for _ in range(64):
        repository.add_document(oci.OCI_INDEX, data, oci.digest(data))
        data = json.dumps({"schemaVersion": 2, "manifests": [oci.descriptor(oci.OCI_INDEX, data)]}).encode()
    repository.add_document(oci.OCI_INDEX, data, "1")
    fails(pull("deep"), "nested too deep")
    other = oci.Image([oci.Layer({"n": b"n"})])
    registry.repository("absent").add_document(oci.OCI_INDEX, oci.index([(other, "linux/amd64")]), "1")
    fails(pull("absent"), "there is no such tag or digest", other.digest)


def test_configurations_that_are_not():
    for change, text in (({"rootfs": None}, "has no rootfs"), ({"config": []}, '"config" is not an object'),
                         ({"config": {"Env": "PATH"}}, '"Env" is not an array'), ({"config": {"Env": [1]}}, "not text"),
                         ({"config": {"Cmd": ["a\0b"]}}, "NUL"), ({"rootfs": {"diff_ids": [None]}}, "not text"),
                         ({"rootfs": {"diff_ids": ["sha256:x"]}}, "64 hexadecimal digits")):
        image = oci.Image([oci.Layer({"k": b"k"})])
        image.config.update(change)
        registry.repository("oddconfig", image.seal())
        fails(pull("oddconfig"), text)
    image = oci.Image([oci.Layer({"k": b"k"})])
    image.config.update({"config": None, "history": None, "unknown": {"a": [None]}})
    registry.repository("nulls", image.seal())
    succeeds(pull("nulls"), image)


# --- the site's rules ---

def test_site_rules():
    registry.repository("rules", small)
    result = agent.run(store := new_store(), f"{registry.name}/rules:1", config=config(f'[registries."{registry.name}"]\nblocked = true', elsewhere))
    result.store = store
    fails(result, f'this site does not allow registry "{registry.name}"')
    fails(pull("rules", settings=config("max_image_bytes = 10")), "the image has 1 MB, this site allows 1 MB")
    fails(pull("rules", settings=config("max_image_byte = 10")), "unknown key", 'did you mean "max_image_bytes"?')
    loose = config()
    os.chmod(loose, 0o666)
    fails(pull("rules", settings=loose), "can be written by others")


def test_an_agent_that_refuses_a_file():
    registry.repository("nofile", small)
    fails(pull("nofile", on_new_layer=lambda _: "no space left on device"), "no space left on device")


def test_no_space_is_said_with_both_numbers():
    image = oci.Image([oci.Layer({"s": b"s"})])
    image.manifest["layers"][0]["size"] = 1 << 49
    registry.repository("space", image.seal())
    fails(pull("space"), "the image store has", "free, the image needs")


# --- TLS ---

def make_certificates():
    directory = os.path.join(work, "tls")
    os.makedirs(directory)

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)
    for ca in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                "-subj", f"/CN=test {ca}", "-keyout", f"{ca}.key", "-out", f"{ca}.crt")

    def leaf(name, alternative, days="2"):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
                "-keyout", f"{name}.key", "-out", f"{name}.csr")
        with open(os.path.join(directory, f"{name}.ext"), "w") as file:
            file.write(f"subjectAltName={alternative}\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", days,
                "-extfile", f"{name}.ext", "-out", f"{name}.crt")
        return [os.path.join(directory, f"{name}.{end}") for end in ("crt", "key")]
    return {"directory": directory, "good": leaf("good", "IP:127.0.0.1"), "wrongname": leaf("wrongname", "DNS:example.org"),
            "expired": leaf("expired", "IP:127.0.0.1", "-1"),
            "selfsigned": [os.path.join(directory, f"ca.{end}") for end in ("crt", "key")]}


def test_tls():
    certificates = make_certificates()
    ca = os.path.join(certificates["directory"], "ca.crt")

    def trusting(server, file):
        return config(f'[registries."{server.name}"]\nca = "{file}"', elsewhere)
    server = Server(certificates["good"])
    server.repository("tls", small)
    succeeds(pull("tls", server=server, settings=trusting(server, ca)), small)
    fails(pull("tls", server=server, settings=config()), "TLS certificate is signed by an authority unknown here", "config.toml")
    fails(pull("tls", server=server, settings=trusting(server, os.path.join(certificates["directory"], "other.crt"))), "unknown here")
    fails(pull("tls", server=server, settings=trusting(server, "/nonexistent")), "cannot be read")
    server.repository("down", small, lambda h, *_: h.answer(302, extra={"Location": f"http://{elsewhere.name}/x"}) or True)
    fails(pull("down", server=server, settings=trusting(server, ca)), "redirects from https to")
    for kind, text in (("wrongname", "belongs to another host"), ("expired", "has expired"), ("selfsigned", "certificate")):
        other = Server(certificates[kind])
        other.repository("tls", small)
        fails(pull("tls", server=other, settings=trusting(other, ca) if kind != "selfsigned" else config()), text)
    fails(pull("good", settings=config("", elsewhere)), "does not speak TLS", "insecure = true")
    result = pull("tls", server=server, settings=config("", server))
    fails(result, "")


# --- concurrency and death ---

def test_two_at_once_convert_each_layer_once():
    image = big_image(2, layers=6)
    registry.repository("twice", image)
    store, settings = new_store(), config()
    runs = [agent.Import(store, f"{registry.name}/twice:1", config=settings) for _ in range(3)]
    results = [run.wait() for run in runs]
    for result in results:
        result.store = store
        succeeds(result, image)
    assert sum(len(r.published) for r in results) == 6, results


def test_killed_in_mid_pull_and_another_takes_over():
    image = big_image(4, layers=2)
    begun = []

    def slow(handler, kind, name):
        if kind != "blobs" or name == oci.digest(image.config_bytes) or len(begun) >= 2:
            return False
        begun.append(name)
        blob = image.blobs()[name]
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(blob)))
        handler.end_headers()
        handler.wfile.write(blob[:1_000_000])
        handler.wfile.flush()
        time.sleep(1.8)
        handler.close_connection = True
        return True
    registry.repository("killed", image, slow)
    store, settings = new_store(), config()
    first = agent.Import(store, f"{registry.name}/killed:1", config=settings)
    while len(begun) < 2:
        time.sleep(0.02)
    second = agent.Import(store, f"{registry.name}/killed:1", config=settings)
    time.sleep(0.5)
    first.kill()
    assert store.empty()
    result = second.wait()
    result.store = store
    succeeds(result, image)
    assert any("another job on this node converts" in line for line in result.progress), result
    assert not [n for n in store.names("images") + store.names("refs") if n.startswith(".")]


def test_a_stopped_holder_is_waited_for_without_a_busy_loop():
    image = big_image(1)
    registry.repository("held", image)
    store, settings = new_store(), config()
    import fcntl
    with open(os.path.join(store.path, "locks"), "r+b") as locks:
        offset = int.from_bytes(bytes.fromhex(image.layers[0].digest[7:])[:8], "little") >> 2
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, offset, 1, 0)
        fcntl.fcntl(locks, 37, lock)  # F_OFD_SETLK
        run = agent.Import(store, f"{registry.name}/held:1", config=settings)
        time.sleep(2)
        with open(f"/proc/{run.process.pid}/stat") as stat:
            ticks = sum(int(x) for x in stat.read().rsplit(")", 1)[1].split()[11:13])
        assert ticks / os.sysconf("SC_CLK_TCK") < 0.3, "it burns CPU while it waits"
        assert not run.result.done
    result = run.wait()
    result.store = store
    succeeds(result, image)


# --- a real registry ---

def test_docker_registry():
    port = Server().port + 7
    directory = tempfile.mkdtemp(dir=work)
    path = os.path.join(directory, "config.yml")
    with open(path, "w") as file:
        file.write(f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {directory}/data}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n")
    program = shutil.which("docker-registry") or shutil.which("registry")
    assert program, "docker-registry is not installed (packaging/install-deps)"
    children.append(subprocess.Popen([program, "serve", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    import urllib.error
    import urllib.request

    def send(method, url, data=b"", media_type="application/octet-stream"):
        request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": media_type})
        with urllib.request.urlopen(request) as answer:
            return answer.headers.get("Location")
    base = f"http://127.0.0.1:{port}/v2/"
    for _ in range(100):
        try:
            send("GET", base)
            break
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)

    def push(image, name):
        for digest, blob in image.blobs().items():
            if digest == image.digest:
                continue
            location = send("POST", f"{base}{name}/blobs/uploads/")
            send("PUT", location + ("&" if "?" in location else "?") + "digest=" + digest, blob)
        send("PUT", f"{base}{name}/manifests/1", image.bytes, image.media_type)

    class Address:
        name = f"127.0.0.1:{port}"
    settings = config("", Address)
    for docker in (False, True):
        image = oci.Image([oci.Layer({f"f{i}": noise.randbytes(1 << 20)}) for i in range(3)], docker=docker)
        push(image, "team/app")
        store = new_store()
        succeeds(pull("team/app", server=Address, settings=settings, store=store), image)
        result = succeeds(pull("team/app", server=Address, settings=settings, store=store), image)
        print(f"       warm import: {result.seconds * 1000:.0f} ms")
        fails(pull("team/app", "2", server=Address, settings=settings), "there is no such tag")
        fails(pull("team/none", server=Address, settings=settings), '"team/none"')


def all_tests():
    return [(name[5:].replace("_", " "), function) for name, function in globals().items() if name.startswith("test_")]
