"""policy.json: the required signatures of an image, stored as cosign does and checked before any
byte of a layer is fetched."""

import json
import os
import tempfile

import oci
from docker_registry import DockerRegistry
from login_cases import wants_basic
from scene import config, elsewhere, fails, new_store, pull, registry, succeeds, work
from server import Server
from user import alice
from signatures import (ANYTHING, COSIGN_ARTIFACT, REJECT, SIGNATURE, Attachment, Key, payload_for, policy, referrers, signed, sigstore,
                        tag_of)

directory = tempfile.mkdtemp(dir=work)
site, other = Key(directory, "site"), Key(directory, "other")


def fresh_image():
    return oci.Image([oci.Layer({"seed": os.urandom(16)})])


def repository(name, image=None, *hooks):
    return registry.repository(name, image or fresh_image(), *hooks)


def attach(name, *signatures, to, server=registry):
    attachment = Attachment(*signatures)
    server.repositories[name].manifests[tag_of(to)] = (oci.OCI_MANIFEST, attachment.bytes)
    server.repositories[name].blobs.update(attachment.blobs)
    return attachment


def signed_image(name, key=site, image=None):
    image = image or fresh_image()
    repository(name, image)
    attach(name, signed(key, f"{registry.name}/{name}", image.digest), to=image.digest)
    return image


def rules(text, path=None, more="", servers=()):
    """Returns config.toml with a policy.json of this text."""
    path = path or tempfile.mktemp(dir=directory, suffix=".json")
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o644)
    return config(f'signature_policy = "{path}"\n{more}', *servers)


def required(*requirements, **more):
    return rules(policy(docker={"": list(requirements)}), **more)


def refused(result, *texts):
    """Checks like fails(), with an image that may already be in the store."""
    assert result.done is None and result.failed and result.status == 1, result
    for text in texts:
        assert text in result.failed, f"{text!r} is not in: {result.failed}"
    assert "\n" not in result.failed, result.failed
    return result


def no_layer_was_asked_for(name, image):
    assert not registry.seen(f"/v2/{name}/blobs/{image.layers[0].digest}"), "a layer was fetched"


# --- signed and unsigned images ---

def test_unsigned_image_is_refused_before_a_layer_is_fetched():
    image = fresh_image()
    repository("unsigned", image)
    fails(pull("unsigned", settings=required(sigstore(site))), "requires a signature by", site.public, "the image is not signed")
    no_layer_was_asked_for("unsigned", image)


def test_signature_of_site_key_of_any_kind_admits_the_image():
    for kind in ("p256", "p384", "rsa", "ed25519"):
        key = Key(directory, kind, kind)
        name = f"signed-{kind}"
        image = signed_image(name, key)
        succeeds(pull(name, settings=required(sigstore(key))), image)
        succeeds(pull(name, settings=required(sigstore(keyData=key.data))), image)
    image = signed_image("several")
    succeeds(pull("several", settings=required(sigstore(other, site))), image)
    succeeds(pull("several", settings=required(sigstore(keyDatas=[other.data, site.data]))), image)


def test_signature_of_another_key_is_refused():
    image = signed_image("stranger", other)
    fails(pull("stranger", settings=required(sigstore(site))), "signed by others only", site.public)
    no_layer_was_asked_for("stranger", image)
    # The right bytes with a signature of another image.
    text = payload_for(f"{registry.name}/stranger", image.digest)
    attach("stranger", (text, site.sign(b"something else")), (text, "no base64!"), (text, ""), to=image.digest)
    fails(pull("stranger", settings=required(sigstore(site))), "signed by others only")


def test_requirements_must_all_be_met():
    image = signed_image("both")
    settings = required(sigstore(site), sigstore(other))
    fails(pull("both", settings=settings), "requires a signature by", other.public)
    attach("both", *(signed(key, f"{registry.name}/both", image.digest) for key in (site, other)), to=image.digest)
    succeeds(pull("both", settings=settings), image)


