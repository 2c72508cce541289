"""Signed images as cosign makes them, with OpenSSL alone: keys, payloads, and the manifest that is attached to an image."""
import base64
import hashlib
import json
import os
import subprocess
import tempfile

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
COSIGN_ARTIFACT = "application/vnd.dev.cosign.artifact.sig.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"

KINDS = {"p256": ("EC", "ec_paramgen_curve:P-256"), "p384": ("EC", "ec_paramgen_curve:P-384"),
         "rsa": ("RSA", "rsa_keygen_bits:2048"), "rsa1024": ("RSA", "rsa_keygen_bits:1024"), "ed25519": ("ED25519", None)}


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def openssl(*arguments):
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True).stdout


class Key:
    """`public` is the path of its public half."""

    def __init__(self, directory, name="key", kind="p256"):
        self.kind, self.private, self.public = kind, os.path.join(directory, name + ".key"), os.path.join(directory, name + ".pub")
        algorithm, option = KINDS[kind]
        openssl("genpkey", "-algorithm", algorithm, *(["-pkeyopt", option] if option else []), "-out", self.private)
        openssl("pkey", "-in", self.private, "-pubout", "-out", self.public)
        os.chmod(self.public, 0o644)

    @property
    def data(self):
        """As keyData has it."""
        with open(self.public, "rb") as file:
            return base64.b64encode(file.read()).decode()

    def sign(self, payload):
        with tempfile.NamedTemporaryFile() as file:
            file.write(payload)
            file.flush()
            if self.kind == "ed25519":
                made = openssl("pkeyutl", "-sign", "-rawin", "-inkey", self.private, "-in", file.name)
            else:
                made = openssl("dgst", "-sha256", "-sign", self.private, file.name)
        return base64.b64encode(made).decode()


def payload_for(name, digest, **more):
    return json.dumps({"critical": {"identity": {"docker-reference": name}, "image": {"docker-manifest-digest": digest},
                                    "type": "cosign container image signature"}, "optional": None, **more}).encode()


class Attachment:
    """The manifest with signatures of one image."""

    def __init__(self, *signatures, **more):
        """`signatures`: (payload, signature in base64)"""
        self.config = b"{}"
        self.blobs = {digest_of(self.config): self.config} | {digest_of(payload): payload for payload, _ in signatures}
        layers = [{"mediaType": SIMPLE_SIGNING, "digest": digest_of(payload), "size": len(payload), "annotations": {SIGNATURE: signature}}
                  for payload, signature in signatures]
        self.bytes = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "layers": layers, **more, "config": {
            "mediaType": CONFIG, "digest": digest_of(self.config), "size": len(self.config)}}).encode()
        self.digest = digest_of(self.bytes)


def signed(key, name, digest):
    payload = payload_for(name, digest)
    return payload, key.sign(payload)


def tag_of(digest):
    return digest.replace(":", "-") + ".sig"


def referrers(*attachments):
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [
        {"mediaType": MANIFEST, "digest": a.digest, "size": len(a.bytes), "artifactType": COSIGN_ARTIFACT} for a in attachments]}).encode()


# --- policy.json ---

def sigstore(*keys, identity="matchRepository", **more):
    """A requirement: a signature by one of the keys."""
    where = {"keyPath": keys[0].public} if len(keys) == 1 else {"keyPaths": [key.public for key in keys]} if keys else {}
    identity = {"type": identity} if isinstance(identity, str) else identity
    return {"type": "sigstoreSigned", **where, **({"signedIdentity": identity} if identity else {}), **more}


REJECT = [{"type": "reject"}]
ANYTHING = [{"type": "insecureAcceptAnything"}]


def policy(default=REJECT, **transports):
    """`transports`: containers_storage={"": ANYTHING}; a dash is written as an underscore."""
    return json.dumps({"default": default, "transports": {name.replace("_", "-"): scopes for name, scopes in transports.items()}})
