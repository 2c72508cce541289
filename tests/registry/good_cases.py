"""Successful pulls, and errors that heal on their own."""

import contextlib
import json
import os
import re
import struct
import time
from email.utils import formatdate

import agent
import oci
from server import Server
from scene import Skipped, big_image, config, elsewhere, expiring, new_store, noise, of_a_job, once, pull, registry, small, succeeds, wait_for
from outcomes import outcome

# --- successful pulls ---

@outcome(48, "accepted", "OCI, Docker, lists, mixed layers, zstd")
def test_oci_image_pull_writes_record_and_reference():
    registry.repository("good", small)
    result = succeeds(pull("good"), small)
    assert result.progress and result.progress[0].startswith(f"pulling {registry.name}/good:1: 0 of 1 layers, 0 of ") and " MB" not in result.progress[0], result
    assert re.fullmatch(f"pulled {registry.name}/good:1: \\d+ (k?)B in 0\\.\\d s, 1 of 1 layers", result.progress[-1]), result
    assert result.store.ref(f"{registry.name}/good:1").startswith(small.digest + " ")
    assert result.store.names("public") == [small.digest[7:]]
    with open(os.path.join(result.store.path, "public", small.digest[7:]), "rb") as file:
        described = file.read()
    assert b"\0platform=linux/amd64\0bytes=" in described and b"\0workdir=/srv\0" in described, described
    record = result.store.record(small.digest[7:])
    magic, layers = struct.unpack_from("<8sI", record)
    assert magic == b"SPCIMG2\0" and layers == 1 and abs(result.store.public_until(small) - time.time() - 3600) < 60
    assert record[72:104].hex() == oci.stored_as(small.layers[0].digest)
    offset, size = struct.unpack_from("<QQ", record, 24)
    settings = record[offset:offset + size].split(b"\0")
    assert b"env=PATH=/usr/bin" in settings and b"workdir=/srv" in settings and b"cmd=/bin/sh" in settings, settings
    offset, size = struct.unpack_from("<QQ", record, 40)
    assert record[offset:offset + size] == small.bytes
    offset, size = struct.unpack_from("<QQ", record, 56)
    assert record[offset:offset + size] == small.config_bytes


@outcome(48, "accepted", "OCI, Docker, lists, mixed layers, zstd")
def test_docker_schema_2_images_and_lists_are_pulled():
    image = oci.Image([oci.Layer({"a": b"1"}), oci.Layer({"b": b"2"})], docker=True)
    arm = oci.Image([oci.Layer({"c": b"3"})], docker=True, architecture="arm64")
    repository = registry.repository("docker", image).add(arm)
    repository.add_document(oci.DOCKER_LIST, oci.index([(arm, "linux/arm64"), (image, "linux/amd64")], oci.DOCKER_LIST), "list")
    succeeds(pull("docker"), image)
    result = succeeds(pull("docker", "list"), image)
    assert len(result.store.layers()) == 2
    succeeds(pull("docker", "list", platform="linux/arm64"), arm)


@outcome(54, "refused", "index 64 deep, of 20,000 entries; in an index is accepted")
def test_nested_index_is_followed():
    inner = oci.index([(small, "linux/amd64")])
    outer = json.dumps({"schemaVersion": 2, "manifests": [oci.descriptor(oci.OCI_INDEX, inner)]}).encode()
    registry.repository("nested", small).add_document(oci.OCI_INDEX, inner, oci.digest(inner)).add_document(oci.OCI_INDEX, outer, "index")
    succeeds(pull("nested", "index"), small)


def test_pull_by_digest_sends_no_request_the_second_time():
    registry.repository("digest", small)
    store = new_store()
    succeeds(pull("digest", "@" + small.digest, store=store), small)
    before = len(registry.requests)
    result = succeeds(pull("digest", "@" + small.digest, store=store), small)
    assert len(registry.requests) == before and not result.progress


