"""Protection of a container and the agent as observable from outside, and malicious images."""
import os
import re

from command import OPEN, await_true
from images import Image, named, special, with_probe
from harness import equal, expect, test
from outcomes import outcome

ALLOWED_CAPABILITIES = {"SYS_ADMIN": 21, "SYS_CHROOT": 18, "SETUID": 7, "SETGID": 6, "KILL": 5, "DAC_OVERRIDE": 1,
                        "CHOWN": 0, "FOWNER": 3, "FSETID": 4, "SETFCAP": 31}


def status_of(text):
    return dict(re.findall(r"^(\w+):[ \t]*(.*)$", text, re.MULTILINE))


@test
def task_has_the_standard_descriptors_only(cluster):
    # The fourth is that of ls itself.
    cluster.srun("bash", "-c", "exec ls /proc/self/fd").good("0\n1\n2\n3")


@test
def task_has_no_capability_and_no_new_privileges(cluster):
    status = status_of(cluster.srun("cat", "/proc/self/status").good())
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        equal(int(status[name], 16), 0, name)
    equal(status["NoNewPrivs"], "1", "NoNewPrivs")


@test
def task_is_in_the_user_namespace_of_the_node(cluster):
    outside = os.readlink(f"/proc/{cluster.pid('node01')}/ns/user")
    cluster.srun("-w", "node01", "readlink", "/proc/self/ns/user").good(outside)


@test
def mounts_are_all_nosuid_and_nodev(cluster):
    out = cluster.srun("--container-mounts=/home/shared:/mnt,/usr:/host-usr,/run:/host-run", "cat", "/proc/self/mountinfo").good()
    for line in out.splitlines():
        where, options = line.split()[4:6]
        expect("nosuid" in options.split(","), f"{where} is not nosuid: {line}")
        expect("nodev" in options.split(",") or where == "/dev" or where.startswith("/dev/"), f"{where} is not nodev: {line}")


