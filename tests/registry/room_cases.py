"""The store when it is full, and the number of concurrent imports."""

import atexit
import fcntl
import os
import subprocess
import tempfile
import time

import agent
import oci
import scene
from scene import fails, new_store, noise, pull, registry, succeeds, work
from outcomes import outcome

HOUR = 3600
stores = []


def config(text=""):
    return scene.config('layer_compression = "zstd"\n' + text)  # the size of a layer depends on it


def image_of(bytes_each, layers=1):
    return oci.Image([oci.Layer({"data": noise.randbytes(bytes_each)}) for _ in range(layers)])


def layer_path(store, image, number=0):
    return os.path.join(store.path, "layers/sha256", oci.stored_as(image.layers[number].digest) + ".sqsh")


def used(store, image, seconds_ago):
    """Updates the time of use, as the agent does at each use."""
    path = os.path.join(store.path, "records", image.digest[7:])
    os.utime(path, (time.time() - seconds_ago, time.time() - seconds_ago))


def pulled(name, image, store, settings, used_ago):
    registry.repository(name, image)
    succeeds(pull(name, store=store, settings=settings), image)
    used(store, image, used_ago)
    return image


def has(store, image, name):
    there = [os.path.exists(layer_path(store, image)), image.digest[7:] in store.names("records"),
             f"{registry.name}/{name}:1".replace("/", "%2F") in store.names("names")]
    assert all(there) or not any(there), there
    return all(there)


