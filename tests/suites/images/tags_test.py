"""srun resolves a tag once, and all nodes of its step run that image: the number of requests, a tag
that moves meanwhile, and forged answers of a user's srun."""
import contextlib
import json
import os
import threading
import time

import local_files
from cluster import kill_all
from command import await_true
from harness import equal, expect, test
from images import INDEX, MANIFEST, digest_of, with_probe
from private_images_test import DOCKER, PRIVATE, in_home
from site_files import rules

VARIABLE = "SLURM_SCONTAINER_DIGEST"
BOTH = ("-N2", "-n2")


class Asked:
    """Requests to a registry since the object was made."""

    def __init__(self, cluster, repository):
        self.faulty, self.prefix = cluster.faulty, f"/v2/suites/{repository}/"
        self.before = self._now()

    def _now(self):
        heads = {("HEAD", path): count for path, count in self.faulty.heads.items() if path.startswith(self.prefix)}
        gets = {("GET", path): count for path, count in self.faulty.requests.items() if path.startswith(self.prefix)}
        return {**heads, **{(how, path): count - self.faulty.heads[path] for (how, path), count in gets.items()}}

    def all(self):
        """Returns `HEAD manifests/1` -> number."""
        now = self._now()
        found = {f"{how} {path.removeprefix(self.prefix)}": count - self.before.get((how, path), 0) for (how, path), count in now.items()}
        return {what: count for what, count in found.items() if count}


def publish(cluster, repository, *content):
    """Publishes two images with different files under the tags 1 and 2. Tag 1 is requested. Returns
    name and digests."""
    digests = []
    for tag, text in enumerate(content, 1):
        image = with_probe(repository, [("content", text)])
        image.tag = str(tag)
        cluster.faulty.publish(image)
        digests.append(digest_of(image.parts()[0]))
    return f"{cluster.faulty.host}/suites/{repository}:1", digests


def move(cluster, repository):
    """Moves the tag to the second image."""
    manifests = cluster.faulty.manifests
    manifests[f"suites/{repository}:1"] = manifests[f"suites/{repository}:2"]


def shown(done):
    """Returns the content seen by each task."""
    return sorted(line for line in done.good().splitlines() if not line.startswith(("uid", "/content")))


def in_job(cluster, *steps, nodes=2):
    """Runs steps of one job that was submitted more than a second before, so that they share
    answers."""
    return cluster.run("salloc", "-Q", f"-N{nodes}", f"-n{nodes}", "sh", "-ec", "sleep 1.1; " + "; ".join(steps))


# --- number of requests ---------------------------------------------------------------------------

@test
def known_tag_on_two_nodes_is_one_request(cluster):
    name, _ = publish(cluster, "tags-warm", b"warm\n")
    cluster.srun(*BOTH, "/probe", image=name).good()
    asked = Asked(cluster, "tags-warm")
    cluster.srun(*BOTH, "/probe", image=name).good()
    equal(asked.all(), {"HEAD manifests/1": 1}, "requests")


@test
def single_node_job_gets_the_digest_from_srun(cluster):
    name, (_, second) = publish(cluster, "tags-one", b"first\n", b"second\n")
    step = f"srun --container-image={name} /probe /content"
    with own_words(cluster) as say:
        say(f"0 0 {name}@{second}\n")
        equal(shown(in_job(cluster, step, nodes=1)), ["second"], "what the node runs")
    asked = Asked(cluster, "tags-one")
    equal(shown(in_job(cluster, step, step, nodes=1)), ["first"] * 2, "what the node runs")
    equal(asked.all().get("HEAD manifests/1"), 1, "requests of a job")


@test
def unknown_tag_on_two_nodes_is_resolved_once(cluster):
    name, (digest, ) = publish(cluster, "tags-cold", b"cold\n")
    asked = Asked(cluster, "tags-cold")
    equal(shown(cluster.srun(*BOTH, "/probe", "/content", image=name)), ["cold"] * 2, "content")
    found = asked.all()
    expect(found.pop(f"HEAD manifests/{digest}", 0) <= 1, f"a node that takes it from the other asks for more than its rights: {found}")
    equal({what: count for what, count in found.items() if "manifests" in what}, {"HEAD manifests/1": 1, f"GET manifests/{digest}": 1}, "requests")
    expect(all(count == 1 for what, count in found.items() if "blobs" in what), f"not one pull: {found}")


