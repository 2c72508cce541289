"""A shared store of blobs. Each pull has its own store, as on another node."""

import contextlib
import os
import stat
import tempfile
import threading
import time

import agent
import oci
from login_cases import wants_basic
from scene import big_image, config, elsewhere, new_store, noise, pull, registry, small, succeeds, work, wait_for
from stack_cases import base, brought, f, fitted, layer, w
from store_cases import image_of_its_own, layer_requests, refused
from user import User, alice

ALICE, BOB = 1001, 1002


# The nodes' paths of the store: several mounts of one network file system, or a directory of this
# machine.
PLACES = os.environ.get("SPC_SHARED_PLACES", work).split(":")


class Shared:
    """A directory as an administrator makes it, and the configuration of nodes that use it, each by
    the next path in turn."""

    def __init__(self, *keys):
        self.path = tempfile.mkdtemp(dir=PLACES[0])
        os.chmod(self.path, 0o700)
        self.nodes = [(place, config("\n".join(["public_ttl = 0", "[shared]", f'directory = "{place}/{os.path.basename(self.path)}"', *keys])))
                      for place in PLACES]

    @property
    def settings(self):
        """Returns the settings of the next node."""
        self.nodes.append(self.nodes.pop(0))
        return self.nodes[-1][1]

    def seen_by_last_node(self, path):
        """Returns the last node's view. Others may cache the earlier state for a while."""
        return path.replace(PLACES[0], self.nodes[-1][0], 1)

    def blob(self, digest):
        return os.path.join(self.path, "blobs/sha256", digest[7:])

    def blobs(self):
        return os.listdir(os.path.join(self.path, "blobs/sha256"))

    def paths(self, name):
        return [os.path.join(self.path, name).replace(PLACES[0], place, 1) for place, _ in self.nodes]

    def has(self, name):
        return any(map(os.path.isdir, self.paths(name)))

    def below(self, name):
        """Returns the entries as seen by a node that knows the directory. On NFS, others may cache
        its absence."""
        paths = self.paths(name)
        return os.listdir(next((path for path in paths if os.path.isdir(path)), paths[0]))

    def pull(self, name, **options):
        return pull(name, settings=self.settings, **options)

    def is_at_rest(self):
        assert not self.below("tmp") and not self.below("leases"), (self.below("tmp"), self.below("leases"))


def requests_of(server, repository):
    """Returns the requests, without earlier ones."""
    before = len(server.seen(f"/v2/{repository}/"))
    return lambda: [(command, path.split("/")[-2]) for command, path, _ in server.seen(f"/v2/{repository}/")[before:]]


def fetched(server, repository):
    return sorted(path for command, path, _ in server.seen(f"/v2/{repository}/") if command == "GET")


def test_image_pulled_by_one_node_is_read_from_the_shared_store():
    image, shared = image_of_its_own(3), Shared()
    registry.repository("shared/app", image)
    succeeds(shared.pull("shared/app"), image)
    assert sorted(shared.blobs()) == sorted({digest[7:] for digest in (image.digest, *image.blobs())}), shared.blobs()
    requests = requests_of(registry, "shared/app")
    for _ in range(3):
        result = succeeds(shared.pull("shared/app"), image)
        assert not result.warnings, result
    assert requests() == [("HEAD", "manifests")] * 3, requests()
    shared.is_at_rest()


def test_shared_store_is_readable_by_the_service_user_only():
    image, shared = image_of_its_own(), Shared()
    registry.repository("shared/modes", image)
    succeeds(shared.pull("shared/modes"), image)
    for directory, names, files in os.walk(shared.path):
        for name in (*names, *files):
            mode = os.stat(os.path.join(directory, name)).st_mode
            assert stat.S_IMODE(mode) & 0o077 == 0, (directory, name, oct(mode))


def test_damaged_shared_blob_fails_one_pull():
    image, shared = image_of_its_own(1), Shared()
    registry.repository("shared/damaged", image)
    succeeds(shared.pull("shared/damaged"), image)
    layer = image.layers[0]
    with open(shared.blob(layer.digest), "r+b") as file:
        file.write(bytes([layer.blob[0] ^ 1]))
    refused(shared.pull("shared/damaged"), layer.digest, "has digest", "the copy in the shared store was damaged, and is removed")
    succeeds(shared.pull("shared/damaged"), image)
    with open(shared.blob(layer.digest), "rb") as file:
        assert file.read() == layer.blob


