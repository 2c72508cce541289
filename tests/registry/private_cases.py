"""Private images in the store: the registry must authorize the user at each start."""

import os
import time

from login_cases import wants_basic
from scene import config, elsewhere, new_store, of_a_job, pull, registry, succeeds
from server import Server
from store_cases import image_of_its_own, layer_requests, refused
from user import User, alice

ALICE, BOB = 1001, 1002


def private_image(name, server=registry):
    """Returns an image that alice may pull from `server`, in a store to which she has pulled it."""
    image = image_of_its_own()
    server.repository(name, image, wants_basic)
    store = new_store()
    succeeds(pull(name, server=server, store=store, settings=config("", server), user=alice(), uid=ALICE), image)
    return image, store


# --- permission ---

def test_private_image_leaves_no_name_visible_to_others():
    image, store = private_image("private/name")
    assert not store.names("names") and image.digest[7:] in store.names("records")
    for hidden in ("origins", "delivered"):
        assert os.stat(os.path.join(store.path, "images", hidden)).st_mode & 0o777 == 0o700
    assert b"private/name" not in store.record(image.digest[7:]), "tasks of others may be given the record"


def test_private_image_is_reused_by_its_user_without_fetching():
    image, store = private_image("private/again")
    before = len(layer_requests(registry, image))
    result = succeeds(pull("private/again", store=store, user=alice(), uid=ALICE), image)
    assert len(layer_requests(registry, image)) == before and not result.warnings, result
    assert registry.seen(f"manifests/{image.digest}"), "the manifest itself has to be given out"


def test_private_image_is_reused_by_user_with_own_credentials():
    image, store = private_image("private/team")
    before = len(layer_requests(registry, image))
    succeeds(pull("private/team", store=store, user=alice(), uid=BOB), image)
    assert len(layer_requests(registry, image)) == before
    assert store.grants(BOB)


def test_later_steps_of_a_job_send_no_request_for_its_user_only():
    image, store = private_image("private/steps")
    before = len(registry.requests)
    succeeds(pull("private/steps", store=store, user=alice(), uid=ALICE, more=of_a_job()), image)
    assert len(registry.requests) == before, registry.requests[before:]
    refused(pull("private/steps", store=store, user=User(None), uid=BOB, more=of_a_job()))
    never = config("private_ttl = 0")
    before = len(registry.requests)
    succeeds(pull("private/steps", store=store, user=alice(), uid=ALICE, more=of_a_job(), settings=never), image)
    assert len(registry.requests) > before, "with private_ttl = 0 every start asks"
    succeeds(pull("private/steps", store=store, user=alice(), uid=ALICE), image)


def the_same_as_unknown(name, image, store, user, **options):
    """The answer does not depend on the content of the store."""
    for reference in ("1", "@" + image.digest):
        there = refused(pull(name, reference, store=store, user=user, uid=BOB, **options))
        empty = refused(pull(name, reference, store=new_store(), user=user, uid=BOB, **options))
        assert there.failed == empty.failed, (there.failed, empty.failed)
        assert there.warnings == empty.warnings
    assert not store.grants(BOB)


def test_stranger_gets_the_answer_for_an_unknown_image():
    image, store = private_image("private/stranger")
    the_same_as_unknown("private/stranger", image, store, User(None))
    for policy in ("missing", "never", "always"):
        the_same_as_unknown("private/stranger", image, store, User(None), pull=policy)


def test_wrong_credentials_count_as_none():
    image, store = private_image("private/wrong")
    the_same_as_unknown("private/wrong", image, store, User({"username": "bob", "password": "no", "source": "/home/bob/auth.json"}))


def test_revoked_credentials_end_access_of_their_user():
    image, store = private_image("private/revoked")
    registry.repositories["private/revoked"].hooks[:] = [lambda h, *_: h.answer_json(401, "{}", {"WWW-Authenticate": 'Basic realm="x"'}) or True]
    refused(pull("private/revoked", store=store, user=alice(), uid=ALICE), "login")
    registry.repositories["private/revoked"].hooks[:] = [lambda h, *_: h.answer_json(403, "{}") or True]
    refused(pull("private/revoked", store=store, user=alice(), uid=ALICE), "forbidden")


