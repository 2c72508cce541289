"""--container-security and the key seccomp: system calls permitted to a container's tasks."""
import json
import os

import local_files
from command import OPEN
from harness import equal, expect, test
from site_files import Files

ON = ("-w", "node01")
DEFAULT = "/etc/containers/seccomp.json"


def denies(*calls, error=1, action="SCMP_ACT_ERRNO"):
    """Returns a profile in podman's form that allows everything but these."""
    entry = {"names": list(calls), "action": action, "args": [], "comment": "", "includes": {}, "excludes": {}}
    if action == "SCMP_ACT_ERRNO":
        entry["errnoRet"] = error
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [entry]})


def profile(cluster, name, text):
    """Writes the profile to a path that users have on every node."""
    here, there = local_files.shared(cluster, name)
    local_files.put(here, text)
    return f"--container-security=seccomp={there}"


def site(cluster, value, **files):
    text = f'seccomp = "{value}"\n'
    return Files(cluster, {"spank-container/config.d/50-test.toml": text, **files})


@test
def job_narrows_its_tasks_by_a_podman_seccomp_profile(cluster):
    option = profile(cluster, "no-mkdir.json", denies("mkdir", "mkdirat", error=61))
    done = cluster.bash("mkdir /tmp/x || grep Seccomp: /proc/self/status", *ON, "-n2", option)
    equal(done.good().split(), ["Seccomp:", "2"] * 2, "filters of both tasks", done)
    equal(done.err.count("No data available"), 2, "refused calls", done)
    cluster.bash("mkdir /tmp/x; grep Seccomp: /proc/self/status", *ON).good("Seccomp:\t0")
    env = [f"SCONTAINER_SECURITY={option.partition('=')[2]}"]
    expect("No data available" in cluster.bash("mkdir /tmp/x || true", *ON, env=env).err, "the variable does nothing")


@test
def unsupported_profile_is_refused(cluster):
    for value, said in (("seccomp=unconfined", "seccomp=unconfined is not allowed"), ("seccomp=x.json", '"x.json" is not an absolute path'),
                        ("apparmor=x", '"apparmor=x" is not allowed')):
        done = cluster.srun(*ON, f"--container-security={value}", "true")
        expect(done.rc != 0 and said in done.err, f"{value} is not refused with {said!r}", done)
    for name, text, said in (("notify.json", denies("mkdir", action="SCMP_ACT_NOTIFY"), "syscalls[0].action"), ("torn.json", "{", "is not JSON")):
        done = cluster.srun(*ON, profile(cluster, name, text), "true")
        expect(done.rc != 0 and said in done.err and name in done.err, f"{name} is not refused with {said!r}", done)
    done = cluster.srun(*ON, "--container-security=seccomp=/home/shared/none.json", "true")
    expect(done.rc != 0 and 'open "/home/shared/none.json": no such file' in done.err, "a missing profile is not refused", done)
    cluster.must_be_well()


@test
def site_labels_are_set_or_step_refused_on_fake_apparmor_node(cluster):
    # This kernel has neither module, so the keys have no effect. Later the node reports AppArmor,
    # which does not know the profile.
    labels = 'apparmor_profile = "jobs"\nselinux_label = "system_u:system_r:container_t:s0"\n'
    with Files(cluster, {"spank-container/config.d/50-test.toml": labels}):
        done = cluster.bash("echo unconfined", "-N2")
        idle = "warning: apparmor_profile of config.toml has no effect: this node runs neither AppArmor nor SELinux"
        equal((done.good(), done.messages()), ("unconfined\nunconfined", [idle]), "output and messages", done)
        script = "mount -t tmpfs fake /sys/module && mkdir -p /sys/module/apparmor/parameters && echo Y >/sys/module/apparmor/parameters/enabled"
        cluster.root("node01", "sh", "-c", script).good()
        try:
            for options in ([], ["--container-unshare=pid"], ["--container-remap-root"]):
                done = cluster.bash("echo ran", *ON, *options)
                expect(done.rc == 1 and "ran" not in done.out and 'apparmor_profile of the site: set the AppArmor label "jobs": ' in done.err,
                       f"the step is not refused with {options}", done)
            done = cluster.bash("echo ran", *ON, "--container-mounts=umount:/proc")
            expect(done.rc == 1 and "set the security label: the container has no /proc" in done.err, "it is not refused without /proc", done)
        finally:
            cluster.root("node01", "umount", "--lazy", "/sys/module").good()


@test
def killing_profile_ends_the_step_and_harms_no_node(cluster):
    text = json.dumps({"defaultAction": "SCMP_ACT_KILL_PROCESS", "syscalls": []})
    done = cluster.srun(*ON, profile(cluster, "kills.json", text), "true")
    expect(done.rc != 0, "the step has succeeded", done)
    cluster.await_idle()
    cluster.srun(*ON, "true").good()
    cluster.must_be_quiet()


