"""Credentials: when the user is asked for them, their form on the wire, and which servers never
receive them."""

import base64
import json
import os
import subprocess
import threading
import time

import agent
from scene import big_image, config, elsewhere, expiring, fails, new_store, pull, registry, small, succeeds, wait_for
from docker_registry import DockerRegistry
from server import Server
from site_cases import make_certificates
from user import User, alice
from outcomes import outcome

BASIC = "Basic " + base64.b64encode(b"alice:wonder:land").decode()
SECRETS = ("wonder:land", BASIC[6:], "identity-of-alice", "token-of-alice")


def wants_basic(handler, *_):
    if handler.headers.get("Authorization") == BASIC:
        return False
    handler.answer_json(401, "{}", {"WWW-Authenticate": 'Basic realm="x"'})
    return True


class TokenServer:
    """A token server at `server`/NAME: gives token-of-alice to alice, and token-of-anybody to
    others unless it is `strict`."""

    def __init__(self, server, name, strict=False):
        self.url, self.seen, self.strict = f"http://{server.name}/{name}", [], strict
        server.paths.append((rf"/{name}(\?.*)?", self.answer))

    def answer(self, handler):
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0))).decode()
        authorization = handler.headers.get("Authorization")
        self.seen.append((handler.command, handler.path, authorization, body))
        if authorization == BASIC or "refresh_token=identity-of-alice" in body:
            return handler.answer_json(200, '{"access_token":"token-of-alice"}')
        if authorization or self.strict:
            return handler.answer_json(401, '{"details":"no"}')
        handler.answer_json(200, '{"token":"token-of-anybody"}')

    def guard(self, status=401):
        """A hook that admits only alice."""
        def hook(handler, *_):
            given = handler.headers.get("Authorization")
            if given == "Bearer token-of-alice":
                return False
            challenge = {"WWW-Authenticate": f'Bearer realm="{self.url}",service="reg"'} if not given or status == 401 else {}
            handler.answer_json(401 if not given else status, "{}", challenge)
            return True
        return hook


def is_public(result, image):
    return os.path.exists(os.path.join(result.store.path, "records", image.digest[7:])) and bool(result.store.names("names"))


def nothing_leaked(result, *servers):
    """Checks that no message to the user contains a secret, and that unrelated servers received
    none."""
    shown = " ".join([result.failed or "", *result.progress, *result.warnings])
    assert not any(secret in shown for secret in SECRETS), shown
    for server in servers:
        assert not any("Authorization" in headers for _, _, headers in server.requests), f"{server.name} was shown a secret"
    return result


def private(result, image):
    """Checks that the image was pulled, and that publicly readable directories do not name it."""
    assert result.failed is None and result.done == image.digest[7:], result
    assert not is_public(result, image), "a private image became public"
    assert image.digest[7:] not in result.store.names("public"), "a private image is described to all users"
    return result

# --- requests for credentials ---

def test_public_image_needs_no_credentials():
    registry.repository("open", small)
    user = alice()
    result = succeeds(pull("open", user=user), small)
    assert not user.asked and is_public(result, small)


@outcome(21, "refused", "401 without credentials; Basic")
def test_basic_without_credentials_gets_the_login_hint():
    registry.repository("locked", small, wants_basic)
    for user in (None, User()):
        fails(pull("locked", user=user), "login required", f"log in: scontainer login {registry.name}")


@outcome(21, "refused", "401 without credentials; Basic")
def test_basic_credentials_are_requested_once_and_used():
    image = big_image(1, layers=3)
    registry.repository("basic/app", image, wants_basic)
    user = alice()
    private(nothing_leaked(pull("basic/app", user=user)), image)
    assert user.asked == [(registry.name, "")], user.asked


def test_wrong_credentials_name_user_and_file_but_no_password():
    registry.repository("wrong", small, wants_basic)
    result = fails(pull("wrong", user=alice(password="guess")), "credentials of user \"alice\" from \"/home/alice/.docker/config.json\" give no access")
    assert "guess" not in result.failed, result