def test_shared_documents_are_verified():
    image, other, shared = image_of_its_own(), image_of_its_own(), Shared()
    registry.repository("shared/document", image)
    succeeds(shared.pull("shared/document"), image)
    for digest in (image.digest, oci.digest(image.config_bytes)):
        with open(shared.blob(digest), "wb") as file:
            file.write(other.bytes)
    succeeds(shared.pull("shared/document"), image)
    with open(shared.blob(image.digest), "rb") as file:
        assert file.read() == image.bytes


def test_incomplete_shared_blob_is_fetched_again():
    image, shared = image_of_its_own(1), Shared()
    registry.repository("shared/torn", image)
    succeeds(shared.pull("shared/torn"), image)
    for size in (0, 100):
        os.truncate(shared.blob(image.layers[0].digest), size)
        before = len(layer_requests(registry, image))
        succeeds(shared.pull("shared/torn"), image)
        assert len(layer_requests(registry, image)) == before + 1
        assert os.stat(shared.seen_by_last_node(shared.blob(image.layers[0].digest))).st_size == len(image.layers[0].blob)


def test_special_files_in_the_shared_store_are_skipped():
    image, shared = image_of_its_own(1), Shared()
    registry.repository("shared/fifo", image)
    succeeds(shared.pull("shared/fifo"), image)
    for digest in (image.layers[0].digest, image.digest, oci.digest(image.config_bytes)):
        os.unlink(shared.blob(digest))
        os.mkfifo(shared.blob(digest))
    succeeds(shared.pull("shared/fifo"), image)
    os.unlink(shared.blob(image.digest))
    os.symlink("/etc/passwd", shared.blob(image.digest))
    succeeds(shared.pull("shared/fifo"), image)

# --- permission ---

def test_shared_blobs_must_be_delivered_by_another_origin():
    image, shared = image_of_its_own(), Shared()
    registry.repository("shared/mine", image)
    elsewhere.repository("shared/theirs", image)
    succeeds(shared.pull("shared/mine"), image)
    requests = requests_of(elsewhere, "shared/theirs")
    succeeds(shared.pull("shared/theirs", server=elsewhere), image)
    assert requests().count(("GET", "blobs")) == 3, requests()
    requests = requests_of(elsewhere, "shared/theirs")
    succeeds(shared.pull("shared/theirs", server=elsewhere), image)
    assert requests() == [("HEAD", "manifests")], requests()


def test_shared_store_digests_alone_give_no_access():
    image, shared = image_of_its_own(), Shared()
    registry.repository("shared/secret", image)
    succeeds(shared.pull("shared/secret"), image)
    stolen = elsewhere.repository("shared/stolen", image)
    for layer in image.layers:
        del stolen.blobs[layer.digest]
    refused(shared.pull("shared/stolen", server=elsewhere), "missing in the registry")


def test_shared_private_image_requires_registry_access():
    image, shared = image_of_its_own(), Shared()
    registry.repository("shared/private", image, wants_basic)
    succeeds(shared.pull("shared/private", user=alice(), uid=ALICE), image)
    requests = requests_of(registry, "shared/private")
    refused(shared.pull("shared/private", user=User(None), uid=BOB))
    assert requests(), "nobody asked the registry"
    requests = requests_of(registry, "shared/private")
    result = succeeds(shared.pull("shared/private", user=alice(), uid=ALICE), image)
    assert result.store.grants(ALICE) and ("GET", "blobs") not in requests() and ("GET", "manifests") not in requests(), requests()

# --- concurrent pulls and their leftovers ---

def test_concurrent_nodes_request_each_layer_once():
    image, shared = big_image(1, layers=3), Shared()
    registry.repository("shared/once", image, slowly(0.5))
    runs = [(store, agent.Import(store, f"{registry.name}/shared/once:1", config=shared.settings)) for store in (new_store() for _ in range(4))]
    for store, run in runs:
        result = run.wait()
        result.store = store
        succeeds(result, image)
    gets = fetched(registry, "shared/once")
    assert len(gets) == len(set(gets)) == 5, gets
    shared.is_at_rest()


