"""What a step that joins a running container asks for, and the container does not have, is refused or said; never ignored."""
from functools import partial

from harness import add, equal, expect, same_as_golden, test
from named_test import run, start
from plugstack import plugstack
from pyxis_test import lines_of

MADE = {"plain": (), "other": ("--container-unshare=ipc,uts", "--container-remap-root", "--container-readonly", "--container-tmpfs-size=9M")}
REFUSED = {
    "a_network_of_its_own": ("plain", "--container-unshare=net"),
    "shared_memory_of_its_own": ("plain", "--container-unshare=ipc"),
    "a_host_name_of_its_own": ("plain", "--container-unshare=uts"),
    "processes_of_its_own": ("plain", "--container-unshare=pid"),
    "more_namespaces_than_there_are": ("other", "--container-unshare=ipc,net"),
    "remapped_root": ("plain", "--container-remap-root"),
    "no_remapped_root": ("other", "--no-container-remap-root"),
    "a_read_only_root": ("plain", "--container-readonly"),
    "a_writable_root": ("other", "--container-writable"),
    "another_size": ("other", "--container-tmpfs-size=8M"),
}
SAID = {
    "an_empty_home": ("plain", "--container-contain"),
    "no_home": ("plain", "--no-container-mount-home"),
    "a_gpu": ("plain", "--container-gpu"),
    "no_gpu": ("plain", "--no-container-gpu"),
    "a_device": ("plain", "--container-device=example.com/none=x"),
    "an_mpi": ("plain", "--container-mpi=image"),
    "a_platform": ("plain", "--container-platform=linux/amd64"),
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
    same_as_golden(title, lines_of(own) + lines_of(theirs), theirs)


for title, (made, option) in REFUSED.items():
    add(__name__, f"{title}_is_refused_to_who_joins", partial(in_both_words, title, 1, made, option))
for title, (made, option) in SAID.items():
    add(__name__, f"{title}_is_said_to_change_nothing_for_who_joins", partial(in_both_words, title, 0, made, option))


@test
def the_same_options_as_of_the_first_step_are_accepted(cluster):
    for made, options in MADE.items():
        with Running(cluster, made) as name:
            done = run(cluster, name, "true", *options)
            done.good()
            equal(done.messages(), [], "messages", done)
    with Running(cluster, "other") as name:
        done = run(cluster, name, "id -u", "--container-unshare=ipc")
        equal(done.good(), "0", "who it is", done)
        expect(not done.messages(), "something was said", done)
