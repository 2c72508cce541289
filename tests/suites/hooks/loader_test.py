"""Real loaders find libraries provided by the node, and the image's other libraries stay unchanged.
The libraries are fake and provided by --container-mpi=host. Loaders: glibc 2.31, 2.36 and 2.41, and
musl. Older ones are not available as packages."""
import base64
import os
import subprocess

from cluster import BUILD_IMAGE
from fake_libraries import GLIBC, LIBRARIES, MUSL, library, program
from harness import add, equal, expect, test
from images import Image, special
from ld_cache import LdCache
from site_files import rules
from outcomes import outcome

SONAME = "libspcfake.so.1"
OURS = "/usr/lib/spank-container/mpi/" + SONAME
ON = ("-w", "node01")


def of_debian(cluster, name):
    """Pushes an image of tests/images unchanged to the cluster's registry."""
    layout = subprocess.run([BUILD_IMAGE, name], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    return layout


HWCAPS = f"{LIBRARIES}/glibc-hwcaps/x86-64-v2/{SONAME}"


def with_fake_library(below, name, has_hwcaps):
    """Adds the library and the program that needs it to the image. `has_hwcaps`: also a variant for
    newer processors."""
    entries = [(f"{LIBRARIES[1:]}/{SONAME}.0.1", library(SONAME, "of the image")), (f"{LIBRARIES[1:]}/{SONAME}", f"-> {SONAME}.0.1"),
               ("prog", program(GLIBC, SONAME))]
    if has_hwcaps:
        entries.append((HWCAPS[1:], library(SONAME, "of the image for newer processors")))
    return Image(f"suites/loader-{name}", [entries], below=below)


def nodes_library(cluster, key="mpi_libraries"):
    """Returns rules() for the node's library."""
    directory = os.path.join(cluster.shared, "fake-libraries")
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, SONAME + ".1.0"), "wb") as file:
        file.write(library(SONAME, "of the node"))
    return rules(cluster, f'{key} = ["/home/shared/fake-libraries/{SONAME}.1.0"]\n')


def step(cluster, image, *command, host=True, name=None, options=()):
    options = [*options, *(["--container-mpi=host"] if host else []), *([f"--container-name={name}"] if name else [])]
    return cluster.srun(*ON, *options, *command, image=image)


DUMP = "base64 /etc/ld.so.cache; echo =; ldconfig -p; echo =; "


def caches_in(done):
    """Returns the caches printed by DUMP, read by an independent parser. `ldconfig -p` must agree
    with it."""
    caches = []
    texts = done.good().split("\n=\n")
    for encoded, listing in zip(texts[0::2], texts[1::2]):
        cache = LdCache(base64.b64decode(encoded.split("\n\n")[-1]))
        listed = [line.strip() for line in listing.splitlines() if " => " in line]
        equal(listed, list(cache.listing()), "what ldconfig lists, and the parser", done)
        caches.append(cache)
    return caches


def the_nodes_library_is_found_with_glibc(cluster, below, version):
    has_hwcaps = version != "2.31" and os.uname().machine == "x86_64"  # since 2.33
    of_image = "of the image for newer processors" if has_hwcaps else "of the image"
    image = with_fake_library(below(cluster), version, has_hwcaps)
    name = f"loader-{version}"
    # A container that stays: first the image's initial state, according to its own ldconfig.
    form = "-c compat" if version == "2.31" else ""  # written by all earlier versions
    done = step(cluster, image, "bash", "-euc", f"/prog; ldconfig {form}; /prog; {LIBRARIES.removeprefix('/usr')}/libc.so.6 | head -n 1; echo; {DUMP}",
                host=False, name=name)
    expect(done.good().startswith(f"{of_image}\n{of_image}\n") and version in done.out.splitlines()[2], "the image's own state", done)
    before, = caches_in(done)
    mine = {path.removeprefix("/usr") for soname, path in before.pairs() if soname == SONAME}
    equal(mine, {path.removeprefix("/usr") for path in (f"{LIBRARIES}/{SONAME}", HWCAPS if has_hwcaps else f"{LIBRARIES}/{SONAME}")}, "the image's")
    equal(before.hwcaps, ["x86-64-v2"] if has_hwcaps else [], "hwcaps of the image")
    equal(before.old, version == "2.31", "two formats at once")

    with nodes_library(cluster):
        done = step(cluster, image, "bash", "-euc", f"/prog; {GLIBC} --list /prog | grep fake; stat -c '%F %m' /etc/ld.so.cache; echo; {DUMP}"
                    f"rm /etc/ld.so.cache; ldconfig; /prog; echo; {DUMP}", name=name)
        lines = done.good().splitlines()
        equal(lines[0], "of the node", "whose library", done)
        expect(lines[1].strip().startswith(f"{SONAME} => {OURS} "), "ld.so --list says another", done)
        equal(lines[2], "regular file /", "the cache is a mount", done)
        during, after = caches_in(done)
        equal(set(during.pairs()) - set(before.pairs()), {(SONAME, OURS)}, "new entries")
        equal(set(before.pairs()) - set(during.pairs()), set(), "lost entries")
        equal(during.hwcaps, before.hwcaps, "hwcaps")
        # ldconfig inside keeps it, and finds all libraries again.
        equal(done.out.count("of the node"), 2, "ldconfig inside has lost it: times it was the node's")
        equal({pair for pair in after.pairs() if "spank-container" not in pair[1]}, set(before.pairs()), "after ldconfig inside")

    done = step(cluster, image, "bash", "-euc", f"/prog; echo; {DUMP}", host=False, name=name)
    expect(done.good().startswith(f"{of_image}\n"), "the node brings it still", done)
    equal(sorted(caches_in(done)[0].pairs()), sorted(before.pairs()), "when the node brings nothing any more")


