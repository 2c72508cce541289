"""scontainer push: what comes to a registry, and what is not sent."""

import base64
import json
import os
import random
import socket
import struct
import subprocess

import machine
import oci
from machine import base, home, image, registry, root, user
from server import Server

registry.takes_pushes = True
away = Server()
away.takes_pushes = True
away.paths.append((r"/v2/", lambda handler: handler.answer(200, b"{}", "application/json")))


def configured(extra=""):
    machine.write("/etc/spank-container/config.toml", machine.settings + f'[registries."{away.name}"]\ninsecure = true\n' + extra)


def sent(server, repository):
    """Methods of the requests that brought something to the repository."""
    with server.lock:
        return [method for method, path, _ in server.requests if path.startswith(f"/v2/{repository}/") and method in ("POST", "PATCH", "PUT")]


def path(name):
    return os.path.join(home, name)


def test_pushed_image_keeps_its_digest_and_can_be_pulled():
    configured()
    name = image("pushed/from", [{"etc/hello": b"hello\n"}, {"data": random.Random(5).randbytes(300_000)}])
    digest = user("pull", name).succeeds().out.strip()
    to = f"{away.name}/pushed/to:2"
    done = user("push", name, to).succeeds(digest)
    assert "3 blobs; 0 were there" in done.err, done
    assert registry.repositories["pushed/from"].manifests["1"][1] == away.repositories["pushed/to"].manifests["2"][1]
    assert sent(away, "pushed/to").count("PUT") == 4 and "PATCH" not in sent(away, "pushed/to")
    assert user("pull", to).succeeds().out.strip() == digest
    user("run", "-q", "--mounts=/usr:/usr:ro,/lib:/lib,/lib64:/lib64", to, "/usr/bin/cat", "/etc/hello").succeeds("hello\n")

    before = len(sent(away, "pushed/to"))
    again = user("push", name, f"{away.name}/pushed/to:3").succeeds(digest)
    assert "0 blobs; 3 were there" in again.err, again
    assert sent(away, "pushed/to")[before:] == ["PUT"]  # the manifest alone
    user("push", "-q", name, f"{away.name}/pushed/to@{digest}").fails(1, "NAME[:TAG]")
    user("push", f"{registry.name}/nope:1", to).fails(1, "no image")


def test_blobs_of_the_same_registry_are_mounted():
    configured()
    name = image("mounted/from", [{"etc/hello": b"mounted\n"}])
    digest = user("pull", name).succeeds().out.strip()
    done = user("push", name, f"{registry.name}/mounted/to:1").succeeds(digest)
    assert "0 B of" in done.err and "2 came from another repository" in done.err, done
    assert sent(registry, "mounted/to") == ["POST", "POST", "PUT"]
    assert any("?mount=sha256:" in request[1] and "from=mounted/from" in request[1] for request in registry.seen("/v2/mounted/to/"))
    assert registry.repositories["mounted/to"].manifests["1"] == registry.repositories["mounted/from"].manifests["1"]


def test_public_image_of_the_node_is_copied_from_its_registry():
    configured()
    name = image("nodes/from", [{"etc/hello": b"of the node\n"}])
    digest = root("pull", name).succeeds().out.strip()
    user("push", "-q", name, f"{away.name}/nodes/to:1").succeeds(digest)
    assert away.repositories["nodes/to"].manifests["1"] == registry.repositories["nodes/from"].manifests["1"]
    user("push", "-q", "--flatten", name, f"{away.name}/nodes/flat:1").fails(1, "no image", "scontainer pull")


def cut(handler, size):
    """Takes `size` bytes of what is sent and resets the connection."""
    repository = handler.server.repositories[handler.path.split("/blobs/")[0][4:]]
    upload = repository.uploads[handler.path.split("/uploads/")[1].split("?")[0]]
    while size > 0:
        piece = handler.rfile.read1(min(size, 1 << 16))
        upload += piece
        size -= len(piece)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.connection.close()
    return True


