"""The site's rules, TLS, concurrent imports, kills, and a real registry."""

import os
import shutil
import struct
import subprocess
import tempfile
import threading
import time

import agent
import oci
from docker_registry import DockerRegistry
from server import Server
from scene import big_image, config, elsewhere, fails, new_store, noise, pull, registry, small, succeeds, wait_for, work
from outcomes import outcome

# --- the site's rules ---

def test_site_rules_are_applied():
    registry.repository("rules", small)
    result = agent.run(store := new_store(), f"{registry.name}/rules:1", config=config(f'[registries."{registry.name}"]\nblocked = true', elsewhere))
    result.store = store
    fails(result, f'this site does not allow registry "{registry.name}"')
    fails(pull("rules", settings=config("max_image_bytes = 10")), "the image has 1 MB, this site allows 1 MB")
    fails(pull("rules", settings=config("max_image_byte = 10")), "unknown key", 'did you mean "max_image_bytes"?')
    loose = config()
    os.chmod(loose, 0o666)
    fails(pull("rules", settings=loose), "is writable by others")


def test_agent_refusing_a_file_is_reported():
    registry.repository("nofile", small)
    fails(pull("nofile", on_new_layer=lambda _: "no space left on device"), "no space left on device")


@outcome(145, "refused", "no space at each write")
def test_no_space_is_reported_with_both_numbers():
    image = oci.Image([oci.Layer({"s": b"s"})])
    image.manifest["layers"][0]["size"] = 1 << 49
    registry.repository("space", image.seal())
    fails(pull("space"), "the image store \"", " free, the image needs")

# --- TLS ---

def make_certificates(name="tls"):
    directory = os.path.join(work, name)
    os.makedirs(directory)

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)
    for ca in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                "-subj", f"/CN=test {ca}", "-keyout", f"{ca}.key", "-out", f"{ca}.crt")

    def leaf(name, alternative):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
                "-keyout", f"{name}.key", "-out", f"{name}.csr")
        with open(os.path.join(directory, f"{name}.ext"), "w") as file:
            file.write(f"subjectAltName={alternative}\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-extfile", f"{name}.ext", "-out", f"{name}.crt")
        return [os.path.join(directory, f"{name}.{end}") for end in ("crt", "key")]
    # Only `openssl ca` accepts a start date. It needs an index and a configuration.
    open(os.path.join(directory, "index.txt"), "w").close()
    with open(os.path.join(directory, "ca.cnf"), "w") as file:
        file.write("[ca]\ndefault_ca=x\n[x]\ndatabase=index.txt\nnew_certs_dir=.\nrand_serial=yes\ndefault_md=sha256\n"
                   "policy=p\n[p]\ncommonName=supplied\n")

    def leaf_of_year(name, year):
        files = leaf(name, "IP:127.0.0.1")
        openssl("ca", "-config", "ca.cnf", "-batch", "-notext", "-in", f"{name}.csr", "-cert", "ca.crt", "-keyfile", "ca.key",
                "-extfile", f"{name}.ext", "-startdate", f"{year}0101000000Z", "-enddate", f"{year + 1}0101000000Z", "-out", f"{name}.crt")
        return files
    this_year = time.gmtime().tm_year
    return {"directory": directory, "future": leaf_of_year("future", this_year + 1), "good": leaf("good", "IP:127.0.0.1"),
            "wrongname": leaf("wrongname", "DNS:example.org"), "expired": leaf_of_year("expired", this_year - 2),
            "selfsigned": [os.path.join(directory, f"ca.{end}") for end in ("crt", "key")]}


@outcome(19, "refused", "TLS of every wrong form")
@outcome(32, "refused", "redirects in a loop, to nowhere, to files, in the clear, to this node")
def test_tls_failures_are_reported():
    certificates = make_certificates()
    ca = os.path.join(certificates["directory"], "ca.crt")

    def trusting(server, file):
        return config(f'[registries."{server.name}"]\nca = "{file}"', elsewhere)
    server = Server(certificates["good"])
    server.repository("tls", small)
    succeeds(pull("tls", server=server, settings=trusting(server, ca)), small)
    fails(pull("tls", server=server, settings=config()), "TLS certificate is signed by an unknown authority", "config.toml")
    fails(pull("tls", server=server, settings=trusting(server, os.path.join(certificates["directory"], "other.crt"))), "unknown authority")
    fails(pull("tls", server=server, settings=trusting(server, "/nonexistent")), "cannot be read")
    server.repository("down", small, lambda h, *_: h.answer(302, extra={"Location": f"http://{elsewhere.name}/x"}) or True)
    fails(pull("down", server=server, settings=trusting(server, ca)), "redirects from https to")
    for kind, text in (("wrongname", "belongs to another host"), ("expired", "has expired"), ("future", "clock is probably wrong"), ("selfsigned", "certificate")):
        other = Server(certificates[kind])
        other.repository("tls", small)
        fails(pull("tls", server=other, settings=trusting(other, ca) if kind != "selfsigned" else config()), text)
    fails(pull("good", settings=config("", elsewhere)), "does not speak TLS", "insecure = true")
    result = pull("tls", server=server, settings=config("", server))
    fails(result, "")


