"""Common parts of the cases: two servers, stores, configurations, and checks of success and
failure."""

import atexit
import json
import os
import random
import shutil
import tempfile
import time

import agent
import oci
from cases import Skipped  # noqa: F401
from server import Server

work = tempfile.mkdtemp(prefix="spc-registry-test-")
os.chmod(work, 0o755)  # for import as another user
children = []


def clean_up():
    for child in children:
        child.terminate()
        child.wait()
    children.clear()
    shutil.rmtree(work, ignore_errors=True)


atexit.register(clean_up)

registry, elsewhere = Server(), Server()
small = oci.Image([oci.Layer({"etc/hello": b"hello\n"})])
noise = random.Random(1)


def big_image(megabytes=6, layers=1):
    return oci.Image([oci.Layer({f"data{i}": noise.randbytes(megabytes << 20)}) for i in range(layers)])


def new_store():
    return agent.Store(tempfile.mkdtemp(dir=work))


def config(text="", *servers):
    path = tempfile.mktemp(dir=work, suffix=".toml")
    with open(path, "w") as file:
        file.write("stall_timeout = 2\n" + text + "\n")
        for server in servers or (registry, elsewhere):
            file.write(f'[registries."{server.name}"]\ninsecure = true\n')
    os.chmod(path, 0o644)
    return path


def pull(name, tag="1", store=None, settings=None, server=registry, **options):
    store = store or new_store()
    separator = "" if tag.startswith("@") else ":"
    result = agent.run(store, f"{server.name}/{name}{separator}{tag}", config=settings or config(), **options)
    result.store = store
    return result


def succeeds(result, image):
    assert result.failed is None and result.status == 0, result
    assert result.done == image.digest[7:], result
    for layer in image.layers:
        assert oci.stored_as(layer.digest) + ".sqsh" in result.store.layers(), f"no layer {layer.digest}: {result.store.layers()}"
    assert image.digest[7:] in result.store.names("records")
    return result


def fails(result, *texts):
    """Checks for a failure with one line that contains all `texts`, and without leftovers."""
    assert result.done is None and result.failed is not None and result.status == 1, result
    for text in texts:
        assert text in result.failed, f"{text!r} is not in: {result.failed}"
    assert "\n" not in result.failed and "\\n" not in result.failed, result.failed
    assert result.store.empty(), f"left behind: {result.store.layers()} {result.store.names('records')} {result.store.names('names')}"
    return result


def of_a_job(submitted=3600):
    """Returns a request's fields for a job submitted this number of seconds ago, by default before
    the test began."""
    return [f"since={int(time.time()) - submitted}"]


def once(hook):
    state = {"left": 1}

    def wrapper(handler, kind, name):
        if state["left"] and hook(handler, kind, name):
            state["left"] = 0
            return True
        return False
    return wrapper


def wait_for(condition, seconds=20):
    """Waits for another process. The limit is for a machine that does much else."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def expiring(name, image, user=None):
    """A repository whose first token expires after three requests. It then names another login server, as nvcr.io does, which
    refuses clients without credentials. `user`: the Authorization that the login server requires."""
    state = {"given": 0, "uses": 0, "refusals": 0}

    def give(handler):
        if user and handler.headers.get("Authorization") != user:
            return handler.answer_json(401, "{}")
        state.update(given=state["given"] + 1, uses=0)
        handler.answer_json(200, json.dumps({"token": f"{name}{state['given']}"}))

    def refuse(handler):
        state["refusals"] += 1
        handler.answer_json(401, "{}")

    def guard(handler, *_):
        state["uses"] += 1
        given = handler.headers.get("Authorization")
        first, later = f"Bearer {name}1", [f"Bearer {name}{number}" for number in range(2, state["given"] + 1)]
        if given in later or (given == first and state["uses"] <= 3):
            return False
        challenge = f'Bearer realm="http://{elsewhere.name}/{name}",service="registry",error="invalid_token"' if given else \
            f'Bearer realm="http://{registry.name}/proxy_{name}",scope="repository:{name}:pull"'
        handler.answer_json(401, "{}", {"WWW-Authenticate": challenge})
        return True
    registry.paths.insert(0, (rf"/proxy_{name}(\?.*)?", give))
    elsewhere.paths.insert(0, (rf"/{name}\?.*", refuse))
    registry.repository(name, image, guard)
    return state