def small_file_system(options):
    """A store on a separate tmpfs without root: in the namespaces of a process that waits."""
    mount_point = tempfile.mkdtemp(dir=work)
    waiter = subprocess.Popen(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                               f"mount -t tmpfs -o {options} none {mount_point} && echo ready && exec cat"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert waiter.stdout.readline() == b"ready\n", "no tmpfs in a user namespace"
    stores.append(waiter)
    return agent.Store(f"/proc/{waiter.pid}/root{mount_point}/store")


def end_small_file_systems():
    for waiter in stores:
        waiter.stdin.close()
        waiter.wait()
    stores.clear()


atexit.register(end_small_file_systems)

# --- eviction ---

def test_least_recently_used_image_is_evicted_first():
    store, settings = new_store(), config('[store]\nmax_size = "2500K"')
    old = pulled("room/old", image_of(1 << 20), store, settings, 2 * HOUR)
    older = pulled("room/older", image_of(1 << 20), store, settings, 3 * HOUR)
    new = image_of(1 << 20)
    registry.repository("room/new", new)
    result = succeeds(pull("room/new", store=store, settings=settings), new)
    assert not has(store, older, "room/older") and has(store, old, "room/old"), result
    assert result.evicted == [oci.stored_as(older.layers[0].digest)]
    assert any(line.startswith("making room in the image store: evicting 1 least recently used images") for line in result.progress), result
    # It can be fetched again, which evicts the next one.
    succeeds(pull("room/older", store=store, settings=settings), older)
    assert not has(store, old, "room/old")


@outcome(144, "accepted", "eviction races with mount")
def test_images_in_use_stay_and_too_large_image_is_refused():
    store, settings = new_store(), config('[store]\nmax_size = "2500K"')
    first = pulled("use/first", image_of(1 << 20), store, settings, 3 * HOUR)
    second = pulled("use/second", image_of(1 << 20), store, settings, 2 * HOUR)
    third = image_of(1 << 20)
    registry.repository("use/third", third)
    with open(layer_path(store, first), "rb") as of_a_container:
        fcntl.flock(of_a_container, fcntl.LOCK_SH)
        succeeds(pull("use/third", store=store, settings=settings), third)
        assert has(store, first, "use/first") and not has(store, second, "use/second")
        # The third was used a moment ago.
        result = pull("use/second", store=store, settings=settings)
        assert result.done is None and "is limited to 3 MB and uses 3 MB, the image needs 2 MB" in result.failed, result
        assert store.path in result.failed, result
    assert has(store, third, "use/third")


def test_held_layers_are_released_before_an_image_is_refused():
    store, settings = new_store(), config('[store]\nmax_size = "2500K"')
    held = pulled("held/first", image_of(1 << 20), store, settings, 3 * HOUR)
    second = pulled("held/second", image_of(1 << 20), store, settings, 2 * HOUR)
    store.held.append(open(layer_path(store, held), "rb"))
    fcntl.flock(store.held[0], fcntl.LOCK_SH)
    third, fourth = image_of(1 << 20), image_of(1 << 20)
    registry.repository("held/third", third)
    registry.repository("held/fourth", fourth)
    result = succeeds(pull("held/third", store=store, settings=settings), third)
    assert result.released == 0 and has(store, held, "held/first") and not has(store, second, "held/second"), result
    result = succeeds(pull("held/fourth", store=store, settings=settings), fourth)
    assert result.released == 1 and not has(store, held, "held/first"), result


def test_layer_of_another_image_is_kept():
    base = oci.Layer({"base": noise.randbytes(1 << 20)})
    store, settings = new_store(), config('[store]\nmax_size = "2500K"')
    one = pulled("base/one", oci.Image([base, oci.Layer({"1": noise.randbytes(300_000)})]), store, settings, 3 * HOUR)
    two = pulled("base/two", oci.Image([base, oci.Layer({"2": noise.randbytes(300_000)})]), store, settings, 60)
    three = image_of(1_000_000)
    registry.repository("base/three", three)
    result = succeeds(pull("base/three", store=store, settings=settings), three)
    assert result.evicted == [oci.stored_as(one.layers[1].digest)] and os.path.exists(layer_path(store, two)), result


def test_store_above_high_watermark_is_emptied_to_the_low_one():
    store = small_file_system("size=10m")
    settings = config("[store]\nhigh_watermark = 50\nlow_watermark = 35")
    images = [pulled(f"water/{i}", image_of(1 << 20), store, settings, (9 - i) * HOUR) for i in range(4)]
    last = image_of(1_300_000)
    registry.repository("water/last", last)
    succeeds(pull("water/last", store=store, settings=settings), last)
    assert [has(store, image, f"water/{i}") for i, image in enumerate(images)] == [False, False, True, True]


@outcome(143, "accepted", "ledger lost")
def test_layers_left_by_a_crash_are_removed_after_a_day():
    store, settings = new_store(), config()
    stray, fresh = (os.path.join(store.path, "layers/sha256", digit * 64 + ".sqsh") for digit in "12")
    for path in (stray, fresh):
        with open(path, "wb") as file:
            file.write(b"x")
    os.utime(stray, (time.time(), time.time() - 25 * HOUR))
    image = image_of(1000)
    registry.repository("stray", image)
    succeeds(pull("stray", store=store, settings=settings), image)
    assert not os.path.exists(stray) and os.path.exists(fresh)

# --- a full file system (rows 145, 146, 149) ---

@outcome(145, "refused", "no space at each write")
def test_no_space_during_pull_is_reported_and_retry_works():
    store = small_file_system("size=8m")
    image = image_of(5 << 20)
    registry.repository("full", image)
    settings = config("[store]\nhigh_watermark = 100\nlow_watermark = 100")

    def fill(_):
        with open(os.path.join(store.path, "fill"), "wb") as file:
            file.write(bytes(6 << 20))
    result = fails(pull("full", store=store, settings=settings, on_new_layer=fill), "no space left on device", "image store", "MB and", "inodes free")
    assert result.failed.count("hint:") == 1, result
    fails(pull("full", store=store, settings=settings), 'the image store "', "has 3 MB free, the image needs 6 MB")
    os.unlink(os.path.join(store.path, "fill"))
    succeeds(pull("full", store=store, settings=settings), image)


@outcome(146, "refused", "inodes exhausted")
def test_exhausted_inodes_are_reported():
    store = small_file_system("size=20m,nr_inodes=40")
    image = image_of(1000)
    registry.repository("inodes", image)
    files = 0
    try:
        while True:
            open(os.path.join(store.path, f"file{files}"), "w").close()
            files += 1
    except OSError:
        pass
    fails(pull("inodes", store=store), "no space left on device", "and 0 inodes free")
    # Space for the layer but not for the record: the layer stays, the image is unknown.
    os.unlink(os.path.join(store.path, "file0"))
    result = pull("inodes", store=store)
    assert result.done is None and "no space left on device" in result.failed and not store.names("records"), result
    for i in range(1, files):
        os.unlink(os.path.join(store.path, f"file{i}"))
    succeeds(pull("inodes", store=store), image)


@outcome(149, "refused", "read-only; no O_TMPFILE")
def test_read_only_store_is_reported():
    store = small_file_system("size=8m")
    image = image_of(1000)
    registry.repository("readonly", image)
    inside = store.path.split("/root", 1)[1]
    subprocess.run(["nsenter", "-t", str(stores[-1].pid), "--user", "--mount", "mount", "-o", "remount,ro", os.path.dirname(inside)], check=True)
    fails(pull("readonly", store=store), f'lock image store "{inside}": read-only file system')

# --- concurrent imports ---

def slowly(image, seconds):
    def hook(handler, kind, name):
        if kind == "blobs" and name == image.layers[0].digest:
            time.sleep(seconds)
        return False
    return hook


def test_imports_per_user_are_limited_and_the_next_waits():
    one, two = image_of(1000), image_of(1000)
    registry.repository("slot/one", one, slowly(one, 1))
    registry.repository("slot/two", two)
    store, settings = new_store(), config("[store]\nmax_imports_per_user = 1")
    first = agent.Import(store, f"{registry.name}/slot/one:1", config=settings)
    while not registry.seen(one.layers[0].digest):
        time.sleep(0.02)
    second = pull("slot/two", store=store, settings=settings)
    succeeds(second, two)
    assert any(line.startswith("waiting: the limit of 1 concurrent pulls") for line in second.progress), second
    result = first.wait()
    result.store = store
    succeeds(result, one)


@outcome(156, "accepted", "SIGKILL of import, converter, agent at every step")
def test_slot_of_a_killed_import_is_released():
    one, two = image_of(1000), image_of(1000)
    registry.repository("slot/three", one, slowly(one, 5))
    registry.repository("slot/four", two)
    store, settings = new_store(), config("[store]\nmax_imports_per_user = 1")
    first = agent.Import(store, f"{registry.name}/slot/three:1", config=settings)
    while not registry.seen(one.layers[0].digest):
        time.sleep(0.02)
    first.kill()
    second = succeeds(pull("slot/four", store=store, settings=settings), two)
    assert not any(line.startswith("waiting") for line in second.progress)
    # A stored image needs no slot.
    with open(os.path.join(store.path, "locks"), "r+b") as locks:
        fcntl.lockf(locks, fcntl.LOCK_EX, 64, (1 << 62) + os.getuid() * 64)
        succeeds(pull("slot/four", store=store, settings=settings), two)
