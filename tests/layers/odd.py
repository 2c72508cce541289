"""Archives that go wrong somewhere, by name: each with the rows of tests/catalogue that it stands for, and what must come of
it: ACCEPTED, or the reason that must be given."""

import gzip

from tarball import BLOCK, GNU, V7, Tar, base256, header, octal, padded, record

ACCEPTED = None
LONG = b"directory/" * 20


def old_sparse(name, size, extents, data, more=b"", **fields):
    """An old GNU sparse file: four parts in the header, the others in blocks behind it."""
    raw = [(386 + 24 * i, octal(offset, 11) + b"\0" + octal(count, 11) + b"\0") for i, (offset, count) in enumerate(extents[:4])]
    raw += [(482, b"\1" if more or len(extents) > 4 else b"\0"), (483, octal(size, 11) + b"\0")]
    out = header(name, kind=b"S", size=len(data), magic=GNU, raw=raw, **fields)
    rest = extents[4:]
    while rest:
        block = bytearray(BLOCK)
        for i, (offset, count) in enumerate(rest[:21]):
            block[24 * i:24 * i + 24] = octal(offset, 11) + b"\0" + octal(count, 11) + b"\0"
        rest = rest[21:]
        block[504] = 1 if rest else 0
        out += bytes(block)
    return out + more + padded(data)


def sparse_1_0(name, size, extents, data):
    numbers = b"".join(b"%d\n" % n for n in (len(extents), *(n for extent in extents for n in extent)))
    records = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": name, "GNU.sparse.realsize": str(size)}
    return Tar().pax(records).file(b"GNUSparseFile.0/" + name[-80:], padded(numbers) + data).bytes()


def files(*names):
    tar = Tar()
    for name in names:
        tar.file(name, b"of " + name[:20])
    return tar


def pax_archive(records):
    return Tar().file(b"good").pax(records).file(b"f").end()


HIDDEN = header(b"smuggled", size=4) + padded(b"evil")

ARCHIVES = {}


def add(rows, title, outcome, data):
    assert title not in ARCHIVES, title
    ARCHIVES[title] = (tuple(rows), outcome, data)


def names():
    for number, name in enumerate((b"../f", b"a/../../f", b"/../f", b"..", b"../../../../tmp/f")):
        add([87], f"a name that climbs out {number}", "leaves the image's root", Tar().file(b"ok").file(name).end())
    add([87], "a name that climbs, but not out", ACCEPTED, Tar().directory(b"a").directory(b"a/b").file(b"a/b/../f").end())
    add([88], "absolute names", ACCEPTED, Tar().directory(b"/abs/").file(b"/abs/f").file(b"//two/f").end())
    add([103], "missing parents and unclean names", ACCEPTED, files(b"a/b/c/f", b".//x/./y//z", b"./u").end())
    add([104], "long names in every form", ACCEPTED, Tar().pax({"path": LONG + b"pax"}).file(b"short").long(b"L", LONG + b"gnu").file(
        b"short").file(b"tail", prefix=b"some/prefix").long(b"K", LONG + b"pax").symlink(b"s", b"").pax({"linkpath": LONG + b"gnu"}).hard_link(
        b"h", b"x").end())
    add([105], "a component of 255 bytes", ACCEPTED, Tar().pax({"path": b"n" * 255}).file(b"x").end())
    add([105], "a component of 256 bytes", "longer than 255 bytes", Tar().pax({"path": b"n" * 256}).file(b"x").end())
    add([106], "a path of 3000 bytes", ACCEPTED, Tar().pax({"path": b"directory/" * 300 + b"f"}).file(b"x").end())
    add([106], "a path of 5000 bytes", "longer than 4096 bytes", Tar().pax({"path": b"directory/" * 500 + b"f"}).file(b"x").end())
    add([106], "3000 levels", "4096 bytes", Tar().pax({"path": b"a/" * 3000 + b"f"}).file(b"x").end())
    for number, name in enumerate((b"\xff\xfe", b"new\nline", b"\"quoted\"", b"$(touch pwned)`id`", b"a,b:c=d", b"back\\slash", b" blank ",
                                   b"e\xcc\x81", b"\xe9", b"-rf", b"tab\there", b"\x1b[31m", b"#hash", b"*?[a]", b"\x7f", b"%s%n")):
        add([107], f"an odd name {number}", ACCEPTED, Tar().file(name).symlink(b"l", name).pax({"path": b"p" + name}).file(b"x").end())
    add([108], "duplicates", ACCEPTED, Tar().file(b"f", b"1").file(b"f", b"22").file(b"./f", b"333").end())
    add([109], "20,000 entries in a directory", ACCEPTED, b"".join(header(b"d/%d" % i) for i in range(20_000)) + bytes(1024))


