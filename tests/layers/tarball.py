"""Builds tar archives byte by byte, both valid and malformed."""

BLOCK = 512


def padded(data):
    return data + bytes(-len(data) % BLOCK)


def octal(value, digits):
    return b"%0*o" % (digits, value)


def base256(value, size):
    """Encodes numbers too large for octal in GNU's base-256 form."""
    return bytes([0xFF if value < 0 else 0x80]) + (value % (1 << 8 * (size - 1))).to_bytes(size - 1, "big")


def number(value, size):
    """Encodes a number as GNU tar does: octal if it fits."""
    if isinstance(value, bytes):
        return value
    return octal(value, size - 1) if 0 <= value < 8 ** (size - 1) else base256(value, size)


def with_sum(block):
    block = bytearray(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def header(name, kind=b"0", size=0, mode=0o644, mtime=15, link=b"", uid=0, gid=0, magic=b"ustar\00000", prefix=b"", owner=b"",
           device=(0, 0), raw=()):
    """Returns a header. `raw`: pairs of offset and bytes that are replaced before the checksum is
    computed."""
    block = bytearray(BLOCK)

    def put(at, data, most):
        block[at:at + min(len(data), most)] = data[:most]
    put(0, name, 100)
    put(100, number(mode, 8), 8)
    put(108, number(uid, 8), 8)
    put(116, number(gid, 8), 8)
    put(124, number(size, 12), 12)
    put(136, number(mtime, 12), 12)
    put(156, kind, 1)
    put(157, link, 100)
    put(257, magic, 8)
    put(265, owner, 32)
    put(297, owner, 32)
    if kind in b"34":
        put(329, octal(device[0], 7), 8)
        put(337, octal(device[1], 7), 8)
    put(345, prefix, 155)
    for at, data in raw:
        put(at, data, len(data))
    return with_sum(block)


GNU = b"ustar  \0"
V7 = b"\0" * 8


def record(key, value):
    key, value = (text.encode() if isinstance(text, str) else text for text in (key, value))
    rest = len(key) + len(value) + 3
    length = rest + 1
    while rest + len(str(length)) != length:
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


class Tar:
    def __init__(self):
        self.blocks = []

    def raw(self, data):
        self.blocks.append(data)
        return self

    def entry(self, name, data=b"", **fields):
        fields.setdefault("size", len(data))
        return self.raw(header(name, **fields) + padded(data))

    def file(self, name, data=b"data", **fields):
        return self.entry(name, data, **fields)

    def directory(self, name, **fields):
        return self.entry(name, kind=b"5", **{"mode": 0o755, **fields})

    def symlink(self, name, target, **fields):
        return self.entry(name, kind=b"2", link=target, **fields)

    def hard_link(self, name, target, **fields):
        return self.entry(name, kind=b"1", link=target, **fields)

    def pax(self, records, kind=b"x", **fields):
        if isinstance(records, dict):
            records = b"".join(record(*item) for item in records.items())
        return self.entry(b"PaxHeaders/x", records, kind=kind, **fields)

    def long(self, kind, text, **fields):
        return self.entry(b"././@LongLink", text + b"\0", kind=kind, magic=GNU, **fields)

    def bytes(self):
        return b"".join(self.blocks)

    def end(self):
        return self.bytes() + bytes(2 * BLOCK)