def slowly(seconds):
    def hook(handler, kind, name):
        if kind == "blobs":
            time.sleep(seconds)
        return False
    return hook


def test_node_resumes_where_another_one_died():
    image, shared = big_image(2), Shared()
    begun, over = threading.Event(), threading.Event()

    def hangs_once(handler, kind, name):
        if name != image.layers[0].digest or begun.is_set():
            return False
        begun.set()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(image.layers[0].blob)))
        handler.end_headers()
        handler.wfile.write(image.layers[0].blob[:100_000])
        over.wait(20)
        handler.close_connection = True
        return True

    registry.repository("shared/died", image, hangs_once)
    first = agent.Import(new_store(), f"{registry.name}/shared/died:1", config=shared.settings)
    assert begun.wait(10)
    wait_for(lambda: shared.below("leases"))
    first.kill()
    over.set()
    result = succeeds(shared.pull("shared/died"), image)
    assert 4 <= result.seconds < 15, result.seconds
    assert any("(another node brings 1 of them)" in line for line in result.progress), result
    assert not shared.below("leases")


def test_nodes_dying_at_any_moment_block_no_others():
    """A lease of a complete blob may stay for ten minutes, as no node looks at it."""
    image, shared = big_image(1, layers=2), Shared()
    registry.repository("shared/killed", image, slowly(0.05))
    began, longest = time.monotonic(), 0.0
    for number in range(25):
        run = agent.Import(new_store(), f"{registry.name}/shared/killed:1", config=shared.settings)
        if number == 0:  # measures how far a node gets in which time
            wait_for(lambda: shared.has("leases"))
            longest = max(0.25, 2 * (time.monotonic() - began))
        else:
            time.sleep(noise.uniform(0.01, longest))
        run.kill()
    # A minute later: blobs that were complete then get their names.
    for lease in shared.below("leases"):
        os.utime(os.path.join(shared.path, "leases", lease), (time.time() - 90,) * 2)
    result = succeeds(shared.pull("shared/killed"), image)
    assert result.seconds < 20 and not result.warnings, result
    for layer in image.layers:
        with open(shared.blob(layer.digest), "rb") as file:
            assert file.read() == layer.blob
    before = len(layer_requests(registry, image))
    succeeds(shared.pull("shared/killed"), image)
    assert len(layer_requests(registry, image)) == before


def test_files_left_by_a_dead_node_are_removed():
    """Removed after one day. Leases, which their owners rewrite each second, after ten minutes."""
    image, shared = image_of_its_own(1), Shared()
    registry.repository("shared/strays", image)
    succeeds(shared.pull("shared/strays"), image)
    for directory, old, new in (("tmp", 25 * 3600, 23 * 3600), ("leases", 660, 540)):
        for name, age in (("old", old), ("new", new)):
            path = os.path.join(shared.path, directory, name)
            with open(path, "w"):
                os.utime(path, (time.time() - age,) * 2)
    os.unlink(shared.blob(image.layers[0].digest))
    succeeds(shared.pull("shared/strays"), image)
    for directory in ("tmp", "leases"):
        assert shared.below(directory) == ["new"], (directory, shared.below(directory))


def test_full_shared_store_evicts_least_recently_used():
    shared = Shared('max_size = "5M"')
    images = [big_image(2) for _ in range(3)]
    for number, image in enumerate(images):
        registry.repository(f"shared/full{number}", image)
        succeeds(shared.pull(f"shared/full{number}"), image)
        for digest in (image.digest, *image.blobs()):  # as if it had been long ago
            for place, _ in shared.nodes:  # a node caches a file's times for some seconds
                with contextlib.suppress(FileNotFoundError):
                    os.utime(shared.blob(digest).replace(PLACES[0], place, 1), (1000 + number, 1000 + number))
    there = [os.path.exists(shared.blob(image.layers[0].digest)) for image in images]
    assert there == [False, True, True], there
    notes = [name for place in shared.below("delivered") for name in shared.below(f"delivered/{place}")]
    assert images[0].layers[0].digest[7:] not in notes and images[2].layers[0].digest[7:] in notes
    succeeds(shared.pull("shared/full0"), images[0])


