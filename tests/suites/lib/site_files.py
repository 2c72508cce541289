"""Files of a site's configuration, for a while; the same on every machine of the cluster."""
import contextlib
import os
import shutil


class Files:
    """Files below /etc (`enroot/mounts.d/a.fstab`: text) that are gone afterwards."""

    def __init__(self, cluster, files):
        self.etc, self.files = cluster.etc, files
        self.made = []

    def __enter__(self):
        for name, text in self.files.items():
            self.write(name, text)
        return self

    def write(self, name, text):
        path = self.path(name)
        missing = path
        while not os.path.lexists(missing):
            top, missing = missing, os.path.dirname(missing)
        if missing != path and top not in self.made:
            self.made.append(top)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def path(self, name):
        return os.path.join(self.etc, name)

    def __exit__(self, *_):
        for path in self.made:
            shutil.rmtree(path) if os.path.isdir(path) else os.path.lexists(path) and os.unlink(path)


def rules(cluster, text):
    """A file of config.d."""
    return Files(cluster, {"spank-container/config.d/50-test.toml": text})


@contextlib.contextmanager
def without_last_valid(cluster):
    """Empties what keep_last_valid keeps: nodes are as after a reboot, and the runner misses no file."""
    record, kept = "/run/spank-container/policy", "/run/policy.kept"
    for node in cluster.nodes:
        cluster.root(node, "sh", "-c", f"mv {record} {kept} && : >{record}").good()
    try:
        yield
    finally:
        for node in cluster.nodes:
            cluster.root(node, "mv", kept, record).good()
