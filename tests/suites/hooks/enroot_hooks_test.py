"""enroot's shell hooks run unchanged: in its order, with its variables and tools, and with the
container's root before the pivot."""
import os
import shutil

import local_files
from cleanup_test import back_in_order, cancel, stepds
from cluster import kill_all
from command import await_true
from harness import equal, expect, test
from site_files import Files

IMAGE = "--container-image=registry:5000/suites/base:1"
ON = {"spank-container/config.d/50-test.toml": "enroot_compat = true\nhook_timeout = 5\n"}
HEAD = '#! /usr/bin/env bash\nset -euo pipefail\nshopt -s lastpipe\nsource "${ENROOT_LIBRARY_PATH}/common.sh"\n'


class Hooks(Files):
    """The site's configuration with these hooks: name → text after HEAD."""

    def __init__(self, cluster, hooks, directory="enroot", config=None):
        scripts = {f"{directory}/hooks.d/{name}": HEAD + text for name, text in hooks.items()}
        super().__init__(cluster, {**(config or ON), **scripts})
        self.scripts = scripts

    def __enter__(self):
        made = super().__enter__()
        for script in self.scripts:
            os.chmod(made.path(script), 0o755)
        return made


def step(cluster, script, *options, **more):
    return cluster.run("srun", "-w", "node01", *options, IMAGE, "sh", "-c", script, **more)


@test
def hooks_run_in_enroot_order_and_change_root_and_environment(cluster):
    hooks = {
        "20-second.sh": 'echo second >> "${ENROOT_ROOTFS}/order"\necho "OF_HOOK=two" >> "${ENROOT_ENVIRON}"\n',
        "10-first.sh": 'echo first > "${ENROOT_ROOTFS}/order"\necho OF_HOOK=one >> "${ENROOT_ENVIRON}"\n'
                       'printf "  QUOTED=\\"a b\\"\\n# c\\nENROOT_NO=1\\nno line\\n" >> "${ENROOT_ENVIRON}"\n',
    }
    with Hooks(cluster, hooks):
        done = step(cluster, 'cat /order; echo "$OF_HOOK/$QUOTED/${ENROOT_NO-unset}"; stat -c %U /order', "-n2")
        done.good()
        equal(sorted(done.out.splitlines()), sorted(["first", "second", "two/a b/unset", "alice"] * 2), "output", done)
    step(cluster, 'test ! -e /order; echo "${OF_HOOK-unset}"').good("unset")


@test
def hook_gets_enroot_variables_but_none_that_load_code(cluster):
    text = """
    test "$(id -un)" = alice; test "$PWD" = "$(cd "$SLURM_SUBMIT_DIR"; pwd -P)"
    for name in ENROOT_PID ENROOT_ROOTFS ENROOT_ENVIRON ENROOT_MOUNTS ENROOT_RUNTIME_PATH ENROOT_SYSCONF_PATH ENROOT_CONFIG_PATH \\
        ENROOT_DATA_PATH ENROOT_CACHE_PATH ENROOT_TEMP_PATH ENROOT_LIBRARY_PATH ENROOT_ROOTFS_WRITABLE SLURM_JOB_ID SLURM_STEP_ID; do
        [ -n "${!name-}" ] || common::err "${name} is not set"
    done
    for name in LD_X BASH_ENV ENV GCONV_PATH GLIBC_TUNABLES SLURM_PROCID SLURM_LOCALID ENROOT_REMAP_ROOT ENROOT_OFF; do
        [ -z "${!name-}" ] || common::err "${name} is set"
    done
    test "$ENROOT_SQUASH_OPTIONS" = "-comp zstd"; test "$OF_JOB" = yes
    kill -0 "$ENROOT_PID"; grep -q '^FROM_IMAGE=' "$ENROOT_ENVIRON" || grep -q ^PATH= "$ENROOT_ENVIRON"
    test -d "$ENROOT_ROOTFS/proc/self" -a -c "$ENROOT_ROOTFS/dev/null" -a -d "$ENROOT_ROOTFS/sys/class"
    grep -q '^CapEff:.0*$' /proc/self/status; grep -q '^NoNewPrivs:.1$' /proc/self/status
    ! ls "$(dirname "$ENROOT_ROOTFS")" 2> /dev/null; ! ls "$(dirname "$ENROOT_ROOTFS")/writable" 2> /dev/null
    """
    conf = {"enroot/enroot.conf": 'ENROOT_SQUASH_OPTIONS "-comp zstd"\nENROOT_OFF no\n'}
    with Hooks(cluster, {"a.sh": text}, config={**ON, **conf}):
        env = ["OF_JOB=yes", "LD_X=1", "BASH_ENV=/nowhere", "ENV=/nowhere", "GCONV_PATH=/nowhere", "GLIBC_TUNABLES=x"]
        step(cluster, "true", env=env).good()


