"""Containers of an ordinary user: run, shell, exec."""

import json
import os
import signal
import subprocess
import tempfile

import machine
from machine import as_user, base, home, image, start, user, wait_for


def sh(script, *options, **more):
    return user("run", "-q", *options, base(), "sh", "-c", script, **more)


def test_command_runs_in_the_image_as_the_user():
    sh("id -u; id -g; pwd; echo $GREETER; cat /etc/os-release").succeeds(f"{machine.UID}\n{machine.UID}\n/workspace\nbase\n", "Debian")
    user("run", "-q", base()).succeeds("hello from base")


def test_image_files_all_belong_to_the_user():
    assert sh("find /etc /usr/bin /var -xdev ! -user %d | grep -v -e hosts -e hostname -e resolv.conf" % machine.UID).out == ""


def test_image_changes_last_for_the_container_only():
    sh("echo new > /etc/new && echo more >> /etc/passwd && chmod 700 /usr/bin/id && rm -r /var/lib/dpkg && mkdir /var/lib/dpkg && "
       "mv /etc/debian_version /etc/moved && ls -A /var/lib/dpkg && cat /etc/new /etc/moved").succeeds("new\n")
    sh("ls /etc/debian_version /var/lib/dpkg/status && ! grep more /etc/passwd && ! test -e /etc/new").succeeds()


def test_whiteouts_and_opaque_directories_hide_lower_layers():
    name = image("white", [{"gone": b"1", "kept": b"1", "dir/old": b"1", "dir/older": b"1"},
                           {".wh.gone": b"", "dir/.wh..wh..opq": b"", "dir/new": b"2"}])
    user("pull", name).succeeds()
    # The image has no program of its own: those of the host come in as mounts.
    listed = user("run", "-q", "--mounts=/usr:/usr:ro,/lib:/lib,/lib64:/lib64", name, "/usr/bin/ls", "/", "/dir").succeeds("kept", "new").out
    assert "gone" not in listed and "old" not in listed, listed


def test_maximum_number_of_overlay_layers_works():
    name = image("deep", [{f"of{number}": b""} for number in range(500)])
    listed = user("run", "-q", "--mounts=/usr:/usr:ro,/lib:/lib,/lib64:/lib64", name, "/usr/bin/ls", "/").succeeds().out.split()
    assert sum(one.startswith("of") for one in listed) == 500, listed


def test_one_server_serves_all_layers():
    every = "find /usr -xdev -type f -print0 | sort -z | xargs -0 -n 20 {} cksum | sort | cksum"
    user("pull", base()).succeeds()
    user("export", base(), f"{home}/one-layer.sqsh").succeeds()
    contained = ("--contain", "--no-mount-home")
    alone = user("run", "-q", *contained, f"{home}/one-layer.sqsh", "sh", "-c", every.format("")).succeeds().out
    process = start("run", "-q", *contained, base(), "sh", "-c", f"{every.format('-P 8')}; exec sleep 1000")
    found = process.stdout.readline()
    assert found == alone, (found, alone)
    children = subprocess.run(["ps", "--ppid", str(process.pid), "-o", "comm="], stdout=subprocess.PIPE, text=True, check=True)
    assert sorted(children.stdout.split()) == ["fuse", "sleep"], children.stdout
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 143


def test_paths_in_the_home_are_expanded_everywhere():
    os.makedirs(f"{home}/tilde", exist_ok=True)
    os.chown(f"{home}/tilde", machine.UID, machine.UID)
    machine.write(f"{home}/tilde/env", "TOLD=yes\n")
    sh("cat /in/env; echo $TOLD; touch /etc/kept-at-home", "--mounts=~/tilde:/in", "--env-file=~/tilde/env",
       "--changes=~/tilde/kept").succeeds("TOLD=yes\nyes\n")
    assert os.path.exists(f"{home}/tilde/kept"), os.listdir(f"{home}/tilde")
    user("export", base(), "oci-archive:~/tilde/x.tar").succeeds()
    user("inspect", "oci-archive:~/tilde/x.tar").succeeds()
    for wrong, reason in (("~bob/x:/x", "only ~/ (the user's own home directory) is expanded"),
                          ("$HOME/x:/x", "a shell expands variables outside of single quotes")):
        done = sh("true", f"--mounts={wrong}")
        assert done.status == 125 and reason in done.err and "./" not in done.err, done


def test_program_that_cannot_run_gets_its_cure():
    machine.write(f"{home}/windows.sh", "#!/bin/sh\r\n")
    machine.write(f"{home}/plain.sh", "#!/bin/sh\n")
    os.chmod(f"{home}/windows.sh", 0o755)
    os.chmod(f"{home}/plain.sh", 0o644)
    for command, cure, status in (("gerp", 'did you mean "grep"?', 127), ("./gone.sh", "(hint: --mount-cwd, if ./ has it)", 127),
                                  ("/gone/x", "(hint: if the host has it: --mounts=/gone)", 127), ("./windows.sh", "sed -i 's/\\r$//' ./windows.sh", 127),
                                  ("./plain.sh", "chmod +x ./plain.sh", 126)):
        done = user("run", "-q", "--mounts=.:/w", "--workdir=/w", base(), command)
        assert done.status == status and cure in done.err, (command, done)


