"""`[shared] use = "in-place"`: a node reads the layers of an image in the shared store, verified,
and keeps nothing of them."""
import base64
import contextlib
import hashlib
import os
import re

from command import OPEN
from harness import equal, expect, test
from images import Image, with_probe
from shared_test import PLACE, is_at_rest, names, shared_store
from site_files import rules
from tags_test import Asked, publish, shown

IN_PLACE = 'use = "in-place"'
STORE = "/var/lib/spank-container"
KEY = "/home/shared/in-place"  # KEY.pem and KEY.pub


def layers_of(cluster, node):
    """Names of all layers in a node's own store."""
    return set(cluster.root(node, "ls", "/var/lib/spank-container/layers/sha256").good().split())


def layer_files(path, kind=""):
    """Paths of the layers in the shared store, or of their lists of hashes."""
    forms = names(path, "layers")
    return [os.path.join(path, "layers", form, name) for form in forms for name in names(path, f"layers/{form}") if name.endswith(".hashes") == (kind == "hashes")]


def change(file, at, length=1):
    with open(file, "r+b") as opened:
        opened.seek(at)
        before = opened.read(length)
        opened.seek(at)
        opened.write(bytes(byte ^ 0xFF for byte in before))


@test
def second_node_keeps_no_layer(cluster):
    """Nor is a blob fetched again, and later starts ask the registry as for a stored image."""
    name, _ = publish(cluster, "place-second", b"second\n")
    with shared_store(cluster, IN_PLACE) as path:
        equal(shown(cluster.srun("-w", "node01", "/probe", "/content", image=name)), ["second"], "content on node01")
        is_at_rest(path)
        before = layers_of(cluster, "node02")
        asked = Asked(cluster, "place-second")
        for _ in range(2):
            equal(shown(cluster.srun("-w", "node02", "/probe", "/content", image=name)), ["second"], "content on node02")
        expect(not any(what.startswith("GET") for what in asked.all()), f"fetched again: {asked.all()}")
        equal(layers_of(cluster, "node02"), before, "layers of node02")
        mounts = cluster.srun("-w", "node02", "/probe", "/proc/self/mountinfo", image=name).good()
        expect(" - overlay " in mounts, f"no overlay: {mounts}")
    cluster.must_be_quiet()


@test
def nodes_of_one_step_convert_once(cluster):
    name, _ = publish(cluster, "place-both", b"both\n")
    before = {node: layers_of(cluster, node) for node in ("node01", "node02")}
    with shared_store(cluster, IN_PLACE) as path:
        equal(shown(cluster.srun("-N2", "/probe", "/content", image=name)), ["both"] * 2, "content")
        made = sum(len(layers_of(cluster, node) - before[node]) for node in before)
        equal(made, 1, "layers that the nodes keep")
        is_at_rest(path)
    cluster.must_be_quiet()


@test
def changed_chunk_in_the_shared_store_is_an_error(cluster):
    """Never data, even if the chunk was right when it was first read."""
    content = base64.b64encode(os.urandom(3_000_000))
    image = with_probe("place-changed", [("content", content), ("other", b"other\n")])
    name, _ = cluster.faulty.publish(image)
    with shared_store(cluster, IN_PLACE) as path:
        cluster.srun("-w", "node01", "/probe", image=name).good()
        (file, ) = [file for file in layer_files(path) if os.path.getsize(file) > len(content)]
        with open(file, "rb") as opened:
            at = opened.read().find(content[1_500_000:1_500_016])
        expect(at > 0, "the layer does not have the content as it is")
        change(file, at)
        done = cluster.srun("-w", "node02", "/probe", "/content", image=name)
        told = re.sub(r"[A-Za-z0-9+/]{100,}", "…", done.good())
        (data, ) = re.findall(r"[A-Za-z0-9+/]{100,}", done.out)
        data = data.removesuffix("/content")
        same = os.path.commonprefix([content.decode(), data])
        expect(": Input/output error" in told and same == data, f"after {len(same)} bytes of {len(content)} other {len(data) - len(same)} bytes were read: {told}")
        expect("other\n" in cluster.srun("-w", "node02", "/probe", "/other", image=name).good(), "a file in other chunks is not readable")
        change(file, at)
        expect(content.decode() in cluster.srun("-w", "node02", "/probe", "/content", image=name).good(), "the restored bytes were not read")
    cluster.must_be_quiet()


