"""Rows of tests/catalogue that no other case stands for: documents that are odd or wrong, and death at every step."""

import gzip
import json

import agent
import oci
from scene import config, elsewhere, fails, new_store, pull, registry, small, succeeds

ZSTD_LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"
PLAIN_LAYER = "application/vnd.oci.image.layer.v1.tar"


def zstd(data):
    """A frame of raw blocks: Python cannot compress so."""
    out = bytes.fromhex("28b52ffda0") + len(data).to_bytes(4, "little")
    blocks = [data[at:at + 100_000] for at in range(0, len(data), 100_000)]
    for number, block in enumerate(blocks, 1):
        out += ((len(block) << 3) | (number == len(blocks))).to_bytes(3, "little") + block
    return out


def layer_as(blob, files):
    layer = oci.Layer(files)
    layer.blob = blob(layer.tar)
    layer.digest = oci.digest(layer.blob)
    return layer


def with_settings(**settings):
    image = oci.Image([oci.Layer({"s": b"s"})])
    image.config["config"].update(settings)
    return image.seal()


def settings_in(result, image):
    record = result.store.record(image.digest[7:])
    offset, size = (int.from_bytes(record[at:at + 8], "little") for at in (24, 32))
    return record[offset:offset + size].split(b"\0")


def accepted(image, name="row"):
    registry.repository(name, image)
    return succeeds(pull(name), image)


def refused_document(document, *texts, media_type=oci.OCI_MANIFEST):
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    registry.repository("row").add_document(media_type, data, "1").blobs.update(small.blobs())
    fails(pull("row"), *texts)


def test_layers_of_all_compressions_in_one_image():
    image = oci.Image([layer_as(zstd, {"a": b"1" * 200_000}), layer_as(bytes, {"b": b"2"}), layer_as(lambda tar: gzip.compress(tar, 9), {"c": b"3"})])
    for entry, kind in zip(image.manifest["layers"], (ZSTD_LAYER, PLAIN_LAYER, oci.OCI_LAYER)):
        entry["mediaType"] = kind
    accepted(image.seal())


def test_a_label_that_lies_about_the_compression_does_no_harm():
    accepted(oci.Image([layer_as(zstd, {"a": b"1"}), layer_as(bytes, {"b": b"2"})]))  # both say that they are gzip


def test_an_index_with_other_machines_and_attestations_first():
    arm = oci.Image([oci.Layer({"a": b"arm"})], architecture="arm64")
    attestation = oci.Image([oci.Layer({"a": b"seal"})], architecture="unknown")
    data = oci.index([(attestation, "unknown/unknown"), (arm, "linux/arm64"), (small, "linux/amd64"), (attestation, "unknown/unknown")])
    registry.repository("row", small).add(arm).add(attestation).add_document(oci.OCI_INDEX, data, "1")
    succeeds(pull("row"), small)


def test_an_index_that_does_not_say_for_what_or_lies():
    registry.repository("row", small).add_document(oci.OCI_INDEX, oci.index([(small, None)]), "1")
    succeeds(pull("row"), small)
    arm = oci.Image([oci.Layer({"a": b"arm"})], architecture="arm64")
    registry.repository("row", arm).add_document(oci.OCI_INDEX, oci.index([(arm, "linux/amd64")]), "1")
    fails(pull("row"), "is built for linux/arm64, not for linux/amd64")


def test_an_index_of_20000_entries():
    refused_document(oci.index([(small, "linux/amd64")] * 20_000), "is longer than 4194304 bytes", media_type=oci.OCI_INDEX)
    refused_document(oci.index([(small, "linux/amd64")] * 2001), "lists more than 2000 images", media_type=oci.OCI_INDEX)


def test_null_layers_and_500_layers_and_empty_ones():
    image = oci.Image([])
    image.manifest["layers"] = None
    accepted(image.seal())
    layers = [oci.Layer({"x": b"1"}), oci.Layer({}), oci.Layer({"y": b"2"})]
    result = accepted(oci.Image([layers[i % 3] for i in range(500)]))
    assert len(result.published) == 3, result


def test_artifacts_and_configurations_that_are_none():
    manifest = json.loads(small.bytes)
    empty = {**manifest, "config": oci.descriptor("application/vnd.oci.empty.v1+json", b"{}")}
    refused_document(empty, "not a container image but an artifact")
    for data, text in ((b"", "is empty"), (b"[]", "is not a JSON object"), (b"{}", "has no rootfs")):
        document = {**manifest, "config": oci.descriptor(oci.OCI_CONFIG, data)}
        registry.repository("row").add_document(oci.OCI_MANIFEST, json.dumps(document).encode(), "1").blobs.update({oci.digest(data): data})
        fails(pull("row"), text)


