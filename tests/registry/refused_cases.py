"""Misbehaving registries and hostile documents: each is refused for the right reason and leaves
nothing behind."""

import json
import time

import agent
import hostile
import oci
from server import Server
from scene import big_image, config, elsewhere, fails, new_store, pull, registry, small, succeeds
from outcomes import outcome

# --- refused: layers that take too much, and similar ones that are accepted ---

def test_layer_over_limit_names_limit_and_does_not_blame_image():
    registry.repository("walked", oci.Image([oci.Layer({}, hostile.walked_again(20_000) + hostile.END)]))
    result = pull("walked")
    fails(result, "its paths and links lead over more than", "steps", "(hint: split the layer, or use shorter links)")
    assert "corrupt" not in str(result.failed), result
    registry.repository("deep-paths", oci.Image([oci.Layer({}, hostile.deep_paths(1000) + hostile.END)]))
    result = pull("deep-paths")
    fails(result, "names, links and attributes need more than", "MiB of memory", "(hint: split the layer)")
    assert "corrupt" not in str(result.failed), result


def test_file_with_many_attributes_is_pulled():
    image = oci.Image([oci.Layer({}, hostile.attributes(1000, 20).file(b"f").end())])
    registry.repository("attributes", image)
    succeeds(pull("attributes"), image)


# --- refused: the registry ---

@outcome(18, "refused", "no such host, refused connection, no route")
def test_unknown_host_and_refused_connection_are_reported():
    store = new_store()
    result = agent.run(store, "no-such-host.invalid/x:1", config=config())
    result.store = store
    fails(result, 'registry "no-such-host.invalid"', "no such host")
    closed = Server()
    closed.shutdown()
    closed.server_close()
    fails(pull("x", server=closed, settings=config("", closed)), "connection refused", closed.name)


@outcome(25, "refused", "403, 404 of tag, repository, blob")
@outcome(68, "refused", "blobs, config and manifest missing, tampered, swapped, cut, appended")
def test_missing_repository_tag_or_blob_is_reported():
    fails(pull("nowhere"), 'repository "nowhere" does not exist')
    repository = registry.repository("part", small)
    fails(pull("part", "2"), 'no tag "2" in repository "part" (hint: it has: 1)', "part:2")
    for tag in ("22.04", "22.10", "24.03-py3", "24.04-py3", "24.05-py3", "latest"):
        repository.add(small, tag)
    fails(pull("part", "24.3-py3"), 'no tag "24.3-py3"', "the nearest of 7 tags: 24.03-py3, 24.04-py3, 24.05-py3, ")
    fails(pull("part", "@sha256:" + "0" * 64), "no such tag or digest")
    registry.repository("mute", small, lambda h, kind, _: kind == "manifests" and (h.answer(404) or True))
    registry.paths.append((r"/v2/mute/tags/list.*", lambda h: h.answer(404)))
    fails(pull("mute"), "not found", "check repository and tag")
    del repository.blobs[small.layers[0].digest]
    fails(pull("part"), f'layer "{small.layers[0].digest}"', "missing in the registry")
    repository.add(small)
    del repository.blobs[oci.digest(small.config_bytes)]
    fails(pull("part"), "image configuration", "missing in the registry")


@outcome(21, "refused", "401 without credentials; Basic")
@outcome(24, "refused", "401 whatever the token")
@outcome(25, "refused", "403, 404 of tag, repository, blob")
def test_401_and_403_are_reported():
    registry.repository("basic", small, lambda h, *_: h.answer_json(401, "{}", {"WWW-Authenticate": 'Basic realm="x"'}) or True)
    fails(pull("basic"), "login required", f"log in: scontainer login {registry.name}")
    registry.repository("forbidden", small, lambda h, *_: h.answer(403) or True)
    fails(pull("forbidden"), 'access to repository "forbidden" is forbidden')
    challenge = {"WWW-Authenticate": f'Bearer realm="http://{registry.name}/useless"'}
    registry.paths.append((r"/useless\?.*", lambda h: h.answer_json(200, '{"token":"x"}')))
    registry.repository("never", small, lambda h, *_: h.answer_json(401, "{}", challenge) or True)
    fails(pull("never"), "is private or does not exist")
    assert len(registry.seen("/useless?")) <= 3