@test
def index_digest_is_passed_to_all_nodes(cluster):
    image = with_probe("tags-index", [("content", b"index\n")])
    cluster.faulty.publish(image)
    manifest = image.parts()[0]
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [
        {"mediaType": MANIFEST, "digest": digest_of(manifest), "size": len(manifest), "platform": {"os": "linux", "architecture": "amd64"}}]}).encode()
    for reference in (":1", f"@{digest_of(index)}"):
        cluster.faulty.manifests[f"suites/tags-index{reference}"] = index
    name = f"{cluster.faulty.host}/suites/tags-index:1"
    for expected in ({"HEAD manifests/1": 1, f"GET manifests/{digest_of(index)}": 1, f"GET manifests/{digest_of(manifest)}": 1}, {"HEAD manifests/1": 1}):
        asked = Asked(cluster, "tags-index")
        cluster.srun(*BOTH, "/probe", image=name).good()
        found = asked.all()
        # Permission check of the other node's user.
        found.pop(f"HEAD manifests/{digest_of(index)}", 0)
        equal({what: count for what, count in found.items() if "blobs" not in what}, expected, "requests")


@test
def later_steps_of_a_job_do_not_resolve_the_tag(cluster):
    name, _ = publish(cluster, "tags-steps", b"steps\n")
    step = f"srun --container-image={name}"
    asked = Asked(cluster, "tags-steps")
    in_job(cluster, *[f"{step} /probe"] * 3, f"{step} -N1 -n1 /probe").good()
    equal(asked.all().get("HEAD manifests/1"), 1, "requests of a job")
    in_job(cluster, *[f"{step} /probe"] * 2).good()
    equal(asked.all().get("HEAD manifests/1"), 2, "requests of this and the next job")
    with rules(cluster, "job_tag_ttl = 0\n"):
        in_job(cluster, *[f"{step} /probe"] * 2).good()
    equal(asked.all().get("HEAD manifests/1"), 4, "requests with job_tag_ttl = 0")


@test
def srun_sends_only_requests_that_nodes_would_send(cluster):
    name, (digest, ) = publish(cluster, "tags-policies", b"policies\n")
    cluster.srun(*BOTH, "/probe", image=name).good()
    asked = Asked(cluster, "tags-policies")
    # This user's own images by tag, although only srun has resolved it.
    for policy in ("missing", "never"):
        cluster.srun(*BOTH, f"--container-pull={policy}", "/probe", image=name).good()
    cluster.srun(*BOTH, "/probe", image=name.replace(":1", f"@{digest}")).good()
    with rules(cluster, 'pull = "missing"\n'):
        cluster.srun(*BOTH, "/probe", image=name).good()
    equal(asked.all(), {}, "requests")


# --- a tag that moves ------------------------------------------------------------------------------------------------

@test
def tag_moving_between_starts_of_two_nodes_is_one_image(cluster):
    name, _ = publish(cluster, "tags-moving", b"before\n", b"after\n")
    path = "/v2/suites/tags-moving/manifests/1"
    cluster.faulty.moves[path] = lambda: move(cluster, "tags-moving")  # after the first answer
    try:
        equal(shown(cluster.srun(*BOTH, "/probe", "/content", image=name)), ["before"] * 2, "what the nodes run")
    finally:
        del cluster.faulty.moves[path]
    equal(shown(cluster.srun(*BOTH, "/probe", "/content", image=name)), ["after"] * 2, "what the nodes run afterwards")


@test
def moved_tag_is_followed_by_a_new_job(cluster):
    name, _ = publish(cluster, "tags-moved", b"old\n", b"new\n")
    equal(shown(cluster.srun(*BOTH, "/probe", "/content", image=name)), ["old"] * 2, "what the nodes run")
    move(cluster, "tags-moved")
    equal(shown(cluster.srun(*BOTH, "/probe", "/content", image=name)), ["new"] * 2, "what the nodes run")


# --- srun cannot resolve --------------------------------------------------------------------------

@contextlib.contextmanager
def without_import(cluster):
    """Removes the program that srun starts on the head."""
    path = cluster.run("sh", "-c", "ls -d /usr/libexec/spank-container/import").good()
    local_files.put(os.path.join(cluster.shared, "no-import"), "")
    cluster.root("head", "mount", "--bind", "/home/shared/no-import", path).good()
    try:
        yield
    finally:
        cluster.root("head", "umount", "--lazy", path).good()