@test
def enroot_mount_program_mounts_like_enroot(cluster):
    local_files.put(os.path.join(cluster.shared, "of hook/file"), "of the host\n")
    text = r"""
    enroot-mount --root "${ENROOT_ROOTFS}" - << EOF
# a comment

/home/shared/of\040hook /opt/a none x-create=dir,bind,ro,nosuid,nodev,noexec,private 0 0
/home/shared/of\040hook/file /opt/b/file none x-create=file,bind
/home/shared/of\040hook/file /opt/auto none x-create=auto,rbind
tmpfs /opt/t tmpfs x-create=dir,rw,nosuid,noexec,size=1m,mode=711
/home/shared/missing /opt/missing none x-create=dir,bind,nofail,silent
/home/shared/missing /opt/missing none x-create=dir,bind,nofail
/home/shared/of\040hook /opt/later none x-create=dir,bind 0 -1
EOF
    test -e "${ENROOT_ROOTFS}/opt/a/file"; test ! -e "${ENROOT_ROOTFS}/opt/later"
    echo of hook > "${ENROOT_RUNTIME_PATH}/conf"
    printf '%s /etc/of-hook.conf none x-create=file,bind,ro\n' "${ENROOT_RUNTIME_PATH}/conf" >> "${ENROOT_MOUNTS}"
    echo "/home/shared/of\\040hook x-create=dir,bind,nosuid" >> "${ENROOT_MOUNTS}"
    echo "/home/shared/of\\040hook /opt/two" >> "${ENROOT_MOUNTS}"
    enroot-mount --root "${ENROOT_ROOTFS}" - <<< "none /sys/fs/cgroup none bind,remount,nosuid,noexec,nodev,ro,nofail"
    ln -s /opt/auto "${ENROOT_ROOTFS}/opt/link"
    enroot-mount --root "${ENROOT_ROOTFS}" - <<< "/dev/null /opt/link none bind"
    ! enroot-mount --root "${ENROOT_ROOTFS}" - <<< "/dev/null /../../etc/x none x-create=file,bind" 2> "${ENROOT_ROOTFS}/climb"
    """
    script = ("cat /opt/a/file /opt/b/file /etc/of-hook.conf '/home/shared/of hook/file' /opt/two/file; cat /opt/auto; "
              "touch /opt/a/x 2> /dev/null || echo read-only; stat -c '%a %U' /opt/t; touch /opt/t/x; df -k /opt/t | tail -1 | "
              "awk '{print $2}'; test -e /opt/missing/x || echo missing; cat /climb")
    with Hooks(cluster, {"a.sh": text}):
        done = step(cluster, script, "-v")
        done.good()
        lines = done.out.splitlines()
        equal(lines[:9], ["of the host"] * 2 + ["of hook"] + ["of the host"] * 2 + ["read-only", "711 alice", "1024", "missing"],
              "output", done)
        expect("Invalid cross-device link" in lines[9], "climbing out is not named", done)