def test_signature_for_another_image_or_name_is_refused():
    image = fresh_image()
    repository("wrong", image)
    settings = required(sigstore(site))
    attach("wrong", signed(site, f"{registry.name}/wrong", "sha256:" + "1" * 64), to=image.digest)
    fails(pull("wrong", settings=settings), "the signature is for another image, sha256:1111")
    attach("wrong", signed(site, f"{registry.name}/other", image.digest), to=image.digest)
    fails(pull("wrong", settings=settings), f'the signature is for the name "{registry.name}/other"')
    for text in (b"{}", b"no json", payload_for("x", image.digest).replace(b"cosign container", b"another"),
                 payload_for("x", image.digest, surplus=1), b'{"critical":{},"critical":{}}'):
        attach("wrong", (text, site.sign(text)), to=image.digest)
        fails(pull("wrong", settings=settings), "what is signed is not about an image")
    no_layer_was_asked_for("wrong", image)


def test_signed_name_is_the_one_required_by_policy():
    image = signed_image("named")
    name = f"{registry.name}/named"

    def settings(identity):
        return required(sigstore(site, identity=identity))
    for identity in (None, "matchRepoDigestOrExact", "matchExact"):
        fails(pull("named", settings=settings(identity)), "cosign signs no tag", "matchRepository")
        fails(pull("named", "@" + image.digest, settings=settings(identity)), "cosign signs no tag")
    succeeds(pull("named", settings=settings({"type": "exactRepository", "dockerRepository": name})), image)
    fails(pull("named", settings=settings({"type": "exactRepository", "dockerRepository": name + "2"})), "for the name")
    attach("named", signed(site, name + ":1", image.digest), to=image.digest)
    for identity in (None, "matchExact", "matchRepository", {"type": "exactReference", "dockerReference": name + ":1"}):
        succeeds(pull("named", settings=settings(identity)), image)
    succeeds(pull("named", "@" + image.digest, settings=settings(None)), image)
    fails(pull("named", "@" + image.digest, settings=settings("matchExact")), "for the name")
    registry.repositories["named"].add(image, "2")
    fails(pull("named", "2", settings=settings(None)), f'for the name "{name}:1"', "sign it under this name")
    attach("named", signed(site, "example.org/original/named:1", image.digest), to=image.digest)
    remap = {"type": "remapIdentity", "prefix": registry.name, "signedPrefix": "example.org/original"}
    succeeds(pull("named", settings=settings(remap)), image)
    fails(pull("named", "2", settings=settings(remap)), "for the name")


def test_signature_of_an_index_admits_its_image():
    image = fresh_image()
    data = oci.index([(image, "linux/amd64")])
    registry.repository("index").add(image).add_document(oci.OCI_INDEX, data, "1", oci.digest(data))
    settings = required(sigstore(site))
    fails(pull("index", settings=settings), "the image is not signed")
    attach("index", signed(site, f"{registry.name}/index", oci.digest(data)), to=oci.digest(data))
    store = new_store()
    succeeds(pull("index", settings=settings, store=store), image)
    succeeds(pull("index", settings=settings, store=store, pull="missing"), image)
    # It is not valid for another index signed by the same key.
    attach("index", signed(site, f"{registry.name}/index", "sha256:" + "2" * 64), to=oci.digest(data))
    fails(pull("index", settings=settings), "for another image")

# --- locations of signatures ---

def test_signatures_are_found_as_referrers():
    for name, path in (("referrers", None), ("fallback", "tag")):
        image = fresh_image()
        served = repository(name, image)
        attachment = Attachment(signed(site, f"{registry.name}/{name}", image.digest), artifactType=COSIGN_ARTIFACT)
        served.manifests[attachment.digest] = (oci.OCI_MANIFEST, attachment.bytes)
        served.blobs.update(attachment.blobs)
        if path is None:
            registry.paths.append((rf"/v2/{name}/referrers/{image.digest}", lambda h, a=attachment: h.answer(200, referrers(a), oci.OCI_INDEX)))
        else:
            served.manifests[image.digest.replace(":", "-")] = (oci.OCI_INDEX, referrers(attachment))
        succeeds(pull(name, settings=required(sigstore(site))), image)
        fails(pull(name, settings=required(sigstore(other))), "signed by others only")


