#!/bin/bash
# Brings a job's image to its nodes as soon as it gets them, before its script has started a step: an example for Slurm's Prolog.
#
# slurm.conf: "Prolog=/etc/slurm/prolog-prefetch.sh" and "PrologFlags=Alloc"; config.toml with [shared] or a mirror: there is no srun yet by
# which nodes could find each other, so without them each node pulls for itself.
#
# Public images only: nobody is there to show the user's credentials. A step that starts meanwhile waits for the same layers.
# SPANK_SCONTAINER_IMAGE is what sbatch or salloc was given as --container-image, written by the user: only names of images in registries
# are taken, no paths and no other kinds of images, which root would read.
PATH=/usr/local/bin:/usr/bin:/bin
image=${SPANK_SCONTAINER_IMAGE-}
[[ $image =~ ^[A-Za-z0-9][A-Za-z0-9._/@:-]*$ && $image != *:/* && ! $image =~ ^(oci|oci-archive|docker-archive|dockerd|podman): ]] || exit 0

# slurmd waits for the prolog, not for this, and kills what is left of the prolog's process group: so it begins in a session of its own.
# It ends in ten minutes, whatever the registry does.
exec setsid --wait bash -c 'timeout 600 scontainer pull --quiet "$1" </dev/null >/dev/null 2>&1 &' prefetch "$image"