@test
def host_mounts_are_all_hidden(cluster):
    out = cluster.srun("cat", "/proc/self/mountinfo").good()
    places = [line.split()[4] for line in out.splitlines()]
    wanted = ("/", "/proc", "/sys", "/dev", "/tmp", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
    strange = [place for place in places if not (place in wanted or place.startswith(("/proc/", "/sys/", "/dev/")))]
    equal(strange, [], "mounts that nobody asked for")


@test
@outcome(43, "contained", "proxy variables of the user")
@outcome(71, "accepted", "Env with loader variables")
def agent_has_no_environment_and_no_slurm_descriptor(cluster):
    running = cluster.start_srun("-w", "node01", "sh", "-c", "echo up; read end || :", stdin=OPEN)
    running.await_text("up")
    agent, = cluster.step_agents("node01")
    equal(open(f"/proc/{agent}/environ", "rb").read(), b"", "environment")
    equal([os.readlink(f"/proc/{agent}/fd/{number}") for number in range(3)], ["/dev/null"] * 3, "descriptors 0 to 2")
    others = [os.readlink(f"/proc/{agent}/fd/{number}") for number in os.listdir(f"/proc/{agent}/fd") if int(number) > 2]
    known = re.compile(r"socket:|user:|mnt:|/memfd:spank-container|/var/lib/spank-container|/run/spank-container/policy")
    equal([name for name in others if not known.match(name)], [], "descriptors that are not the agent's own")
    equal(os.readlink(f"/proc/{agent}/cwd"), os.readlink(f"/proc/{cluster.pid('node01')}/root"), "work directory")
    running.end().good()


@test
def agent_has_only_the_capabilities_it_needs(cluster):
    running = cluster.start_srun("-w", "node01", "sh", "-c", "echo up; read end || :", stdin=OPEN)
    running.await_text("up")
    agent, = cluster.step_agents("node01")
    status = status_of(open(f"/proc/{agent}/status").read())
    allowed = sum(1 << number for number in ALLOWED_CAPABILITIES.values())
    for name in ("CapPrm", "CapEff", "CapBnd"):
        equal(int(status[name], 16) & ~allowed, 0, f"{name} beyond what is needed")
    equal(int(status["CapInh"], 16) | int(status["CapAmb"], 16), 0, "capabilities that would be inherited")
    equal(status["NoNewPrivs"], "1", "NoNewPrivs")
    equal(status["Groups"].split(), ["2001", "2100"], "groups: the builder needs those of the job, and no other")
    running.end().good()


@test
def agent_cannot_be_traced_or_signalled_by_the_user(cluster):
    running = cluster.start_srun("-w", "node01", "bash", "-c", """
        agent=$(grep -lx agent /proc/[0-9]*/comm 2>/dev/null | head -n 1); agent=${agent%/comm}
        ls $agent/fd; cat $agent/maps; kill -9 ${agent#/proc/}; echo "found $agent" """)
    done = running.end()
    expect(re.search(r"found /proc/\d+", done.out), "the agent is not visible, the test is void", done)
    equal(done.out.count("\n"), 1, "lines that only the agent's owner may read", done)
    equal(done.err.lower().count("permission denied") + done.err.lower().count("not permitted"), 3, "refusals", done)


@test
def agent_is_static(cluster):
    program = open(cluster.inside("node01", "/usr/libexec/spank-container/agent"), "rb").read()
    expect(b"/ld-linux" not in program[:4096], "the agent asks for a dynamic loader")


@test
def helpers_other_than_the_agent_never_run_as_root(cluster):
    image = with_probe("helpers", [("data", os.urandom(200000))])
    name, layers = cluster.faulty.publish(image)
    gate = cluster.faulty.hold(layers[0])
    running = cluster.start_srun("-w", "node01", "/probe", image=name)
    running.await_text("pulling")
    owners = {}

    def are_sealed():  # a helper that has just begun is not yet
        for helper in ("import", "layer-writer"):
            for pid in cluster.processes("node01", helper):
                status = status_of(open(f"/proc/{pid}/status").read())
                owners[helper] = (set(status["Uid"].split()), int(status["CapEff"], 16), status["NoNewPrivs"], status["Seccomp"])
        return len(owners) == 2 and all(owner[3] == "2" for owner in owners.values())
    await_true(are_sealed, 10, "import and layer-writer are not sealed")
    gate.set()
    running.end().good()
    equal(owners.get("import"), ({"998"}, 0, "1", "2"), "user, capabilities, no_new_privs and seccomp of import")
    equal(owners.get("layer-writer"), ({"998"}, 0, "1", "2"), "user, capabilities, no_new_privs and seccomp of layer-writer")


# Runs as a process of the service user outside of a sandbox: its access to the process with this
# number.
REACH = """
import ctypes, os, sys
os.setgroups([])
os.setresgid(998, 998, 998)
os.setresuid(998, 998, 998)
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
for name in ("fd/3", "mem", "environ", "maps"):
    try:
        os.close(os.open(f"/proc/{pid}/{name}", os.O_RDWR if name in ("fd/3", "mem") else os.O_RDONLY))
        print(name)
    except OSError:
        pass
if libc.ptrace(0x4206, pid, None, None) == 0:
    print("ptrace")
if libc.syscall(438, libc.syscall(434, pid, 0), 3, 0) >= 0:
    print("pidfd_getfd")
if [fd for fd in os.listdir(f"/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}") and "layers" in os.readlink(f"/proc/self/fd/{fd}")]:
    print("layer")
"""


@test
def layer_files_are_unreachable_for_the_service_user(cluster):
    name, layers = cluster.faulty.publish(with_probe("reach", [("data", os.urandom(200000))]))
    gate = cluster.faulty.hold(layers[0])
    running = cluster.start_srun("-w", "node01", "/probe", image=name)
    running.await_text("pulling")
    try:
        writers, importers = cluster.processes("node01", "layer-writer"), cluster.processes("node01", "import")
        expect(writers and importers, "no pull is under way")
        for pid in writers + importers:
            inside = status_of(open(f"/proc/{pid}/status").read())["NSpid"].split()[-1]
            done = cluster.enter("node01", "root", "python3", "-c", REACH, inside).end()
            expect(done.rc == 0, "the attempts broke off", done)
            equal(done.out, "", f"reached of process {pid}", done)
        files = [os.readlink(f"/proc/{pid}/fd/{fd}") for pid in importers for fd in os.listdir(f"/proc/{pid}/fd")]
        expect(not [file for file in files if "/layers/" in file], f"import has a file of a layer: {files}")
    finally:
        gate.set()
    running.end().good()


@test
def store_files_are_unreachable_for_users(cluster):
    cluster.srun("-w", "node01", "true").good()
    modes = {}
    for path in ("layers/sha256", "records", "names", "grants", "images", "public", "locks"):
        status = os.stat(os.path.join(cluster.store("node01"), path))
        modes[path] = (status.st_uid, status.st_gid, oct(status.st_mode & 0o7777))
    equal(modes, {"layers/sha256": (0, 998, "0o750"), "records": (0, 998, "0o750"), "names": (0, 0, "0o755"), "grants": (0, 998, "0o750"),
                  "images": (998, 998, "0o700"), "public": (998, 998, "0o755"), "locks": (998, 998, "0o600")}, "owners and modes")


# --- malicious images -----------------------------------------------------------------------------

LINKS = [("evil", "-> /etc"), ("up", "-> ../../../../../../etc"), ("magic", "-> /proc/1/root/etc"),
         ("self", "-> /proc/self/cwd"), ("etc", None), ("etc/inside", b"yes")]


def lands_inside(cluster, target, seen_as):
    """Checks that a file mounted at `target` is visible inside, and that the node's /etc is
    unchanged."""
    before = sorted(os.listdir(cluster.etc))
    path = os.path.join(cluster.shared, "landed")
    with open(path, "w") as file:
        file.write("landed\n")
    out = cluster.srun(f"--container-mounts=/home/shared/landed:{target}", "/probe", seen_as, image=with_probe("links", LINKS)).good()
    expect("\nlanded\n" in out, f"the mount is not where the link of the image leads: {out}")
    equal(sorted(os.listdir(cluster.etc)), before, "files in the node's /etc")


@test
def mount_through_absolute_image_link_stays_inside(cluster):
    lands_inside(cluster, "/evil/made", "/etc/made")


@test
def mount_through_climbing_link_stays_inside(cluster):
    lands_inside(cluster, "/up/made", "/etc/made")


@test
@outcome(130, "contained", "links into /proc; entries under proc, sys, dev")
def mount_through_link_into_proc_is_refused_or_stays_inside(cluster):
    before = sorted(os.listdir(cluster.etc))
    done = cluster.srun("--container-mounts=/home/shared:/magic/made", "/probe", image=with_probe("links", LINKS))
    expect(done.rc == 1 and len(done.errors()) == 1, "not refused with one line", done)
    equal(sorted(os.listdir(cluster.etc)), before, "files in the node's /etc")


@test
def workdir_that_is_a_magic_link_is_refused(cluster):
    for number in (3, 5, 8, 10):
        done = cluster.srun(f"--container-workdir=/proc/self/fd/{number}", "true")
        expect(done.rc == 1 and len(done.errors()) == 1, "not refused with one line", done)
    done = cluster.srun("--container-workdir=/proc/self/cwd", "pwd")
    expect(done.rc == 1 and len(done.errors()) == 1, "not refused with one line", done)


@test
@outcome(73, "contained", "work directory that is a link, missing, a file")
def image_workdir_that_is_a_magic_link_is_refused(cluster):
    image = with_probe("leak", [("dir", None)], WorkingDir="/proc/self/fd/8/../../..")
    done = cluster.srun("/probe", image=image)
    expect(done.rc == 1 and len(done.errors()) == 1, "not refused with one line", done)
    expect("this is the image's work directory; set another with --container-workdir" in done.err, "whose directory it is was not said", done)


def passwd_of(cluster, name, entry):
    """Returns /etc/passwd as alice reads it if the image has this file."""
    out = cluster.srun("/probe", "/etc/passwd", image=with_probe(name, [("etc", None), entry])).good()
    expect("alice:x:2001:2001::/home/alice:/bin/bash\n" in out, f"there is no entry of the user: {out[:400]}")
    return out


@test
def image_passwd_keeps_its_entries_and_gets_the_user(cluster):
    out = passwd_of(cluster, "passwd", ("etc/passwd", b"root:x:0:0::/root:/bin/sh\nold:x:2001:5::/:/bin/sh\nalice:x:7:7::/:/bin/sh\nmail:x:8:8::/:"))
    expect("root:x:0:0" in out and "\nmail:x:8:8" in out, f"entries of the image are lost: {out}")
    expect("old:x" not in out and "alice:x:7" not in out, f"another entry has the user's name or number: {out}")


@test
def passwd_that_is_a_fifo_is_replaced(cluster):
    passwd_of(cluster, "fifo", special("etc/passwd", b"6"))


@test
def passwd_that_is_a_directory_is_replaced_or_refused(cluster):
    done = cluster.srun("/probe", image=with_probe("dir-passwd", [("etc", None), ("etc/passwd", None)]))
    expect(done.rc == 0 or (done.rc == 1 and len(done.errors()) == 1), "neither accepted nor refused with one line", done)


@test
def passwd_that_is_a_link_is_replaced_but_not_its_target(cluster):
    image = with_probe("link-passwd", [("etc", None), ("etc/passwd", "-> other"), ("etc/other", b"root:x:0:0::/root:/bin/sh\n")])
    out = cluster.srun("/probe", "/etc/passwd", "/etc/other", image=image).good()
    expect("alice:x:2001" in out.split("/etc/other:")[0], f"no entry of the user: {out}")
    expect("alice" not in out.split("/etc/other:")[1], f"the link was followed for writing: {out}")


@test
def passwd_that_is_huge_is_harmless(cluster):
    passwd_of(cluster, "huge", ("etc/passwd", b"x" * (32 << 20)))


@test
def image_without_any_directory_starts(cluster):
    out = cluster.srun("/probe", "/etc/passwd", "/etc/group", "/tmp", "/home/alice", image=with_probe("bare", [])).good()
    for wanted in ("alice:x:2001:2001", "rigteam:x:2100:alice", "/tmp: mode 41777", "/home/alice: mode 40755 uid 2001", "uid 2001, in /\n"):
        expect(wanted in out + "\n", f"{wanted!r} is missing: {out}")


@test
def image_without_a_shell_starts_with_several_tasks(cluster):
    out = cluster.srun("-n4", "/probe", image=with_probe("bare", [])).good()
    equal(out.count("uid 2001"), 4, "tasks")


@test
@outcome(55, "accepted", "no layers, null layers")
def image_without_layers_starts(cluster):
    done = cluster.srun("--container-mounts=/home/shared/probe:/probe", "/probe", image=empty_image(cluster))
    done.good()


def empty_image(cluster):
    from images import probe
    path = os.path.join(cluster.shared, "probe")
    with open(path, "wb") as file:
        file.write(probe())
    os.chmod(path, 0o755)
    return Image("suites/empty", [])


@test
@outcome(130, "contained", "links into /proc; entries under proc, sys, dev")
def image_with_links_as_proc_sys_dev_tmp_starts_inside(cluster):
    links = [("proc", "-> /usr/p"), ("sys", "-> usr/s"), ("dev", "-> /usr/d"), ("tmp", "-> /usr/t")]
    done = cluster.srun("/probe", "/usr/t", image=with_probe("linked", [*links, ("usr", None)]))
    expect("/usr/t: mode 41777" in done.good(), "/tmp is not where the image's link leads", done)


@test
def image_with_file_as_dev_is_refused(cluster):
    done = cluster.srun("/probe", image=with_probe("dev-file", [("dev", b"")]))
    equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
    expect('"/dev"' in done.errors()[0], "the line does not name /dev", done)


@test
@outcome(131, "contained", "a loop, a dangling link or a file as parent")
def image_link_loop_is_refused(cluster):
    image = with_probe("loop", [("a", "-> b"), ("b", "-> a")])
    done = cluster.srun("--container-mounts=/home/shared:/a", "/probe", image=image)
    equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)


