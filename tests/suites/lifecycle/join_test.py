"""Options that a running container cannot fulfil for a joining step are refused or reported, never
ignored."""
from functools import partial

from harness import add, equal, expect, same_as_golden, test
from named_test import run, start
from plugstack import plugstack
from pyxis_test import lines_of

MADE = {"plain": (), "other": ("--container-unshare=ipc,uts", "--container-remap-root", "--container-readonly", "--container-tmpfs-size=9M")}
REFUSED = {
    "own_network": ("plain", "--container-unshare=net"),
    "own_shared_memory": ("plain", "--container-unshare=ipc"),
    "own_host_name": ("plain", "--container-unshare=uts"),
    "own_processes": ("plain", "--container-unshare=pid"),
    "additional_namespaces": ("other", "--container-unshare=ipc,net"),
    "remapped_root": ("plain", "--container-remap-root"),
    "no_remapped_root": ("other", "--no-container-remap-root"),
    "read_only_root": ("plain", "--container-readonly"),
    "writable_root": ("other", "--container-writable"),
    "different_size": ("other", "--container-tmpfs-size=8M"),
}
SAID = {
    "empty_home": ("plain", "--container-contain"),
    "no_home": ("plain", "--no-container-mount-home"),
    "ssh": ("plain", "--container-ssh"),
    "gpu": ("plain", "--container-gpu"),
    "no_gpu": ("plain", "--no-container-gpu"),
    "device": ("plain", "--container-device=example.com/none=x"),
    "mpi": ("plain", "--container-mpi=image"),
    "platform": ("plain", "--container-platform=linux/amd64"),
}


class Running:
    """A container of this name that runs for a while."""

    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, f"join-{name}"
        self.step = start(cluster, self.name, "echo up; sleep 60", "-J", self.name, *MADE[name], image="base")

    def __enter__(self):
        self.step.await_text("up")
        return self.name

    def __exit__(self, *_):
        self.cluster.run("scancel", "-n", self.name)
        self.step.end()
        run(self.cluster, f"{self.name}:replace", "true", image="base")


def in_both_words(title, rc, made, option, cluster):
    with Running(cluster, made) as name:
        own = run(cluster, name, "true", option)
        with plugstack(cluster, "messages=pyxis"):
            theirs = run(cluster, name, "true", option)
    equal((own.rc, theirs.rc), (rc, rc), "exit codes", theirs)
    said = [line for line in (lines_of(own) + lines_of(theirs)).splitlines(True) if "using container" not in line]
    same_as_golden(title, "".join(said), theirs)


for title, (made, option) in REFUSED.items():
    add(__name__, f"join_with_{title}_is_refused", partial(in_both_words, title, 1, made, option))
for title, (made, option) in SAID.items():
    add(__name__, f"join_with_{title}_is_reported_as_ineffective", partial(in_both_words, title, 0, made, option))


@test
def join_with_options_of_first_step_is_accepted(cluster):
    for made, options in MADE.items():
        with Running(cluster, made) as name:
            done = run(cluster, name, "true", *options)
            done.good()
            equal([line for line in done.messages() if not line.startswith("using ")], [], "messages", done)
    with Running(cluster, "other") as name:
        done = run(cluster, name, "id -u", "--container-unshare=ipc")
        equal(done.good(), "0", "who it is", done)
        expect(all(line.startswith("using ") for line in done.messages()), "something was said", done)