def refused(cluster, hook, *words, **more):
    """Checks that the step with this hook fails with these words and leaves nothing behind."""
    with Hooks(cluster, {"50-it.sh": hook}, **more):
        done = step(cluster, "echo came in")
    expect(done.rc != 0 and "came in" not in done.out, "the step has run", done)
    for word in words:
        expect(word in done.err, f"{word!r} is not said", done)
    return done


@test
def failing_hook_fails_the_step_with_its_message(cluster):
    done = refused(cluster, "echo why >&2\ncommon::err 'not like this'\n", "hook 50-it: why", "hook 50-it: [ERROR] not like this",
                   "hook 50-it: ", "/hooks.d/50-it.sh exited with return code 1")
    expect("exited with return code 1" in done.messages()[-1] or any("return code 1" in line for line in done.messages()),
           "the reason is no message", done)
    refused(cluster, "kill -9 $$\n", "50-it.sh was killed by signal 9")
    refused(cluster, "sleep 60 & sleep 60\n", "50-it.sh took longer than 5 seconds (hint: raise hook_timeout in config.toml")
    refused(cluster, "echo nonsense >> ${ENROOT_MOUNTS}\n", "invalid fstab entry", "return code 1")
    with Hooks(cluster, {"a.sh": ""}) as files:
        with open(files.path("enroot/hooks.d/a.sh"), "w") as file:
            file.write("#!/no/such/program\n")
        done = step(cluster, "echo came in")
    expect(done.rc != 0 and 'hook a: execute "/etc/enroot/hooks.d/a.sh": no such file' in done.err, "is not said", done)


@test
def hook_output_is_capped_and_escaped(cluster):
    flood = "head -c 5000000 /dev/zero | tr '\\0' x >&2\nprintf 'red \\033[31m\\377\\n' >&2; { yes || :; } | head -c 5000000 >&2; echo out\n"
    with Hooks(cluster, {"a.sh": "printf '\\033[31m\\n' >&2\n" + flood}):
        done = step(cluster, "echo done")
    done.good("done")
    expect(len(done.err) < 20000 and "\033" not in done.err and "\\x1b[31m" in done.err, "it is not capped and escaped", done)


@test
def hooks_have_only_the_rights_of_the_user(cluster):
    hook = r"""
    root=${ENROOT_ROOTFS}
    ln -s /etc "${root}/opt-etc"; ln -s ../../../../../../../etc "${root}/up-etc"
    for target in /opt-etc/of-hook /up-etc/of-hook; do
        enroot-mount --root "${root}" - <<< "/dev/null ${target} none x-create=file,bind"
        test -e "${root}/etc/of-hook"; test ! -e /etc/of-hook
    done
    enroot-mount --root / - <<< "tmpfs /mnt tmpfs nofail"                # of this namespace alone
    ! umount /proc 2> /dev/null; ! umount "${root}/proc" 2> /dev/null; ! umount -l / 2> /dev/null
    ! mount -t tmpfs none /mnt 2> /dev/null
    ! enroot-mount --root "${root}" - <<< "none /proc none x-detach" 2> /dev/null
    ! enroot-mount --root "${root}" - <<< "${root}/proc /opt none x-move" 2> /dev/null
    ! enroot-mount --root "${root}" - <<< "server:/x /opt nfs rw" 2> /dev/null
    ! enroot-mount --root "${root}" - <<< "/root/.ssh /opt none bind" 2> /dev/null
    ! enroot-mount --root "${root}" - <<< "/etc/shadow /opt/s none x-create=file,bind" || ! cat "${root}/opt/s" 2> /dev/null
    ln -s / "${root}/to-root"
    for target in / /to-root; do
        if enroot-mount --root "${root}" - <<< "/home/shared ${target} none bind" 2> /dev/null; then echo covered; exit 9; fi
    done
    cp /usr/bin/id "${root}/suid"; chmod 4755 "${root}/suid"
    enroot-mount --root "${root}" - <<< "/usr/bin /opt/bin none x-create=dir,bind,suid,dev"
    """
    script = ("test -e /etc/of-hook; grep ' /opt/bin ' /proc/self/mountinfo | grep -q nosuid,nodev && echo quiet; "
              "grep -c ' /mnt ' /proc/self/mountinfo; grep ^CapEff /proc/self/status")
    with Hooks(cluster, {"a.sh": hook}):
        done = step(cluster, script)
        done.good("quiet\n0\nCapEff:\t0000000000000000")
    done = cluster.root("node01", "sh", "-c", "test ! -e /etc/of-hook; grep -c /run/spank-container/root /proc/self/mountinfo; ls /run/spank-container")
    expect("hooks" not in done.out.split() and done.out.splitlines()[0] == "0", "something is left on the node", done)


