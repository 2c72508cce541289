"""Reference model of a layer archive, slow and simple: entries, as reported by any archive reader,
become the tree that an extraction inside an empty root would create. Paths are bytes without
leading slash."""

import dataclasses

WHITEOUT, OPAQUE, AUFS = b".wh.", b".wh..wh..opq", b".wh..wh."
FILE, DIRECTORY, LINK, HARD_LINK, FIFO, DEVICE, GONE = "file directory link hard-link fifo device whiteout".split()


class Refused(Exception):
    """Raised if no tree can be made of the archive."""


@dataclasses.dataclass
class Entry:
    kind: str
    path: bytes
    target: bytes = b""
    mode: int = 0
    mtime: int = 0
    data: bytes = b""


@dataclasses.dataclass(eq=False)
class Node:
    kind: str
    mode: int = 0o755
    mtime: int = 0
    content: bytes = b""  # of a file, or target of a link
    opaque: bool = False
    children: dict = dataclasses.field(default_factory=dict)


def clamp(mtime):
    """Returns whole seconds as squashfs stores them."""
    return min(max(int(mtime), 0), 2**32 - 1)


def parts_of(path):
    """Splits a path by name, so that `..` removes the preceding name."""
    parts = []
    for part in path.split(b"/"):
        if part == b"..":
            if not parts:
                raise Refused("climbs out")
            parts.pop()
        elif part not in (b"", b"."):
            if len(part) > 255 + 4 * part.startswith(b".wh."):  # the limit is that of the removed name
                raise Refused("long name")
            parts.append(part)
    return parts


def open_to_owner(mode):
    """Makes a root usable by its owner: in the image, root owns it."""
    mode &= 0o1777
    return mode if mode & 0o500 == 0o500 else mode | 0o700


class Tree:
    def __init__(self):
        self.root = Node(DIRECTORY)
        self.dropped = set()

    def directory(self, parts):
        """Returns the directory of the parts, following links inside the root. Creates missing
        directories."""
        here, ahead, links = [self.root], list(parts), 0
        while ahead:
            part = ahead.pop(0)
            if part in (b"", b"."):
                continue
            if part == b"..":
                here = here[:-1] or here
                continue
            child = here[-1].children.get(part)
            if child is None or child.kind == GONE:
                child = here[-1].children[part] = Node(DIRECTORY, opaque=child is not None)
            if child.kind == LINK:
                links += 1
                if links > 40:
                    raise Refused("loop")
                if child.content.startswith(b"/"):
                    here = here[:1]
                ahead = child.content.split(b"/") + ahead
            elif child.kind == DIRECTORY:
                here.append(child)
            else:
                raise Refused("file in the way")
        return here[-1]

    def find(self, path):
        parts = parts_of(path)
        if not parts:
            return self.root
        return self.directory(parts[:-1]).children.get(parts[-1])

    def add(self, entry):
        parts = parts_of(entry.path)
        if entry.kind == DEVICE or (entry.kind == HARD_LINK and tuple(parts_of(entry.target)) in self.dropped):
            self.dropped.add(tuple(parts))
            return
        self.dropped.discard(tuple(parts))
        if not parts:
            if entry.kind != DIRECTORY:
                raise Refused("root")
            self.root.mode, self.root.mtime = open_to_owner(entry.mode), clamp(entry.mtime)
            return
        *above, name = parts
        parent = self.directory(above)
        children, there = parent.children, parent.children.get(name)
        if name == OPAQUE:
            parent.opaque = parent is not self.root  # there is nothing below the root
            return
        if name.startswith(AUFS):
            return
        if name.startswith(WHITEOUT):
            hidden = name.removeprefix(WHITEOUT)
            if hidden not in (b"", b".", b".."):
                children.setdefault(hidden, Node(GONE, 0, clamp(entry.mtime))).opaque = True
        elif entry.kind == HARD_LINK:
            target = self.find(entry.target)
            if target is None or target.kind in (DIRECTORY, GONE):
                raise Refused("hard link")
            children[name] = target
        elif entry.kind == DIRECTORY and there and there.kind == DIRECTORY:
            there.mode, there.mtime = entry.mode & 0o1777, clamp(entry.mtime)
        else:
            if entry.kind == LINK and not 0 < len(entry.target) < 4096:
                raise Refused("length of a link")
            mode = 0o777 if entry.kind == LINK else entry.mode & 0o1777
            content = entry.target if entry.kind == LINK else entry.data
            children[name] = Node(entry.kind, mode, clamp(entry.mtime), content, bool(there and there.kind == GONE))

    def listing(self):
        """Returns path -> (kind, mode, mtime, content, first name of the same file, whether it
        hides lower layers)."""
        first, out = {}, {}

        def walk(path, node):
            name = first.setdefault(id(node), path)
            out[path] = (node.kind, node.mode, node.mtime, node.content, name, node.opaque and node.kind == DIRECTORY)
            for part, child in sorted(node.children.items()):
                if part.startswith(WHITEOUT):  # a directory in the middle of a path
                    continue
                walk(path + b"/" + part if path else part, child)
        walk(b"", self.root)
        return out


def tree_of(entries):
    tree = Tree()
    for entry in entries:
        tree.add(entry)
    return tree.listing()