def test_digests_and_sizes_of_every_wrong_form():
    manifest = json.loads(small.bytes)
    layer = manifest["layers"][0]
    hexadecimal = layer["digest"][7:]
    for digest, text in (("sha512:" + "0" * 128, "only sha256"), ("sha256:" + hexadecimal[:-1], "64 hexadecimal digits"), ("", "only sha256"),
                         ("sha256:" + hexadecimal[:-1] + "g", "lower-case"), ("sha256:" + hexadecimal[:-1] + '"', "lower-case"),
                         ("sha256:" + hexadecimal[:-1] + "\x1b", "lower-case"), ("--sha256:" + hexadecimal, "only sha256"),
                         ("sha256:" + "../" * 21 + "x", "lower-case"), (5, '"digest" is not a string')):
        refused_document({**manifest, "layers": [{**layer, "digest": digest}]}, text)
    without = {key: value for key, value in layer.items() if key != "size"}
    refused_document({**manifest, "layers": [without]}, "has no size")
    refused_document({**manifest, "layers": [{**layer, "size": 2**64}]}, '"size" is not a number')
    for size in (layer["size"] - 1, layer["size"] + 1, 0):
        refused_document({**manifest, "layers": [{**layer, "size": size}]}, "bytes")


def test_urls_and_embedded_data_of_a_layer_are_ignored():
    image = oci.Image([oci.Layer({"u": b"u"})])
    image.manifest["layers"][0].update(urls=[f"http://{elsewhere.name}/blob", "file:///etc/passwd"], data="bGllcw==")
    before = len(elsewhere.requests)
    accepted(image.seal())
    assert len(elsewhere.requests) == before


def test_every_variable_arrives_as_it_is():
    variables = [f"V{i}={i}" for i in range(5000)] + ["LD_PRELOAD=/evil.so", "SLURM_JOB_ID=1", "SCONTAINER_IMAGE=x", "BIG=" + "b" * 200_000, "TWO=1\n2"]
    image = with_settings(Env=variables + ["novalue", "=noname"])
    found = [line[4:].decode() for line in settings_in(accepted(image), image) if line.startswith(b"env=")]
    assert found == variables, set(found) ^ set(variables)


def test_settings_that_name_things_of_the_host_are_inert():
    image = with_settings(User="4294967296:nobody", Labels={"run": "$(reboot)", "a": "b" * 10_000}, Volumes={"/etc": {}, "/": {}},
                          Entrypoint=["/nothing", "x" * (1 << 20)], StopSignal="99", ExposedPorts={"0/tcp": {}}, Shell=["/bin/evil"])
    image.manifest["annotations"] = {"org.opencontainers.image.ref.name": "../../x"}
    result = accepted(image.seal())
    assert b"user=4294967296:nobody" in settings_in(result, image)


# --- death at every step ---

def test_an_import_that_is_killed_at_any_message_or_request_leaves_a_store_that_works():
    image = oci.Image([oci.Layer({f"f{i}": bytes([i]) * 5000}) for i in range(3)])
    whole = set(image_layers(image))
    for event in ("message", "request"):
        survived = False
        for number in range(1, 40):
            store = new_store()
            run = killed_at(event, number, image, store)
            run.wait()
            survived = run.process.wait(5) != -9
            consistent(store, whole)
            if survived:
                break
            registry.repository("killed-at", image)
            succeeds_in(store, image)
        assert survived and number > 5, f"{number - 1} {event}s"


def image_layers(image):
    return (oci.stored_as(layer.digest) + ".sqsh" for layer in image.layers)


def killed_at(event, number, image, store):
    """A run of `import` that dies when it has sent or asked so much."""
    count = [0]

    def counted(*_):
        count[0] += 1
        if count[0] == number:
            run.process.kill()
            run.process.wait()
        return False
    started = agent.threading.Event()

    def hook(*arguments):
        started.wait(5)
        return counted(*arguments)
    registry.repository("killed-at", image, *([hook] if event == "request" else []))
    run = agent.Import(store, f"{registry.name}/killed-at:1", config=config(), on_message=hook if event == "message" else None)
    started.set()
    return run


def consistent(store, whole):
    """Every name in the store stands for something complete."""
    assert set(store.layers()) <= whole, store.layers()
    for name in store.names("records"):
        assert set(store.layers()) == whole and store.record(name), name
    for name in store.names("names"):
        assert store.names("records"), name


def succeeds_in(store, image):
    result = pull("killed-at", store=store)
    succeeds(result, image)