def links():
    add([89], "a file through links", ACCEPTED, Tar().symlink(b"abs", b"/etc").file(b"abs/shadow").symlink(b"up", b"../../../../tmp").file(
        b"up/f").symlink(b"chain", b"abs").file(b"chain/passwd").end())
    add([90], "a file over a link", ACCEPTED, Tar().symlink(b"l", b"/etc/passwd").file(b"l", b"own").end())
    add([91], "a directory over a link with another mode", ACCEPTED, Tar().directory(b"d").symlink(b"l", b"d").directory(b"l", mode=0o777).end())
    add([92], "a hard link that climbs out", "leaves the image's root", Tar().hard_link(b"l", b"../../etc/shadow").end())
    add([92], "a hard link to an absolute name that is not there", "which is not in this layer", Tar().hard_link(b"l", b"/etc/shadow").end())
    add([92], "a hard link through a link", "which is not in this layer", Tar().symlink(b"out", b"/etc").hard_link(b"l", b"out/shadow").end())
    add([93], "a hard link to itself", ACCEPTED, Tar().file(b"f", b"kept").hard_link(b"f", b"f").end())
    add([93], "a hard link to itself that is not there", "which is not in this layer", Tar().hard_link(b"f", b"f").end())
    add([93], "a hard link to a directory", "which is a directory", Tar().directory(b"d").hard_link(b"l", b"d").end())
    add([93], "a hard link to a later file", "which is not in this layer", Tar().hard_link(b"l", b"f").file(b"f").end())
    for kind in b"1", b"2", b"6", b"0":
        add([94], f"the root as type {kind.decode()}", "root can only be a directory", Tar().entry(b".", kind=kind, link=b"etc").end())
    add([94], "the root as a directory", ACCEPTED, Tar().directory(b"./", mode=0o700).end())
    add([100], "replacements", ACCEPTED, Tar().file(b"fd").directory(b"fd").file(b"fd/in").file(b"fl").symlink(b"fl", b"fd").symlink(
        b"lf", b"fd").file(b"lf").end())
    add([101], "bin is usr/bin, relative and absolute", ACCEPTED, Tar().directory(b"usr").directory(b"usr/bin").symlink(b"bin", b"usr/bin").file(
        b"bin/a").symlink(b"sbin", b"/usr/bin").file(b"sbin/b").end())
    add([102], "a shut directory before its children", ACCEPTED, Tar().directory(b"ro", mode=0o555).file(b"ro/f").directory(
        b"none", mode=0).file(b"none/f").end())
    many = Tar().file(b"f", b"same")
    for i in range(1000):
        many.hard_link(b"l%d" % i, b"f")
    add([116], "1000 hard links", ACCEPTED, many.end())
    add([116], "hard links that break later, and to a link", ACCEPTED, Tar().file(b"f", b"old").hard_link(b"g", b"f").file(b"f", b"new").symlink(
        b"s", b"nowhere").hard_link(b"t", b"s").end())
    add([130], "links and entries under proc, sys and dev", ACCEPTED, Tar().symlink(b"root", b"/proc/self/root").symlink(
        b"cwd", b"/proc/self/cwd").symlink(b"fd", b"/proc/self/fd/3").file(b"proc/x").file(b"sys/x").file(b"dev/x").end())
    add([131], "a loop of links as parent", "loop", Tar().symlink(b"a", b"b").symlink(b"b", b"a").file(b"a/f").end())
    add([131], "a file as parent", "is not a directory", Tar().file(b"a").file(b"a/f").end())
    add([131], "a dangling link as parent", ACCEPTED, Tar().symlink(b"d", b"no/where").file(b"d/f").end())


