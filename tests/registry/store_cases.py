"""The store: permission to use stored images."""


import agent
import oci
from scene import big_image, config, elsewhere, new_store, noise, pull, registry, succeeds


def image_of_its_own(layers=2):
    return oci.Image([oci.Layer({"data": noise.randbytes(1000)}) for _ in range(layers)])


def layer_requests(server, image):
    return [r for layer in image.layers for r in server.seen(layer.digest)]


def refused(result, *texts):
    """Checks for one line that contains all `texts`. The store may contain objects of others."""
    assert result.done is None and result.failed is not None and result.status == 1, result
    for text in texts:
        assert text in result.failed, f"{text!r} is not in: {result.failed}"
    assert "\n" not in result.failed
    return result

# --- another origin with the same digests ---

def test_another_origin_with_only_the_manifest_gets_no_layer():
    image = image_of_its_own()
    registry.repository("secret/app", image)
    store, settings = new_store(), config("public_ttl = 0")
    succeeds(pull("secret/app", store=store, settings=settings), image)
    stolen = elsewhere.repository("stolen", image)
    for layer in image.layers:
        del stolen.blobs[layer.digest]
    refused(pull("stolen", server=elsewhere, store=store, settings=settings), "missing in the registry")
    refused(pull("stolen", "@" + image.digest, server=elsewhere, store=store, settings=settings), "missing in the registry")
    assert f"{elsewhere.name}%2Fstolen:1" not in store.names("names")
    # Having one of the layers is not enough either.
    stolen.blobs[image.layers[0].digest] = image.layers[0].blob
    refused(pull("stolen", server=elsewhere, store=store, settings=settings), image.layers[1].digest, "missing in the registry")


def test_another_origin_delivering_every_byte_converts_nothing():
    image = image_of_its_own()
    registry.repository("mine/app", image)
    elsewhere.repository("theirs/app", image)
    store, settings = new_store(), config("public_ttl = 0")
    succeeds(pull("mine/app", store=store, settings=settings), image)
    before = len(layer_requests(elsewhere, image))
    result = succeeds(pull("theirs/app", server=elsewhere, store=store, settings=settings), image)
    assert len(layer_requests(elsewhere, image)) == before + 2 and not result.published, result
    # Now both origins are known to have it.
    for server, name in ((registry, "mine/app"), (elsewhere, "theirs/app")):
        before = len(layer_requests(server, image))
        succeeds(pull(name, server=server, store=store, settings=settings, pull="always"), image)
        assert len(layer_requests(server, image)) == before


def test_another_origin_delivering_other_bytes_is_refused():
    image = image_of_its_own()
    registry.repository("right/app", image)
    wrong = elsewhere.repository("wrong/app", image)
    blob = image.layers[0].blob
    wrong.blobs[image.layers[0].digest] = bytes([blob[0] ^ 1]) + blob[1:]
    store, settings = new_store(), config("public_ttl = 0")
    succeeds(pull("right/app", store=store, settings=settings), image)
    refused(pull("wrong/app", server=elsewhere, store=store, settings=settings), "has digest", "instead")


def test_layers_of_public_images_are_shared_between_repositories():
    base = oci.Layer({"base": noise.randbytes(1000)})
    one, two = oci.Image([base, oci.Layer({"one": b"1"})]), oci.Image([base, oci.Layer({"two": b"2"})])
    registry.repository("public/one", one)
    elsewhere.repository("public/two", two)
    store = new_store()
    succeeds(pull("public/one", store=store), one)
    succeeds(pull("public/two", server=elsewhere, store=store), two)
    assert not elsewhere.seen(base.digest)


def test_layers_are_shared_within_a_repository():
    base = oci.Layer({"base": noise.randbytes(1000)})
    one, two = oci.Image([base, oci.Layer({"one": b"1"})]), oci.Image([base, oci.Layer({"two": b"2"})])
    registry.repository("team/tags", one).add(two, "2")
    store, settings = new_store(), config("public_ttl = 0")
    succeeds(pull("team/tags", store=store, settings=settings), one)
    succeeds(pull("team/tags", "2", store=store, settings=settings), two)
    assert len(registry.seen(base.digest)) == 1


def test_concurrent_jobs_request_each_layer_once():
    image = big_image(1, layers=3)
    registry.repository("at/once", image)
    store, settings = new_store(), config("public_ttl = 0")
    runs = [agent.Import(store, f"{registry.name}/at/once:1", config=settings) for _ in range(4)]
    for run in runs:
        result = run.wait()
        result.store = store
        succeeds(result, image)
    assert len(layer_requests(registry, image)) == 3
