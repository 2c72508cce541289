"""Makes small images in memory: layers, configurations, manifests, indexes."""

import gzip
import hashlib
import io
import json
import tarfile

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER_FORMAT = 3  # kLayerFormat in runtime/image/store/store.hpp
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def descriptor(media_type, data, **more):
    return {"mediaType": media_type, "digest": digest(data), "size": len(data), **more}


def stored_as(layer_digest):
    """Returns the store's name of a layer that is independent of lower layers, derived from the
    digest and the format."""
    return f"{layer_digest[7:-2]}{int(layer_digest[-2:], 16) ^ (LAYER_FORMAT - 1):02x}"


def stored_fitted(digests):
    """Returns the store's name of the topmost of these layers if it was fitted to lower ones."""
    chain = b""
    for digest_of_layer in digests:
        chain = hashlib.sha256(chain + bytes.fromhex(digest_of_layer[7:])).digest()
    return stored_as("sha256:" + bytes(255 - byte for byte in chain).hex())


def tar_of(files):
    """Returns a tar archive with an entry for each directory, as builders write it."""
    out = io.BytesIO()
    directories = {"/".join(name.split("/")[:depth]) for name in files for depth in range(1, name.count("/") + 1)}
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(directories):
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, 1
            tar.addfile(info)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode, info.mtime = 0o644, 1
            if isinstance(content, str):  # the target of a link
                info.type, info.linkname, content = tarfile.SYMTYPE, content, b""
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


class Layer:
    def __init__(self, files, tar=None):
        self.tar = tar_of(files) if tar is None else tar
        self.blob = gzip.compress(self.tar, 1, mtime=0)
        self.digest, self.diff_id = digest(self.blob), digest(self.tar)


class Image:
    """An image. `manifest` and `config` may be changed before seal(), which fixes bytes and
    digests."""

    def __init__(self, layers, docker=False, architecture="amd64", env=("PATH=/usr/bin",)):
        self.layers = layers
        self.media_type = DOCKER_MANIFEST if docker else OCI_MANIFEST
        self.config_type = DOCKER_CONFIG if docker else OCI_CONFIG
        layer_type = DOCKER_LAYER if docker else OCI_LAYER
        self.config = {
            "architecture": architecture, "os": "linux",
            "config": {"Env": list(env), "Cmd": ["/bin/sh"], "WorkingDir": "/srv"},
            "rootfs": {"type": "layers", "diff_ids": [l.diff_id for l in layers]},
            "history": [{"created_by": "test"} for _ in layers],
        }
        self.manifest = {
            "schemaVersion": 2, "mediaType": self.media_type,
            "layers": [descriptor(layer_type, l.blob) for l in layers],
        }
        self.seal()

    def seal(self):
        self.config_bytes = json.dumps(self.config).encode()
        self.manifest["config"] = descriptor(self.config_type, self.config_bytes)
        self.bytes = json.dumps(self.manifest).encode()
        self.digest = digest(self.bytes)
        return self

    def blobs(self):
        return {self.digest_of(b): b for b in [self.config_bytes] + [l.blob for l in self.layers]}

    @staticmethod
    def digest_of(data):
        return digest(data)


def index(entries, media_type=OCI_INDEX):
    """`entries`: (image, platform or None)"""
    manifests = []
    for image, platform in entries:
        item = descriptor(image.media_type, image.bytes)
        if platform:
            system, architecture = platform.split("/")[:2]
            item["platform"] = {"os": system, "architecture": architecture}
            if platform.count("/") == 2:
                item["platform"]["variant"] = platform.split("/")[2]
        manifests.append(item)
    return json.dumps({"schemaVersion": 2, "mediaType": media_type, "manifests": manifests}).encode()
