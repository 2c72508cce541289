"""Images that are files: squashfs, SIF and directories made of the base image, in /home/shared where every node sees them."""
import json
import os
import shutil
import struct
import subprocess
import tarfile

ENTRY = 585  # bytes of a descriptor in a SIF file
SQUASHFS, EXT3, ENCRYPTED = 1, 2, 5


def blob(layout, digest):
    return os.path.join(layout, "blobs", digest.replace(":", "/"))


def tree(cluster):
    """The base image unpacked, owned by root and others as the image says, with what the tests look for. Made once."""
    root = os.path.join(cluster.images, "tree")
    if os.path.isdir(root):
        return root
    document = json.load(open(os.path.join(cluster.base_layout, "index.json")))
    manifest = json.load(open(blob(cluster.base_layout, document["manifests"][0]["digest"])))
    os.makedirs(root)
    for layer in manifest["layers"]:
        with tarfile.open(blob(cluster.base_layout, layer["digest"])) as archive:
            archive.extractall(root, filter="fully_trusted") if hasattr(tarfile, "data_filter") else archive.extractall(root)
    os.makedirs(f"{root}/data/sub")
    for name in ("one", "two", "sub/three"):
        put(f"{root}/data/{name}", name + "\n")
    os.chown(f"{root}/data/two", 12, 34)
    put(f"{root}/data/setuid", "#!/bin/sh\n", 0o4755)
    put(f"{root}/etc/environment", "# of enroot\nFROM_FILE=enroot\nQUOTED=\"two words\"\nENROOT_SECRET=1\n")
    put(f"{root}/etc/rc", "#!/bin/sh\nmkdir -p \"/data/sub\" 2> /dev/null\ncd \"/data/sub\" && unset OLDPWD || exit 1\nexec \"$@\"\n", 0o755)
    return root


def put(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb" if isinstance(text, bytes) else "w") as file:
        file.write(text)
    os.chmod(path, mode)


def shared(cluster, name):
    """Returns the path of a file here, and its path for users."""
    return os.path.join(cluster.shared, name), f"/home/shared/{name}"


def mksquashfs(root, path, *options):
    if os.path.exists(path):
        os.unlink(path)
    subprocess.run(["mksquashfs", root, path, "-noappend", "-no-progress", "-quiet", *(options or ("-comp", "zstd", "-Xcompression-level", "1"))],
                   check=True, stdout=subprocess.DEVNULL)
    os.chmod(path, 0o644)


def squashfs(cluster, name="base.sqsh", *options):
    """The base image as a squashfs; made once a name. Returns the path for users."""
    here, there = shared(cluster, name)
    if not os.path.exists(here):
        mksquashfs(tree(cluster), here, *options)
    return there


def file_system(cluster, name, make):
    """The base image as what `make TREE FILE` writes; made once a name. Returns the path for users."""
    here, there = shared(cluster, name)
    if not os.path.exists(here):
        make(tree(cluster), here)
        os.chmod(here, 0o644)
    return there


def mke2fs(*options):
    def make(root, path):
        subprocess.run(["truncate", "-s", "700M", path], check=True)
        subprocess.run(["mke2fs", "-q", "-F", "-d", root, *options, path], check=True, stdout=subprocess.DEVNULL)
    return make


def mkfs_erofs(*options):
    return lambda root, path: subprocess.run(["mkfs.erofs", *options, path, root], check=True, stdout=subprocess.DEVNULL)


def sif_bytes(partition, file_system=SQUASHFS, part=2, architecture=b"02"):
    """A SIF file as Apptainer lays it out: header, table of 48 entries, a definition file, the partition."""
    start = 4096 + 48 * ENTRY
    definition = b"bootstrap: docker\nfrom: base\n"
    data = -(-(start + len(definition)) // 4096) * 4096

    def entry(kind, offset, size, extra=b""):
        return struct.pack("<i?IIIqqqqqqq", kind, True, 1, 0xf0000001, 0, offset, size, size, 0, 0, 0, 0).ljust(201, b"\0") + extra.ljust(384, b"\0")

    table = entry(0x4001, start, len(definition)) + entry(0x4004, data, len(partition), struct.pack("<ii3s", file_system, part, architecture))
    header = b"#!/usr/bin/env run-singularity\n\0" + b"SIF_MAGIC\0" + b"01\0" + b"02\0" + bytes(16)
    header += struct.pack("<qqqqqqqq", 0, 0, 46, 48, 4096, 48 * ENTRY, start, len(partition))
    head = header.ljust(4096, b"\0") + table.ljust(48 * ENTRY, b"\0") + definition
    return head.ljust(data, b"\0") + partition


def sif(cluster, name="base.sif", **how):
    """A SIF file round the base image, with Apptainer's scripts in it."""
    here, there = shared(cluster, name)
    if os.path.exists(here):
        return there
    root = os.path.join(cluster.images, "sif-tree")
    if not os.path.isdir(root):
        shutil.copytree(tree(cluster), root, symlinks=True)
        env = f"{root}/.singularity.d/env"
        put(f"{env}/10-docker2singularity.sh", "#!/bin/sh\nexport PATH=\"/usr/bin:/bin\"\nexport FROM_DOCKER=\"${FROM_DOCKER:-\"docker value\"}\"\n")
        put(f"{env}/90-environment.sh", "#!/bin/sh\nexport PATH=/opt/tool/bin:$PATH\nexport PLAIN='a b'\n")
        put(f"{env}/95-apps.sh", "export NOT_THIS=1\n")
        put(f"{root}/.singularity.d/runscript", "#!/bin/sh\nexec \"$@\"\n", 0o755)
    plain = os.path.join(cluster.images, "sif.sqsh")
    if not os.path.exists(plain):
        mksquashfs(root, plain)
    with open(here, "wb") as file:
        file.write(sif_bytes(open(plain, "rb").read(), **how))
    os.chmod(here, 0o644)
    return there