@test
def hook_socket_garbage_and_leftover_processes_are_harmless(cluster):
    hook = r"""
    python3 - << 'EOF'
import os, socket, array
path = os.environ["SPANK_CONTAINER_MOUNT_SOCKET"]
def connect():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(path); return s
held = [connect() for _ in range(15)]
for bytes in (b"x", b"\xff" * 16, b"\0" * 16, b"\x08" + b"\xff" * 15, b"x" * 100000):
    for fds in ([], [0], [0, 0], [0, 1, 2], list(range(3)) * 60):
        s = connect()
        try:
            s.sendmsg([bytes], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
            s.settimeout(2); s.recv(100)
        except OSError:
            pass
        s.close()
EOF
    enroot-mount --root "${ENROOT_ROOTFS}" - <<< "/usr/lib /opt/lib none x-create=dir,rbind"
    setsid sh -c 'trap "" TERM HUP; sleep 7654321' &
    (setsid setsid sleep 7654321 &) ; python3 -c 'import os, time; os.fork() or os.setsid() and 0; time.sleep(7654321)' &
    rm -f "${ENROOT_ENVIRON}"; mkfifo "${ENROOT_ENVIRON}"
    """
    with Hooks(cluster, {"a.sh": hook}):
        done = step(cluster, "test -e /opt/lib && echo mounted")
    done.good("mounted")
    done = cluster.root("node01", "sh", "-c", "grep -l '[7]654321' /proc/[0-9]*/cmdline 2> /dev/null | wc -l")
    equal(done.out.strip(), "0", "processes that are left", done)


@test
def user_hooks_run_only_when_the_site_allows(cluster):
    own = os.path.join(cluster.home, "alice/.config/enroot")
    local_files.put(f"{own}/hooks.d/u.sh", HEAD + 'echo "FROM_USER=yes ${OF_SITE-no}" >> "${ENROOT_ENVIRON}"\n', 0o755)
    try:
        rules = {"spank-container/config.d/50-test.toml": "enroot_compat = true\nuser_hooks = true\n"}
        with Hooks(cluster, {"z.sh": "echo OF_SITE=first >> ${ENROOT_ENVIRON}\n"}, config=rules):
            step(cluster, "echo $FROM_USER/$OF_SITE").good("yes no/first")
        with Hooks(cluster, {"z.sh": "echo OF_SITE=first >> ${ENROOT_ENVIRON}\n"}):
            step(cluster, "echo ${FROM_USER-unset}/$OF_SITE").good("unset/first")
    finally:
        shutil.rmtree(own)


@test
def hooks_of_own_directory_need_no_enroot_and_can_be_disabled(cluster):
    hooks = {"a.sh": "echo A=1 >> ${ENROOT_ENVIRON}\n", "b.sh": "echo B=1 >> ${ENROOT_ENVIRON}\n"}
    off = {"spank-container/config.d/50-test.toml": 'hooks_off = ["b"]\n'}
    with Hooks(cluster, hooks, directory="spank-container", config=off) as files:
        step(cluster, 'echo "$A/$B"').good("1/")
        os.chmod(files.path("spank-container/hooks.d/a.sh"), 0o644)
        step(cluster, 'echo "$A/$B"').good("/")
        os.chmod(files.path("spank-container/hooks.d/a.sh"), 0o777)
        done = step(cluster, "true")
        expect(done.rc != 0 and "/hooks.d/a.sh" in done.err and "is writable by others" in done.err, "is accepted", done)
    with Hooks(cluster, hooks, config={"x": ""}):
        step(cluster, 'echo "$A/$B"').good("/")  # enroot's, without enroot_compat