def test_bundles_are_distinguished_from_missing_signatures():
    image = fresh_image()
    repository("bundled", image)
    index = json.loads(referrers())
    index["manifests"] = [{"mediaType": oci.OCI_MANIFEST, "digest": "sha256:" + "3" * 64, "size": 1,
                           "artifactType": "application/vnd.dev.sigstore.bundle.v0.3+json"}]
    registry.paths.append((r"/v2/bundled/referrers/.*", lambda h: h.answer(200, json.dumps(index).encode(), oci.OCI_INDEX)))
    fails(pull("bundled", settings=required(sigstore(site))), "the image is not signed", "has sigstore bundles, which are not supported")


def test_failing_registry_is_not_reported_as_unsigned_image():
    for kind in ("tag", "blob", "referrers"):
        image = fresh_image()
        name = f"failing-{kind}"

        def hook(handler, what, wanted, kind=kind, image=image):
            fails_here = wanted == tag_of(image.digest) if kind == "tag" else what == "blobs" and wanted == oci.digest(text)
            return fails_here and (handler.answer(500, extra={"Retry-After": "0"}) or True)
        repository(name, image, hook)
        text = payload_for(f"{registry.name}/{name}", image.digest)
        if kind == "referrers":
            registry.paths.append((rf"/v2/{name}/referrers/.*", lambda h: h.answer(500, extra={"Retry-After": "0"})))
        else:
            attach(name, (text, site.sign(text)), to=image.digest)
        fails(pull(name, settings=required(sigstore(site))), "the registry failed with status 500")
        no_layer_was_asked_for(name, image)


def test_huge_and_hostile_attachments_are_refused():
    image = fresh_image()
    served = repository("hostile", image)
    settings = required(sigstore(site))
    name = f"{registry.name}/hostile"
    one = payload_for(name, image.digest)
    attach("hostile", *[(one, "AAAA")] * 129, to=image.digest)
    fails(pull("hostile", settings=settings), "more than 128 signatures")
    large = payload_for(name, image.digest, optional={"x": "y" * (65 << 10)})
    attach("hostile", (large, site.sign(large)), to=image.digest)
    fails(pull("hostile", settings=settings), "more than 64 KiB")
    attach("hostile", (one, "A" * 10000), to=image.digest)
    fails(pull("hostile", settings=settings), "more than 8 KiB")
    served.manifests[tag_of(image.digest)] = (oci.OCI_MANIFEST, b"x" * (5 << 20))
    fails(pull("hostile", settings=settings), "is longer than")
    for data in (b"<html>", b"[]", b'{"layers":{}}', b'{"layers":[{"mediaType":"application/vnd.dev.cosign.simplesigning.v1+json","size":1,'
                 b'"digest":"sha256:x","annotations":{"' + SIGNATURE.encode() + b'":"AA"}}]}'):
        served.manifests[tag_of(image.digest)] = (oci.OCI_MANIFEST, data)
        fails(pull("hostile", settings=settings), "signatures \"sha256-")
    attach("hostile", (one, site.sign(one)), to=image.digest)
    served.blobs[oci.digest(one)] = one[:-1] + b" "
    fails(pull("hostile", settings=settings), "has digest")


