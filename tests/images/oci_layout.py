#!/usr/bin/env python3
"""Writes OCI image layouts: turns directories into layers and layers into an image.

    oci_layout.py layer DIRECTORY BLOBS RECORD --comment TEXT
        packs DIRECTORY (a plain tree, or the upper directory of an overlay, whose whiteouts and opaque directories
        become .wh. entries) into BLOBS/<sha256>, gzip level 6, and writes what an image needs to know to RECORD
    oci_layout.py image LAYOUT CONFIG RECORD...
        completes LAYOUT (whose blobs are there) with config, manifest, index and oci-layout
"""

import argparse
import datetime
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"


def architecture():
    return subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout.strip()


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Blob:
    """A file that is named by its digest once it is complete."""

    def __init__(self, blobs):
        self.blobs = Path(blobs)
        self.part = self.blobs / f".part-{os.getpid()}-{id(self)}"
        self.file = open(self.part, "wb")
        self.hash = hashlib.sha256()
        self.size = 0

    def write(self, data):
        self.file.write(data)
        self.hash.update(data)
        self.size += len(data)

    def commit(self):
        self.file.close()
        os.rename(self.part, self.blobs / self.hash.hexdigest())
        return {"digest": f"sha256:{self.hash.hexdigest()}", "size": self.size}


def put_bytes(blobs, data):
    blob = Blob(blobs)
    blob.write(data)
    return blob.commit()


def put_json(blobs, value):
    return put_bytes(blobs, json.dumps(value, separators=(",", ":")).encode())


