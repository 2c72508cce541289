"""Random archives: the same seed gives the same archive. Most are valid in unusual ways, some are
damaged."""

import io
import random
import tarfile

import odd
from model import DIRECTORY, FIFO, FILE, HARD_LINK, LINK, Entry, Refused, Tree
from tarball import BLOCK, GNU, V7, Tar, base256, header, padded, record, with_sum

PARTS = [b"a", b"b", b"c", b"lib", b"x y", b"\xff\xfe", b"new\nline", b"back\\slash", b"caf\xc3\xa9", b"n" * 90, b"m" * 200, b"...", b"-q", b"a.b"]
HEADS = [b"", b"", b"", b"", b"./", b"/", b".//", b"a/../"]
NOISE = [("comment", "some text"), ("atime", "1.5"), ("ctime", "-1"), ("uid", "4294967295"), ("gid", "0"), ("uname", "\u00fc"), ("charset", "BINARY"),
         ("SCHILY.dev", "x"), ("LIBARCHIVE.creationtime", "now"), ("RHT.security.selinux", "a:b"), ("x.y", "z")]


def cut(name):
    """Returns the header's part of a long name. GNU tar takes a file for a directory if the cut is
    after a slash, although another header continues the name. Other readers do not."""
    return name[:100].rstrip(b"/") if len(name) > 100 else name


class Archive:
    def __init__(self, seed):
        self.random, self.tar, self.names, self.tree = random.Random(seed), Tar(), [], Tree()

    def chance(self, of):
        return self.random.random() < of

    def name(self):
        if self.names and self.chance(0.3):
            old = self.random.choice(self.names)
            return old + b"/" + self.random.choice(PARTS) if self.chance(0.5) else old
        return self.random.choice(HEADS) + b"/".join(self.random.choice(PARTS) for _ in range(self.random.choice((1, 1, 2, 2, 3))))

    def target(self):
        return self.random.choice((self.random.choice(PARTS), b"../" + self.random.choice(PARTS), b"/" + self.random.choice(PARTS), b"../../..", b"a/b",
                                   b"nowhere/at/all", b".", b"x" * 150))

    def data(self):
        size = self.random.choice((0, 1, 7, 511, 512, 513, 1024, 3000, 3000, 140_000))
        return self.random.randbytes(size) if self.chance(0.7) else bytes(size)

    def mtime(self):
        return self.random.choice((0, 1, 15, 1_700_000_000, 2**31, 2**32 - 1, base256(12345, 12), base256(-7, 12), b"00000000017 ", b" 12345\0"))

    def mode(self):
        return self.random.choice((0o644, 0o755, 0, 0o4755, 0o2755, 0o1777, 0o7777, b"0100644\0", b"  644 \0 "))

    def size(self, size):
        return self.random.choice((size, size, size, base256(size, 12), b"%11o " % size, b"%o\0" % size))

    def put(self, name, kind=b"0", link=b"", data=b""):
        """Appends one entry, preceded by headers that its names need, or by superfluous ones."""
        if not self.fits(kind, name, link):
            return
        fields = {"kind": kind, "mode": self.mode(), "mtime": self.mtime(), "uid": self.random.choice((0, 1000, 2**31, 2**32 - 2))}
        records, longs, prefix = [], [], b""
        for key, kind_of_long, text in (("path", b"L", name), ("linkpath", b"K", link)):
            if len(text) > 100 or (text and self.chance(0.15)):
                if self.chance(0.5):
                    records.append((key, text))
                else:
                    longs.append((kind_of_long, text))
        if name[:155].count(b"/") and not records and not longs and self.chance(0.2):
            at = name.rindex(b"/", 0, 155)
            if 0 < at and len(name) - at <= 100 and name[at + 1:]:
                prefix, name = name[:at], name[at + 1:]
        if self.chance(0.15):
            records.append(self.random.choice(NOISE))
        if self.chance(0.1):
            records.append(("mtime", self.random.choice(("1234.567", "0", "-3.25", "4294967295.9", "77"))))
        stated = self.size(len(data))
        if data and self.chance(0.1):
            records.append(("size", str(len(data))))
            stated = self.random.choice((0, len(data), 5))
        if kind == b"0":
            fields["kind"] = self.random.choice((b"0", b"0", b"0", b"\0", b"7"))
        self.random.shuffle(records)
        before = [lambda: self.tar.pax(b"".join(record(*item) for item in records))] if records else []
        before += [lambda item=item: self.tar.long(*item) for item in longs]
        self.random.shuffle(before)
        for write in before:
            write()
        fields["magic"] = self.random.choice((b"ustar\00000", GNU, V7 if not prefix else b"ustar\00000")) if not prefix else b"ustar\00000"
        self.tar.raw(header(cut(name), size=stated, link=link[:100], prefix=prefix, **fields) + padded(data))

    def fits(self, kind, name, link):
        """Returns whether the entry can follow the present ones. Sometimes an invalid one is
        allowed: the archive must then be refused."""
        if self.chance(0.005):
            return True
        kinds = {b"1": HARD_LINK, b"2": LINK, b"5": DIRECTORY, b"6": FIFO}
        try:
            self.tree.add(Entry(kinds.get(kind, FILE), name, link))
        except Refused:
            return False
        return True

    def sparse(self, name):
        """Appends a sparse file in one of GNU's forms: whole blocks, the last part of any size."""
        if not self.fits(b"0", name, b""):
            return
        extents, at = [], 0
        for _ in range(self.random.randint(1, 7)):
            at += 512 * self.random.randint(1, 9)
            extents.append((at, 512 * self.random.randint(1, 3)))
            at += extents[-1][1]
        if self.chance(0.5):
            extents[-1] = (extents[-1][0], extents[-1][1] - self.random.randint(1, 511))
        size = sum(extents[-1])
        if self.chance(0.5):
            size += self.random.randint(1, 3000)
            extents.append((size, 0))
        data = self.random.randbytes(sum(count for _, count in extents))
        form = self.random.choice(("old", "0.0", "0.1", "1.0"))
        if form == "old":
            self.tar.raw(odd.old_sparse(cut(name), size, extents, data))
        elif form == "1.0":
            self.tar.raw(odd.sparse_1_0(name, size, extents, data))
        elif form == "0.1":
            numbers = ",".join(str(number) for extent in extents for number in extent)
            self.tar.pax({"GNU.sparse.size": str(size), "GNU.sparse.numblocks": str(len(extents)), "GNU.sparse.name": name,
                          "GNU.sparse.map": numbers}).file(b"GNUSparseFile.0/x", data)
        else:
            pairs = [pair for extent in extents for pair in zip(("GNU.sparse.offset", "GNU.sparse.numbytes"), map(str, extent))]
            self.tar.pax(b"".join(record(*item) for item in [("GNU.sparse.size", str(size)), ("GNU.sparse.numblocks", str(len(extents))), *pairs]))
            self.tar.file(cut(name), data)

    def entry(self):
        name = self.name()
        kind = self.random.choices(("file", "directory", "link", "hard link", "fifo", "device", "whiteout", "opaque", "sparse", "global"),
                                   (30, 15, 12, 10, 2, 2, 6, 2, 6, 2))[0]
        if kind == "file":
            self.put(name, data=self.data())
        elif kind == "directory":
            self.put(name + self.random.choice((b"", b"/")), b"5")
        elif kind == "link":
            self.put(name, b"2", self.target())
        elif kind == "hard link":
            self.put(name, b"1", self.random.choice(self.names or [b"nothing"]))
        elif kind == "fifo":
            self.put(name, b"6")
        elif kind == "device":
            self.put(name, self.random.choice((b"3", b"4")))
        elif kind == "whiteout":
            above, _, last = name.rpartition(b"/")
            self.put((above + b"/" if above else b"") + b".wh." + last)
        elif kind == "opaque":
            self.put(name + b"/.wh..wh..opq")
        elif kind == "sparse":
            self.sparse(name)
        else:
            self.tar.pax({"comment": "all over"}, b"g")
            return
        if kind not in ("whiteout", "opaque", "device"):
            self.names.append(name)

    def end(self):
        self.put(b"last")  # tarfile does not accept a global header at the end
        return self.tar.bytes() + bytes(self.random.choice((0, 512, 1024, 1024, 10240)))


