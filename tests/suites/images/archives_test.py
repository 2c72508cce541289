"""Images that are files of the user: each form runs, its second start does not read the file, and
other users cannot use it."""
import gzip
import json
import os
import shutil
import subprocess

from functools import partial
from errors_test import answered, refused
from images import Image
from harness import add, equal, expect, test

NAME = "team/app:1"


def mine(cluster, path, user="alice"):
    """Makes the user the owner of a file or tree in a home."""
    owner = os.stat(os.path.join(cluster.home, user))
    for where, directories, files in os.walk(path):
        for name in (".", *directories, *files):
            os.chown(os.path.join(where, name), owner.st_uid, owner.st_gid, follow_symlinks=False)
    os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def home(cluster, name, user="alice"):
    return os.path.join(cluster.home, user, name)


def layout(cluster, name, said, user="alice"):
    """Makes an OCI layout in the user's home: base and one more layer."""
    made = Image("unused", [[("said", said.encode())]], below=cluster.base_layout).write_layout(cluster.images)
    target = home(cluster, name, user)
    shutil.rmtree(target, ignore_errors=True)
    shutil.move(made, target)
    mine(cluster, target, user)
    return target


def skopeo(source, target):
    subprocess.run(["skopeo", "copy", "--quiet", source, target], check=True)


def oci_layout(cluster):
    layout(cluster, "layout", "oci layout")
    return "oci:layout", "oci layout"


def oci_archive(cluster):
    skopeo(f"oci:{layout(cluster, 'made', 'oci archive')}", f"oci-archive:{home(cluster, 'oci.tar')}:v1")
    return "oci-archive:/home/alice/oci.tar:v1", "oci archive"


def docker_archive(cluster):
    skopeo(f"oci:{layout(cluster, 'made', 'docker archive')}", f"docker-archive:{home(cluster, 'docker.tar')}:{NAME}")
    return f"docker-archive:~/docker.tar:{NAME}", "docker archive"


def tar_by_content(cluster):
    skopeo(f"oci:{layout(cluster, 'made', 'by content')}", f"docker-archive:{home(cluster, 'content')}:{NAME}")
    return "./content", "by content"


def compressed_archive(cluster):
    skopeo(f"oci:{layout(cluster, 'made', 'compressed')}", f"docker-archive:{home(cluster, 'plain.tar')}:{NAME}")
    with open(home(cluster, "plain.tar"), "rb") as source, gzip.open(home(cluster, "docker.tar.gz"), "wb", 1) as target:
        shutil.copyfileobj(source, target)
    os.unlink(home(cluster, "plain.tar"))
    return "./docker.tar.gz", "compressed"


def runs(form, cluster):
    location, said = form(cluster)
    for name in os.listdir(home(cluster, "")):
        if not name.startswith("."):
            mine(cluster, home(cluster, name))
    first = cluster.srun("-w", "node01", "-D", "/home/alice", "cat", "/said", image=location, timeout=60)
    first.good(said)
    layers = cluster.layers("node01")
    second = cluster.srun("-w", "node01", "-D", "/home/alice", "cat", "/said", image=location)
    second.good(said)
    expect(not any(line.startswith("pulling ") for line in second.messages()), "the second start brings layers", second)
    equal(cluster.layers("node01"), layers, "layers after the second start")
    cluster.must_be_quiet()


for form in (oci_layout, oci_archive, docker_archive, tar_by_content, compressed_archive):
    add(__name__, f"{form.__name__}_runs_and_second_start_fetches_nothing", partial(runs, form))


@test
def root_file_system_tar_runs(cluster):
    """As produced by `docker export` and debootstrap."""
    source = layout(cluster, "made", "a root")
    tree = os.path.join(cluster.images, "root")
    shutil.rmtree(tree, ignore_errors=True)
    os.mkdir(tree)
    manifest = json.load(open(os.path.join(source, "index.json")))["manifests"][0]["digest"]
    blob = lambda digest: os.path.join(source, "blobs", digest.replace(":", "/"))
    for layer in json.load(open(blob(manifest)))["layers"]:
        subprocess.run(["tar", "-xzf", blob(layer["digest"]), "-C", tree, "--exclude=dev/*", "--exclude=.wh.*"], check=True)
    subprocess.run(["tar", "-cf", home(cluster, "root.tar"), "-C", tree, "."], check=True)
    shutil.rmtree(tree)
    cluster.srun("-w", "node01", "-D", "/home/alice", "cat", "/said", image="./root.tar", timeout=60).good("a root")
    os.unlink(home(cluster, "root.tar"))


@test
def reader_process_ends_before_the_program_runs(cluster):
    layout(cluster, "layout", "no strays")
    running = cluster.start_srun("-w", "node01", "-D", "/home/alice", "sh", "-c",
                                 "echo there; ls /proc/self/fd | wc -l; sleep 60", image="oci:layout")
    running.await_text("there")
    equal(cluster.processes("node01", "user-source"), [], "processes that read for the user")
    running.process.terminate()
    running.end()
    cluster.must_be_quiet()


