"""Seed inputs of all targets: one of each kind that a target reads, and inputs that were hostile
elsewhere."""

import gzip
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "layers"))
from tarball import Tar  # noqa: E402
import hostile_strings  # noqa: E402

A = "sha256:" + "a" * 64


def image_name():
    return ["ubuntu", "ubuntu:22.04", "docker://nvcr.io/nvidia/pytorch:24.03-py3", "registry:5000/a/b-c__d.e:1@" + A, "name@" + A,
            "user@registry#team/app:1", "$oauthtoken@nvcr.io#nvidia/cuda", "[::1]:5000/x", "[fe80::1]/x:y", "localhost/x", "index.docker.io/library/a",
            "registry-1.docker.io/a", "user:password@registry/x", "alice:pa@ss@registry/x", "A/b", "a//b", "/a", "a/", "-a", "a:" + "t" * 129, "a:b/c", "a@sha256:12",
            "a@md5:" + "0" * 32, "a@sha512:" + "0" * 128, "a@sha256:" + "A" * 64, "h:0/x", "h:70000/x", "h:abc/x", "file:///etc/passwd", "http://x/y",
            "dockerd://x", "podman://x:1", "oci:dir:ref", "oci-archive:a.tar", "docker-archive:b.tar:n", "./x.sqsh", "../x", "~/x", "/x.sif", "x.sqsh",
            "a\nb", "a\x1b[31mb", "a\0b", "\xff\xfe", "a" * 5000, "", "#", "@", ":", "a@", "a#b#c", "::1/x", "a.b", "a..b/c", "a___b", "1.2.3.4:5/x"]


def hostile_lines(count):
    """Returns lines with one good image or none, and hostile values otherwise."""
    found = hostile_strings.values(13 * count)
    kept = [value.replace(b"\n", b"") for value in found]
    return [b"\n".join([kept[13 * i], b"ubuntu" if i % 4 else kept[13 * i + 1], *kept[13 * i + 2:13 * i + 13]]) for i in range(count)]


def options():
    def lines(*texts):
        return "\n".join(texts)
    return [lines("/a:/b:ro+bind,./c", "ubuntu", "/w", "A,B", "newer"), lines("/a:/b:rw+rbind+noexec+nosuid+x-create=dir", "x"), lines("", "x:1", "", "A=b", "always"),
            *hostile_lines(1000), lines("/a:/b:ro:x"), lines(":/b"), lines("/a:"), lines("data"), lines("/a:b"), lines("/a:/"), lines("/a:."), lines("/a:/.."), lines("/a:././"),
            lines("/a://"), lines("/a:/./x/.."), lines("tmpfs:/x:size=1G+mode=1777"), lines("tmpfs:/x:size=18446744073709551616"), lines("umount:/x"),
            lines("/a:ro,/b:rw"), lines("d.sqsh:/x:sqsh"), lines("\"/a,b:c\":/x\\ y:nofail+silent"), lines("\"/a\"b"), lines("/a:/b:x-detach+x-create=dir"), lines("/a,,/b"), lines("/a b\\:/c\x1b"), lines("/a", "x", "../x", ",", "sometimes"),
            lines("", "x", "", "", "", "n:exec", "./s.sqsh", "net,ipc,uts,pid", "10%", "steps", "linux/amd64", "/s", "messages=pyxis"),
            lines("", "x", "", "", "", "12.3", "oci-archive:%N", "net,,x", "1g"), lines("", "", "", "", "", "a/b:replace"), lines("", "x", "", "", "", ":"),
            lines("", "x", "", "1A"), lines("", "x", "", "A\tB,LD_PRELOAD"), "linux/amd64", "linux/arm64/v8", "linux", "linux/amd64/v3/x", "LINUX/AMD64"]


def manifest():
    def descriptor(kind, **more):
        return {"mediaType": kind, "digest": A, "size": 10, **more}
    config = descriptor("application/vnd.oci.image.config.v1+json")
    layer = descriptor("application/vnd.oci.image.layer.v1.tar+gzip")
    image = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": [layer]}
    docker = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
              "config": descriptor("application/vnd.docker.container.image.v1+json"),
              "layers": [descriptor("application/vnd.docker.image.rootfs.diff.tar.gzip")]}

    def entry(architecture, **more):
        return descriptor(image["mediaType"], platform={"os": "linux", "architecture": architecture, **more})
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
             "manifests": [entry("arm64", variant="v8"), entry("amd64"), entry("unknown"), descriptor("application/vnd.oci.image.index.v1+json")]}
    configuration = {"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": [A]},
                     "config": {"Env": ["A=b=c", "novalue", "=x", "M=one\ntwo"], "Entrypoint": ["/e"], "Cmd": ["c"], "WorkingDir": "/w", "User": "9:9"}}
    documents = [image, docker, index, configuration, {**image, "manifests": []}, {**image, "schemaVersion": 3}, {"schemaVersion": 1, "fsLayers": []},
                 {**image, "layers": [{**layer, "size": -1}]}, {**image, "layers": [{**layer, "size": 2**63 - 1}]}, {**image, "layers": [{**layer, "size": "5"}]},
                 {**image, "layers": [{**layer, "digest": "sha256:../../etc/passwd"}]}, {**image, "layers": None}, {**image, "config": None},
                 {**image, "layers": [{**layer, "urls": ["http://evil"], "data": "!!"}]}, {**image, "layers": [layer] * 3, "annotations": {"a": None}},
                 {**configuration, "config": {"Cmd": ["a\0b"]}}, {**configuration, "rootfs": None}, {**index, "manifests": []}, []]
    texts = [json.dumps(document) for document in documents]
    return texts + [texts[0][:-1], texts[0] + "x", "\ufeff" + texts[0], texts[0].replace("{", '{"schemaVersion":2,', 1), "[" * 200, '{"a":' + "[" * 200, "<html>", "",
                    '{"mediaType":"\\ud800"}', '{"a":1e999}', '{"size":18446744073709551616}']


