"""Images: pull, images, inspect, rm, gc, login."""

import base64
import contextlib
import fcntl
import json
import os
import shutil
import struct
import pty
import re
import select
import signal
import subprocess
import termios
import time

import machine
import oci
import signatures
from server import Server
from machine import base, golden, image, registry, root, start, store, stored, user, wait_for


def test_pull_prints_the_digest_and_images_lists_it():
    digest = user("pull", base()).succeeds().out.strip()
    assert digest.startswith("sha256:") and len(digest) == 71, digest
    listed = user("images", "--json").json()
    mine = [one for one in listed if one["digest"] == digest]
    assert len(mine) == 1 and mine[0]["store"] == "own" and mine[0]["complete"], listed
    assert mine[0]["names"][0]["name"] == base() and mine[0]["platform"] == "linux/amd64" and mine[0]["bytes"] > 1_000_000
    user("images").succeeds(base(), digest[7:19], "linux/amd64", "just now", "own")


def test_images_lists_each_image_once():
    name = image("once", [{"a": b"once"}])
    digest = user("pull", name).succeeds().out.strip()
    by_digest = f"{name.removesuffix(':1')}@{digest}"
    user("pull", by_digest).succeeds()
    root("pull", name).succeeds()
    lines = [line.split() for line in user("images").succeeds().out.splitlines() if digest[7:19] in line]
    assert [(line[0], line[1], line[2], line[-1]) for line in lines] == [(name, digest[7:19], "linux/amd64", "own,site")], lines
    other = image("once-by-digest", [{"b": b"once"}])
    known = user("pull", other).succeeds().out.strip()
    user("rm", other).succeeds()
    other = other.removesuffix(":1") + "@"
    user("pull", other + known).succeeds()
    user("images").succeeds(f"{other}{known[:19]}  {known[7:19]}  linux/amd64")
    assert known not in user("images").out
    user("images", "--digests").succeeds(f"{other}{known}  {known}  linux/amd64")


def test_images_are_printed_in_requested_form():
    name = image("form", [{"a": os.urandom(20_000)}])
    digest = user("pull", name).succeeds().out.strip()
    repository = name.removesuffix(":1")
    listed = lambda *options: user("images", *options).succeeds().out.splitlines()
    assert f"{repository} 1 {digest[7:19]}" in listed("--format={{.Repository}} {{ .Tag }} {{.ID}}")
    lines = listed("--format=table {{.Name}}\\t{{.Size}}")
    assert lines[0] == "NAME\tSIZE" and any(line.startswith(f"{name}\t") and line.endswith(" kB") for line in lines), lines
    assert f"{name}={digest}" in listed("--digests", "--format={{.Name}}={{.Digest}}")
    texts = [user("images", option).succeeds().out for option in ("--format=json", "--json")]
    first, second = (json.loads(re.sub(r'("age_seconds": *)\d+', r"\g<1>0", text)) for text in texts)  # the clock moves on
    assert first == second, texts
    user("images", "--format={{.Colour}}").fails(1, 'unknown field "Colour"', "Repository")
    user("images", "--format={{.Name").fails(1, "--format")


