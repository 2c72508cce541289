#!/usr/bin/env python3
"""layers-40.py BLOBS RECORDS FIRST: writes the layers FIRST to 40.

Layer N holds /layers/N, its own text in /layers/top, and every fourth takes away the file of the layer before.
"""

import io
import json
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from oci_layout import write_layer  # noqa: E402


def add_file(tar, name, text=""):
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(text), 0o644
    tar.addfile(info, io.BytesIO(text.encode()))


def add_directory(tar, name):
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    tar.addfile(info)


def fill(tar, number):
    add_directory(tar, "layers")
    if number % 4 == 0:
        add_file(tar, f"layers/.wh.{number - 1:02d}")
    add_file(tar, f"layers/{number:02d}", f"layer {number}\n" * 100)
    add_file(tar, "layers/top", f"layer {number}\n")


def main(blobs, records, first):
    for number in range(int(first), 41):
        record = write_layer(blobs, f"layer {number} of 40", lambda tar: fill(tar, number))
        (Path(records) / f"{number:03d}").write_text(json.dumps(record))


main(*sys.argv[1:])