def test_signed_name_is_the_users_not_the_mirrors():
    image = fresh_image()
    mirror = Server()
    mirror.repository("cache/app", image)
    repository("app", image)
    attach("app", signed(site, f"{registry.name}/app", image.digest), to=image.digest)

    def settings(scope, more=""):
        path = tempfile.mktemp(dir=directory, suffix=".json")
        with open(path, "w") as file:
            file.write(policy(docker={scope: [sigstore(site)]}))
        os.chmod(path, 0o644)
        return config(f'signature_policy = "{path}"\n[registries."{mirror.name}"]\ninsecure = true\n'
                      f'[registries."{registry.name}"]\ninsecure = true\nmirrors = ["{mirror.name}/cache"]\n{more}', elsewhere)
    succeeds(pull("app", settings=settings(f"{registry.name}/app")), image)
    assert mirror.seen(f"/v2/cache/app/blobs/{image.layers[0].digest}"), "the mirror was not used"
    fails(pull("app", settings=settings(mirror.name)), "rejected by this site's signature policy")
    # A mirror with its own tags also serves signatures.
    attach("cache/app", signed(other, f"{registry.name}/app", image.digest), to=image.digest, server=mirror)
    fails(pull("app", settings=settings("", "mirror_tags = true")), "signed by others only")

# --- rules of policy.json ---

def test_longest_scope_applies():
    image = signed_image("team/app")
    name = registry.name

    def settings(scopes, default=REJECT):
        return rules(policy(default, docker=scopes))
    here = {"": REJECT, name: REJECT, f"{name}/team": REJECT, f"{name}/team/app": REJECT, f"{name}/team/app:1": [sigstore(site)]}
    succeeds(pull("team/app", settings=settings(here)), image)
    for nearer in (f"{name}/team/app:1", f"{name}/team/app", f"{name}/team", name, ""):
        fails(pull("team/app", settings=settings({**here, nearer: REJECT, **({f"{name}/team/app:2": ANYTHING})}, ANYTHING)), f'docker "{nearer}"' if nearer else "docker in")
        del here[nearer]
    succeeds(pull("team/app", settings=settings({"*.0.0.1": ANYTHING})), image)
    succeeds(pull("team/app", settings=settings({f"{name}/tea": REJECT}, ANYTHING)), image)
    fails(pull("team/app", settings=settings({})), "(default in")
    succeeds(pull("team/app", settings=rules(policy(ANYTHING))), image)


def test_unsupported_policies_are_refused_by_name():
    signed_image("keyless")
    fulcio = {"oidcIssuer": "https://x", "subjectEmail": "a@b", "caPath": "/ca"}
    for requirement, text in (({"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/x.gpg"}, "an OpenPGP signature (signedBy), which is not supported"),
                              ({"type": "signedBaseLayer", "baseLayerIdentity": {"type": "matchExact"}}, "a signed base layer (signedBaseLayer), which is not supported"),
                              ({"type": "sigstoreSigned", "fulcio": fulcio, "rekorPublicKeyPath": "/x"}, "a keyless signature (fulcio), which is not supported"),
                              (sigstore(site, rekorPublicKeyPath="/x"), "a Rekor log (rekorPublicKey), which is not supported"),
                              ({"type": "sigstoreSigned", "pki": {}}, "a certificate (pki), which is not supported")):
        before = len(registry.requests)
        fails(pull("keyless", settings=required(requirement)), text, "sigstoreSigned with a key")
        assert len(registry.requests) == before, "a registry was asked in vain"