def challenge():
    body = '\n{"token":"abc","access_token":"def","expires_in":300}'
    return [header + body for header in (
        'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/ubuntu:pull"', 'Basic realm="x"',
        'Bearer realm="http://registry:5000/token?a=b"', 'Bearer realm="http://elsewhere/token"', 'Bearer realm="file:///etc/passwd"',
        'Basic realm="a, b=c\\"d", Bearer realm=https://x/,error=invalid_token', 'BEARER REALM="HTTPS://X"', 'Negotiate, NTLM abc==, Basic', 'Bearer realm="https://a@b:c/\r\nX: y"',
        'Bearer realm="https://x/ y"', 'Bearer', '=', '"', ',,,', "Bearer realm", 'Bearer realm="unterminated')] + [
        "\n" + text for text in ('{"token":""}', '{"token":"a\\r\\nX: y"}', '{"token":1}', "<html>", "[]", '{"token":null,"access_token":"x"}')]


def signature():
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "suites/lib"))
    import signatures as cosign
    identities = [{"type": "matchExact"}, {"type": "exactReference", "dockerReference": "r/a:1"}, {"type": "exactRepository", "dockerRepository": "r/a"},
                  {"type": "remapIdentity", "prefix": "registry:5000", "signedPrefix": "example.org"}, "matchRepository", None]
    keys = ({"keyPath": "/k"}, {"keyPaths": ["/k", "/l"]}, {"keyData": "AAAA"}, {"keyDatas": ["AAAA"]}, {"fulcio": {}}, {"pki": {}}, {"keyPath": "/k", "rekorPublicKeyPath": "/r"}, {})
    lists = [[cosign.sigstore(identity=identity, **keys[0])] for identity in identities] + [[cosign.sigstore(**key)] for key in keys] + [
        cosign.REJECT, cosign.ANYTHING, [{"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/g"}], []]
    policies = [cosign.policy(docker={"registry:5000/team": listed, "*.io": listed, "": cosign.REJECT}, squashfs={"/a": listed}) for listed in lists]
    one = (cosign.payload_for("registry:5000/a", A), "AAAA")
    return [*policies, one[0], cosign.payload_for("x", "sha256:1"), cosign.payload_for("x", A, more=1), cosign.Attachment(one, one).bytes, cosign.Attachment(*[one] * 129).bytes,
            cosign.referrers(cosign.Attachment(one)), cosign.referrers(*[cosign.Attachment(one)] * 17), b"payload={}\0signature=AA\0key=/k\0payload=", "ubuntu", "r:5000/a@" + A,
            "r:5000/a:1@" + A, "u@r/a", "a#b"]


def record():
    def of(layers, settings, manifest, config):
        offset, sections, body = 72 + 32 * layers, b"", b""
        for part in (settings, manifest, config):
            sections += struct.pack("<QQ", offset, len(part))
            offset += len(part)
            body += part
        return b"SPCIMG2\0" + struct.pack("<IIq", layers, 1, 1700000000) + sections + bytes(range(32)) * layers + body
    whole = of(2, b"env=A=b\0workdir=/w\0", b"{}", b"{}")
    origins = (b"origin=\0registry=r\0repository=a/b\0name=r/a/b:1\0platform=linux/amd64\0public_until=1700000000\0index=" + A.encode() +
               b"\0origin=\0user=1000\0public_until=0\0")
    return [whole, whole[:-5], whole[:72], whole[:8], of(0, b"", b"", b""), whole.replace(struct.pack("<I", 2), struct.pack("<I", 501), 1),
            whole.replace(struct.pack("<Q", 136), struct.pack("<Q", 2**64 - 8), 1), origins, origins[:-3], b"origin=\0index=sha256:x\0=\0user=-1\0registry"]


def request():
    whole = ["image=registry:5000/x:1", "platform=linux/amd64", "config=/etc/spank-container/config.toml", "pull=newer", "uid=1000"]
    return ["".join(line + "\0" for line in lines) for lines in (
        whole, whole[:1], [*whole, "image=y"], [*whole, "other=1"], ["uid=4294967296"], ["uid=-1"], ["image=x", "since=-1"], ["since=x"], ["pull=now"], ["platform=x"], ["no equals"], ["image=\n\x1b"])] + ["image=cut"]


def cdi():
    files = sorted((Path(__file__).resolve().parent.parent / "unit/hooks/cdi").glob("*/*.[jy]*"))
    return {f"{file.parent.name}-{file.name}": file.read_bytes() for file in files}


def config():
    table = Path(__file__).resolve().parent.parent.parent / "runtime/config/config.hpp"
    rows = re.findall(r'^ +\{"(\w+)", "([\w ,]+)",', table.read_text(), re.M)
    whole = "".join(f'{key} = {"true" if kind == "yes or no" else "[]" if kind.startswith("list") else 5}\n' for key, kind in rows)
    return [whole[:4000], 'pull = "never"\nwritable = false\n[registries."r:5000"]\ninsecure = true\n', "tag_ttl = -1", 'upper_size = "101%"', 'upper_size = "9999999999999G"',
            "features_off = ['container-save', # x\n\"container-name\",]\nallowed_registries = [\"*.b.c\"]\r\n[ registries . 'a' ]\nblocked = true",
            "importer = \"\"\"/x\"\"\"", "features_off = [\"container\\u002dsave\"]", "registries.a.blocked = true", "writeable = true", "[registries]\nx = 1", '[registries."A:1"]\n[registries."a:1"]', "writable = ", "a" * 100, "[[[", '"\\u12"=1', "x = {y = [1, [2]]}", "", "\0", "#\xff"]