def test_node_hook_is_run():
    directory = "/etc/spank-container/hooks.d"
    edits = '{"environment": {"set": {"OF_HOOK": "yes"}}, "files": [{"path": "/etc/of-hook", "content": "text"}]}'
    had = os.path.isdir("/etc/spank-container")
    os.makedirs(directory)
    try:
        machine.write(f"{directory}/50-it", f"#!/bin/sh\necho '{edits}'\n")
        os.chmod(f"{directory}/50-it", 0o755)
        for options in ((), ("--remap-root",)):
            sh("echo $OF_HOOK; cat /etc/of-hook", *options).succeeds("yes\ntext")
        machine.write(f"{directory}/50-it", "#!/bin/sh\necho why >&2; exit 3\n")
        done = sh("echo came in")
        assert done.status == 125 and "came in" not in done.out and "hook 50-it: " in done.err and "why" in done.err, done
    finally:
        subprocess.run(["rm", "-rf", directory if had else "/etc/spank-container"], check=False)


def test_closed_descriptors_are_opened():
    """No file of ours may become the command's input or output."""
    for closed in ("0>&-", "1>&-", "2>&-", "0>&- 1>&-", "0>&- 2>&-", "1>&- 2>&-", "0>&- 1>&- 2>&-"):
        for command in (f"run -q {base()} sh -c 'cat; ls -l /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 > {home}/fds; echo $GREETER > {home}/which'",
                        f"pull -q {base()}"):
            done = machine.run(as_user(["sh", "-c", f"exec scontainer {command} {closed}"]), "", machine.environment(), home)
            assert done.status == 0, (closed, done)
            assert not done.err or "2" in closed, (closed, done)


def test_few_descriptors_are_one_error():
    for limit in (8, 16, 32, 39):
        for command in (("run", base(), "true"), ("pull", base())):
            done = machine.run(as_user(["sh", "-c", f'ulimit -n {limit}; exec scontainer "$@"', "sh", *command]), "", machine.environment(), home)
            done.fails(125, f"{limit} open files", "ulimit -n 64")
    for limit in (40, 64, 100):
        done = machine.run(as_user(["sh", "-c", f"ulimit -n {limit}; exec scontainer run -q {base()} true"]), "", machine.environment(), home)
        assert done.status == 0, done


def as_unknown(*arguments, **variables):
    """As a user whom the machine does not know."""
    return machine.run(["setpriv", "--reuid=61777", "--regid=61777", "--clear-groups", "scontainer", *arguments], "",
                       machine.environment(LOGNAME=None, XDG_DATA_HOME=unknown_home(), **variables), "/")


def unknown_home():
    path = os.path.join(machine.work, "unknown")
    os.makedirs(path, exist_ok=True)
    os.chown(path, 61777, 61777)
    return path


def test_home_of_unknown_user_is_that_of_the_environment():
    show = ("sh", "-c", 'echo "$HOME $USER"; grep :61777: /etc/passwd; echo $GREETER; touch "$HOME/of-unknown"')
    where = unknown_home()
    said = f"{where} dora\ndora:x:61777:61777::{where}:/bin/sh\nbase\n"
    for options in ((), ("--mount-home",)):
        assert as_unknown("run", "-q", *options, base(), *show, HOME=where, USER="dora").succeeds().out == said
    assert os.path.exists(f"{where}/of-unknown")
    as_unknown("run", "-q", base(), "sh", "-c", "! grep ^root:x:61777 /etc/passwd", HOME=where, USER="root").succeeds()


def test_home_unset_never_covers_the_image():
    os.symlink("/", f"{home}/to-root")
    for where in (None, "", "/", "//", "/.", "/../", "relative", "/nowhere/at/all", "/etc/hostname", "/usr", f"{home}/to-root"):
        as_unknown("run", "-q", "--mount-home", base(), "true", HOME=where, USER="dora").fails(125, "--mount-home")
        as_unknown("run", "-q", base(), "sh", "-c", "test $GREETER = base -a -e /workspace/replaced", HOME=where, USER="dora").succeeds()
    os.unlink(f"{home}/to-root")
    machine.write("/etc/spank-container/config.toml", machine.settings.replace("[registries", "mount_home = true\n[registries", 1))
    try:
        done = as_unknown("run", "-q", base(), "cat", "/workspace/replaced", HOME="/", USER="dora").succeeds("upper")
        assert "warning: not mounted: " in done.err, done
    finally:
        machine.write("/etc/spank-container/config.toml", machine.settings)


