"""Invalid and unusual archives by name. Each has the numbers of the outcomes that it demonstrates
(tests/suites/lib/outcomes.py) and the expected result: ACCEPTED, or the reason of the refusal."""

import gzip

from tarball import BLOCK, GNU, V7, Tar, base256, header, octal, padded, record

ACCEPTED = None
LONG = b"directory/" * 20


def old_sparse(name, size, extents, data, more=b"", **fields):
    """Returns an old GNU sparse file: four parts in the header, the others in later blocks."""
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


def add(numbers, title, result, data):
    assert title not in ARCHIVES, title
    ARCHIVES[title] = (tuple(numbers), result, data)


def names():
    for number, name in enumerate((b"../f", b"a/../../f", b"/../f", b"..", b"../../../../tmp/f")):
        # outcome 87 contained: names that climb out
        add([87], f"name_that_climbs_out_{number}", "leaves the image's root", Tar().file(b"ok").file(name).end())
    add([87], "name_that_climbs_but_not_out", ACCEPTED, Tar().directory(b"a").directory(b"a/b").file(b"a/b/../f").end())
    # outcome 88 accepted: absolute names
    add([88], "absolute_names", ACCEPTED, Tar().directory(b"/abs/").file(b"/abs/f").file(b"//two/f").end())
    # outcome 103 accepted: missing parents, unclean names
    add([103], "missing_parents_and_unclean_names", ACCEPTED, files(b"a/b/c/f", b".//x/./y//z", b"./u").end())
    # outcome 104 accepted: long names of every form
    add([104], "long_names_in_every_form", ACCEPTED, Tar().pax({"path": LONG + b"pax"}).file(b"short").long(b"L", LONG + b"gnu").file(
        b"short").file(b"tail", prefix=b"some/prefix").long(b"K", LONG + b"pax").symlink(b"s", b"").pax({"linkpath": LONG + b"gnu"}).hard_link(
        b"h", b"x").end())
    # outcome 105 accepted: components of 255 bytes; of 256 are refused
    add([105], "component_of_255_bytes", ACCEPTED, Tar().pax({"path": b"n" * 255}).file(b"x").end())
    add([105], "component_of_256_bytes", "longer than 255 bytes", Tar().pax({"path": b"n" * 256}).file(b"x").end())
    add([105], "whiteout_of_255_bytes", ACCEPTED, Tar().pax({"path": b"d/.wh." + b"n" * 255}).file(b"x").pax({"path": b".wh." + b"m" * 252}).file(b"x").end())
    add([105], "whiteout_of_256_bytes", "longer than 255 bytes", Tar().pax({"path": b".wh." + b"n" * 256}).file(b"x").end())
    add([105], "directory_named_as_a_whiteout_of_255_bytes", "longer than 255 bytes", Tar().pax({"path": b".wh." + b"n" * 255 + b"/f"}).file(b"x").end())
    # outcome 106 accepted: long paths, 3000 levels
    add([106], "path_of_3000_bytes", ACCEPTED, Tar().pax({"path": b"directory/" * 300 + b"f"}).file(b"x").end())
    add([106], "path_of_5000_bytes", "longer than 4096 bytes", Tar().pax({"path": b"directory/" * 500 + b"f"}).file(b"x").end())
    add([106], "3000_levels", "4096 bytes", Tar().pax({"path": b"a/" * 3000 + b"f"}).file(b"x").end())
    for number, name in enumerate((b"\xff\xfe", b"new\nline", b"\"quoted\"", b"$(touch pwned)`id`", b"a,b:c=d", b"back\\slash", b" blank ",
                                   b"e\xcc\x81", b"\xe9", b"-rf", b"tab\there", b"\x1b[31m", b"#hash", b"*?[a]", b"\x7f", b"%s%n")):
        # outcome 107 accepted: names of any bytes
        add([107], f"odd_name_{number}", ACCEPTED, Tar().file(name).symlink(b"l", name).pax({"path": b"p" + name}).file(b"x").end())
    # outcome 108 accepted: duplicates
    add([108], "duplicates", ACCEPTED, Tar().file(b"f", b"1").file(b"f", b"22").file(b"./f", b"333").end())
    # outcome 109 accepted: 20,000 and 100,000 entries in a directory
    add([109], "20000_entries_in_a_directory", ACCEPTED, b"".join(header(b"d/%d" % i) for i in range(20_000)) + bytes(1024))


