"""Images of jobs that are files on servers: --container-image=oras://NAME and https://HOST/FILE."""
import contextlib
import json
import os
import re
import shutil
import subprocess

import local_files
from command import await_true
from file_server import FileServer
from harness import equal, expect, test
from images import MANIFEST, digest_of, probe
from site_files import rules
from tags_test import in_job

BOTH = ("-N2", "-n2")
SIF_LAYER = "application/vnd.sylabs.sif.layer.v1.sif"


def squashfs_with(cluster, content):
    """Makes a small image with this text in /content."""
    root, path = os.path.join(cluster.images, "remote-tree"), os.path.join(cluster.images, "remote.sqsh")
    local_files.put(f"{root}/probe", probe(), 0o755)
    local_files.put(f"{root}/content", content + "\n")
    local_files.mksquashfs(root, path)
    with open(path, "rb") as file:
        return file.read()


def serve_artifact(cluster, repository, data):
    """Stores a file as `apptainer push` does."""
    config = b"{}"

    def descriptor(media_type, blob):
        return {"mediaType": media_type, "digest": digest_of(blob), "size": len(blob)}
    manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor("application/vnd.sylabs.sif.config.v1+json", config),
                           "layers": [descriptor(SIF_LAYER, data)]}).encode()
    cluster.faulty.manifests[f"{repository}:1"] = manifest
    cluster.faulty.manifests[f"{repository}@{digest_of(manifest)}"] = manifest
    cluster.faulty.blobs[digest_of(data)] = data
    return f"oras://{cluster.faulty.host}/{repository}:1", digest_of(manifest)


def cached(cluster):
    return os.path.join(cluster.home, "alice/.cache/spank-container/files")


@contextlib.contextmanager
def web(cluster, text=""):
    """A web server trusted by the site's nodes. `text`: further rules of the site."""
    shutil.rmtree(cached(cluster), ignore_errors=True)
    with FileServer(cluster) as server, rules(cluster, text + server.config):
        yield server


def seen(done):
    return sorted(line for line in done.good().splitlines() if not line.startswith(("uid", "/content")))


@test
def registry_sif_file_starts_on_all_nodes_and_is_fetched_once(cluster):
    shutil.rmtree(cached(cluster), ignore_errors=True)
    data = local_files.sif_bytes(squashfs_with(cluster, "cow"))
    name, manifest = serve_artifact(cluster, "files/cow", data)
    blob, tag = f"/v2/files/cow/blobs/{digest_of(data)}", "/v2/files/cow/manifests/1"
    equal(seen(cluster.srun(*BOTH, "/probe", "/content", image=name)), ["cow"] * 2, "content")
    equal(cluster.faulty.requests[blob], 1, "how often the nodes with one home have fetched it")
    kept = os.path.join(cached(cluster), digest_of(data)[7:])
    expect(os.stat(kept).st_uid == 2001 and os.stat(cached(cluster)).st_mode & 0o777 == 0o700, "it is not the user's alone")
    step = f"srun --container-image={name} /probe /content"
    in_job(cluster, step).good()
    asked = cluster.faulty.requests[tag]
    in_job(cluster, *[step] * 3).good()
    expect(cluster.faulty.requests[tag] - asked <= 2 and cluster.faulty.requests[blob] == 1, "a job's later steps ask again")
    asked = cluster.faulty.requests[tag]
    cluster.srun("--container-pull=missing", "-w", "node01", "/probe", image=name).good()
    equal(seen(cluster.srun("-w", "node01", "/probe", "/content", image=f"oras://{cluster.faulty.host}/files/cow@{manifest}")), ["cow"], "by its digest")
    equal(cluster.faulty.requests[tag], asked, "how often the tag was asked for")
    cluster.must_be_quiet()


