"""Registries that fail or lie, and damaged images: refused with one line, and nothing is stored."""
import gzip
import json
import os

from functools import partial
from errors_test import answered, refused
from images import CONFIG, LAYER, MANIFEST, Image, digest_of, named, special, tar_of, with_probe
from harness import add, equal, expect, test
from site_files import rules
from outcomes import outcome


def pull(cluster, golden, name):
    store = cluster.stores()
    refused(cluster, golden, cluster.srun("-w", "node01", "true", image=name))
    cluster.must_be_quiet(within=2, store=store)


STATUS = {
    "not_allowed_here": (401, {"code": "UNAUTHORIZED", "message": "authentication required"}),
    "forbidden": (403, {"code": "DENIED", "message": "requested access is denied"}),
    "gone": (404, {"code": "NAME_UNKNOWN", "message": "repository name not known to registry"}),
}
MAY_PASS = {
    "asked_too_often": (429, {"code": "TOOMANYREQUESTS", "message": "you have reached your pull rate limit"}),
    "broken": (500, {"code": "UNKNOWN", "message": "disk on fire"}),
}


def status(title, answer, cluster):
    cluster.faulty.answers[f"/v2/suites/{title}/manifests/1"] = answer
    pull(cluster, f"registry_{answer[0]}", f"{cluster.faulty.host}/suites/{title}:1")


for title, answer in STATUS.items():
    add(__name__, f"status_{answer[0]}_is_explained", partial(status, title, answer))


def publish_raw(cluster, repository, blob, archive_digest, claimed=None, size=None):
    """Publishes an image of one layer with the given descriptor and diffID."""
    faulty = cluster.faulty
    digest = claimed or digest_of(blob)
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [archive_digest]}}).encode()
    manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST,
                           "config": {"mediaType": CONFIG, "digest": digest_of(config), "size": len(config)},
                           "layers": [{"mediaType": LAYER, "digest": digest, "size": size or len(blob)}]}).encode()
    faulty.blobs.update({digest: blob, digest_of(config): config})
    faulty.manifests[f"{repository}:1"] = manifest
    return f"{faulty.host}/{repository}:1"


def archive(seed):
    data = tar_of([("file", os.urandom(5000)), ("seed", seed.encode())])
    return data, gzip.compress(data, 1)


@test
def blob_with_wrong_digest_is_refused(cluster):
    data, blob = archive("digest")
    pull(cluster, "wrong_digest", publish_raw(cluster, "suites/wrong-digest", blob, digest_of(data), claimed="sha256:" + "1" * 64))


@test
@outcome(69, "refused", "wrong diffID")
def archive_with_wrong_diff_id_is_refused(cluster):
    _, blob = archive("diff")
    pull(cluster, "wrong_diff_id", publish_raw(cluster, "suites/wrong-diff", blob, "sha256:" + "2" * 64))


@test
def blob_shorter_than_promised_is_refused(cluster):
    data = b"x" * 5000
    blob = gzip.compress(data, 1, mtime=0)
    pull(cluster, "short_blob", publish_raw(cluster, "suites/short", blob, digest_of(data), size=len(blob) + 100))


@test
def transient_failures_are_retried_then_explained(cluster):
    store = cluster.stores()
    name, layers = cluster.faulty.publish(with_probe("cut", [("data", os.urandom(50000))]))
    cluster.faulty.cut.add(layers[0])
    steps = {"cut_blob": cluster.start_srun("-w", "node01", "true", image=name)}
    for title, answer in MAY_PASS.items():
        cluster.faulty.answers[f"/v2/suites/{title}/manifests/1"] = answer
        steps[f"registry_{answer[0]}"] = cluster.start_srun("-w", "node01", "true", image=f"{cluster.faulty.host}/suites/{title}:1")
    for golden, step in steps.items():
        done = step.end()
        answered(golden, done)
        expect(": retrying in " in done.err, "it was not tried again", done)
    cluster.must_be_quiet(within=2, store=store)


@test
def blob_that_is_no_gzip_is_refused(cluster):
    blob = os.urandom(5000)
    pull(cluster, "no_gzip", publish_raw(cluster, "suites/no-gzip", blob, digest_of(blob)))


@test
@outcome(77, "refused", "gzip cut, wrong checksum, wrong length")
def gzip_that_ends_too_early_is_refused(cluster):
    data, blob = archive("early")
    pull(cluster, "gzip_too_short", publish_raw(cluster, "suites/gzip-short", blob[:-2000], digest_of(data)))


