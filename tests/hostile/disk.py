"""The node's store on a full, broken, read-only or over-quota disk, and on one with a power loss at
any moment."""
import errno
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time

from cluster import kill_all
from command import await_true
from harness import Failed, expect
from images import Image, probe
from scene import HERE, NODE, ON, PATIENCE, Before, Store, Traced, is_whole, system_calls

STORE = "/var/lib/spank-container"
MEGABYTES = 48
FLUSH = (1 << 64) - 1
PULLS = 6  # until the simulated power loss
SERVED = 2  # cuts of a short run from which images are started


def new_file_system(path):
    with open(path, "wb") as file:
        file.truncate(MEGABYTES << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=4", "-E", "lazy_itable_init=0", path], check=True)


class Disk:
    """A temporary file system for the node's store, on a disk that logs writes and can fail."""

    def __init__(self, cluster, node=NODE):
        self.cluster, self.node = cluster, node
        self.directory = tempfile.mkdtemp(prefix="spc-disk-", dir=os.path.join(cluster.state, "machines", node, "tmp"))
        self.inside = "/tmp/" + os.path.basename(self.directory)
        self.base, self.log = os.path.join(self.directory, "base"), os.path.join(self.directory, "log")

    def __enter__(self):
        new_file_system(self.base)
        source = open(os.path.join(HERE, "disk_server.py")).read()
        self.server = self.cluster.start_program("exec", self.node, "python3", "-c", source, f"{self.inside}/base", f"{self.inside}/log")
        self.server.await_text("serving")
        self.pid = self.cluster.processes(self.node, "python3")[0]
        self.cluster.scenery.add(self.pid)
        self.mount("-o", "errors=remount-ro,commit=1")
        return self

    def mount(self, *options):
        # The loop device of the previous mount may persist for a moment.
        await_true(lambda: self.cluster.root(self.node, "mount", "-t", "ext4", "-o", "loop", *options, "/run/hostile/disk", STORE).rc == 0, 10, "the disk cannot be mounted")
        restart(self.cluster, self.node)

    def fill(self):
        done = self.cluster.root(self.node, "sh", "-c", f"cat /dev/zero >{STORE}/filler; sync -f {STORE}; test -e {STORE}/filler")
        expect(done.rc == 0, "the disk cannot be filled", done)

    def make_room(self):
        os.unlink(self.cluster.inside(self.node, STORE + "/filler"))

    def umount(self):
        await_true(lambda: self.cluster.root(self.node, "umount", STORE).rc == 0, 10, "the store is still in use")

    def __exit__(self, *_):
        kill_all([self.pid], signal.SIGUSR2)
        self.umount()
        self.cluster.root(self.node, "umount", "-l", "/run/hostile")
        self.server.end(5)
        self.cluster.scenery.discard(self.pid)
        self.cluster.root(self.node, "rmdir", "/run/hostile")
        shutil.rmtree(self.directory)
        restart(self.cluster, self.node)


def restart(cluster, node=NODE):
    cluster.program("restart", node).good()
    cluster.await_idle()


class Mounted:
    """Mounts a file system image as the node's store during its lifetime."""

    def __init__(self, cluster, path):
        self.cluster, self.path = cluster, path

    def __enter__(self):
        self.cluster.root(NODE, "mount", "-t", "ext4", "-o", "loop", self.path, STORE).good()
        restart(self.cluster)

    def __exit__(self, *_):
        await_true(lambda: self.cluster.root(NODE, "umount", STORE).rc == 0, 10, "the store is still in use")
        restart(self.cluster)


# --- faults ---


def image(cluster, title, kilobytes=300):
    layers = [[("probe", probe()), ("title", title.encode())], [("data", os.urandom(kilobytes << 10))]]
    return cluster.faulty.publish(Image(f"hostile/{title}", layers))[0]


class Faults:
    def __init__(self, cluster, disk, count):
        self.cluster, self.disk, self.count, self.number = cluster, disk, count, 0
        self.known = image(cluster, "known")
        cluster.srun(*ON, "/probe", "/title", image=self.known).good()

    def pull(self):
        self.number += 1
        return self.cluster.srun(*ON, "/probe", "/title", image=image(self.cluster, f"fault-{self.number}", 2000), timeout=PATIENCE)

    def expect(self, title, words, can_start=True, mounts_stay=True):
        """Checks that a pull is refused with one line that contains one of these words, that stored
        images still start and that nothing is left behind."""
        self.count.tried += 1
        before = Before(self.cluster)
        try:
            done = self.pull()
            expect(done.rc == 1 and len(done.errors()) == 1, f"exit code {done.rc}, {len(done.errors())} lines", done)
            expect(any(word in done.errors()[0].lower() for word in words), f"the line has none of {words}", done)
            if can_start:
                self.cluster.srun(*ON, "/probe", "/title", image=self.known).good()
        except Failed as failed:
            self.count.is_wrong(f"{title}: {failed.why}\n{failed.details()}")
        if not mounts_stay:
            self.cluster.quiet[NODE]["mounts"] = self.cluster.mounts(NODE)
        self.must_be_clean(title, before)

    def must_work(self, title):
        """Checks that a pull succeeds after the fault has been removed."""
        self.count.tried += 1
        before = Before(self.cluster)
        try:
            done = self.pull()
            expect(done.rc == 0 and "uid 2001" in done.out, "a pull does not work when the fault is over", done)
        except Failed as failed:
            self.count.is_wrong(f"after {title}: {failed.why}\n{failed.details()}")
        self.must_be_clean(title, before)

    def must_be_clean(self, title, before):
        try:
            before.must_hold()
            Store(self.cluster).must_be_sound()
            self.cluster.must_be_well()
        except Failed as failed:
            self.count.is_left(f"{title}: {failed.why}\n{failed.details()}")
            self.cluster.recover()


def full(faults, _cluster, disk):
    disk.fill()
    faults.expect("full disk", ("space", "free"))
    disk.make_room()


def read_only(faults, cluster):
    cluster.root(NODE, "mount", "-o", "remount,ro", STORE).good()
    # A tag may need a registry request.
    faults.expect("read-only store", ("read-only",), can_start=False)
    cluster.root(NODE, "mount", "-o", "remount,rw", STORE).good()


def over_quota(faults, cluster, tracer):
    """Makes the writer's second write fail as with a quota, as not every kernel has quotas."""
    pwrite = next(number for number, name in system_calls().items() if name == "pwrite64")
    with Traced(cluster, tracer, "layer-writer", "fail", 2, errno.EDQUOT, pwrite):
        faults.expect("quota", ("quota",))


def broken(faults, cluster, disk):
    kill_all([disk.pid], signal.SIGUSR1)
    faults.expect("writes that fail", ("input/output", "i/o", "read-only"), can_start=False, mounts_stay=False)
    kill_all([disk.pid], signal.SIGUSR2)
    disk.umount()
    disk.cluster.root(NODE, "e2fsck", "-p", "/run/hostile/disk")
    disk.mount()


def faults(cluster, options, count, budget, seed):
    with Disk(cluster) as disk:
        all_faults = Faults(cluster, disk, count)
        for title, fault, *more in (("full disk", full, disk), ("read-only store", read_only), ("quota", over_quota, options.tracer)):
            fault(all_faults, cluster, *more)
            all_faults.must_work(title)
        cluster.recover()
        all_faults.must_work("what follows something that was left")
        broken(all_faults, cluster, disk)
        all_faults.must_work("writes that fail")


# --- power loss ---


def read_log(path):
    """Returns the writes in order: (offset, bytes), or None for a flush."""
    data = open(path, "rb").read()
    found, at = [], 0
    while at + 12 <= len(data):
        offset, size = struct.unpack_from("<QI", data, at)
        found.append(None if offset == FLUSH else (offset, data[at + 12:at + 12 + size]))
        at += 12 + size
    return found


def cut(base, log, chance, path):
    """Returns the disk after a power loss at a random moment: any part of the writes after the last
    flush is lost."""
    end = chance.randint(1, len(log))
    last_flush = max((at for at in range(end) if log[at] is None), default=0)
    loses = chance.random() < 0.7
    shutil.copyfile(base, path)
    with open(path, "r+b") as file:
        for at, write in enumerate(log[:end]):
            if write is not None and (at <= last_flush or not loses or chance.random() < 0.5):
                file.seek(write[0])
                file.write(write[1])
    return end


class Truth:
    """Complete content of each store name that stands for a complete object."""

    def __init__(self, store):
        self.layers = {name: open(os.path.join(store, "layers/sha256", name), "rb").read() for name in os.listdir(os.path.join(store, "layers/sha256"))}
        self.records = {name: open(os.path.join(store, "records", name), "rb").read() for name in records_of(store)}


def records_of(store):
    return [name for name in os.listdir(os.path.join(store, "records")) if re.fullmatch("[0-9a-f]{64}", name)]


def check_cut(image, truth, verifier, directory):
    """Mounts the disk, which replays the journal, and yields torn objects."""
    seen = os.path.join(directory, "seen")
    script = 'mkdir -p "$2" "$3" && mount -t ext4 -o loop "$1" "$2" && cd "$2" && for name in layers records; do test ! -d $name || cp -r $name "$3"; done'
    done = subprocess.run(["unshare", "--mount", "sh", "-euc", script, "-", image, os.path.join(directory, "mnt"), seen], stderr=subprocess.PIPE, text=True)
    expect(done.returncode == 0, f"the file system cannot be mounted: {done.stderr}")
    try:
        if not os.path.isdir(os.path.join(seen, "layers/sha256")):
            return
        found = Truth(seen)
        for name, content in found.layers.items():
            path = os.path.join(seen, "layers/sha256", name)
            if content != truth.layers.get(name) or not is_whole(verifier, path):
                yield f"layer {name} has {len(content)} bytes of {len(truth.layers.get(name, b''))}"
        for name, content in found.records.items():
            if content != truth.records.get(name):
                yield f"record {name} has {len(content)} bytes of {len(truth.records.get(name, b''))}"
    finally:
        shutil.rmtree(seen, ignore_errors=True)


def pulls_with_log(cluster, directory):
    """Pulls images in parallel. Returns names and titles, the disk's previous state, the log, and
    the truth."""
    names = {}
    with Disk(cluster) as disk:
        for number in range(PULLS):
            names[f"power-{number}"] = image(cluster, f"power-{number}", 400)
        steps = []
        for title, name in names.items():
            steps.append(cluster.start_srun(*ON, "/probe", "/title", image=name))
            time.sleep(0.2)
        for step in steps:
            step.end(PATIENCE).good()
        cluster.await_idle()
        cluster.root(NODE, "sync", "-f", STORE)
        truth = Truth(cluster.inside(NODE, STORE))
        base, log = os.path.join(directory, "base"), os.path.join(directory, "log")
        shutil.copyfile(disk.base, base)
        shutil.copyfile(disk.log, log)
    return names, base, read_log(log), truth


def starts_all(cluster, path, names):
    """Starts every image after the power loss, from the store or from a new pull."""
    inside = os.path.join(cluster.state, "machines", NODE, "tmp/cut")
    shutil.copyfile(path, inside)
    try:
        with Mounted(cluster, "/tmp/cut"):
            for title, name in names.items():
                done = cluster.srun(*ON, "/probe", "/title", image=name)
                expect(done.rc == 0 and title in done.out, f"{title} does not start", done)
    finally:
        os.unlink(inside)


def power(cluster, _options, count, budget, seed):
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="spc-power-") as directory:
        names, base, log, truth = pulls_with_log(cluster, directory)
        verifier = Store(cluster).program
        path = os.path.join(directory, "cut")
        served = 0
        for number in range(1000 if budget.whole else 100):
            if budget.is_spent():
                break
            end = cut(base, log, chance, path)
            count.tried += 1
            title = f"power cut {number}, after {end} of {len(log)} writes"
            try:
                for torn in check_cut(path, truth, verifier, directory):
                    count.is_wrong(f"{title}: {torn}")
                if number % 10 == 5 and (budget.whole or served < SERVED):
                    served += 1
                    starts_all(cluster, path, names)
            except Failed as failed:
                count.is_wrong(f"{title}: {failed.why}\n{failed.details()}")