def on_terminal(columns, *arguments, **variables):
    """Returns the text on a terminal of this width."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(machine.as_user(["scontainer", *arguments]), stdin=secondary, stdout=secondary, stderr=secondary,
                               env=machine.environment(TERM="xterm", **variables), cwd=machine.home, start_new_session=True)
    os.close(secondary)
    shown = b""
    while select.select([primary], [], [], 20)[0]:
        try:
            shown += os.read(primary, 65536)
        except OSError:  # the other side is closed
            break
    assert process.wait(10) == 0, shown
    os.close(primary)
    return shown.decode()


def test_images_fit_the_terminal():
    name = image("team/of/a/department/with/a/long/name/and-an-image-with-an-even-longer-name", [{"a": b"long"}])
    digest = user("pull", name).succeeds().out.strip()
    for columns in (80, 60, 200):
        lines = on_terminal(columns, "images", NO_COLOR="1").splitlines()
        assert all(len(line) <= columns for line in lines), lines
        if columns > 60:
            line, = [line for line in lines if digest[7:19] in line]
            assert line.startswith(name if columns == 200 else "...") and "longer-name:1 " in line, line
    user("images").succeeds(name)


def test_value_with_carriage_return_is_explained():
    for words in (["pull", base() + "\r"], ["run", "--platform=linux/amd64\r", base(), "true"], ["login", "-u", "a\r", registry.name]):
        done = user(*words)
        assert done.status != 0 and "the value ends in a carriage return (hint: the script has Windows line ends: sed" in done.err, done
    user("run", "-q", base(), "echo", "a\r").succeeds("a")


def test_second_pull_fetches_no_layer():
    user("pull", base()).succeeds()
    asked = len([r for r in registry.requests if "/blobs/" in r[1]])
    user("pull", base()).succeeds()
    blobs = [r[:2] for r in registry.requests if "/blobs/" in r[1]]
    assert len(blobs) == asked, blobs[asked:]


def test_pull_reports_its_times():
    name = image("timed", [{"a": os.urandom(100_000)}])
    done = user("pull", "--verbose", name).succeeds("sha256:")
    assert ", fetch 0." in done.err and "(1 layer, 0.1 MB), wait for the converter" in done.err, done
    assert "import " not in user("pull", "--pull=always", name).err
    assert "import " in machine.root("pull", "-v", name).err


def test_stored_image_needs_no_registry():
    name = image("leaves", [{"a": b"1"}])
    user("pull", name).succeeds()
    del registry.repositories["leaves"]
    user("pull", "--pull=missing", name).succeeds()
    user("pull", "--pull=never", name).succeeds()
    user("pull", "--pull=always", name).fails(1, "does not exist")


def test_unknown_images_and_wrong_usage_are_reported_in_one_line():
    user("pull", f"{registry.name}/nope:1").fails(1, "nope")
    user("pull", "UPPER").fails(1, "UPPER")
    user("pull", "--platform=x", base()).fails(1, "--platform")
    user("pull", "--pull=sometimes", base()).fails(1, "newer, missing, always or never")
    user("pull").fails(2, "usage: scontainer pull")
    user("pull", "--nonsense", base()).fails(2, "--nonsense")
    user("nonsense").fails(2, "nonsense", "--help")
    user("inspect", f"{registry.name}/nope:1").fails(1, 'repository "nope" does not exist')
    user("inspect", "0123456789abcdef").fails(1, "no image")


def test_inspect_shows_contents_of_an_image():
    status = b"Package: libpmix2\nVersion: 4.2.2-1\n\nPackage: libopenmpi3\nVersion: 4.1.4-3+b1\n"
    lib = "usr/lib/x86_64-linux-gnu/"
    name = image("facts", [{
        "etc/os-release": b'NAME=Toy\nPRETTY_NAME="Toy Linux 7"\n', "var/lib/dpkg/status": status,
        lib + "libnccl.so.2.19.3": b"x", lib + "libcudart.so.12.4.99": b"x", lib + "libucp.so.0.0.0": b"x",
        lib + "pkgconfig/ucx.pc": b"Name: ucx\nVersion: 1.15.0\n", lib + "libc.so.6": b"GNU C Library stable release version 2.36.\n",
        "usr/bin/python3.11": b"x", "usr/lib/python3.11/site-packages/torch-2.3.0+cu121.dist-info/METADATA": b"x",
        "opt/jax-0.4.26.dist-info/METADATA": b"x", "opt/torchvision-0.1.dist-info/METADATA": b"x"}, {"empty": b""}])
    user("pull", name).succeeds()
    found = user("inspect", "--json", name).json()
    assert found["facts"] == {"os": "Toy Linux 7", "libc": "glibc 2.36", "cuda": "12.4.99", "cudnn": None, "mpi": "Open MPI 4.1.4",
                              "pmix": "4.2.2", "srun": "--mpi=pmix", "ucx": "1.15.0", "nccl": "2.19.3", "rocm": None, "python": "3.11",
                              "frameworks": "JAX 0.4.26, PyTorch 2.3.0+cu121", "driver": "525.60.13 or newer"}, found["facts"]
    assert found["config"]["config"]["WorkingDir"] == "/srv" and len(found["layers"]) == 2
    user("inspect", found["digest"][7:15]).succeeds("Toy Linux 7", "12.4.99", "/srv")


def test_fact_sheet_is_kept_since_the_import():
    lib = "usr/lib/x86_64-linux-gnu/"
    name = image("sheet", [{"usr/lib/os-release": b"PRETTY_NAME=Below\n", lib + "libnccl.so.2.19.3": b"x", lib + "libcudart.so.12.4.99": b"x"},
                           {"etc/os-release": "../usr/lib/os-release", "usr/lib/os-release": b"PRETTY_NAME='Above 1'\n",
                            lib + ".wh.libnccl.so.2.19.3": b""}])
    user("pull", name).succeeds()
    found = user("inspect", "--json", name).json()
    facts = {what: value for what, value in found["facts"].items() if value}
    assert facts == {"os": "Above 1", "cuda": "12.4.99", "driver": "525.60.13 or newer"}, facts
    # Nothing is read but the record; one of an earlier version has no sheet, and then the layers are.
    record = store("records", found["digest"].removeprefix("sha256:"))
    content = open(record, "rb").read()
    layers = [store("layers/sha256", layer.removeprefix("sha256:") + ".sqsh") for layer in found["layers"]]
    away = [shutil.move(layer, layer + ".away") for layer in layers]
    assert user("inspect", "--json", name).json()["facts"] == found["facts"]
    os.unlink(record)
    with open(record, "wb") as file:
        file.write(content.replace(b"\0fact=", b"\0fakt="))
    done = user("inspect", "--json", name)
    assert done.json()["facts"] == {} and "warning: inspect the image" in done.err, done
    for layer in away:
        shutil.move(layer, layer.removesuffix(".away"))
    assert user("inspect", "--json", name).json()["facts"] == found["facts"]


def pull_by_fakes(name, **scripts):
    """As `scontainer pull` does it with these shell scripts in place of helpers, which are then called fake-true-NAME."""
    programs = os.path.join(machine.work, "fake-programs")
    shutil.rmtree(programs, ignore_errors=True)
    os.makedirs(programs)
    os.chown(programs, machine.UID, machine.UID)
    helpers = "/usr/libexec/spank-container/"
    for program in ["/usr/bin/scontainer"] + [helpers + one for one in ("scontainer-images", "import", "user-source", "layer-writer", "layer-verifier")]:
        shutil.copy(program, programs)
    for helper, script in scripts.items():
        program = os.path.join(programs, helper.replace("_", "-"))
        true = os.path.join(programs, "fake-true-" + helper)
        os.rename(program, true)
        machine.write(program, f"#!/bin/sh\ncd {programs}\n" + script.replace("TRUE", true))
    for program in os.listdir(programs):
        os.chmod(os.path.join(programs, program), 0o755)
    return machine.run(machine.as_user([programs + "/scontainer", "pull", name]), "", machine.environment(), machine.home)


def test_fact_sheet_delays_no_start():
    files = {"etc/os-release": b"PRETTY_NAME=Beside\n"}
    # It is found while the last layer is verified.
    pull_by_fakes(image("sheet-beside", [files, {"a": b"b"}]),
                  layer_writer='[ "$1" = facts ] || exec TRUE "$@"\nTRUE "$@"\n: >found\n',
                  layer_verifier='n=0\nuntil [ -e found ]; do n=$((n + 1)); [ $n -lt 100 ] || exit 3; /bin/sleep 0.1; done\n'
                                 'exec TRUE "$@"\n').succeeds()
    assert user("inspect", "--json", f"{registry.name}/sheet-beside:1").json()["facts"]["os"] == "Beside"
    # If that takes too long, the image has none; its layers are read on request.
    began = time.monotonic()
    name = image("sheet-slow", [files, {"c": b"d"}])
    pull_by_fakes(name, layer_writer='[ "$1" = facts ] && exec /bin/sleep 60\nexec TRUE "$@"\n').succeeds()
    assert time.monotonic() - began < 10
    found = user("inspect", "--json", name).json()
    assert found["facts"]["os"] == "Beside"
    assert b"\0fact=" not in open(store("records", found["digest"].removeprefix("sha256:")), "rb").read()


def test_inspect_shows_configuration_of_image_not_pulled():
    name = image("unpulled", [{"etc/hello": b"x"}], env=["CUDA_VERSION=12.4.1", "NCCL_VERSION=2.21.5", "OPENMPI_VERSION=4.1.7"])
    before = stored("layers/sha256")
    user("inspect", name).succeeds("cuda         12.4.1\n", "nccl         2.21.5\n", "srun         --mpi=pmix\n",
                                   "driver       525.60.13 or newer\n", "not pulled: versions are what the configuration says\n")
    assert stored("layers/sha256") == before, "something was pulled"


def test_site_catalogue_is_listed():
    name = image("catalogued", [{"etc/hello": b"x"}])
    assert user("catalogue").succeeds().out == "NAME  IMAGE  SIZE  PLATFORM  DESCRIPTION\n"
    assert "DESCRIPTION" not in user("images").succeeds().out
    os.makedirs("/etc/spank-container/catalogue.d")
    entry = "/etc/spank-container/catalogue.d/toy.toml"
    try:
        machine.write(entry, f'image = "{name}"\ndescription = "a toy, for tests"\n')
        machine.write("/etc/spank-container/catalogue.d/README", "not an image")
        user("catalogue").succeeds(f"toy   {name}  -     -         a toy, for tests\n")
        assert user("catalogue", "--json").json() == [{"name": "toy", "image": name, "description": "a toy, for tests"}]
        user("pull", user("catalogue", "toy").succeeds().out.strip()).succeeds()
        line = user("catalogue").succeeds().out.splitlines()[1]
        assert re.search(r"  [0-9.]+ k?B  +linux/amd64  +a toy, for tests$", line), line
        known = user("catalogue", "--json").json()[0]
        assert known["platform"] == "linux/amd64" and known["bytes"] > 0, known
        user("images").succeeds("DESCRIPTION", "a toy, for tests")
        assert [one["description"] for one in user("images", "--json").json() if "description" in one] == ["a toy, for tests"]
        user("catalogue", "none").fails(1, 'no image "none" in the site\'s catalogue')
        machine.write(entry, 'imgae = "x"\n')
        user("catalogue").fails(1, 'toy.toml", line 1: imgae: unknown key (hint: did you mean "image"?)')
        user("images").succeeds("catalogued:1")
    finally:
        shutil.rmtree("/etc/spank-container/catalogue.d")


def test_catalogue_names_are_names_of_images():
    os.makedirs("/etc/spank-container/catalogue.d")
    try:
        machine.write("/etc/spank-container/catalogue.d/toy.toml", f'image = "{base()}"\n')
        done = user("run", "toy", "echo", "in").succeeds("in\n")
        assert f'scontainer: image "toy" of the site\'s catalogue: {base()}' in done.err, done
        assert user("run", "-q", "toy", "echo", "in").succeeds("in\n").err == ""
        assert user("pull", "-q", "toy").succeeds().out == user("pull", "-q", base()).succeeds().out
        assert user("inspect", "toy").succeeds().out == user("inspect", base()).succeeds().out
        user("run", "toy:2", "true").fails(125, "docker.io/library/toy:2")
        user("run", "./toy", "true").fails(125, "./toy")
        machine.write("/etc/spank-container/catalogue.d/toy.toml", "image = 1\n")
        user("run", "toy", "true").fails(125, 'toy.toml", line 1')
    finally:
        shutil.rmtree("/etc/spank-container/catalogue.d")


def test_image_user_and_labels_are_shown():
    made = oci.Image([oci.Layer({"etc/hello": b"x"})])
    made.config["config"] |= {"User": "app:app", "Labels": {"org.opencontainers.image.source": "https://example.org/app"}}
    made.seal()
    registry.repository("of-app", made)
    name = f"{registry.name}/of-app:1"
    told = 'warning: the image\'s USER "app:app" is not used'
    assert told in user("pull", name).succeeds().err
    assert told not in user("pull", name).succeeds().err
    user("inspect", name).succeeds("user         app:app (not used: containers run as the user who starts them)\n",
                                   "label        org.opencontainers.image.source=https://example.org/app\n")
    assert user("inspect", "--json", name).json()["labels"] == {"org.opencontainers.image.source": "https://example.org/app"}


def test_signatures_apply_to_every_store_and_inspect_names_the_key():
    key = signatures.Key(machine.work, "site")
    name = image("signed", [{"a": b"b"}])
    repository, digest = registry.repositories["signed"], oci.digest(registry.repositories["signed"].manifests["1"][1])
    os.makedirs("/etc/containers", exist_ok=True)
    machine.write("/etc/containers/policy.json", signatures.policy(docker={registry.name: [signatures.sigstore(key)]}))
    machine.write("/etc/spank-container/config.toml", 'signature_policy = "/etc/containers/policy.json"\n' + machine.settings)
    try:
        for somebody in (user, root):
            somebody("pull", name).fails(1, "the image is not signed")
        attachment = signatures.Attachment(signatures.signed(key, f"{registry.name}/signed", digest))
        repository.add_document(oci.OCI_MANIFEST, attachment.bytes, signatures.tag_of(digest))
        repository.blobs.update(attachment.blobs)
        for somebody in (user, root):
            somebody("pull", name).succeeds()
            somebody("inspect", name).succeeds(f"signed by    {key.public}\n")
            assert somebody("inspect", "--json", name).json()["signed_by"] == [key.public]
            somebody("rm", name).succeeds()
    finally:
        machine.write("/etc/spank-container/config.toml", machine.settings)
    assert not stored("images/signatures"), "the signatures of an image that was removed are there"


def test_rm_removes_names_images_and_unshared_layers():
    shared, own = {"shared": b"s" * 5000}, {"own": b"o" * 5000}
    first, second = image("rm-one", [shared, own]), image("rm-two", [shared])
    user("pull", first, second).succeeds()
    before = stored("layers/sha256")
    user("rm", first).succeeds("removed 1 image and 1 layer")
    assert len(stored("layers/sha256")) == len(before) - 1
    user("rm", first).fails(1, "no image")
    user("rm", "--force", first).succeeds()
    user("rm", second).succeeds("removed 1 image and 1 layer")


def test_gc_removes_unneeded_objects_only_on_request():
    before = set(stored("layers/sha256"))
    name = image("gc", [{"a": b"a" * 5000}])
    user("pull", name).succeeds()
    own = set(stored("layers/sha256")) - before
    orphan, young = store("layers/sha256", "0" * 64 + ".sqsh"), store("layers/sha256", "1" * 64 + ".sqsh")
    for path in (orphan, young):
        machine.write(path, "x" * 1000)
        os.chown(path, machine.UID, machine.UID)
    os.utime(orphan, (1, 1))
    size = os.stat(orphan).st_blocks * 512
    report = user("gc", "--json").json()
    assert report == {"dry_run": True, "images": 0, "layers": 1, "bytes": size, "layers_in_use": 0, "build_steps": 0}, report
    assert os.path.exists(orphan)
    user("gc", "--yes").succeeds("removed 0 images and 1 layer")
    assert not os.path.exists(orphan) and os.path.exists(young)
    os.unlink(young)
    os.unlink(store("layers/sha256", own.pop()))
    user("gc").succeeds("would remove 1 image and 0 layers", "gc --yes")
    user("gc", "--yes").succeeds("removed 1 image and 0 layers")
    assert name not in user("images").out and "gc:1" not in machine.names()


def slow(handler, kind, name):
    if kind == "blobs":
        time.sleep(30)
    return False


def test_ctrl_c_during_pull_leaves_nothing():
    name = image("slow", [{"a": os.urandom(3 << 20)}])
    registry.repositories["slow"].hooks.append(slow)
    before = [stored(what) for what in ("layers/sha256", "records", "names", "images")]
    process = start("pull", name)
    wait_for("the layer is asked for", lambda: registry.seen("/v2/slow/blobs/"))
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(10) == -signal.SIGINT, process.stdout.read()
    assert [stored(what) for what in ("layers/sha256", "records", "names", "images")] == before


def test_progress_is_drawn_on_terminal_and_printed_as_lines_elsewhere():
    name = image("progress", [{"a": os.urandom(4 << 20)}])
    plain = user("pull", name).succeeds()
    assert "pulling " in plain.err and "\r" not in plain.err and "\033" not in plain.err, plain
    assert re.search(f"^pulled {name}: 4.2 MB in \\d+\\.\\d s, 1 of 1 layers$", plain.err, re.M), plain
    user("rm", name).succeeds()
    shown = on_terminal(80, "pull", name)
    assert all(text in shown for text in ("\r\033[K", "% ", " of 4.2 MB", "100%", "[####")), shown
    assert f"pulled {name}: 4.2 MB in " in shown.split("\r\033[K")[-1], shown
    assert "pulled" not in user("pull", name).succeeds().err, "nothing was pulled"


def test_user_without_home_can_name_a_store_directory():
    done = machine.run(["setpriv", "--reuid=61999", "--regid=61999", "--clear-groups", "scontainer", "images"], "",
                       {"PATH": "/usr/bin"}, "/")
    assert done.status == 0, done
    done = machine.run(["setpriv", "--reuid=61999", "--regid=61999", "--clear-groups", "scontainer", "pull", base()], "",
                       {"PATH": "/usr/bin"}, "/")
    done.fails(1, "XDG_DATA_HOME")
    place = os.path.join(machine.work, "nobody")
    os.makedirs(place)
    os.chown(place, 61999, 61999)
    machine.run(["setpriv", "--reuid=61999", "--regid=61999", "--clear-groups", "scontainer", "run", "-q", base(), "id", "-u"], "",
                {"PATH": "/usr/bin", "XDG_DATA_HOME": place}, "/").succeeds("61999\n")
    user("pull", image("no-home", [{"a": b"1"}]), HOME=None).succeeds()  # as passwd says


def test_full_store_is_reported_and_works_again_with_space():
    place = os.path.join(machine.work, "small")
    os.makedirs(place)
    machine.mount("-t", "tmpfs", "-o", f"size=2m,uid={machine.UID}", "tool", place)
    try:
        user("pull", base(), XDG_DATA_HOME=place).fails(1, f'image store "{place}/spank-container"', "free, the image needs", "scontainer images, rm and gc")
        found = [file for _, _, files in os.walk(place) for file in files if file not in ("locks",)]
        assert not [file for file in found if file.endswith(".sqsh")], found
        machine.mount("-o", "remount,size=500m", place)
        user("pull", base(), XDG_DATA_HOME=place).succeeds()
    finally:
        subprocess.run(["umount", place], check=True)


SECRET = base64.b64encode(b"alice:open sesame").decode()


def wants_login(handler, *_):
    if handler.headers.get("Authorization") == f"Basic {SECRET}":
        return False
    handler.answer_json(401, "{}", {"WWW-Authenticate": 'Basic realm="cave"'})
    return True


class Cave:
    """A registry that admits alice only, with the private image `treasure`."""

    def __init__(self):
        self.server = Server()
        self.server.repository("treasure", oci.Image([oci.Layer({"gold": b"coins\n"})]), wants_login)
        self.server.paths.append((r"/v2/", lambda handler: wants_login(handler) or handler.answer(200, b"{}", "application/json")))
        self.image = f"{self.server.name}/treasure:1"

    def __enter__(self):
        machine.write("/etc/spank-container/config.toml", machine.settings + f'[registries."{self.server.name}"]\ninsecure = true\n')
        return self

    def __exit__(self, *_):
        machine.write("/etc/spank-container/config.toml", machine.settings)
        self.server.shutdown()
        self.server.server_close()


def of_alice(path, text, mode=0o600):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    machine.write(path, text)
    os.chmod(path, mode)
    for one in (os.path.dirname(path), path):
        os.chown(one, machine.UID, machine.UID)
    return path


def test_private_image_is_pulled_after_login():
    auth = of_alice(os.path.join(machine.home, "private/auth.json"), '{"auths": {"other:5000": {"auth": "eDp5"}}, "HttpHeaders": {"X": "y"}}')
    login = lambda *options, text="open sesame\n": user("login", *options, cave.server.name, stdin=text, REGISTRY_AUTH_FILE=auth)

    def stored_now():
        with open(auth) as file:
            return json.load(file)
    def known():
        return {os.path.join(directory, file) for part in ("images", "records", "grants") for directory, _, files in os.walk(store(part)) for file in files}
    with Cave() as cave:
        before = known()
        user("pull", cave.image, REGISTRY_AUTH_FILE=auth).fails(1, f"scontainer login {cave.server.name}")
        done = login("--username=alice", text="open barley\n").fails(1, "login")
        assert "barley" not in done.out + done.err and cave.server.name not in stored_now()["auths"], done
        done = login("--username=alice").succeeds(f"stored for {cave.server.name} in {auth}")
        assert "sesame" not in done.out + done.err and "not checked" not in done.out
        assert stored_now() == {"auths": {"other:5000": {"auth": "eDp5"}, cave.server.name: {"auth": SECRET}}, "HttpHeaders": {"X": "y"}}
        assert os.stat(auth).st_mode & 0o777 == 0o600
        user("run", "-q", "--mounts=/usr:/usr:ro,/lib:/lib,/lib64:/lib64", cave.image, "/usr/bin/cat", "/gold",
             REGISTRY_AUTH_FILE=auth).succeeds("coins\n")
        digest = user("pull", f"alice@{cave.image}", REGISTRY_AUTH_FILE=auth).succeeds().out.strip()
        assert "treasure" not in machine.names(), "a private image has a name that others see"
        user("logout", cave.server.name, REGISTRY_AUTH_FILE=auth).succeeds("removed")
        assert list(stored_now()["auths"]) == ["other:5000"]
        user("logout", cave.server.name, REGISTRY_AUTH_FILE=auth).succeeds("no credentials stored")
        assert {os.path.relpath(os.path.dirname(path), store()) for path in known() - before} == {"images/origins", "images/delivered", "grants", "records"}
        user("rm", digest[7:19]).succeeds("removed 1 image and 1 layer")
        assert known() == before, known() - before
        user("pull", cave.image, REGISTRY_AUTH_FILE=auth).fails(1, f"scontainer login {cave.server.name}")
        login("--username=alice", "--no-check", text="anything\n").succeeds("stored for")
        assert stored_now()["auths"][cave.server.name]["auth"] == base64.b64encode(b"alice:anything").decode()
        login(text="alice\nopen sesame\n").succeeds("stored for")
        login("--username=alice", text="").fails(1, "password")
        for words in (["-u", "alice", "--password-stdin"], ["--password-stdin", "--username=alice"]):
            login(*words, text="open sesame\r\n").succeeds("stored for")
            assert stored_now()["auths"][cave.server.name]["auth"] == SECRET
        login("--password-stdin", text="alice\nopen sesame\n").fails(1, "--password-stdin needs --username")
        user("login", "-u", "alice", "--password-stdin", f"http://{cave.server.name}/v2/", stdin="open sesame\n",
             REGISTRY_AUTH_FILE=auth).succeeds(f"stored for {cave.server.name}")
    user("login", "127.0.0.1:1", "--username=alice", stdin="x\n", REGISTRY_AUTH_FILE=auth).fails(1, "connection refused")
    user("login", registry.name, "--username=alice", stdin="x\n", REGISTRY_AUTH_FILE=auth).succeeds("not checked")


def test_credential_helper_keeps_the_login():
    auth = of_alice(os.path.join(machine.home, "helped/auth.json"), '{"credsStore": "vault"}')
    helper, vault = os.path.join(machine.home, "bin/docker-credential-vault"), os.path.join(machine.home, "bin/vault")
    of_alice(helper, f'''#!/bin/sh
case $1 in
store) cat > {vault} ;;
get) if [ -e {vault} ]; then cat {vault}; else echo "credentials not found in native keychain"; exit 1; fi ;;
erase) rm {vault} ;;
esac
''', 0o755)
    more = {"REGISTRY_AUTH_FILE": auth, "PATH": f"{machine.home}/bin:/usr/bin:/bin"}
    with Cave() as cave:
        user("login", cave.server.name, "--username=alice", stdin="open sesame\n", **more).succeeds("in docker-credential-vault")
        with open(auth) as file:
            assert SECRET not in file.read()
        user("pull", cave.image, **more).succeeds("sha256:")
        user("logout", cave.server.name, **more).succeeds("from docker-credential-vault")
        assert not os.path.exists(vault)
        user("pull", "--pull=always", cave.image, **more).fails(1, "login")


def test_user_proxy_serves_the_user_store():
    proxy = Server()
    proxy.paths.append((r".*", lambda handler: handler.answer_json(404, "{}")))
    name = image("through-a-proxy", [{"a": b"1"}])
    user("pull", name, http_proxy=f"http://{proxy.name}").fails(1, "through-a-proxy")
    assert proxy.requests
    user("pull", name, http_proxy=f"http://{proxy.name}", no_proxy="127.0.0.1").succeeds()


def test_help_texts_explain_usage():
    golden("help.txt", user("--help").succeeds().out)
    commands = [line.split()[0] for line in user("--help").out.split("commands:\n")[1].split("\n\n")[0].splitlines()]
    golden("commands.txt", "\n".join(user(command, "--help").succeeds().out for command in commands))
    long = [line for command in commands for line in user(command, "--help").out.splitlines() if len(line) > 80]
    assert long == [], long
    assert user("help", "run").out == user("run", "--help").out


def test_unknown_command_hints_at_the_one_that_does_it():
    for command, hint in (("pul", "did you mean pull?"), ("ls", "scontainer images"), ("ps", "scontainer containers lists them"),
                          ("rmi", "scontainer rm IMAGE"), ("search", "scontainer catalogue"), ("tag", "scontainer push IMAGE"),
                          ("logs", "--detach"), ("cp", "--mounts=./DIR"), ("kill", "scontainer stop"),
                          ("cache", "scontainer gc"), ("instance", "--detach --name=NAME"), ("xyz", "--help lists them")):
        user(command, "x").fails(2, f'unknown command "{command}" (hint: ', hint)


def test_version_is_printed():
    user("version").succeeds("scontainer ")
    assert user("info", "--json").json()["store"] == store()


def test_several_images_are_pulled_in_parallel_and_listed_in_order():
    names = [image(f"at-once-{number}", [{"file": bytes([number]) * 9000}]) for number in range(6)]
    waiting, together = [], []

    def hold(handler, kind, name):
        waiting.append(name)
        with contextlib.suppress(AssertionError):
            wait_for("another request", lambda: len(waiting) > 1 or together)
        together.append(len(waiting))
        waiting.pop()

    for number in range(6):
        machine.registry.repositories[f"at-once-{number}"].hooks.append(hold)
    told = user("pull", "-q", *names, f"{machine.registry.name}/at-once-none:1")
    assert told.status == 1 and "at-once-none" in told.err, told
    assert told.out.split() == [user("pull", "-q", name).succeeds().out.strip() for name in names], told
    assert max(together) > 1, together