def environment():
    """Environment files, and values of the variable that passes one to the nodes."""
    whole = ('base_environment = []\nimage = "debian:12"\nmounts = ["/a", "${A}:/b:ro,private"]\nworkdir = "${NONE:-/${A}}"\nwritable = true\n'
             'entrypoint = "false"\ndevices = ["vendor.com/class=all", "/dev/x"]\nenv.A = "a,\\"b\\"\\n%"\nenv.B = ""\n'
             '[annotations.com.hooks.ssh]\nenabled = true\nport = 1\n')
    texts = [whole, "base_environment = '/dev/null'", "image = '$'", "image = '${A'", "image = '$${A}'", "mounts = [1]", "env = 1", "env.'a b' = ''",
             "a,/a.toml,container-image,debian%3a12,/a.toml%3a1", "b,,;a,%", "a"]
    return texts


def layer():
    import odd  # generates large ones as well, which takes a second
    return {title: data for title, (_, _, data) in odd.ARCHIVES.items() if len(data) <= longest("layer")}


def compression():
    import zlib
    text = b"".join(b"%d " % i for i in range(300))
    packed = gzip.compress(text, 6, mtime=0)
    named = b"\x1f\x8b\x08\x1c" + bytes(5) + b"\x03" + b"\3\0abc" + b"../../name\0" + b"comment\0" + packed[10:]
    # A zstd frame of one raw block, of a run and of a reserved block. Python has no libzstd.
    def frame(block):
        return struct.pack("<IB", 0xFD2FB528, 0x20) + bytes([len(text) & 0xFF]) + block
    raw = struct.pack("<I", (5 << 3) | 1)[:3] + b"hello"
    single = struct.pack("<IBB", 0xFD2FB528, 0x20, 5)
    return [packed, packed + packed, packed + bytes(600), packed + b"garbage", packed[:-1], packed[:20], packed[:-8] + bytes(8), named, gzip.compress(packed, mtime=0),
            b"\x1f\x8b", b"\x1f\x8b\x08\xff" + bytes(8), zlib.compress(text), text, b"", bytes(1024), b"PK\3\4", single + raw, single + raw + single + raw,
            single + struct.pack("<I", (5 << 3) | 3)[:3] + b"x", single + struct.pack("<I", (5 << 3) | 7)[:3] + b"x", single + raw[:5], frame(raw),
            b"\x50\x2a\x4d\x18\4\0\0\0abcd" + single + raw, struct.pack("<IBB", 0xFD2FB528, 0, 0xF8) + raw, b"\x50\x2a\x4d\x18\xff\xff\xff\xff",
            struct.pack("<IBBB", 0xFD2FB528, 0x21, 7, 5) + raw]


def verify():
    import random
    chance = random.Random(1)
    changes = [bytes([table, 0, at, how, value]) for table in (0, 1, 4, 5, 6, 7) for at in range(0, 256, 3) for how, value in ((2, 1), (1, 255))]
    return [b"", b"x", *changes[::4], *(b"".join(chance.choices(changes, k=chance.randrange(2, 6))) for _ in range(200)), chance.randbytes(320)]


def verify_erofs():
    import random
    chance = random.Random(1)
    changes = [bytes([at >> 8, at & 255, how, value]) for at in range(0, 4096, 7) for how, value in ((2, 1), (1, 255), (3, 4))]
    return [b"", b"x", b"\x80", *changes[::4], *(b"".join(chance.choices(changes, k=chance.randrange(2, 6))) for _ in range(200)), chance.randbytes(256)]


def squashfs():
    """Small images of every compressor that mksquashfs knows, with compressed and uncompressed
    tables."""
    with tempfile.TemporaryDirectory(prefix="spc-fuzz-") as directory:
        tree = Path(directory, "tree")
        (tree / "d").mkdir(parents=True)
        (tree / "d/small").write_bytes(b"small")
        (tree / "big").write_bytes(b"".join(b"%d " % i for i in range(3000)) + bytes(9000))
        (tree / "link").symlink_to("d/small")
        os.link(tree / "big", tree / "d/hard")
        os.mkfifo(tree / "fifo")
        images = {}
        plain = ["-noI", "-noD", "-noF", "-noX"]
        for name, arguments in [(kind, ["-comp", kind]) for kind in ("gzip", "xz", "lz4", "lzo", "zstd")] + [("plain", plain), ("no fragments", [*plain, "-no-fragments"])]:
            image = Path(directory, name)
            subprocess.run(["mksquashfs", tree, image, "-b", "4096", "-all-root", "-nopad", "-all-time", "0", "-mkfs-time", "0", "-quiet", "-no-progress", "-processors", "1",
                            *arguments], check=True, stdout=subprocess.DEVNULL)
            images[name] = image.read_bytes()
        whole = images["plain"]
        images["cut"] = whole[:-50]
        images["head"] = whole[:96]
        images["version 3"] = whole[:28] + b"\3\0" + whole[30:]
        images["an id table past the end"] = whole[:48] + b"\xff" * 8 + whole[56:]
        images["a block of 2^31"] = whole[:12] + struct.pack("<I", 1 << 31) + whole[16:]
        return images


