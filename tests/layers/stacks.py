"""Layers above others: what overlayfs shows of our layers together must be what GNU tar leaves that extracts their archives one
over the other. Stacks by name are below, with what must come of each; others come by chance. Links are relative and stay inside."""

import os
import random
import shutil
import stat
import subprocess
import tempfile

import kernel
import readers
from entries import archive, d, f, h, opaque, s, w
from model import DIRECTORY, FILE, GONE, LINK, OPAQUE, WHITEOUT


BIG = "0123456789abcdef" * 20000

STACKS = {
    "implied directories keep what they have below": [[d("var"), d("var/tmp", 0o1777), d("root", 0o700), f("root/a")], [f("var/tmp/b"), f("root/b")]],
    "through several layers": [[d("t", 0o1777)], [f("t/a")], [f("t/b")], [d("t", 0o700)], [f("t/c"), f("t/new/d")]],
    "merged usr": [[d("usr"), d("usr/sbin", 0o711), f("usr/sbin/old"), s("sbin", "usr/sbin")], [f("sbin/new"), f("sbin/deep/er/file"), w("sbin/old")]],
    "a link that leads through others": [[d("a"), d("a/b"), f("a/b/x"), s("l", "m"), s("m", "a"), s("a/up", "../a/b")], [f("l/up/y"), f("m/b/z")]],
    "a link of the layer and one below": [[d("usr"), d("usr/lib", 0o750), s("lib", "usr/lib")], [s("usr/lib64", "../lib"), f("usr/lib64/new")]],
    "a directory of its own replaces a link": [[d("usr"), d("usr/sbin"), f("usr/sbin/old"), s("sbin", "usr/sbin")], [d("sbin", 0o700), f("sbin/new")]],
    "whiteouts of nothing": [[d("a"), f("a/x")], [w("a/none"), w("b/c/none"), d("n"), w("n/none"), w("none")]],
    "whiteouts of something": [[d("a"), f("a/x"), f("a/y"), d("b"), f("b/c/d")], [w("a/x"), w("b"), f("b/new")], [w("a/x"), w("a/y"), w("b/new")]],
    "whiteouts in a hiding directory": [[d("a"), f("a/x")], [d("a"), opaque("a"), w("a/x"), w("a/y"), f("a/z")], [f("a/b")]],
    "a root that hides all": [[d("a", 0o700), f("a/x"), f("b"), s("l", "a"), d("c"), f("c/d/e")], [d("only"), f("b2")],
                              [opaque("."), d("a"), f("a/new"), f("c/new"), f("l")]],
    "a root that hides all, and what it hides": [[f("a/x"), f("b")], [opaque("."), w("b"), d("a"), w("a/x"), f("new/x")], [w("new/x"), f("a/y"), f("b")]],
    "a root that hides nothing": [[opaque("."), f("a")], [opaque("."), w("a")], [f("b/c")]],
    "hard links across layers": [[d("a"), f("a/x", "small"), f("big", BIG), s("l", "a/x"), s("b", "a")], [h("y", "a/x"), h("z", "b/x"), h("c/big", "big"), h("m", "l"), h("n", "y")]],
    "hard link to a file between": [[f("a", "one")], [f("a", "two")], [h("b", "a")], [w("a")], [h("c", "b")]],
    "the first layer": [[f("a/b/c"), w("a/x"), w("gone")]],
    "many layers": [[f(f"dir{i % 7}/file{i}"), w(f"dir{i % 7}/file{i - 7}"), *([d("dir3", 0o700)] if i == 20 else [])] for i in range(40)],
}
REFUSED = {
    "hard link to what is nowhere": ([[f("a")], [h("b", "none")]], "not in the image"),
    "hard link to what is gone": ([[f("a")], [w("a"), h("b", "a")]], "not in the image"),
    "hard link to a directory below": ([[d("a")], [h("b", "a")]], "a directory"),
    "hard link to what the root hides": ([[f("a")], [opaque("."), h("b", "a")]], "not in the image"),
    "hard link to itself": ([[f("a")], [h("b", "b")]], "not in the image"),
}