@test
def hooks_run_for_every_kind_of_container(cluster):
    text = 'touch "${ENROOT_ROOTFS}/by-hook"; echo "REMAPPED=${ENROOT_REMAP_ROOT-no}" >> ${ENROOT_ENVIRON}\n'
    text += 'enroot-mount --root "${ENROOT_ROOTFS}" - <<< "/usr/lib /opt/lib none x-create=dir,rbind,ro"\n'
    script = "test -e /by-hook -a -e /opt/lib && echo $REMAPPED"
    with Hooks(cluster, {"a.sh": text}):
        step(cluster, script, "--container-remap-root").good("y")
        step(cluster, script, "--container-readonly").good("no")
        step(cluster, script, "-n2", "--container-private").good("no\nno")
        step(cluster, script, "--container-unshare=pid,ipc,net,uts").good("no")
        step(cluster, script, "--container-mounts=umount:/sys,tmpfs:/opt/t").good("no")
        place = os.path.join(cluster.shared, "tree of hooks")
        os.system(f"cp -a '{local_files.tree(cluster)}' '{place}' && chown -R 2001:2001 '{place}'")
        directory = "--container-image=/home/shared/tree of hooks"
        cluster.run("srun", "-w", "node01", directory, "sh", "-c", script + '; echo "$FROM_FILE"').good("no\nenroot")
        shutil.rmtree(place)
        done = step(cluster, script, "--container-explain=all")
        expect("has run: /etc/enroot/hooks.d/a.sh" in done.err + done.out, "explain does not tell", done)
    done = step(cluster, "test ! -e /by-hook && echo gone")
    done.good("gone")


def hook_that_hangs(cluster, title):
    """Runs a step whose hook hangs, with children that ignore signals."""
    step = cluster.start_srun("-w", "node01", "-J", title, "true")
    await_true(lambda: cluster.processes("node01", "of-hook"), 10, "the hook did not begin")
    return step


HANGS = ("trap '' TERM HUP INT\nsetsid sh -c 'trap \"\" TERM HUP INT; sleep 432; sleep 432' &\n"
         "cp /bin/sleep ${ENROOT_RUNTIME_PATH}/of-hook; ${ENROOT_RUNTIME_PATH}/of-hook 432\n")
LONG = {"spank-container/config.d/50-test.toml": "enroot_compat = true\nhook_timeout = 600\n"}


@test
def process_killed_during_a_hook_leaves_nothing(cluster):
    with Hooks(cluster, {"a.sh": HANGS}, config=LONG):
        store = cluster.stores()
        step_ = hook_that_hangs(cluster, "hook-cancel")
        cancel(cluster, "hook-cancel")
        cluster.must_be_quiet(within=8, store=store)  # KillWait is 5 s
        expect(step_.end(10).rc != 0, "the cancelled step succeeded")

        step_ = hook_that_hangs(cluster, "hook-agent")
        kill_all(cluster.processes("node01", "agent"))
        done = step_.end(10)
        expect(done.rc == 1 and "the agent exited" in done.err, "the reason is not told", done)
        cluster.must_be_quiet(within=2, store=store)

        step_ = hook_that_hangs(cluster, "hook-stepd")
        kill_all(stepds(cluster))
        cancel(cluster, "hook-stepd")
        cluster.must_be_quiet(within=15, store=store)
        step_.end(60)
        back_in_order(cluster)