def test_layer_larger_than_the_shared_store_evicts_no_others():
    shared, large, few = Shared('max_size = "3M"'), big_image(4), big_image(1)
    for name, image in (("few", few), ("large", large)):
        registry.repository(f"shared/{name}", image)
    succeeds(shared.pull("shared/few"), few)
    for _ in range(2):
        before = len(layer_requests(registry, large))
        result = succeeds(shared.pull("shared/large"), large)
        assert len(layer_requests(registry, large)) == before + 1
        assert len(result.warnings) == 1 and "more than its max_size" in result.warnings[0], result
    assert set(shared.blobs()) >= {digest[7:] for digest in (few.digest, *few.blobs(), large.digest)}, shared.blobs()
    assert not os.path.exists(shared.blob(large.layers[0].digest))
    shared.is_at_rest()

# --- an unusable shared store ---

def test_unusable_shared_store_costs_a_line():
    registry.repository("shared/without", small)
    absent, others, crowded = Shared(), Shared(), Shared()
    os.rmdir(absent.path)
    os.chmod(others.path, 0o755)
    with open(os.path.join(crowded.path, "leases"), "w"):
        pass
    for shared, why in ((absent, "no such file"), (others, "can be entered by others"), (crowded, "leases")):
        result = succeeds(shared.pull("shared/without"), small)
        assert len(result.warnings) == 1 and why in result.warnings[0] and os.path.basename(shared.path) in result.warnings[0], result


def test_user_stores_are_not_filled_from_the_shared_store():
    image, shared = image_of_its_own(), Shared()
    registry.repository("shared/user", image)
    succeeds(shared.pull("shared/user", more=["user_store=yes"]), image)
    assert not shared.below("."), shared.below(".")

# --- converted layers, at sites whose nodes trust each other's ---

LAYERS = 'keep = "layers"'


def shared_layers(shared):
    return {os.path.join(directory, name) for directory, _, names in os.walk(os.path.join(shared.path, "layers")) for name in names}


def content(store, image):
    found = []
    for layer in image.layers:
        with open(os.path.join(store.path, "layers/sha256", oci.stored_as(layer.digest) + ".sqsh"), "rb") as file:
            found.append(file.read())
    return found


def test_layers_converted_by_one_node_are_copied_by_the_others():
    image, shared = image_of_its_own(3), Shared(LAYERS)
    registry.repository("shared/layers", image)
    first = succeeds(shared.pull("shared/layers"), image)
    assert len(shared_layers(shared)) == 3, shared_layers(shared)
    # The blobs are not needed any more, only the record of their delivery.
    for layer in image.layers:
        os.truncate(shared.blob(layer.digest), 0)
    requests = requests_of(registry, "shared/layers")
    second = succeeds(shared.pull("shared/layers"), image)
    assert requests() == [("HEAD", "manifests")] and not second.warnings, (requests(), second)
    assert content(second.store, image) == content(first.store, image)
    shared.is_at_rest()


def test_fitted_layers_are_copied_as_well():
    image, shared = oci.Image([base, layer(f("var/tmp/shared"), w("none/nothing"))]), Shared(LAYERS)
    registry.repository("shared/fitted", image)
    first = brought(shared.pull("shared/fitted"), image)
    for one in image.layers:
        os.truncate(shared.blob(one.digest), 0)
    requests = requests_of(registry, "shared/fitted")
    assert brought(shared.pull("shared/fitted"), image) == first == [oci.stored_as(base.digest), fitted(image, 1)]
    assert requests() == [("HEAD", "manifests")], requests()


def test_shared_store_keeps_blobs_only_by_default():
    image, shared = image_of_its_own(), Shared()
    registry.repository("shared/blobs-only", image)
    succeeds(shared.pull("shared/blobs-only"), image)
    assert not shared_layers(shared)


