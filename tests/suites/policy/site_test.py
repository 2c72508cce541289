"""Sites with other Slurm configurations."""
import contextlib
import os

import site_files
from cleanup_test import Pull, cancel, must_not_blame_us
from command import await_true
from container_test import WORKS
from images import with_probe
from loop_files import loop_backing
from harness import Failed, equal, expect, test
from tags_test import Asked, publish, shown


class Slurm:
    """A temporary slurm.conf (and other files of /etc/slurm). The daemons are restarted."""

    def __init__(self, cluster, settings, **files):
        self.cluster, self.directory = cluster, os.path.join(cluster.etc, "slurm")
        self.conf, self.settings = os.path.join(self.directory, "slurm.conf"), settings
        self.files = {os.path.join(self.directory, name.replace("_conf", ".conf")): text for name, text in files.items()}

    def __enter__(self):
        self.before = open(self.conf).read()
        keys = tuple(line.split("=")[0] + "=" for line in self.settings)
        kept = [line for line in self.before.splitlines() if not line.startswith(keys)]
        self._write(self.conf, "\n".join([*self.settings, *kept]) + "\n")
        for path, text in self.files.items():
            self._write(path, text)
        self._restart()

    def __exit__(self, *_):
        self._write(self.conf, self.before)
        for path in self.files:
            os.unlink(path)
        self._restart()

    @staticmethod
    def _write(path, text):
        with open(path, "w") as file:
            file.write(text)

    def _restart(self):
        # A node that restarts at the end of a job reports it a minute later.
        with contextlib.suppress(Failed):
            self.cluster.await_idle()
        self.cluster.restart_all()


@test
def prolog_pulls_the_image_before_the_job_needs_it(cluster):
    example = open(os.path.join(os.path.dirname(__file__), "../../../packaging/examples/prolog-prefetch.sh")).read()
    name, _ = publish(cluster, "prolog-prefetch", b"early\n")
    with Slurm(cluster, ["Prolog=/etc/slurm/prolog.sh", "PrologFlags=Alloc"], **{"prolog.sh": example}):
        os.chmod(os.path.join(cluster.etc, "slurm/prolog.sh"), 0o755)
        before = cluster.store_entries("node01")
        # And no step.
        cluster.run("salloc", "--no-shell", "-w", "node01", f"--container-image={name}").good()
        await_true(lambda: any(entry not in before for entry in cluster.store_entries("node01")), 20, "nothing comes into the store")
        await_true(lambda: not cluster.processes("node01", "import"), 20, "the pull does not end")
        cluster.run("scancel", "-u", "alice").good()
        asked = Asked(cluster, "prolog-prefetch")
        equal(shown(cluster.srun("-w", "node01", "-n1", "/probe", "/content", image=name)), ["early"], "content")
        equal([what for what in asked.all() if what.startswith("GET")], [], "what is fetched once more")
        for odd in ("/etc/passwd", "./x", "oci:/tmp/x", "docker://x", "-x", "a b", "$(id)", "a" * 513, "\xe4", "a\nb", "https://r/x?k=1"):
            done = cluster.root("node01", "env", f"SPANK_SCONTAINER_IMAGE={odd}", "sh", "-c", "bash -x /etc/slurm/prolog.sh 2>&1 | grep setsid || true")
            expect("setsid" not in done.out, f"root would pull {odd}", done)


@test
def private_tmp_of_slurm_works_with_containers(cluster):
    with Slurm(cluster, ["JobContainerType=job_container/tmpfs"], job_container_conf="AutoBasePath=true\nBasePath=/var/tmp/containers\n"):
        step = "srun -n1 --container-image=registry:5000/suites/base:1 "
        script = f"touch /tmp/of-the-job; {step} sh -c 'test ! -e /tmp/of-the-job; touch /tmp/in; cat replaced'; {step} --container-mounts=/tmp:/mnt ls /mnt"
        done = cluster.batch(f"#!/bin/bash\n{script}\n", "-w", "node01")
        # On a busy machine srun reports that it retries the step.
        said = [line for line in done.good().splitlines() if not line.startswith("srun: Job ")]
        equal(said, ["upper", "of-the-job"], "output", done)
    cluster.must_be_quiet(within=5)