def test_trusted_certificates_are_read_from_bundle_and_hashed_files():
    certificates = make_certificates("system")
    made = certificates["directory"]
    server = Server(certificates["good"])
    server.repository("system", small)
    for name, bundle, hashed in (("bundle", "ca", "other"), ("hashed", "other", "ca")):
        trusted = os.path.join(made, name)
        os.makedirs(trusted)
        shutil.copy(f"{made}/{bundle}.crt", f"{trusted}/ca-certificates.crt")
        number = subprocess.run(["openssl", "x509", "-hash", "-noout", "-in", f"{made}/{hashed}.crt"], stdout=subprocess.PIPE, text=True, check=True)
        shutil.copy(f"{made}/{hashed}.crt", f"{trusted}/{number.stdout.strip()}.0")
        script = os.path.join(made, f"import-{name}")
        with open(script, "w") as file:
            file.write(f"#!/bin/sh\nexec unshare --user --map-root-user --mount sh -c 'mount --bind {trusted} /etc/ssl/certs && exec {agent.IMPORT}'\n")
        os.chmod(script, 0o755)
        succeeds(pull("system", server=server, settings=config("", elsewhere), program=script), small)


# --- registries.conf and certs.d ---


def containers_config(text, certificates=(), drop_ins=()):
    """config.toml that names a directory with this registries.conf. `certificates`: HOST:PORT, name, file."""
    directory = tempfile.mkdtemp(dir=work)
    os.chmod(directory, 0o755)
    for path, content in (("registries.conf", text), *((f"registries.conf.d/{name}", more) for name, more in drop_ins)):
        os.makedirs(os.path.dirname(os.path.join(directory, path)), exist_ok=True)
        with open(os.path.join(directory, path), "w") as file:
            file.write(content)
    for host, name, file in certificates:
        os.makedirs(os.path.join(directory, "certs.d", host), exist_ok=True)
        shutil.copy(file, os.path.join(directory, "certs.d", host, name))
    return directory


def with_containers(directory, text=""):
    path = tempfile.mktemp(dir=work, suffix=".toml")
    with open(path, "w") as file:
        file.write(f'stall_timeout = 2\ncontainers_config = "{directory}"\n{text}\n')
    os.chmod(path, 0o644)
    return path


def insecure(server, more=""):
    return f'[[registry]]\nlocation = "{server.name}"\ninsecure = true\n{more}\n'


def test_registries_conf_insecure_and_blocked():
    registry.repository("conf/open", small)
    registry.repository("conf/closed", small)
    directory = containers_config(insecure(registry) + f'[[registry]]\nprefix = "{registry.name}/conf/closed"\nblocked = true\n')
    settings = with_containers(directory)
    succeeds(pull("conf/open", settings=settings), small)
    fails(pull("conf/closed", settings=settings), f'this site does not allow registry "{registry.name}"')
    fails(pull("conf/open", settings=with_containers("")), "")
    fails(pull("conf/open", settings=with_containers(directory, f'[registries."{registry.name}"]\ninsecure = false')), "does not speak TLS")
    registry.repository("conf/closed-not", small)
    succeeds(pull("conf/closed-not", settings=settings), small)
    later = ("10-later.conf", f'[[registry]]\nprefix = "{registry.name}/conf/closed"\nblocked = false\n')
    with open(os.path.join(directory, "registries.conf")) as file:
        settings = with_containers(containers_config(file.read(), drop_ins=(later, ("20.toml", "no drop-in"))))
    succeeds(pull("conf/closed", settings=settings), small)


