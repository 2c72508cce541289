"""What spank-container-operation(7) says of a store on XFS."""
import re

from guest import NODE
from harness import equal, expect, test

MEGABYTES = 800


def set_limit(guest, megabytes):
    store = guest.store(NODE)
    guest.root(NODE, "xfs_quota", "-x", "-c", f"project -s -p {store} 42", "-c", f"limit -p bhard={megabytes}m 42", store).good()


def size(guest):
    """As node_exporter gets it."""
    return int(re.search(r"^spank_container_store_size_bytes (\d+)", guest.root(NODE, "scontainer", "metrics").good(), re.M)[1])


@test
def a_project_limits_the_store_and_not_the_file_system(guest):
    whole = size(guest)
    set_limit(guest, MEGABYTES)
    try:
        equal(size(guest), MEGABYTES << 20, "size of the store")
        guest.root(NODE, "scontainer", "doctor", "--node", "--quiet").good("")
        guest.bash("echo more >/made").good()
    finally:
        set_limit(guest, 0)
    expect(size(guest) == whole > MEGABYTES << 20, "the limit is still there")