# --- by GNU tar ---

def take_away(root, entries):
    """What the whiteouts of a layer say of those below it."""
    for kind, path, _, _ in entries:
        head, name = os.path.split(path.encode())
        if not name.startswith(WHITEOUT):
            continue
        directory = os.path.join(root, head)
        names = os.listdir(directory) if name == OPAQUE and os.path.isdir(directory) else [name.removeprefix(WHITEOUT)]
        for gone in names:
            there = os.path.join(directory, gone)
            if os.path.isdir(there) and not os.path.islink(there):
                shutil.rmtree(there)
            elif os.path.lexists(there):
                os.unlink(there)


def by_gnu_tar(layers):
    """Path -> (kind, mode, content); None if GNU tar cannot."""
    with tempfile.TemporaryDirectory(prefix="spc-stack-") as name:
        root = os.fsencode(name) + b"/root"
        os.mkdir(root)
        for entries in layers:
            take_away(root, entries)
            rest = archive([entry for entry in entries if not os.path.basename(entry[1]).startswith(".wh.")])
            done = subprocess.run(["tar", "-x", "-p", "--no-same-owner", "--warning=no-timestamp", "-C", root], input=rest,
                                  stderr=subprocess.DEVNULL, umask=0o022)
            if done.returncode:
                return None
        out = {}
        for directory, names, files in os.walk(root):
            for name in names + files:
                path = os.path.join(directory, name)
                status = os.lstat(path)
                content, kind = b"", DIRECTORY
                if stat.S_ISLNK(status.st_mode):
                    content, kind = os.readlink(path), LINK
                elif stat.S_ISREG(status.st_mode):
                    kind = FILE
                    with open(path, "rb") as file:
                        content = file.read()
                out[os.path.relpath(path, root)] = (kind, stat.S_IMODE(status.st_mode), content)
        return out


# --- by us ---

def overlay(listings):
    """What overlayfs shows, the bottom layer first. It shows whiteouts, too, in a directory that one layer only has."""
    out = {}

    def show(path, parts):
        merged = {}
        for number, listing in parts:
            prefix = path + b"/" if path else b""
            for name in {p[len(prefix):] for p in listing if p.startswith(prefix) and p != path and b"/" not in p[len(prefix):]}:
                merged.setdefault(name, []).append((number, listing))
        for name, having in merged.items():
            whole = path + b"/" + name if path else name
            entry = having[0][1][whole]
            if entry[0] == GONE:
                if len(parts) == 1:
                    out[whole] = (GONE, 0, b"")
                continue
            out[whole] = (entry[0], entry[1], entry[3])
            if entry[0] != DIRECTORY:
                continue
            below = []
            for number, listing in having:
                if listing[whole][0] != DIRECTORY:
                    break
                below.append((number, listing))
                if listing[whole][5]:
                    break
            show(whole, below)
    show(b"", list(enumerate(listings))[::-1])  # of layers' roots it does not ask whether they are opaque
    return out


def checked_overlay(listings):
    """The same, compared with what the kernel shows of such layers if this process may mount them."""
    ours = overlay(listings)
    theirs = kernel.overlay(listings) if os.geteuid() == 0 else ours
    if ours != theirs:
        raise AssertionError(f"overlayfs differs from its model: {sorted(set(ours.items()) ^ set(theirs.items()))[:6]}")
    return ours


def problems_of_model():
    """An opaque root hides nothing: the model must know."""
    def layer(name, opaque):
        return {b"": (DIRECTORY, 0o755, 0, b"", b"", opaque), name: (FILE, 0o644, 0, name, name, False)}
    try:
        if set(checked_overlay([layer(b"a", False), layer(b"b", True)])) != {b"a", b"b"}:
            yield "the model lets an opaque root hide what is below"
    except AssertionError as why:
        yield str(why)