def erofs():
    """A small image in the form of the layer writer, intact and damaged."""
    word, block = struct.Struct("<I").pack, 4096

    def record(mode, layout, size, start=0, attributes=b"", behind=b""):
        words = (len(attributes) - 12) // 4 + 1 if attributes else 0
        return struct.pack("<HHHHQIIIIQII16x", 1 | layout << 1, words, mode, 0, size, start, 0, 0, 0, 0, 0, 1) + attributes + behind

    def listing(entries):
        dirents, names = b"", b""
        for name, nid, kind in sorted(entries):
            dirents += struct.pack("<QHBB", nid, 12 * len(entries) + len(names), kind, 0)
            names += name
        return dirents + names

    # 8,200 letters: one literal, its repetition, five at the end.
    packed = b"\x1fa\1\0" + b"\xff" * 32 + bytes([8200 - 1 - 5 - 19 - 32 * 255]) + b"\x50aaaaa"
    index = (word(0) + word(2) + bytes(8) + struct.pack("<HHI", 1, 0, 3) + struct.pack("<HHHH", 2, 0, 0x801, 1) + struct.pack("<HHI", 0, 8, 0))
    attributes = bytes(12) + b"\3\1\1\0one1"
    opaque = bytes(12) + b"\x0e\4\1\0overlay.opaquey\0" + b"\x0e\1\1\0overlay.opaquey\0"
    nids = dict(d=128, packed=134, sparse=140, link=144, flat=148, fifo=152, gone=156, small=160)
    kinds = dict(d=2, link=7, fifo=5, gone=3)
    root = listing([(b".", 40, 2), (b"..", 40, 2)] + [(name.encode(), nid, kinds.get(name, 1)) for name, nid in nids.items()])
    inner = listing([(b".", 128, 2), (b"..", 40, 2), (b"hard", nids["flat"], 1)])
    image = bytearray(6 * block)
    image[1024:1152] = struct.pack("<IIIBBHQQIIII32xIH42x", 0xE0F5E1E2, 0, 3, 12, 0, 40, 9, 0, 0, 6, 0, 0, 7, 1)
    image[1152:1160] = struct.pack("<HHHH", 14, 65535, 32, 0)
    records = {40: record(0o40755, 2, len(root), behind=root), 128: record(0o40755, 2, len(inner), attributes=opaque, behind=inner),
               134: record(0o100644, 1, 8200, 1, behind=index), 140: record(0o100644, 4, 131073, 5, behind=word(0xFFFFFFFF) + word(2)),
               144: record(0o120777, 2, 4, behind=b"flat"), 148: record(0o100644, 0, 5000, 4), 152: record(0o10644, 0, 0), 156: record(0o20644, 0, 0),
               160: record(0o100644, 2, 5, attributes=attributes, behind=b"small")}
    for nid, text in records.items():
        image[32 * nid:32 * nid + len(text)] = text
    image[4 * block - len(packed):4 * block] = packed
    whole = bytes(image)
    flat = whole[:1104] + word(4) + bytes(76) + whole[1184:]
    return {"whole": whole, "not compressed": flat, "cut": whole[:-block], "compact inodes": whole[:1280] + b"\0" + whole[1281:], "a root in itself": whole.replace(struct.pack("<Q", 128), struct.pack("<Q", 40)),
            "blocks beyond the end": whole[:1060] + word(1 << 31) + whole[1064:], "a size of 2^62": whole.replace(struct.pack("<Q", 8200), struct.pack("<Q", 1 << 62))}


def ext():
    """Small file systems in each form of content (blocks, extents, in the inode), and damaged."""
    with tempfile.TemporaryDirectory(prefix="spc-fuzz-") as directory:
        tree = Path(directory, "tree")
        (tree / "d").mkdir(parents=True)
        (tree / "d/small").write_bytes(b"small")
        (tree / "big").write_bytes(b"".join(b"%d " % i for i in range(2000)) + bytes(5000))
        (tree / "link").symlink_to("d/small")
        (tree / "long").symlink_to("d/" + "x" * 100)
        os.link(tree / "big", tree / "d/hard")
        os.mkfifo(tree / "fifo")
        with open(tree / "sparse", "wb") as file:
            file.truncate(40000)
            file.seek(30000)
            file.write(b"end")
        os.setxattr(tree / "big", "user.one", b"1")
        images = {}
        for name, features in (("blocks", "none,filetype,ext_attr"), ("extents", "none,filetype,ext_attr,extent"), ("inline", "none,filetype,extent,inline_data,ext_attr"),
                               ("checked", "none,filetype,ext_attr,extent,metadata_csum,64bit"), ("no types", "none,ext_attr")):
            image = Path(directory, name)
            with open(image, "wb") as file:
                file.truncate(64 << 10)
            subprocess.run(["mke2fs", "-q", "-F", "-b", "1024", "-I", "256", "-N", "24", "-m", "0", "-O", features, "-U", "clear", "-d", tree, image],
                           check=True, stdout=subprocess.DEVNULL, env={**os.environ, "E2FSPROGS_FAKE_TIME": "1"})
            images[name] = image.read_bytes()
        whole = images["extents"]
        images["cut"] = whole[:-2000]
        images["a journal to be read"] = whole[:1120] + bytes([whole[1120] | 4]) + whole[1121:]
        images["blocks of 2^31 bytes"] = whole[:1048] + struct.pack("<I", 21) + whole[1052:]
        images["no inodes"] = whole[:1024] + struct.pack("<I", 0) + whole[1028:]
        return images