def test_interrupted_upload_is_resumed():
    configured()
    size = 80 << 20
    name = image("resumed/from", [{"data": random.Random(6).randbytes(size)}])
    digest = user("pull", name).succeeds().out.strip()
    received = []

    def breaks(handler, kind, method):
        if kind != "uploads" or method not in ("PATCH", "PUT"):
            return False
        received.append((method, int(handler.headers["Content-Length"])))
        return len(received) in (2, 4) and cut(handler, 7 << 20)
    repository = away.repository("resumed/to")
    repository.hooks.append(breaks)
    done = user("push", name, f"{away.name}/resumed/to:1").succeeds(digest)
    assert done.err.count("going on from there") == 2, done
    whole = len(next(blob for blob in repository.blobs.values() if len(blob) > size))
    lost = (32 << 20) - (7 << 20)
    assert received[0] == ("PATCH", 32 << 20) and sum(length for _, length in received) < whole + 2 * lost + 4096, received
    assert repository.manifests["1"] == registry.repositories["resumed/from"].manifests["1"]
    assert set(repository.blobs) == set(registry.repositories["resumed/from"].blobs) - {digest}


def test_registry_without_chunked_upload_gets_the_whole_blob():
    configured()
    name = image("whole/from", [{"data": random.Random(9).randbytes(40 << 20)}])
    user("pull", name).succeeds()
    repository = away.repository("whole/to")
    repository.hooks.append(lambda handler, kind, method: kind == "uploads" and method == "PATCH" and (
        handler.rfile.read(int(handler.headers["Content-Length"])) and handler.answer_json(405, "{}") or True))
    user("push", "-q", name, f"{away.name}/whole/to:1").succeeds()
    assert sent(away, "whole/to")[:4] == ["POST", "PATCH", "POST", "PUT"], sent(away, "whole/to")
    assert repository.manifests["1"] == registry.repositories["whole/from"].manifests["1"]


def test_registry_without_progress_is_abandoned():
    configured()
    name = image("stuck/from", [{"etc/hello": b"stuck\n"}])
    user("pull", name).succeeds()
    repository = away.repository("stuck/to")
    repository.hooks.append(lambda handler, kind, method: kind == "uploads" and method == "PUT" and cut(handler, 0))
    user("push", "-q", name, f"{away.name}/stuck/to:1").fails(1, "push blob sha256:", "gave up after 4 attempts")
    assert "1" not in repository.manifests
    repository.hooks[:] = [lambda handler, kind, method: kind == "uploads" and (handler.answer_json(
        405, '{"errors":[{"code":"UNSUPPORTED","message":"this registry is read-only"}]}') or True)]
    user("push", "-q", name, f"{away.name}/stuck/to:1").fails(1, "status 405", "this registry is read-only")


def test_private_registry_gets_push_credentials_of_the_user():
    configured()
    name = image("owned/from", [{"etc/hello": b"owned\n"}])
    user("pull", name).succeeds()
    scopes = []

    def token(handler):
        basic = base64.b64encode(b"alice:secret").decode()
        if handler.headers.get("Authorization") != "Basic " + basic:
            return handler.answer_json(401, "{}")
        scopes.append(handler.path)
        return handler.answer_json(200, '{"token":"let-her-in"}')

    def guard(handler, kind, what):
        if handler.headers.get("Authorization") == "Bearer let-her-in":
            return False
        handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        handler.answer_json(401, "{}", {"WWW-Authenticate": f'Bearer realm="http://{away.name}/token",service="away",scope="repository:owned/to:pull"'})
        return True
    away.paths.append((r"/token\?.*", token))
    away.repository("owned/to", None, guard)
    away.repository("owned/second", None, guard)
    auth = path("push-auth.json")
    user("push", "-q", name, f"{away.name}/owned/to:1", REGISTRY_AUTH_FILE=auth).fails(1, "login required", f"log in: scontainer login {away.name}")
    user("login", "--no-check", away.name, "--username=alice", stdin="secret\n", REGISTRY_AUTH_FILE=auth).succeeds()
    user("push", "-q", name, f"{away.name}/owned/to:1", REGISTRY_AUTH_FILE=auth).succeeds()
    assert scopes and all("owned%2Fto%3Apull%2Cpush" in scope for scope in scopes), scopes
    assert "1" in away.repositories["owned/to"].manifests
    user("pull", f"{away.name}/owned/to:1", REGISTRY_AUTH_FILE=auth).succeeds()
    del scopes[:]
    second = user("push", f"{away.name}/owned/to:1", f"{away.name}/owned/second:1", REGISTRY_AUTH_FILE=auth).succeeds()
    assert "2 came from another repository" in second.err, second
    assert any("owned%2Fsecond%3Apull%2Cpush&" in scope and "owned%2Fto%3Apull" in scope for scope in scopes), scopes