def test_root_is_refused_as_target():
    name = image("to-root", [{"to-root": "/", "marker": b"inside"}])
    user("pull", "-q", name).succeeds()
    for target in ("/to-root", "/to-root/to-root"):
        user("run", "-q", f"--mounts={home}:{target}", name, "/marker").fails(125, "is the container's root")


def test_user_and_step_variables_override_those_of_the_image():
    name = image("of-another", [{"marker": b""}], env=["HOME=/home/jovyan", "USER=jovyan", "SLURM_JOB_ID=999", "RANK=0"])
    tools = "--mounts=/usr:/usr:ro,/lib:/lib,/lib64:/lib64"
    show = ("/usr/bin/env",)
    said = user("run", "-q", tools, name, *show, LC_CTYPE="UTF-8").succeeds(f"HOME={home}\n", "USER=alice\n", "RANK=0\n").out
    assert "SLURM_JOB_ID" not in said and "LC_CTYPE" not in said, said
    said = user("run", "-q", tools, name, *show, SLURM_JOB_ID="7", SLURM_STEP_NUM_TASKS="2").succeeds("SLURM_JOB_ID=7\n").out
    assert "\nRANK=" not in said, said


def test_exit_statuses_are_those_of_podman():
    for script, status in (("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)):
        assert sh(script).status == status, script
    user("run", "-q", base(), "/etc/passwd").fails(126, "/etc/passwd", "not executable", "chmod +x")
    user("run", "-q", base(), "no-such-command").fails(127, "no-such-command")
    user("run", "-q", f"{machine.registry.name}/nope:1", "true").fails(125, "nope")
    user("run", "-q", "--mounts=/no/such/place", base(), "true").fails(125, "--mounts", "/no/such/place")
    user("run", "-q", "--mounts=a:b", base(), "true").fails(125, "--mounts", "absolute path")
    user("run", "-q", "--workdir=/no/such/place", base(), "true").fails(125, "/no/such/place")
    user("run", "--nonsense", base()).fails(125, "--nonsense")
    user("run", "--writable", "--readonly", base()).fails(125, "cannot be combined")
    user("run").fails(125, "usage: scontainer run")


def test_options_after_the_image_belong_to_the_command():
    assert user("run", "-q", base(), "echo", "--workdir=/x", "-q", "--help").succeeds().out == "--workdir=/x -q --help\n"


def test_signals_are_passed_on():
    process = start("run", "-q", base(), "sh", "-c", "trap 'echo got it; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 7 and process.stdout.read() == "got it\n"


def test_killed_scontainer_ends_its_container():
    process = start("run", "-q", "--name=killed", base(), "sh", "-c", "echo $$; exec sleep 1000")
    inside = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    wait_for("the command is gone", lambda: not os.path.exists(f"/proc/{inside}"))
    user("exec", "killed", "true").fails(125, "no running container")  # and the note of it is taken away


def test_mounts_of_every_kind_work():
    sh("stat -c '%a %u' /new; head -c 2M /dev/zero > /new/file || ls -A /etc/apt; test ! -e /etc/hosts && stat -f -c %T /etc/apt",
       "--mounts=tmpfs:/new:size=1M+mode=0700,tmpfs:/etc/apt:ro,umount:/etc/hosts,/no/such:/x:nofail+silent").succeeds(f"700 {machine.UID}\n", "tmpfs\n")
    user("run", "-q", "--mounts=umount:/no/such", base(), "true").fails(125, "not a mount")


def test_mount_options_work_as_in_a_job():
    os.makedirs(f"{home}/bound", exist_ok=True)
    sh("for i in 1 2 3 4 5 6; do echo x > /few/$i || break; done; ls /few | wc -l; grep -c ' /bound .* unbindable ' /proc/self/mountinfo",
       "--mounts=tmpfs:/few:nr_inodes=5,./bound:/bound:unbindable").succeeds("4\n1\n")


def test_data_files_are_mounted():
    tree = os.path.join(home, "tree")
    os.makedirs(tree)
    for number in (1, 2):
        open(os.path.join(tree, "file"), "w").write(f"data {number}\n")
        subprocess.run(["mksquashfs", tree, os.path.join(home, f"data{number}.sqsh"), "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL)
    sh("cat /one/file /two/file; stat -c %u /one/file; touch /one/x || test ! -e /three",
       "--mounts=data1.sqsh:/one:sqsh,/no/such:/three:sqsh+nofail+silent,./data2.sqsh:/two:sqsh").succeeds(f"data 1\ndata 2\n{machine.UID}\n")
    user("run", "-q", "--mounts=/etc/passwd:/data:sqsh", base(), "true").fails(125, "not a squashfs")


def test_mounts_workdir_and_variables_work_as_in_a_job():
    os.makedirs(f"{home}/data", exist_ok=True)
    os.chown(f"{home}/data", machine.UID, machine.UID)
    sh("pwd; ls -d /made/new; touch /made/new/file; echo $OUTSIDE $GREETER $SET", "--mounts=./data:/made/new", "--workdir=/made",
       "--env=SET=to this", "--env=GREETER", OUTSIDE="stays", GREETER="mine").succeeds("/made\n", "/made/new\n", "stays mine to this\n")
    assert os.stat(f"{home}/data/file").st_uid == machine.UID
    assert sh("touch /data/x", "--mounts=./data:/data:ro").status != 0
    done = sh("ls -A $HOME").succeeds()
    assert done.out == "", done
    sh("ls -A $HOME", "--mount-home").succeeds("data")
    machine.write("/tmp/spc-tool-of-the-host", "")
    try:
        sh("touch /tmp/spc-tool-inside && ! test -e /tmp/spc-tool-of-the-host").succeeds()
    finally:
        os.unlink("/tmp/spc-tool-of-the-host")
    assert not os.path.exists("/tmp/spc-tool-inside")


def test_privileges_are_never_gained():
    sh("grep -E 'CapEff|NoNewPrivs' /proc/self/status").succeeds("CapEff:\t0000000000000000", "NoNewPrivs:\t1")
    assert sh("cat /etc/shadow; chown root /etc/passwd").status != 0
    assert sh("chown 0:0 /etc/passwd").status != 0


def test_profile_narrows_the_system_calls():
    profile = os.path.join(home, "profile.json")
    machine.write(profile, '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 61}]}')
    for options in ((), ("--remap-root",)):
        done = sh("mkdir /tmp/x || touch /tmp/y && echo made", f"--security=seccomp={profile}", *options).succeeds("made\n")
        assert "No data available" in done.err, done
    user("run", "-q", "--security=seccomp=profile.json", base(), "true").fails(125, "not an absolute path")


def test_readonly_leaves_tmp_writable():
    done = sh("touch /tmp/x && echo tmp; touch /etc/x || echo refused", "--readonly").succeeds("tmp\n", "refused\n")
    assert "Read-only" in done.err


def test_remapped_root_is_root_of_the_image():
    sh("id -u; echo $HOME $USER; touch /root/x; stat -c %u:%g /root/x /etc/passwd", "--remap-root").succeeds(
        "0\n/root root\n0:0\n0:0\n")
    sh("touch /x; chown 1:1 /x && stat -c %u /x; grep -c ^root: /etc/passwd; cat /etc/apt/apt.conf.d/90*", "--remap-root").succeeds(
        '0\n1\nAPT::Sandbox::User "root";\n')
    os.makedirs(f"{home}/mine", exist_ok=True)
    os.chown(f"{home}/mine", machine.UID, machine.UID)
    sh("touch /mine/by-root", "--remap-root", f"--mounts={home}/mine:/mine").succeeds()
    assert os.stat(f"{home}/mine/by-root").st_uid == machine.UID


def test_changes_are_kept_on_request():
    sh("echo kept > /etc/kept; rm /etc/debian_version; rm -r /var/lib/dpkg", "--changes=changes").succeeds()
    sh("cat /etc/kept; ! ls /etc/debian_version /var/lib/dpkg 2>/dev/null", "--changes=changes").succeeds("kept\n")
    sh("! ls /etc/kept 2>/dev/null && ls /etc/debian_version").succeeds()


def test_exec_joins_a_running_container():
    process = start("run", "-q", "--name=server", "--env=COLOUR=blue", "--workdir=/srv", base(), "sh", "-c",
                    "echo here > /tmp/file; echo $$; exec sleep 1000")
    inside = process.stdout.readline().strip()
    for name in ("server", inside, str(process.pid)):
        user("exec", name, "sh", "-c", "cat /tmp/file; pwd; echo $COLOUR").succeeds("here\n/srv\nblue\n")
    assert user("exec", "server", "sh", "-c", "exit 9").status == 9
    user("exec", "server", "nothing").fails(127, "nothing")
    user("exec", "other", "true").fails(125, "no running container", "server")
    (one,) = user("containers", "--json").json()
    assert (one["name"], one["owner"], one["image"], one["in_use"]) == ("server", "alice", base(), True), one
    user("containers").succeeds("server", "in use")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 143


def test_background_container_is_listed_joined_and_stopped():
    started = user("run", "-q", "-d", "--name=back", "--env=COLOUR=red", base(), "sh", "-c", "echo out; echo err >&2; exec sleep 1000").succeeds()
    name, output = started.out.splitlines()
    assert name == "back" and started.err == "", started
    wait_for("its output", lambda: open(output).read() == "out\nerr\n")
    user("containers").succeeds("back")
    user("exec", "back", "sh", "-c", "echo $COLOUR").succeeds("red\n")
    user("run", "-q", "-d", "--name=back", base(), "true").fails(125, "running already (hint: scontainer stop back, or another name)")
    user("stop", "back").succeeds()
    user("exec", "back", "true").fails(125, "no running container")
    user("stop", "back").fails(1, "no running container")
    deaf = user("run", "-q", "-d", base(), "sh", "-c", "trap : TERM; while :; do sleep 0.1; done").succeeds().out.splitlines()[0]
    user("stop", deaf).succeeds()
    # The waiting caller gets errors that occur before the command begins.
    user("run", "-q", "-d", base(), "no-such-command").fails(127, "no-such-command", "PATH")
    user("run", "-q", "-d", "--mounts=/no/such/place", base(), "true").fails(125, "/no/such/place")
    user("run", "-q", "-d", f"{machine.registry.name}/nope:1", "true").fails(125, "nope")
    user("run", "-q", "-d", base(), "true").succeeds()
    user("shell", "-d", base()).fails(125, "cannot be combined")


def test_options_of_docker_and_podman_tutorials_are_understood():
    for directory in ("data", "other-home"):
        os.makedirs(f"{home}/{directory}", exist_ok=True)
        os.chown(f"{home}/{directory}", machine.UID, machine.UID)
    machine.write(f"{home}/data/file", "data\n")
    for options in (("-B", "./data:/data:ro"), ("--bind=./data:/data",), ("-v", f"{home}/data:/data:ro,z"), ("--volume", f"{home}/data:/data")):
        sh("cat /data/file", *options).succeeds("data\n")
    assert sh("touch /data/new", "-v", f"{home}/data:/data:ro,Z").status != 0
    for options in (("--pwd", "/srv"), ("-w", "/srv"), ("-W", "/srv"), ("--cwd=/srv",)):
        sh("pwd", *options).succeeds("/srv\n")
    sh("echo $SET", "-e", "SET=a b", "-it", "--rm", "-u", str(machine.UID)).succeeds("a b\n")
    sh("id -u", "-u", "root").succeeds("0\n")
    sh("id -u; touch /root/x", "--fakeroot", "--writable-tmpfs").succeeds("0\n")
    sh("touch here; echo $HOME", "-H", f"{home}/other-home").succeeds("other-home\n")
    sh("echo $HOME; touch $HOME/here", "-H", f"{home}/other-home:/home/me").succeeds("/home/me\n")
    assert os.path.exists(f"{home}/other-home/here")
    for option in ("-c", "--contain", "-C", "--containall"):
        sh("ls -A $HOME | wc -l; touch $HOME/x", option).succeeds("0\n")
    for option in ("keep-groups", "project", "61300", "alice"):
        sh("echo came in", "--group-add", option).succeeds("came in\n")
    for options in (("--cgroupns=host",), ("--cgroupns", "private")):
        sh("echo came in", *options).succeeds("came in\n")
    for options, word in ((("-p", "80:80"), "ports are the host's"), (("--net", "x"), "only a step of srun"), (("--overlay=x"), "--changes"),
                          (("-u", "nobody"), "--remap-root"), (("--gpus", "2"), "CUDA_VISIBLE_DEVICES"), (("-v", "vol:/data"), "named volumes"),
                          (("--privileged",), "--remap-root"), (("--cleanenv",), "env -i"), (("--group-add", "shadow"), "not a member"),
                          (("--cgroupns=x",), "private or host"), (("--unshare=net",), "--unshare=cgroup"), (("--mounts=tmpfs:/proc",), "shows the kernel")):
        user("run", *([options] if isinstance(options, str) else options), base(), "true").fails(125, word)
    # Behind the image everything is the command's.
    assert user("run", "-q", base(), "echo", "-v", "x", "--nv").succeeds().out == "-v x --nv\n"
    user("exec", base(), "true").fails(125, "scontainer run IMAGE COMMAND")


def test_gpu_option_without_gpu_warns_and_runs():
    for options in (("--nv",), ("--rocm",), ("--gpus", "all"), ("--gpu",)):
        done = sh("echo came in", *options).succeeds("came in")
        assert done.err == "scontainer: warning: --gpu: this machine has no GPU; the container starts without one\n", done
        done = machine.root("run", "-q", *options, base(), "echo", "came in").succeeds("came in")
        assert "this machine has no GPU" in done.err, done


def test_docker_options_are_converted_or_explained():
    os.makedirs(f"{home}/mounted", exist_ok=True)
    machine.write(f"{home}/mounted/file", "of the host\n")
    sh("cat /d/file; touch /d/x || echo read-only", "--mount", f"type=bind,source={home}/mounted,target=/d,readonly").succeeds("of the host", "read-only")
    sh("findmnt -no FSTYPE /t || grep ' /t ' /proc/mounts", "--mount=type=tmpfs,dst=/t").succeeds("tmpfs")
    sh("grep ' /t ' /proc/mounts", "--tmpfs=/t:rw,size=1m").succeeds("tmpfs", "size=1024k")
    sh("echo in", "--ipc=host", "--pid", "host", "--security-opt", "label=disable", "--security-opt=seccomp=unconfined").succeeds("in\n")
    for options, word in (("--shm-size=8g", "not needed: /dev/shm is the host's"), ("--ulimit=memlock=-1", "not needed: limits are those of the caller"),
                          ("--cap-drop=ALL", "not needed: containers have no capabilities")):
        done = sh("echo in", options).succeeds("in\n")
        assert word in done.err and len(done.err.splitlines()) == 1, done
    for option, word in (("--ipc=private", "srun --container-unshare=ipc"), ("--security-opt=x", "--security=seccomp=FILE"),
                         ("--mount=type=volume,source=x,target=/x", "--mount=type=bind,source=./DIR"), ("--hostname=x", "--container-unshare=uts"),
                         ("--runtime=kata", "--gpu"), ("--dns=1.1.1.1", "/etc/hosts")):
        user("run", option, base(), "true").fails(125, word)


def test_short_e_takes_variables_and_refuses_an_image():
    sh("echo $OWN", "-e", "OWN=1").succeeds("1\n")
    sh("echo $OWN", "-e", "OWN", OWN="2").succeeds("2\n")
    for word in (base(), "debian", "debian:12", "./image.sif", "docker://alpine"):
        user("run", "-e", word, "env").fails(125, f'-e: "{word}" is not a variable', "--cleanenv", "env -i COMMAND")


def test_environment_option_warns_of_lists_and_unset_variables():
    assert sh('echo "$A|$B"', "--env", "A=1,B=2").succeeds("1,B=2|\n").err == "", "--quiet"
    done = user("run", "--env", "A=1,B=2", base(), "sh", "-c", 'echo "$A|$B"').succeeds("1,B=2|\n")
    assert done.err == 'scontainer: warning: --env: A is "1,B=2" (hint: for two: --env=A=1 --env=B=2)\n', done
    done = sh("true", "-e", "NOPE").succeeds("")
    assert done.err == "scontainer: warning: --env: NOPE is not set (hint: export it, or write NOPE=VALUE)\n", done
    for value in ("A=1,2", "A=x=1,y=2", "A=(a,b)=C", "A=-Wl,-rpath=/x"):
        assert sh('echo "$A"', "-e", value).succeeds(value[2:]).err == "", value


def test_entrypoint_of_docker_replaces_the_images():
    for options in (("--entrypoint", "sh"), ("--entrypoint=sh",), ("--entrypoint", "/bin/sh"), ("--entrypoint", "bash")):
        user("run", "-q", *options, base(), "-c", "echo by $0").succeeds("by ")
    user("run", "-q", "--entrypoint", "", base(), "echo", "x").succeeds("x\n")
    user("run", "-q", "--entrypoint", base(), "x").succeeds("hello")


def test_explain_prints_a_screen_everything_or_json():
    done = user("run", "-q", "--explain", "--mounts=/home:/h:ro", "--env=MY_TOKEN=geheim", base(), "touch", "/home/x").succeeds()
    lines = done.err.splitlines()
    assert done.out == "" and len(lines) <= 24 and "geheim" not in done.err, done
    for text in ('mount:        "/home" at "/h", ro (--container-mounts)', "option:       --mounts=/home:/h:ro (option)",
                 'command:      "touch" "/home/x"', "option:       --env=MY_TOKEN (option)"):
        assert text in lines, (text, done)
    done = user("run", "-q", "--explain=all", base(), "true").succeeds()
    assert 'variable:     GREETER="base" (image)' in done.err.splitlines(), done
    for who in (user, machine.root):
        document = json.loads(who("run", "-q", "--explain=json", base(), "true").succeeds().out)
        assert document["environment"]["GREETER"] == {"origin": "image", "over_image": False, "value": "base"}, document
        assert document["layers"] == 3 and document["command"] == ["true"], document
    user("run", "--explain=x", base(), "true").fails(125, '--explain: "x" is not allowed (hint: --explain, or --explain=all|json)')


def test_contained_dev_has_the_basic_devices_only():
    script = "cd /dev; echo $(ls -A); echo x >null; head -c 3 zero random | wc -c; echo y | cat stdin; ls -A shm | wc -l; touch shm/x; stat -c %a shm"
    for options in ((), ("--remap-root",)):
        lines = sh(script, "--contain", *options).succeeds().out.splitlines()
        there = [name for name in lines[0].split() if not name.startswith(("nvidia", "dri", "kfd", "infiniband"))]
        assert there == "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero".split(), lines
        assert lines[-3:] == ["y", "0", "1777"], lines
    spawn = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    command = ["scontainer", "run", "-q", "--contain", base(), "sh", "-ec", "echo to the console >/dev/console; exec 3<>/dev/ptmx; echo made one"]
    done = machine.run(machine.as_user(["python3", "-c", spawn, *command]), "", machine.environment(), home)
    done.succeeds("to the console", "made one")


def test_cgroup_namespace_begins_at_the_own_cgroup():
    outside = os.readlink("/proc/self/ns/cgroup")
    for options in ((), ("--remap-root",), ("--contain",)):
        lines = sh("readlink /proc/self/ns/cgroup; cut -d: -f3- /proc/self/cgroup | sort -u; ls /sys/fs/cgroup | wc -l", "--unshare=cgroup", *options).succeeds().out.split()
        assert lines[0] != outside and lines[1] == "/" and int(lines[2]) > 0, lines
    sh("readlink /proc/self/ns/cgroup").succeeds(outside)


def test_groups_all_have_names():
    for options in ((), ("--remap-root",)):
        done = sh("id -Gn; id", *options).succeeds()
        assert done.err == "" and "nogroup" in done.out, done
    bare = image("no-groups", [{"etc/group": b"root:x:0:\n"}])
    host = "--mounts=/usr:/usr:ro,/lib:/lib,/lib64:/lib64,/bin:/bin"
    assert user("run", "-q", host, bare, "/usr/bin/id", "-Gn").succeeds().out.split() == ["alice", "nogroup"]


def test_pip_has_a_directory_for_each_image():
    other = f"{machine.registry.name}/base:latest"
    name = image("another-base", [{"file": b"1"}])
    host = ("--mounts=/usr:/usr:ro,/lib:/lib,/lib64:/lib64,/bin:/bin",)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as lasting:  # not in memory, as what persists
        os.chmod(lasting, 0o777)
        bases = [user("run", "-q", f"--home={lasting}:/home/of-alice", *options, one, "/bin/sh", "-c", "echo $PYTHONUSERBASE").succeeds().out.strip()
                 for one, options in ((base(), ()), (other, ()), (base(), ("--share=p",)), (name, host))]
    digest = user("pull", "-q", base()).succeeds().out.split(":")[1][:16]
    assert bases[0].endswith("/python/" + digest), bases
    assert bases[0] == bases[1] == bases[2] and bases[3] and bases[3] != bases[0], bases


def test_shell_runs_a_shell_of_the_image():
    assert user("shell", base(), stdin="echo in a shell; exit 4\n", SHELL="/no/such/shell").status == 4
    user("shell", base(), stdin="cat /etc/os-release\n").succeeds("Debian")
    # The prompt says where one is.
    for options, name in (((), "base:1"), (("--name=mine",), "mine")):
        user("shell", *options, base(), stdin="echo $debian_chroot; echo \"$PS1\"\n", SHELL="/bin/sh").succeeds(f"{name}\n{name}:\\w\\$ \n")


def test_layers_in_use_are_kept():
    name = image("in-use", [{"file": b"x" * 9000}])
    process = start("run", "-q", "--mounts=/usr:/usr:ro,/lib:/lib,/lib64:/lib64", name, "/usr/bin/sleep", "1000")
    wait_for("it runs", lambda: machine.stored("running"))
    user("rm", name).succeeds("1 more in use")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 143


# --- one container for several ---

NAMESPACES = "readlink /proc/self/ns/user /proc/self/ns/mnt"
LAUNCH = {"OMPI_COMM_WORLD_LOCAL_SIZE": "3", "PMIX_NAMESPACE": "4711"}  # as mpirun of Open MPI has it


def shared(*options, script, **variables):
    return subprocess.Popen(machine.as_user(["scontainer", "run", "-q", *options, base(), "sh", "-c", script]), stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=home,
                            env=machine.environment(**{**LAUNCH, **variables}))


def ends(process, status=0):
    out, err = process.communicate(timeout=30)
    assert process.returncode == status, (process.returncode, out, err)
    return out


def test_ranks_of_one_launch_share_one_container():
    ranks = [shared(script=f"{NAMESPACES}; touch /made-by-$RANK; echo $RANK; read end || true", RANK=str(rank)) for rank in range(3)]
    said = [[rank.stdout.readline() for _ in range(3)] for rank in ranks]
    assert len({(user, mounts) for user, mounts, _ in said}) == 1, said
    assert [rank for _, _, rank in said] == ["0\n", "1\n", "2\n"], said
    late = ends(shared(script=f"{NAMESPACES}; ls /made-by-*"))
    assert late == said[0][0] + said[0][1] + "/made-by-0\n/made-by-1\n/made-by-2\n", late
    for rank in ranks:
        ends(rank)
    wait_for("the keeper ends", lambda: not machine.our_processes())
    assert "made-by" not in ends(shared(script="ls /"))


def test_launches_images_and_options_that_differ_get_own_containers():
    first = shared(script=f"{NAMESPACES}; read end || true")
    its = first.stdout.readline() + first.stdout.readline()
    for other in (shared(script=NAMESPACES, PMIX_NAMESPACE="4712"), shared("--readonly", script=NAMESPACES),
                  shared("--share=no", script=NAMESPACES), shared("--share=mine", script=NAMESPACES),
                  shared(script=NAMESPACES, OMPI_COMM_WORLD_LOCAL_SIZE="1")):
        said = ends(other)
        assert not set(said.splitlines()) & set(its.splitlines()), (other.args, said, its)
    ends(first)


def test_shared_container_outlives_the_one_that_made_it():
    first = shared("--share=k", script="echo up; read end || true")
    assert first.stdout.readline() == "up\n"
    second = shared("--share=k", script="echo in; read end || true; cat /etc/debian_version /usr/bin/id >/dev/null && echo still there")
    assert second.stdout.readline() == "in\n"
    first.kill()
    first.wait()
    user("exec", "nobody", "true").fails(125)  # removes the entry of who was killed
    third = shared("--share=k", script=f"{NAMESPACES} | sort -u | wc -l")
    assert ends(third) == "2\n"
    assert "still there" in ends(second)
    wait_for("the keeper ends", lambda: not machine.our_processes())


def test_shared_container_failure_is_reported_once():
    ranks = [shared("--share=bad", "--mounts=/no/such/place", script="true") for _ in range(3)]
    said = [rank.communicate(timeout=30)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [125] * 3, said
    # A start after the first ones have ended is a first one again.
    assert 1 <= sum("/no/such/place" in text for text in said) <= 3, said
    user("run", "-q", "--share=bad", f"{machine.registry.name}/nope:1", "true").fails(125, "nope")
    user("run", "-q", "--share=s", base(), "/etc/passwd").fails(126, "/etc/passwd")


def test_concurrent_containers_all_work():
    script = "readlink /proc/self/ns/mnt"
    for process in [shared("--share=race", script=script) for _ in range(12)]:
        assert ends(process).startswith("mnt:")
    wait_for("the keepers end", lambda: not machine.our_processes())


def test_links_of_the_image_lead_mounts_and_home():
    """As in images of ostree and bootc: /home is a link, and the directory that it leads to is missing."""
    links = {"home": "var/home", "root": "var/roothome", "mnt": "/var/mnt", "opt": "mnt/opt", "out": "../../../deep/out", "loop": "loop", "ping": "pong/x", "pong": "ping",
             "etc/resolv.conf": "resolv.conf", "etc/hosts": "/dev/null", "etc/passwd": "passwd", "to-file": "a-file", "a-file": b""}
    name = image("ostree", [links])
    on = ("--mounts=/usr:/usr:ro,/lib:/lib,/lib64:/lib64", name)
    show = ("/usr/bin/sh", "-c", "export PATH=/usr/bin; cd; pwd -P; test -c /dev/null && id -un && grep -c localhost /etc/hosts")
    as_unknown("pull", "-q", name).succeeds()
    for option in ("-q", "--readonly"):
        done = as_unknown("run", "-q", option, *on, *show, HOME="/home/dora", USER="dora").succeeds("/var/home/dora\ndora\n")
        assert "warning" not in done.err, done
    as_unknown("run", "-q", "--remap-root", *on, *show, HOME="/home/dora", USER="dora").succeeds("/var/roothome\nroot\n")
    user("pull", "-q", name).succeeds()
    done = user("run", "-q", "--mounts=/etc/passwd:/opt/deep/file,/etc:/out/etc,tmpfs:/mnt/tmp", *on, "/usr/bin/cat", "/var/mnt/opt/deep/file", "/out/etc/group")
    done.succeeds(f"alice:x:{machine.UID}", "project:x:61300")
    end = "too many levels of symbolic links (hint: choose another target)"
    for target, reason in (("/loop/x", f'link "/loop" to "loop": {end}'), ("/pong", 'link "/p'), ("/to-file/x", '"/a-file": not a directory (hint: choose another target)')):
        user("run", "-q", f"--mounts=/etc:{target}", *on, "/usr/bin/true").fails(125, f'open mount target "{target}": {reason}')


def test_entrypoint_and_command_of_one_empty_word_are_none():
    import oci
    made = oci.Image([oci.Layer({"of-blank": b""})])
    made.config["config"].update({"Entrypoint": [""], "Cmd": [""]})
    machine.registry.repository("blank", made.seal())
    name = f"{machine.registry.name}/blank:1"
    user("pull", "-q", name).succeeds()
    user("run", "-q", name).fails(125, "image has no default command (hint: append one: scontainer run IMAGE COMMAND)")
    on = ("--mounts=/usr:/usr:ro,/lib:/lib,/lib64:/lib64", name)
    user("run", "-q", "--entrypoint", *on, "/usr/bin/ls", "/of-blank").succeeds("/of-blank\n")
    shown = user("inspect", name).succeeds().out
    assert "entrypoint" not in shown and "command" not in shown, shown


def test_link_replaced_by_a_layer_is_named():
    name = image("no-bin", [{"usr/bin/sh": b"x", "bin/mine": b""}])
    user("pull", "-q", name).succeeds()
    user("run", "-q", name).fails(127, 'execute "/bin/sh": neither in image', 'a layer of the image replaces the link "/bin" to /usr/bin, which has it, by a directory')