def test_user_in_image_name_requires_credentials_at_once():
    registry.repository("named", small, wants_basic)
    user = alice()
    private(pull("named", user=user, more=["registry_user=alice"]), small)
    assert user.asked == [(registry.name, "alice")], user.asked
    before = len(registry.requests)
    fails(pull("named", user=User(), more=["registry_user=bob"]), "no credentials for the user")
    assert len(registry.requests) == before


@outcome(44, "refused", "credential files of every wrong form")
def test_credential_file_error_is_reported_to_the_user():
    registry.repository("trouble", small, wants_basic)
    fails(pull("trouble", user=User("credentials \"/home/alice/.docker/config.json\": is not JSON")), "config.json\": is not JSON")
    # A missing tag does not cause a request.
    result = pull("nothing-here", user=User("credentials: broken"))
    fails(result, 'repository "nothing-here" does not exist')
    assert result.warnings == ["credentials: broken"], result


@outcome(25, "refused", "403, 404 of tag, repository, blob")
def test_private_images_behind_403_404_and_429_are_reported():
    for status in (403, 404):
        hook = lambda h, kind, _: h.headers.get("Authorization") != BASIC and (h.answer(status) or True)
        registry.repository(f"hidden{status}", small, hook)
        private(pull(f"hidden{status}", user=alice()), small)
    limited = lambda h, *_: not h.headers.get("Authorization") and (h.answer(429, extra={"Retry-After": "30"}) or True)
    registry.repository("quota", small, limited)
    result = pull("quota", user=alice())
    assert result.done == small.digest[7:] and result.seconds < 5, result

def test_login_failure_is_reported_for_a_stored_image_too():
    registry.repository("known", small, wants_basic)
    store = new_store()
    private(pull("known", store=store, user=alice()), small)
    result = pull("known", store=store, user=User("credential helper: is not there"))
    assert result.failed and result.failed.endswith("credential helper: is not there"), result
    result = pull("known", store=store, user=User(), more=["registry_user=hatter"])
    assert result.failed and "no credentials for the user" in result.failed, result

# --- tokens ---

def test_bearer_anonymous_then_with_user_password_works():
    tokens = TokenServer(registry, "t1")
    registry.repository("bearer/app", small, tokens.guard())
    user = alice()
    private(nothing_leaked(pull("bearer/app", user=user)), small)
    methods = [(method, authorization) for method, _, authorization, _ in tokens.seen]
    assert methods == [("GET", None), ("GET", BASIC)], tokens.seen
    assert "scope=repository%3Abearer%2Fapp%3Apull" in tokens.seen[1][1] and "account=alice" in tokens.seen[1][1]
    assert "wonder" not in tokens.seen[1][1]
    assert len(user.asked) == 1


def test_bearer_without_anonymous_tokens_uses_credentials():
    for number, (strict, status) in enumerate(((True, 401), (False, 403), (False, 404))):
        tokens = TokenServer(registry, f"strict{number}", strict)
        registry.repository(f"strict{number}", small, tokens.guard(status))
        private(pull(f"strict{number}", user=alice()), small)


def test_identity_token_is_posted():
    tokens = TokenServer(registry, "t2")
    registry.repository("identity", small, tokens.guard())
    user = User({"username": "<token>", "identity_token": "identity-of-alice", "source": "x"})
    private(nothing_leaked(pull("identity", user=user)), small)
    method, path, authorization, body = tokens.seen[-1]
    assert method == "POST" and path == "/t2" and authorization is None
    assert "grant_type=refresh_token" in body and "service=reg" in body


def test_registry_token_is_sent_unchanged():
    tokens = TokenServer(registry, "t3")
    registry.repository("direct", small, tokens.guard())
    private(pull("direct", user=User({"registry_token": "token-of-alice", "source": "x"})), small)


@outcome(23, "accepted", "token expires in mid-pull")
def test_user_token_is_renewed_during_pull():
    image = big_image(2, layers=4)
    tokens = TokenServer(registry, "t4")
    state = {"valid": "", "uses": 0}

    def fresh(handler):
        tokens.answer(handler)
        state["uses"] = 0
    registry.paths.insert(0, (r"/t4\?.*", fresh))
    guard = tokens.guard()

    def expires(handler, *more):
        state["uses"] += 1
        if state["uses"] > 3:
            handler.answer_json(401, "{}", {"WWW-Authenticate": f'Bearer realm="{tokens.url}",service="reg",error="invalid_token"'})
            return True
        return guard(handler, *more)
    registry.repository("expires", image, expires)
    user = alice()
    private(pull("expires", user=user), image)
    assert len(user.asked) == 1 and len([1 for seen in tokens.seen if seen[2] == BASIC]) >= 2, tokens.seen


