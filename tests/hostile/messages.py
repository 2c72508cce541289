"""Hostile option values, and hostile messages to the agent, import, fuse, srun's listeners and the
relays of a step. No program may crash or hang, and nothing may be left behind."""
import contextlib
import os
import random
import re
import socket
import sys

import across_nodes
from harness import Failed, expect
from images import Image, probe
from scene import HERE, NODE, ON, ROOT, Before, in_network_of

MESSAGES = 2000  # in a whole run; a short run sends one in ten
VALUES = 10000


def must_be_clean(cluster, title, count, before):
    try:
        before.must_hold()
        cluster.must_be_well()
    except Failed as failed:
        count.is_left(f"{title}: {failed.why}\n{failed.details()}")
        cluster.recover()


def at_program(cluster, count, kind, number, seed):
    """`kind`: agent, import or fuse."""
    before = Before(cluster)
    source = open(os.path.join(HERE, "messages_inside.py")).read()
    done = cluster.enter(NODE, "root", "python3", "-c", source, kind, str(number), str(seed), "/home/alice/hostile-image.sqsh").end(600)
    count.tried += number
    if done.rc != 0 or not done.out:
        count.is_wrong(f"{kind}: the attack broke off: {done.err}")
    for line in done.out.splitlines():
        if line.startswith("bad"):
            count.is_wrong(f"{kind}, seed {seed}: {line}")
    count.say(f"    {kind}: " + "; ".join(done.out.splitlines()))
    must_be_clean(cluster, kind, count, before)


# --- srun's listener ---


def listening_port(cluster, pid):
    """Returns the port at which our plugin listens, among the processes of this srun. Slurm's own
    ports are IPv4 only."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
        if found:
            inodes.add(found[1])
    ports = []
    for line in open(f"/proc/{pid}/net/tcp6").read().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


def send_all(pid, ports, number, chance):
    """Sends from the head's own network, which any local program can."""
    def run():
        held = []
        for _ in range(number):
            report = bytearray(b"spcerr1\0" + chance.randbytes(16) + b"node01".ljust(64, b"\0") + b"spank-container: hostile".ljust(2000, b"\0"))
            report[:chance.choice((0, 8, 24))] = b""
            try:
                line = socket.create_connection(("127.0.0.1", chance.choice(ports)), 2)
                line.sendall(bytes(report[:chance.choice((0, 1, 24, 500, 5000))]) + chance.randbytes(chance.choice((0, 0, 3000))))
                if chance.random() < 0.2 and len(held) < 200:
                    held.append(line)
                else:
                    line.close()
            except OSError:
                pass
        for line in held:
            line.close()

    in_network_of(pid, run)


def at_listener(cluster, count, number, seed):
    before = Before(cluster)
    count.tried += number
    step = cluster.start_srun("-N2", "--container-mounts=/home/shared:/mnt", "sh", "-c", "echo up; while test ! -e /mnt/hostile-end; do sleep 0.2; done")
    try:
        step.await_text("up")
        sruns = cluster.processes("head", "srun")
        ports = sorted({port for pid in sruns for port in listening_port(cluster, pid)})
        expect(ports, "srun listens nowhere")
        send_all(cluster.pid("head"), ports, number, random.Random(seed))
        with open(os.path.join(cluster.shared, "hostile-end"), "w"):
            pass
        done = step.end()
        expect(done.rc == 0 and "hostile" not in done.out + done.err, "srun minded, or said what strangers sent", done)
    except Failed as failed:
        count.is_wrong(f"srun: {failed.why}\n{failed.details()}")
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(cluster.shared, "hostile-end"))
    must_be_clean(cluster, "srun", count, before)


# --- values of options ---


def at_options(cluster, count, number, seed):
    os.environ.update(SPC_HOSTILE_COUNT=str(number), SPC_HOSTILE_SEED=str(seed))
    sys.path.append(os.path.join(ROOT, "tests/suites/policy"))
    import hostile_test

    count.tried += number
    try:
        hostile_test.hostile_option_values_end_in_error_or_container(cluster)
    except Failed as failed:
        count.is_wrong(f"options, seed {seed}: {failed.why}\n{failed.details()}")
        cluster.recover()


def make_image(cluster):
    """Makes a squashfs file owned by alice."""
    cluster.srun(*ON, "--container-save=/home/alice/hostile-image.sqsh", "/probe", image=Image("hostile/save", [[("probe", probe())]])).good()


def messages(cluster, _options, count, budget, seed):
    number = MESSAGES if budget.whole else max(int(min(budget.seconds / 240, 1) * MESSAGES), 40)
    make_image(cluster)
    for kind in ("agent", "import", "fuse"):
        at_program(cluster, count, kind, number, seed)
    at_listener(cluster, count, number, seed)
    for title, attack in (("tracker", across_nodes.at_tracker), ("relays", across_nodes.at_relays)):
        before = Before(cluster)
        attack(cluster, count, number, seed)
        must_be_clean(cluster, title, count, before)


def options(cluster, _options, count, budget, seed):
    """Tries about twelve values per second."""
    at_options(cluster, count, VALUES if budget.whole else max(int(min(budget.seconds * 8, VALUES)), 100), seed)