def by_us(layers):
    files = []
    try:
        for entries in layers:
            output = readers.memory_file()
            files.append(output)
            refusal = readers.convert(archive(entries), output, files[:-1])
            if refusal is not None:
                raise readers.Unreadable(refusal)
        shown = checked_overlay([readers.image_listing(file) for file in files])
        for ends in ways_to_merge(len(files)):
            together = by_merging(files, ends)
            if together != shown:
                raise AssertionError(f"merged at {ends}: {sorted(set(together.items()) ^ set(shown.items()))[:6]}")
        return shown
    finally:
        for file in files:
            os.close(file)


def ways_to_merge(count):
    """Where runs of layers end: all in one, and two ways by chance."""
    if count < 2:
        return []
    rng = random.Random(count)
    by_chance = [sorted({*rng.sample(range(1, count), rng.randint(1, count - 1)), count}) for _ in range(2)]
    return [[count], *by_chance]


def by_merging(files, ends):
    """What overlayfs shows of the same layers when each run is one file."""
    merged = []
    try:
        for begin, end in zip([0, *ends], ends):
            output = readers.memory_file()
            refusal = readers.convert(b"", output, merged + files[begin:end], end - begin)
            merged.append(output)
            if refusal is not None:
                raise AssertionError(f"merging {begin} to {end} was refused: {refusal}")
        return overlay([readers.image_listing(file) for file in merged])
    finally:
        for file in merged:
            os.close(file)


def by_chance(seed):
    """A stack of small layers with few names, so that they meet. It may be refused."""
    rng = random.Random(seed)
    known, links = [], set()
    layers = []
    for _ in range(rng.randint(2, 4)):
        entries, taken, away = [], set(), set()

        def path():
            if known and rng.random() < 0.6:
                start = rng.choice(known)
                return start if rng.random() < 0.3 else start + "/" + rng.choice("abc")
            return "/".join(rng.choice("abcl") for _ in range(rng.randint(1, 3)))
        for _ in range(rng.randint(1, 6)):
            where = path()
            # The order within a layer is lost: nothing replaces a link that entries of the same layer may come through, and
            # nothing lies in what the layer takes away.
            if where in taken or where in links or where.count("/") > 5 or any(where.startswith(f"{gone}/") for gone in away):
                continue
            taken.add(where)
            kind = rng.choice("fffddlhw" if len(layers) else "fffdddl")
            if kind == "f":
                entries.append(f(where, f"{where} of {len(layers)}"))
            elif kind == "d":
                entries.append(d(where, rng.choice([0o755, 0o700, 0o1777])))
            elif kind == "l":
                depth = where.count("/")
                target = "../" * rng.randint(0, depth) + rng.choice(["a", "b", "c", "a/b", "c/a"])
                led_to = os.path.normpath(os.path.join(os.path.dirname(where), target))
                if not f"{where}/".startswith(f"{led_to}/"):  # else what comes through it could replace it
                    entries.append(s(where, target))
                    links.add(where)
            elif kind == "h" and known:
                entries.append(h(where, rng.choice(known)))
            elif kind == "w":
                entries.append(w(where))
                away.add(where)
            known.append(where)
        layers.append(entries)
    return layers


def problems(layers, outcome=None):
    theirs = by_gnu_tar(layers)
    try:
        ours = by_us(layers)
    except readers.Unreadable as why:
        if outcome is not any and (theirs is not None or (outcome is not None and outcome not in str(why))):
            yield f"refused: {why}"
        return
    if outcome not in (None, any):
        yield f"accepted, but {outcome!r} should be the answer"
    if theirs is None:
        return
    for path in sorted(set(theirs) | set(ours)):
        if theirs.get(path) != ours.get(path):
            yield f"{path!r}: GNU tar leaves {str(theirs.get(path))[:120]}, here {str(ours.get(path))[:120]}"