@test
@outcome(77, "refused", "gzip cut, wrong checksum, wrong length")
def gzip_with_wrong_checksum_is_refused(cluster):
    data, blob = archive("crc")
    pull(cluster, "gzip_wrong_checksum", publish_raw(cluster, "suites/gzip-crc", blob[:-8] + bytes(4) + blob[-4:], digest_of(data)))


TREES = {
    # outcome 87 contained: names that climb out
    "name_that_climbs_out": [("../../out", b"x")],
    # outcome 92 contained: hard links to the outside
    "hard_link_that_climbs_out": [special("link", b"1", target="../../etc/passwd")],
}


def bad_tree(title, entries, cluster):
    name, _ = cluster.faulty.publish(with_probe(title.replace("_", "-"), entries))
    pull(cluster, title, name)


for title, entries in TREES.items():
    add(__name__, f"layer_with_{title}_is_refused", partial(bad_tree, title, entries))


@test
def manifest_that_is_no_json_is_refused(cluster):
    cluster.faulty.manifests["suites/no-json:1"] = b"<html>welcome</html>"
    pull(cluster, "manifest_no_json", f"{cluster.faulty.host}/suites/no-json:1")


@test
@outcome(51, "refused", "only for other machines")
def image_for_another_machine_is_refused(cluster):
    config = json.dumps({"architecture": "arm64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}).encode()
    manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "layers": [],
                           "config": {"mediaType": CONFIG, "digest": digest_of(config), "size": len(config)}}).encode()
    cluster.faulty.blobs[digest_of(config)] = config
    cluster.faulty.manifests["suites/arm:1"] = manifest
    pull(cluster, "other_architecture", f"{cluster.faulty.host}/suites/arm:1")


# --- unusual but valid ----------------------------------------------------------------------------

@test
@outcome(88, "accepted", "absolute names")
def absolute_name_lands_inside(cluster):
    out = cluster.srun("/probe", "/abs/file", image=cluster.faulty.publish(with_probe("absolute", [("/abs/file", b"in\n")]))[0]).good()
    expect("\nin\n" in out, f"not there: {out}")


@test
@outcome(108, "accepted", "duplicates")
def duplicate_entry_keeps_the_last(cluster):
    out = cluster.srun("/probe", "/file", image=cluster.faulty.publish(with_probe("twice", [("file", b"one\n"), ("file", b"two\n")]))[0]).good()
    expect("\ntwo\n" in out and "one" not in out, f"not the last: {out}")


@test
def fitted_layer_and_repeated_layer_work(cluster):
    temporary, image = named("var/tmp", None), with_probe("leaning", [])
    temporary.mode = 0o1777
    image.layers[0] += [("var", None), temporary, ("usr", None), ("usr/sbin", None), ("usr/sbin/old", b"old\n"), ("sbin", "-> usr/sbin")]
    image.layers += [[], [("var/tmp/new", b""), ("sbin/new", b"new\n"), special("linked", b"1", target="usr/sbin/old"), ("none/.wh.x", b"")], []]
    out = cluster.srun("/probe", "/var/tmp", "/sbin", "/usr/sbin/new", "/linked", "/none", image=cluster.faulty.publish(image)[0]).good()
    for line in ("/var/tmp: mode 41777", "/sbin: mode 120777", "\nnew\n", "\nold\n", "/none: missing"):
        expect(line in out, f"no {line!r}: {out}")


@test
@outcome(83, "accepted", "300,000 tiny files")
def hundred_thousand_entries_work(cluster):
    entries = [(f"many/{number}", b"") for number in range(100_000)]
    out = cluster.srun("/probe", "/many/99999", image=cluster.faulty.publish(with_probe("many", entries))[0], timeout=60).good()
    expect("/many/99999: mode" in out, f"not there: {out[-300:]}")


@test
def broken_connection_is_resumed(cluster):
    name, layers = cluster.faulty.publish(with_probe("once", [("data", os.urandom(50000))]))
    cluster.faulty.cut.add(layers[0])
    gate_path = f"/v2/suites/once/blobs/{layers[0]}"
    running = cluster.start_srun("-w", "node01", "/probe", image=name)
    from command import await_true
    await_true(lambda: cluster.faulty.requests[gate_path] > 0, 10, "the blob was not asked for")
    cluster.faulty.cut.clear()
    running.end().good()