def test_image_pulled_by_tag_gets_a_digest_name_when_started_by_it():
    registry.repository("by-both", small)
    store, name = new_store(), f"{registry.name}/by-both@{small.digest}"
    succeeds(pull("by-both", store=store), small)
    before = len(registry.requests)
    succeeds(pull("by-both", "@" + small.digest, store=store), small)
    assert len(registry.requests) == before
    assert store.ref(name).startswith(small.digest + " ")


@outcome(55, "accepted", "no layers, null layers")
@outcome(56, "accepted", "500 layers, one layer many times, empty ones")
def test_repeated_layer_and_no_layers_are_pulled():
    layer = oci.Layer({"x": b"y"})
    many = oci.Image([layer] * 50)
    registry.repository("fifty", many)
    assert len(succeeds(pull("fifty"), many).published) == 1
    none = oci.Image([])
    registry.repository("none", none)
    succeeds(pull("none"), none)


def test_unchanged_tag_costs_one_head_request():
    registry.repository("warm", small)
    store = new_store()
    succeeds(pull("warm", store=store), small)
    before = len(registry.requests)
    result = succeeds(pull("warm", store=store), small)
    new = registry.requests[before:]
    assert [r[0] for r in new] == ["HEAD"] and not result.progress, new


def test_unchanged_index_costs_one_head_request():
    data = oci.index([(small, "linux/amd64")])
    registry.repository("warmindex", small).add_document(oci.OCI_INDEX, data, "index")
    store = new_store()
    succeeds(pull("warmindex", "index", store=store), small)
    before = len(registry.requests)
    succeeds(pull("warmindex", "index", store=store), small)
    assert [r[0] for r in registry.requests[before:]] == ["HEAD"]


@outcome(39, "accepted", "tag moves between HEAD and GET")
def test_moved_tag_is_followed():
    other = oci.Image([small.layers[0], oci.Layer({"new": b"1"})])
    repository = registry.repository("moved", small)
    store = new_store()
    succeeds(pull("moved", store=store), small)
    repository.add(other, "1")
    result = succeeds(pull("moved", store=store), other)
    assert len(result.published) == 1, "the common layer was brought again"


def test_pull_missing_and_tag_ttl_send_no_request():
    registry.repository("missing", small)
    store = new_store()
    succeeds(pull("missing", store=store, pull="missing"), small)
    before = len(registry.requests)
    succeeds(pull("missing", store=store, pull="missing"), small)
    succeeds(pull("missing", store=store, settings=config("tag_ttl = 60")), small)
    assert len(registry.requests) == before
    succeeds(pull("missing", store=store, pull="always"), small)
    assert len(registry.requests) > before


def test_later_steps_of_a_job_send_no_request():
    repository = registry.repository("steps", small)
    store = new_store()
    succeeds(pull("steps", store=store), small)
    job = [f"since={int(time.time())}"]
    time.sleep(1.1)

    def requests(image, more, **options):
        before = len(registry.requests)
        succeeds(pull("steps", store=store, more=more, **options), image)
        return len(registry.requests) - before

    assert requests(small, job) == 1, "the job's first step does not ask"
    other = big_image(1)
    repository.add(other, "1")
    assert requests(small, job) == 0, "the next one asks"
    assert requests(small, of_a_job()) == 0, "one of another job that was submitted before asks"
    assert requests(other, of_a_job(submitted=0)) > 0
    assert requests(other, of_a_job(), settings=config("job_tag_ttl = 0")) == 1
    assert requests(other, []) == 1


def test_unreachable_registry_is_a_warning_for_public_image():
    server = Server()
    server.repository("gone", small)
    store, settings = new_store(), config("", server)
    succeeds(pull("gone", store=store, server=server, settings=settings), small)
    server.shutdown()
    server.server_close()
    result = succeeds(pull("gone", store=store, server=server, settings=settings), small)
    assert len(result.warnings) == 1 and "connection refused" in result.warnings[0] and "using the stored image" in result.warnings[0], result