@test
def damaged_notes_and_lists_are_not_used(cluster):
    """The node pulls, says so, and repairs the shared store."""
    name, _ = publish(cluster, "place-damaged", b"damaged\n")
    with shared_store(cluster, IN_PLACE) as path:
        cluster.srun("-w", "node01", "/probe", image=name).good()
        (note, ) = names(path, "images")
        note = os.path.join(path, "images", note)
        (hashes, ) = layer_files(path, "hashes")
        (layer, ) = layer_files(path)
        whole = {file: open(file, "rb").read() for file in (note, hashes, layer)}
        for what, spoil in {
                "a note cut": lambda: os.truncate(note, 100),
                "a note of junk": lambda: open(note, "wb").write(os.urandom(5000)),
                "a list changed": lambda: change(hashes, 3),
                "a list cut": lambda: os.truncate(hashes, 5),
                "a layer cut": lambda: os.truncate(layer, 4096),
                "a layer missing": lambda: os.unlink(layer),
        }.items():
            spoil()
            done = cluster.srun("-w", "node02", "/probe", "/content", image=name)
            equal(shown(done), ["damaged"], f"content with {what}")
            expect("pulling without it" in done.err, f"the user is not told of {what}", done)
            equal({file: open(file, "rb").read() for file in whole}, whole, f"the shared store after {what}")
            cluster.root("node02", "scontainer", "rm", name).good()
    cluster.must_be_quiet()


DEAD = """
import ctypes, os, sys
device = os.open("/dev/fuse", os.O_RDWR)
mount = ctypes.CDLL(None).mount
if mount(b"dead", sys.argv[1].encode(), b"fuse", 6, f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()) == 0:
    print("mounted", flush=True)
    sys.stdin.read()
"""


@test
def dead_shared_store_costs_seconds(cluster):
    """The file system answers no request, not even the first."""
    name, _ = publish(cluster, "place-dead", b"dead\n")
    with shared_store(cluster, IN_PLACE):
        cluster.srun("-w", "node01", "/probe", image=name).good()
        server = cluster.enter("node02", "root", "python3", "-c", DEAD, PLACE, stdin=OPEN)
        try:
            server.await_text("mounted", 10)
            done = cluster.srun("-w", "node02", "/probe", "/content", image=name)
            equal(shown(done), ["dead"], "content")
            expect("does not answer: pulling without it" in done.err, "the user is not told", done)
        finally:
            server.end(10)
            cluster.root("node02", "umount", "-l", PLACE)
    cluster.must_be_quiet()


@contextlib.contextmanager
def keys(cluster):
    """A key pair of the site. Yields the keys of config.toml for nodes that sign, and for those that
    only verify."""
    cluster.root("node01", "sh", "-euc", f"openssl genpkey -algorithm ed25519 -out {KEY}.pem; openssl pkey -in {KEY}.pem -pubout -out {KEY}.pub; "
                 f"chown spank-container {KEY}.pem; chmod 0400 {KEY}.pem; chmod 0444 {KEY}.pub").good()
    try:
        verifies = f'in_place_key = "{KEY}.pub"'
        yield (f'in_place_signing_key = "{KEY}.pem"', verifies), (verifies, )
    finally:
        cluster.root("node01", "rm", "-f", f"{KEY}.pem", f"{KEY}.pub")


@test
def note_without_the_key_of_the_site_is_refused(cluster):
    name, _ = publish(cluster, "place-signed", b"signed\n")
    with keys(cluster) as (signs, verifies), shared_store(cluster, IN_PLACE) as path:
        cluster.srun("-w", "node01", "/probe", image=name).good()
        with rules(cluster, "\n".join(["[shared]", f'directory = "{PLACE}"', IN_PLACE, *verifies])):
            done = cluster.srun("-w", "node02", "/probe", "/content", image=name)
            equal(shown(done), ["signed"], "content")
            expect("is not signed by" in done.err, "the user is not told", done)
            cluster.root("node02", "scontainer", "rm", name).good()
        cluster.root("node01", "scontainer", "rm", name).good()
        with rules(cluster, "\n".join(["[shared]", f'directory = "{PLACE}"', IN_PLACE, *signs])):
            cluster.srun("-w", "node01", "/probe", image=name).good()
        before = layers_of(cluster, "node02")
        with rules(cluster, "\n".join(["[shared]", f'directory = "{PLACE}"', IN_PLACE, *verifies])):
            told = cluster.root("node02", "scontainer", "doctor", "--node").out
            expect(f"{PLACE}, used in place, signed notes" in told, f"doctor: {told}")
            equal(shown(cluster.srun("-w", "node02", "/probe", "/content", image=name)), ["signed"], "content")
            equal(layers_of(cluster, "node02"), before, "layers of node02")
            # Another image's facts under this signature.
            (note, ) = names(path, "images")
            note = os.path.join(path, "images", note)
            text = open(note, encoding="ascii").read()
            open(note, "w", encoding="ascii").write(re.sub(r"^layer (sha256:\S+) ", lambda found: f"layer sha256:{'0' * 64} ", text, flags=re.M))
            done = cluster.srun("-w", "node02", "/probe", "/content", image=name)
            expect("is not signed by" in done.err, "the changed note was used", done)
    cluster.must_be_quiet()