@outcome(29, "refused", "token servers of every wrong form")
@outcome(30, "refused", "realm of a file, in the clear, foreign")
def test_bad_token_servers_are_refused():
    answers = {"500": lambda h: h.answer(500), "html": lambda h: h.answer(200, b"<html>", "text/html"),
               "empty": lambda h: h.answer_json(200, '{"token":""}'), "newline": lambda h: h.answer_json(200, '{"token":"a\\r\\nX: y"}'),
               "huge": lambda h: h.answer_json(200, '{"token":"' + "a" * 10_000_000 + '"}')}
    for name, answer in answers.items():
        registry.paths.append((rf"/bad{name}\?.*", answer))
        challenge = {"WWW-Authenticate": f'Bearer realm="http://{registry.name}/bad{name}"'}
        registry.repository("badtoken", small, lambda h, *_: h.answer_json(401, "{}", challenge) or True)
        result = fails(pull("badtoken"), "badtoken")
        assert name in ("500", "huge") or "login server" in result.failed, result
    for realm, name in (("file:///etc/passwd",) * 2, (f"http://{elsewhere.name}/token", elsewhere.name), ("gopher://x/",) * 2):
        before = len(elsewhere.requests)
        registry.repository("badrealm", small, lambda h, *_: h.answer_json(401, "{}", {"WWW-Authenticate": f'Bearer realm="{realm}"'}) or True)
        fails(pull("badrealm", settings=config("", registry)), "login server", name)
        assert len(elsewhere.requests) == before


@outcome(27, "refused", "429 for ever")
@outcome(28, "accepted", "500 once; for ever is refused")
def test_endless_429_and_500_and_too_long_waits_are_refused():
    registry.repository("limited", small, lambda h, *_: h.answer(429, extra={"Retry-After": "0"}) or True)
    before = len(registry.requests)
    fails(pull("limited"), "too many requests", "use a mirror")
    assert len(registry.requests) - before == 4
    registry.repository("broken", small, lambda h, *_: h.answer(500, extra={"Retry-After": "0"}) or True)
    fails(pull("broken"), "the registry failed with status 500")
    registry.repository("patience", small, lambda h, *_: h.answer(503, extra={"Retry-After": "86400"}) or True)
    assert fails(pull("patience"), "retry after 86400 s").seconds < 2


@outcome(34, "refused", "connection reset every time")
def test_connection_reset_every_time_is_refused():
    image = big_image(1)
    registry.repository("always", image, lambda h, kind, name: kind == "blobs" and name == image.layers[0].digest and
                        (h.part_then_reset(image.layers[0].blob, 10) or True))
    fails(pull("always"), "closed the connection during the transfer", "gave up after 4 attempts")


@outcome(32, "refused", "redirects in a loop, to nowhere, to files, in the clear, to this node")
def test_redirect_loops_and_forbidden_targets_are_refused():
    loop = lambda h, kind, name: h.answer(302, extra={"Location": h.path}) or True
    registry.repository("loop", small, loop)
    fails(pull("loop"), "redirects more than 10 times")
    for target, text in (("file:///etc/passwd", "not an http or https URL"), ("http://169.254.169.254/x", "a local address of this node"),
                         (None, "without a location")):
        registry.repository("target", small, lambda h, *_: h.answer(302, extra={"Location": target} if target else {}) or True)
        fails(pull("target"), text)


@outcome(20, "refused", "captive portal")
def test_html_instead_of_json_is_refused():
    registry.repository("portal", small, lambda h, *_: h.answer(200, b"<!doctype html><html>log in</html>", "text/html") or True)
    fails(pull("portal"), "is an HTML page, not JSON")


@outcome(40, "refused", "hung headers, hung body")
def test_hung_headers_and_body_are_refused():
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
    assert fails(pull("hungbody"), "stopped sending").seconds < 15
    registry.repository("hunghead", small, lambda h, *_: time.sleep(12) or True)
    assert fails(pull("hunghead"), "stopped sending").seconds < 15