def test_image_public_no_longer_is_requested_again():
    repository = registry.repository("ttl", small)
    store, settings = new_store(), config("public_ttl = 0")
    succeeds(pull("ttl", store=store, settings=settings), small)
    before = len(registry.requests)
    succeeds(pull("ttl", store=store, settings=settings, pull="missing"), small)
    assert [r[0] for r in registry.requests[before:]] == ["HEAD"]
    repository.hooks.append(lambda h, kind, name: h.answer(403) or True)
    result = pull("ttl", store=store, settings=settings, pull="missing")
    assert result.failed and "is forbidden" in result.failed, result


@outcome(22, "accepted", "anonymous bearer flow")
@outcome(23, "accepted", "token expires in mid-pull")
def test_anonymous_bearer_token_is_renewed_during_pull():
    image = big_image(1, layers=3)
    tokens = set()  # valid tokens; each expires twice

    def give(handler):
        token = f"token{len(registry.requests)}"
        tokens.add(f"Bearer {token}")
        handler.answer_json(200, json.dumps({"token": token}))

    def guard(handler, kind, name):
        uses = guard.uses = getattr(guard, "uses", 0) + 1
        if uses in (4, 8):
            tokens.clear()
        if handler.headers.get("Authorization") not in tokens:
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


@outcome(23, "accepted", "token expires in mid-pull")
def test_expired_token_is_renewed_where_it_was_given():
    image = big_image(5, layers=5)
    state = expiring("moved", image)
    succeeds(pull("moved"), image)
    assert state["given"] >= 2 and state["refusals"] == 0, state


@outcome(31, "accepted", "blob redirected to a CDN")
def test_redirect_to_another_origin_gets_no_token():
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


def test_relative_redirect_is_followed():
    registry.paths.append((r"/moved/(.*)", lambda h: h.serve_bytes(small.blobs()[h.path[7:]])))
    registry.repository("relative", small, lambda h, kind, name: kind == "blobs" and (h.answer(302, extra={"Location": f"/moved/{name}"}) or True))
    succeeds(pull("relative"), small)

# --- recovery ---

@outcome(26, "accepted", "429 with Retry-After")
def test_429_with_retry_after_waits_and_is_reported():
    for value in ("1", formatdate(time.time() + 2, usegmt=True), None):
        hook = once(lambda h, kind, name: h.answer(429, extra={"Retry-After": value} if value else {}) or True)
        registry.repository("slowdown", small, hook)
        result = succeeds(pull("slowdown"), small)
        assert any("too many requests" in line and "retrying in" in line for line in result.progress), result


@outcome(28, "accepted", "500 once; for ever is refused")
def test_single_server_error_is_retried():
    for status in (500, 502, 503):
        registry.repository("flaky", small, once(lambda h, kind, name: h.answer(status) or True))
        succeeds(pull("flaky"), small)


@outcome(33, "accepted", "connection reset once")
def test_interrupted_blob_is_resumed():
    image = big_image()
    hook = once(lambda h, kind, name: kind == "blobs" and name == image.layers[0].digest and
                (h.part_then_reset(image.layers[0].blob, 3_000_000) or True))
    registry.repository("reset", image, hook)
    before = len(registry.requests)
    succeeds(pull("reset"), image)
    ranges = [r[2].get("Range") for r in registry.requests[before:] if "Range" in r[2]]
    assert ranges == ["bytes=3000000-"], ranges


@outcome(36, "accepted", "no length; Range ignored; wrong range; 416")
def test_interrupted_blob_restarts_without_valid_range():
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


