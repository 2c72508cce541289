"""Settings that every container takes from its node, under the names of enroot's hooks:
10-localtime, 10-shadow, 10-aptfix."""
import os
import re

from images import Image
from harness import equal, expect, test
from remap_test import REMAP, apt_image
from site_files import rules

QUICK = True

ZONES = "/usr/share/zoneinfo"


class Zone:
    """A temporary time zone of the nodes, which share their /etc."""

    def __init__(self, cluster, zone):
        self.path, self.target = os.path.join(cluster.etc, "localtime"), zone

    def __enter__(self):
        self.before = os.readlink(self.path) if os.path.islink(self.path) else None
        if os.path.lexists(self.path):
            os.rename(self.path, self.path + ".before")
        if self.target.startswith("/"):
            os.symlink(self.target, self.path)
        else:
            with open(self.path, "wb") as file:
                file.write(open(f"{ZONES}/{self.target}", "rb").read())

    def __exit__(self, *_):
        os.unlink(self.path)
        if os.path.lexists(self.path + ".before"):
            os.rename(self.path + ".before", self.path)


def notes(done, hook):
    return [line.split(": ", 2)[2] for line in done.messages() if re.match(f"hook: +{hook}: ", line)]


@test
def time_zone_is_taken_from_the_node(cluster):
    """The base image has no zone files."""
    with Zone(cluster, f"{ZONES}/Asia/Kolkata"):
        done = cluster.bash("date +%z; readlink /etc/localtime; head -c4 /usr/share/zoneinfo/Asia/Kolkata")
        equal(done.good().split(), ["+0530", "../usr/share/zoneinfo/Asia/Kolkata", "TZif"], "zone", done)
    with Zone(cluster, "Asia/Kolkata"):  # a file, not a link
        cluster.bash("date +%z; test -L /etc/localtime || echo file").good("+0530\nfile")


@test
def time_zone_known_to_the_image_is_kept(cluster):
    zone = open(f"{ZONES}/Asia/Tokyo", "rb").read()
    image = Image("suites/zone", [[("usr/share/zoneinfo/Asia/Kolkata", zone)]], {"Env": ["PATH=/usr/bin:/bin"]}, below=cluster.base_layout)
    with Zone(cluster, f"{ZONES}/Asia/Kolkata"):
        cluster.bash("date +%z", image=image).good("+0900")


@test
def time_zone_of_read_only_container_is_taken_from_the_node(cluster):
    with Zone(cluster, f"{ZONES}/Asia/Kolkata"):
        cluster.bash("date +%z", "--container-readonly").good("+0530")


@test
def time_zone_hook_disabled_keeps_the_image_zone(cluster):
    with Zone(cluster, f"{ZONES}/Asia/Kolkata"), rules(cluster, 'hooks_off = ["10-localtime"]\n'):
        cluster.bash("date +%z").good("+0000")


@test
def passwd_hook_disabled_keeps_passwd_and_group(cluster):
    show = "cat /etc/passwd /etc/group | grep -c -e alice -e rigteam || true"
    equal(cluster.bash(show).good(), "3", "lines")
    with rules(cluster, 'hooks_off = ["10-shadow"]\n'):
        equal(cluster.bash(show).good(), "0", "lines")


@test
def apt_hook_disabled_keeps_apt_settings(cluster):
    look = "ls /etc/apt/apt.conf.d/90spank-container 2>/dev/null || echo none"
    cluster.bash(look, REMAP, image=apt_image(cluster)).good("/etc/apt/apt.conf.d/90spank-container")
    cluster.bash(look, image=apt_image(cluster)).good("none")
    with rules(cluster, 'hooks_off = ["10-aptfix"]\n'):
        cluster.bash(look, REMAP, image=apt_image(cluster)).good("none")


@test
def explain_lists_files_from_the_node(cluster):
    with Zone(cluster, f"{ZONES}/Asia/Kolkata"):
        done = cluster.srun("--container-explain=all", "true")
    equal(notes(done, "10-localtime"), ["the time zone is the node's, Asia/Kolkata"], "zone", done)
    equal(notes(done, "10-shadow"), ["entries of alice and the user's groups are added to /etc/passwd and /etc/group"], "user", done)
    with rules(cluster, 'hooks_off = ["10-localtime", "10-shadow"]\n'):
        done = cluster.srun("--container-explain=all", "true")
    equal(notes(done, "10-localtime") + notes(done, "10-shadow"), [], "notes of hooks that are off", done)


@test
def verbose_lists_findings_of_hooks(cluster):
    done = cluster.srun("--container-verbose", "true")
    expect(any("hook 10-shadow: entries of alice" in line for line in done.messages()), "no word of it", done)
