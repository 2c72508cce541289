"""Images of the user: layouts, archives and storages, each read by a process of the user
(`user-source`)."""

import gzip
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import threading

import agent
import oci
from scene import config, fails, new_store, noise, pull, registry, small, succeeds, work
from store_cases import refused

two = oci.Image([oci.Layer({"etc/one": b"1\n"}), oci.Layer({"etc/two": b"2\n" * 300_000, "noise": noise.randbytes(3 << 20)})])


def local(location, store=None, environment=None, **options):
    store = store or new_store()
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": work, **(environment or {})}
    result = agent.run(store, location, config=config(), environment=environment, **options)
    result.store = store
    return result


def entry(image, name=None, **more):
    return oci.descriptor(image.media_type, image.bytes, **({"annotations": {
        "org.opencontainers.image.ref.name": name}} if name else {}), **more)


def layout_files(images, entries=None):
    """The files of an OCI layout; `images` by name."""
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
    for image in images.values():
        for data in (image.bytes, image.config_bytes, *(layer.blob for layer in image.layers)):
            files["blobs/sha256/" + oci.digest(data)[7:]] = data
    entries = entries or [entry(image, name) for name, image in images.items()]
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": entries}).encode()
    return files


def in_directory(files):
    directory = tempfile.mkdtemp(dir=work)
    for name, data in files.items():
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    return directory