def test_invalid_policy_admits_no_image():
    signed_image("broken")
    docker = lambda requirement: policy(docker={"": [requirement]})
    for text, why in (("", "is empty"), ("{", "is not JSON"), ("{}", "default: is an empty list"), ('{"default":[]}', "default: is an empty list"),
                      ('{"default":[{"type":"reject"}],"more":1}', "more: is unknown"), ('{"default":[{"type":"rejekt"}]}', '"rejekt" is unknown'),
                      (docker({"type": "reject", "x": 1}), "transports.docker.[0].x: is unknown"), (docker({"type": "sigstoreSigned"}), "needs exactly one of"),
                      (docker(sigstore(site, keyData=site.data)), "needs exactly one of"), (docker(sigstore(keyPath="rel")), "is not an absolute path"),
                      (docker(sigstore(keyPaths=[])), "has no key"), (docker(sigstore(site, identity="matchAny")), '"matchAny" is unknown'),
                      (docker(sigstore(site, identity={"type": "exactReference", "dockerReference": "x"})), "has neither tag nor digest"),
                      (docker(sigstore(keyPath="/nonexistent")), 'signature key "/nonexistent"'), (docker(sigstore(keyData="AAAA")), "is not a public key"),
                      (docker(sigstore(keyData="!")), "is not base64"), (docker(sigstore(Key(directory, "weak", "rsa1024"))), "fewer than 2048 bits")):
        fails(pull("broken", settings=rules(text)), why)
    fails(pull("broken", settings=config('signature_policy = "/nonexistent/policy.json"')), "/nonexistent/policy.json")
    fails(pull("broken", settings=config('signature_policy = "policy.json"')), "expected the absolute path of a file")
    loose = tempfile.mktemp(dir=directory)
    settings = rules(policy(ANYTHING), loose)
    os.chmod(loose, 0o666)
    fails(pull("broken", settings=settings), "is writable by others")

# --- later starts ---

def test_later_start_sends_no_request_until_policy_or_key_changes():
    image = signed_image("later")
    store, path = new_store(), os.path.join(directory, "later.json")
    settings = rules(policy(docker={"": [sigstore(site)]}), path)

    def asked():
        return sum(request[1].endswith(".sig") for request in registry.seen("/v2/later/"))

    def start(*texts, **options):
        before = asked()
        result = pull("later", settings=settings, store=store, **{"pull": "missing", **options})
        refused(result, *texts) if texts else succeeds(result, image)
        return asked() - before
    assert start() == 1
    everything = len(registry.requests)
    assert start() == 0 and len(registry.requests) == everything, "the registry was asked though all is there"
    # With another key the stored signature does not count, and the registry has no other.
    rules(policy(docker={"": [sigstore(other)]}), path)
    assert start("signed by others only") == 1
    refused(pull("later", settings=settings, store=store, pull="never"), "drop --container-pull=never")
    attach("later", *(signed(key, f"{registry.name}/later", image.digest) for key in (site, other)), to=image.digest)
    assert start() == 1 and start() == 0
    # Both are stored.
    rules(policy(docker={"": [sigstore(site)]}), path)
    assert start() == 0
    rules(policy(REJECT), path)
    assert start("rejected by this site's signature policy", pull="never") == 0


def test_image_stored_before_the_policy_is_verified():
    image = fresh_image()
    repository("before", image)
    store = new_store()
    succeeds(pull("before", store=store, settings=config("tag_ttl = 60")), image)
    ref = store.name_file(f"{registry.name}/before:1")
    os.utime(ref, (1, 1))
    for more in ("tag_ttl = 60", ""):
        for how in ("newer", "missing", "never", "always"):
            refused(pull("before", store=store, settings=required(sigstore(site), more=more), pull=how), "the image is not signed")
    refused(pull("before", "@" + image.digest, store=store, settings=required(sigstore(site))), "the image is not signed")
    assert os.stat(ref).st_mtime == 1, "the name counts as admitted: tasks would start it without import"


def test_require_digest_leaves_no_name_that_counts_as_admitted():
    image = fresh_image()
    repository("pinned-before", image)
    for more, how in (("tag_ttl = 60", "newer"), ("", "missing")):
        store = new_store()
        succeeds(pull("pinned-before", store=store), image)
        ref = store.name_file(f"{registry.name}/pinned-before:1")
        os.utime(ref, (1, 1))
        settings = config(f'{more}\n[registries."{registry.name}"]\ninsecure = true\nrequire_digest = true', elsewhere)
        refused(pull("pinned-before", store=store, settings=settings, pull=how), "by digest only")
        assert os.stat(ref).st_mtime == 1


