"""Layers whose meaning depends on lower layers: implied directories, hard links to files below,
whiteouts."""

import os
import struct
import subprocess
import tempfile

import agent
import oci
from scene import Skipped, config, elsewhere, fails, new_store, noise, pull, registry, wait_for
from store_cases import refused
from entries import archive, d, f, h, s, w

HEADER, DIGEST = 72, 32  # of runtime/protocol/image_record.hpp


def layer(*entries):
    return oci.Layer({}, archive(entries))


def layers_of(result, image):
    record = result.store.record(image.digest[7:])
    count, = struct.unpack_from("<I", record, 8)
    return [record[at:at + DIGEST].hex() for at in range(HEADER, HEADER + count * DIGEST, DIGEST)]


def brought(result, image):
    assert result.failed is None and result.done == image.digest[7:], result
    names = layers_of(result, image)
    assert all(f"{name}.sqsh" in result.store.layers() for name in names), names
    return names


def fitted(image, place):
    return oci.stored_fitted([one.digest for one in image.layers[:place + 1]])


def listed(result, name, path):
    """Returns a line of ls about an entry of a layer."""
    file = os.path.join(result.store.path, "layers/sha256", f"{name}.sqsh")
    lines = subprocess.run(["unsquashfs", "-lln", file], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return next((line for line in lines if f"squashfs-root/{path}" in line.split(" -> ")[0].split()[-1:]), "")


base = layer(d("var"), d("var/tmp", 0o1777), d("usr"), d("usr/sbin"), s("sbin", "usr/sbin"), f("usr/sbin/old", "old"), d("root", 0o700))


def test_implied_directories_take_attributes_of_lower_layers():
    image = oci.Image([base, layer(f("var/tmp/new"), f("root/new"), f("sbin/new"), h("sbin/hard", "sbin/old"), w("none/nothing"))])
    registry.repository("implied", image)
    result = pull("implied")
    names = brought(result, image)
    assert names == [oci.stored_as(base.digest), fitted(image, 1)], names
    assert listed(result, names[1], "var/tmp").startswith("drwxrwxrwt") and listed(result, names[1], "root").startswith("drwx------")
    assert listed(result, names[1], "usr/sbin/new") and listed(result, names[1], "usr/sbin/hard")
    assert not listed(result, names[1], "sbin") and not listed(result, names[1], "none")
    before = len(registry.requests)
    brought(pull("implied", store=result.store), image)
    assert [request[0] for request in registry.requests[before:]] == ["HEAD"]


def test_fitted_layer_is_shared_over_equal_lower_layers():
    top, store = layer(f("var/tmp/x")), new_store()
    one, two = oci.Image([base, top]), oci.Image([base, top, layer(d("more"))])
    other = oci.Image([layer(d("var"), d("var/tmp", 0o700)), top])
    for name, image in (("shared/one", one), ("shared/two", two), ("shared/other", other)):
        registry.repository(name, image)
        brought(pull(name, store=store), image)
    assert len(registry.seen(base.digest)) >= 1 and len(registry.seen(top.digest)) == 2
    result = pull("shared/other", store=store)
    assert listed(result, fitted(one, 1), "var/tmp").startswith("drwxrwxrwt")
    assert listed(result, fitted(other, 1), "var/tmp").startswith("drwx------")


def form(result, name):
    """Returns the file system of a layer and its compressor's number, or whether there is one."""
    with open(os.path.join(result.store.path, "layers/sha256", f"{name}.sqsh"), "rb") as file:
        head = file.read(2048)
    if head[:4] == b"hsqs":
        return "squashfs", struct.unpack_from("<H", head, 20)[0]
    assert struct.unpack_from("<I", head, 1024)[0] == 0xE0F5E1E2, head[1024:1028]
    return "erofs", struct.unpack_from("<I", head, 1024 + 80)[0] & 1


def test_layers_follow_site_format_and_stack_in_order():
    store, above = new_store(), [base]
    wanted = (("squashfs", "zstd", 6), ("squashfs", "lz4", 5), ("erofs", "lz4", 1), ("squashfs", "none", 5), ("erofs", "none", 0), ("squashfs", "zstd", 6))
    for number, (file_system, word, compressor) in enumerate(wanted):
        above.append(layer(f(f"var/tmp/{number}", "again and " * 40_000), w(f"var/tmp/{number - 1}"), h(f"root/{number}", "usr/sbin/old")))
        image = oci.Image(list(above))
        registry.repository(f"compressed/{number}", image)
        settings = config(f'layer_compression = "{word}"\nlayer_format = "{file_system}"')
        result = pull(f"compressed/{number}", store=store, settings=settings)
        names = brought(result, image)
        assert form(result, names[-1]) == (file_system, compressor), form(result, names[-1])
        if file_system == "squashfs":  # the layer below decides, whatever its form
            assert listed(result, names[-1], "var/tmp").startswith("drwxrwxrwt")
    assert form(result, names[0]) == ("squashfs", 6)
    sizes = [os.stat(os.path.join(store.path, "layers/sha256", f"{name}.sqsh")).st_size for name in names[1:]]
    assert max(sizes[:3]) < 400_000 < min(sizes[3:5]), sizes


def test_zstd_is_always_squashfs_and_erofs_depends_on_kernel():
    image = oci.Image([layer(f("a", "a"))])
    for number, text in enumerate(('layer_compression = "zstd"\nlayer_format = "erofs"', 'layer_format = "auto"')):
        registry.repository(f"form/{number}", image)
        result = pull(f"form/{number}", store=new_store(), settings=config(text))
        kernel = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
        only_erofs = number == 1 and (5, 19) <= kernel < (6, 2) and "\terofs\n" in open("/proc/filesystems").read()
        assert form(result, brought(result, image)[0])[0] == ("erofs" if only_erofs else "squashfs")


def stored(result, image):
    """Returns the size of the image's one layer in the store."""
    return os.stat(os.path.join(result.store.path, "layers/sha256", f"{brought(result, image)[0]}.sqsh")).st_size


def is_on_disk(store):
    device = os.stat(store.path).st_dev
    return os.path.exists(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")


def text_of(megabytes):
    """Returns bytes that lz4 halves: its window is 64 KiB."""
    return b"".join(noise.randbytes(16) + bytes(16) for _ in range(1 << 15)) * megabytes


def test_layers_stay_uncompressed_where_room_and_disk_allow():
    if len(os.sched_getaffinity(0)) >= 4 or not is_on_disk(new_store()):
        raise Skipped("needs a disk, and fewer than four processors")
    image = oci.Image([oci.Layer({"data": text_of(4)})])
    registry.repository("plain", image)
    for settings, is_plain in (("", True), ('layer_compression = "lz4"', False), ('[store]\nmax_size = "64M"', False)):
        result = pull("plain", store=new_store(), settings=config(settings))
        assert (stored(result, image) > 4 << 20) == is_plain, (settings, stored(result, image))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        result = pull("plain", store=agent.Store(memory), settings=config())
        assert stored(result, image) < 3 << 20, stored(result, image)


def test_uncompressed_layer_is_compressed_once_the_disk_is_slow():
    """A disk of 40 MB/s takes more than a quarter of the time of a conversion."""
    store, group = new_store(), f"/sys/fs/cgroup/blkio/spank-container-{os.getpid()}"
    device = os.stat(store.path).st_dev
    limit = os.path.join(group, "blkio.throttle.write_bps_device")
    if len(os.sched_getaffinity(0)) >= 4 or not is_on_disk(store) or not os.access(os.path.dirname(group), os.W_OK):
        raise Skipped("needs a disk, cgroup v1's blkio, and fewer than four processors")
    os.mkdir(group)
    try:
        with open(limit, "w", encoding="ascii") as file:
            file.write(f"{os.major(device)}:{os.minor(device)} 40000000")
        image, runs = oci.Image([oci.Layer({"data": text_of(128)})]), []

        def limits(handler, kind, name):
            if kind == "blobs" and name == image.layers[0].digest:
                wait_for(lambda: runs and runs[0].writers)
                with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
                    file.write(str(runs[0].writers[0].pid))
            return False
        registry.repository("slow-disk", image, limits)
        runs.append(agent.Import(store, f"{registry.name}/slow-disk:1", config=config()))
        result = runs[0].wait()
        result.store = store
        # at least the first 64 MiB are not compressed, and not all
        assert 80 << 20 < stored(result, image) < 124 << 20, stored(result, image)
    finally:
        os.rmdir(group)


def test_many_fitted_layers_wait_for_each_other():
    layers = [base]
    # More would be merged; higher layers are larger and wait for those below.
    for number in range(15):
        layers.append(layer(f(f"var/tmp/{number}", noise.randbytes(500 * number).hex()), f(f"var/implied/{number}"), w(f"var/implied/{number - 1}")))
    image = oci.Image(layers)
    registry.repository("waiting", image)
    store, settings = new_store(), config("max_parallel_layers = 3")
    runs = [agent.Import(store, f"{registry.name}/waiting:1", config=settings) for _ in range(2)]
    for run in runs:
        result = run.wait()
        result.store = store
        names = brought(result, image)
        assert names == [oci.stored_as(base.digest)] + [fitted(image, place) for place in range(1, 16)]
    assert listed(result, names[15], "var/tmp").startswith("drwxrwxrwt")


def test_repeated_layer_counts_at_its_topmost_position():
    empty, a, b = layer(), layer(d("a")), layer(d("b"))
    image = oci.Image([a, empty, b, empty, a, empty] + [empty] * 40)
    registry.repository("again", image)
    result = pull("again")
    assert brought(result, image) == [oci.stored_as(one.digest) for one in (b, a, empty)]
    before = len(registry.requests)
    brought(pull("again", store=result.store), image)
    assert [request[0] for request in registry.requests[before:]] == ["HEAD"]


def test_hard_link_to_missing_file_names_the_link():
    image = oci.Image([base, layer(h("here", "not/there"))])
    registry.repository("dangling", image)
    result = pull("dangling")
    refused(result, 'entry "here": it is a hard link to "not/there", which is not in the image')
    assert len(result.store.layers()) <= 1


def test_lower_layers_of_fitted_layer_need_delivery_by_new_origin():
    secret = layer(d("private"), f("private/key", noise.randbytes(100).hex()))
    image = oci.Image([secret, layer(h("copy", "private/key"))])
    registry.repository("fitted/secret", image)
    store, settings = new_store(), config("public_ttl = 0")
    brought(pull("fitted/secret", store=store, settings=settings), image)
    stolen = elsewhere.repository("fitted/stolen", image)
    del stolen.blobs[secret.digest]
    refused(pull("fitted/stolen", server=elsewhere, store=store, settings=settings), "missing in the registry")
    stolen.blobs[secret.digest] = secret.blob
    before = len(elsewhere.seen(secret.digest))
    result = pull("fitted/stolen", server=elsewhere, store=store, settings=settings)
    brought(result, image)
    assert not result.published and len(elsewhere.seen(secret.digest)) == before + 1, result


def test_converter_dying_while_waiting_is_reported():
    registry.repository("broken-below", oci.Image([oci.Layer({}, b"x" * 1024), layer(f("implied/x"))]))
    fails(pull("broken-below"), "convert layer")
