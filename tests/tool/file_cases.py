"""Images in files: export, import, run of a path."""

import json
import os
import re
import struct
import subprocess
import tarfile

import machine
from machine import base, home, image, user


def path(name):
    return os.path.join(home, name)


def listing(squashfs):
    return subprocess.run(["unsquashfs", "-lln", squashfs], stdout=subprocess.PIPE, text=True, check=True).stdout


def test_exported_squashfs_has_enroot_files_and_runs_again():
    user("pull", base()).succeeds()
    user("export", base(), "base.sqsh").succeeds()
    names = listing(path("base.sqsh"))
    for name in ("etc/rc", "etc/environment", "etc/fstab", "usr/bin/env"):
        assert f"squashfs-root/{name}" in names, name
    text = subprocess.run(["unsquashfs", "-cat", path("base.sqsh"), "etc/rc"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "cd '/workspace' && unset OLDPWD || exit 1" in text and 'exec' in text, text
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    user("run", "-q", "./base.sqsh", "sh", "-c", "pwd; echo $GREETER; echo x > /etc/new; id -u").succeeds(f"/workspace\nbase\n{machine.UID}\n")
    assert user("run", "-q", "./base.sqsh").succeeds().out == user("run", "-q", base()).succeeds().out


def test_export_never_overwrites_without_request():
    user("pull", base()).succeeds()
    machine.write(path("precious"), "precious")
    user("export", base(), "precious").fails(1, "already exists", "--force")
    user("export", base(), ".").fails(1, "directory")
    user("export", base(), "no/such/directory/file").fails(1, "no such file or directory")
    user("export", f"{machine.registry.name}/nope:1", "file").fails(1, "no image")
    with open(path("precious")) as file:
        assert file.read() == "precious"
    os.chown(path("precious"), machine.UID, machine.UID)
    user("export", "--force", base(), "precious").succeeds()
    assert "squashfs-root/etc/rc" in listing(path("precious"))
    assert [name for name in os.listdir(home) if name.startswith(".precious")] == []


def test_imported_squashfs_needs_its_file_no_more():
    user("pull", base()).succeeds()
    user("export", "--force", base(), "gone.sqsh").succeeds()
    digest = user("import", "./gone.sqsh", "localhost/mine:2").succeeds().out.strip()
    os.unlink(path("gone.sqsh"))
    user("images").succeeds("localhost/mine:2", digest[7:19])
    user("run", "-q", "localhost/mine:2", "sh", "-c", "pwd; echo $GREETER").succeeds("/workspace\nbase\n")
    user("export", "localhost/mine:2", "again.sqsh").succeeds()
    user("run", "-q", "./again.sqsh", "cat", "/etc/os-release").succeeds("Debian")
    with open(machine.store("records", digest[7:]), "r+b") as record:  # as a version with another format of layers would find it
        record.seek(12)
        record.write(bytes([99]))
    user("run", "-q", "localhost/mine:2", "sh", "-c", "echo $GREETER").succeeds("base\n")
    user("gc", "--yes").succeeds()
    user("run", "-q", "localhost/mine:2", "sh", "-c", "echo $GREETER").succeeds("base\n")
    user("rm", "localhost/mine:2").succeeds("removed 1 image and 1 layer")


def test_oci_archive_round_trip_works():
    name = image("there-and-back", [{"etc/hello": b"hello\n", "deep/er/file": b"x" * 70000}, {"etc/.wh.hello": b"", "etc/new": b"n"}])
    user("pull", name).succeeds()
    user("export", name, "oci-archive:out.tar").succeeds()
    with tarfile.open(path("out.tar")) as archive:
        index = json.load(archive.extractfile("index.json"))
        manifest = json.load(archive.extractfile("blobs/sha256/" + index["manifests"][0]["digest"][7:]))
        config = json.load(archive.extractfile("blobs/sha256/" + manifest["config"]["digest"][7:]))
        with tarfile.open(fileobj=archive.extractfile("blobs/sha256/" + manifest["layers"][0]["digest"][7:])) as layer:
            names = layer.getnames()
            assert layer.getmember("deep/er/file").size == 70000
    assert "etc/new" in names and "etc/hello" not in names, names
    assert config["config"]["WorkingDir"] == "/srv" and config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    subprocess.run(["skopeo", "inspect", f"oci-archive:{path('out.tar')}"], stdout=subprocess.DEVNULL, check=True)
    user("import", "oci-archive:out.tar", "localhost/back:1").succeeds("sha256:")
    assert user("inspect", "--json", "localhost/back:1").json()["config"]["config"]["WorkingDir"] == "/srv"


def test_export_of_the_same_image_is_reproducible():
    name = image("same/bytes", [{f"dir{n % 7}/file{n}": bytes([n % 251]) * (n * 37) for n in range(300)}, {"dir1/.wh.file1": b"", "etc/x": b"x"}])
    for one in (name, base()):
        user("pull", one).succeeds()
        for ending in ("sqsh", "tar", "sif"):
            for number in (1, 2):
                user("export", "--force", one, f"same{number}.{ending}").succeeds()
            subprocess.run(["cmp", path(f"same1.{ending}"), path(f"same2.{ending}")], check=True)
    user("export", "--force", base(), "old.sqsh", SOURCE_DATE_EPOCH="1000000000").succeeds()
    times = subprocess.run(["unsquashfs", "-lls", "-UTC", path("old.sqsh")], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert " 2001-09-09 01:46 squashfs-root/etc/rc" in times and not re.search(r" 20[2-9]\d-\d\d-\d\d ", times), times[:2000]
    user("export", "--force", base(), "old.tar", SOURCE_DATE_EPOCH="1000000000").succeeds()
    with tarfile.open(path("old.tar")) as archive:
        layer = max(archive.getmembers(), key=lambda member: member.size)
        with tarfile.open(fileobj=archive.extractfile(layer)) as tree:
            assert max(member.mtime for member in tree) == 1000000000


def test_squashfs_becomes_an_archive_with_its_settings():
    user("pull", base()).succeeds()
    user("export", "--force", base(), "with-settings.sqsh").succeeds()
    user("export", "--force", "./with-settings.sqsh", "with-settings.tar").succeeds()
    user("import", "oci-archive:with-settings.tar", "localhost/with-settings:1").succeeds()
    user("run", "-q", "localhost/with-settings:1", "sh", "-c", "pwd; echo $GREETER").succeeds("/workspace\nbase\n")


def test_directory_is_run_but_not_imported():
    tree = path("tree")
    os.makedirs(tree, exist_ok=True)
    machine.write(os.path.join(tree, "file"), "in the tree\n")
    for directory, _, files in os.walk(tree):
        for name in (directory, *(os.path.join(directory, file) for file in files)):
            os.chown(name, machine.UID, machine.UID)
    mounts = "--mounts=/usr:/usr:ro,/lib:/lib,/lib64:/lib64"
    user("run", "-q", mounts, "./tree", "/usr/bin/cat", "/file").succeeds("in the tree\n")
    user("run", "-q", mounts, "./tree", "/usr/bin/touch", "/made").succeeds()
    assert sorted(os.listdir(tree)) == ["file"]
    user("import", "./tree", "localhost/tree:1").fails(1, "directory")
    user("import", "./no-such-file", "localhost/x:1").fails(1, "no-such-file")


def test_archive_is_exported_in_one_command_as_a_program():
    made = image("lab/one-command", [{"file": b"x"}])
    subprocess.run(["skopeo", "copy", "-q", "--insecure-policy", "--src-tls-verify=false", f"docker://{made}", f"docker-archive:{path('one.tar')}"], check=True)
    os.chmod(path("one.tar"), 0o644)
    user("export", "docker-archive:one.tar", "one.sif").succeeds()
    assert os.access(path("one.sif"), os.X_OK) and not os.access(path("one.tar"), os.X_OK)
    user("run", "-q", "--mounts=/usr:/usr:ro,/lib:/lib,/lib64:/lib64", "./one.sif", "/usr/bin/cat", "/file").succeeds("x")
    user("export", "docker-archive:none.tar", "none.sif").fails(1, "none.tar")


def test_directory_of_a_group_without_its_id_here_runs():
    """As in a project's directory with the set-group-ID bit: a user namespace has the caller's own group only."""
    tree = path("tree-of-group")
    for name in ("etc", "home", "usr", "lib", "lib64", "tmp"):
        os.makedirs(os.path.join(tree, name), exist_ok=True)
    for directory, _, _ in os.walk(tree):
        os.chown(directory, machine.UID, 0)
    done = user("run", "-q", "--mounts=/usr:/usr:ro,/lib:/lib,/lib64:/lib64", "./tree-of-group", "/usr/bin/touch", "/tmp/made").succeeds()
    said = [line for line in done.err.splitlines() if line.startswith("warning: ")]
    assert len(said) == 1 and said[0].startswith("warning: the image belongs to another user or group: "), done.err


def sif_parts(file):
    """Returns the entries of a SIF file by the format's own description: name, type, offset, size and partition data."""
    with open(file, "rb") as opened:
        data = opened.read()
    magic, version, arch, number, made, changed, free, total, table, table_bytes, begin, size = struct.unpack_from("<32x10s3s3s16sqqqqqqqq", data)
    assert data.startswith(b"#!/usr/bin/env run-singularity\n\0") and (magic, version, arch) == (b"SIF_MAGIC\0", b"01\0", b"02\0"), data[:128]
    assert (total, table, table_bytes) == (48, 4096, 48 * 585) and begin >= table + table_bytes and begin + size == len(data)
    parts = []
    for at in range(table, table + table_bytes, 585):
        kind, used, entry, group, link, offset, length, padded, since, until, uid, gid, name = struct.unpack_from("<i?IIIqqqqqqq128s", data, at)
        if used:
            parts.append((name.rstrip(b"\0").decode(), kind, offset, length, struct.unpack_from("<ii3s", data, at + 201)))
    assert len(parts) == total - free and number != bytes(16) and made == changed
    return {name: (kind, data[offset:offset + length], offset, extra) for name, kind, offset, length, extra in parts}


def test_exported_sif_has_apptainer_files_and_runs_again():
    user("pull", base()).succeeds()
    user("export", base(), "base.sif").succeeds()
    parts = sif_parts(path("base.sif"))
    kind, root, offset, extra = parts["squashfs.img"]
    assert (kind, offset % 4096, extra) == (0x4004, 0, (1, 2, b"02\0")), parts["squashfs.img"][2:]
    assert json.loads(parts["oci-config.json"][1])["config"]["WorkingDir"] == "/workspace"
    write_bytes("root.sqsh", root)
    names = listing(path("root.sqsh"))
    assert "squashfs-root/.singularity.d/runscript" in names and "squashfs-root/etc/rc\n" not in names, names
    for name in ("runscript", "env/10-docker2singularity.sh"):
        text = subprocess.run(["unsquashfs", "-cat", path("root.sqsh"), ".singularity.d/" + name], stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["sh", "-n"], input=text, check=True)
    user("run", "-q", "./base.sif", "sh", "-c", "echo $GREETER").succeeds("base\n")
    assert user("run", "-q", "./base.sif").succeeds().out == user("run", "-q", base()).succeeds().out
    user("import", "./base.sif", "localhost/sif:1").succeeds()
    user("export", "localhost/sif:1", "again.sif").succeeds()
    assert listing_of_sif("again.sif") == listing_of_sif("base.sif")


def write_bytes(name, data):
    with open(path(name), "wb") as file:
        file.write(data)


def listing_of_sif(name):
    write_bytes("part.sqsh", sif_parts(path(name))["squashfs.img"][1])
    return [line.split()[-1] for line in listing(path("part.sqsh")).splitlines()]
