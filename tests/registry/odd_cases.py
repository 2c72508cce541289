"""Unusual or invalid documents, and an import that is killed at every step."""

import gzip
import json

import agent
import oci
from scene import config, elsewhere, fails, new_store, pull, registry, small, succeeds
from outcomes import outcome

ZSTD_LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"
PLAIN_LAYER = "application/vnd.oci.image.layer.v1.tar"


def zstd(data):
    """Returns a frame of raw blocks, as Python has no zstd compressor."""
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


@outcome(48, "accepted", "OCI, Docker, lists, mixed layers, zstd")
def test_image_with_layers_of_all_compressions_is_pulled():
    image = oci.Image([layer_as(zstd, {"a": b"1" * 200_000}), layer_as(bytes, {"b": b"2"}), layer_as(lambda tar: gzip.compress(tar, 9), {"c": b"3"})])
    for entry, kind in zip(image.manifest["layers"], (ZSTD_LAYER, PLAIN_LAYER, oci.OCI_LAYER)):
        entry["mediaType"] = kind
    accepted(image.seal())


@outcome(81, "accepted", "label and data disagree")
def test_label_with_wrong_compression_is_ignored():
    # Both claim to be gzip.
    accepted(oci.Image([layer_as(zstd, {"a": b"1"}), layer_as(bytes, {"b": b"2"})]))


@outcome(50, "accepted", "other machines and attestations first")
def test_index_with_other_platforms_and_attestations_first_works():
    arm = oci.Image([oci.Layer({"a": b"arm"})], architecture="arm64")
    attestation = oci.Image([oci.Layer({"a": b"seal"})], architecture="unknown")
    data = oci.index([(attestation, "unknown/unknown"), (arm, "linux/arm64"), (small, "linux/amd64"), (attestation, "unknown/unknown")])
    registry.repository("row", small).add(arm).add(attestation).add_document(oci.OCI_INDEX, data, "1")
    succeeds(pull("row"), small)


@outcome(52, "accepted", "entry without platform; one that lies is refused")
def test_index_entry_without_platform_works_wrong_one_is_refused():
    registry.repository("row", small).add_document(oci.OCI_INDEX, oci.index([(small, None)]), "1")
    succeeds(pull("row"), small)
    arm = oci.Image([oci.Layer({"a": b"arm"})], architecture="arm64")
    registry.repository("row", arm).add_document(oci.OCI_INDEX, oci.index([(arm, "linux/amd64")]), "1")
    fails(pull("row"), "is built for linux/arm64, not for linux/amd64")


@outcome(42, "refused", "manifest of more than 4 MiB")
@outcome(54, "refused", "index 64 deep, of 20,000 entries; in an index is accepted")
def test_index_of_20000_entries_is_refused():
    refused_document(oci.index([(small, "linux/amd64")] * 20_000), "is longer than 4194304 bytes", media_type=oci.OCI_INDEX)
    refused_document(oci.index([(small, "linux/amd64")] * 2001), "lists more than 2000 images", media_type=oci.OCI_INDEX)


@outcome(55, "accepted", "no layers, null layers")
@outcome(56, "accepted", "500 layers, one layer many times, empty ones")
def test_null_empty_and_500_layers_are_pulled():
    image = oci.Image([])
    image.manifest["layers"] = None
    accepted(image.seal())
    layers = [oci.Layer({"x": b"1"}), oci.Layer({}), oci.Layer({"y": b"2"})]
    result = accepted(oci.Image([layers[i % 3] for i in range(500)]))
    assert len(result.published) == 3, result


@outcome(58, "refused", "artifacts and configurations that are none")
def test_artifacts_and_invalid_configurations_are_refused():
    manifest = json.loads(small.bytes)
    empty = {**manifest, "config": oci.descriptor("application/vnd.oci.empty.v1+json", b"{}")}
    refused_document(empty, "not a container image but an artifact")
    for data, text in ((b"", "is empty"), (b"[]", "is not a JSON object"), (b"{}", "has no rootfs")):
        document = {**manifest, "config": oci.descriptor(oci.OCI_CONFIG, data)}
        registry.repository("row").add_document(oci.OCI_MANIFEST, json.dumps(document).encode(), "1").blobs.update({oci.digest(data): data})
        fails(pull("row"), text)


@outcome(65, "refused", "sizes of every wrong form")
@outcome(66, "refused", "digests of every wrong form")
@outcome(67, "refused", "sha512")
def test_malformed_digests_and_sizes_are_refused():
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


@outcome(70, "accepted", "urls on a descriptor; data that lies")
def test_layer_urls_and_embedded_data_are_ignored():
    image = oci.Image([oci.Layer({"u": b"u"})])
    image.manifest["layers"][0].update(urls=[f"http://{elsewhere.name}/blob", "file:///etc/passwd"], data="bGllcw==")
    before = len(elsewhere.requests)
    accepted(image.seal())
    assert len(elsewhere.requests) == before


@outcome(71, "accepted", "Env with loader variables")
@outcome(72, "accepted", "Env malformed, huge, of 5000 entries")
def test_image_variables_are_passed_unchanged():
    variables = [f"V{i}={i}" for i in range(5000)] + ["LD_PRELOAD=/evil.so", "SLURM_JOB_ID=1", "SCONTAINER_IMAGE=x", "BIG=" + "b" * 200_000, "TWO=1\n2"]
    image = with_settings(Env=variables + ["novalue", "=noname"])
    found = [line[4:].decode() for line in settings_in(accepted(image), image) if line.startswith(b"env=")]
    assert found == variables, set(found) ^ set(variables)


@outcome(74, "accepted", "User odd or out of range")
@outcome(75, "accepted", "labels, annotations, volumes that name things of the host")
@outcome(76, "refused", "entrypoint that cannot be run")
def test_image_settings_naming_host_paths_are_inert():
    image = with_settings(User="4294967296:nobody", Labels={"run": "$(reboot)", "a": "b" * 10_000}, Volumes={"/etc": {}, "/": {}},
                          Entrypoint=["/nothing", "x" * (1 << 20)], StopSignal="99", ExposedPorts={"0/tcp": {}}, Shell=["/bin/evil"])
    image.manifest["annotations"] = {"org.opencontainers.image.ref.name": "../../x"}
    result = accepted(image.seal())
    assert b"user=4294967296:nobody" in settings_in(result, image)


# --- death at every step ---

@outcome(152, "accepted", "power loss", untested="the loss of what the kernel has not written")
@outcome(156, "accepted", "SIGKILL of import, converter, agent at every step")
@outcome(159, "accepted", "power cycle of a node", untested="a machine that loses its power")
def test_import_killed_anywhere_leaves_a_working_store():
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
    """Runs an `import` that is killed after this number of messages or requests."""
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
    """Checks that every name in the store stands for a complete object."""
    assert set(store.layers()) <= whole, store.layers()
    for name in store.names("records"):
        assert set(store.layers()) == whole and store.record(name), name
    for name in store.names("names"):
        assert store.names("records"), name


def succeeds_in(store, image):
    result = pull("killed-at", store=store)
    succeeds(result, image)