def links():
    # outcome 89 contained: links, then writes through them
    add([89], "file_through_links", ACCEPTED, Tar().symlink(b"abs", b"/etc").file(b"abs/shadow").symlink(b"up", b"../../../../tmp").file(
        b"up/f").symlink(b"chain", b"abs").file(b"chain/passwd").end())
    # outcome 90 accepted: a file over a link
    add([90], "file_over_a_link", ACCEPTED, Tar().symlink(b"l", b"/etc/passwd").file(b"l", b"own").end())
    # outcome 91 contained: mode, time, attributes through a link
    add([91], "directory_over_a_link_with_another_mode", ACCEPTED, Tar().directory(b"d").symlink(b"l", b"d").directory(b"l", mode=0o777).end())
    # outcome 92 contained: hard links to the outside
    add([92], "hard_link_that_climbs_out", "leaves the image's root", Tar().hard_link(b"l", b"../../etc/shadow").end())
    add([92], "hard_link_to_an_absolute_name_that_is_not_there", "which is not in this layer", Tar().hard_link(b"l", b"/etc/shadow").end())
    add([92], "hard_link_through_a_link", "which is not in this layer", Tar().symlink(b"out", b"/etc").hard_link(b"l", b"out/shadow").end())
    # outcome 93 contained: hard links to itself, a directory, a later file, nothing
    add([93], "hard_link_to_itself", ACCEPTED, Tar().file(b"f", b"kept").hard_link(b"f", b"f").end())
    add([93], "hard_link_to_itself_that_is_not_there", "which is not in this layer", Tar().hard_link(b"f", b"f").end())
    add([93], "hard_link_to_a_directory", "which is a directory", Tar().directory(b"d").hard_link(b"l", b"d").end())
    add([93], "hard_link_to_a_later_file", "which is not in this layer", Tar().hard_link(b"l", b"f").file(b"f").end())
    for kind in b"1", b"2", b"6", b"0":
        # outcome 94 contained: the root as link, file, FIFO
        add([94], f"root_as_type_{kind.decode()}", "root can only be a directory", Tar().entry(b".", kind=kind, link=b"etc").end())
    add([94], "root_as_a_directory", ACCEPTED, Tar().directory(b"./", mode=0o700).end())
    # outcome 100 accepted: directories, files and links replace each other
    add([100], "replacements", ACCEPTED, Tar().file(b"fd").directory(b"fd").file(b"fd/in").file(b"fl").symlink(b"fl", b"fd").symlink(
        b"lf", b"fd").file(b"lf").end())
    # outcome 101 accepted: /bin is usr/bin
    add([101], "bin_is_usr_bin_relative_and_absolute", ACCEPTED, Tar().directory(b"usr").directory(b"usr/bin").symlink(b"bin", b"usr/bin").file(
        b"bin/a").symlink(b"sbin", b"/usr/bin").file(b"sbin/b").end())
    # outcome 102 accepted: shut directory before its children
    add([102], "closed_directory_before_its_children", ACCEPTED, Tar().directory(b"ro", mode=0o555).file(b"ro/f").directory(
        b"none", mode=0).file(b"none/f").end())
    many = Tar().file(b"f", b"same")
    for i in range(1000):
        many.hard_link(b"l%d" % i, b"f")
    # outcome 116 accepted: hard links of every kind
    #     differs: a hard link to a file of a lower layer is refused: the layer alone does not have its bytes, and builders copy the file
    add([116], "1000_hard_links", ACCEPTED, many.end())
    add([116], "hard_links_that_break_later_and_to_a_link", ACCEPTED, Tar().file(b"f", b"old").hard_link(b"g", b"f").file(b"f", b"new").symlink(
        b"s", b"nowhere").hard_link(b"t", b"s").end())
    # outcome 130 contained: links into /proc; entries under proc, sys, dev
    add([130], "links_and_entries_under_proc_sys_and_dev", ACCEPTED, Tar().symlink(b"root", b"/proc/self/root").symlink(
        b"cwd", b"/proc/self/cwd").symlink(b"fd", b"/proc/self/fd/3").file(b"proc/x").file(b"sys/x").file(b"dev/x").end())
    # outcome 131 contained: a loop, a dangling link or a file as parent
    add([131], "loop_of_links_as_parent", "loop", Tar().symlink(b"a", b"b").symlink(b"b", b"a").file(b"a/f").end())
    add([131], "file_as_parent", "is not a directory", Tar().file(b"a").file(b"a/f").end())
    add([131], "dangling_link_as_parent", ACCEPTED, Tar().symlink(b"d", b"no/where").file(b"d/f").end())