@test
def public_image_starts_without_reader_process(cluster):
    layout(cluster, "layout", "without the program")
    program = "/usr/libexec/spank-container/user-source"
    cluster.root("node01", "mount", "--bind", "/dev/null", program).good()
    try:
        cluster.srun("-w", "node01", "true").good()
        refused_now = cluster.srun("-w", "node01", "-D", "/home/alice", "true", image="oci:layout")
        answered("a_node_without_user_source", refused_now)
    finally:
        cluster.root("node01", "umount", "--lazy", program).good()
    cluster.must_be_quiet()


def is_refused(title, prepare, cluster):
    store = cluster.stores()
    refused(cluster, title, cluster.srun("-w", "node01", "-D", "/home/alice", "true", image=prepare(cluster)))
    cluster.must_be_quiet(within=2, store=store)


def another_name(cluster):
    skopeo(f"oci:{layout(cluster, 'made', 'names')}", f"docker-archive:{home(cluster, 'names.tar')}:{NAME}")
    mine(cluster, home(cluster, "names.tar"))
    return "docker-archive:names.tar:team/app:2"


def truncated(cluster):
    skopeo(f"oci:{layout(cluster, 'made', 'truncated')}", f"oci-archive:{home(cluster, 'truncated.tar')}:v1")
    os.truncate(home(cluster, "truncated.tar"), os.path.getsize(home(cluster, "truncated.tar")) // 2)
    mine(cluster, home(cluster, "truncated.tar"))
    return "./truncated.tar"


def damaged_blob(cluster):
    directory = layout(cluster, "damaged", "damaged")
    index = json.load(open(os.path.join(directory, "index.json")))
    manifest = json.load(open(os.path.join(directory, "blobs", index["manifests"][0]["digest"].replace(":", "/"))))
    with open(os.path.join(directory, "blobs", manifest["layers"][-1]["digest"].replace(":", "/")), "r+b") as file:
        file.seek(20)
        file.write(b"\0\0\0\0")
    return "oci:damaged"


def fifo(cluster):
    path = home(cluster, "fifo.tar")
    if not os.path.exists(path):
        os.mkfifo(path)
    mine(cluster, path)
    return "oci-archive:fifo.tar"


def absent(cluster):
    return "oci-archive:absent.tar"


def of_another_user(cluster):
    path = home(cluster, "secret.tar", "shared")
    with open(path, "w") as file:
        file.write("secret")
    os.chmod(path, 0o600)
    mine(cluster, path, "bob")
    return "oci-archive:/home/shared/secret.tar"


REFUSED = {"archive_without_requested_name": another_name, "truncated_archive": truncated, "damaged_layout": damaged_blob,
           "archive_that_is_a_fifo": fifo, "missing_archive": absent,
           "archive_of_another_user": of_another_user}
for title, prepare in REFUSED.items():
    add(__name__, f"{title}_is_refused", partial(is_refused, title, prepare))


@test
def private_layer_known_by_digest_is_refused(cluster):
    """bob has alice's manifest and configuration, but not the bytes of her layer."""
    hers = layout(cluster, "private", "hers alone")
    cluster.srun("-w", "node01", "-D", "/home/alice", "cat", "/said", image="oci:private").good("hers alone")
    his = home(cluster, "stolen", "bob")
    shutil.rmtree(his, ignore_errors=True)
    shutil.copytree(hers, his)
    index = json.load(open(os.path.join(his, "index.json")))
    manifest = json.load(open(os.path.join(his, "blobs", index["manifests"][0]["digest"].replace(":", "/"))))
    os.unlink(os.path.join(his, "blobs", manifest["layers"][-1]["digest"].replace(":", "/")))
    mine(cluster, his, "bob")
    refused(cluster, "a_layer_that_is_only_known_by_its_digest",
            cluster.srun("-w", "node01", "-D", "/home/bob", "cat", "/said", image="oci:stolen", user="bob"))


@test
def image_of_foreign_architecture_is_refused_with_both_names(cluster):
    store = cluster.stores()
    refused(cluster, "an_image_for_another_machine", cluster.srun("-w", "node01", "--container-platform=linux/riscv64", "true"))
    refused(cluster, "an_image_for_another_machine", cluster.srun("-w", "node01", "true", env=["SCONTAINER_PLATFORM=linux/riscv64"]))
    cluster.must_be_quiet(within=2, store=store)


@test
def multi_platform_image_runs_the_requested_platform(cluster):
    """An index of two: the node's platform, and another one. They differ in a file only, so that
    both run."""
    directory = layout(cluster, "several", "mine")
    other = layout(cluster, "other", "other")
    entries = []
    for path, platform in ((directory, {}), (other, {"variant": "v2"})):
        entry = json.load(open(os.path.join(path, "index.json")))["manifests"][0]
        entries.append({**entry, "platform": {"os": "linux", "architecture": "amd64", **platform}})
    shutil.copytree(os.path.join(other, "blobs"), os.path.join(directory, "blobs"), dirs_exist_ok=True)
    with open(os.path.join(directory, "index.json"), "w") as file:
        json.dump({"schemaVersion": 2, "manifests": entries}, file)
    mine(cluster, directory)
    options = ["-w", "node01", "-D", "/home/alice"]
    cluster.srun(*options, "cat", "/said", image="oci:several").good("mine")
    cluster.srun(*options, "--container-platform=linux/amd64/v2", "cat", "/said", image="oci:several").good("other")
    cluster.srun(*options, "--container-platform=linux/amd64/v3", "cat", "/said", image="oci:several").good("other")