def test_files_are_pushed_and_run_as_before():
    configured()
    user("pull", base()).succeeds()
    there = away.name
    user("export", "--force", base(), "pushed.sqsh").succeeds()
    user("push", "-q", "./pushed.sqsh", f"{there}/files/sqsh:1").succeeds()
    user("run", "-q", f"{there}/files/sqsh:1", "sh", "-c", "pwd; echo $GREETER; cat /etc/os-release").succeeds("/workspace\nbase\n", "Debian")
    one = away.repositories["files/sqsh"].manifests["1"][1]
    assert b"tar+zstd" in one and user("push", "-q", "./pushed.sqsh", f"{there}/files/sqsh:2").succeeds()
    assert away.repositories["files/sqsh"].manifests["2"][1] == one  # the same file gives the same image

    user("export", "--force", base(), "oci-archive:pushed.tar").succeeds()
    digest = user("push", "-q", "oci-archive:pushed.tar", f"{there}/files/oci:1").succeeds().out.strip()
    assert user("pull", "-q", f"{there}/files/oci:1").succeeds().out.strip() == digest
    subprocess.run(["skopeo", "copy", "--insecure-policy", f"oci-archive:{path('pushed.tar')}", f"docker-archive:{path('pushed.docker')}:x:1"],
                   stdout=subprocess.DEVNULL, check=True)
    os.chmod(path("pushed.docker"), 0o644)
    user("push", "-q", "docker-archive:pushed.docker", f"{there}/files/docker:1").succeeds()
    user("run", "-q", f"{there}/files/docker:1", "sh", "-c", "echo $GREETER").succeeds("base\n")

    flat = user("push", "-q", "--flatten", base(), f"{there}/files/flat:1").succeeds().out.strip()
    assert user("inspect", "--json", f"{there}/files/docker:1").json()["config"]["config"]["WorkingDir"] == "/workspace"
    assert user("pull", "-q", f"{there}/files/flat:1").succeeds().out.strip() == flat
    assert user("run", "-q", f"{there}/files/flat:1").succeeds().out == user("run", "-q", base()).succeeds().out
    user("import", "-q", "./pushed.sqsh", "localhost/file:1").succeeds()
    moved = user("push", "localhost/file:1", f"{there}/files/imported:1").succeeds()
    assert "from no registry" in moved.err, moved


def test_archive_for_several_platforms_pushes_one():
    configured()
    images = {name: oci.Image([oci.Layer({"etc/arch": name.encode()})], architecture=name) for name in ("amd64", "arm64")}
    layout = path("platforms")
    os.makedirs(f"{layout}/blobs/sha256")
    blobs = [blob for one in images.values() for blob in one.blobs().values()]
    listed = [oci.descriptor(oci.OCI_MANIFEST, one.bytes, platform={"os": "linux", "architecture": name}) for name, one in images.items()]
    index = json.dumps({"schemaVersion": 2, "mediaType": oci.OCI_INDEX, "manifests": listed}).encode()
    for blob in blobs + [index] + [one.bytes for one in images.values()]:
        with open(f"{layout}/blobs/sha256/{oci.digest(blob)[7:]}", "wb") as file:
            file.write(blob)
    machine.write(f"{layout}/oci-layout", '{"imageLayoutVersion":"1.0.0"}')
    machine.write(f"{layout}/index.json", json.dumps({"schemaVersion": 2, "manifests": [oci.descriptor(oci.OCI_INDEX, index)]}))
    to = f"{away.name}/platforms:1"
    user("push", "-q", "--platform=linux/arm64", "oci:platforms", to).succeeds(images["arm64"].digest)
    assert away.repositories["platforms"].manifests["1"][1] == images["arm64"].bytes
    user("push", "-q", "oci:platforms", f"{away.name}/platforms:2").succeeds()
    user("push", "-q", "--platform=linux/s390x", "oci:platforms", to).fails(1, "linux/amd64", "linux/arm64")


