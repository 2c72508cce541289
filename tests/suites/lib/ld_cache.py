"""An independent reader of glibc's /etc/ld.so.cache, written after sysdeps/generic/dl-cache.h: what we write is compared with it."""
import functools
import re
import struct

MACHINES = {0x0303: "libc6,x86-64", 0x0A03: "libc6,AArch64", 0x0003: "libc6"}


def loaders_order(one, other):
    """As _dl_cache_libcmp compares: runs of digits as numbers, and digits behind all other characters."""
    split = functools.partial(re.findall, r"[0-9]+|[^0-9]")
    for a, b in zip(split(one), split(other)):
        if a.isdigit() != b.isdigit():
            return 1 if a.isdigit() else -1
        key = int if a.isdigit() else ord
        if key(a) != key(b):
            return 1 if key(a) > key(b) else -1
    return len(split(one)) - len(split(other))


class LdCache:
    def __init__(self, data):
        self.old = data.startswith(b"ld.so-1.7.0")
        if self.old:  # the table of libc5's time comes first, and what we want is aligned behind it
            end = 16 + struct.unpack_from("<I", data, 12)[0] * 12
            data = data[(end + 7) // 8 * 8:]
        assert data[:20] == b"glibc-ld.so.cache1.1", data[:20]
        count, strings = struct.unpack_from("<II", data, 20)
        self.order, self.extensions = data[28] & 3, struct.unpack_from("<I", data, 32)[0]
        assert 48 + count * 24 + strings <= len(data), "the texts end behind the file"

        def text(offset):
            assert 48 + count * 24 <= offset < 48 + count * 24 + strings, f"text at {offset}"
            return data[offset:data.index(b"\0", offset)].decode()

        self.entries = []  # (soname, path, flags, os_version, hwcap)
        for i in range(count):
            flags, key, value, os_version, hwcap = struct.unpack_from("<iIIIQ", data, 48 + i * 24)
            self.entries.append((text(key), text(value), flags, os_version, hwcap))
        for before, after in zip(self.entries, self.entries[1:]):
            assert loaders_order(before[0], after[0]) >= 0, f"{before[0]} before {after[0]}"
        self.hwcaps = []
        if self.extensions:
            magic, sections = struct.unpack_from("<II", data, self.extensions)
            assert magic == 0xEAA42174, hex(magic)
            for i in range(sections):
                tag, _, offset, size = struct.unpack_from("<IIII", data, self.extensions + 8 + i * 16)
                assert offset + size <= len(data)
                if tag == 1:
                    self.hwcaps = [text(name) for name, in struct.iter_unpack("<I", data[offset:offset + size])]

    def listing(self):
        """The lines of `ldconfig -p`."""
        for soname, path, flags, os_version, hwcap in self.entries:
            about = MACHINES[flags]
            if hwcap >> 62 & 1:
                about += f', hwcap: "{self.hwcaps[hwcap & 0xFFFFFFFF]}"'
            if os_version:
                about += f", OS ABI: Linux {os_version >> 16 & 255}.{os_version >> 8 & 255}.{os_version & 255}"
            yield f"{soname} ({about}) => {path}"

    def pairs(self):
        return [(soname, path) for soname, path, *_ in self.entries]