@test
def linuxproc_tracking_works_with_containers(cluster):
    with Slurm(cluster, ["ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "PrologFlags=Alloc"]):
        cluster.srun("-N2", "-n4", "cat", "replaced").good("upper\n" * 4)
        running = cluster.start_srun("-w", "node01", "-J", "linuxproc", "sh", "-c", "echo up; sleep 60")
        running.await_text("up")
        cluster.run("scancel", "-n", "linuxproc").good()
        running.end(15)
        cluster.must_be_quiet(within=8)


STORE, THERE = "/var/lib/spank-container", "/run/nvme/containers"
ELSEWHERE = {
    # A node's /var/lib cannot be changed: replace it by a copy except the store.
    "link": (f"mkdir /run/lib; for one in $(ls /var/lib); do test -d /var/lib/$one || continue; mkdir /run/lib/$one; mount --rbind /var/lib/$one /run/lib/$one; done; "
             f"umount -l /run/lib/spank-container; rmdir /run/lib/spank-container; ln -s {THERE} /run/lib/spank-container; mount --rbind /run/lib /var/lib",
             "umount -l /var/lib; for one in $(ls /run/lib); do ! mountpoint -q /run/lib/$one || umount -l /run/lib/$one; done; rm -r --one-file-system /run/lib"),
    "mount": (f"mount --bind {THERE} {STORE}", f"umount {STORE}"),
}


FILE_SYSTEMS = {
    "tmpfs": "mount -t tmpfs -o mode=755 nvme /run/nvme",
    # 300 MB, the smallest size for mkfs.xfs, with holes.
    **{one: f"truncate -s 300M /run/nvme.img; mkfs.{one} -q /run/nvme.img; mount -o loop /run/nvme.img /run/nvme; rm /run/nvme.img"
       for one in ("xfs", "btrfs")},
}


@contextlib.contextmanager
def store_elsewhere(cluster, way, file_system="tmpfs"):
    """Puts the store on another file system of node01, as in spank-container-operation(8)."""
    there, back = ELSEWHERE[way]
    cluster.await_idle()
    cluster.root("node01", "bash", "-euc", f"mkdir /run/nvme; {FILE_SYSTEMS[file_system]}; mkdir -m 755 {THERE}; {there}").good()
    try:
        cluster.program("restart", "node01").good()
        cluster.await_idle()
        yield cluster.inside("node01", THERE)
    finally:
        cluster.await_idle()
        done = cluster.root("node01", "bash", "-euc", f"{back}; umount /run/nvme; rmdir /run/nvme")
        cluster.program("restart", "node01").good()
        cluster.await_idle()
    done.good()  # none of it was in use any more


@test
def store_works_behind_a_link_or_a_mount(cluster):
    name, _ = cluster.faulty.publish(with_probe("elsewhere", [("data", b"elsewhere\n")]))
    for way in ELSEWHERE:
        with store_elsewhere(cluster, way) as there:
            one = f"srun --container-image={name} /probe /data"
            expect("elsewhere" in cluster.run("salloc", "-Q", "-w", "node01", "sh", "-c", f"{one} && {one}").good(), "the image does not run")
            equal(len(os.listdir(f"{there}/layers/sha256")), 1, f"layers there with a {way}")
            base = f"--container-image={cluster.name_of('base')}"
            cluster.run("srun", "-w", "node01", base, "--container-name=elsewhere", "touch", "/kept").good()
            cluster.run("srun", "-w", "node01", "--container-name=elsewhere", "test", "-e", "/kept").good()
            expect(os.listdir(f"{there}/containers/2001"), f"the container with a name is not there, with a {way}")
            cluster.run("srun", "-w", "node01", "--container-name=elsewhere:remove", "true").good()
            done = cluster.root("node01", "scontainer", "doctor", "--node")
            expect(done.rc == 0 and (way == "mount" or f"in {THERE}" in done.out), "what doctor says of it", done)


@test
def optional_plugin_works_like_a_required_one(cluster):
    path = os.path.join(cluster.etc, "slurm/plugstack.conf")
    text = open(path).read()
    try:
        with open(path, "w") as file:
            file.write(text.replace("required", "optional"))
        cluster.srun("cat", "replaced").good("upper")
        cluster.run("srun", "true").good()
    finally:
        with open(path, "w") as file:
            file.write(text)


# Settings that depend on the reader of the layers. They can alternate in one container.
OF_THE_LAYERS = ("image_files_all_belong_to_the_user", "image_files_are_never_setuid_or_setgid",
                 "whiteout_hides_file_of_lower_layer", "opaque_directory_hides_lower_layer",
                 "image_links_are_kept", "tree_copy_keeps_owners_and_times",
                 "image_file_can_be_hard_linked", "directory_with_old_and_new_files_can_be_renamed",
                 "directory_over_two_layers_can_be_renamed")


@test
def layers_can_be_served_by_user_processes(cluster):
    config = os.path.join(cluster.etc, "spank-container/config.toml")
    text = open(config).read()
    with open(config, "w") as file:
        file.write('squashfs = "fuse"\n' + text)
    try:
        cluster.bash("\n".join(WORKS[name] for name in OF_THE_LAYERS), "-w", "node01").good()
        running = cluster.start_srun("-w", "node01", "-J", "served", "sh", "-c", "echo up; sleep 60")
        running.await_text("up")
        expect(cluster.processes("node01", "fuse") and not cluster.loops("node01"), "the layers are not served by processes")
        cluster.run("scancel", "-n", "served").good()
        running.end(15)
    finally:
        with open(config, "w") as file:
            file.write(text)
    cluster.must_be_quiet(within=5)


def copies(cluster):
    """Returns the loop devices of node01 that serve a user's copy of a layer: UID.GID by device."""
    found = {name: loop_backing(cluster.inside("node01", f"/dev/{name}")) for name in cluster.loops("node01")}
    return {name: ".".join(backing[2].split(".")[:2]) for name, backing in found.items() if backing and backing[2].count(".") == 2}


@test
def layers_can_be_read_from_copies_with_owner_numbers(cluster):
    """As before Linux 6.2, without owner mapping of squashfs, with the store on a file system that
    shares blocks."""
    for file_system in ("xfs", "btrfs"):
        with site_files.rules(cluster, 'squashfs = "copy"'), store_elsewhere(cluster, "mount", file_system) as there:
            cluster.bash("\n".join(WORKS[name] for name in OF_THE_LAYERS), "-w", "node01").good()
            try:
                steps_share_the_copies_of_their_user(cluster, there)
            finally:
                for user in ("alice", "bob"):
                    cluster.run("scancel", "-u", user, user=user)
            await_true(lambda: not cluster.loops("node01"), 10, "a loop device is left")
        cluster.must_be_quiet(within=5)


def steps_share_the_copies_of_their_user(cluster, store):
    step = ("srun", "-w", "node01", "--overlap", f"--container-image={cluster.name_of('base')}")
    wait = "touch /usr/mine; stat -c %U:%G /etc; sleep 60"
    free = os.statvfs(store).f_bfree
    cluster.start(*step, "sh", "-c", wait).await_text("alice:alice")
    of_alice = copies(cluster)
    equal(set(of_alice.values()), {"2001.2001"}, "whose copies there are")
    expect(not cluster.processes("node01", "fuse"), "the layers are served by processes")
    cluster.run(*step, "true").good()
    equal(copies(cluster), of_alice, "the copies, of a second step")
    cluster.start(*step, "sh", "-c", wait, user="bob").await_text("bob:bob")
    equal(set(copies(cluster).values()), {"2001.2001", "2002.2002"}, "whose copies there are")
    expect(free - os.statvfs(store).f_bfree < 256, "a copy has blocks of its own")
    again = cluster.run(*step, "--container-verbose", "true")
    expect("3 layers (3 shared" in again.err, "a step does not share the copies of its user since another user has some", again)
    for layer in os.listdir(f"{store}/layers/sha256"):
        taken = cluster.root("node01", "flock", "-xn", f"{THERE}/layers/sha256/{layer}", "true")
        expect(taken.rc != 0, f"layer {layer} can be evicted while a copy of it is mounted", taken)
    cluster.start("sg", "rigteam", "-c", " ".join([*step, "sh", "-c", f"'{wait}'"])).await_text("alice:rigteam")


@test
def layers_are_served_when_files_share_no_blocks(cluster):
    with site_files.rules(cluster, 'squashfs = "copy"'), store_elsewhere(cluster, "mount"):
        running = cluster.start_srun("-w", "node01", "-J", "unshared", "sh", "-c", "echo up; sleep 60")
        running.await_text("up")
        expect(cluster.processes("node01", "fuse") and not cluster.loops("node01"), "the layers are not served by processes")
        cluster.run("scancel", "-n", "unshared").good()
        running.end(15)
    cluster.must_be_quiet(within=5)


EROFS_MAGIC = (0xE0F5E1E2).to_bytes(4, "little")


def forget_layers(cluster, node):
    """Makes the next step pull the layers again."""
    store = cluster.store(node)
    for part in ("records", "layers/sha256"):
        for file in os.scandir(os.path.join(store, part)):
            os.unlink(file.path)


@test
def erofs_layers_read_the_same_by_kernel_and_server(cluster):
    try:
        with site_files.rules(cluster, 'layer_format = "erofs"'):
            forget_layers(cluster, "node01")
            cluster.bash("\n".join(WORKS[name] for name in OF_THE_LAYERS), "-w", "node01").good()
            for file in os.scandir(os.path.join(cluster.store("node01"), "layers/sha256")):
                with open(file.path, "rb") as layer:
                    equal(layer.read(1028)[1024:], EROFS_MAGIC, f"first bytes of {file.name}")
            cluster.run("salloc", "-Q", "-w", "node01", "sh", "-c", f"for i in 1 2; do srun --container-image={cluster.name_of('base')} true; done").good()
        with site_files.rules(cluster, 'squashfs = "fuse"'):
            cluster.bash("\n".join(WORKS[name] for name in OF_THE_LAYERS), "-w", "node01").good()
    finally:
        forget_layers(cluster, "node01")
    cluster.srun("-w", "node01", "true").good()
    cluster.must_be_quiet(within=5)


@test
def scancel_ends_pull_at_once_under_linuxproc(cluster):
    """linuxproc does not signal processes named slurmstepd."""
    with Slurm(cluster, ["ProctrackType=proctrack/linuxproc"]):
        pull = Pull(cluster, "linuxproc")
        cancel(cluster, "linuxproc")
        pull.must_leave_nothing()
        must_not_blame_us(pull.step.end(10))
        pull.go()


@contextlib.contextmanager
def configless(cluster):
    """node01 has no Slurm configuration and fetches it from the head."""
    with Slurm(cluster, ["SlurmctldParameters=enable_configless"]):
        end = "pid=$(cat /run/slurmd.pid); kill $pid; while [[ -e /proc/$pid ]]; do sleep 0.02; done; "
        cluster.root("node01", "bash", "-euc", end + "mount -t tmpfs none /etc/slurm; slurmd --conf-server head").good()
        try:
            cluster.await_idle()
            yield
        finally:
            cluster.await_idle()  # the epilog reads it as well
            cluster.root("node01", "bash", "-euc", "umount /etc/slurm; rm -r /run/slurm/conf /var/spool/slurmd/conf-cache").good()


@test
def configless_node_finds_plugin_and_shares_configuration(cluster):
    with configless(cluster):
        done = cluster.bash("cat /workspace/replaced; squeue -h -o %u -j $SLURM_JOB_ID", "-w", "node01", "--container-slurm")
    done.good("upper\nalice")


@test
def catalogue_names_are_names_of_images(cluster):
    base = "registry:5000/suites/base:1"
    with site_files.Files(cluster, {"spank-container/catalogue.d/toy.toml": f'image = "{base}"\n'}):
        done = cluster.run("srun", "-N2", "--container-image=toy", "cat", "replaced")
        done.good("upper\nupper")
        equal([line for line in done.err.splitlines() if "catalogue" in line],
              [f'spank-container: image "toy" of the site\'s catalogue: {base}'], "lines", done)
        script = "#!/bin/sh\n#SBATCH -w node01\n#SBATCH --container-image=toy\ncat replaced\n"
        equal(cluster.batch(script).good().splitlines()[-1], "upper", "batch script")
        done = cluster.run("srun", "-w", "node01", "--container-image=toy", "--container-name=of-toy", "true")
        cluster.run("srun", "-w", "node01", "--container-image=toy", "--container-name=of-toy:remove", "true")
        done.good()


@test
def registries_conf_of_podman_applies_to_jobs(cluster):
    directory = os.path.join(cluster.etc, "containers")
    path, existed = os.path.join(directory, "registries.conf"), os.path.isdir(directory)
    os.makedirs(directory, exist_ok=True)
    before = open(path).read() if os.path.exists(path) else None
    try:
        with open(path, "w") as file:
            file.write('[[registry]]\nprefix = "old.invalid/team"\nlocation = "registry:5000/suites"\n'
                       '[[registry]]\nprefix = "registry:5000/suites/closed"\nblocked = true\n')
        cluster.run("srun", f"-N{len(cluster.nodes)}", "--container-image=old.invalid/team/base:1", "cat", "/etc/debian_version").good()
        done = cluster.run("srun", "-w", "node01", "--container-image=registry:5000/suites/closed/base:1", "true")
        expect(done.rc != 0 and 'this site does not allow registry "registry:5000"' in done.err, "a blocked prefix", done)
        done = cluster.run("srun", "-w", "node01", "--container-image=registry:5000/suites/base:1", "true")
        expect(done.rc == 0, "another prefix of the same registry", done)
    finally:
        if before is None:
            os.unlink(path)
        else:
            with open(path, "w") as file:
                file.write(before)
        if not existed:
            os.rmdir(directory)
    done = cluster.run("srun", "-w", "node01", "--container-image=old.invalid/team/other:1", "true")
    expect(done.rc != 0 and "old.invalid" in done.err, "the registry that does not exist", done)