def whiteouts():
    for number, name in enumerate((b"d/.wh.", b"d/.wh..", b"d/.wh...")):
        # outcome 95 contained: whiteouts of ., .., nothing, through links
        add([95], f"whiteout_of_nothing_{number}", ACCEPTED, Tar().directory(b"d").file(name).end())
    add([95], "whiteout_that_climbs_out", "leaves the image's root", Tar().file(b"../.wh.etc").end())
    add([95], "whiteout_through_a_link", ACCEPTED, Tar().symlink(b"l", b"/etc").file(b"l/.wh.passwd").end())
    # outcome 96 contained: whiteouts of every type; AUFS names
    add([96], "whiteouts_of_every_type_and_aufs_names", ACCEPTED, Tar().symlink(b".wh.a", b"x").directory(b".wh.b").entry(
        b".wh.c", kind=b"6").file(b".wh..wh.plnk").file(b"d/.wh..wh.orph").file(b"f").hard_link(b".wh.e", b"f").end())
    add([96], "whiteout_named_directory_with_an_outward_link", ACCEPTED, Tar().file(b".wh..wh.plnk/1.2", b"data").hard_link(
        b"f", b".wh..wh.plnk/1.2").file(b"d/.wh.e/g").file(b"d/h").end())
    # outcome 97 accepted: whiteouts, opaque directories, three layers
    add([97], "whiteouts_and_an_opaque_directory", ACCEPTED, Tar().file(b".wh.gone").file(b"d/.wh.f").file(b"o/.wh..wh..opq").file(b"o/new").end())
    # outcome 98 accepted: whiteout and the same name
    add([98], "whiteout_and_the_same_name", ACCEPTED, Tar().file(b"a").file(b".wh.a").file(b".wh.b").file(b"b").end())
    # outcome 99 accepted: opaque marker after its sibling
    add([99], "opaque_marker_after_its_sibling", ACCEPTED, Tar().file(b"o/first").file(b"o/.wh..wh..opq").end())


def attributes():
    for number, mtime in enumerate((-5, 2**40, base256(-1, 12), base256(2**33, 12), 0o77777777777)):
        # outcome 110 accepted: times of every kind
        add([110], f"time_out_of_range_{number}", ACCEPTED, Tar().file(b"f", mtime=mtime).end())
    for number, value in enumerate(("-5.5", "1234.567", "99999999999", "0", "-0.5")):
        add([110], f"extended_time_{number}", ACCEPTED, Tar().pax({"mtime": value}).file(b"f").end())
    # outcome 111 accepted: owners of every form
    add([111], "owners_of_every_form", ACCEPTED, Tar().file(b"a", uid=2**32 - 2, gid=2**32 - 2).file(b"b", owner=b"x" * 32).pax(
        {"uid": "4294967294", "gid": "4294967294", "uname": "u" * 300}).file(b"c").end())
    # outcome 112 accepted: devices are dropped
    add([112], "devices", ACCEPTED, Tar().entry(b"null", kind=b"3", device=(1, 3)).entry(b"sda", kind=b"4", device=(8, 0)).entry(
        b"forged", kind=b"3", device=(0, 0)).end())
    add([112], "hard_links_to_devices", ACCEPTED, Tar().file(b"kept").entry(b"dev/null", kind=b"3", device=(1, 3)).hard_link(
        b"dev/nul", b"./dev/null").hard_link(b"l", b"/dev/nul").hard_link(b"kept", b"l").file(b"dev/null", b"a file").hard_link(b"m", b"dev/null").end())
    # outcome 113 accepted: setuid, setgid, sticky
    add([113], "directories_closed_to_their_owner", ACCEPTED, Tar().directory(b".", mode=0).directory(b"a", mode=0o77).file(
        b"a/f").directory(b"b", mode=0o1333).directory(b"c", mode=0o500).directory(b"d", mode=0o444).directory(b"d", mode=0o100).end())
    add([113], "setuid_setgid_and_sticky", ACCEPTED, Tar().file(b"s", mode=0o4755).file(b"g", mode=0o2755).directory(b"t", mode=0o1777).directory(
        b"sg", mode=0o2775).end())
    # outcome 114 accepted: capabilities and overlay attributes are dropped
    add([114], "capabilities_and_forged_overlay_attributes", ACCEPTED, Tar().pax(
        {"SCHILY.xattr.security.capability": b"\1\0\0\2\0\0\0\0", "SCHILY.xattr.trusted.overlay.redirect": "/etc",
         "SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.trusted.overlay.opaque": "y"}).directory(b"d").end())
    # outcome 115 accepted: attributes of users, lists of rights, FIFOs
    add([115], "users_attributes_lists_of_rights_fifos", ACCEPTED, Tar().pax(
        {"SCHILY.xattr.user.note": b"a\0b", "SCHILY.acl.access": "user::rw-", "LIBARCHIVE.xattr.user.b": "eA=="}).file(b"f").entry(b"p", kind=b"6").end())


