# Files of the cluster's machines in /etc and /home. Uses the variables `cluster` sets: state, stage, root, gpus, pretended,
# nodes, configless, munge, slurm_lines, slurm_files, plugstack_lines.

readonly network=10.77.0

# /etc is the host's (or the given root's), then the stage's, then what a cluster needs. All machines share it, and tests may change it.
write_etc() {
    local etc=$state/etc
    cp -a "$root/etc/." "$etc"
    [[ -z $stage || ! -d $stage/etc ]] || cp -a --no-preserve=ownership "$stage/etc/." "$etc/"
    write_users "$etc"
    write_hosts >"$etc/hosts"
    rm -f "$etc/resolv.conf" "$etc/hostname"
    touch "$etc/resolv.conf" "$etc/hostname"
    write_munge_key "$etc/munge"
    rm -rf "$etc/slurm"
    mkdir "$etc/slurm"
    write_slurm_conf >"$etc/slurm/slurm.conf"
    write_cgroup_conf >"$etc/slurm/cgroup.conf"
    write_gres_conf >"$etc/slurm/gres.conf"
    write_plugstack_conf >"$etc/slurm/plugstack.conf"
    [[ ${#slurm_files[@]} == 0 ]] || install -m 644 "${slurm_files[@]}" "$etc/slurm/"
    mkdir "$state/etc-slurm-of-nodes"
    [[ $munge ]] || write_slurm_key "$etc/slurm" "$state/etc-slurm-of-nodes"
}

# carol has a name on the head only, as at sites whose nodes know no users; slurmctld has to know all of them.
write_users() {
    local etc=$1 file
    for file in passwd group; do
        grep -Ev '^(alice|bob|carol|rigteam|spank-container):|^[^:]*:[^:]*:(2001|2002|2003|2100|998):' "/etc/$file" >"$etc/$file"
    done
    cat >>"$etc/passwd" <<END
alice:x:2001:2001:Alice:/home/alice:/bin/bash
bob:x:2002:2002:Bob:/home/bob:/bin/bash
spank-container:x:998:998:spank-container image importer:/nonexistent:/usr/sbin/nologin
END
    cat >>"$etc/group" <<END
alice:x:2001:
bob:x:2002:
rigteam:x:2100:alice,bob
spank-container:x:998:
END
    (umask 077 && sed 's/:.*/:*:19000:0:99999:7:::/' "$etc/passwd" >"$etc/shadow.new" && mv "$etc/shadow.new" "$etc/shadow")
    cp "$etc/passwd" "$state/machines/head/passwd"
    echo "carol:x:2003:2003:Carol:/home/carol:/bin/bash" >>"$state/machines/head/passwd"
    rm -f "$etc"/{passwd,group,shadow,gshadow}- "$etc/gshadow"
}

make_homes() {
    mkdir -p "$state"/home/{alice,bob,carol,shared}
    chown 2001:2001 "$state/home/alice"
    chown 2002:2002 "$state/home/bob"
    chown 2003:2003 "$state/home/carol"
    chmod 750 "$state"/home/{alice,bob,carol}
    chmod 1777 "$state/home/shared"
}

write_hosts() {
    echo "127.0.0.1 localhost"
    echo "$network.1 head registry"
    for ((number = 1; number <= nodes; number++)); do
        printf '%s.%d node%02d\n' "$network" $((10 + number)) "$number"
    done
}

write_munge_key() {
    rm -rf "$1"
    install -d -m 700 -o munge -g munge "$1"
    (umask 077 && head -c 1024 /dev/urandom >"$1/munge.key")
    chown munge:munge "$1/munge.key"
}

# Writes the key that auth/slurm needs on every machine, also on one without a configuration.
write_slurm_key() {
    (umask 077 && head -c 1024 /dev/urandom >"$1/slurm.key")
    chown slurm:slurm "$1/slurm.key"
    cp -p "$1/slurm.key" "$2/"
}

# 64 pretended processors by default, so that tests can run many tasks: hence neither ConstrainCores nor task/affinity, which want real
# ones. 1 TiB of pretended memory, so that 64 jobs fit on a node and yet `srun --mem` makes a limit.
write_slurm_conf() {
    local lines line
    lines=$(generate_slurm_conf)
    for line in ${slurm_lines[@]+"${slurm_lines[@]}"}; do
        case $line in
            NodeName=* | PartitionName=*) ;;
            *) lines=$(grep -iv "^${line%%=*}=" <<<"$lines") ;;
        esac
        [[ $line == *= ]] || lines+=$'\n'$line
    done
    echo "$lines"
}

generate_slurm_conf() {
    cat <<END
ClusterName=test
SlurmctldHost=head
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerNode=16384
PrologFlags=Alloc,Contain
MpiDefault=none
PropagateResourceLimitsExcept=MEMLOCK
SlurmdParameters=config_overrides$([[ ! $configless ]] || printf '\nSlurmctldParameters=enable_configless')
ReturnToService=2
KillWait=5
MessageTimeout=$(message_timeout)
UnkillableStepTimeout=$(unkillable_step_timeout)
MaxStepCount=100000
GresTypes=gpu
NodeName=node[01-0$nodes] CPUs=$pretended RealMemory=1048576$( ((gpus == 0)) || echo " Gres=gpu:fake:$gpus") State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
}

# The year in Slurm's version.
slurm_year() {
    in_root slurmd -V | grep -oE '[0-9]+' | head -n 1
}

# slurmd 22.05 gives a job's prolog up, and drains the node, when others have ended twice as many times as this has seconds
# (_wait_for_request_launch_prolog counts what wakes it, not seconds). A node starts up to 64 jobs at once.
message_timeout() {
    if [[ $(slurm_year) -ge 24 ]]; then echo 10; else echo 35; fi
}

# Slurm 24.11 and later want five times MessageTimeout.
unkillable_step_timeout() {
    if [[ $(slurm_year) -ge 24 ]]; then echo 50; else echo 5; fi
}

write_cgroup_conf() {
    [[ $(slurm_year) -le 20 ]] || echo CgroupPlugin=cgroup/v1
    cat <<END
CgroupMountpoint=/sys/fs/cgroup
ConstrainCores=no
ConstrainDevices=yes
ConstrainRAMSpace=yes
END
}

write_gres_conf() {
    ((gpus == 0)) || echo "Name=gpu Type=fake File=/dev/nvidia$( ((gpus == 1)) && echo 0 || echo "[0-$((gpus - 1))]")"
}

# The staged plugin is loaded by its path, wherever the stage has it, unless a given line names it.
write_plugstack_conf() {
    local plugin=''
    if [[ $stage && "${plugstack_lines[*]-}" != *spank_container.so* ]]; then
        plugin=$(find "$stage/usr" -name spank_container.so | head -n 1)
    fi
    [[ -z $plugin ]] || echo "required ${plugin#"$stage"}"
    [[ ${#plugstack_lines[@]} == 0 ]] || printf '%s\n' "${plugstack_lines[@]}"
}
