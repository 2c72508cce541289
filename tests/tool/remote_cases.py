"""Images that are files at a server: oras:// and https://."""

import json
import os
import random
import subprocess

import local_files
import machine
import oci
from machine import base, home, registry, user

SIF = "application/vnd.sylabs.sif.layer.v1.sif"
SIF_CONFIG = "application/vnd.sylabs.sif.config.v1+json"


def made(name, make):
    """The bytes of a file that is made once, of the exported base image."""
    path = os.path.join(home, name)
    if not os.path.exists(path):
        make(path)
    with open(path, "rb") as file:
        return file.read()


def squashfs():
    user("pull", base()).succeeds()
    return made("remote.sqsh", lambda path: user("export", base(), path).succeeds())


def sif(**how):
    """The base image as Apptainer would have it, with labels and an environment."""
    def pack(path):
        squashfs()
        tree = os.path.join(machine.work, "sif-tree")
        subprocess.run(["unsquashfs", "-q", "-n", "-d", tree, os.path.join(home, "remote.sqsh")], check=True, stdout=subprocess.DEVNULL)
        os.makedirs(f"{tree}/.singularity.d/env")
        machine.write(f"{tree}/.singularity.d/env/90-environment.sh", "export FROM_SIF='of the file'\n")
        machine.write(f"{tree}/.singularity.d/env/91-shell.sh", "FROM_SHELL=$(echo \"$FROM_SIF, by a shell\"); OPTION=script; export FROM_SHELL OPTION\n")
        machine.write(f"{tree}/.singularity.d/labels.json", json.dumps({"org.label-schema.name": "cow", "Author": "alice"}))
        machine.write(f"{tree}/.singularity.d/runscript", "#!/bin/sh\nexec \"$@\"\n")
        subprocess.run(["mksquashfs", tree, path, "-quiet", "-no-progress", "-all-root", "-comp", "gzip"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", tree], check=True)
    return local_files.sif_bytes(made("remote-sif.sqsh", pack), **how)


def serve_artifact(name, data, media_type=SIF, config_type=SIF_CONFIG):
    """As `apptainer push` stores a file; returns its repository."""
    config = b"{}"
    manifest = json.dumps({"schemaVersion": 2, "mediaType": oci.OCI_MANIFEST, "config": oci.descriptor(config_type, config),
                           "layers": [oci.descriptor(media_type, data, annotations={"org.opencontainers.image.title": "x.sif"})]}).encode()
    repository = registry.repository(name)
    repository.add_document(oci.OCI_MANIFEST, manifest, "1", oci.digest(manifest))
    repository.blobs |= {oci.digest(data): data, oci.digest(config): config}
    return repository


def test_sif_file_of_a_registry_runs():
    data = sif()
    serve_artifact("oras/cow", data)
    name = f"oras://{registry.name}/oras/cow:1"
    digest = user("pull", name).succeeds().out.strip()
    user("run", "-q", name, "sh", "-c", "echo $FROM_SIF; cat /etc/os-release").succeeds("of the file\n", "Debian")
    asked = len(registry.seen("/oras/cow/"))
    user("run", "-q", name, "true").succeeds()
    assert len(registry.seen("/oras/cow/")) == asked, "what is in the store was asked for again"
    user("images").succeeds(name, digest[7:19])
    user("run", "-q", "--env=OPTION=it's mine", name, "sh", "-c", "echo $FROM_SHELL; echo $OPTION").succeeds("of the file, by a shell\nit's mine\n")
    user("inspect", name).succeeds("label        Author=alice\n", "/bin/sh /.singularity.d/runscript\n")
    user("pull", "--output=cow.sif", name).succeeds(oci.digest(data))
    with open(os.path.join(home, "cow.sif"), "rb") as file:
        assert file.read() == data
    user("pull", "--output=cow.sif", name).fails(1, "already exists")
    user("run", "-q", "./cow.sif", "sh", "-c", "echo $FROM_SIF").succeeds("of the file\n")
    assert user("inspect", "--json", "./cow.sif").json()["labels"]["org.label-schema.name"] == "cow"
    user("import", "./cow.sif", "localhost/cow:1").succeeds()
    user("run", "-q", "localhost/cow:1", "sh", "-c", "echo $FROM_SIF").succeeds("of the file\n")
    user("run", "-q", "--entrypoint", "localhost/cow:1", "sh", "-c", "echo $FROM_SHELL").succeeds("of the file, by a shell\n")
    user("rm", name).succeeds("removed")


def test_registry_squashfs_runs_and_image_is_refused_as_file():
    serve_artifact("oras/sqsh", squashfs(), "application/vnd.oci.image.layer.v1.tar", "application/vnd.unknown.config.v1+json")
    user("run", "-q", f"oras://{registry.name}/oras/sqsh:1", "sh", "-c", "echo $GREETER").succeeds("base\n")
    user("pull", f"oras://{registry.name}/base:1").fails(1, "is not an artifact of one file", "docker://")
    user("pull", f"oras://{registry.name}/oras/nope:1").fails(1, "oras/nope")


def test_sif_file_errors_are_reported():
    encrypted = serve_artifact("oras/shut", sif(file_system=5))
    user("pull", f"oras://{registry.name}/oras/shut:1").fails(1, "the SIF file's root file system is encrypted")
    user("pull", "--output=shut.sif", f"oras://{registry.name}/oras/shut:1").fails(1, "encrypted")
    assert not os.path.exists(os.path.join(home, "shut.sif"))
    blob = max(encrypted.blobs, key=lambda one: len(encrypted.blobs[one]))
    encrypted.blobs[blob] = encrypted.blobs[blob][:-1] + b"?"
    user("pull", f"oras://{registry.name}/oras/shut:1").fails(1, "does not match its digest")
    serve_artifact("oras/text", b"no image at all")
    user("pull", f"oras://{registry.name}/oras/text:1").fails(1, "neither a SIF nor a squashfs")


def test_web_server_file_is_resumed_and_verified():
    data = sif() + random.Random(8).randbytes(3 << 20)  # the bytes behind the root file system are not read
    cut = []

    def serve(handler):
        if not cut:
            cut.append(handler.headers.get("Range"))
            return handler.part_then_reset(data, 2 << 20)
        cut.append(handler.headers.get("Range"))
        return handler.serve_bytes(data)
    registry.paths.append((r"/files/cow\.sif", serve))
    url = f"https://{registry.name}/files/cow.sif"
    user("pull", f"{url}#sha256={oci.digest(data)[7:]}").succeeds()
    assert len(cut) == 2 and cut[1].startswith("bytes=") and cut[1] != "bytes=0-", cut
    user("run", "-q", f"{url}#sha256={oci.digest(data)[7:]}", "sh", "-c", "echo $FROM_SIF").succeeds("of the file\n")
    user("pull", f"{url}#sha256={'0' * 64}").fails(1, "not the one in the URL", oci.digest(data))
    user("pull", "--output=web.sif", url).succeeds(oci.digest(data))
    user("pull", f"https://{registry.name}/files/none.sif").fails(1, "none.sif")
    user("pull", "https://alice:secret@example.org/x.sif").fails(1, "is not a URL of a file")
    user("pull", "--output=x.sif", base()).fails(1, "oras://NAME or https://HOST/FILE")


def test_url_query_is_stored_nowhere():
    data, gets = squashfs(), []

    def serve(handler):
        gets.append(handler.command)
        return handler.serve_bytes(data)
    registry.paths.append((r"/files/signed\.sqsh(\?.*)?", serve))
    url = f"https://{registry.name}/files/signed.sqsh?sig=wqz7secret"
    digest = user("pull", url).succeeds().out.strip()
    fetched = len(gets)
    user("run", "-q", url, "true").succeeds()
    assert len(gets) == fetched, "the stored image is fetched again"
    listed = user("images").succeeds().out
    assert "/files/signed.sqsh?~" in listed and "wqz7" not in listed, listed
    other = user("pull", "--pull=never", url + "2").fails(1, "not in the user's store")
    assert "wqz7" not in other.err, other
    found = subprocess.run(["grep", "-rlF", "wqz7secret", home], capture_output=True, text=True, check=False).stdout
    assert not found, found
    done = user("inspect", url).succeeds()
    assert "wqz7" not in done.out, done
    assert "wqz7" not in user("rm", url).succeeds().out
    assert digest and "signed.sqsh" not in user("images").succeeds().out