@outcome(41, "refused", "endless manifest, headers")
@outcome(42, "refused", "manifest of more than 4 MiB")
@outcome(63, "refused", "200,000 nested arrays; 16 MiB")
def test_endless_manifest_and_headers_are_refused():
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

# --- refused: bytes that do not match their description ---

@outcome(35, "refused", "body too short or too long")
@outcome(68, "refused", "blobs, config and manifest missing, tampered, swapped, cut, appended")
def test_wrong_bytes_in_a_layer_are_refused():
    image = big_image(1)
    blob, name_of = image.layers[0].blob, image.layers[0].digest
    for data, text in ((blob[:-1] + b"X", "has digest"), (b"\0" * len(blob), "has digest"), (blob[:-7], "bytes instead of"),
                       (blob + b"more", "is longer than"), (small.layers[0].blob, "bytes instead of")):
        registry.repository("tampered", image).blobs[name_of] = data
        fails(pull("tampered"), name_of, text)


@outcome(35, "refused", "body too short or too long")
def test_truncated_blob_with_right_length_header_is_refused():
    image = big_image(1)
    blob, name_of = image.layers[0].blob, image.layers[0].digest

    def short(handler, kind, name):
        if kind != "blobs" or name != name_of:
            return False
        handler.answer(200, blob[:500_000], length=len(blob))
        handler.close_connection = True
        return True
    registry.repository("short", image, short)
    fails(pull("short"), "closed the connection during the transfer")


@outcome(68, "refused", "blobs, config and manifest missing, tampered, swapped, cut, appended")
def test_wrong_manifest_and_config_bytes_are_refused():
    repository = registry.repository("swapped", small)
    other = oci.Image([oci.Layer({"z": b"z"})])
    repository.manifests[small.digest] = (small.media_type, other.bytes)
    fails(pull("swapped", "@" + small.digest), "has digest", other.digest)
    repository.add(small)
    repository.blobs[oci.digest(small.config_bytes)] = small.config_bytes.replace(b"hello", b"hullo").replace(b"srv", b"svr")
    fails(pull("swapped"), "image configuration", "has digest")


@outcome(60, "refused", "wrong JSON types")
@outcome(69, "refused", "wrong diffID")
def test_wrong_diff_id_or_number_of_them_is_refused():
    image = oci.Image([oci.Layer({"q": b"q"})])
    image.config["rootfs"]["diff_ids"] = ["sha256:" + "0" * 64]
    registry.repository("diff", image.seal())
    fails(pull("diff"), "its uncompressed digest is", image.layers[0].diff_id)
    image.config["rootfs"]["diff_ids"] = []
    registry.repository("diff", image.seal())
    fails(pull("diff"), "describes 0 layers, the manifest 1")


@outcome(86, "refused", "zip, text, random, a program")
def test_layer_that_is_no_archive_is_refused():
    layer = oci.Layer({"a": b"a"})
    layer.blob = b"this is not gzip at all, and no tar either" * 100
    layer.digest = oci.digest(layer.blob)
    registry.repository("garbage", oci.Image([layer]))
    fails(pull("garbage"), "convert layer", layer.digest)


@outcome(51, "refused", "only for other machines")
def test_wrong_platform_is_refused_before_any_layer():
    arm = oci.Image([oci.Layer({"a": b"arm"})], architecture="arm64")
    registry.repository("arm", arm)
    fails(pull("arm"), "is built for linux/arm64, not for linux/amd64")
    data = oci.index([(arm, "linux/arm64"), (arm, "linux/arm/v7")])
    registry.repository("armindex", arm).add_document(oci.OCI_INDEX, data, "1")
    fails(pull("armindex"), "has no image for linux/amd64, only for linux/arm/v7, linux/arm64")
    assert not registry.seen(arm.layers[0].digest)


