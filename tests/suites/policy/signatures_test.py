"""policy.json: required signatures of an image. The site's rule applies at each start, also to
stored images."""
import os
import shutil

import local_files
from errors_test import answered
from harness import equal, expect, test
from images import digest_of, probe, tar_of, with_probe
from signatures import ANYTHING, REJECT, Attachment, Key, policy, signed, sigstore, tag_of
from site_files import Files

ON = 'signature_policy = "/etc/containers/policy.json"\ntag_ttl = 60\n'


class Site:
    """A site that requires signatures. `key` is the path in policy.json."""

    def __init__(self, cluster, text):
        self.cluster, self.text = cluster, text

    def __enter__(self):
        self.files = Files(self.cluster, {"containers/policy.json": self.text, "spank-container/config.d/50-test.toml": ON})
        return self.files.__enter__()

    def __exit__(self, *_):
        self.files.__exit__()


class Signed:
    """An image of a test registry, and the keys that may sign it."""

    def __init__(self, cluster, name):
        self.cluster, self.image = cluster, with_probe(name, [("data", os.urandom(40))])
        self.name, self.layers = cluster.faulty.publish(self.image)
        self.digest = digest_of(cluster.faulty.manifests[f"{self.image.repository}:1"])

    def attach(self, *keys):
        repository = f"{self.cluster.faulty.host}/{self.image.repository}"
        attachment = Attachment(*(signed(key, repository, self.digest) for key in keys))
        self.cluster.faulty.manifests[f"{self.image.repository}:{tag_of(self.digest)}"] = attachment.bytes
        self.cluster.faulty.blobs.update(attachment.blobs)

    def asked(self):
        return sum(number for path, number in self.cluster.faulty.requests.items() if f"/{self.image.repository}/" in path)

    def start(self, *options):
        return self.cluster.srun("-w", "node01", *options, "/probe", "/nothing", image=self.name)


def keys(cluster, *names):
    """Keys below /etc/containers, by the node's path."""
    made = [Key(cluster.images, name) for name in names]
    for key in made:
        os.makedirs(os.path.join(cluster.etc, "containers"), exist_ok=True)
        shutil.copy(key.public, os.path.join(cluster.etc, "containers"))
        key.public = "/etc/containers/" + os.path.basename(key.public)
    return made


def required(*keys):
    return policy(docker={"": [sigstore(*keys)]})


@test
def image_starts_only_with_signature_of_site_key(cluster):
    faulty = cluster.faulty
    image = Signed(cluster, "signed")
    before = Signed(cluster, "signed-before")
    before.start().good()
    with Site(cluster, policy()) as files:
        site, other = keys(cluster, "site", "other")
        files.write("containers/policy.json", required(site))
        answered("an_unsigned_image", image.start())
        expect(not any(path.endswith(image.layers[0]) for path in faulty.requests), "a layer was fetched")
        # A stored image known as public is no exception.
        for options in ((), ("--container-pull=missing",), ("--container-pull=never",)):
            expect("the image is not signed" in before.start(*options).err, "what the node has already has started")
        image.attach(other)
        answered("an_image_signed_by_others", image.start())
        image.attach(site)
        image.start().good()
        # Its signature is stored now, so the registry is not asked, even if it fails.
        faulty.answers[f"/v2/suites/signed/manifests/{tag_of(image.digest)}"] = (403, {"code": "DENIED", "message": "not today"})
        asked = image.asked()
        image.start("--container-pull=missing").good()
        equal(image.asked(), asked, "requests of a later start")
        # The key is replaced in its file and by another path, then the policy changes. The next
        # start uses the new one.
        shutil.copy(files.path("containers/other.pub"), files.path("containers/site.pub"))
        answered("a_registry_that_does_not_say_who_signed", image.start("--container-pull=missing"))
        del faulty.answers[f"/v2/suites/signed/manifests/{tag_of(image.digest)}"]
        expect("signed by others only" in image.start("--container-pull=missing").err, "the old key's signature counts")
        image.attach(site, other)
        image.start("--container-pull=missing").good()
        files.write("containers/policy.json", policy(docker={faulty.host: REJECT}))
        answered("an_image_that_is_rejected", image.start("--container-pull=missing"))
        files.write("containers/policy.json", "{}")
        answered("a_signature_policy_that_is_not_valid", image.start("--container-pull=missing"))
        os.unlink(files.path("containers/policy.json"))
        answered("a_signature_policy_that_is_missing", image.start("--container-pull=missing"))
    image.start("--container-pull=missing").good()
    cluster.must_be_quiet(within=5)