def test_stranger_with_own_registry_and_manifest_gets_no_layer():
    image, store = private_image("private/copied")
    copy = elsewhere.repository("copied", image)
    for layer in image.layers:
        del copy.blobs[layer.digest]
    for reference in ("1", "@" + image.digest):
        refused(pull("copied", reference, server=elsewhere, store=store, uid=BOB), "missing in the registry")
    assert not store.names("names")


def test_public_copy_makes_image_public_only_by_delivering_it():
    image, store = private_image("private/published")
    elsewhere.repository("published", image)
    before = len(layer_requests(elsewhere, image))
    result = succeeds(pull("published", server=elsewhere, store=store, uid=BOB), image)
    assert len(layer_requests(elsewhere, image)) == before + 2 and not result.published
    assert store.names("names") == [f"{elsewhere.name}%2Fpublished:1"]

# --- unreachable registry ---

def unreachable(server):
    server.shutdown()
    server.server_close()


def test_valid_grant_allows_start_while_registry_is_down():
    server = Server()
    image, store = private_image("private/down", server)
    settings = config("", server)
    unreachable(server)
    for reference in ("1", "@" + image.digest):
        result = succeeds(pull("private/down", reference, server=server, store=store, settings=settings, user=alice(), uid=ALICE), image)
        assert len(result.warnings) == 1 and "using the stored image" in result.warnings[0], result
    there = refused(pull("private/down", server=server, store=store, settings=settings, user=alice(), uid=BOB), "connection refused")
    empty = refused(pull("private/down", server=server, settings=settings, user=alice(), uid=BOB), "connection refused")
    assert there.failed == empty.failed
    for policy in ("missing", "never"):
        succeeds(pull("private/down", server=server, store=store, settings=settings, pull=policy, user=alice(), uid=ALICE), image)
    refused(pull("private/down", server=server, store=store, settings=settings, pull="never", uid=BOB), "not on this node")


def test_expired_grant_refuses_start_while_registry_is_down():
    server = Server()
    image, store = private_image("private/late", server)
    settings = config("private_ttl = 1", server)
    time.sleep(1.1)
    unreachable(server)
    refused(pull("private/late", server=server, store=store, settings=settings, user=alice(), uid=ALICE), "connection refused")
    refused(pull("private/late", server=server, store=store, settings=settings, pull="missing", user=alice(), uid=ALICE), "connection refused")
    refused(pull("private/late", server=server, store=store, settings=settings, pull="never", user=alice(), uid=ALICE), "not on this node")

# --- changes between private and public ---

def test_public_image_turned_private_loses_its_name():
    image = image_of_its_own()
    registry.repository("turns/private", image)
    store = new_store()
    succeeds(pull("turns/private", store=store, uid=BOB), image)
    assert store.names("names")
    registry.repositories["turns/private"].hooks.append(wants_basic)
    refused(pull("turns/private", store=store, uid=BOB, user=User(None)), "login")
    assert not store.names("names")
    assert store.public_until(image) == 0, "the agent would still give it to everybody"
    assert image.digest[7:] not in store.names("public"), "it is still described to all users"
    before = len(layer_requests(registry, image))
    succeeds(pull("turns/private", store=store, user=alice(), uid=ALICE), image)
    assert len(layer_requests(registry, image)) == before and not store.names("names")


def test_private_image_turned_public_gets_a_name():
    image, store = private_image("turns/public")
    registry.repositories["turns/public"].hooks.clear()
    succeeds(pull("turns/public", store=store, uid=BOB), image)
    assert store.names("names") == [f"{registry.name}%2Fturns%2Fpublic:1"]


def test_credentials_unrequested_by_registry_keep_image_public():
    image = image_of_its_own()
    registry.repository("named/user", image)
    store = new_store()
    succeeds(pull("named/user", store=store, uid=BOB), image)
    succeeds(pull("named/user", store=store, user=alice(), uid=ALICE, more=["registry_user=alice"]), image)
    assert store.names("names")