@outcome(49, "refused", "schema 1")
@outcome(53, "refused", "empty index, absent manifest")
@outcome(57, "refused", "foreign, unknown, encrypted layers")
@outcome(58, "refused", "artifacts and configurations that are none")
@outcome(61, "refused", "truncated, trailing, BOM, invalid UTF-8, NUL")
@outcome(62, "refused", "keys given twice")
@outcome(63, "refused", "200,000 nested arrays; 16 MiB")
@outcome(64, "refused", "manifest and index at once; contradictions; schemaVersion 3")
@outcome(65, "refused", "sizes of every wrong form")
@outcome(66, "refused", "digests of every wrong form")
def test_documents_that_are_no_images_are_refused():
    manifest = json.loads(small.bytes)
    index = json.loads(oci.index([(small, "linux/amd64")]))
    artifact = {**manifest, "config": {**manifest["config"], "mediaType": "application/vnd.cncf.helm.config.v1+json"}}
    layer = manifest["layers"][0]

    def with_layer(**changes):
        return {**manifest, "layers": [{**layer, **changes}]}
    documents = [
        (small.bytes.replace(b'{"schemaVersion": 2', b'{"schemaVersion": 2, "schemaVersion": 2', 1), "is given twice"),
        ({**manifest, "manifests": index["manifests"]}, "both a manifest and an index"),
        ({**manifest, "mediaType": oci.OCI_INDEX}, "contains layers"),
        ({"schemaVersion": 1, "fsLayers": [], "name": "x"}, "schema 1"),
        ({**manifest, "schemaVersion": 3}, "schemaVersion 3"),
        (artifact, "is not a container image but an artifact"),
        (with_layer(mediaType="application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"), "(foreign) layer"),
        (with_layer(mediaType="application/vnd.oci.image.layer.v1.tar+gzip+encrypted"), "encrypted"),
        (with_layer(mediaType="text/plain"), "unknown type"),
        (with_layer(size=-1), '"size" is not a number'), (with_layer(size="5"), '"size" is not a number'),
        (with_layer(size=2**63 - 1), "is invalid"), (with_layer(size=1.5), '"size" is not a number'),
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


@outcome(53, "refused", "empty index, absent manifest")
@outcome(54, "refused", "index 64 deep, of 20,000 entries; in an index is accepted")
def test_indexes_nested_too_deep_or_without_manifests_are_refused():
    repository = registry.repository("deep", small)
    data = oci.index([(small, "linux/amd64")])
    for _ in range(64):
        repository.add_document(oci.OCI_INDEX, data, oci.digest(data))
        data = json.dumps({"schemaVersion": 2, "manifests": [oci.descriptor(oci.OCI_INDEX, data)]}).encode()
    repository.add_document(oci.OCI_INDEX, data, "1")
    fails(pull("deep"), "nested too deep")
    other = oci.Image([oci.Layer({"n": b"n"})])
    registry.repository("absent").add_document(oci.OCI_INDEX, oci.index([(other, "linux/amd64")]), "1")
    fails(pull("absent"), "no such tag or digest", other.digest)


@outcome(59, "accepted", "null and unknown fields")
@outcome(60, "refused", "wrong JSON types")
@outcome(61, "refused", "truncated, trailing, BOM, invalid UTF-8, NUL")
def test_invalid_configurations_are_refused():
    for change, text in (({"rootfs": None}, "has no rootfs"), ({"config": []}, '"config" is not an object'),
                         ({"config": {"Env": "PATH"}}, '"Env" is not an array'), ({"config": {"Env": [1]}}, "not a string"),
                         ({"config": {"Cmd": ["a\0b"]}}, "NUL"), ({"rootfs": {"diff_ids": [None]}}, "not a string"),
                         ({"rootfs": {"diff_ids": ["sha256:x"]}}, "64 hexadecimal digits")):
        image = oci.Image([oci.Layer({"k": b"k"})])
        image.config.update(change)
        registry.repository("oddconfig", image.seal())
        fails(pull("oddconfig"), text)
    image = oci.Image([oci.Layer({"k": b"k"})])
    image.config.update({"config": None, "history": None, "unknown": {"a": [None]}})
    registry.repository("nulls", image.seal())
    succeeds(pull("nulls"), image)
