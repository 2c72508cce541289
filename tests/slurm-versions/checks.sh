# Checks for every Slurm version and site. Uses `cluster`, `check`, `image`, `silent_port` and `scratch`.

same() {
    [[ $1 == "$2" ]] || { echo "\"$2\" instead of \"$1\""; return 1; }
}

alice() { cluster as alice "$@"; }
contained() { alice srun --container-image="$image" "$@"; }

# within SECONDS COMMAND...
within() {
    local end=$((${EPOCHREALTIME/./} + $1 * 1000000)) said
    until said=$("${@:2}" 2>&1); do
        [[ ${EPOCHREALTIME/./} -lt $end ]] || { echo "$said"; echo "not within $1 s: ${*:2}"; return 1; }
        sleep 0.05
    done
}

nodes_are_idle() { same $'node01 idle\nnode02 idle' "$(alice sinfo -h -N -o '%N %T')"; }
queue_is_empty() { same '' "$(alice squeue -h)"; }

# --- what a step leaves on the nodes -------------------------------------------------------------------------------

names_of_processes() {
    cluster exec "$1" sh -c 'cat /proc/[0-9]*/comm' 2>/dev/null | grep -vxE 'sh|cat|enter' | sort
}

# Names, mounts, loop devices in use, files in /run; the store is meant to keep what was pulled.
traces() {
    local node
    for node in node01 node02; do
        names_of_processes "$node"
        cluster exec "$node" cut -d' ' -f4- /proc/1/mountinfo
        cluster exec "$node" ls /run/spank-container || true
        loops_of "$node"
    done
}

# The loop devices that serve layers of this node.
loops_of() {
    local layers devices
    layers=$(cluster exec "$1" find /var/lib/spank-container/layers/sha256 -exec stat -c '%i %Hd:%Ld' {} +)
    # It fails if a device of another cluster goes while it looks.
    for _ in {1..9}; do devices=$(losetup --noheadings --list --output BACK-INO,BACK-MAJ:MIN,NAME) && break; done
    awk -v layers="$layers" '
        BEGIN { split(layers, all, "\n"); for (number in all) ours[all[number]] }
        $1 " " $2 in ours { print $3 }' <<<"$devices"
}

is_as_before() { diff "$scratch/before" <(traces); }

# Records the traces when the epilogs have ended and the kernel has removed what the last job had.
record_traces() {
    within 10 no_step && within 10 nodes_are_idle
    for _ in {1..20}; do
        traces >"$scratch/before"
        sleep 0.5
        is_as_before >/dev/null && return
    done
}

# --- checks --------------------------------------------------------------------------------------------------------

help_lists_the_options() {
    local program
    for program in srun sbatch salloc; do
        [[ $(alice "$program" --help) == *--container-image=* ]] || { echo "$program --help has no --container-image"; return 1; }
    done
}

step_runs_as_the_user_on_two_nodes() {
    local wanted='2001 2001 2100 0000000000000000 0000000000000000 1 root:0:0'
    # shellcheck disable=SC2016
    same "$wanted"$'\n'"$wanted" "$(contained -N2 sh -c '
        set -- $(id -u) $(id -G) $(sed -n "s/^CapPrm:\t//p; s/^CapEff:\t//p; s/^NoNewPrivs:\t//p" /proc/self/status)
        test -e /workspace/file && echo "$@" "$(head -n 1 /etc/passwd | cut -d: -f1,3,4)"' 2>/dev/null)"
}

tasks_share_one_namespace() {
    same 8 "$(contained -N1 -n8 readlink /proc/self/ns/mnt | sort | uniq -c | awk '{ print $1 }')"
}

batch_script_runs() {
    # shellcheck disable=SC2016
    printf '#!/bin/sh\n#SBATCH --container-image=%s\ntest -e /workspace/file && echo inside as $(id -u)\nexit 7\n' "$image" |
        alice sh -c 'cat >script; sbatch --quiet --wait -o out script; echo $? >>out'
    same $'inside as 2001\n7' "$(alice cat out)"
}