def archive():
    """Output of `docker save` before version 25 and since, and root file systems."""
    layer = Tar().file(b"f").end()
    digest = "sha256:" + hashlib.sha256(layer).hexdigest()
    config = json.dumps({"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": [digest]}}).encode()
    name = hashlib.sha256(config).hexdigest()
    saved = json.dumps([{"Config": name + ".json", "RepoTags": ["a:1"], "Layers": ["l/layer.tar", "m/layer.tar"]}]).encode()
    classic = Tar().directory(b"l").file(b"l/layer.tar", layer).symlink(b"m/layer.tar", b"../l/layer.tar").file(name.encode() + b".json", config)

    def descriptor(kind, data, **more):
        return {"mediaType": kind, "digest": "sha256:" + hashlib.sha256(data).hexdigest(), "size": len(data), **more}
    manifest = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                           "config": descriptor("application/vnd.oci.image.config.v1+json", config),
                           "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", layer)]}).encode()
    index = json.dumps({"schemaVersion": 2, "manifests": [descriptor("application/vnd.oci.image.manifest.v1+json", manifest,
                                                                     annotations={"org.opencontainers.image.ref.name": "a:1"})]}).encode()
    layout = Tar().file(b"oci-layout", b'{"imageLayoutVersion":"1.0.0"}').file(b"index.json", index)
    for blob in (layer, config, manifest):
        layout.pax({"path": "blobs/sha256/" + hashlib.sha256(blob).hexdigest()}).file(b"x", blob)
    whole = classic.bytes() + Tar().file(b"manifest.json", saved).end()
    return [whole, layout.end(), whole[:-2000], whole.replace(b'"Layers"', b'"Lagers"'), whole.replace(b"l/layer.tar\"", b"/etc/passwd\""),
            classic.bytes() + Tar().file(b"manifest.json", b"[]").end(), classic.bytes() + Tar().symlink(b"manifest.json", b"manifest.json").end(),
            Tar().directory(b"etc").file(b"etc/passwd", b"root").end(), Tar().file(b"a", size=2**40).end(), b"", b"x" * 600, layer]


def sif():
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "suites/lib"))
    import local_files
    whole = local_files.sif_bytes(b"hsqs" + bytes(92))
    parts = [local_files.sif_bytes(b"x", file_system, part, architecture) for file_system, part, architecture in
             ((1, 2, b"02"), (2, 2, b"02"), (5, 2, b"02"), (1, 1, b"04"), (1, 4, b"02"), (4, 2, b"zz"), (9, 9, b"\xff\xff"))]
    return [whole, *parts, whole[:60], whole[:127], whole[:5000], whole[:32] + b"SIF_MAGIX" + whole[41:], whole[:42] + b"99" + whole[44:],
            *(whole[:at] + value + whole[at + 8:] for at in (88, 96, 4096 + 585 + 17, 4096 + 585 + 25)
              for value in (b"\xff" * 8, b"\xff" * 7 + b"\x7f", bytes(8), b"\1" + bytes(7)))]