@test
def nodes_resolve_the_tag_when_srun_gets_no_answer(cluster):
    name, _ = publish(cluster, "tags-alone", b"alone\n")
    with without_import(cluster):
        for _ in range(2):
            asked = Asked(cluster, "tags-alone")
            equal(shown(cluster.srun(*BOTH, "/probe", "/content", image=name)), ["alone"] * 2, "content")
        equal(asked.all(), {"HEAD manifests/1": 2}, "requests")


@test
def nodes_resolve_the_tag_when_srun_cannot_reach_registry(cluster):
    name, _ = publish(cluster, "tags-unreachable", b"unreachable\n")
    step = (*BOTH, "/probe", "/content")
    # A user's proxy affects only srun.
    with_proxy = ["http_proxy=http://127.0.0.1:1", "HTTP_PROXY=http://127.0.0.1:1"]
    asked = Asked(cluster, "tags-unreachable")
    equal(shown(cluster.srun(*step, image=name, env=with_proxy)), ["unreachable"] * 2, "content")
    expect("HEAD manifests/1" not in asked.all(), f"srun has asked: {asked.all()}")


@contextlib.contextmanager
def silence(cluster, repository):
    """Makes the registry ignore requests to resolve the tag, while it serves the image."""
    path = f"/v2/suites/{repository}/manifests/1"
    gate = cluster.faulty.silent[path] = threading.Event()
    try:
        yield
    finally:
        del cluster.faulty.silent[path]
        gate.set()


@test
def silent_registry_delays_one_step_only(cluster):
    repository = f"tags-silent-{os.urandom(4).hex()}"  # the user's keyring outlives the cluster
    name, _ = publish(cluster, repository, b"silent\n")
    with silence(cluster, repository):
        began = time.monotonic()
        equal(shown(cluster.srun(*BOTH, "/probe", "/content", image=name)), ["silent"] * 2, "content")
        took = time.monotonic() - began
    expect(4.5 < took < 15, f"it took {took:.1f} s")
    asked = Asked(cluster, repository)
    cluster.srun(*BOTH, "/probe", image=name).good()
    equal(asked.all(), {"HEAD manifests/1": 2}, "requests, which are the nodes' own")


@test
def silent_registry_delays_single_node_step_less(cluster):
    repository = f"tags-silent-{os.urandom(4).hex()}"
    name, _ = publish(cluster, repository, b"silent\n")
    with silence(cluster, repository):
        began = time.monotonic()
        equal(shown(cluster.srun("/probe", "/content", image=name)), ["silent"], "content")
        took = time.monotonic() - began
    expect(1.8 < took < 4.5, f"it took {took:.1f} s")
    clients = cluster.faulty.clients[f"/v2/suites/{repository}/manifests/1"]
    cluster.srun("/probe", image=name).good()
    expect(clients[-1] != clients[0], f"srun has asked again: {clients}")


@test
def killed_srun_leaves_nothing(cluster):
    name, _ = publish(cluster, "tags-killed", b"killed\n")
    with silence(cluster, "tags-killed"):
        running = cluster.start_srun(*BOTH, "/probe", image=name)
        await_true(lambda: cluster.faulty.heads["/v2/suites/tags-killed/manifests/1"], 5, "srun does not ask")
        expect(cluster.everybody("import"), "nobody asks")
        kill_all(cluster.everybody("srun"))
        await_true(lambda: not cluster.everybody("import"), 2, "import is left")
        running.end(10)
    cluster.run("scancel", "--me")
    cluster.must_be_quiet()


# --- forged by the user ---------------------------------------------------------------------------

def told(name, digest):
    return f"{VARIABLE}={name}@{digest}"


@contextlib.contextmanager
def own_words(cluster):
    """A user's srun with forged answers: a program in place of `import` on the head."""
    path = cluster.run("sh", "-c", "ls -d /usr/libexec/spank-container/import").good()
    script = os.path.join(cluster.shared, "own-words")
    local_files.put(script, "#!/bin/sh\ncat /home/shared/words >&3\n")
    os.chmod(script, 0o755)
    cluster.root("head", "mount", "--bind", "/home/shared/own-words", path).good()
    try:
        yield lambda words: local_files.put(os.path.join(cluster.shared, "words"), words)
    finally:
        cluster.root("head", "umount", "--lazy", path).good()


