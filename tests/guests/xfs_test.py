"""Statements of spank-container-operation(8) about a store on XFS."""
import re

from guest import NODE
from harness import equal, expect, test

MEGABYTES = 800


def set_limit(guest, megabytes):
    store = guest.store(NODE)
    guest.root(NODE, "xfs_quota", "-x", "-c", f"project -s -p {store} 42", "-c", f"limit -p bhard={megabytes}m 42", store).good()


def size(guest):
    """Returns the size as node_exporter reads it."""
    return int(re.search(r"^spank_container_store_size_bytes (\d+)", guest.root(NODE, "scontainer", "metrics").good(), re.M)[1])


@test
def project_quota_limits_the_store_not_the_file_system(guest):
    whole = size(guest)
    set_limit(guest, MEGABYTES)
    try:
        equal(size(guest), MEGABYTES << 20, "size of the store")
        guest.root(NODE, "scontainer", "doctor", "--node", "--quiet").good("")
        guest.bash("echo more >/made").good()
    finally:
        set_limit(guest, 0)
    expect(size(guest) == whole > MEGABYTES << 20, "the limit is still there")