def test_tag_moved_to_unsigned_image_is_refused():
    image, moved = signed_image("moves"), fresh_image()
    store, settings = new_store(), required(sigstore(site))
    succeeds(pull("moves", store=store, settings=settings), image)
    registry.repositories["moves"].add(moved, "1")
    refused(pull("moves", store=store, settings=settings), "the image is not signed")
    no_layer_was_asked_for("moves", moved)
    succeeds(pull("moves", "@" + image.digest, store=store, settings=settings), image)
    # The image of a stored container is still the same under its earlier name, whatever the tag
    # refers to.
    exact = required(sigstore(site, identity="matchExact"))
    refused(pull("moves", store=store, settings=exact, more=[f"manifest={image.digest}"]), "cosign signs no tag")
    attach("moves", signed(site, f"{registry.name}/moves:1", image.digest), to=image.digest)
    succeeds(pull("moves", store=store, settings=exact, more=[f"manifest={image.digest}"]), image)
    registry.repositories["moves"].hooks.append(lambda h, *_: h.answer(404) or True)
    succeeds(pull("moves", store=store, settings=exact, more=[f"manifest={image.digest}"]), image)


def test_signed_image_starts_while_registry_is_down():
    image = signed_image("down-later")
    store, settings = new_store(), required(sigstore(site))
    succeeds(pull("down-later", store=store, settings=settings), image)
    registry.repositories["down-later"].hooks.append(lambda h, *_: h.answer(503, extra={"Retry-After": "0"}) or True)
    result = succeeds(pull("down-later", store=store, settings=settings), image)
    assert any("using the stored image" in warning for warning in result.warnings), result
    refused(pull("down-later", store=store, settings=required(sigstore(other))), "the registry failed with status 503")


def test_private_image_is_verified_with_its_users_credentials():
    for name, hide in (("private/signed", wants_basic), ("private/hidden", lambda h, *_: "Authorization" not in h.headers and (h.answer(404) or True))):
        image = fresh_image()
        repository(name, image, hide)
        store, how = new_store(), {"user": alice(), "uid": 1001}
        fails(pull(name, settings=required(sigstore(site)), **how), "the image is not signed")
        succeeds(pull(name, store=store, **{**how, "user": alice()}), image)
        attach(name, signed(site, f"{registry.name}/{name}", image.digest), to=image.digest)
        # It is in the store and granted to alice, so no credentials have been requested from her
        # yet.
        for tries in ("newer", "missing"):
            succeeds(pull(name, store=store, settings=required(sigstore(site)), pull=tries, **{**how, "user": alice()}), image)
        with open(os.path.join(store.path, "images/signatures", image.digest[7:]), "rb") as file:
            assert file.read().count(b"signature=") == 1
        assert os.stat(os.path.join(store.path, "images/signatures")).st_mode & 0o777 == 0o700
        assert not store.names("names"), "a private image has become public"


def test_signed_image_in_a_real_registry_is_admitted():
    server = DockerRegistry()
    image = fresh_image()
    server.push(image, "team/app")
    settings = required(sigstore(site), servers=(server,))
    fails(pull("team/app", server=server, settings=settings), "the image is not signed")
    attachment = Attachment(signed(site, f"{server.name}/team/app", image.digest))
    for digest, blob in attachment.blobs.items():
        location = server.send("POST", "team/app/blobs/uploads/")
        server.send("PUT", location + ("&" if "?" in location else "?") + "digest=" + digest, blob)
    server.send("PUT", f"team/app/manifests/{tag_of(image.digest)}", attachment.bytes, oci.OCI_MANIFEST)
    result = succeeds(pull("team/app", server=server, settings=settings), image)
    began = pull("team/app", server=server, settings=settings, store=result.store, pull="missing")
    print(f"       warm import with a kept signature: {began.seconds * 1000:.0f} ms")