@test
def stored_image_starts_with_warning_while_registry_is_down(cluster):
    name, _ = cluster.faulty.publish(with_probe("down", []))
    cluster.srun("-w", "node01", "/probe", image=name).good()
    cluster.faulty.answers["/v2/suites/down/manifests/1"] = (503, {"code": "UNAVAILABLE", "message": "closed today"})
    done = cluster.srun("-w", "node01", "/probe", image=name)
    done.good()
    said = [line for line in done.messages() if line.startswith("warning: ") and "using the stored image" in line]
    equal(len(said), 1, "warnings", done)


@test
def image_by_digest_starts_without_registry(cluster):
    image = with_probe("pinned", [("pinned", b"")])
    cluster.faulty.publish(image)
    name = f"{cluster.faulty.host}/suites/pinned@{digest_of(image.parts()[0])}"
    cluster.srun("-w", "node01", "/probe", image=name).good()
    before = sum(cluster.faulty.requests.values())
    cluster.srun("-w", "node01", "/probe", image=name).good()
    equal(sum(cluster.faulty.requests.values()), before, "requests")


@test
def pull_missing_and_never_skip_registry_for_stored_image(cluster):
    name, _ = cluster.faulty.publish(with_probe("missing", []))
    cluster.srun("-w", "node01", "--container-pull=missing", "/probe", image=name).good()
    before = sum(cluster.faulty.requests.values())
    for policy in ("missing", "never"):
        cluster.srun("-w", "node01", f"--container-pull={policy}", "/probe", image=name).good()
    equal(sum(cluster.faulty.requests.values()), before, "requests")
    cluster.srun("-w", "node01", "/probe", image=name).good()
    expect(sum(cluster.faulty.requests.values()) > before, "without the option the registry is not asked whether the tag has moved")


@test
def pull_never_refuses_missing_image(cluster):
    name, _ = cluster.faulty.publish(with_probe("never", []))
    before = sum(cluster.faulty.requests.values())
    refused(cluster, "pull_never", cluster.srun("-w", "node01", "--container-pull=never", "/probe", image=name))
    equal(sum(cluster.faulty.requests.values()), before, "requests")


@test
def stored_layer_is_not_fetched_again(cluster):
    shared = [("shared", os.urandom(1000))]
    from images import probe
    first = Image("suites/share-1", [shared, [("probe", probe())]])
    second = Image("suites/share-2", [shared, [("probe", probe()), ("more", b"x")]])
    for image in (first, second):
        name, layers = cluster.faulty.publish(image)
        cluster.srun("-w", "node01", "/probe", image=name).good()
    counts = [count for path, count in cluster.faulty.requests.items() if path.endswith(layers[0])]
    equal(sum(counts), 1, "downloads of the layer that both images have")


# --- number of requests to a registry -------------------------------------------------------------

@test
def tag_is_resolved_once_per_job(cluster):
    name, _ = cluster.faulty.publish(with_probe("steps", []))
    path = "/v2/suites/steps/manifests/1"
    step = f"srun --container-image={name}"

    def asked(*steps):
        before = cluster.faulty.requests[path]
        cluster.run("salloc", "-Q", "-N1", "-w", "node01", "sh", "-ec", "sleep 1.1; " + "; ".join(steps)).good()
        return cluster.faulty.requests[path] - before

    cluster.srun("-w", "node01", "/probe", image=name).good()
    equal(asked(f"{step} /probe", f"{step} /probe", f"{step} /probe"), 1, "requests by three steps")
    equal(asked(f"{step} /probe", f"{step} /probe"), 1, "requests by the next job")
    expect(asked(f"{step} /probe", f"{step} --container-pull=always /probe") > 1, "--container-pull=always does not ask")
    equal(asked(f"{step} /probe", f"SLURM_SPANK_SCONTAINER_SINCE=x {step} /probe"), 2, "requests if the variable is damaged")
    with rules(cluster, "job_tag_ttl = 0\n"):
        equal(asked(f"{step} /probe", f"{step} /probe"), 2, "requests by two steps with job_tag_ttl = 0")
    batch = f"#!/bin/sh\nsleep 1.1\n{step} /probe\n{step} /probe\n"
    before = cluster.faulty.requests[path]
    cluster.batch(batch, "-w", "node01").good()
    equal(cluster.faulty.requests[path] - before, 1, "requests by the steps of a batch job")