def sparse():
    data = b"datb" * 128
    # outcome 117 accepted: sparse files
    add([117], "old_gnu_sparse", ACCEPTED, old_sparse(b"s", 5000, [(1000, 512), (4488, 512)], data * 2) + bytes(1024))
    # GNU tar ends a map at the end of the file
    many = [(i * 1024, 512) for i in range(60)] + [(70000, 0)]
    add([117], "old_gnu_sparse_with_more_parts", ACCEPTED, old_sparse(b"s", 70000, many, b"12345678" * 64 * 60) + bytes(1024))
    add([117], "old_gnu_sparse_with_parts_that_are_no_blocks", "map is wrong", old_sparse(b"s", 5000, [(0, 8), (1024, 8)], b"12345678" * 2) + bytes(1024))
    add([117], "sparse_1_0", ACCEPTED, sparse_1_0(b"s", 5000, [(1000, 512), (4488, 512)], data * 2) + bytes(1024))
    add([117], "sparse_1_0_of_nothing", ACCEPTED, sparse_1_0(b"s", 5000, [(5000, 0)], b"") + bytes(1024))
    add([117], "sparse_0_1", ACCEPTED, Tar().pax({"GNU.sparse.size": "5000", "GNU.sparse.numblocks": "2", "GNU.sparse.map": "1000,512,4488,512",
                                                  "GNU.sparse.name": "s"}).file(b"GNUSparseFile.0/s", data * 2).end())
    add([117], "sparse_0_0", ACCEPTED, Tar().pax(b"".join(record(*item) for item in (
        ("GNU.sparse.size", "5000"), ("GNU.sparse.numblocks", "2"), ("GNU.sparse.offset", "1000"), ("GNU.sparse.numbytes", "512"),
        ("GNU.sparse.offset", "4488"), ("GNU.sparse.numbytes", "512")))).file(b"s", data * 2).end())
    for title, size, extents in (("overlaps", 100, [(0, 8), (4, 8)]), ("descends", 100, [(50, 8), (0, 8)]), ("passes_the_end", 100, [(0, 8), (98, 8)])):
        for form, archive in (("old", old_sparse(b"s", size, extents, b"1" * 16)), ("1_0", sparse_1_0(b"s", size, extents, b"1" * 16))):
            # outcome 118 refused: sparse maps that lie
            add([118], f"{form}_sparse_map_that_{title}", "map is wrong", archive + bytes(1024))
    add([118], "sparse_file_of_1_eib", "bytes", sparse_1_0(b"s", 1 << 60, [(0, 8)], b"12345678") + bytes(1024))
    add([118], "sparse_map_of_1e18_entries", "map is wrong", Tar().pax({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}).file(
        b"s", padded(b"1000000000000000000\n")).end())


