"""Tags that srun has resolved for all nodes of a step: srun's answer is controlled by the user and
valid for that user only."""

import hashlib
import time

from login_cases import wants_basic
from oci import OCI_INDEX, index
from private_cases import ALICE, BOB, private_image
from scene import config, new_store, of_a_job, pull, registry, succeeds
from store_cases import image_of_its_own, layer_requests, refused
from user import User, alice

UNKNOWN = "sha256:" + "7" * 64


def resolved(digest, *more):
    return [f"resolved={digest}", *more]


def file_of(name, digest=None):
    return f"{registry.name}%2F{name.replace('/', '%2F')}:1" + (f"@{digest}" if digest else "")


def asked_by(do):
    before = len(registry.requests)
    do()
    return [request[0] for request in registry.requests[before:]]


# --- requests and recorded answers ---

def test_resolved_tag_is_pulled_by_digest_and_recorded_for_its_user():
    image = image_of_its_own()
    registry.repository("told/cold", image)
    store = new_store()
    succeeds(pull("told/cold", store=store, more=resolved(image.digest), uid=ALICE), image)
    assert registry.seen(f"manifests/{image.digest}") and not registry.seen("told/cold/manifests/1"), "the tag was asked for"
    assert store.names("names") == [file_of("told/cold", image.digest)], store.names("names")
    assert asked_by(lambda: succeeds(pull("told/cold", store=store, more=resolved(image.digest), uid=BOB), image)) == []
    for policy in ("missing", "never"):
        assert asked_by(lambda: succeeds(pull("told/cold", store=store, pull=policy, uid=ALICE), image)) == []
    refused(pull("told/cold", store=store, pull="never", uid=BOB), "not on this node")
    assert asked_by(lambda: succeeds(pull("told/cold", store=store, uid=ALICE, more=of_a_job()), image)) == ["HEAD"], "the note counts as an answer"
    assert file_of("told/cold") in store.names("names"), "what the registry says is not noted"


def test_known_tag_confirmed_by_srun_is_not_requested():
    image = image_of_its_own()
    document = index([(image, "linux/amd64")])
    top = "sha256:" + hashlib.sha256(document).hexdigest()
    registry.repository("told/known", image).add_document(OCI_INDEX, document, "1", top)
    store = new_store()
    succeeds(pull("told/known", store=store), image)
    for digest in (top, image.digest):
        assert asked_by(lambda: succeeds(pull("told/known", store=store, more=resolved(digest)), image)) == []
        assert file_of("told/known", digest) in store.names("names"), "the next start has to use import again"


def test_resolved_digest_missing_in_registry_is_ignored():
    image = image_of_its_own()
    registry.repository("told/wrong", image)
    store = new_store()
    for _ in range(2):
        succeeds(pull("told/wrong", store=store, more=resolved(UNKNOWN), uid=ALICE), image)
        assert store.names("names") == [], "the agent takes no other name than that of the digest"


# --- rules and rights ---

def test_resolved_tag_of_one_user_moves_it_for_no_other():
    image, other = image_of_its_own(), image_of_its_own()
    registry.repository("told/two", image).add(other, "2")
    store = new_store()
    succeeds(pull("told/two", store=store, uid=BOB), image)
    succeeds(pull("told/two", store=store, uid=ALICE, more=resolved(other.digest)), other)
    for uid in (ALICE, BOB):
        for policy in ("missing", "newer", "never", "always"):
            succeeds(pull("told/two", store=store, uid=uid, pull=policy), image)


def test_digest_rule_applies_to_the_tag():
    image = image_of_its_own()
    registry.repository("told/rule", image)
    settings = config_with_rule()
    store = new_store()
    succeeds(pull("told/rule", f"@{image.digest}", store=store, settings=settings), image)
    for _ in range(2):
        result = pull("told/rule", store=store, settings=settings, more=resolved(image.digest))
        assert result.failed and "by digest only" in result.failed, result
        assert file_of("told/rule", image.digest) not in store.names("names")


def config_with_rule():
    path = config("")
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text.replace(f'[registries."{registry.name}"]\n', f'[registries."{registry.name}"]\nrequire_digest = true\n'))
    return path


def test_private_image_stays_with_its_user():
    image, store = private_image("told/private")
    more = resolved(image.digest)
    before = len(layer_requests(registry, image))
    succeeds(pull("told/private", store=store, user=alice(), uid=ALICE, more=more), image)
    assert not store.names("names") and len(layer_requests(registry, image)) == before
    refused(pull("told/private", store=store, user=User(None), uid=BOB, more=more))
    refused(pull("told/private", store=store, uid=BOB, more=[*more, *of_a_job()]))
    # A grant saves the same requests here as with the tag or digest as typed, and vice versa.
    job = of_a_job()
    for words in ([*more, *job], job):
        assert asked_by(lambda: succeeds(pull("told/private", store=store, user=alice(), uid=ALICE, more=words), image)) == []
    assert asked_by(lambda: succeeds(pull("told/private", store=store, user=alice(), uid=ALICE, more=more), image)) != [], "no right was asked for"


def test_private_image_pulled_by_resolved_digest_grants_its_tag():
    image, job = image_of_its_own(), of_a_job()
    registry.repository("told/granted", image, wants_basic)
    store = new_store()
    succeeds(pull("told/granted", store=store, user=alice(), uid=ALICE, more=resolved(image.digest)), image)
    for words in (job, resolved(image.digest, *job)):
        assert asked_by(lambda: succeeds(pull("told/granted", store=store, user=alice(), uid=ALICE, more=words), image)) == []
    assert not store.names("names") and not store.grants(BOB)


def test_tag_record_grants_nothing_after_image_turns_private():
    image = image_of_its_own()
    registry.repository("told/turns", image)
    store, settings = new_store(), config("public_ttl = 1")
    succeeds(pull("told/turns", store=store, uid=ALICE, more=resolved(image.digest), settings=settings), image)
    registry.repositories["told/turns"].hooks.append(wants_basic)
    time.sleep(1.1)
    for words in (resolved(image.digest), of_a_job(), []):
        refused(pull("told/turns", store=store, uid=ALICE, user=User(None), more=words, settings=settings), "login")
    for policy in ("missing", "never"):
        assert pull("told/turns", store=store, uid=ALICE, user=User(None), pull=policy, settings=settings).failed
    assert store.names("names") == [], "everybody can read that name"