def whiteouts():
    for number, name in enumerate((b"d/.wh.", b"d/.wh..", b"d/.wh...")):
        add([95], f"a whiteout of nothing {number}", ACCEPTED, Tar().directory(b"d").file(name).end())
    add([95], "a whiteout that climbs out", "leaves the image's root", Tar().file(b"../.wh.etc").end())
    add([95], "a whiteout through a link", ACCEPTED, Tar().symlink(b"l", b"/etc").file(b"l/.wh.passwd").end())
    add([96], "whiteouts of every type, and AUFS names", ACCEPTED, Tar().symlink(b".wh.a", b"x").directory(b".wh.b").entry(
        b".wh.c", kind=b"6").file(b".wh..wh.plnk").file(b"d/.wh..wh.orph").file(b"f").hard_link(b".wh.e", b"f").end())
    add([96], "directories with names of whiteouts, and a link out of one", ACCEPTED, Tar().file(b".wh..wh.plnk/1.2", b"data").hard_link(
        b"f", b".wh..wh.plnk/1.2").file(b"d/.wh.e/g").file(b"d/h").end())
    add([97], "whiteouts and an opaque directory", ACCEPTED, Tar().file(b".wh.gone").file(b"d/.wh.f").file(b"o/.wh..wh..opq").file(b"o/new").end())
    add([98], "a whiteout and the same name", ACCEPTED, Tar().file(b"a").file(b".wh.a").file(b".wh.b").file(b"b").end())
    add([99], "an opaque marker after its sibling", ACCEPTED, Tar().file(b"o/first").file(b"o/.wh..wh..opq").end())


def attributes():
    for number, mtime in enumerate((-5, 2**40, base256(-1, 12), base256(2**33, 12), 0o77777777777)):
        add([110], f"a time out of range {number}", ACCEPTED, Tar().file(b"f", mtime=mtime).end())
    for number, value in enumerate(("-5.5", "1234.567", "99999999999", "0", "-0.5")):
        add([110], f"an extended time {number}", ACCEPTED, Tar().pax({"mtime": value}).file(b"f").end())
    add([111], "owners of every form", ACCEPTED, Tar().file(b"a", uid=2**32 - 2, gid=2**32 - 2).file(b"b", owner=b"x" * 32).pax(
        {"uid": "4294967294", "gid": "4294967294", "uname": "u" * 300}).file(b"c").end())
    add([112], "devices", ACCEPTED, Tar().entry(b"null", kind=b"3", device=(1, 3)).entry(b"sda", kind=b"4", device=(8, 0)).entry(
        b"forged", kind=b"3", device=(0, 0)).end())
    add([112], "hard links to devices", ACCEPTED, Tar().file(b"kept").entry(b"dev/null", kind=b"3", device=(1, 3)).hard_link(
        b"dev/nul", b"./dev/null").hard_link(b"l", b"/dev/nul").hard_link(b"kept", b"l").file(b"dev/null", b"a file").hard_link(b"m", b"dev/null").end())
    add([113], "directories that shut their owner out", ACCEPTED, Tar().directory(b".", mode=0).directory(b"a", mode=0o77).file(
        b"a/f").directory(b"b", mode=0o1333).directory(b"c", mode=0o500).directory(b"d", mode=0o444).directory(b"d", mode=0o100).end())
    add([113], "setuid, setgid and sticky", ACCEPTED, Tar().file(b"s", mode=0o4755).file(b"g", mode=0o2755).directory(b"t", mode=0o1777).directory(
        b"sg", mode=0o2775).end())
    add([114], "capabilities and forged overlay attributes", ACCEPTED, Tar().pax(
        {"SCHILY.xattr.security.capability": b"\1\0\0\2\0\0\0\0", "SCHILY.xattr.trusted.overlay.redirect": "/etc",
         "SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.trusted.overlay.opaque": "y"}).directory(b"d").end())
    add([115], "a user's attributes, lists of rights, FIFOs", ACCEPTED, Tar().pax(
        {"SCHILY.xattr.user.note": b"a\0b", "SCHILY.acl.access": "user::rw-", "LIBARCHIVE.xattr.user.b": "eA=="}).file(b"f").entry(b"p", kind=b"6").end())