@test
def removed_layer_stays_readable_for_its_step(cluster):
    """The step reads the file for the first time after it was removed."""
    content = base64.b64encode(os.urandom(500_000))
    image = with_probe("place-removed", [("content", content)])
    name, _ = cluster.faulty.publish(image)
    with shared_store(cluster, IN_PLACE) as path:
        cluster.srun("-w", "node01", "/probe", image=name).good()
        gate = os.path.join(cluster.shared, "place-gate")
        os.mkfifo(gate)
        os.chmod(gate, 0o666)
        step = cluster.start_srun("-w", "node02", "--container-mounts=/home/shared/place-gate:/gate", "/probe", "/gate", "/content", image=name)
        with open(gate, "wb", buffering=0):  # waits for the program
            for file in layer_files(path) + layer_files(path, "hashes"):
                os.utime(file, (0, 0))
            cluster.root("node01", "scontainer", "gc", "--shared", "--older=1", "--yes").good()
            equal(layer_files(path), [], "layers after gc")
            expect(len(names(path, "trash")) == 2, f"trash: {names(path, 'trash')}")
        expect(content.decode() in step.end(20).good(), "the content is not readable after the removal")
        os.unlink(gate)
    cluster.must_be_quiet()


@test
def container_with_a_name_has_own_layers(cluster):
    """It must start again when the shared store is gone."""
    name, _ = publish(cluster, "place-named", b"named\n")
    with shared_store(cluster, IN_PLACE):
        cluster.srun("-w", "node01", "/probe", image=name).good()
        before = layers_of(cluster, "node02")
        equal(shown(cluster.srun("-w", "node02", "/probe", "/content", image=name)), ["named"], "content in place")
        equal(layers_of(cluster, "node02"), before, "layers of node02")
        equal(shown(cluster.srun("-w", "node02", "--container-name=place", "/probe", "/content", image=name)), ["named"], "content of the container")
        equal(len(layers_of(cluster, "node02") - before), 1, "new layers of node02")
    equal(shown(cluster.srun("-w", "node02", "--container-name=place", "/probe", "/content", image=name)), ["named"], "content without the shared store")
    cluster.srun("-w", "node02", "--container-name=place:remove", "true")
    cluster.must_be_quiet()


@test
def node_without_a_disk_starts_a_larger_image(cluster):
    """The store of node02 has 16 MB of memory, and no disk. The step reads all of 100 MB."""
    content = os.urandom(100_000_000)
    name, _ = cluster.faulty.publish(Image("suites/place-diskless", [[("content", content)]], below=cluster.base_layout))
    with shared_store(cluster, IN_PLACE):
        cluster.srun("-w", "node01", "true", image=name).good()
        cluster.root("node02", "sh", "-euc", f"mount -t tmpfs -o size=16M,mode=755 store {STORE}; /usr/libexec/spank-container/agent setup 998 998").good()
        try:
            told = cluster.srun("-w", "node02", "sha256sum", "/content", image=name).good()
            expect(hashlib.sha256(content).hexdigest() in told, f"other content: {told}")
            used = os.statvfs(cluster.inside("node02", STORE))
            kept = (used.f_blocks - used.f_bfree) * used.f_frsize
            expect(kept < 200_000, f"the store has {kept} bytes")
        finally:
            cluster.root("node02", "umount", "-l", STORE).good()
    cluster.must_be_quiet()