@outcome(23, "accepted", "token expires in mid-pull")
def test_user_token_is_renewed_where_it_was_given():
    image = big_image(6, layers=5)
    state = expiring("moved-private", image, user=BASIC)
    user = alice()
    private(nothing_leaked(pull("moved-private", user=user), elsewhere), image)
    assert state["given"] >= 2 and state["refusals"] == 0 and len(user.asked) == 1, (state, user.asked)


@outcome(24, "refused", "401 whatever the token")
def test_401_with_any_token_ends_after_three():
    tokens = TokenServer(registry, "t5")
    registry.repository("useless", small, lambda h, *_: h.answer_json(401, "{}", {"WWW-Authenticate": f'Bearer realm="{tokens.url}"'}) or True)
    fails(pull("useless", user=alice()), 'the credentials of user "alice"', "give no access", f"scontainer login {registry.name}")
    assert len(tokens.seen) <= 3, tokens.seen


@outcome(24, "refused", "401 whatever the token")
def test_login_server_with_unknown_password_is_reported():
    tokens = TokenServer(registry, "t6")
    registry.repository("badpassword", small, tokens.guard())
    fails(pull("badpassword", user=alice(password="old")), "the login server rejects the credentials", "log in again")

# --- login servers are configured as registries ---

def keys(server, text):
    return f'[registries."{server.name}"]\n{text}\n'


def test_plain_login_server_needs_its_own_insecure():
    auth = Server()
    tokens = TokenServer(auth, "token")
    registry.repository("plain-auth", small, tokens.guard())
    fails(pull("plain-auth", user=alice()), f'its login server "{auth.name}" does not use https', f'insecure = true for "{auth.name}"')
    assert not auth.requests
    private(nothing_leaked(pull("plain-auth", settings=config("", registry, auth), user=alice())), small)
    assert [authorization for _, _, authorization, _ in tokens.seen] == [None, BASIC], tokens.seen
    identity = User({"username": "<token>", "identity_token": "identity-of-alice", "source": "x"})
    private(nothing_leaked(pull("plain-auth", settings=config("", registry, auth), user=identity)), small)


def test_blocked_login_server_is_refused():
    auth = Server()
    registry.repository("blocked-auth", small, TokenServer(auth, "token").guard())
    settings = config(keys(auth, "insecure = true\nblocked = true"))
    fails(pull("blocked-auth", settings=settings, user=alice()), f'this site does not allow its login server "{auth.name}"')
    assert not auth.requests


def test_login_server_has_its_own_ca():
    certificates = make_certificates("login")
    ca = os.path.join(certificates["directory"], "ca.crt")
    auth = Server(certificates["good"])
    tokens = TokenServer(auth, "token")
    tokens.url = f"https://{auth.name}/token"
    registry.repository("tls-auth", small, lambda h, *_: not h.headers.get("Authorization") and tokens.guard()(h))
    fails(pull("tls-auth"), f'login server "{auth.name}": its TLS certificate is signed by an unknown authority',
          "for this login server in config.toml")
    succeeds(pull("tls-auth", settings=config(keys(auth, f'ca = "{ca}"'))), small)


def test_unreachable_login_server_is_named():
    gone = Server()
    gone.shutdown()
    gone.server_close()
    registry.repository("gone-auth", small, TokenServer(gone, "token").guard())
    fails(pull("gone-auth", settings=config("", registry, gone)), f'registry "{registry.name}": login server "{gone.name}": connection refused',
          "check that the login server runs on this port")