def test_image_without_its_registry_is_pushed_flat_only():
    configured()
    name = image("gone/from", [{"etc/hello": b"gone\n"}])
    digest = user("pull", name).succeeds().out.strip()
    del registry.repositories["gone/from"]
    user("push", "-q", name, f"{away.name}/gone/to:1").fails(1, "--flatten")
    flat = user("push", "-q", "--flatten", name, f"{away.name}/gone/to:1").succeeds().out.strip()
    assert flat != digest and list(away.repositories["gone/to"].manifests) == ["1", flat]


def test_real_registry_accepts_pushes():
    import docker_registry
    real = docker_registry.DockerRegistry()
    machine.write("/etc/spank-container/config.toml", machine.settings + f'[registries."{real.name}"]\ninsecure = true\n')
    user("pull", base()).succeeds()
    big = image("real/big", [{"data": random.Random(7).randbytes(70 << 20)}])
    user("pull", big).succeeds()
    digest = user("push", "-q", big, f"{real.name}/real/big:1").succeeds().out.strip()
    assert user("pull", "--digest", f"{real.name}/real/big:1").succeeds().out.strip() == digest
    moved = user("push", f"{real.name}/real/big:1", f"{real.name}/real/moved:1")
    moved.fails(1, "no image")
    user("pull", f"{real.name}/real/big:1").succeeds()
    moved = user("push", f"{real.name}/real/big:1", f"{real.name}/real/moved:1").succeeds(digest)
    assert "2 came from another repository" in moved.err, moved
    user("push", "-q", base(), f"{real.name}/real/base:1").succeeds()
    user("run", "-q", f"{real.name}/real/base:1", "sh", "-c", "echo $GREETER").succeeds("base\n")


def test_users_registries_conf_applies_to_pull_and_push():
    digest = None
    name = image("conf/from", [{"etc/hello": b"conf\n"}])
    machine.write("/etc/spank-container/config.toml", "stall_timeout = 3\n")
    containers = os.path.join(home, ".config/containers")
    os.makedirs(containers + "/registries.conf.d")
    try:
        user("pull", name).fails(1, registry.name)
        machine.write(containers + "/registries.conf", f'unqualified-search-registries = ["{registry.name}"]\n[[registry]]\nlocation = "{registry.name}"\ninsecure = true\n')
        digest = user("pull", "conf/from:1").succeeds().out.strip()
        machine.write(containers + "/registries.conf.d/away.conf", f'[[registry]]\nprefix = "{away.name}"\ninsecure = true\n')
        os.chmod(containers, 0o775)  # as with the umask 002 of some distributions
        user("push", name, f"{away.name}/conf/to:1").succeeds(digest)
        machine.write(containers + "/registries.conf.d/closed.conf", f'[[registry]]\nprefix = "{registry.name}/conf"\nblocked = true\n')
        user("pull", "--pull=always", name).fails(1, "does not allow registry")
        root("pull", name).fails(1, registry.name)  # a user's file is of no other user
        user("pull", "--pull=always", name, XDG_CONFIG_HOME=home + "/none").fails(1, registry.name)
    finally:
        subprocess.run(["rm", "-r", os.path.join(home, ".config")], check=True)
        configured()
