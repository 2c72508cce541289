"""Layers designed to consume memory and time. Each is converted under the converter's seccomp
filter. Its cost must be bounded by the archive's size. MOST_EXTRA and MOST_SECONDS are far above
the converter's present need, and far below its cost without limits."""

import os
import time

import readers
from tarball import GNU, Tar, header, padded, record

MIB = 1 << 20
# Beyond the archive: buffers, compressors, 64 MiB of tree and the same for its tables.
MOST_EXTRA = 320 * MIB
MOST_SECONDS = 12           # processor time; an archive of 64 MiB takes 3
MEMORY, STEPS, ATTRIBUTES = "MiB of memory", "steps", "attributes"


def deep(depth, name=b"d"):
    return b"/".join([name] * depth)


def long_entry(path, kind=b"0", target=b"", **fields):
    """Returns an entry with GNU's long names."""
    out = b""
    for letter, text in ((b"L", path), (b"K", target)):
        if len(text) > 100:
            out += Tar().long(letter, text).bytes()
    return out + header(path[:99], kind=kind, link=target[:99], magic=GNU, **fields)


def attributes(count, size, first=0):
    return Tar().pax(b"".join(record(f"SCHILY.xattr.user.n{first + i}", b"%08d" % (first + i) + bytes(max(size - 8, 0))) for i in range(count)))


def links(target, count):
    """Returns a chain of links with targets of maximal length."""
    return b"".join(Tar().long(b"K", target(i)).bytes() + header(b"l%d" % i, kind=b"2", link=b"x", magic=GNU) for i in range(count))


def long_walk(i):
    """Returns a link whose target takes 2,000 steps, to another link."""
    return b"d/../" * 800 + b"l%d" % (i + 1)


def deep_paths(count):
    return b"".join(long_entry(b"x%d/" % i + deep(2000)) for i in range(count))


def walked_again(count, kind=b"0"):
    entries = b"".join(header(b"l0/f%d" % i, kind=kind, link=b"f") for i in range(count))
    return header(b"d/", kind=b"5", mode=0o755) + header(b"f") + header(b"l39/", kind=b"5", mode=0o755) + links(long_walk, 39) + entries


def many_in_one(count):
    return b"".join(header(b"d/%d" % i) for i in range(count))


def sparse(count):
    numbers = b"".join(b"%d\n" % n for n in (count, *(n for i in range(count) for n in (i * 131072, 512))))
    records = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s", "GNU.sparse.realsize": str(count * 131072)}
    return Tar().pax(records).file(b"GNUSparseFile.0/s", padded(numbers) + b"x" * 512 * count).bytes()


END = bytes(1024)

# Name -> the archives of the image's layers, the lowest first, and the expected part of the answer
# for the last; None: it is converted.
LAYERS = {
    "deep_paths": (lambda: [deep_paths(8000)], MEMORY),
    "links_walked_for_each_file": (lambda: [walked_again(20_000)], STEPS),
    "links_walked_for_each_hard_link": (lambda: [walked_again(20_000, b"1")], STEPS),
    "many_attributes_of_one_file": (lambda: [attributes(4096, 9).file(b"f").bytes()], None),
    "too_many_attributes_of_one_file": (lambda: [attributes(200_000, 9).file(b"f").bytes()], ATTRIBUTES),
    "many_attributes_of_many_files": (lambda: [b"".join(attributes(2000, 9, i * 2000).file(b"f%d" % i).bytes() for i in range(300))], MEMORY),
    "long_attributes": (lambda: [b"".join(attributes(4, 65000, i * 4).file(b"f%d" % i).bytes() for i in range(200))], None),
    "150000_entries_of_one_directory": (lambda: [many_in_one(150_000)], None),
    "150000_whiteouts": (lambda: [many_in_one(150_000), b"".join(header(b"d/.wh.%d" % i) for i in range(150_000))], None),
    "sparse_file_of_many_parts": (lambda: [sparse(8000)], None),
    "hard_links_to_hard_links": (lambda: [header(b"f0") + b"".join(header(b"f%d" % (i + 1), kind=b"1", link=b"f%d" % i) for i in range(100_000))], None),
    "attributes_below_implied_above": (
        lambda: [b"".join(attributes(4, 65000).directory(b"d%d" % i).bytes() for i in range(200)),
                 b"".join(header(b"d%d/f" % i) for i in range(200))], MEMORY),
    "one_long_attribute_below_implied_above": (
        lambda: [b"".join(Tar().pax(record("SCHILY.xattr.user.n", bytes(65000))).directory(b"d%d" % i).bytes() for i in range(900)),
                 b"".join(header(b"d%d/f" % i) for i in range(900))], MEMORY),
    "long_links_below_linked_above": (
        lambda: [b"".join(long_entry(b"l%d" % i, b"2", deep(2000)) for i in range(40_000)),
                 b"".join(header(b"m%d" % i, kind=b"1", link=b"l%d" % i) for i in range(40_000))], MEMORY),
    "links_below_walked_for_each_hard_link": (
        lambda: [walked_again(10), b"".join(header(b"m%d" % i, kind=b"1", link=b"l0/f%d" % (i % 10)) for i in range(20_000))], STEPS),
    "deep_directories_of_many_layers_moved": (
        lambda: [long_entry(deep(1500) + b"/f") + Tar().long(b"K", deep(1400)).bytes() + header(b"s", kind=b"2", link=b"d", magic=GNU)] +
                [long_entry(deep(1500) + b"/f%d" % i) for i in range(16)] + [long_entry(deep(1700) + b"/m") + long_entry(b"s/" + deep(250) + b"/n")],
        None),
}


def problems(make, named):
    layers = [layer + END for layer in make()]
    files = []
    try:
        for layer in layers:
            began = time.monotonic()
            files.append(readers.memory_file())
            usage = {}
            answer = readers.convert(layer, files[-1], files[:-1], usage=usage)
            took = usage["seconds"], usage["bytes"], time.monotonic() - began
            if os.environ.get("SPC_TIMES"):
                print(f"    {len(layer) / MIB:.1f} MiB: {took[0]:.2f} s, {took[1] / MIB:.0f} MiB, {took[2]:.2f} s: {str(answer)[:250]}", flush=True)
            if took[0] > MOST_SECONDS or took[1] > len(layer) + MOST_EXTRA:
                yield f"an archive of {len(layer)} bytes took {took[0]:.1f} s and {took[1] / MIB:.0f} MiB"
            if layer is not layers[-1] and answer is not None:
                yield f"a layer below is refused: {answer}"
        if named is None and answer is not None:
            yield f"refused: {answer}"
        if named is not None and named not in str(answer):
            yield f"{named!r} should be named, and the answer is {answer!r}"
    finally:
        for file in files:
            os.close(file)