@test
def forged_digest_affects_own_step_only(cluster):
    name, (first, second) = publish(cluster, "tags-own", b"first\n", b"second\n")
    cluster.srun(*BOTH, "/probe", image=name).good()
    with own_words(cluster) as say:
        say(f"0 0 {name}@{second}\n")
        equal(shown(cluster.srun(*BOTH, "/probe", "/content", image=name)), ["second"] * 2, "what the nodes run")
    # It affects neither later steps with the same tag nor other users.
    for user in ("alice", "bob"):
        equal(shown(cluster.srun(*BOTH, "/probe", "/content", image=name, user=user)), ["first"] * 2, f"what {user} runs")
    equal(shown(cluster.srun(*BOTH, "--container-pull=missing", "/probe", "/content", image=name, user="bob")), ["first"] * 2, "what bob has")


@test
def garbage_in_the_variable_is_harmless(cluster):
    name, (digest, ) = publish(cluster, "tags-nonsense", b"sense\n")
    unknown = "sha256:" + "7" * 64
    nonsense = ["@", "x" * 900, f"{name}@sha256:77", f"{name}@{unknown}", f"registry:5050/suites/other:1@{unknown}", "%n%n%n", f"@{digest}"]
    for words in nonsense:
        with own_words(cluster) as say:
            say(f"0 0 {words}\n")
            done = cluster.srun(*BOTH, "/probe", "/content", image=name)
        equal(shown(done), ["sense"] * 2, f"content with {words[:40]}")
        equal(done.errors(), [], "errors", done)


@test
def tag_variable_of_the_users_environment_is_ignored(cluster):
    name, (first, second) = publish(cluster, "tags-environment", b"one\n", b"two\n")
    for nodes in ("-N1", "-N2"):
        done = cluster.srun(nodes, "/probe", "/content", image=name, env=[told(name, second)])
        equal(set(shown(done)), {"one"}, "what the nodes run")


@test
def tag_variable_is_not_in_the_task_environment(cluster):
    for image in ("base", None):
        options = [f"--container-image={cluster.name_of(image)}"] if image else []
        done = cluster.run("srun", *BOTH, *options, "sh", "-c", "env | grep -c SLURM_SCONTAINER_; true", env=[told("x", "y")])
        equal(done.good().split(), ["0", "0"], "variables")
    name, _ = publish(cluster, "tags-export", b"export\n")
    asked = Asked(cluster, "tags-export")
    cluster.srun(*BOTH, "--export=NONE", "/probe", image=name).good()
    equal(asked.all().get("HEAD manifests/1"), 1, "requests with --export=NONE")


# --- rules and rights ------------------------------------------------------------------------------------------------

@test
def digest_rule_applies_to_the_typed_name(cluster):
    name, (digest, ) = publish(cluster, "tags-rule", b"rule\n")
    cluster.srun(*BOTH, "/probe", image=name).good()
    with rules(cluster, f'[registries."{cluster.faulty.host}"]\nrequire_digest = true\n'):
        cluster.srun(*BOTH, "/probe", image=name.replace(":1", f"@{digest}")).good()
        for _ in range(2):
            done = cluster.srun(*BOTH, "/probe", image=name)
            expect(done.rc == 1 and "by digest only" in done.err, "a tag is admitted", done)
    cluster.srun(*BOTH, "/probe", image=name).good()


@test
def private_image_is_equal_on_all_nodes_and_only_for_its_user(cluster):
    with in_home(cluster, ".docker/config.json", DOCKER):
        for _ in range(2):
            cluster.srun(*BOTH, "true", image=PRIVATE).good("")
        in_job(cluster, *[f"srun --container-image={PRIVATE} true"] * 2).good()
    digest = json.load(open(os.path.join(cluster.base_layout, "index.json")))["manifests"][0]["digest"]
    with own_words(cluster) as say:
        say(f"0 0 {PRIVATE}@{digest}\n")
        done = cluster.srun(*BOTH, "true", image=PRIVATE, user="bob")
    expect(done.rc == 1 and "scontainer login registry:5001" in done.err, "bob has got alice's image", done)


@test
def heterogeneous_components_have_a_digest_each(cluster):
    names = [publish(cluster, f"tags-component-{number}", text)[0] for number, text in (("a", b"a\n"), ("b", b"b\n"))]
    asked = [Asked(cluster, f"tags-component-{number}") for number in "ab"]
    for expected in (1, 2):
        components = [["-n1", f"--container-image={name}", "/probe", "/content"] for name in names]
        equal(shown(cluster.run("srun", *components[0], ":", *components[1])), ["a", "b"], "content")
        equal([one.all().get("HEAD manifests/1") for one in asked], [expected] * 2, "requests")