@test
def file_changed_on_server_is_fetched_again(cluster):
    with web(cluster) as server:
        name = f"https://{server.host}/images/x.sqsh?key=secret"
        for content in ("one", "two"):
            server.files["/images/x.sqsh"] = squashfs_with(cluster, content)
            for _ in range(2):
                equal(seen(cluster.srun(*BOTH, "--container-pull=always", "/probe", "/content", image=name)), [content] * 2, "content")
        equal(server.requests["GET /images/x.sqsh"], 2, "how often it was fetched")
        server.heads = False  # a change can then not be detected
        cluster.srun("-w", "node01", "/probe", image=name).good()
        equal(server.requests["GET /images/x.sqsh"], 3, "how often it was fetched")
        server.down = True
        done = cluster.srun("-w", "node01", "/probe", "/content", image=name)
        equal(seen(done), ["two"], "content while the server fails")
        expect("using the file that was fetched before" in done.err, "it is not told", done)
        digest = digest_of(server.files["/images/x.sqsh"])[7:]
        cluster.srun("-w", "node01", "/probe", image=f"https://{server.host}/elsewhere#sha256={digest}").good()
        done = cluster.srun("-w", "node01", "--container-pull=never", "/probe", image=f"https://{server.host}/elsewhere")
        expect(done.rc != 0 and "it is not among the fetched files" in done.err, "it is not told", done)
    cluster.must_be_quiet()


@test
def named_container_of_remote_file_needs_no_server(cluster):
    with web(cluster) as server:
        server.files["/x.sqsh"] = squashfs_with(cluster, "named")
        name = f"https://{server.host}/x.sqsh"
        cluster.srun("-w", "node01", "--container-name=remote", "/probe", image=name).good()
        server.down = True
        done = cluster.run("srun", "-w", "node01", "--container-name=remote", "/probe", "/content")
        equal(seen(done), ["named"], "content", done)
        server.down = False
        server.files["/x.sqsh"] = squashfs_with(cluster, "other")
        shutil.rmtree(cached(cluster))
        done = cluster.run("srun", "-w", "node01", "--container-name=remote", "/probe")
        expect(done.rc != 0 and "has changed" in done.err, "another file takes its place", done)
        cluster.run("srun", "-w", "node01", "--container-name=remote:remove", "true").good()
    _, manifest = serve_artifact(cluster, "files/named", squashfs_with(cluster, "artifact"))
    cluster.faulty.manifests["files/named:latest"] = cluster.faulty.manifests[f"files/named@{manifest}"]
    cluster.srun("-w", "node01", "--container-name=remote", "/probe", image=f"oras://{cluster.faulty.host}/files/named").good()
    asked = sum(cluster.faulty.requests.values())
    equal(seen(cluster.run("srun", "-w", "node01", "--container-name=remote", "/probe", "/content")), ["artifact"], "content")
    equal(sum(cluster.faulty.requests.values()), asked, "how often the registry was asked")
    cluster.run("srun", "-w", "node01", "--container-name=remote:remove", "true").good()
    cluster.must_be_quiet()


def refused(cluster, image, *reasons, options=()):
    """Checks for one line, from any program."""
    done = cluster.run("srun", "-w", "node01", *options, f"--container-image={image}", "true")
    expect(done.rc != 0 and len(done.errors()) == 1, "not one line", done)
    for reason in reasons:
        expect(reason in done.errors()[0], f"it does not say {reason!r}", done)


@test
def server_file_that_is_no_image_is_refused_in_one_line(cluster):
    with web(cluster) as server:
        base = f"https://{server.host}"
        server.files["/page"] = b"<html>no image</html>"
        server.files["/x.tar.gz"] = b"\x1f\x8b" + bytes(600)
        refused(cluster, f"{base}/none.sif", f'pull image "{base}/none.sif": fetch file "none.sif" from "{server.host}": no such file (hint: check the URL')
        refused(cluster, f"{base}/page", f'pull image "{base}/page"', "it is no image")
        refused(cluster, f"{base}/x.tar.gz", "it is neither a SIF file nor a file system")
        refused(cluster, f"{base}/page#sha256={'0' * 64}", "not the one in the URL")
        refused(cluster, f"{base}/page#md5=0", "a URL ends in #sha256=HEX")
        refused(cluster, base, "is not a URL of a file")
        refused(cluster, "https://alice:wonder@registry/x.sif", "is not a URL of a file")
        refused(cluster, "https://registry:5443/v2/", 'pull image "https://registry:5443/v2/"', "it is no image")
        refused(cluster, f"oras://{cluster.faulty.host}/files/none:1", "files/none")
    refused(cluster, "oras://registry:5000/suites/base:1", "is not an artifact of one file (hint: for a container image use docker://)")
    cluster.must_be_quiet()