def sparse():
    data = b"datb" * 128
    add([117], "old GNU sparse", ACCEPTED, old_sparse(b"s", 5000, [(1000, 512), (4488, 512)], data * 2) + bytes(1024))
    many = [(i * 1024, 512) for i in range(60)] + [(70000, 0)]  # GNU tar ends a map at the end of the file
    add([117], "old GNU sparse with more parts", ACCEPTED, old_sparse(b"s", 70000, many, b"12345678" * 64 * 60) + bytes(1024))
    add([117], "old GNU sparse with parts that are no blocks", "map is wrong", old_sparse(b"s", 5000, [(0, 8), (1024, 8)], b"12345678" * 2) + bytes(1024))
    add([117], "sparse 1.0", ACCEPTED, sparse_1_0(b"s", 5000, [(1000, 512), (4488, 512)], data * 2) + bytes(1024))
    add([117], "sparse 1.0 of nothing", ACCEPTED, sparse_1_0(b"s", 5000, [(5000, 0)], b"") + bytes(1024))
    add([117], "sparse 0.1", ACCEPTED, Tar().pax({"GNU.sparse.size": "5000", "GNU.sparse.numblocks": "2", "GNU.sparse.map": "1000,512,4488,512",
                                                  "GNU.sparse.name": "s"}).file(b"GNUSparseFile.0/s", data * 2).end())
    add([117], "sparse 0.0", ACCEPTED, Tar().pax(b"".join(record(*item) for item in (
        ("GNU.sparse.size", "5000"), ("GNU.sparse.numblocks", "2"), ("GNU.sparse.offset", "1000"), ("GNU.sparse.numbytes", "512"),
        ("GNU.sparse.offset", "4488"), ("GNU.sparse.numbytes", "512")))).file(b"s", data * 2).end())
    for title, size, extents in (("overlaps", 100, [(0, 8), (4, 8)]), ("descends", 100, [(50, 8), (0, 8)]), ("passes the end", 100, [(0, 8), (98, 8)])):
        for form, archive in (("old", old_sparse(b"s", size, extents, b"1" * 16)), ("1.0", sparse_1_0(b"s", size, extents, b"1" * 16))):
            add([118], f"a {form} sparse map that {title}", "map is wrong", archive + bytes(1024))
    add([118], "a sparse file of 1 EiB", "bytes", sparse_1_0(b"s", 1 << 60, [(0, 8)], b"12345678") + bytes(1024))
    add([118], "a sparse map of 10^18 entries", "map is wrong", Tar().pax({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}).file(
        b"s", padded(b"1000000000000000000\n")).end())


def extended():
    add([119], "a global header with a comment", ACCEPTED, Tar().pax({"comment": "git"}, b"g").file(b"f").end())
    add([119], "a global header that sets the path", "a global extended header sets", Tar().pax({"path": "/etc/passwd"}, b"g").file(b"f").end())
    add([120], "an extended size that hides an entry", ACCEPTED, Tar().pax({"size": str(len(HIDDEN))}).raw(header(b"f") + HIDDEN).file(b"g").end())
    add([120], "an extended size of nothing before a stated one", ACCEPTED, Tar().pax({"size": "0"}).raw(header(b"f", size=len(HIDDEN)) + HIDDEN).end())
    add([121], "an extended header before a long name", ACCEPTED, Tar().pax({"path": "pax", "size": "3"}).long(b"L", b"gnu").raw(header(b"f", size=3) + padded(b"abc")).end())
    add([121], "a size on a directory", ACCEPTED, Tar().directory(b"d", size=512).file(b"f").end())
    add([121], "an extended size on a directory", ACCEPTED, Tar().pax({"size": "512"}).directory(b"d").file(b"f").end())
    for number, records in enumerate((
            b"99 path=foo\n", b"path=foo\n", b"8 pathx\n", b"12 path=fooo", b"0 path=foo\n", b"-5 path=foo\n", b" 12 path=foo\n",
            b"99999999999999999999 path=foo\n", b"5 =x\n", b"garbage", b"11 path=foo\n", b"12 path=foo\0", b"+12 path=foo\n", b"0x0c path=foo\n",
            record("size", "-1"), record("size", "1e3"), record("size", ""), record("size", "99999999999999999999"), record("mtime", "soon"))):
        add([122, 126], f"a malformed record {number}", "an extended header", pax_archive(records))
    add([123], "an extended header that claims 8 GiB", "too long", Tar().entry(b"x", kind=b"x", size=8 << 30).end())
    add([123], "a long name that claims 64 MiB", "too long", Tar().entry(b"x", kind=b"L", size=64 << 20, magic=GNU).end())
    add([123], "20,000 extended headers", "two extended headers", b"".join(Tar().pax({"path": "a"}).bytes() for _ in range(20_000)) + header(b"f") + bytes(1024))
    add([124], "a key given twice", ACCEPTED, Tar().pax(record("path", "first") + record("path", "second")).file(b"f").end())
    add([124], "an extended header at the end", "ends after an extended header", Tar().file(b"f").pax({"path": "a"}).end())
    add([124], "an empty path", "path is empty", Tar().pax({"path": ""}).file(b"f").end())
    add([125], "NUL in a path", "contains NUL", Tar().pax({"path": b"a\0b"}).file(b"f").end())
    add([125], "NUL in a link", "contains NUL", Tar().pax({"linkpath": b"a\0b"}).symlink(b"l", b"x").end())