user_error_is_one_line() {
    local output status=0
    output=$(contained -N1 -n4 --container-mounts=/no/such/source:/mnt true 2>&1) || status=$?
    same 1 "$status" && same 1 "$(grep -c 'spank-container: .*/no/such/source' <<<"$output")" && within 2 nodes_are_idle
}

nodes_with_equal_errors_share_a_line() {
    local output
    output=$(contained -N2 -n4 --container-mounts=/no/such/source:/mnt true 2>&1) && return 1
    same 1 "$(grep -c 'spank-container: ' <<<"$output")" && grep -q 'spank-container: node\[01-02\]: .*/no/such/source' <<<"$output"
}

# The options of the last component are all that Slurm itself carries.
components_have_their_own_containers() {
    # shellcheck disable=SC2016
    same $'inside 0\ninside 1\noutside' "$(alice srun -n1 --container-image="$image" sh -c 'test -e /workspace/file && echo inside 0' : \
        -n1 sh -c 'test -e /workspace/file || echo outside' 2>/dev/null |
        cat - <(alice srun -n1 true : -n1 --container-image="$image" sh -c 'test -e /workspace/file && echo inside $SLURM_PROCID' 2>/dev/null) | sort)"
}

# The task must notice that the agent does not answer.
missing_agent_is_reported() {
    local output status=0
    within 10 nodes_are_idle || return 1 # the job before needs the agent for its epilog
    cluster exec node01 mount -t tmpfs none /usr/libexec/spank-container
    output=$(alice timeout 20 srun -w node01 -n4 --container-image="$image" true 2>&1) || status=$?
    cluster exec node01 umount /usr/libexec/spank-container
    same 1 "$status" && grep -q 'spank-container: .*/agent' <<<"$output" && within 2 nodes_are_idle
}

# Kills the agent while it waits for the registry: the same, but later.
killed_agent_is_reported() {
    start_silent_pull || return 1
    cluster exec node01 pkill -KILL -x agent
    within 2 queue_is_empty && within 2 nodes_are_idle
}

agent_lives_as_long_as_the_step() {
    alice rm -f up
    contained -w node01 --container-mount-home sh -c 'touch /home/alice/up; sleep 2' &
    within 10 alice test -e up && cluster exec node01 pgrep -x agent && wait $! && within 1 no_agent
}

no_agent() { ! cluster exec node01 pgrep -x agent; }
no_step() { no_agent && ! cluster exec node01 pgrep -x slurmstepd && ! cluster exec node02 pgrep -x slurmstepd; }

scancel_ends_running_step() {
    alice rm -f up
    contained -N2 --container-mount-home sh -c 'touch /home/alice/up; exec sleep 100' &
    within 10 alice test -e up || return 1
    # The search for left-overs must be able to find some.
    [[ -n $(loops_of node01) ]] || { echo 'no loop device of the running step was found'; return 1; }
    ! is_as_before >/dev/null || { echo 'no trace of the running step was found'; return 1; }
    alice scancel --user alice
    within 1 queue_is_empty && { wait $! || true; } && within 1 no_agent
}

# A registry that takes connections and never says a word.
start_silent_registry() {
    cluster exec head sh -c "grep -q registry:$silent_port /etc/spank-container/config.toml || printf '[registries.\"registry:$silent_port\"]\ninsecure = true\n' >>/etc/spank-container/config.toml"
    cluster exec head python3 -c "
import socket, time
listener = socket.create_server(('', $silent_port))
time.sleep(1000)" &>/dev/null &
}

start_silent_pull() {
    alice srun -w node01 --container-image="registry:$silent_port/any:1" true &
    within 10 cluster exec node01 pgrep -x import
}

scancel_ends_pull() {
    start_silent_pull || return 1
    alice scancel --user alice
    within 1 queue_is_empty && within 1 is_as_before
}