@test
def site_rules_apply_to_files_of_servers(cluster):
    data = squashfs_with(cluster, "rules")
    name, manifest = serve_artifact(cluster, "files/rules", data)
    asked = sum(cluster.faulty.requests.values())
    for text, reason in (('allowed_registries = ["registry:5000"]\n', "this site does not allow registry"),
                         ('allowed_images = ["registry:5000/*", "registry:5050/other/*"]\n', "not allowed by this site for this user"),
                         ('allowed_paths = ["/home/shared"]\n', "this site allows image files only in")):
        with rules(cluster, text):
            refused(cluster, name, reason)
            refused(cluster, f"https://{cluster.faulty.host}/x.sif", reason)
            # srun does not see variables that only the task's environment has.
            done = cluster.run("srun", "-w", "node01", f"--export=ALL,SCONTAINER_IMAGE={name}", "true")
            expect(done.rc != 0 and reason in done.err, "the task gets around it", done)
    with rules(cluster, '[registries."registry:5050"]\ninsecure = true\nrequire_digest = true\n'):
        refused(cluster, name, "by digest only")
        equal(sum(cluster.faulty.requests.values()), asked, "how many requests a refused image has caused")
        equal(seen(cluster.srun("-w", "node01", "/probe", "/content", image=f"oras://{cluster.faulty.host}/files/rules@{manifest}")), ["rules"], "content")
    with rules(cluster, f"max_image_bytes = {len(data) - 1}\n"):
        shutil.rmtree(cached(cluster))
        refused(cluster, name, f"this site allows {len(data) - 1}")
    with rules(cluster, 'allowed_images = ["registry:5050/files/*"]\nallowed_registries = ["registry:5050"]\n'):
        cluster.srun("-w", "node01", "/probe", image=name).good()
    cluster.must_be_quiet()


SECRET = "wqz7secret"


def readable_by_others(cluster):
    """Returns the command lines of all processes of the cluster, which every user may read."""
    for pid in cluster.everybody():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            yield pid, file.read().decode(errors="replace")


def kept_with(cluster, text):
    """Returns the files of the nodes' stores, of users' homes and of logs that contain it. Slurm
    keeps the command lines of jobs in its own state."""
    places = [cluster.inside(node, place) for node in cluster.nodes for place in ("/var/lib/spank-container", "/run/spank-container", "/var/log")]
    found = subprocess.run(["grep", "-rlF", "-e", text, "--", cluster.home, cluster.state, *places], capture_output=True, text=True, check=False)
    return [path for path in found.stdout.splitlines() if not re.search("/spool/|/slurmctld/job_state", path) and not path.endswith(("slurm.conf", ".out"))]