@test
def hook_replaces_built_in_hook_of_same_name(cluster):
    names = "grep -c ^alice: /etc/passwd"
    step(cluster, names).good("1")
    with Hooks(cluster, {"10-shadow.sh": "echo BY=site >> ${ENROOT_ENVIRON}\n"}) as files:
        done = step(cluster, names + "; echo $BY", "-n2")
        expect(sorted(done.out.split()) == ["0", "0", "site", "site"], "the built-in hook has run", done)
        os.chmod(files.path("enroot/hooks.d/10-shadow.sh"), 0o644)
        done = step(cluster, names + '; echo "[$BY]"')
        expect(done.out.split() == ["0", "[]"], "it is not turned off", done)
        with open(files.path("enroot/hooks.d/10-shadow.sh"), "w"):
            os.chmod(files.path("enroot/hooks.d/10-shadow.sh"), 0o755)
        done = step(cluster, names)
        expect(done.out.split() == ["0"], "an empty file does not turn it off", done)


@test
def common_sh_defines_functions_used_by_hooks(cluster):
    text = r"""
    same() { [ "$1" = "$2" ] || common::err "got '$1' instead of '$2'"; }
    common::checkcmd bash sed; ! (common::checkcmd no-such-program 2> /dev/null)
    dir=$(common::mktmpdir of-hook); same "$(stat -c %a "${dir}")" 700; cd "${dir}"
    ln -s /usr/lib link; same "$(common::realpath link)" "$(readlink -f /usr/lib)"
    same "$(common::mountpoint /proc/sys/kernel)" "$(stat -c %m /proc/sys/kernel)"
    export A='1 2' B='$A'; printf 'x ${A}/${B}${NOT_SET}.\n$A ${a-b}\n' > t; same "$(common::envsubst t)" $'x 1 2/$A.\n$A ${a-b}'
    printf '  A=1\n# c\nB="x y"\nENROOT_X=1\nno\nC=\n' > e; common::envfmt e; same "$(cat e)" $'A=1\nB=x y\nC='
    mkdir parts; printf '#!/bin/sh\necho two\n' > parts/2.sh; printf '#!/bin/sh\necho one\n' > parts/1.sh; chmod 755 parts/*; touch parts/3.sh parts/4
    same "$(common::runparts list .sh parts)" $'parts/1.sh\nparts/2.sh\nparts/3.sh'; same "$(common::runparts exec .sh parts)" $'one\ntwo'
    (common::chdir parts; same "${PWD##*/}" parts); ! (common::chdir nowhere 2> /dev/null)
    same "$(common::getpwent | cut -d: -f1,3)" "alice:2001"; same "$(common::getgrent | cut -d: -f3)" "$(id -g)"
    mkdir -p closed/in; touch closed/in/file; chmod 0 closed/in/file closed/in; common::fixperms closed; same "$(cat closed/in/file)" ""
    chmod 500 closed/in; common::rmall closed; test ! -e closed
    printf 'a\nb' | common::readstrarray list; same "${list[*]}" "a b"; common::read line < /dev/null; same "${line}" ""
    same "$(common::fmt bold text)" text; same "$(common::debarch x86_64)/$(common::debarch aarch64)" amd64/arm64
    printf 'machine m login u password $(echo secret)\n' > netrc; same "$(common::evalnetrc netrc)" "machine m login u password secret"
    ! type -P jq > /dev/null || same "$(echo '{"a":1}' | common::jq .a)" 1
    ! type -P curl > /dev/null || same "$(common::curl -s "file://${dir}/e" | head -1)" A=1
    same "$(common::log WARN 'x y' 2>&1)/$(echo z | common::log INFO - 2>&1)" "[WARN] x y/[INFO] z"
    common::rmall "${dir}"; echo GOOD=yes >> "${ENROOT_ENVIRON}"
    """
    with Hooks(cluster, {"a.sh": text}):
        step(cluster, "echo $GOOD").good("yes")