def diagnose():
    """Real lines of the unit test: one by one, all together, labelled, and cut at a line end."""
    source = (Path(__file__).resolve().parent.parent / "unit/doctor/recorded_lines.hpp").read_text()
    table = source[source.index("kLines{"):source.index("return kLines")]
    rows = re.findall(r'\{((?:"(?:[^"\\]|\\.)*"\s*)+),\s*\{"', table)
    lines = ["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', row)).replace('\\"', '"') for row in rows]
    assert len(lines) > 40
    return [*lines, "\n".join(lines), "".join(f"{number:2}: {line}\r\n" for number, line in enumerate(lines)),
            "".join(f"\x1b[31m{line}\x1b[0m\r" for line in lines), "x" * 8180 + lines[0] + "\n", *("a" * (8192 - at) + lines[3] for at in (1, 20, 90)),
            "\0" * 9000, "\n" * 300, "\xff\xfe" + lines[5], "99999999999: " + lines[7]]


def libraries():
    def cache(rows, order=2, extensions=0):
        entries, texts, begin = b"", b"", 48 + 24 * len(rows)
        for soname, path, flags, hwcap in rows:
            entries += struct.pack("<iIIIQ", flags, begin + len(texts), begin + len(texts) + len(soname) + 1, 0, hwcap)
            texts += soname + b"\0" + path + b"\0"
        return b"glibc-ld.so.cache1.1" + struct.pack("<IIIIIII", len(rows), len(texts), order, extensions, 0, 0, 0) + entries + texts

    rows = [(b"libz.so.1", b"/lib/libz.so.1", 0x303, 0), (b"libcuda.so.1", b"/lib/v3/libcuda.so.1", 0x303, 1 << 62),
            (b"libcuda.so.1", b"/lib/libcuda.so.1", 0x303, 0), (b"libc.so.6", b"/lib32/libc.so.6", 3, 0)]
    whole = cache(rows)
    old = b"ld.so-1.7.0\0" + struct.pack("<I", 2) + bytes(24) + whole
    at = (len(whole) + 3) // 4 * 4
    names = struct.pack("<IIIIIII", 0xEAA42174, 1, 1, 0, at + 24, 4, 48 + 24 * len(rows))
    extended = cache(rows, extensions=at).ljust(at, b"\0") + names[:24] + names[24:]
    library = max((path.read_bytes() for path in Path("/usr/lib").glob("*-linux-gnu/libdl.so.2")), key=len, default=b"")[:20000]
    return [whole, cache([]), cache(rows[::-1], 0), cache(rows, 3), old, old[:50], extended, whole[:60], whole[:-1], library, library[:64], library[:2000],
            library[:16] + b"\xff" * 48 + library[64:], b"\x7fELF", b""]


def enroot_mounts():
    lines = ["/a\\040b /c none x-create=file,bind,ro,private,nofail,silent 0 -1", "tmpfs /t tmpfs size=1m,mode=711", "tmpfs /t", "/a", "/a /b",
             "/a x-create=dir,bind", "none /dev none x-detach,loud", "/a /b none x-move", "none / none rslave", "/a /b ro,bind 3"]
    return [*lines, "\n".join(["# x", "", *lines]) + "\n", "word", "/a /b\\04", "\\777 /\\400", "/a " + "x" * 5000, "a,b c,d e,f", ",", "\0 \0 \0"]


def tracker():
    """Records in the form of tests/registry/step.py."""
    token, image = b"token".ljust(16, b"\0"), bytes(range(32))

    def piece(who, data):
        return bytes([who | len(data) % 4 << 2, len(data) // 4]) + data

    def hello(name=b"node01", magic=b"spctrak3", shown=token):
        return struct.pack("8s16s64s", magic, shown, name)

    def record(kind, count=0, port=40000, indices=(), done=0, total=0, ip=bytes(16), of=image, came=(0, 0, 0, 0)):
        return struct.pack("IIII32sQQ", kind, 0, 7, count, of, done, total) + struct.pack("16sH6x", ip, port) * 2 + bytes(384) + struct.pack("12I", *[*indices, *[0] * 12][:12]) + bytes(32) + struct.pack("QQQQ", *came)

    join = record(1)
    four = b"".join(piece(who, hello(b"node%d" % who) + join) for who in range(4))
    near = b"".join(piece(who, hello() + record(1, ip=bytes(10) + b"\xff\xff\x0a\0\0" + bytes([who + 1]))) for who in range(4))
    more = [record(2, count=count, indices=indices) for count, indices in ((1, (0,)), (3, (0, 1, 2)), (12, range(12)), (13, ()), (2**32 - 1, (2**32 - 1,) * 12), (0, ()))]
    more += [record(6, count=1, indices=(0,)), record(6, count=12, indices=range(12))]
    told = [record(3, done=done, total=total) for done, total in ((1, 10**9), (0, 0), (2**64 - 1, 1), (1, 2**64 - 1))] + [record(3, done=1, total=2, came=(2**64 - 1, 1, 2**63, 7)), record(4, came=(1, 2, 3, 4)), record(4), record(5), record(7), record(16), record(0), record(2**32 - 1)]
    return ["45000:" + "0a" * 16, "0:" + "00" * 16, "65536:" + "0" * 32, "1:" + "0G" * 16, four, near, *(four + piece(3, one) for one in more), *(four + piece(1, one) + piece(1, one) for one in told),
            *(near + piece(2, one) for one in (*more, *told)), four + piece(0, record(5)) + piece(3, more[0]) + piece(0, join) + bytes([1, 0]) + piece(2, more[1]), piece(0, hello(shown=bytes(16)) + join),
            piece(0, hello(b"") + join), piece(0, hello(b"a\x1b[31m") + join), piece(0, hello(b"n" * 64) + join), piece(0, hello(magic=b"spcerr1\0") + join), piece(0, hello()[:50]) + piece(0, hello()[50:] + join[:3]) + piece(0, join[3:]),
            piece(0, hello()) + b"".join(piece(0, record(1, of=bytes([number]) * 32)) for number in range(13)), piece(0, hello() + record(1, port=0)) + piece(1, hello() + join), b"".join(piece(0, hello() + join) + b"\0\0" for _ in range(12))]


def relay_requests():
    def get(path="/v2/x/blobs/BLOB?node=1", *headers, method="GET", key="KEY", version="1.1"):
        return "\r\n".join([f"{method} {path} HTTP/{version}", "Host: x", *([f"Authorization: Bearer {key}"] if key is not None else []), *headers, "", ""])

    ranges = ["bytes=5-", "bytes=1999-", "bytes=2000-", "bytes=0-", "bytes=-5", "bytes=-5-", "bytes=18446744073709551615-", "bytes=99999999999999999999999-", "bytes=5-4", "bytes=1-2,5-9", "bytes= 5-", "bytes=+5-", "bytes=0x5-", "bits=5-", "bytes", ""]
    paths = ["/alive", "/", "*", "/v2/x/manifests/BLOB?node=2", "/v2/x/blobs/MORE?node=1", "/v2/x/blobs/BLOB", "/v2/x/blobs/BLOB?node=", "/v2/x/blobs/BLOB?node=-1", "/v2/x/blobs/BLOB?node=4294967296", "/v2/x/blobs/BLOB?node=1&node=2",
             "/v2/x/blobs/BLOB?node=%31", "/v2/x/blobs/%00BLOB?node=1", "/v2/../../../etc/passwd?node=1", "/v2/x/blobs/sha256:" + "0" * 64 + "?node=1", "/v2/x/blobs/BLOB/?node=1", "http://x/v2/x/blobs/BLOB?node=1", "/" + "a" * 3000, "/v2/x/blobs/sha512:" + "0" * 128 + "?node=1", "/%", "/?&&&=&node"]
    keys = [None, "", "5a", "5a" * 31, "5a" * 33, "5A" * 32, "00" * 32, "zz" * 32, "KEY ", "KEYx", "\xff" * 64]
    requests = [get(), *map(get, paths), *(get("/v2/x/blobs/BLOB?node=1", f"Range: {one}") for one in ranges), *(get(key=key) for key in keys), *(get(method=method) for method in ("HEAD", "POST", "PUT", "CONNECT", "OPTIONS", "BREW", "get", "")),
                get("/v2/x/blobs/MORE?node=1", "Range: bytes=50-"), get("/v2/x/blobs/BLOB?node=1", "Content-Length: 5") + "hello", get("/v2/x/blobs/MORE?node=1", "Content-Length: 5") + "hello", get(*[paths[4], "Transfer-Encoding: chunked"]) + "5\r\nhello\r\n0\r\n\r\n",
                get("/v2/x/blobs/sha256:" + "0" * 64 + "?node=1", "Content-Length: 5") + "hel\x01lo", get("/alive", "Transfer-Encoding: chunked") + "ffffffffffffffff\r\n", get("/alive", "Content-Length: -1"), get("/alive", "Content-Length: 18446744073709551616"), get("/alive", "Expect: 100-continue", "Content-Length: 5"),
                get(version="1.0"), get(version="0.9"), get(version="2.0"), get("/alive", "Connection: close") + get(), get() * 5, get("/v2/x/blobs/MORE?node=1") + get(), get("/alive", *[f"X{number}: y" for number in range(200)]), get("/alive", "X: " + "y" * 3000), get("/alive", "Range: bytes=5-", "Range: bytes=6-"),
                "".join(get(f"/v2/x/blobs/BLOB?node={number}") for number in range(8)), "\r\n\r\n", "GET", "\x16\x03\x01\x02", "GET / HTTP/9.9\r\n\r\n", get().replace("\r", ""), get().replace(": ", ":\x01 "), get()[:60] + "\x01" + get()[60:], get()[:-2], get("/alive").replace("Host: x\r\n", "")]
    return [how.to_bytes(1, "little") + request.encode("latin-1") for number, request in enumerate(requests) for how in ((0, 7) if number % 3 else (0, 9))]


def peer_answers():
    whole = bytes(b"abcdefghijklmnopqrstuvw"[number % 23] for number in range(1000))

    def answer(body=whole, *headers, status="200 OK", length=None):
        return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers, "", ""]).encode() + body

    half, rest = answer(whole[:500], length=1000), answer(whole[500:], "Content-Range: bytes 500-999/1000", status="206 Partial Content")
    one = [answer(), answer(whole[:-1]), answer(whole + b"x"), answer(b"x" * 1000), half, half + b"x", answer(b""), answer(b"", length=2**64), answer(whole, length=-1), answer(whole, length="x"), b"HTTP/1.1 200 OK\r\n\r\n" + whole, b"HTTP/1.1 200 OK\r\n\r\n" + whole * 3,
           *(answer(b"no", status=status) for status in ("404 no", "401 no", "403 no", "416 no", "429 no", "500 no", "503 no", "204 no", "206 no", "304 no", "999 no", "0 no", "99999 no", "100 Continue", "101 Switching Protocols")),
           answer(b"", "Location: http://169.254.169.254/", status="302 Found"), answer(b"", "Location: file:///etc/passwd", status="301 Moved"), answer(b"", "WWW-Authenticate: Basic realm=x", status="401 no"), answer(b"", "Retry-After: 99999999", status="503 no"),
           answer(whole, "Content-Encoding: gzip"), answer(whole, "Transfer-Encoding: gzip, chunked"), b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n" + whole + b"\r\n0\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
           answer(whole, *["X: y"] * 300), answer(whole, "X: " + "y" * 4000), b"HTTP/1.1 100 Continue\r\n\r\n" * 50 + answer(), b"HTTP/1.0 200 OK\r\n\r\n" + whole[:300], b"HTTP/2 200\r\n\r\n", b"HTTP/1.1", b"SSH-2.0-x\r\n", b"\x16\x03\x01", whole, b"", b"ICY 200 OK\r\n\r\n" + whole,
           answer(whole, "Set-Cookie: a=b", "Alt-Svc: h2=\":443\"", "Connection: upgrade", "Upgrade: h2c"), answer(whole, "Content-Length: 5"), answer(whole).replace(b"\r", b""), answer(whole).replace(b"200 OK", b"200 \x1b[31m")]
    ranges = [answer(whole[500:], f"Content-Range: {text}", status="206 x") for text in ("bytes 500-999/1000", "bytes 499-999/1000", "bytes 500-400/1", "bytes */1000", "bytes 500-", "x", "bytes 18446744073709551615-0/0", "")]
    chains = [half + b"\x01" + then for then in (rest, answer(), *ranges, answer(b"x" * 500, status="206 x"), answer(b"no", status="416 no"), half, b"")] + [b"\x01".join((half, half, answer(whole[:700], length=1000), ranges[0])), b"\x01" * 8, answer(b"x" * 1000) + b"\x01" + answer()]
    return [bytes([how]) + said for number, said in enumerate((*one, *chains)) for how in {number % 8, 0}]


def shared_files():
    leases = ["node01 77 0123456789abcdef 00000000000000000007 BLOB.x", "node01 77 0123456789abcdef 00000000000000000007", "node01 77 0123456789abcdef 00000000000000000007 BLOB.x/../../secret", "a b c d ../secret", "a b c d BLOB.", "a b c d /etc/passwd", "a b c d BLOB.\0x",
              "a b c d other", "    ", " a b c d BLOB.x", "a b c d  BLOB.x", "", "a" * 1024, "a" * 1025, "a b c d " + "x" * 2000, "a b c d BLOB.x\n", "\xff\xfe \0 \x1b[31m d BLOB.x", "a b c d BLOB.x BLOB.y"]
    sound = b"layer" + hashlib.sha256(b"layer").digest()
    texts = ["blob", "", "x" * 5000, "{}", "blob\0"]
    layers = [sound, sound[:-1], b"", sound + b"x", bytes(32), hashlib.sha256(b"").digest(), b"x" * 3000]
    names = [b"registry:5000/x", b"", b"\x1b[31m", b"a" * 1024, b"a" * 1025, b"a\tb\nc", b"\0"]
    head = b"spank-container image in place 1\nmanifest sha256:BLOB\nplace registry:5000/x\nform 2-squashfs-zstd\n"
    layer = b"layer sha256:BLOB %d sha256:" + hashlib.sha256(b"").hexdigest().encode() + b"\n"
    sizes = (5, 0, 1 << 40, (1 << 40) + 1, (1 << 64) - 32)
    notes = [head + layer % sizes[number % 5] + b"facts " + (b"", b"Zm9v", b"?")[number % 3] + (b"", b"\nsignature Zm9v")[number % 2] for number in range(15)]
    notes += [b"", head, head.replace(b"image", b"\0"), head[:50], layer, b"\n" * 100, head + b"layer x\n", head + (layer % 5) * 1000]
    found = []
    for number in range(len(notes)):
        lease, text = leases[number % len(leases)].encode("latin-1"), texts[number % len(texts)].encode()
        for how in (1, 9, 3 + 4 * (number % 2)):
            found.append(bytes([how]) + b"\x01".join((lease, text, layers[number % len(layers)], names[number % len(names)], (b"BLOB.x", b"BLOB.", b"x", b"..", b"BLOB.x BLOB.y")[number % 5 if number else 0], notes[number])))
    return found


def recipe():
    return ["FROM debian:12 AS a\nARG X=1\nENV A=${X:-2} B='$A' C=\"$A b\"\nRUN --mount=type=cache,target=/x make \\\n # c\n\n  all\n", "# escape=`\nFROM x`\ny\n",
            "FROM x\nRUN <<EOF\na\nEOF\nCOPY <<-'A' <<B /d/\n\t1\n\tA\n2\nB\n", "FROM x\nRUN <<EOF\n", "COPY --from=a --chmod=755 [\"a b\", \"/c\"]\n", "CMD [\"a\", 1]", "ENV A B C", "ENV =x", "LABEL a", "ENV ${A/x/${B:-${A%%.*}}}=$",
            ".git\n**/*.o\n!a/**/b\n/x/../y\n[a-\n\\", "ENV A=${A" + "#*" * 2000 + "}", "ENV A=" + "${A:-" * 500, "RUN " + "a\\\n" * 500, "\xef\xbb\xbfFROM x\r\nRUN a\\\r\n b\r\n", "FROM \x1b[31m\nRNU x", "RUN a\0b"]


def longest(target):
    """Returns the maximal input length. Slow inputs find few errors."""
    return {"layer": 20000, "record": 4096, "compression": 20000, "config": 4096, "squashfs": 20000, "erofs": 30000, "ext": 65536, "archive": 20000, "sif": 40000, "diagnose": 20000, "libraries": 20000}.get(target, 8192)


def hook_edits():
    edits = {"environment": {"unset": ["A"], "set": {"B": "1"}, "prepend": {"PATH": "/opt"}, "default": {"C": ""}},
             "mounts": [{"source": "/a", "target": "/b", "readOnly": False, "noExec": True, "optional": True},
                        {"target": "/t", "size": 4096}],
             "devices": [{"path": "/dev/x", "source": "/dev/y", "optional": True}], "deniedDevices": ["/dev/z"],
             "symlinks": [{"path": "/l", "target": "t"}], "files": [{"path": "/f", "content": "c", "mode": "0755"}], "directories": ["/d"],
             "libraries": [{"soname": "libx.so.1", "path": "/x", "before": False}], "libraryDirectories": [{"path": "/y"}],
             "limits": [{"name": "memlock", "soft": "unlimited"}, {"name": "stack", "soft": 2**64 - 1}], "notes": ["n"], "warnings": ["w"],
             "remembered": {"a": "b"}, "refusal": "r"}
    context = {"version": 1, "stage": "create", "job": {"A": "b"}, "image": {"name": "n", "digest": "", "environment": {}, "root": "/r"},
               "settings": {"gpu": ["auto", "x"]}, "user": {"uid": 1, "gid": 2, "name": "a", "home": "/h"}, "gpu": True, "devices": ["d"], "mpi": "host",
               "command": ["c"], "container": {"remapRoot": True, "hasBindMounts": True}, "grantedDevices": [], "hostRoot": "/h", "prepared": edits}
    texts = [json.dumps(edits), json.dumps(context), "{}", " ", "[]", "null", "{\"notes\": [\"\x1b\"]}", "{\"notes\": [\"\\u001b\\u0000\"]}", "{} {}",
             '{"a": 1, "a": 2}', "[" * 100, '{"a":' * 100, '{"limits": [{"name": "memlock", "soft": 1e400}]}', '{"refusal": "\xff"}']
    return texts + [json.dumps({key: value}) for key in edits for value in (None, 1, "x", [1], {"x": 1}, [{}], ["../x"], True)]


def of(target):
    """Returns the inputs of a target: name -> bytes."""
    inputs = globals()[target]()
    if not isinstance(inputs, dict):
        inputs = {f"{number:03}": data for number, data in enumerate(inputs)}
    return {name: data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data for name, data in inputs.items()}