def test_concurrent_nodes_convert_an_image_once():
    image, shared = big_image(1, layers=3), Shared(LAYERS)
    registry.repository("shared/convert-once", image, slowly(0.5))
    runs = [(store, agent.Import(store, f"{registry.name}/shared/convert-once:1", config=shared.settings)) for store in (new_store() for _ in range(4))]
    waited = 0
    for store, run in runs:
        result = run.wait()
        result.store = store
        succeeds(result, image)
        waited += any("another node converts the image" in line for line in result.progress)
    assert waited == 3, waited
    shared.is_at_rest()


def test_converted_layer_requires_delivery_of_its_blob():
    image, shared = image_of_its_own(), Shared(LAYERS)
    registry.repository("shared/ours", image)
    stolen = elsewhere.repository("shared/stolen-layers", image)
    for layer in image.layers:
        del stolen.blobs[layer.digest]
    succeeds(shared.pull("shared/ours"), image)
    refused(shared.pull("shared/stolen-layers", server=elsewhere), "missing in the registry")


def test_damaged_and_hostile_shared_layers_are_converted_again():
    image, shared = image_of_its_own(1), Shared(LAYERS)
    registry.repository("shared/bad-layers", image)
    first = succeeds(shared.pull("shared/bad-layers"), image)
    path, = shared_layers(shared)
    with open(path, "rb") as file:
        good = file.read()
    for bad in (b"", good[:40], good[:-1], bytes([good[0] ^ 1]) + good[1:]):
        with open(path, "wb") as file:
            file.write(bad)
        result = succeeds(shared.pull("shared/bad-layers"), image)
        assert len(result.warnings) == 1 and "was damaged, and is removed: converting the layer here" in result.warnings[0], result
        assert content(result.store, image) == content(first.store, image)
        with open(path, "rb") as file:
            assert file.read() == good


def test_node_dying_during_conversion_is_replaced():
    image, shared = big_image(1), Shared(LAYERS)
    begun, over = threading.Event(), threading.Event()

    def hangs_once(handler, kind, name):
        if name == image.layers[0].digest and not begun.is_set():
            begun.set()
            over.wait(20)
        return False

    registry.repository("shared/dies-converting", image, hangs_once)
    first = agent.Import(new_store(), f"{registry.name}/shared/dies-converting:1", config=shared.settings)
    assert begun.wait(10)
    first.kill()
    over.set()
    # The lease's blob may still be in use: only converters are waited for here.
    for lease in shared.below("leases"):
        if lease.startswith(image.layers[0].digest[7:]):
            os.unlink(os.path.join(shared.path, "leases", lease))
    result = succeeds(shared.pull("shared/dies-converting"), image)
    assert 4 <= result.seconds < 15 and any("another node converts" in line for line in result.progress), result
    assert len(shared_layers(shared)) == 1
    assert not shared.below("leases")


# --- images in place ---

IN_PLACE = 'use = "in-place"'


def in_place(result, image):
    """Checks that the layers are served and not in the store. Returns their contents."""
    assert result.failed is None and result.status == 0 and result.done == image.digest[7:], result
    assert not result.store.layers() and image.digest[7:] in result.store.names("records"), (result.store.layers(), result)
    return [served.read() for served in result.served]


def test_next_node_uses_the_layers_in_place():
    image, shared = image_of_its_own(3), Shared(IN_PLACE)
    registry.repository("shared/place", image)
    first = succeeds(shared.pull("shared/place"), image)
    assert not first.served
    for layer in image.layers:
        os.truncate(shared.blob(layer.digest), 0)
    requests = requests_of(registry, "shared/place")
    second = shared.pull("shared/place")
    assert in_place(second, image) == content(first.store, image) and not second.warnings, second
    assert requests() == [("HEAD", "manifests")], requests()
    again = shared.pull("shared/place", store=second.store)
    assert in_place(again, image) == content(first.store, image), again
    shared.is_at_rest()