def test_registries_conf_mirrors_and_locations():
    mirror = Server()
    for name in ("m/path/image", "moved/image"):
        mirror.repository(name, small)
    registry.repository("team/path/image")  # has nothing
    text = insecure(registry) + f"""
[[registry]]
prefix = "{registry.name}/team"
location = "{registry.name}/team"
[[registry.mirror]]
location = "{mirror.name}/m"
insecure = true
[[registry]]
prefix = "registry.invalid/old"
location = "{mirror.name}/moved"
"""
    settings = with_containers(containers_config(text))
    succeeds(pull("team/path/image", settings=settings), small)
    assert mirror.seen("/v2/m/path/image/manifests/1"), mirror.requests
    result = agent.run(store := new_store(), "registry.invalid/old/image:1", config=settings)
    result.store = store
    succeeds(result, small)
    # A mirror for digests only does not resolve a tag.
    before = len(mirror.seen("/manifests/1"))
    by_digest = text.replace(f'location = "{mirror.name}/m"', f'location = "{mirror.name}/m"\npull-from-mirror = "digest-only"')
    fails(pull("team/path/image", settings=with_containers(containers_config(by_digest))), "")
    assert len(mirror.seen("/manifests/1")) == before
    succeeds(pull("team/path/image", tag="@" + small.digest, settings=with_containers(containers_config(by_digest))), small)
    # Mirrors of config.toml replace those of registries.conf.
    settings = with_containers(containers_config(text), f'[registries."{registry.name}"]\nmirrors = ["{elsewhere.name}"]\n[registries."{elsewhere.name}"]\ninsecure = true')
    before = len(mirror.seen("/v2/m/"))
    fails(pull("team/path/image", settings=settings), "")
    assert len(mirror.seen("/v2/m/")) == before


def test_registries_conf_search_list_sets_default_registry():
    registry.repository("library-of/short", small)
    for hosts, status in ((f'"{registry.name}"', 0), (f'"{registry.name}", "registry.invalid"', 0), (f'"registry.invalid", "{registry.name}"', 1)):
        settings = with_containers(containers_config(f"unqualified-search-registries = [{hosts}]\n" + insecure(registry)))
        result = agent.run(store := new_store(), "library-of/short:1", config=settings)
        result.store = store
        assert result.status == status, result
        if status == 0:
            succeeds(result, small)
    settings = with_containers(containers_config(f'unqualified-search-registries = ["registry.invalid"]\n' + insecure(registry)), f'default_registry = "{registry.name}"')
    result = agent.run(store := new_store(), "library-of/short:1", config=settings)
    result.store = store
    succeeds(result, small)


def test_request_of_another_user_names_no_files():
    """In a job, root starts import as the service user, and a process of the job's user sends the request."""
    registry.repository("named", small)
    mirror = containers_config(f'[[registry]]\nprefix = "registry.invalid"\nlocation = "{registry.name}"\ninsecure = true\n')
    for run_as in (None, 65534):
        store = new_store()
        subprocess.run(["chmod", "-R", "a+rwX", store.path], check=True)
        result = agent.run(store, "registry.invalid/named:1", config=config(), more=[f"user_containers={mirror}"], run_as=run_as)
        result.store = store
        if run_as is None:
            succeeds(result, small)
        else:
            fails(result, 'registry "registry.invalid": no such host')
    fails(pull("named", store=store, run_as=65534), "does not speak TLS")  # config.toml says insecure


def test_certs_d_ca_and_client_certificate():
    made = make_certificates("certs-d")
    ca, other = (os.path.join(made["directory"], name) for name in ("ca.crt", "other.crt"))
    server = Server(made["good"], clients=ca)
    server.repository("tls", small)
    certificate, key = made["wrongname"]  # signed by the same CA
    own = ((server.name, "ca.crt", ca), (server.name, "client.cert", certificate), (server.name, "client.key", key))
    succeeds(pull("tls", server=server, settings=with_containers(containers_config("", own))), small)
    # TLS 1.3 asks behind the handshake: a request that is sent meanwhile can meet a closed connection, four times on a busy machine.
    for names in (own[:1], own[:2]):
        result = fails(pull("tls", server=server, settings=with_containers(containers_config("", names))))
        if "closed the connection" not in result.failed:
            fails(result, "TLS certificate of this client: ", "certificate required", "set client_cert and client_key")
    bad = ((server.name, "ca.crt", ca), (server.name, "client.cert", ca), (server.name, "client.key", key))
    fails(pull("tls", server=server, settings=with_containers(containers_config("", bad))), "TLS certificate of this client: ")
    fails(pull("tls", server=server, settings=with_containers(containers_config("", own[1:]))), "TLS certificate is self-signed")
    fails(pull("tls", server=server, settings=with_containers(containers_config("", own), f'[registries."{server.name}"]\nca = "{other}"')), "TLS certificate is self-signed")
    settings = with_containers("", f'[registries."{server.name}"]\nca = "{ca}"\nclient_cert = "{certificate}"\nclient_key = "{key}"')
    succeeds(pull("tls", server=server, settings=settings), small)
    # A certificate is for its registry: a redirect to another server gets none.
    elsewhere_tls = Server(made["good"], clients=ca)
    server.repository("down", small, lambda h, kind, *_: kind == "blobs" and (h.answer(302, extra={"Location": f"https://{elsewhere_tls.name}/x"}) or True))
    fails(pull("down", server=server, settings=with_containers(containers_config("", own))), "")
    assert not elsewhere_tls.requests, elsewhere_tls.requests


