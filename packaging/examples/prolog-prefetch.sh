#!/bin/bash
# Brings a job's image to its nodes as soon as it gets them, before its script has started a step: an example for Slurm's Prolog.
#
# slurm.conf: "Prolog=/etc/slurm/prolog-prefetch.sh" and "PrologFlags=Alloc"; config.toml with [shared] or a mirror: there is no srun yet by
# which nodes could find each other, so without them each node pulls for itself.
#
# Public images only: there is no user process with credentials. A step that starts meanwhile waits for the same layers.
# SPANK_SCONTAINER_IMAGE is the argument of --container-image, chosen by the user: only registry images are accepted, no paths or other
# kinds of images, which root would read. The pull is not in the job's cgroups and can outlive the job; it is limited by [store] and
# allowed_registries in config.toml, but not by allowed_images, which is checked when a container starts.
PATH=/usr/local/bin:/usr/bin:/bin
export LC_ALL=C  # A-Z are these letters only
image=${SPANK_SCONTAINER_IMAGE-}
[[ ${#image} -le 512 && $image =~ ^[A-Za-z0-9][A-Za-z0-9._/@:-]*$ && $image != *:/* && ! $image =~ ^(oci|oci-archive|docker-archive|dockerd|podman): ]] || exit 0

# slurmd kills the prolog's process group when the prolog ends, so the pull starts in its own session. It ends after ten minutes at most.
exec setsid --wait bash -c 'timeout 600 scontainer pull --quiet -- "$1" </dev/null >/dev/null 2>&1 &' prefetch "$image"
