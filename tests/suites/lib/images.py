"""Images made by code: OCI layouts with a few files in each layer."""
import functools
import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass, field

INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tar_of(entries):
    """entries: TarInfo, or (name, bytes) for a file, (name, None) for a directory, (name, "-> TARGET") for a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            info, data = entry if isinstance(entry, tuple) else (entry, b"")
            if not isinstance(info, tarfile.TarInfo):
                info = named(info, data)
            if isinstance(data, bytes):
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data) if isinstance(data, bytes) else None)
    return buffer.getvalue()


def named(name, data):
    info = tarfile.TarInfo(name)
    info.mode = 0o755
    if data is None:
        info.type = tarfile.DIRTYPE
    elif isinstance(data, str):
        info.type, info.linkname = tarfile.SYMTYPE, data.removeprefix("-> ")
    return info


def special(name, kind, major=0, minor=0, mode=0o666, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.devmajor, info.devminor, info.mode, info.linkname = kind, major, minor, mode, target
    return info


@dataclass
class Image:
    repository: str
    layers: list                  # of entries as tar_of takes them
    config: dict = field(default_factory=dict)
    tag: str = "1"
    below: str = ""               # an OCI layout whose layers come first
    architecture: str = "amd64"

    def parts(self):
        """(manifest, {digest: blob}) with every layer made anew."""
        blobs, descriptors, diff_ids, config = {}, [], [], {}
        if self.below:
            descriptors, diff_ids, config = self._layers_below(blobs)
        for entries in self.layers:
            archive = tar_of(entries)
            blob = gzip.compress(archive, 1, mtime=0)
            blobs[digest_of(blob)] = blob
            descriptors.append({"mediaType": LAYER, "digest": digest_of(blob), "size": len(blob)})
            diff_ids.append(digest_of(archive))
        document = json.dumps({"architecture": self.architecture, "os": "linux", "config": {**config, **self.config},
                               "rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()
        blobs[digest_of(document)] = document
        manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "layers": descriptors, "config": {
            "mediaType": CONFIG, "digest": digest_of(document), "size": len(document)}}).encode()
        return manifest, blobs

    def _layers_below(self, blobs):
        def blob(digest):
            return open(os.path.join(self.below, "blobs", digest.replace(":", "/")), "rb").read()

        index = json.load(open(os.path.join(self.below, "index.json")))
        manifest = json.loads(blob(index["manifests"][0]["digest"]))
        config = json.loads(blob(manifest["config"]["digest"]))
        blobs.update({layer["digest"]: blob(layer["digest"]) for layer in manifest["layers"]})
        return manifest["layers"], config["rootfs"]["diff_ids"], config["config"]

    def write_layout(self, parent):
        directory = tempfile.mkdtemp(dir=parent)
        os.makedirs(os.path.join(directory, "blobs/sha256"))
        manifest, blobs = self.parts()
        for data in (manifest, *blobs.values()):
            with open(os.path.join(directory, "blobs", digest_of(data).replace(":", "/")), "wb") as file:
                file.write(data)
        descriptor = {"mediaType": MANIFEST, "digest": digest_of(manifest), "size": len(manifest)}
        with open(os.path.join(directory, "index.json"), "w") as file:
            json.dump({"schemaVersion": 2, "manifests": [descriptor]}, file)
        with open(os.path.join(directory, "oci-layout"), "w") as file:
            file.write('{"imageLayoutVersion": "1.0.0"}')
        return directory


# Prints what is asked for without any library, shell or file of an image.
PROBE = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv) {
  char text[4096];
  for (int i = 1; i < argc; ++i) {
    struct stat status;
    if (lstat(argv[i], &status) != 0) { printf("%s: missing\n", argv[i]); continue; }
    printf("%s: mode %o uid %u\n", argv[i], status.st_mode, status.st_uid);
    if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode)) continue;
    int file = open(argv[i], O_RDONLY);
    ssize_t size;
    while (file >= 0 && (size = read(file, text, sizeof text)) > 0) fwrite(text, 1, size, stdout);
    if (file >= 0 && size < 0) printf("%s: %s\n", argv[i], strerror(errno));
    if (file >= 0) close(file);
  }
  printf("uid %u, in %s\n", geteuid(), getcwd(text, sizeof text));
  return 0;
}
"""


@functools.cache
def probe():
    """A static program: /probe FILE... tells kind, owner and text of files, then its user and
    directory. It waits for the writer of a FIFO."""
    with tempfile.TemporaryDirectory() as directory:
        source, program = os.path.join(directory, "probe.c"), os.path.join(directory, "probe")
        with open(source, "w") as file:
            file.write(PROBE)
        subprocess.run(["cc", "-static", "-Os", "-s", "-o", program, source], check=True)
        return open(program, "rb").read()


def with_probe(name, entries, **config):
    """Returns an image with /probe and these entries only."""
    return Image(f"suites/{name}", [[("probe", probe()), *entries]], config)