def framing():
    add([126], "a negative size", "out of range", Tar().entry(b"f", size=base256(-1, 12)).end())
    add([126], "a size that is no number", "not a number", Tar().entry(b"f", size=b"12x").end())
    add([126], "a size of 8 EiB", "out of range", Tar().entry(b"f", size=base256(2**63, 12)).end())
    add([126], "a size of 4 EiB", "bytes", Tar().entry(b"f", size=base256(2**62, 12)).end())
    bad = bytearray(header(b"bad"))
    bad[0] ^= 1
    add([127], "a wrong checksum", "checksum is wrong", Tar().file(b"good").raw(bytes(bad)).end())
    add([127], "a header cut short", "middle of a block", Tar().file(b"f").bytes() + header(b"g")[:300])
    add([127], "data cut short", "middle of a file", Tar().file(b"f", b"x" * 3000).bytes()[:1024])
    add([128], "no end marker", ACCEPTED, Tar().file(b"f").bytes())
    add([128], "one block of zeros", ACCEPTED, Tar().file(b"f").bytes() + bytes(512))
    add([128], "an entry behind the end", ACCEPTED, Tar().file(b"f").end() + Tar().file(b"never").end())
    add([128], "an entry behind one block of zeros", "zero block", Tar().file(b"f").raw(bytes(512)).file(b"g").end())
    for kind in b"MVDNXsZ":
        add([129], f"an entry of type {chr(kind)}", "unknown type", Tar().file(b"f").entry(b"odd", kind=bytes([kind])).end())
    add([129], "a file whose name ends as a directory's", "may be a file or a directory", Tar().file(b"f/").end())
    add([129], "a contiguous file", ACCEPTED, Tar().entry(b"c", b"data", kind=b"7").end())
    add([129], "V7", ACCEPTED, Tar().entry(b"f", b"data", kind=b"\0", magic=V7).entry(b"d/", kind=b"\0", magic=V7).symlink(b"l", b"f", magic=V7).end())
    add([127], "a checksum of signed bytes", ACCEPTED, signed_sum(b"\xe9t\xe9") + padded(b"data") + bytes(1024))


def compressed():
    """The blob itself is wrong. (What is right is read by the unit tests: tar and tarfile would have to be told.)"""
    plain = Tar().file(b"f", b"content" * 100).end()
    packed = gzip.compress(plain, 6, mtime=0)
    add([77], "gzip cut short", "is truncated", packed[:-9])
    add([77], "gzip without its end", "is truncated", packed[:-4])
    add([77], "gzip with a wrong checksum", "checksum or length", packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:])
    add([77], "gzip with a wrong length", "checksum or length", packed[:-1] + bytes([packed[-1] ^ 1]))
    add([79], "garbage behind gzip", "trailing data", packed + b"garbage")
    add([80], "gzip in gzip", "not a tar archive", gzip.compress(packed * 20, mtime=0))
    frame, block = b"\x28\xb5\x2f\xfd", (5 << 3 | 1).to_bytes(3, "little") + b"hello"
    add([84], "zstd cut short", "is truncated", frame + b"\x20\x05" + block[:-1])
    add([84], "zstd with another magic", "not a tar archive", b"\x27\xb5\x2f\xfd\x20\x05" + block + bytes(2000))
    add([84], "zstd with a reserved block", "zstd: ", frame + b"\x20\x05" + (5 << 3 | 7).to_bytes(3, "little") + b"hello")
    add([84], "zstd with a window of 2 TiB", "zstd: ", frame + b"\x00\xf8" + block)
    add([84], "zstd with a dictionary", "zstd: ", frame + b"\x21\x07\x05" + block)
    add([85], "no byte at all", "empty", b"")
    add([86], "a zip file", "not a tar archive", b"PK\3\4" + b"\x14" * 2000)
    add([86], "text", "tar archive", b"not found\n" * 200)
    add([86], "a program", "not a tar archive", b"\x7fELF\2\1\1" + bytes(9) + b"\3\0\x3e\0" * 600)


def signed_sum(name):
    block = bytearray(header(name, size=4))
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % (sum(byte - 256 if byte > 127 else byte for byte in block) % 2**18)
    return bytes(block)


for part in (names, links, whiteouts, attributes, sparse, extended, framing, compressed):
    part()