@test
def url_query_is_in_no_command_line_record_or_log(cluster):
    with web(cluster) as server:
        server.files["/x.sqsh"] = squashfs_with(cluster, "signed")
        server.key = f"sig={SECRET}"
        url = f"https://{server.host}/x.sqsh?sig={SECRET}"
        server.gate.clear()
        # Use the variable: an option would be on srun's own command line.
        step = cluster.start("srun", "-w", "node01", "--container-name=signed", "-v", "/probe", "/content", env=[f"SCONTAINER_IMAGE={url}"])
        await_true(lambda: cluster.processes("node01", "user-source"), 20, "nothing is fetched")
        await_true(lambda: server.requests["GET /x.sqsh"] == 1, 20, "nothing is fetched")
        # Except the test's own.
        shown = [line for _, line in readable_by_others(cluster) if SECRET in line and not line.startswith(cluster.state)]
        expect(any("user-source" in line for _, line in readable_by_others(cluster)), "the fetching process is not seen")
        server.gate.set()
        done = step.end(30)
        equal(shown, [], "command lines with the secret")
        expect("signed" in done.good() and SECRET not in done.out + done.err, "the step repeats the secret", done)
        # The stored container needs no request as long as the file is among the fetched ones.
        done = cluster.run("srun", "-w", "node01", "--container-name=signed", "/probe", "/content")
        equal(seen(done), ["signed"], "content", done)
        explained = cluster.run("srun", "-w", "node01", "--container-explain=all", "true", env=[f"SCONTAINER_IMAGE={url}"])
        listed = cluster.run("scontainer", "containers").good()
        other = cluster.run("srun", "-w", "node01", "--container-name=signed", f"--container-image={url}9", "/probe")
        expect(other.rc != 0 and "was made from" in other.err, "another query is the same image", other)
        server.key = "sig=expired"
        refusal = cluster.run("srun", "-w", "node01", "--container-pull=always", f"--container-image={url}", "/probe")
        expect(refusal.rc != 0 and "access is forbidden" in refusal.err, "the server's refusal is not told", refusal)
        shown = [line.split() for line in (explained.out + explained.err).splitlines() if f"https://{server.host}/x.sqsh" in line]
        equal([line[1] for line in shown], ["image:", "option:", "variable:", "variable:"], "where explain has the image", explained)
        expect("x.sqsh" in listed, "the container is not listed")
        for what, text in (("explain", explained.out + explained.err), ("containers", listed), ("an error", other.err + refusal.err)):
            lines = [line for line in text.splitlines() if SECRET in line]
            equal(lines, [], f"what {what} repeats")
        equal(kept_with(cluster, SECRET), [], "files that keep the secret")
        cluster.run("srun", "-w", "node01", "--container-name=signed:remove", "true").good()
    cluster.must_be_quiet()


@test
def step_cancelled_during_fetch_leaves_nothing_and_no_lock(cluster):
    shutil.rmtree(cached(cluster), ignore_errors=True)
    data = squashfs_with(cluster, "cancelled")
    name, _ = serve_artifact(cluster, "files/cancelled", data)
    gate = cluster.faulty.hold(digest_of(data))
    step = cluster.start_srun("-w", "node01", "/probe", image=name)
    await_true(lambda: cluster.faulty.requests[f"/v2/files/cancelled/blobs/{digest_of(data)}"] == 1, 20, "nothing is fetched")
    expect(cluster.processes("node01", "user-source"), "no process of the user fetches it")
    cluster.run("scancel", "-u", "alice").good()
    expect(step.end(20).rc != 0, "the step goes on")
    gate.set()
    cluster.must_be_quiet()
    equal(os.listdir(cached(cluster)), ["names"], "what is left of it")
    equal(seen(cluster.srun("-w", "node01", "/probe", "/content", image=name)), ["cancelled"], "content")


@test
def user_cache_full_or_missing_is_reported_in_one_line(cluster):
    name, _ = serve_artifact(cluster, "files/full", squashfs_with(cluster, "full") + bytes(3 << 20))
    cluster.root("node01", "sh", "-c", "mkdir -p /tmp/full && mount -t tmpfs -o size=1m,mode=1777 tmpfs /tmp/full").good()
    try:
        for cache, reason in (("/tmp/full/cache", 'its file system is full (1 MB in all)'), ("/root/cache", "XDG_CACHE_HOME"), ("/proc/none", "XDG_CACHE_HOME")):
            done = cluster.run("srun", "-w", "node01", f"--container-image={name}", "true", env=[f"XDG_CACHE_HOME={cache}"])
            expect(done.rc != 0 and len(done.errors()) == 1 and reason in done.errors()[0], "it is not told in one line", done)
        equal(cluster.root("node01", "sh", "-c", "ls -A /tmp/full/cache/spank-container/files").good().split(), ["names"], "what is left of it")
    finally:
        cluster.root("node01", "sh", "-c", "umount /tmp/full; rmdir /tmp/full").good()
    cluster.must_be_quiet()
