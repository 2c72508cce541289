"""A docker-registry on loopback, plain HTTP."""

import json
import subprocess
import time
import urllib.request

from machine import BenchmarkError, call

ADDRESS = "127.0.0.1:5000"


def start(work):
    """Runs until our process namespace ends."""
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
    """Puts an OCI layout into the registry and says how it is called there."""
    call("skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{directory}:latest", f"docker://{ADDRESS}/{name}:latest")
    return f"{ADDRESS}/{name}:latest"


def layers(name):
    """(size, url) of each layer, largest first."""
    accept = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
    request = urllib.request.Request(f"http://{ADDRESS}/v2/{name}/manifests/latest", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        manifest = json.load(answer)
    return sorted(((layer["size"], f"http://{ADDRESS}/v2/{name}/blobs/{layer['digest']}") for layer in manifest["layers"]), reverse=True)