def extended():
    # outcome 119 accepted: global header; one that names entries is contained
    add([119], "global_header_with_a_comment", ACCEPTED, Tar().pax({"comment": "git"}, b"g").file(b"f").end())
    add([119], "global_header_that_sets_the_path", "a global extended header sets", Tar().pax({"path": "/etc/passwd"}, b"g").file(b"f").end())
    # outcome 120 accepted: extended size against the stated one
    add([120], "extended_size_that_hides_an_entry", ACCEPTED, Tar().pax({"size": str(len(HIDDEN))}).raw(header(b"f") + HIDDEN).file(b"g").end())
    add([120], "extended_size_of_nothing_before_a_stated_one", ACCEPTED, Tar().pax({"size": "0"}).raw(header(b"f", size=len(HIDDEN)) + HIDDEN).end())
    # outcome 121 contained: extended header before a long name; size on a directory
    add([121], "extended_header_before_a_long_name", ACCEPTED, Tar().pax({"path": "pax", "size": "3"}).long(b"L", b"gnu").raw(header(b"f", size=3) + padded(b"abc")).end())
    add([121], "size_on_a_directory", ACCEPTED, Tar().directory(b"d", size=512).file(b"f").end())
    add([121], "extended_size_on_a_directory", ACCEPTED, Tar().pax({"size": "512"}).directory(b"d").file(b"f").end())
    for number, records in enumerate((
            b"99 path=foo\n", b"path=foo\n", b"8 pathx\n", b"12 path=fooo", b"0 path=foo\n", b"-5 path=foo\n", b" 12 path=foo\n",
            b"99999999999999999999 path=foo\n", b"5 =x\n", b"garbage", b"11 path=foo\n", b"12 path=foo\0", b"+12 path=foo\n", b"0x0c path=foo\n",
            record("size", "-1"), record("size", "1e3"), record("size", ""), record("size", "99999999999999999999"), record("mtime", "soon"))):
        # outcome 122 refused: malformed records
        # outcome 126 refused: sizes of every wrong form
        add([122, 126], f"malformed_record_{number}", "an extended header", pax_archive(records))
    # outcome 123 refused: headers that claim gigabytes; 20,000 of them
    add([123], "extended_header_that_claims_8_gib", "too long", Tar().entry(b"x", kind=b"x", size=8 << 30).end())
    add([123], "long_name_that_claims_64_mib", "too long", Tar().entry(b"x", kind=b"L", size=64 << 20, magic=GNU).end())
    add([123], "20000_extended_headers", "two extended headers", b"".join(Tar().pax({"path": "a"}).bytes() for _ in range(20_000)) + header(b"f") + bytes(1024))
    # outcome 124 contained: keys given twice; an extended header at the end; an empty path
    add([124], "key_given_twice", ACCEPTED, Tar().pax(record("path", "first") + record("path", "second")).file(b"f").end())
    add([124], "extended_header_at_the_end", "ends after an extended header", Tar().file(b"f").pax({"path": "a"}).end())
    add([124], "empty_path", "path is empty", Tar().pax({"path": ""}).file(b"f").end())
    # outcome 125 refused: NUL in a path
    add([125], "nul_in_a_path", "contains NUL", Tar().pax({"path": b"a\0b"}).file(b"f").end())
    add([125], "nul_in_a_link", "contains NUL", Tar().pax({"linkpath": b"a\0b"}).symlink(b"l", b"x").end())