def processors_of(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list:"))


def test_import_and_children_use_configured_processors():
    seen, started, runs, first = set(), [], [], min(os.sched_getaffinity(0))
    if len(os.sched_getaffinity(0)) < 2:
        raise Skipped("one processor")

    def look(handler, kind, name):
        if kind == "blobs" and name == small.layers[0].digest:
            def writers():
                return [writer.pid for writer in list(runs[0].writers.values()) if writer.poll() is None] if runs else []
            # A writer chooses its processors when it has begun.
            wait_for(lambda: writers() and all(processors_of(writer) == str(first) for writer in writers()))
            started.extend(writers())
            seen.update(processors_of(process) for process in [runs[0].process.pid, *started])
        return False
    registry.repository("processors", small, look)
    store = new_store()
    runs.append(agent.Import(store, f"{registry.name}/processors:1", config=config("import_cpus = 1")))
    result = runs[0].wait()
    result.store = store
    succeeds(result, small)
    assert started and seen == {str(first)}, (started, seen)


def memory_of(run):
    """Returns the anonymous memory in bytes of an import and its layer-writers."""
    total = 0
    for one in [run.process.pid, *(writer.pid for writer in run.writers.values() if writer.poll() is None)]:
        with contextlib.suppress(OSError), open(f"/proc/{one}/status", encoding="ascii") as status:
            total += sum(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))
    return total


def test_import_with_little_memory_converts_fewer_layers_at_a_time():
    image = oci.Image([oci.Layer({f"data{i}": noise.randbytes(3 << 20)}) for i in range(5)])
    for memory, most in (("64M", 1), ("96M", 2), ("160M", 4)):
        at_once, underway, used, runs = [], set(), [], []

        def look(handler, kind, name):
            if kind != "blobs" or name not in {layer.digest for layer in image.layers}:
                return False
            underway.add(name)
            wait_for(lambda: runs and (at_once or len(underway) >= most))
            time.sleep(0.3)  # a request above the limit would arrive
            at_once.append(len(underway))
            used.append(memory_of(runs[0]))
            underway.discard(name)
            return False
        registry.repository(f"memory{most}", image, look)
        store = new_store()
        runs.append(agent.Import(store, f"{registry.name}/memory{most}:1", config=config(f'import_memory = "{memory}"\nmax_parallel_layers = 4')))
        result = runs[0].wait()
        result.store = store
        succeeds(result, image)
        assert max(at_once) == most, (memory, at_once)
        assert max(used) < int(memory[:-1]) << 20, (memory, used)


@outcome(40, "refused", "hung headers, hung body")
def test_slow_blob_is_not_a_stall():
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
    # One line at once, one after two seconds, then less and less often: they stay in the job's
    # output.
    assert (len(result.progress) == 3 or result.seconds > 5) and result.progress[-1].startswith("pulled "), result


@outcome(36, "accepted", "no length; Range ignored; wrong range; 416")
def test_chunked_blob_without_length_is_pulled():
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


def timing_lines(result):
    return [line for line in result.progress if line.startswith("import ")]


def test_import_times_are_reported_on_request():
    image = big_image(2, layers=2)
    late = lambda h, kind, _: kind == "blobs" and time.sleep(0.3)
    registry.repository("timed", image, late)
    result = succeeds(pull("timed", more=["verbose=yes"]), image)
    assert len(timing_lines(result)) == 1, result
    numbers = re.fullmatch(r"import ([\d.]+) s: resolve ([\d.]+), fetch ([\d.]+) \(2 layers, 4\.2 MB\), wait for the converter ([\d.]+), "
                           r"verify and publish ([\d.]+), wait for other imports ([\d.]+); longest: layer [12] \(2\.1 MB\), "
                           r"bound by the link: link ([\d.]+), inflate ([\d.]+), write ([\d.]+)", timing_lines(result)[0])
    assert numbers, timing_lines(result)
    total, resolve, fetch, convert, publish, others, link, inflate, write = map(float, numbers.groups())
    assert link >= 0.25 and link + inflate + write <= total, numbers[0]
    assert abs(total - (resolve + fetch + convert + publish + others)) < 0.04, numbers[0]
    assert fetch >= 0.3 and resolve >= 0.3 and total <= result.seconds + 0.01, numbers[0]
    again = succeeds(pull("timed", store=result.store, more=["verbose=yes"]), image)
    assert timing_lines(again)[0].endswith("s: all layers present"), again
    assert not timing_lines(succeeds(pull("timed"), image))
