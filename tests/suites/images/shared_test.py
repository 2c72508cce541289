"""A shared store of blobs: requests to the registry, and leftovers after steps and nodes end."""
import contextlib
import hashlib
import os
import re
import shutil

from command import await_true
from harness import equal, expect, test
from images import with_probe
from site_files import rules
from tags_test import BOTH, Asked, publish, shown

PLACE = "/home/shared/spank-container"


@contextlib.contextmanager
def shared_store(cluster, *keys):
    """Makes the store as an administrator does. Returns the directory's path here."""
    path = os.path.join(cluster.shared, os.path.basename(PLACE))
    cluster.root("node01", "install", "-d", "-o", "spank-container", "-g", "spank-container", "-m", "0700", PLACE).good()
    try:
        with rules(cluster, "\n".join(["[shared]", f'directory = "{PLACE}"', *keys])):
            yield path
    finally:
        shutil.rmtree(path)


def names(path, directory):
    with contextlib.suppress(FileNotFoundError):
        return os.listdir(os.path.join(path, directory))
    return []


def is_at_rest(path):
    equal({directory: names(path, directory) for directory in ("tmp", "leases")}, {"tmp": [], "leases": []}, "what is left")


def is_whole(path, digest):
    """Returns whether the blob is complete, under its final or temporary name."""
    files = [os.path.join(path, "tmp", name) for name in names(path, "tmp") if name.startswith(digest)]
    return digest in names(path, "blobs/sha256") or any(hashlib.sha256(open(file, "rb").read()).hexdigest() == digest for file in files)


@test
def concurrent_nodes_pull_once(cluster):
    name, (digest, ) = publish(cluster, "shared-once", b"once\n")
    with shared_store(cluster) as path:
        asked = Asked(cluster, "shared-once")
        equal(shown(cluster.srun(*BOTH, "/probe", "/content", image=name)), ["once"] * 2, "content")
        found = asked.all()
        equal({what: count for what, count in found.items() if what.startswith("GET")}, dict.fromkeys((what for what in found if what.startswith("GET")), 1), "what was fetched")
        expect(found.get(f"GET manifests/{digest}") == 1 and sum(what.startswith("GET blobs") for what in found) == 2, f"fetched: {found}")
        expect(sum(count for what, count in found.items() if what.startswith("HEAD")) <= 3, f"asked: {found}")
        is_at_rest(path)
    cluster.must_be_quiet()


@test
def job_on_another_node_uses_the_shared_pull(cluster):
    name, _ = publish(cluster, "shared-later", b"later\n")
    with shared_store(cluster):
        cluster.srun("-w", "node01", "/probe", image=name).good()
        asked = Asked(cluster, "shared-later")
        equal(shown(cluster.srun("-w", "node02", "/probe", "/content", image=name)), ["later"], "content")
        expect(not any(what.startswith("GET") for what in asked.all()), f"fetched again: {asked.all()}")


@test
def administrator_fills_shared_store_before_jobs(cluster):
    name, _ = publish(cluster, "shared-before", b"before\n")
    with shared_store(cluster):
        cluster.root("node01", "scontainer", "pull", name).good()
        asked = Asked(cluster, "shared-before")
        equal(shown(cluster.srun("-w", "node02", "/probe", "/content", image=name)), ["before"], "content")
        expect(not any(what.startswith("GET") for what in asked.all()), f"fetched again: {asked.all()}")


@test
def array_of_32_jobs_pulls_once(cluster):
    equal(converted_by_an_array(cluster, "shared-array"), 2, "nodes that have converted the layer")


@test
def array_of_32_jobs_converts_once_when_nodes_are_trusted(cluster):
    equal(converted_by_an_array(cluster, "shared-array-layers", 'keep = "layers"'), 1, "nodes that have converted the layer")


def converted_by_an_array(cluster, repository, *keys):
    """Returns how many of the two nodes converted. The registry sees one pull in either case."""
    name, _ = publish(cluster, repository, f"{repository}\n".encode())
    with shared_store(cluster, *keys) as path:
        asked = Asked(cluster, repository)
        # Both nodes begin at the same time.
        cluster.run("sbatch", "--wait", "-Q", "-n1", "--exclusive", "--array=1-32", "-o/dev/null", f"--container-image={name}", "--container-batch=steps",
                    "--wrap=srun /probe /content", timeout=180).good()
        gets = {what: count for what, count in asked.all().items() if what.startswith("GET")}
        expect(len(gets) == 3 and set(gets.values()) == {1}, f"not one pull: {gets}")
        is_at_rest(path)
    pulls = [line for node in cluster.nodes for line in cluster.program("logs", node).good().splitlines() if "spank-container: pull job=" in line and f'"{name}"' in line]
    return sum(int(re.search(" converted=([0-9]+) ", line)[1]) for line in pulls)


@test
def array_of_jobs_converts_once_when_nodes_are_trusted(cluster):
    name, (digest, ) = publish(cluster, "shared-layers", b"layers\n")
    with shared_store(cluster, 'keep = "layers"') as path:
        both = [cluster.start_srun("-w", node, "/probe", "/content", image=name) for node in ("node01", "node02")]
        equal([line for one in both for line in shown(one.end(30))], ["layers"] * 2, "content")
        forms = names(path, "layers")
        files = names(path, f"layers/{forms[0]}")
        expect(len(forms) == 1 and len(files) == 1, f"converted: {forms} {files}")
        is_at_rest(path)
        # The agent's verifier refuses an invalid layer, even if its digest matches. The node then
        # converts.
        for node in ("node01", "node02"):
            cluster.root(node, "scontainer", "rm", digest).good()
        junk = os.urandom(8192)
        with open(os.path.join(path, "layers", forms[0], files[0]), "wb") as file:
            file.write(junk + hashlib.sha256(junk).digest())
        done = cluster.srun("-w", "node02", "/probe", "/content", image=name)
        equal(shown(done), ["layers"], "content")
        expect("converting the layer here" in done.err, "the user is not told", done)
    cluster.must_be_quiet()


@test
def node_goes_on_when_the_pulling_job_is_cancelled(cluster):
    image = with_probe("shared-cancel", [("content", os.urandom(300_000))])
    name, layers = cluster.faulty.publish(image)
    with shared_store(cluster) as path:
        gate = cluster.faulty.hold(layers[-1])
        first = cluster.start_srun("-w", "node01", "/probe", image=name)
        await_true(lambda: any(name.startswith(layers[-1][7:]) for name in names(path, "leases")), 10, "node01 does not bring the layer")
        second = cluster.start_srun("-w", "node02", "/probe", image=name)
        second.await_text("another node brings 1 of them", 20)
        cluster.run("scancel", "--me", "-w", "node01").good()
        gate.set()
        first.end(30)
        second.end(30).good()
        # It may have been cancelled after the last byte of the blob. Its lease is then unused and
        # stays for a while.
        await_true(lambda: all(is_whole(path, lease.split(".")[0]) for lease in names(path, "leases")), 5, "a lease is in the way")
    cluster.must_be_quiet()


@test
def shared_store_of_another_user_costs_a_line(cluster):
    name, _ = publish(cluster, "shared-wrong", b"wrong\n")
    with shared_store(cluster):
        cluster.root("node01", "chown", "2001", PLACE).good()
        done = cluster.srun("-w", "node01", "/probe", image=name)
        done.good()
        expect("belongs to another user" in done.err and "pulling without it" in done.err, "the user is not told", done)
        told = cluster.root("node01", "scontainer", "doctor", "--node")
        expect(told.rc == 3 and "chown spank-container" in told.out, "the administrator is not told", told)