steps_leave_nothing() { within 3 is_as_before && within 2 nodes_are_idle; }

# The container gets the job's own /tmp as /tmp of the host, and the node never sees it.
private_tmp_can_be_mounted() {
    local marker=marker.$RANDOM
    # shellcheck disable=SC2016
    printf '#!/bin/sh\necho word >/tmp/%s\nsrun --container-image=%s --container-mounts=/tmp:/jobtmp cat /jobtmp/%s\n' $marker "$image" $marker |
        alice sh -c 'cat >script; sbatch --quiet --wait -N1 -o out script'
    same word "$(alice cat out)" && ! cluster exec node01 test -e /tmp/$marker && ! cluster exec node02 test -e /tmp/$marker
}

own_tmp_stays_private() {
    # shellcheck disable=SC2016
    same '' "$(contained -N1 ls -A /tmp)"
}

# From 23.11 on Slurm starts it through a program of its own, whose libraries are not there.
user_task_prolog_runs_inside() {
    alice sh -c 'printf "#!/bin/sh\ntest -e /workspace/file && echo export PROLOG=inside\n" >prolog; chmod 755 prolog'
    # shellcheck disable=SC2016
    same inside "$(contained -N1 --container-mount-home --task-prolog=/home/alice/prolog sh -c 'echo $PROLOG')"
}

task_prolog_runs_on_the_host() {
    # shellcheck disable=SC2016
    cluster exec head sh -c '
        printf "#!/bin/sh\ntest -e /workspace/file || echo export PROLOG=outside\n" >/etc/slurm/task_prolog
        chmod 755 /etc/slurm/task_prolog
        echo TaskProlog=/etc/slurm/task_prolog >>/etc/slurm/slurm.conf
        sed -i "1i task_prolog_on_host = true" /etc/spank-container/config.toml' &&
        cluster restart head && cluster restart node01 && cluster restart node02 && within 10 nodes_are_idle &&
        same outside "$(contained -w node01 sh -c 'echo $PROLOG')"
}

# Open MPI 4.1 with the PMIx 4 of the image, whatever PMIx this Slurm has: the recipe of the cookbook as it is.
open_mpi_of_another_pmix_runs() {
    local layout output recipes=$top/packaging/examples/cookbook
    layout=$("$top/tests/images/build" mpi | tail -n 1) && cluster push "$layout" suites/mpi:1 &&
        mpicc.openmpi -O2 -o "$scratch/pingpong" "$recipes/pingpong.c" || return
    alice sh -c 'cat >pingpong; chmod 755 pingpong' <"$scratch/pingpong"
    alice sh -c 'cat >mpi-hybrid.sbatch' <"$recipes/mpi-hybrid.sbatch"
    alice env IMAGE=registry:5000/suites/mpi:1 sbatch --wait mpi-hybrid.sbatch || true
    output=$(alice sh -c 'cat mpi-hybrid-*.out')
    grep -qE '^ +2097152 +[0-9.]+ +[0-9.]+$' <<<"$output" || { echo "no table of bandwidths: $output"; return 1; }
}

# --- checks of settings ------------------------------------------------------------------------------------------

is_of_settings() { [[ $1 == *linuxproc* || $1 == *pgid* || $1 == *no_* || $1 == *configless* || $1 == *auth_slurm* ]]; }

# A row that is plain by mistake is none.
site_setting_is_in_force() {
    local config
    config=$(alice scontrol show config | sed 's/ *= */=/') || return
    in_config() { grep -qxE "$1" <<<"$config" || { echo "not $1, but $(grep "^${1%%=*}=" <<<"$config")"; return 1; }; }
    [[ $1 != *linuxproc* ]] || in_config ProctrackType=proctrack/linuxproc || return
    [[ $1 != *pgid* ]] || in_config ProctrackType=proctrack/pgid || return
    [[ $1 != *no_contain* ]] || in_config PrologFlags=Alloc || return
    [[ $1 != *no_prolog_flags* ]] || in_config 'PrologFlags=(\(null\))?' || return
    [[ $1 != *configless* ]] || ! cluster exec node01 find /etc/slurm -name '*.conf' | grep . || return
    [[ $1 != *auth_slurm* ]] || { in_config AuthType=auth/slurm && ! cluster exec node01 pgrep -x munged; }
}

