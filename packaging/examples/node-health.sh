#!/bin/sh
# HealthCheckProgram of slurm.conf: slurmd runs it as root, without arguments. Status 1: no job can start a container here.
# Status 3, warnings only, does not drain; neither does a program that is missing or too old (127, 2). Undrain by hand.
why=$(timeout 30 scontainer doctor --node --quiet 2>&1)
[ $? -ne 1 ] || scontrol update NodeName="${SLURMD_NODENAME:-$(hostname -s)}" State=DRAIN \
    Reason="containers: $(printf '%s\n' "$why" | grep -v 'warning: ' | head -n 1)"
