"""The shared store on a real NFS: this kernel's server, mounted twice, as on two nodes. Each mount
has its own network and host name, so that the server sees two clients. Otherwise both would share
the delegations of one."""
import os

from guest import NODE, PACKAGES
from harness import expect, say, test

TOP = "/opt/spank-container"
PLACES = ("/mnt/one", "/mnt/two")


def is_there():
    """Guests of arm64 have no NFS server."""
    return os.path.exists("/usr/sbin/rpc.nfsd")


def mount_twice(guest):
    guest.root(NODE, "sh", "-euc", f"""
        install -d -o spank-container -g spank-container -m 0711 /srv/shared
        echo '/srv/shared *(rw,sync,fsid=0,no_subtree_check,insecure)' >/etc/exports
        systemctl start nfs-server
        mkdir {" ".join(PLACES)} {TOP}/build
        ln -s /usr/libexec/spank-container {TOP}/build/libexec
        mount -t nfs4 -o vers=4.2 10.77.0.1:/ /mnt/one
        ip link add to-two type veth peer name two
        ip address add 10.77.1.1/24 dev to-two
        ip link set to-two up
        unshare --net --uts sleep infinity >/dev/null 2>&1 &
        other=$!
        until test $(readlink /proc/$other/ns/net) != $(readlink /proc/self/ns/net); do sleep 0.1; done
        ip link set two netns $other
        nsenter --net --uts --target $other sh -euc '
            hostname node02
            ip link set lo up
            ip address add 10.77.1.2/24 dev two
            ip link set two up
            mount -t nfs4 -o vers=4.2 10.77.1.1:/ /mnt/two'
        """).good()


@test
def shared_store_on_nfs_works(guest):
    """All cases of tests/registry/shared_cases.py as the service user. Each pull uses the other
    mount."""
    guest.dpkg("--install", *PACKAGES)  # the previous case removed it
    mount_twice(guest)
    as_service = ("setpriv", "--reuid=spank-container", "--regid=spank-container", "--clear-groups", "env", f"SPC_SHARED_PLACES={':'.join(PLACES)}")
    done = guest.enter(NODE, "root", *as_service, f"{TOP}/tests/registry/run", "--build", f"{TOP}/build", "shared").end(900)
    lines = done.out.splitlines()
    for line in lines:
        say(f"    {line}")
    expect(done.rc == 0 and lines and " passed, 0 failed" in lines[-1], "a case fails on NFS", done)