def framing():
    add([126], "negative_size", "out of range", Tar().entry(b"f", size=base256(-1, 12)).end())
    add([126], "size_that_is_no_number", "not a number", Tar().entry(b"f", size=b"12x").end())
    add([126], "size_of_8_eib", "out of range", Tar().entry(b"f", size=base256(2**63, 12)).end())
    add([126], "size_of_4_eib", "bytes", Tar().entry(b"f", size=base256(2**62, 12)).end())
    bad = bytearray(header(b"bad"))
    bad[0] ^= 1
    # outcome 127 refused: wrong checksum; truncated
    add([127], "wrong_checksum", "checksum is wrong", Tar().file(b"good").raw(bytes(bad)).end())
    add([127], "header_cut_short", "middle of a block", Tar().file(b"f").bytes() + header(b"g")[:300])
    add([127], "data_cut_short", "middle of a file", Tar().file(b"f", b"x" * 3000).bytes()[:1024])
    # outcome 128 accepted: no end marker; what is behind it is never read
    add([128], "no_end_marker", ACCEPTED, Tar().file(b"f").bytes())
    add([128], "one_block_of_zeros", ACCEPTED, Tar().file(b"f").bytes() + bytes(512))
    add([128], "entry_behind_the_end", ACCEPTED, Tar().file(b"f").end() + Tar().file(b"never").end())
    add([128], "entry_behind_one_block_of_zeros", "zero block", Tar().file(b"f").raw(bytes(512)).file(b"g").end())
    for kind in b"MVDNXsZ":
        # outcome 129 contained: unknown and old types
        add([129], f"entry_of_type_{kind}", "unknown type", Tar().file(b"f").entry(b"odd", kind=bytes([kind])).end())
    add([129], "file_with_name_of_a_directory", "may be a file or a directory", Tar().file(b"f/").end())
    add([129], "contiguous_file", ACCEPTED, Tar().entry(b"c", b"data", kind=b"7").end())
    add([129], "v7_archive", ACCEPTED, Tar().entry(b"f", b"data", kind=b"\0", magic=V7).entry(b"d/", kind=b"\0", magic=V7).symlink(b"l", b"f", magic=V7).end())
    add([127], "checksum_of_signed_bytes", ACCEPTED, signed_sum(b"\xe9t\xe9") + padded(b"data") + bytes(1024))


def compressed():
    """Returns damaged blobs. (Valid ones are covered by unit tests: tar and tarfile would need
    options.)"""
    plain = Tar().file(b"f", b"content" * 100).end()
    packed = gzip.compress(plain, 6, mtime=0)
    # outcome 77 refused: gzip cut, wrong checksum, wrong length
    add([77], "gzip_cut_short", "is truncated", packed[:-9])
    add([77], "gzip_without_its_end", "is truncated", packed[:-4])
    add([77], "gzip_with_a_wrong_checksum", "checksum or length", packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:])
    add([77], "gzip_with_a_wrong_length", "checksum or length", packed[:-1] + bytes([packed[-1] ^ 1]))
    # outcome 79 refused: garbage behind the stream
    add([79], "garbage_behind_gzip", "trailing data", packed + b"garbage")
    # outcome 80 refused: gzip in gzip
    add([80], "gzip_in_gzip", "not a tar archive", gzip.compress(packed * 20, mtime=0))
    frame, block = b"\x28\xb5\x2f\xfd", (5 << 3 | 1).to_bytes(3, "little") + b"hello"
    # outcome 84 refused: zstd cut, other magic, reserved block, window, dictionary
    add([84], "zstd_cut_short", "is truncated", frame + b"\x20\x05" + block[:-1])
    add([84], "zstd_with_another_magic", "not a tar archive", b"\x27\xb5\x2f\xfd\x20\x05" + block + bytes(2000))
    add([84], "zstd_with_a_reserved_block", "zstd: ", frame + b"\x20\x05" + (5 << 3 | 7).to_bytes(3, "little") + b"hello")
    add([84], "zstd_with_a_window_of_2_tib", "zstd: ", frame + b"\x00\xf8" + block)
    add([84], "zstd_with_a_dictionary", "zstd: ", frame + b"\x21\x07\x05" + block)
    # outcome 85 refused: no byte
    add([85], "empty_blob", "empty", b"")
    # outcome 86 refused: zip, text, random, a program
    add([86], "zip_file", "not a tar archive", b"PK\3\4" + b"\x14" * 2000)
    add([86], "plain_text", "tar archive", b"not found\n" * 200)
    add([86], "elf_program", "not a tar archive", b"\x7fELF\2\1\1" + bytes(9) + b"\3\0\x3e\0" * 600)


def signed_sum(name):
    block = bytearray(header(name, size=4))
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % (sum(byte - 256 if byte > 127 else byte for byte in block) % 2**18)
    return bytes(block)


for part in (names, links, whiteouts, attributes, sparse, extended, framing, compressed):
    part()
