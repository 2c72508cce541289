"""Layer archives built from a list of entries."""

import io
import tarfile


def d(path, mode=0o755):
    return tarfile.DIRTYPE, path, mode, ""


def f(path, content="", mode=0o644):
    return tarfile.REGTYPE, path, mode, content or path


def s(path, target):
    return tarfile.SYMTYPE, path, 0o777, target


def h(path, target):
    return tarfile.LNKTYPE, path, 0o644, target


def w(path):
    head, _, name = path.rpartition("/")
    return f(f"{head}/.wh.{name}" if head else f".wh.{name}")


def opaque(path):
    return f(path + "/.wh..wh..opq")


def archive(entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for kind, path, mode, text in entries:
            info = tarfile.TarInfo(path)
            info.type, info.mode, info.mtime = kind, mode, 1000
            content = text.encode() if kind == tarfile.REGTYPE else b""
            info.size = len(content)
            info.linkname = "" if kind == tarfile.REGTYPE else text
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()
