"""The site's rules, TLS, concurrent imports, kills, and a real registry."""

import os
import shutil
import struct
import subprocess
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