def test_registries_conf_errors_and_strangers():
    registry.repository("conf/errors", small)
    for text, message in (("[[registry]", "not valid TOML"), ('[[registry]]\nblocked = true\n', "has neither prefix nor location"), ('[[registry]]\nlocation = "a b"\n', "line 1"),
                          ('[[registry]]\nlocation = "a.example"\n[[registry.mirror]]\n', "has a mirror without location")):
        fails(pull("conf/errors", settings=with_containers(directory := containers_config(text))), f'configuration "{directory}/registries.conf', message)
    directory = containers_config(insecure(registry, "[aliases]\nx = 'y'\n"))
    succeeds(pull("conf/errors", settings=with_containers(directory)), small)
    os.chmod(os.path.join(directory, "registries.conf"), 0o666)
    fails(pull("conf/errors", settings=with_containers(directory)), "is writable by others")


# --- concurrency and kills ---

@outcome(46, "accepted", "100 nodes pull one image", untested="more than two nodes")
def test_two_concurrent_imports_convert_each_layer_once():
    image = big_image(2, layers=6)
    registry.repository("twice", image)
    store, settings = new_store(), config()
    runs = [agent.Import(store, f"{registry.name}/twice:1", config=settings) for _ in range(3)]
    results = [run.wait() for run in runs]
    for result in results:
        result.store = store
        succeeds(result, image)
    assert sum(len(r.published) for r in results) == 6, results


@outcome(156, "accepted", "SIGKILL of import, converter, agent at every step")
def test_import_killed_during_pull_is_replaced_by_another():
    image = big_image(4, layers=2)
    begun, go_on = [], threading.Event()

    def slow(handler, kind, name):
        if kind != "blobs" or name == oci.digest(image.config_bytes) or len(begun) >= 2:
            return False
        begun.append(name)
        blob = image.blobs()[name]
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(blob)))
        handler.end_headers()
        handler.wfile.write(blob[:1_000_000])
        handler.wfile.flush()
        go_on.wait(20)
        handler.close_connection = True
        return True
    registry.repository("killed", image, slow)
    store, settings = new_store(), config()
    first = agent.Import(store, f"{registry.name}/killed:1", config=settings)
    wait_for(lambda: len(begun) == 2)
    second = agent.Import(store, f"{registry.name}/killed:1", config=settings)
    wait_for(lambda: any("another job on this node converts" in line for line in second.result.progress))
    first.kill()
    assert store.empty()
    go_on.set()
    result = second.wait()
    result.store = store
    succeeds(result, image)
    assert any("another job on this node converts" in line for line in result.progress), result
    assert not [n for n in store.names("records") + store.names("names") if n.startswith(".")]


def test_stopped_lock_holder_is_awaited_without_busy_loop():
    image = big_image(1)
    registry.repository("held", image)
    store, settings = new_store(), config()
    import fcntl
    with open(os.path.join(store.path, "locks"), "r+b") as locks:
        offset = int.from_bytes(bytes.fromhex(image.layers[0].digest[7:])[:8], "little") >> 2
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, offset, 1, 0)
        fcntl.fcntl(locks, 37, lock)  # F_OFD_SETLK
        run = agent.Import(store, f"{registry.name}/held:1", config=settings)
        time.sleep(2)
        with open(f"/proc/{run.process.pid}/stat") as stat:
            ticks = sum(int(x) for x in stat.read().rsplit(")", 1)[1].split()[11:13])
        assert ticks / os.sysconf("SC_CLK_TCK") < 0.3, "it burns CPU while it waits"
        assert not run.result.done
    result = run.wait()
    result.store = store
    succeeds(result, image)

# --- a real registry ---

def test_docker_registry_image_is_pulled():
    server = DockerRegistry()
    settings = config("", server)
    for docker in (False, True):
        image = oci.Image([oci.Layer({f"f{i}": noise.randbytes(1 << 20)}) for i in range(3)], docker=docker)
        server.push(image, "team/app")
        store = new_store()
        succeeds(pull("team/app", server=server, settings=settings, store=store), image)
        result = succeeds(pull("team/app", server=server, settings=settings, store=store), image)
        print(f"       warm import: {result.seconds * 1000:.0f} ms")
        fails(pull("team/app", "2", server=server, settings=settings), 'no tag "2"', "it has: 1")
        fails(pull("team/none", server=server, settings=settings), 'repository "team/none" does not exist')