def as_tar(files, links=(), compress=lambda data: data):
    """Returns a tar archive. `links` are pairs (name, target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1
            tar.addfile(info, io.BytesIO(data))
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    path = tempfile.mktemp(dir=work, suffix=".tar")
    with open(path, "wb") as file:
        file.write(compress(out.getvalue()))
    return path


def docker_save(image, tags=("team/app:1",), layer_name="{}/layer.tar", compressed=False):
    """Returns the files written by `docker save` before version 25."""
    config_name = oci.digest(image.config_bytes)[7:] + ".json"
    names = [layer_name.format(f"{number:064x}") for number in range(len(image.layers))]
    files = {name: layer.blob if compressed else layer.tar for name, layer in zip(names, image.layers)}
    files[config_name] = image.config_bytes
    files["manifest.json"] = json.dumps([{"Config": config_name, "RepoTags": list(tags), "Layers": names}]).encode()
    files["repositories"] = b"{}"
    return files


def has_layers(result, digests):
    assert result.failed is None and result.status == 0, result
    assert result.store.layers() == sorted({oci.stored_as(d) + ".sqsh" for d in digests}), result.store.layers()
    assert not result.store.names("names"), "a local image has no name that others see"
    return result


def test_oci_layout_is_found_by_single_entry_name_or_digest():
    directory = in_directory(layout_files({"v1": two}))
    for location in (f"oci:{directory}", f"oci:{directory}:v1", f"oci:{directory}:{two.digest}"):
        succeeds(local(location), two)


def test_layout_with_several_images_requires_a_name():
    directory = in_directory(layout_files({"v1": small, "registry:5000/a/b:v2": two}))
    succeeds(local(f"oci:{directory}:registry:5000/a/b:v2"), two)
    fails(local(f"oci:{directory}"), "several images", '"v1"', '"registry:5000/a/b:v2"', "after a ':'")
    fails(local(f"oci:{directory}:v3"), 'no image "v3"', '"v1"')


def test_local_image_second_start_converts_nothing():
    directory = in_directory(layout_files({"v1": two}))
    first = succeeds(local(f"oci:{directory}"), two)
    again = local(f"oci:{directory}", store=first.store)
    assert again.done == first.done and not again.published, again
    record = first.store.record(first.done)
    assert int.from_bytes(record[16:24], "little") == 0, "the record of a local image is public"


ALICE, BOB = 1001, 1002


def without_layers(image, replaced=None):
    """Returns the image of a user who knows manifest and configuration, but not the content."""
    files = layout_files({"v1": image})
    for layer in image.layers:
        del files["blobs/sha256/" + layer.digest[7:]]
    return {**files, **(replaced or {})}


def test_local_image_digests_alone_give_no_access():
    store = new_store()
    succeeds(local("oci:" + in_directory(layout_files({"v1": two})), store=store, uid=ALICE), two)

    def is_refused(result, *texts):
        result.store = store
        refused(result, *texts)
        assert not result.published, result
    # A layout or archive without the layers, or with others of the same size, is no proof.
    other = {"blobs/sha256/" + layer.digest[7:]: bytes(len(layer.blob)) for layer in two.layers}
    for replaced, text in (({}, "is missing"), (other, "has digest")):
        files = without_layers(two, replaced)
        for location in ("oci:" + in_directory(files), "oci-archive:" + as_tar(files), "oci:" + in_directory(files) + ":" + two.digest):
            is_refused(local(location, store=store, uid=BOB), text, "layer")
    # Its digest at a registry is no proof either, even if the registry serves the manifest.
    copy = registry.repository("guessed", two)
    for one in two.layers:
        del copy.blobs[one.digest]
    for policy in ("newer", "missing", "always", "never"):
        is_refused(pull("guessed", "@" + two.digest, store=store, pull=policy, uid=BOB), "never" if policy == "never" else "layer")
        is_refused(pull("unknown", "@" + two.digest, store=store, pull=policy, uid=BOB))
    # A user with the content gets the image, stored separately from alice's.
    delivered = os.path.join(store.path, "images/delivered")

    def deliveries_of(uid):
        return [name for name in os.listdir(delivered) if str(uid) in open(os.path.join(delivered, name)).read()]
    assert len(deliveries_of(ALICE)) == 2 and not deliveries_of(BOB)
    succeeds(local("oci:" + in_directory(layout_files({"v1": two})), store=store, uid=BOB), two)
    assert len(deliveries_of(BOB)) == 2


def test_local_list_images_are_selected_by_platform():
    other = oci.Image([oci.Layer({"other": b"arm64"})], architecture="arm64")
    entries = [entry(other, platform={"os": "linux", "architecture": "arm64"}),
               entry(small, platform={"os": "linux", "architecture": "amd64"})]
    directory = in_directory(layout_files({"a": small, "b": other}, entries))
    succeeds(local(f"oci:{directory}"), small)
    succeeds(local(f"oci:{directory}", platform="linux/arm64"), other)
    fails(local(f"oci:{directory}", platform="linux/riscv64"), "linux/riscv64", "linux/amd64", "linux/arm64")


def test_oci_archive_is_imported():
    path = as_tar(layout_files({"v1": two}))
    succeeds(local(f"oci-archive:{path}"), two)
    succeeds(local(f"oci-archive:{path}:v1"), two)
    succeeds(local(path), two)
    fails(local(f"oci-archive:{path}:v2"), 'no image "v2"', '"v1"')


def test_docker_archive_description_is_reproducible():
    path = as_tar(docker_save(two))
    first = has_layers(local(f"docker-archive:{path}"), [layer.diff_id for layer in two.layers])
    again = local(f"docker-archive:{path}:team/app:1", store=first.store)
    assert again.done == first.done and not again.published, again
    assert local(f"docker-archive:{path}:docker.io/team/app:1").done == first.done
    fails(local(f"docker-archive:{path}:team/app:2"), 'no image "team/app:2"', '"team/app:1"')


def test_docker_archive_with_linked_or_compressed_layers_works():
    files = docker_save(two)
    lower = f"{0:064x}/layer.tar"
    files["shared/layer.tar"] = files.pop(lower)
    has_layers(local(as_tar(files, [(lower, "../shared/layer.tar")])), [layer.diff_id for layer in two.layers])
    has_layers(local(as_tar(docker_save(two, layer_name="{}.tar.gz", compressed=True))), [layer.digest for layer in two.layers])


def test_docker_25_archive_is_recognised_by_content():
    files = layout_files({"latest": two})
    index = json.loads(files["index.json"])
    index["manifests"][0]["annotations"]["io.containerd.image.name"] = "docker.io/team/app:latest"
    files["index.json"] = json.dumps(index).encode()
    files["manifest.json"] = docker_save(two)["manifest.json"]
    path = as_tar(files)
    succeeds(local(f"docker-archive:{path}"), two)
    succeeds(local(f"docker-archive:{path}:team/app"), two)


def test_compressed_archive_is_unpacked_once_and_reported():
    zstd = lambda data: subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout
    for compress in (lambda data: gzip.compress(data, 1), *((zstd,) if shutil.which("zstd") else ())):
        path = as_tar(layout_files({"v1": two}), compress=compress)
        result = succeeds(local(path, environment={"TMPDIR": work}), two)
        assert any("unpacking" in line for line in result.progress), result
        assert not [name for name in os.listdir(work) if name.startswith("tmp.")], "a temporary file has a name"


def test_root_file_system_tar_is_an_image_of_one_layer():
    path = as_tar({"bin/sh": b"#!", "etc/os-release": b"ID=test\n"})
    with open(path, "rb") as file:
        digest = oci.digest(file.read())
    result = local(path)
    # Its directories have no entries.
    assert result.done and result.store.layers() == [oci.stored_fitted([digest]) + ".sqsh"], result
    assert local(path, store=result.store).done == result.done
    fails(local(f"oci-archive:{path}:v1"), "unnamed root file system")


def test_damaged_layouts_and_archives_are_refused():
    files = layout_files({"v1": two})
    blob = "blobs/sha256/" + two.layers[0].digest[7:]
    manifest = "blobs/sha256/" + two.digest[7:]
    flipped = bytes([files[blob][20] ^ 1])
    damaged = {blob: files[blob][:20] + flipped + files[blob][21:]}
    fails(local("oci:" + in_directory({**files, **damaged})), two.layers[0].digest)
    fails(local("oci:" + in_directory({**files, blob: files[blob][:-1]})), "bytes instead of")
    fails(local("oci:" + in_directory({**files, manifest: files[manifest] + b" "})), "has digest", "save the image again")
    fails(local("oci:" + in_directory({k: v for k, v in files.items() if k != blob})), "is missing")
    fails(local("oci:" + in_directory({k: v for k, v in files.items() if k != "oci-layout"})), "no file oci-layout")
    fails(local("oci:" + in_directory({**files, "index.json": b"[]"})), "index.json")
    path = as_tar(files)
    os.truncate(path, os.path.getsize(path) // 2)
    fails(local(path), "truncated")
    fails(local(as_tar(files, compress=lambda data: gzip.compress(data, 1)[:-9])), "unpack", "is truncated")
    fails(local(as_tar(files, compress=lambda data: b"BZh9" + data)), "bzip2", "gzip or zstd")
    fails(local(as_tar({"README": b"text"})), "is not an image")


def test_special_files_are_refused_without_waiting():
    fifo = tempfile.mktemp(dir=work)
    os.mkfifo(fifo)
    fails(local(f"oci-archive:{fifo}"), "is not a regular file")
    fails(local(f"oci-archive:{work}"), "is not a regular file")
    fails(local("oci-archive:/dev/zero"), "is not a regular file")
    fails(local(f"oci-archive:{work}/nothing.tar"), "no such file")
    fails(local(f"oci:{work}/nothing"), "no such file")
    directory = in_directory(layout_files({"v1": small}))
    blob = os.path.join(directory, "blobs/sha256", small.layers[0].digest[7:])
    os.unlink(blob)
    os.mkfifo(blob)
    fails(local(f"oci:{directory}"), "is not a regular file")


def test_link_leading_out_of_a_layout_is_refused():
    directory = in_directory(layout_files({"v1": small}))
    blob = os.path.join(directory, "blobs/sha256", small.layers[0].digest[7:])
    outside = tempfile.mktemp(dir=work)
    os.rename(blob, outside)
    os.symlink(outside, blob)
    fails(local(f"oci:{directory}"), "leads out of the directory")
    os.unlink(blob)
    os.rename(outside, directory + "/elsewhere")
    os.symlink("../../elsewhere", blob)
    succeeds(local(f"oci:{directory}"), small)


def test_archive_shrinking_while_read_is_refused():
    big = oci.Image([oci.Layer({"data": noise.randbytes(8 << 20)})])
    path = as_tar(layout_files({"v1": big}))

    def shrink(_):
        os.truncate(path, os.path.getsize(path) // 2)

    fails(local(path, on_new_layer=shrink), "layer")


def test_missing_reader_process_is_reported():
    result = agent.run(store := new_store(), "oci:/nowhere", config=config())
    result.store = store
    fails(result, "no process reads")


class FakeDocker(threading.Thread):
    """Answers like the docker engine: GET /images/NAME/get."""

    def __init__(self, images):
        super().__init__(daemon=True)
        self.images, self.path, self.asked = images, tempfile.mktemp(dir=work), []
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.path)
        self.socket.listen()
        self.start()

    def run(self):
        while True:
            connection, _ = self.socket.accept()
            with connection:
                request = b""
                while b"\r\n\r\n" not in request:
                    request += connection.recv(4096)
                target = request.split()[1].decode()
                self.asked.append(target)
                data = self.images.get(target)
                if data is None:
                    body = b'{"message":"reference does not exist"}'
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                    continue
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-tar\r\nTransfer-Encoding: chunked\r\n\r\n")
                for at in range(0, len(data), 65536):
                    piece = data[at:at + 65536]
                    connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
                connection.sendall(b"0\r\n\r\n")


def test_fake_docker_daemon_image_is_imported():
    with open(as_tar(docker_save(two)), "rb") as file:
        daemon = FakeDocker({"/images/team%2Fapp%3A1/get": file.read()})
    environment = {"DOCKER_HOST": "unix://" + daemon.path}
    has_layers(local("dockerd://team/app:1", environment=environment), [layer.diff_id for layer in two.layers])
    fails(local("dockerd://team/app:2", environment=environment), "no such image", "docker images")
    fails(local("dockerd://team/app:1", environment={"DOCKER_HOST": "unix:///nowhere"}), "cannot connect")
    fails(local("dockerd://team/app:1", environment={"DOCKER_HOST": "tcp://host:2375"}), "only a local daemon")


def test_podman_storage_is_read_by_skopeo_without_podman():
    storage = tempfile.mkdtemp(dir=work)
    with open(storage + "/storage.conf", "w") as file:
        file.write(f'[storage]\ndriver = "vfs"\nrunroot = "{storage}/run"\ngraphroot = "{storage}/graph"\n')
    os.symlink(shutil.which("skopeo"), storage + "/skopeo")
    environment = {"PATH": storage, "CONTAINERS_STORAGE_CONF": storage + "/storage.conf", "TMPDIR": storage}
    directory = in_directory(layout_files({"v1": two}))
    subprocess.run(["skopeo", "copy", "--quiet", f"oci:{directory}:v1", "containers-storage:localhost/team/app:1"], check=True,
                   env={**os.environ, **environment})
    has_layers(local("podman://localhost/team/app:1", environment=environment), [layer.diff_id for layer in two.layers])
    fails(local("podman://localhost/team/app:2", environment=environment), "has no such image", "localhost/team/app:2")


def test_podman_and_skopeo_missing_or_fake_are_reported():
    fails(local("podman://team/app:1", environment={"PATH": work}), "neither podman nor skopeo", "podman save")
    programs = tempfile.mkdtemp(dir=work)
    archive = as_tar(docker_save(two))
    with open(programs + "/podman", "w") as file:
        file.write(f"#!/bin/sh\n[ \"$*\" = 'save --quiet --format docker-archive team/app:1' ] && exec cat {archive}\n"
                   "echo 'Error: no such image' >&2; exit 125\n")
    os.chmod(programs + "/podman", 0o755)
    environment = {"PATH": programs + ":/usr/bin:/bin"}
    has_layers(local("podman://team/app:1", environment=environment), [layer.diff_id for layer in two.layers])
    fails(local("podman://team/app:2", environment=environment), "has no such image", "podman images lists them")
    os.mkdir(programs + "/only-skopeo")
    with open(programs + "/only-skopeo/skopeo", "w") as file:
        file.write("#!/bin/sh\nfor text in 'finding newgidmap: not found' '(Unable to determine exit status)'; do\n"
                   '    echo "level=error msg=\\"$text\\"" >&2\ndone\nexit 1\n')
    os.chmod(programs + "/only-skopeo/skopeo", 0o755)
    fails(local("podman://team/app:1", environment={"PATH": programs + "/only-skopeo"}), "status 1: finding newgidmap: not found")