@test
@outcome(97, "accepted", "whiteouts, opaque directories, three layers")
def opaque_markers_and_whiteouts_work_like_docker(cluster):
    lower = [("probe", None), ("dir", None), ("dir/old", b"old\n"), ("gone", b"gone\n")]
    from images import probe
    image = Image("suites/whiteouts", [lower, [(".wh.probe", b""), (".wh.gone", b""), ("dir", None), ("dir/.wh..wh..opq", b""), ("dir/new", b"new\n")],
                                       [("probe", probe())]])
    out = cluster.srun("/probe", "/gone", "/dir/old", "/dir/new", "/dir/.wh..wh..opq", image=image).good()
    for wanted in ("/gone: missing", "/dir/old: missing", "/dir/.wh..wh..opq: missing", "\nnew\n"):
        expect(wanted in out, f"{wanted!r} is missing: {out}")


@test
@outcome(114, "accepted", "capabilities and overlay attributes are dropped")
def forged_overlay_attributes_have_no_effect(cluster):
    forged = named("dir", None)
    forged.pax_headers = {"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.user.overlay.opaque": "y",
                          "SCHILY.xattr.security.capability": "x", "SCHILY.xattr.trusted.overlay.redirect": "/etc"}
    from images import probe
    image = Image("suites/forged", [[("probe", probe()), ("dir", None), ("dir/old", b"still\n")], [forged]])
    out = cluster.srun("/probe", "/dir/old", image=image).good()
    expect("\nstill\n" in out, f"an attribute of the image hid a file: {out}")