# They prove who asks as this site wants it, and find the configuration where this node has it.
slurm_commands_work_inside() {
    # shellcheck disable=SC2016
    same $'alice RUNNING\nnode01' "$(contained -w node01 --container-slurm sh -c '
        squeue -h -j $SLURM_JOB_ID -o "%u %T" && srun --overlap hostname')"
}

# Of a job, as the site has not said global: the second step joins, and the end of the job takes it away.
named_container_persists_between_steps() {
    # shellcheck disable=SC2016
    printf '#!/bin/sh\nsrun --container-image=%s --container-name=kept touch /workspace/mark\nsrun --container-name=kept ls /workspace/mark\n' "$image" |
        alice sh -c 'cat >script; sbatch --quiet --wait -N1 -o out script'
    same /workspace/mark "$(alice cat out)"
}

terminal_is_provided() {
    alice script -qec "srun --pty --container-image=$image sh -c 'test -e /workspace/file && tty'" /dev/null | grep /dev/pts/
}

# slurmd asks for its configuration again, or finds it, and the plugin with it.
steps_run_after_slurmd_restart() {
    cluster restart node01 && within 10 nodes_are_idle && same inside "$(contained -w node01 sh -c 'test -e /workspace/file && echo inside')"
}

# run_checks_of_settings SITE
run_checks_of_settings() {
    start_silent_registry
    check site_setting_is_in_force site_setting_is_in_force "$1"
    check help_lists_the_options help_lists_the_options
    check step_runs_as_the_user_on_two_nodes step_runs_as_the_user_on_two_nodes
    record_traces || true
    check tasks_share_one_namespace tasks_share_one_namespace
    check batch_script_runs batch_script_runs
    check named_container_persists_between_steps named_container_persists_between_steps
    check terminal_is_provided terminal_is_provided
    check slurm_commands_work_inside slurm_commands_work_inside
    check user_error_is_one_line user_error_is_one_line
    check scancel_ends_running_step scancel_ends_running_step
    check scancel_ends_pull scancel_ends_pull
    check steps_run_after_slurmd_restart steps_run_after_slurmd_restart
    check steps_leave_nothing steps_leave_nothing
}

# run_checks VERSION SITE
run_checks() {
    start_silent_registry
    check help_lists_the_options help_lists_the_options
    check step_runs_as_the_user_on_two_nodes step_runs_as_the_user_on_two_nodes
    record_traces || true
    check tasks_share_one_namespace tasks_share_one_namespace
    check batch_script_runs batch_script_runs
    check user_error_is_one_line user_error_is_one_line
    check nodes_with_equal_errors_share_a_line nodes_with_equal_errors_share_a_line
    check components_have_their_own_containers components_have_their_own_containers
    check user_task_prolog_runs_inside user_task_prolog_runs_inside
    check missing_agent_is_reported missing_agent_is_reported
    check killed_agent_is_reported killed_agent_is_reported
    check agent_lives_as_long_as_the_step agent_lives_as_long_as_the_step
    check scancel_ends_running_step scancel_ends_running_step
    check scancel_ends_pull scancel_ends_pull
    if [[ $2 == *job_container* ]]; then
        check private_tmp_can_be_mounted private_tmp_can_be_mounted
        check own_tmp_stays_private own_tmp_stays_private
    fi
    check steps_leave_nothing steps_leave_nothing
    [[ $1 != 2[24].* ]] || check open_mpi_of_another_pmix_runs open_mpi_of_another_pmix_runs
    check task_prolog_runs_on_the_host task_prolog_runs_on_the_host
}
