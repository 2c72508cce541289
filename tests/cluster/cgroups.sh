# cgroup v1 directories of a cluster: made below the caller's own, so that nothing escapes the limits the caller has.

# Prints "CONTROLLERS MOUNT-POINT" of every v1 hierarchy; CONTROLLERS as in /proc/PID/cgroup.
cgroup_hierarchies() {
    local controllers where
    while IFS=: read -r _ controllers _; do
        [[ -n $controllers ]] || continue
        where=$(awk -v wanted="$controllers" '$3 == "cgroup" && index("," $4 ",", "," wanted ",") { print $2; exit }' /proc/self/mounts)
        [[ -z $where ]] || echo "$controllers $where"
    done </proc/self/cgroup
}

has_cgroup_v1() {
    local found controller
    found=,$(cgroup_hierarchies | cut -d' ' -f1 | paste -sd,),
    for controller in freezer devices memory cpuset; do
        [[ $found == *,$controller,* ]] || return 1
    done
}

# Moves the calling (sub)shell into a directory below its own, in every hierarchy.
enter_new_cgroup() {
    local controllers where own
    while read -r controllers where; do
        own=$(sed -n "s/^[0-9]*:$controllers://p" "/proc/$BASHPID/cgroup")
        make_cgroup "$where${own%/}" "$1"
        echo "$BASHPID" >"$where${own%/}/$1/cgroup.procs"
    done < <(cgroup_hierarchies)
}

# A cpuset accepts no process before it has processors and memory.
make_cgroup() {
    local directory=$1 part file
    for part in ${2//\// }; do
        mkdir -p "$directory/$part"
        for file in cpuset.cpus cpuset.mems; do
            [[ ! -e $directory/$file ]] || cat "$directory/$file" >"$directory/$part/$file"
        done
        directory=$directory/$part
    done
}

cgroup_directories() {
    find /sys/fs/cgroup -type d -name "$1" 2>/dev/null
}

pids_in() {
    local top
    cgroup_directories "$1" | while read -r top; do
        find "$top" -name cgroup.procs -exec cat {} + 2>/dev/null
    done | sort -un
}

# Kills what is in a cluster's directories and removes them. A frozen process does not die before it is thawed.
end_cgroups() {
    local deadline=$((SECONDS + 10)) pids tops
    tops=$(cgroup_directories "$1")
    [[ -n $tops ]] || return 0
    while pids=$(pids_in "$1") && [[ -n $pids ]]; do
        ((SECONDS < deadline)) || return 1
        thaw "$1"
        # shellcheck disable=SC2086
        kill -KILL $pids 2>/dev/null || true
        sleep 0.02
    done
    until remove_cgroups "$1"; do
        ((SECONDS < deadline)) || return 1
        sleep 0.02
    done
}

thaw() {
    local top state_file
    cgroup_directories "$1" | while read -r top; do
        find "$top" -name freezer.state 2>/dev/null | while read -r state_file; do
            echo THAWED >"$state_file" 2>/dev/null || true
        done
    done
}

remove_cgroups() {
    local top
    cgroup_directories "$1" | while read -r top; do
        find "$top" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    [[ -z $(cgroup_directories "$1") ]]
}