def test_token_request_is_redirected_within_its_origin():
    tokens = TokenServer(registry, "moved-to")
    state = {"left": 10}

    def moves(handler):
        state["left"] -= 1
        query = handler.path.partition("?")[2]
        handler.answer(307, extra={"Location": f"/moving?{query}" if state["left"] else f"/moved-to?{query}"})
    registry.paths.append((r"/moving(\?.*)?", moves))
    guard = tokens.guard()
    tokens.url = f"http://{registry.name}/moving"
    registry.repository("moved", small, guard)
    succeeds(pull("moved", user=User({"username": "alice", "password": "wonder:land", "source": "x"}), more=["registry_user=alice"]), small)
    assert [authorization for _, _, authorization, _ in tokens.seen] == [BASIC], tokens.seen
    state["left"] = 1000
    fails(pull("moved"), f'its login server "{registry.name}" redirects more than 10 times')


def test_token_request_is_not_redirected_elsewhere():
    thief = Server()
    registry.paths.append((r"/away(\?.*)?", lambda h: h.answer(302, extra={"Location": f"http://{thief.name}/token"})))
    registry.repository("away", small, lambda h, *_: h.answer_json(401, "{}", {"WWW-Authenticate": f'Bearer realm="http://{registry.name}/away"'}) or True)
    for more in ([], ["registry_user=alice"]):
        fails(pull("away", settings=config("", registry, thief), user=alice(), more=more),
              f'its login server "{registry.name}" redirects to another server, "http://{thief.name}"')
    assert not thief.requests


def test_blob_redirected_ten_times_is_fetched():
    image = big_image(1)

    def hop(handler):
        _, _, left, name = handler.path.split("/")
        where = f"/hop/{int(left) - 1}/{name}" if left != "1" else f"/v2/there/blobs/{name}"
        handler.answer(302, extra={"Location": where})
    registry.paths.append((r"/hop/\d+/.*", hop))
    registry.repository("there", image)
    registry.repository("hops", image, lambda h, kind, name: kind == "blobs" and (h.answer(302, extra={"Location": f"/hop/9/{name}"}) or True))
    succeeds(pull("hops"), image)

# --- servers that must not receive secrets ---

def test_login_server_failure_names_the_login_server():
    registry.repository("no-token", small, lambda h, *_: h.answer_json(401, "{}", {"WWW-Authenticate": f'Bearer realm="http://{registry.name}/broken",service="reg"'}) or True)
    for status, user in ((500, None), (404, alice())):
        registry.paths.append((r"/broken.*", lambda h, status=status: h.answer_json(status, "{}")))
        fails(pull("no-token", user=user), f'its login server "http://{registry.name}/broken" failed with status {status}')
        registry.paths.pop()


@outcome(30, "refused", "realm of a file, in the clear, foreign")
def test_realm_on_another_host_gets_no_credentials():
    thief = Server()
    for number, realm in enumerate((f"http://{thief.name}/token", f"https://{thief.name}/token", "file:///etc/passwd", f"https://{thief.name}@{registry.name}/x")):
        registry.repository(f"thief{number}", small, lambda h, *_: h.answer_json(401, "{}", {"WWW-Authenticate": f'Bearer realm="{realm}"'}) or True)
        nothing_leaked(fails(pull(f"thief{number}", user=alice(), more=["registry_user=alice"]), "login server"), thief)
    assert not thief.requests


@outcome(31, "accepted", "blob redirected to a CDN")
def test_redirected_blob_gets_no_credentials():
    image = big_image(1)
    cdn = Server()
    cdn.paths.append((r"/cdn/(.*)", lambda h: h.serve_bytes(image.blobs()[h.path[5:]])))
    redirect = lambda h, kind, name: kind == "blobs" and (h.answer(307, extra={"Location": f"http://{cdn.name}/cdn/{name}"}) or True)
    tokens = TokenServer(registry, "t7")
    for name, guard in (("cdnbasic", wants_basic), ("cdnbearer", tokens.guard())):
        registry.repository(name, image, guard, redirect)
        private(nothing_leaked(pull(name, user=alice()), cdn), image)
    assert cdn.requests


@outcome(31, "accepted", "blob redirected to a CDN")
def test_redirect_target_that_requests_login_gets_none():
    asking = Server()
    asking.paths.append((r"/.*", lambda h: h.answer_json(401, "{}", {"WWW-Authenticate": 'Basic realm="x"'})))
    registry.repository("phish", small, wants_basic, lambda h, kind, name: kind == "blobs" and (h.answer(302, extra={"Location": f"http://{asking.name}/x"}) or True))
    nothing_leaked(fails(pull("phish", user=alice()), "redirects to a server that requires a login"), asking)


