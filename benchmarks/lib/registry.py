"""A docker-registry on loopback, plain HTTP."""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import time
import urllib.request

from machine import BenchmarkError, call

ADDRESS = "127.0.0.1:5000"


def start(work):
    """Starts it. It runs until the end of our process namespace."""
    call("ip", "link", "set", "lo", "up")
    configuration = work / "registry.yml"
    configuration.write_text(f"""version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {work}/registry}}}}
http: {{addr: "{ADDRESS}", secret: benchmarks}}
""")
    server = subprocess.Popen(["docker-registry", "serve", configuration], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=open(work / "registry.log", "w", encoding="utf-8"))
    for _ in range(100):
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"http://{ADDRESS}/v2/", timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise BenchmarkError(f"docker-registry does not answer: {(work / 'registry.log').read_text()[-1000:]}")


def push(directory, name):
    """Pushes an OCI layout and returns its name in the registry."""
    call("skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{directory}:latest", f"docker://{ADDRESS}/{name}:latest")
    return f"{ADDRESS}/{name}:latest"


MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")


def ask(path, data=None, method=None, **headers):
    request = urllib.request.Request(path if "//" in path else f"http://{ADDRESS}/v2/{path}", data=data, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers, answer.read()


def head(name):
    ask(f"{name}/manifests/latest", method="HEAD", Accept=", ".join(MANIFESTS))


def push_blob(name, data):
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    upload = ask(f"{name}/blobs/uploads/", data=b"", method="POST")[0]["Location"]
    ask(f"{upload}{'&' if '?' in upload else '?'}digest={digest}", data=data, method="PUT", **{"Content-Type": "application/octet-stream"})
    return {"digest": digest, "size": len(data)}


def push_with_layer(name, new_name, text):
    """Pushes an image of the registry plus a layer of 10 kB in a file. Returns the new name."""
    headers, manifest = ask(f"{name}/manifests/latest", Accept=", ".join(MANIFESTS))
    manifest = json.loads(manifest)
    for blob in (manifest["config"], *manifest["layers"]):
        ask(f"{new_name}/blobs/uploads/?mount={blob['digest']}&from={name}", data=b"", method="POST")
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        entry = tarfile.TarInfo("benchmark")
        entry.size = len(text) * (10_000 // len(text))
        archive.addfile(entry, io.BytesIO(text * (10_000 // len(text))))
    config = json.loads(ask(f"{name}/blobs/{manifest['config']['digest']}")[1])
    config["rootfs"]["diff_ids"].append(f"sha256:{hashlib.sha256(tar.getvalue()).hexdigest()}")
    manifest["layers"].append(manifest["layers"][-1] | push_blob(new_name, gzip.compress(tar.getvalue(), mtime=0)))
    manifest["config"] |= push_blob(new_name, json.dumps(config).encode())
    ask(f"{new_name}/manifests/latest", data=json.dumps(manifest).encode(), method="PUT", **{"Content-Type": headers["Content-Type"]})
    return f"{ADDRESS}/{new_name}:latest"


def layers(name):
    """Returns (size, url) of each layer, largest first."""
    manifest = json.loads(ask(f"{name}/manifests/latest", Accept=", ".join(MANIFESTS))[1])
    return sorted(((layer["size"], f"http://{ADDRESS}/v2/{name}/blobs/{layer['digest']}") for layer in manifest["layers"]), reverse=True)