def test_merged_and_fitted_layers_are_used_in_place():
    many = oci.Image([oci.Layer({f"data{i}": noise.randbytes(1000)}) for i in range(40)])
    lower = oci.Image([base, layer(f("var/tmp/place"), w("none/nothing"))])
    for name, image in (("many", many), ("lower", lower)):
        shared = Shared(IN_PLACE)
        registry.repository(f"shared/place-{name}", image)
        first, second = (shared.pull(f"shared/place-{name}") for _ in range(2))
        assert first.failed is None and len(in_place(second, image)) < 20, (first, second)
        for served in second.served:
            assert served.layer.hex() + ".sqsh" in first.store.layers(), served.layer.hex()


def test_nodes_at_the_same_time_convert_for_all():
    image, shared = big_image(1, layers=3), Shared(IN_PLACE)
    registry.repository("shared/place-once", image, slowly(0.5))
    runs = [(store, agent.Import(store, f"{registry.name}/shared/place-once:1", config=shared.settings)) for store in (new_store() for _ in range(4))]
    converted = 0
    for store, run in runs:
        result = run.wait()
        result.store = store
        assert result.failed is None, result
        converted += bool(store.layers())
        assert len(result.served) == (0 if store.layers() else 3), result
    assert converted == 1, converted
    shared.is_at_rest()


def test_image_in_place_requires_delivery_to_its_place():
    """A repository that names the layers of another one, and does not have them."""
    image, shared = image_of_its_own(), Shared(IN_PLACE)
    registry.repository("shared/place-ours", image)
    stolen = elsewhere.repository("shared/place-stolen", image)
    for layer in image.layers:
        del stolen.blobs[layer.digest]
    succeeds(shared.pull("shared/place-ours"), image)
    result = shared.pull("shared/place-stolen", server=elsewhere)
    refused(result, "missing in the registry")
    assert not result.served


def test_private_image_in_place_requires_the_login():
    image, shared = image_of_its_own(), Shared(IN_PLACE)
    registry.repository("shared/place-private", image, wants_basic)
    succeeds(shared.pull("shared/place-private", user=alice(), uid=ALICE), image)
    result = shared.pull("shared/place-private", uid=BOB)
    assert result.failed and not result.served, result


def test_removed_layer_in_place_stays_readable():
    image, shared = big_image(2), Shared(IN_PLACE)
    registry.repository("shared/place-removed", image)
    first = succeeds(shared.pull("shared/place-removed"), image)
    second = shared.pull("shared/place-removed")
    for path in shared_layers(shared):  # as eviction does
        os.rename(path, os.path.join(shared.path, "trash", os.path.basename(path)))
    assert in_place(second, image) == content(first.store, image)
    third = succeeds(shared.pull("shared/place-removed"), image)
    assert not third.served and third.warnings, third


def test_image_in_place_is_not_pulled_where_pulls_are_forbidden():
    image, shared = image_of_its_own(), Shared(IN_PLACE)
    registry.repository("shared/place-never", image, wants_basic)
    how = {"user": alice(), "uid": ALICE}
    succeeds(shared.pull("shared/place-never", **how), image)
    second = shared.pull("shared/place-never", **how)
    assert in_place(second, image)
    forbidden = {**how, "store": second.store, "more": ["pull=never"]}
    assert in_place(shared.pull("shared/place-never", **forbidden), image)
    for path in shared_layers(shared):
        os.unlink(path.replace(PLACES[0], shared.nodes[0][0], 1))  # as the next node: on NFS, others notice later
    requests = requests_of(registry, "shared/place-never")
    refused(shared.pull("shared/place-never", **forbidden), "neither on this node nor in the shared store")
    assert not requests(), requests()


def test_trash_of_images_in_place_has_a_limit():
    """Each image pushes an earlier one out: 6 MB go to the trash."""
    limit = 4 << 20
    shared, seen = Shared(IN_PLACE, 'max_size = "4M"'), set()
    for number in range(8):
        image = big_image(1)
        registry.repository(f"shared/place-trash{number}", image)
        result = shared.pull(f"shared/place-trash{number}")
        assert result.failed is None, result
        trash = [os.path.join(shared.path, "trash", name) for name in os.listdir(os.path.join(shared.path, "trash"))]
        assert sum(map(os.path.getsize, trash)) <= limit, trash
        seen.update(trash)
    assert len([path for path in seen if not os.path.exists(path)]) > 0, seen
