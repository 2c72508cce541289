#!/bin/sh
# Brings the image of a job that is submitted into the shared store while the job waits: an example for pull_at_submit in config.toml,
# for public images. spank-container has no set-user-ID program, and users cannot write to the shared store; sudo lets them have
# one thing done there, by name: what their jobs' nodes would pull anyway.
#
# On each host where users submit jobs:
#   1. Install spank-container and config.toml of the nodes, with [shared]; mount the shared store's file system. slurmd is not needed.
#   2. This file: /etc/spank-container/pull-at-submit, root's, mode 0755. config.toml: [shared], pull_at_submit = "/etc/spank-container/pull-at-submit".
#   3. /etc/sudoers.d/spank-container, in one line; sudo keeps no variable of the user's by default, and must keep none here:
#      ALL ALL=(spank-container) NOPASSWD: /usr/bin/scontainer pull --quiet --shared --pull=missing -- *
#
# Users can thereby fill the store up to max_size with images of the registries that this site allows, as their jobs can. They can also
# delay an image by 30 s: after that time nodes that wait for a stalled pull fetch the image themselves.
#
# One at a time for each user and image; one that is there costs a question to the registry.

export LC_ALL=C  # A-Z are these letters only
image=$1
[ ${#image} -le 512 ] || exit 2
case $image in
  "" | -* | *[!A-Za-z0-9._:/@-]*) exit 2 ;;
esac
pulls=${XDG_RUNTIME_DIR:-$HOME/.cache}/spank-container-pulls
mkdir -p "$pulls" && exec 9>"$pulls/$(printf %s "$image" | tr / +)" && flock -n 9 || exit 0
exec timeout 3600 sudo -n -u spank-container /usr/bin/scontainer pull --quiet --shared --pull=missing -- "$image"