@test
def named_container_starts_only_while_image_is_admitted(cluster):
    image = Signed(cluster, "signed-named")
    step = ["srun", "-w", "node01", "--container-name=signed", "/probe", "/data"]
    image.start("--container-name=signed").good()
    with Site(cluster, policy()) as files:
        (site,) = keys(cluster, "site")
        files.write("containers/policy.json", required(site))
        answered("a_stored_container_of_an_unsigned_image", cluster.run(*step))
        image.attach(site)
        cluster.run(*step).good()
        asked = image.asked()
        # The tag moves: the container keeps its image.
        moved = Signed(cluster, "signed-named")
        expect(moved.digest != image.digest, "the tag has not moved")
        cluster.run(*step).good()
        equal(image.asked(), asked, "requests for a stored container")
        files.write("containers/policy.json", policy())
        answered("a_stored_container_of_a_rejected_image", cluster.run(*step))
    cluster.run(*step).good()
    cluster.must_be_quiet(within=5)


@test
def image_files_need_their_own_policy_rule(cluster):
    path = local_files.squashfs(cluster)

    def start(image, **how):
        return cluster.run("srun", "-w", "node01", f"--container-image={image}", "true", **how)
    with Site(cluster, policy()) as files:
        answered("an_unsigned_image_file", start(path))
        answered("an_unsigned_image_directory", start("/usr"))
        answered("an_unsigned_image_archive", start(f"oci-archive:{path}"))
        answered("an_unsigned_image_of_podman", start("podman://base"))
        files.write("containers/policy.json", policy(squashfs={"/home/shared": ANYTHING}))
        start(path).good()
        os.path.lexists(f"{cluster.home}/alice/mine.sqsh") or os.link(f"{cluster.shared}/base.sqsh", f"{cluster.home}/alice/mine.sqsh")
        expect("does not admit" in start("/home/alice/mine.sqsh").err, "a file elsewhere was started")
        os.path.lexists(f"{cluster.shared}/link.sqsh") or os.symlink("/home/alice/mine.sqsh", f"{cluster.shared}/link.sqsh")
        expect("does not admit" in start("/home/shared/link.sqsh").err, "a link to a file elsewhere was started")
        files.write("spank-container/config.d/60-importer.toml", 'importer = "/usr/bin/true"\n')
        answered("an_importer_where_signatures_count", start("registry:5000/suites/base:1"))
        os.unlink(files.path("spank-container/config.d/60-importer.toml"))
        files.write("containers/policy.json", policy(ANYTHING))
        start(path).good()
        start("registry:5000/suites/base:1").good()
    cluster.must_be_quiet(within=5)


@test
def archive_container_starts_only_while_archives_are_admitted(cluster):
    with open(os.path.join(cluster.shared, "signatures.tar"), "wb") as file:
        file.write(tar_of([("etc", None), ("usr", None), ("bin", None), ("probe", probe()), ("data", b"of the archive\n")]))
    step = ["srun", "-w", "node01", "--container-name=archived", "/probe", "/data"]
    with Site(cluster, policy(oci_archive={"": ANYTHING}, docker_archive={"/home": ANYTHING})) as files:
        cluster.run("srun", "-w", "node01", "--container-name=archived", "--container-image=/home/shared/signatures.tar", "/probe", "/data").good()
        cluster.run(*step).good()
        files.write("containers/policy.json", policy(oci_archive={"": ANYTHING}))
        answered("a_stored_container_of_an_archive", cluster.run(*step))
    cluster.run(*step).good()


@test
def signature_policy_cannot_be_changed_by_users(cluster):
    image = Signed(cluster, "signed-nobody")
    with Site(cluster, policy()):
        for variable in ("SCONTAINER_SIGNATURE_POLICY=", "SIGNATURE_POLICY=", "XDG_CONFIG_HOME=/home/shared"):
            done = cluster.run("srun", "-w", "node01", f"--container-image={image.name}", "true", env=[variable])
            expect("rejected by this site's signature policy" in done.err, "a variable has changed the rule", done)
        answered("an_image_that_is_rejected_by_default", image.start())