def base_of(cluster):
    return cluster.base_layout


for of_glibc, made_of in (("2.31", lambda cluster: of_debian(cluster, "debian-11")), ("2.36", base_of),
                          ("2.41", lambda cluster: of_debian(cluster, "debian-13"))):
    def run(cluster, made_of=made_of, of_glibc=of_glibc):
        the_nodes_library_is_found_with_glibc(cluster, made_of, of_glibc)
    add(__name__, f"fake_node_library_is_found_with_glibc_{of_glibc.replace('.', '_')}", run)


@test
@outcome(216, "accepted", "no ldconfig in the image, musl, a read-only root")
def fake_node_library_is_found_with_musl(cluster):
    directory = f"lib/{os.uname().machine}-linux-musl"
    image = Image("suites/loader-musl", [[(f"{directory}/{SONAME}", library(SONAME, "of the image")), ("prog", program(MUSL, SONAME))]],
                  below=of_debian(cluster, "musl"))
    step(cluster, image, "/prog", host=False).good("of the image")
    with nodes_library(cluster):
        for _ in range(2):
            step(cluster, image, "/prog", name="loader-musl").good("of the node")
        step(cluster, image, "/prog", options=["--container-readonly"]).good("of the node")
    step(cluster, image, "/prog", host=False, name="loader-musl").good("of the image")


def loader_alone(cluster, entries, name, loader=GLIBC, **config):
    """Makes an image with glibc's loader, the image's library and the program, as "distroless"
    images are."""
    real = os.path.realpath(GLIBC)
    return Image(f"suites/loader-{name}", [[(loader[1:], open(real, "rb").read()), (f"{LIBRARIES[1:]}/{SONAME}", library(SONAME, "of the image")),
                                            ("prog", program(loader, SONAME)), *entries]], config)


@test
@outcome(216, "accepted", "no ldconfig in the image, musl, a read-only root")
def fake_node_library_is_found_without_loader_cache(cluster):
    image = loader_alone(cluster, [], "bare")
    step(cluster, image, "/prog", host=False).good("of the image")
    with nodes_library(cluster):
        step(cluster, image, "/prog").good("of the node")
        step(cluster, image, "/prog", options=["--container-readonly"]).good("of the node")


@test
def fake_node_library_is_found_by_loader_elsewhere(cluster):
    image = loader_alone(cluster, [], "elsewhere", loader="/opt/glibc/ld.so", Env=["LD_LIBRARY_PATH=/opt/none"])
    with nodes_library(cluster):
        step(cluster, image, "/prog").good("of the node")


@test
@outcome(216, "accepted", "no ldconfig in the image, musl, a read-only root")
def fake_node_library_is_found_with_any_image_loader_cache(cluster):
    odd = {"fifo": special("etc/ld.so.cache", b"6"), "garbage": ("etc/ld.so.cache", b"glibc-ld.so.cache1.1" + b"\xff" * 100),
           "loop": ("etc/ld.so.cache", "-> ld.so.cache"), "out": ("etc/ld.so.cache", "-> /proc/1/root/etc/ld.so.cache"),
           "linked": ("etc", "-> usr/lib/etc"), "directory": ("etc/ld.so.cache/file", b"")}
    with nodes_library(cluster):
        for kind, entry in odd.items():
            entries = [("usr/lib/etc", None), entry] if kind == "linked" else [entry]
            done = step(cluster, loader_alone(cluster, entries, kind), "/prog")
            equal(done.good(), "of the node", f"with {kind}", done)
        open(os.path.join(cluster.shared, "fake-libraries", "untouched"), "w").close()


@test
def packages_install_beside_a_fake_node_library(cluster):
    image = Image("suites/loader-apt", [[("prog", program(GLIBC, SONAME))]], below=of_debian(cluster, "apt"))
    with nodes_library(cluster):
        done = step(cluster, image, "bash", "-euc", "/prog; apt-get install -y /packages/*.deb </dev/null >/tmp/apt 2>&1 || cat /tmp/apt; "
                    "ldconfig; /prog; dpkg -l openssh-client | grep -c ^ii; grep -c -i 'error\\|ldconfig:' /tmp/apt || true",
                    options=["--container-remap-root"])
        equal(done.good(), "of the node\nof the node\n1\n0", "output", done)