@test
def site_profile_cannot_be_lifted(cluster):
    with site(cluster, DEFAULT, **{"containers/seccomp.json": denies("mkdir", "mkdirat", error=61)}):
        own = profile(cluster, "no-rmdir.json", denies("rmdir", "unlinkat", error=62))
        done = cluster.bash("mkdir /tmp/x || rmdir /tmp || true", *ON, own)
        expect("No data available" in done.err and "Timer expired" in done.err, "one of the two profiles does not count", done)
        expect("No data available" in cluster.bash("mkdir /tmp/x || true", *ON).err, "the site's profile does not count")
        remapped = cluster.bash("mkdir /tmp/x || true; id -u", *ON, "--container-remap-root")
        expect("No data available" in remapped.err and remapped.out.strip() == "0", "root inside lifts it", remapped)
        # "default" is podman's file.
        expect("No data available" in cluster.bash("mkdir /tmp/x || true", *ON, "--container-security=seccomp=default").err, "no default")


@test
def joining_step_gets_the_same_profile(cluster):
    option = profile(cluster, "no-mkdir.json", denies("mkdir", "mkdirat", error=61))
    named = (*ON, "--container-name=narrow")
    running = cluster.start_srun(*named, option, "bash", "-c", "echo up; read end || :", stdin=OPEN)
    running.await_text("up")
    for options in ((), (option,)):
        done = cluster.bash("mkdir /tmp/y || true", *named, *options)
        expect("No data available" in done.err, f"a task that joins with {options} is not narrowed", done)
    other = profile(cluster, "no-rmdir.json", denies("rmdir", "unlinkat", error=62))
    done = cluster.srun(*named, other, "true")
    expect(done.rc != 0 and "the container was started with seccomp=/home/shared/no-mkdir.json" in done.err, "another profile is ignored", done)
    running.end().good()


@test
def site_can_keep_node_paths_private(cluster):
    here, there = local_files.shared(cluster, "kept")
    local_files.put(f"{here}/below/file", "kept\n")
    link, link_path = local_files.shared(cluster, "to-kept")
    os.symlink(f"{there}/below", link)
    text = f'mounts_off = ["{there}/below", "/etc/munge"]\nmounts = ["{there}/below:/of-the-site"]\n'
    with Files(cluster, {"spank-container/config.d/50-test.toml": text}):
        cluster.srun(*ON, "--container-mounts=/home/shared/images:/x:nofail", "cat", "/of-the-site/file").good("kept")
        for source in (f"{there}/below", f"{there}/below/file", there, "/home", link_path, "/", "/etc"):
            done = cluster.srun(*ON, f"--container-mounts={source}:/x", "true")
            expect(done.rc != 0 and "this site does not allow mounts of" in done.err, f"{source} can be mounted", done)
        for image in (f"{there}/below", there, "/home/shared", link_path, "/"):
            done = cluster.run("srun", *ON, f"--container-image={image}", "true")
            expect(done.rc != 0 and f'this site does not allow mounts of "{there}/below"' in done.err, f"{image} can be an image", done)
    os.unlink(link)
    cluster.srun(*ON, f"--container-mounts={there}:/x", "cat", "/x/below/file").good("kept")


@test
def images_are_allowed_by_pattern_user_group_and_partition(cluster):
    image = cluster.name_of("base").replace("#", "/")
    repository = image.partition("@")[0].rpartition(":")[0]
    pattern = repository.rpartition("/")[0] + "/*"
    for rules, allowed in ((f"{repository}", True), (f"{pattern} user=alice", True), (f"{pattern} user=bob,2001 partition=main", True),
                           (f"{pattern} group=nobody", False), (f"{pattern} partition=gpu", False), (f"{repository}-other", False),
                           (f"{pattern} user=bob", False)):
        with Files(cluster, {"spank-container/config.d/50-test.toml": f'allowed_images = ["registry.example/*", "{rules}"]\n'}):
            done = cluster.srun(*ON, "true")
            expect((done.rc == 0) == allowed, f"the rule {rules!r} is not kept", done)
            expect(allowed or "not allowed by this site for this user in partition \"main\"" in done.err, "the reason is not said", done)
            if "partition=gpu" in rules:  # a job's claim about its own partition is ignored
                done = cluster.srun(*ON, "--export=ALL,SLURM_JOB_PARTITION=gpu", "true", env=["SLURM_JOB_PARTITION=gpu"])
                expect(done.rc != 0, "the job's own word counts", done)
