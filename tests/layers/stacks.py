"""Stacks of layers: the overlay of converted layers must equal the result of GNU tar extracting
their archives in order. Named stacks are below, each with its expected result. Others are random.
Links are relative and stay inside the root."""

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
    "implied_directories_keep_lower_attributes": [[d("var"), d("var/tmp", 0o1777), d("root", 0o700), f("root/a")], [f("var/tmp/b"), f("root/b")]],
    "through_several_layers": [[d("t", 0o1777)], [f("t/a")], [f("t/b")], [d("t", 0o700)], [f("t/c"), f("t/new/d")]],
    "merged_usr": [[d("usr"), d("usr/sbin", 0o711), f("usr/sbin/old"), s("sbin", "usr/sbin")], [f("sbin/new"), f("sbin/deep/er/file"), w("sbin/old")]],
    "link_that_leads_through_others": [[d("a"), d("a/b"), f("a/b/x"), s("l", "m"), s("m", "a"), s("a/up", "../a/b")], [f("l/up/y"), f("m/b/z")]],
    "link_of_the_layer_and_one_below": [[d("usr"), d("usr/lib", 0o750), s("lib", "usr/lib")], [s("usr/lib64", "../lib"), f("usr/lib64/new")]],
    "directory_of_its_own_replaces_a_link": [[d("usr"), d("usr/sbin"), f("usr/sbin/old"), s("sbin", "usr/sbin")], [d("sbin", 0o700), f("sbin/new")]],
    "whiteouts_of_nothing": [[d("a"), f("a/x")], [w("a/none"), w("b/c/none"), d("n"), w("n/none"), w("none")]],
    "whiteouts_of_something": [[d("a"), f("a/x"), f("a/y"), d("b"), f("b/c/d")], [w("a/x"), w("b"), f("b/new")], [w("a/x"), w("a/y"), w("b/new")]],
    "whiteouts_in_a_hiding_directory": [[d("a"), f("a/x")], [d("a"), opaque("a"), w("a/x"), w("a/y"), f("a/z")], [f("a/b")]],
    "root_that_hides_all": [[d("a", 0o700), f("a/x"), f("b"), s("l", "a"), d("c"), f("c/d/e")], [d("only"), f("b2")],
                              [opaque("."), d("a"), f("a/new"), f("c/new"), f("l")]],
    "root_that_hides_all_and_hidden_files": [[f("a/x"), f("b")], [opaque("."), w("b"), d("a"), w("a/x"), f("new/x")], [w("new/x"), f("a/y"), f("b")]],
    "root_that_hides_nothing": [[opaque("."), f("a")], [opaque("."), w("a")], [f("b/c")]],
    "hard_links_across_layers": [[d("a"), f("a/x", "small"), f("big", BIG), s("l", "a/x"), s("b", "a")], [h("y", "a/x"), h("z", "b/x"), h("c/big", "big"), h("m", "l"), h("n", "y")]],
    "hard_link_to_a_file_between": [[f("a", "one")], [f("a", "two")], [h("b", "a")], [w("a")], [h("c", "b")]],
    "first_layer": [[f("a/b/c"), w("a/x"), w("gone")]],
    "many_layers": [[f(f"dir{i % 7}/file{i}"), w(f"dir{i % 7}/file{i - 7}"), *([d("dir3", 0o700)] if i == 20 else [])] for i in range(40)],
}
REFUSED = {
    "hard_link_to_missing_file": ([[f("a")], [h("b", "none")]], "not in the image"),
    "hard_link_to_removed_file": ([[f("a")], [w("a"), h("b", "a")]], "not in the image"),
    "hard_link_to_a_directory_below": ([[d("a")], [h("b", "a")]], "a directory"),
    "hard_link_to_file_hidden_by_root": ([[f("a")], [opaque("."), h("b", "a")]], "not in the image"),
    "hard_link_to_itself": ([[f("a")], [h("b", "b")]], "not in the image"),
}


# --- by GNU tar ---

def take_away(root, entries):
    """Removes the files below a layer's whiteouts."""
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
    """Returns path -> (kind, mode, content), or None if GNU tar fails."""
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


# --- by the converter ---

def overlay(listings):
    """Returns the overlay, bottom layer first. Overlayfs also shows whiteouts in a directory that
    only one layer has."""
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
    show(b"", list(enumerate(listings))[::-1])  # overlayfs ignores opaque marks on layers' roots
    return out


def checked_overlay(listings):
    """Returns the same, compared with the kernel's overlay if this process may mount it."""
    ours = overlay(listings)
    theirs = kernel.overlay(listings) if os.geteuid() == 0 else ours
    if ours != theirs:
        raise AssertionError(f"overlayfs differs from its model: {sorted(set(ours.items()) ^ set(theirs.items()))[:6]}")
    return ours


def problems_of_model():
    """Checks that the model treats an opaque root as hiding nothing."""
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
    """Returns the ends of runs of layers: all in one, and two random ways."""
    if count < 2:
        return []
    rng = random.Random(count)
    by_chance = [sorted({*rng.sample(range(1, count), rng.randint(1, count - 1)), count}) for _ in range(2)]
    return [[count], *by_chance]


def by_merging(files, ends):
    """Returns the overlay of the same layers with each run merged into one file."""
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
    """Returns a stack of small layers with few names, so that they conflict. It may be refused."""
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
            # The order within a layer is lost: no entry may replace a link that entries of the same
            # layer use, or be below a path that the layer removes.
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
                # Otherwise an entry through it could replace it.
                if not f"{where}/".startswith(f"{led_to}/"):
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