def damaged(random, data):
    """Changes some bytes of some headers. The checksum is repaired in half of the cases."""
    data = bytearray(data)
    for _ in range(random.randint(1, 3)):
        block = random.randrange(len(data) // BLOCK) * BLOCK
        what = random.choice(("byte", "byte", "field", "field", "drop", "twice"))
        if what == "byte":
            data[block + random.randrange(BLOCK)] = random.randrange(256)
        elif what == "field":
            at, size = random.choice(((100, 8), (124, 12), (136, 12), (156, 1), (157, 20), (257, 8), (345, 20), (0, 10)))
            if at == 345 and bytes(data[block + 257:block + 263]) != b"ustar\0":
                continue  # only tarfile reads this as a prefix
            data[block + at:block + at + size] = random.choice((bytes(size), b"\xff" * size, b"7" * size, random.randbytes(size), b" " * size))
        elif what == "drop" and len(data) > 3 * BLOCK:
            del data[block:block + BLOCK]
        elif what == "twice":
            data[block:block] = data[block:block + BLOCK]
        looks_like_header = bytes(data[block + 257:block + 262]) == b"ustar"
        if looks_like_header and random.random() < 0.8:
            data[block:block + BLOCK] = with_sum(bytes(data[block:block + BLOCK]))
    return bytes(data)


def by_chance(seed):
    """Returns name and archive."""
    archive = Archive(seed)
    for _ in range(archive.random.randint(3, 25)):
        archive.entry()
    data = archive.end()
    if archive.chance(0.3):
        return f"damaged_archive_{seed}", damaged(archive.random, data)
    return f"archive_{seed}", data


def by_tarfile(seed):
    """Returns an archive written by Python's tarfile."""
    chance = random.Random(seed)
    out = io.BytesIO()
    form = chance.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    with tarfile.open(fileobj=out, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        names = []
        for _ in range(chance.randint(1, 12)):
            name = b"/".join(chance.choice(PARTS) for _ in range(chance.randint(1, 3))).decode("utf-8", "surrogateescape")
            info = tarfile.TarInfo(name)
            info.type = chance.choice((tarfile.REGTYPE, tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE))
            info.mode, info.uid, info.uname = chance.choice((0o644, 0o755)), chance.choice((0, 2**21 - 1)), chance.choice(("", "us\xe9r"))
            info.mtime = chance.choice((0, 1.5, 10**9)) if form == tarfile.PAX_FORMAT else 10**9
            if info.type in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                info.linkname = chance.choice(names or ["a"])
            content = chance.randbytes(chance.choice((0, 10, 5000))) if info.type == tarfile.REGTYPE else b""
            info.size = len(content)
            try:
                tar.addfile(info, io.BytesIO(content))
                names.append(name)
            except ValueError:  # too long for this form
                continue
    return f"archive_of_tarfile_{seed}", out.getvalue()