class LayerWriter:
    """A layer as it streams: tar in, gzip (by pigz, on all processors, where it is installed) and both digests out."""

    def __init__(self, blobs):
        self.blob = Blob(blobs)
        self.diff = hashlib.sha256()
        gzip = shutil.which("pigz") or "gzip"
        self.gzip = subprocess.Popen([gzip, "-6", "-n", "-c"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.drain = threading.Thread(target=self._take_output)
        self.drain.start()

    def _take_output(self):
        while data := self.gzip.stdout.read(1 << 20):
            self.blob.write(data)

    def write(self, data):
        self.diff.update(data)
        self.gzip.stdin.write(data)
        return len(data)

    def commit(self, comment):
        self.gzip.stdin.close()
        self.drain.join()
        if self.gzip.wait() != 0:
            raise RuntimeError(f"gzip failed with status {self.gzip.returncode}")
        return {**self.blob.commit(), "diff_id": f"sha256:{self.diff.hexdigest()}", "comment": comment}


def has_overlay_flag(path, name):
    try:
        return os.getxattr(path, f"trusted.overlay.{name}", follow_symlinks=False)
    except OSError:
        return None


def is_whiteout(status):
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


class TreePacker:
    """Adds a tree to a tar in name order, parents first; owners are numbers, as docker writes them."""

    def __init__(self, root, tar):
        self.root, self.tar = str(root), tar
        self.links = {}  # (device, inode) -> the name it was added under

    def add_directory(self, name=""):
        for entry in sorted(os.listdir(os.path.join(self.root, name))):
            self.add(os.path.join(name, entry))

    def add(self, name):
        path = os.path.join(self.root, name)
        status = os.lstat(path)
        if is_whiteout(status):
            self.add_mark(os.path.join(os.path.dirname(name), ".wh." + os.path.basename(name)))
        elif stat.S_ISDIR(status.st_mode):
            if has_overlay_flag(path, "redirect"):
                raise RuntimeError(f'"{path}" is a redirected directory; mount the overlay with redirect_dir=off')
            self.add_entry(name, path, status, tarfile.DIRTYPE)
            if has_overlay_flag(path, "opaque") == b"y":
                self.add_mark(os.path.join(name, ".wh..wh..opq"))
            self.add_directory(name)
        elif stat.S_ISLNK(status.st_mode):
            self.add_entry(name, path, status, tarfile.SYMTYPE, linkname=os.readlink(path))
        elif stat.S_ISREG(status.st_mode):
            self.add_file(name, path, status)
        elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            self.add_entry(name, path, status, tarfile.CHRTYPE if stat.S_ISCHR(status.st_mode) else tarfile.BLKTYPE)
        elif stat.S_ISFIFO(status.st_mode):
            self.add_entry(name, path, status, tarfile.FIFOTYPE)
        # A socket has no form in a tar and no use in an image.

    def add_file(self, name, path, status):
        first = self.links.setdefault((status.st_dev, status.st_ino), name)
        if first != name:
            self.add_entry(name, path, status, tarfile.LNKTYPE, linkname=first)
            return
        with open(path, "rb") as content:
            self.add_entry(name, path, status, tarfile.REGTYPE, size=status.st_size, content=content)

    def add_entry(self, name, path, status, kind, size=0, linkname="", content=None):
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname = kind, size, linkname
        info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        info.uid, info.gid = status.st_uid, status.st_gid
        info.devmajor, info.devminor = os.major(status.st_rdev), os.minor(status.st_rdev)
        if kind == tarfile.REGTYPE:
            for key in os.listxattr(path, follow_symlinks=False):
                if key.startswith(("user.", "security.capability")):
                    value = os.getxattr(path, key, follow_symlinks=False)
                    info.pax_headers[f"SCHILY.xattr.{key}"] = value.decode("utf-8", "surrogateescape")
        self.tar.addfile(info, content)

    def add_mark(self, name):
        self.tar.addfile(tarfile.TarInfo(name), io.BytesIO())


def open_tar(output):
    return tarfile.open(fileobj=output, mode="w|", bufsize=1 << 20, format=tarfile.PAX_FORMAT, copybufsize=1 << 20)


def write_layer(blobs, comment, fill):
    """Packs what fill(tar) adds; returns the layer's record."""
    layer = LayerWriter(blobs)
    with open_tar(layer) as tar:
        fill(tar)
    return layer.commit(comment)


def write_layer_of(directory, blobs, comment):
    return write_layer(blobs, comment, lambda tar: TreePacker(directory, tar).add_directory())


def write_image(layout, config, layers):
    """Completes a layout whose layers are in place. oci-layout comes last: without it nothing is an image."""
    blobs = Path(layout) / "blobs/sha256"
    created = now()
    image = {
        "created": created,
        "architecture": architecture(),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer["diff_id"] for layer in layers]},
        "history": [{"created": created, "created_by": layer["comment"]} for layer in layers],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, **put_json(blobs, image)},
        "layers": [{"mediaType": LAYER_TYPE, "digest": layer["digest"], "size": layer["size"]} for layer in layers],
    }
    reference = {
        "mediaType": MANIFEST_TYPE,
        **put_json(blobs, manifest),
        "annotations": {"org.opencontainers.image.ref.name": "latest"},
    }
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [reference]}
    (Path(layout) / "index.json").write_text(json.dumps(index))
    (Path(layout) / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')


def read_layout(layout):
    """The manifest and the config of a layout's only image."""
    layout = Path(layout)
    blob = lambda digest: layout / "blobs" / digest.replace(":", "/")
    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads(blob(index["manifests"][0]["digest"]).read_text())
    return manifest, json.loads(blob(manifest["config"]["digest"]).read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    layer = commands.add_parser("layer")
    layer.add_argument("directory")
    layer.add_argument("blobs")
    layer.add_argument("record")
    layer.add_argument("--comment", default="")
    image = commands.add_parser("image")
    image.add_argument("layout")
    image.add_argument("config")
    image.add_argument("records", nargs="+")
    arguments = parser.parse_args()

    if arguments.command == "layer":
        record = write_layer_of(arguments.directory, arguments.blobs, arguments.comment)
        Path(arguments.record).write_text(json.dumps(record))
    else:
        config = json.loads(Path(arguments.config).read_text())
        write_image(arguments.layout, config, [json.loads(Path(one).read_text()) for one in arguments.records])


if __name__ == "__main__":
    sys.exit(main())