def test_secrets_are_in_no_argument_environment_or_readable_memory():
    image = big_image(1)
    held, go_on = [], threading.Event()

    def hold(handler, kind, name):
        if kind == "blobs" and name == image.layers[0].digest and not held:
            held.append(name)
            go_on.wait(20)
        return False
    registry.repository("proc", image, wants_basic, hold)
    run = agent.Import(new_store(), f"{registry.name}/proc:1", config=config(), user=alice())
    wait_for(lambda: held)
    seen = b""
    for what in ("cmdline", "environ"):
        try:
            with open(f"/proc/{run.process.pid}/{what}", "rb") as file:
                seen += file.read()
        except PermissionError:  # not dumpable: only root can read it
            pass
    with open(f"/proc/{run.process.pid}/stat") as stat:
        owner = os.stat(stat.name).st_uid
    assert not any(secret.encode() in seen for secret in SECRETS), seen
    # In /proc a process that is not dumpable belongs to root: no core, no debugger, no memory
    # access for its own user.
    assert owner == 0, owner
    go_on.set()
    assert run.wait().done == image.digest[7:]


def test_garbage_instead_of_credentials_is_an_error():
    registry.repository("garbage", small, wants_basic)
    for records in ({"odd": "x"}, {"username": "alice"}, {"username": "alice", "password": "a\r\nX-Evil: 1"}, {"password": "x" * 70_000}):
        result = fails(pull("garbage", user=User(records)), "")
        assert "credentials" in result.failed or "file is larger" in result.failed, result
    assert not any("X-Evil" in headers for _, _, headers in registry.requests)


@outcome(44, "refused", "credential files of every wrong form")
def test_user_source_returns_credentials_of_this_registry_only():
    registry.repository("files", small, wants_basic)
    home = new_store().path

    def write(name, text, mode=0o600):
        path = os.path.join(home, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def with_home(**more):
        return pull("files", environment={"HOME": home, "PATH": f"{home}/bin:/usr/bin:/bin"} | more)
    fails(with_home(), "login required", f"scontainer login {registry.name}")
    host = registry.name.split(":")[0]
    enroot = write(".config/enroot/.credentials", f"machine elsewhere login a password b\nmachine {host} login alice password $(printer wonder:land)\n")
    write("bin/printer", "#!/bin/sh\necho $1\n", 0o755)
    private(nothing_leaked(with_home()), small)
    os.chmod(enroot, 0o666)
    fails(with_home(), "other users can write the file")
    auth = {"auth": BASIC[6:]}
    docker = write(".docker/config.json", json.dumps({"auths": {registry.name: auth}}))
    private(nothing_leaked(with_home()), small)
    write(".docker/config.json", json.dumps({"auths": {"other:1": auth}, "credHelpers": {registry.name: "cases"}}))
    fails(with_home(), "docker-credential-cases", "not found in PATH")
    write("bin/docker-credential-cases", '#!/bin/sh\necho \'{"Username":"alice","Secret":"wonder:land"}\'\n', 0o755)
    private(nothing_leaked(with_home()), small)
    os.unlink(docker)
    write("elsewhere.json", json.dumps({"auths": {f"{registry.name}/files": auth}}))
    private(nothing_leaked(with_home(REGISTRY_AUTH_FILE=f"{home}/elsewhere.json")), small)


def test_real_registry_with_htpasswd_works():
    password = os.path.join(new_store().path, "htpasswd")
    subprocess.run(["htpasswd", "-Bbc", password, "alice", "wonder:land"], check=True, capture_output=True)
    server = DockerRegistry(f"auth: {{htpasswd: {{realm: test, path: {password}}}}}\n", BASIC)
    image = big_image(1)
    server.push(image, "team/private")
    settings = config("", server)
    private(nothing_leaked(pull("team/private", server=server, settings=settings, user=alice())), image)
    fails(pull("team/private", server=server, settings=settings, user=User()), "login required", f"scontainer login {server.name}")
    fails(pull("team/private", server=server, settings=settings, user=alice(password="x")), "give no access")
