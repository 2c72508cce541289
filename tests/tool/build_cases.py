"""scontainer build: recipes to images of the user's store, without privilege."""

import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time

import cases
import machine
from machine import base, home, user


def write(path, text, mode=0o644):
    path = os.path.join(home, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.chown(os.path.dirname(path), machine.UID, machine.UID)
    machine.write(path, text)
    os.chmod(path, mode)


def build(recipe, *options, context="recipe", **more):
    write(f"{context}/Dockerfile", recipe)
    return user("build", *options, context, **more)


def steps():
    directory = machine.store("build", "steps")
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def test_image_of_recipe_runs_with_its_settings():
    write("recipe/app/run.sh", "#!/bin/sh\necho \"$1 from $WHO in $(pwd)\"\n", 0o755)
    done = build(f"""FROM {base()}
ARG WHO=nobody
ENV WHO=$WHO LANGUAGES="a b"
LABEL org.example.kind=test
WORKDIR /srv/app
COPY app/ ./
RUN echo made >made && ln -s made link && rm /workspace/file && id -u >user
ENTRYPOINT ["./run.sh"]
CMD ["hello"]
""", "-t", "lab/app:1", "--build-arg", "WHO=alice")
    done.succeeds("sha256:")
    assert user("run", "-q", "lab/app:1").succeeds().out == "hello from alice in /srv/app\n"
    inside = user("run", "-q", "lab/app:1", "sh", "-c", "cat made user link; ls /workspace; stat -c %a run.sh; echo \"$LANGUAGES\"")
    inside = user("run", "-q", "--no-entrypoint", "lab/app:1", "sh", "-c",
                  "cat made user link; ls /workspace; stat -c %a run.sh; echo \"$LANGUAGES\"") if inside.status else inside
    assert "hard-link" in inside.out or inside.out.startswith("sh from"), inside
    facts = user("inspect", "--json", "lab/app:1").json()
    assert "org.example.kind" in json.dumps(facts), facts


def test_unchanged_recipe_starts_no_container():
    recipe = f"FROM {base()}\nRUN date +%N >/stamp\nCOPY x /x\nENTRYPOINT [\"cat\", \"/stamp\"]\n"
    write("cached/x", "1")
    first = build(recipe, "-t", "cached:1", context="cached").succeeds().out
    stamp = user("run", "-q", "cached:1").succeeds().out
    kept = steps()
    began = time.monotonic()
    again = build(recipe, "-t", "cached:1", context="cached").succeeds()
    assert time.monotonic() - began < 5, again
    assert again.out == first and steps() == kept and again.err.count("cached\n") == 2, again
    assert user("run", "-q", "cached:1").succeeds().out == stamp
    write("cached/x", "2")
    changed = build(recipe, "-t", "cached:1", context="cached").succeeds()
    assert changed.out != first and changed.err.count("cached\n") == 1, changed
    assert user("run", "-q", "cached:1").succeeds().out == stamp
    fresh = build(recipe, "--no-cache", "-t", "cached:1", context="cached").succeeds()
    assert "cached\n" not in fresh.err, fresh
    after = user("run", "-q", "cached:1").succeeds()
    assert after.out != stamp, (fresh, first, changed, after)


def test_step_sees_and_keeps_files_of_root_home():
    write("roothome/given", "given\n")
    recipe = f"FROM {base()}\nCOPY given /root/given\nRUN cat /root/given >/root/made && chmod 755 /root\n"
    build(recipe, "-t", "roothome:1", context="roothome").succeeds()
    assert user("run", "-q", "roothome:1", "cat", "/root/made").succeeds().out == "given\n"


def test_directory_of_image_runs_and_becomes_a_file():
    recipe = f"FROM {base()}\nENV WHERE=box\nRUN echo made >/root/made && chmod 750 /root\n"
    build(recipe, "-t", "box:1", "-o", "box/", context="box-recipe").succeeds()
    inside = os.path.join(home, "box")
    assert os.readlink(f"{inside}/workspace/absolute-link") == "/etc/os-release" and os.path.exists(f"{inside}/.singularity.d")
    assert user("run", "-q", "./box", "sh", "-c", "cat /root/made; echo $WHERE").succeeds().out == "made\nbox\n"
    user("export", "./box", "box.sif").succeeds()
    assert user("run", "-q", "./box.sif", "sh", "-c", "cat /root/made; echo $WHERE").succeeds().out == "made\nbox\n"
    user("export", "box:1", "box/").fails(1, 'create directory "box": file exists')


def test_files_and_directories_of_the_user_are_bases():
    build(f"FROM {base()}\nRUN echo one >/one\nENV ONE=1\n", "-t", "lab/of-file:1", "-o", "of-file.sif").succeeds()
    user("export", "lab/of-file:1", "of-file/").succeeds()
    for source in ("./of-file.sif", "./of-file", os.path.join(home, "of-file.sif")):
        done = build(f"FROM {source}\nCOPY --from=./of-file.sif /one /copied\nRUN cat /copied >/two && echo $ONE >>/two\n", "-t", "lab/on-file:1").succeeds()
        assert user("run", "-q", "lab/on-file:1", "cat", "/two").succeeds().out.endswith("one\n1\n") or "one" in done.out, done
    before = steps()
    write("files.def", "Bootstrap: localimage\nFrom: of-file.sif\n%post\ncat /one >/of-post\n")
    user("build", "-o", "of-def.sif", "files.def").succeeds()
    assert user("run", "-q", "./of-def.sif", "cat", "/of-post").succeeds().out == "one\n" and len(steps()) > len(before)
    assert not [name for name in os.listdir(machine.store("build")) if name.startswith("base")]
    build("FROM ./no-such.sif\nRUN true\n").fails(1, "no-such.sif")


def test_stages_give_files_to_the_last():
    done = build(f"""ARG BASE={base()}
FROM $BASE AS build
RUN mkdir /out && echo program >/out/program && chmod 750 /out/program
FROM $BASE AS unused
RUN exit 1
FROM $BASE
COPY --from=build /out/program /usr/local/bin/
COPY --from={base()} /etc/os-release /copied
RUN test -x /usr/local/bin/program && ! test -e /out
""", "-t", "stages:1")
    done.succeeds()
    assert user("run", "-q", "stages:1", "cat", "/usr/local/bin/program").succeeds().out == "program\n"
    user("run", "-q", "stages:1", "cat", "/copied").succeeds("Debian")


def meeting(name, other):
    """Returns a step that ends only if the step of the other name runs at the same time."""
    return f"RUN --mount=type=cache,target=/meet,id=meet touch /meet/{name}; n=0; until test -e /meet/{other}; do sleep 0.05; n=$((n+1)); test $n -lt 600 || exit 1; done; echo met\n"


def test_stages_without_need_of_each_other_run_at_once():
    if len(os.sched_getaffinity(0)) < 2:
        raise cases.Skipped("one processor")
    shared = machine.store("build", "mounts", hashlib.sha256(b"meet").hexdigest()[:32])
    recipe = f"FROM {base()} AS one\nENV ONE=1\n{meeting('a', 'b')}FROM {base()} AS two\n{meeting('b', 'a')}FROM one\nRUN echo $ONE >/one\nCOPY --from=two /etc/hostname* /etc/os-release /\n"
    done = build(recipe, "-t", "lab/at-once:1").succeeds()
    assert "one: met\n" in done.err and "two: [2/2] RUN" in done.err and "stage 2: [3/3] COPY" in done.err, done
    assert sorted(os.listdir(shared)) == ["a", "b"]
    assert user("run", "-q", "lab/at-once:1", "cat", "/one").succeeds().out == "1\n"
    for name in os.listdir(shared):
        os.unlink(os.path.join(shared, name))
    again = build(recipe, "-t", "lab/at-once:1").succeeds()  # from the cache
    assert again.out == done.out and again.err.count("cached\n") == 4 and os.listdir(shared) == [], again
    fresh = build(recipe, "-t", "lab/at-once:1", "--no-cache").succeeds()
    assert "cached" not in fresh.err, fresh


def test_stage_that_fails_ends_the_others():
    before = steps()
    done = build(f"FROM {base()} AS one\nRUN sleep 600\nFROM {base()} AS two\nRUN echo of two; exit 3\nFROM one\nCOPY --from=two /x /\n")
    done.fails(1, "Dockerfile:4: RUN", "exit status 3")
    assert "two: of two\n" in done.err, done
    machine.wait_for("the step's directory is there", lambda: steps() == before)


def test_quiet_build_prints_digest_or_end_of_output():
    done = build(f"FROM {base()}\nRUN echo to stdout; echo to stderr >&2\n", "-q").succeeds()
    assert done.err == "" and done.out.startswith("sha256:") and len(done.out.split()) == 1, done
    failed = build(f"FROM {base()}\nRUN for i in $(seq 100); do echo line $i; done; exit 2\n", "-q")
    failed.fails(1, "Dockerfile:2: RUN", "exit status 2")
    assert failed.out == "" and failed.err.startswith("line 81\n") and "line 100\nscontainer" in failed.err, failed


def test_debug_shell_starts_where_run_fails():
    before = steps()
    recipe = f"FROM {base()}\nENV WORD=of-env\nWORKDIR /srv\nRUN echo left >state; exit 4\n"
    done = build(recipe, "--debug-shell", stdin="echo shell: $(cat /srv/state) $WORD in $PWD\nexit 9\n")
    assert done.status == 1 and "shell: left of-env in /srv\n" in done.err, done
    assert done.err.endswith("Dockerfile:4: RUN: exit status 4\n"), done
    assert len(steps()) == len(before) + 1  # that of WORKDIR
    build(recipe, stdin="echo not read\n").fails(1, "exit status 4 (hint: with --debug-shell")
    build(f"FROM {base()}\nRUN test -z \"$(cat)\"\n", stdin="input").succeeds()


def test_argument_file_gives_values_that_options_replace():
    write("values", "# of the lab\n\nONE=from file\nTWO=2\n")
    build(f"FROM {base()}\nARG ONE TWO\nRUN echo \"$ONE $TWO\" >/values\n", "--build-arg-file", "values", "--build-arg", "TWO=3", "-t", "lab/values:1").succeeds()
    assert user("run", "-q", "lab/values:1", "cat", "/values").succeeds().out == "from file 3\n"
    write("values", "ONE=1\nTWO\n")
    build(f"FROM {base()}\n", "--build-arg-file", "values").fails(1, "--build-arg-file: values:2: is not NAME=VALUE")


def test_built_image_is_pushed_to_its_registry():
    name = f"{machine.registry.name}/lab/direct:2"
    digest = build(f"FROM {base()}\nRUN echo direct >/direct\n", "-q", "--push", "-t", name).succeeds().out.strip()
    assert "sha256:" + hashlib.sha256(machine.registry.repositories["lab/direct"].manifests["2"][1]).hexdigest() == digest
    build(f"FROM {base()}\n", "--push").fails(1, "--push: the image has no name")


CHANGES = ("--change", "ENV WORD=changed PLAIN=1", "--change", "WORKDIR=/workspace/old", "-c", 'ENTRYPOINT ["/bin/sh", "-c"]', "-c", 'CMD=["echo $WORD $GREETER in $PWD"]',
           "-c", "LABEL org.example.changed=yes", "-c", "USER 1000")


def test_change_sets_settings_of_exported_files():
    user("pull", "-q", base()).succeeds()
    for target in ("changed.sqsh", "changed.sif", "changed.tar"):
        user("export", base(), target, *CHANGES).succeeds()
        name = f"oci-archive:{target}" if target.endswith(".tar") else f"./{target}"
        assert user("run", "-q", "--entrypoint", name).succeeds().out == "changed base in /workspace/old\n", target
    assert "org.example.changed" in user("inspect", "--json", "./changed.sif").succeeds().out
    user("export", "./changed.sif", "rechanged.sif", "--change", "ENV WORD=again").succeeds()
    assert user("run", "-q", "--entrypoint", "./rechanged.sif").succeeds().out == "again base in /workspace/old\n"
    user("export", base(), "never.sqsh", "--change", "RUN true").fails(1, "--change: RUN changes files")
    user("export", base(), "never.sqsh", "--change", "ENVV A=1").fails(1, "did you mean ENV?")
    assert not os.path.exists(os.path.join(home, "never.sqsh"))


def test_change_of_push_keeps_layers():
    user("push", "-q", base(), f"{machine.registry.name}/changed:1", *CHANGES).succeeds("sha256:")
    name = f"{machine.registry.name}/changed:1"
    assert user("run", "-q", "--entrypoint", name).succeeds().out == "changed base in /workspace/old\n"

    def layers(repository):
        return [layer["digest"] for layer in json.loads(machine.registry.repositories[repository].manifests["1"][1])["layers"]]
    assert layers("changed")[:-1] == layers("base")  # the last one has the work directory
    user("push", "-q", base(), f"{machine.registry.name}/plain:1", "-c", "ENV A=1").succeeds()
    assert layers("plain") == layers("base")
    user("export", base(), "bare.sqsh").succeeds()
    user("push", "-q", "./bare.sqsh", f"{machine.registry.name}/bare:1", *CHANGES).succeeds("sha256:")
    assert user("run", "-q", "--entrypoint", f"{machine.registry.name}/bare:1").succeeds().out == "changed base in /workspace/old\n"


def test_steps_of_pushed_image_are_used_elsewhere():
    name = f"{machine.registry.name}/lab/cache:1"
    recipe = f"FROM {base()} AS one\nRUN date +%N >/stamp\nENV A=1\nWORKDIR /srv\nCOPY x .\nRUN cat x >y\n"
    write("elsewhere/x", "1\n")
    build(recipe, "-t", name, "--push", context="elsewhere").succeeds()
    stamp = user("run", "-q", name, "cat", "/stamp").succeeds().out
    other = {"XDG_DATA_HOME": os.path.join(home, "elsewhere-data")}
    done = build(recipe, "-t", name, "--cache-from", name, context="elsewhere", **other).succeeds()
    assert done.err.count(f"cached in {name}\n") == 4 and os.listdir(os.path.join(other["XDG_DATA_HOME"], "spank-container/build/steps")) == [], done
    assert user("run", "-q", name, "cat", "/stamp", "/srv/y", **other).succeeds().out == stamp + "1\n"
    write("elsewhere/x", "2\n")
    build(recipe + "RUN cat /stamp /srv/y >/all\n", "-t", "lab/more:1", "--cache-from", name, context="elsewhere", **other).succeeds()
    assert user("run", "-q", "lab/more:1", "cat", "/all", **other).succeeds().out == stamp + "2\n"
    pushed = user("push", "-q", "lab/more:1", f"{machine.registry.name}/lab/more:1", **other).succeeds()
    assert user("run", "-q", f"{machine.registry.name}/lab/more:1", "cat", "/all").succeeds().out == stamp + "2\n", pushed
    done = build(f"FROM {base()}\nRUN true\n", "--cache-from", f"{machine.registry.name}/none:1").succeeds()
    assert "warning: --cache-from: " in done.err, done


def test_failing_step_names_line_and_leaves_nothing():
    before = steps()
    failed = build(f"FROM {base()}\n\n# comment\nRUN echo before; \\\n    exit 7\n", "-t", "never:1")
    failed.fails(1, "Dockerfile:4: RUN", "exit status 7")
    assert "before" in failed.out + failed.err, failed
    assert steps() == before, steps()
    assert "never" not in user("images").out
    build("FROM scratch\nCOPPY x\n").fails(1, "Dockerfile:2", 'unknown instruction "COPPY"', "did you mean COPY?")
    build(f"FROM {base()}\nCOPY nothing /x\n").fails(1, "Dockerfile:2: COPY", 'no file "nothing"')


def test_setup_leaves_no_trace_in_layers():
    build(f"FROM {base()}\nRUN touch /marker\n", "-t", "trace:1").succeeds()
    [step] = [s for s in steps() if os.path.exists(machine.store("build", "steps", s, "tree", "up", "marker"))]
    up = machine.store("build", "steps", step, "tree", "up")
    found = sorted(os.path.relpath(os.path.join(d, n), up) for d, names, files in os.walk(up) for n in names + files)
    assert found == ["etc", "etc/apt", "etc/apt/apt.conf.d", "marker"], found  # directories of the image, as they were


def test_definition_file_becomes_sif_and_image():
    write("def/src/tool.py", "print('tool')\n")
    write("def/lab.def", f"""# of the lab
Bootstrap: docker
From: {base()}

%arguments
    VERSION=1.0

%files
    src/tool.py /opt/tool.py
    src /srv

%post
    echo version {{{{ VERSION }}}} >/opt/version
    echo 'export FROM_POST=yes' >>$APPTAINER_ENVIRONMENT

%environment
    export LAB=physics
    export LAB_PATH=/opt/$LAB

%runscript
    echo "run $LAB $FROM_POST $@"

%labels
    Author alice@example.org
    Note two words "quoted"

%test
    test -r /opt/version

%help
    Of the lab.
""")
    user("build", "-t", "lab/def:1", "-o", "lab.sif", "--build-arg", "VERSION=2.0", "lab.def", cwd=os.path.join(home, "def")).succeeds()
    assert user("run", "-q", "--entrypoint", "lab/def:1", "a", "b").succeeds().out == "run physics yes a b\n"
    user("run", "-q", "lab/def:1", "sh", "-c", "cat /opt/version /opt/tool.py /srv/src/tool.py; echo $LAB_PATH").succeeds("version 2.0\nprint('tool')\nprint('tool')\n/opt/physics\n")
    user("run", "-q", "./def/lab.sif", "sh", "-c", "echo $LAB $FROM_POST $GREETER").succeeds("physics yes base\n")
    assert "alice@example.org" in user("inspect", "--json", "lab/def:1").succeeds().out
    write("def/bad.def", f"Bootstrap: docker\nFrom: {base()}\n%setup\n touch /x\n")
    user("build", "bad.def", cwd=os.path.join(home, "def")).fails(1, "bad.def:3", "%setup would run on the host")
    write("def/bad.def", f"Bootstrap: yum\nFrom: x\n")
    user("build", "bad.def", cwd=os.path.join(home, "def")).fails(1, "Bootstrap: yum is not supported", "Bootstrap: docker")


def test_archive_of_add_is_unpacked_and_links_stay_inside():
    path = os.path.join(home, "unpack")
    os.makedirs(path, exist_ok=True)
    with tarfile.open(os.path.join(path, "a.tar.gz"), "w:gz") as archive:
        for name, content in (("d/x", b"1"), ("d/y", b"2")):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for name, target in (("out", "/"), ("up", "../../..")):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    build(f"FROM {base()}\nADD a.tar.gz /data/\nCOPY a.tar.gz /kept/\n", "-t", "unpacked:1", context="unpack").succeeds()
    assert user("run", "-q", "unpacked:1", "sh", "-c", "cd /data; cat d/x d/y; readlink out up; ls /kept").succeeds().out == "12/\n../../..\na.tar.gz\n"
    with tarfile.open(os.path.join(path, "a.tar.gz"), "w:gz") as archive:
        link, entry = tarfile.TarInfo("l"), tarfile.TarInfo("l/escaped")
        link.type, link.linkname = tarfile.SYMTYPE, home
        archive.addfile(link)
        archive.addfile(entry)
    build(f"FROM {base()}\nADD a.tar.gz /data/\n", "-t", "unpacked:2", context="unpack").succeeds()
    assert user("run", "-q", "unpacked:2", "ls", "/data/l").succeeds().out == "escaped\n"
    assert not os.path.exists(os.path.join(home, "escaped"))


def test_url_of_add_is_fetched_and_compared():
    data = b"of the server\n" * 1000
    machine.registry.paths.append((r"/files/add\.txt", lambda handler: handler.serve_bytes(data)))
    url = f"https://{machine.registry.name}/files/add.txt"
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    recipe = f"FROM {base()}\nADD --checksum={digest} {url} /srv/\nADD --chmod=644 {url} /srv/named\nRUN cat /srv/add.txt /srv/named | wc -c\n"
    build(recipe, "-t", "lab/add:1").succeeds()
    assert user("run", "-q", "lab/add:1", "stat", "-c", "%a %s", "/srv/add.txt", "/srv/named").succeeds().out == "600 14000\n644 14000\n"
    build(f"FROM {base()}\nADD --checksum=sha256:{'0' * 64} {url} /srv/\n").fails(1, "not the one in the URL")
    build(f"FROM {base()}\nADD https://{machine.registry.name}/files/none /srv/\n").fails(1, "Dockerfile:2", "none")
    build(f"FROM {base()}\nADD https://example.org/tools.git /srv/\n").fails(1, "git clone")


def test_mount_of_run_shows_another_stage_and_image():
    build(f"""FROM {base()} AS made
RUN echo made >/made
FROM {base()}
RUN --mount=type=bind,from=made,source=made,target=/m --mount=type=bind,from={base()},target=/image cat /m >/seen && ls /image/workspace >>/seen
RUN --mount=type=bind,from=made,target=/stage ! touch /stage/x
""", "-t", "lab/mounted:1").succeeds()
    assert user("run", "-q", "lab/mounted:1", "sh", "-c", "head -1 /seen; ls -d /m /stage 2>&1 | grep -c No").succeeds().out.startswith("made\n")


def test_hostile_context_neither_leads_out_nor_hangs():
    for name in ("fifo", "a\nb", "plain"):
        write(f"hostile/{name}", "x\n")
    os.unlink(os.path.join(home, "hostile/fifo"))
    os.mkfifo(os.path.join(home, "hostile/fifo"))
    os.symlink("/etc", os.path.join(home, "hostile/out"))
    os.symlink("/etc/shadow", os.path.join(home, "hostile/secret"))
    os.mknod(os.path.join(home, "hostile/device"), 0o666 | 0o020000, os.makedev(1, 5))
    done = build(f"FROM {base()}\nCOPY . /ctx/\nRUN ls /ctx\n", "-t", "lab/hostile:1", context="hostile")
    if done.status == 0:
        out = user("run", "-q", "lab/hostile:1", "sh", "-c", "ls /ctx; test -c /ctx/device && echo device; cat /ctx/plain").succeeds().out
        assert "plain" in out and "device\ndevice" not in out and "root:" not in out, out
    else:
        done.fails(1, "Dockerfile:2")
    for source in ("../recipe", "/etc/../../etc/passwd", "out/passwd", "secret"):
        done = build(f"FROM {base()}\nCOPY {source} /x\nRUN ! grep root: /x\n", context="hostile")
        assert done.status != 0 or "root:" not in done.out, done
    write("hostile/.dockerignore", "x" * (17 << 20))
    build(f"FROM {base()}\nCOPY plain /x\n", context="hostile").fails(1, ".dockerignore")


def test_interrupted_build_ends_its_step_at_once():
    write("recipe/Dockerfile", f"FROM {base()}\nRUN sleep 600 & echo begun && (trap '' TERM INT; while :; do sleep 0.05; done) & while :; do sleep 0.05; done\n")
    before = steps()
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen(machine.as_user(["scontainer", "build", "recipe"]), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   env=machine.environment(), cwd=home, text=True, start_new_session=True)
        assert any("begun" in line for line in process.stdout), "the step has not begun"
        process.send_signal(number)
        assert process.wait(10) != 0
        assert not any("sleep 600" in line for line in machine.run(["ps", "-s", str(process.pid), "-o", "args="], "", None, "/").out.splitlines())
        process.stdout.close()
        machine.wait_for("the step's directory is there", lambda: steps() == before)


def test_pushed_image_keeps_the_layers_of_its_base():
    digest = build(f"FROM {base()}\nRUN echo built >/built\n", "-t", "pushed:1").succeeds().out.strip()
    assert user("push", "-q", "pushed:1", f"{machine.registry.name}/built:1").succeeds().out.strip() == digest
    manifest = json.loads(machine.registry.repositories["built"].manifests["1"][1])
    assert len(manifest["layers"]) == 4, manifest
    user("run", "-q", f"{machine.registry.name}/built:1", "cat", "/built").succeeds("built\n")


def test_pushed_image_has_layers_of_a_base_that_was_built_here():
    build(f"FROM {base()}\nRUN echo one >/one\n", "-t", "lab/below:1").succeeds()
    build("FROM lab/below:1\nRUN echo two >/two\n", "-t", "lab/above:1").succeeds()
    user("push", "-q", "lab/above:1", f"{machine.registry.name}/above:1").succeeds()
    assert user("run", "-q", f"{machine.registry.name}/above:1", "cat", "/one", "/two").succeeds().out == "one\ntwo\n"
    assert len(json.loads(machine.registry.repositories["above"].manifests["1"][1])["layers"]) == 5


def test_links_of_context_do_not_lead_out_of_it():
    machine.write(os.path.join(home, "outside"), "secret")
    os.makedirs(os.path.join(home, "linked"), exist_ok=True)
    for name, target in (("absolute", os.path.join(home, "outside")), ("up", "../outside")):
        if not os.path.islink(os.path.join(home, "linked", name)):
            os.symlink(target, os.path.join(home, "linked", name))
        build(f"FROM {base()}\nCOPY {name} /x\n", context="linked").fails(1, "COPY", f'no file "{name}"')
    build(f"FROM {base()}\nCOPY ../outside /x\n", context="linked").fails(1, 'no file "../outside"')


def test_two_builds_of_one_recipe_give_one_image():
    recipe = f"FROM {base()}\n{meeting('$$', '[0-9]*')}COPY x /x\nRUN cat /x >/y\n".replace("id=meet", "id=twice").replace(
        "until test -e /meet/[0-9]*", "until test $(ls /meet | wc -l) -ge 2").replace("/meet/$$", "/meet/$(cat /proc/sys/kernel/random/uuid)")
    write("twice/x", "content\n")
    write("twice/Dockerfile", recipe)
    builds = [machine.start("build", "-q", "-t", "lab/twice:1", "twice") for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in builds]
    assert [process.returncode for process in builds] == [0, 0] and outputs[0] == outputs[1], outputs
    assert user("run", "-q", "lab/twice:1", "cat", "/y").succeeds().out == "content\n"
    assert not [step for step in steps() if step.startswith("new-")], steps()


def test_full_disk_fails_build_and_leaves_nothing():
    small = os.path.join(home, "small")
    os.makedirs(small)
    machine.mount("-t", "tmpfs", "-o", f"size=96M,mode=755,uid={machine.UID},gid={machine.UID}", "tool", small)
    try:
        def on_small(recipe, *options):
            write("full/Dockerfile", recipe)
            return user("build", *options, "full", XDG_DATA_HOME=small)
        on_small(f"FROM {base()}\nRUN true\n", "-t", "lab/fits:1").succeeds()
        store = os.path.join(small, "spank-container")
        used, before = shutil.disk_usage(small).used, sorted(os.listdir(os.path.join(store, "build/steps")))
        failed = on_small(f"FROM {base()}\nRUN head -c 200M /dev/urandom >/big || exit 5\n")
        failed.fails(1, "Dockerfile:2: RUN: exit status 5")
        assert "No space left on device" in failed.err, failed
        write("full/big", "")
        os.truncate(os.path.join(home, "full/big"), 200 << 20)
        on_small(f"FROM {base()}\nCOPY big /\n").fails(1, "Dockerfile:2: COPY", "no space left on device")
        half = shutil.disk_usage(small).free // 5 * 3  # fits as a file, not with its layer
        on_small(f"FROM {base()}\nRUN head -c {half} /dev/urandom >/half\n").fails(1, "Dockerfile:2: RUN: store the layer: the user's image store is full", "scontainer gc")
        machine.wait_for("the steps are removed", lambda: sorted(os.listdir(os.path.join(store, "build/steps"))) == before)
        assert shutil.disk_usage(small).used < used + (1 << 20), (used, shutil.disk_usage(small))
        on_small(f"FROM {base()}\nRUN echo fits >/fits\n", "-t", "lab/fits:2").succeeds()
        assert user("run", "-q", "lab/fits:2", "cat", "/fits", XDG_DATA_HOME=small).succeeds().out == "fits\n"
    finally:
        machine.wait_for("helpers are gone", lambda: not machine.our_processes())
        subprocess.run(["umount", small], check=True)


def test_manual_examples_run_unchanged():
    """Of scontainer-build(1), with another registry, and without srun before the command."""
    with open(os.path.join(machine.HERE, "../../packaging/man/scontainer-build.1")) as file:
        page = file.read().split("\n.SH EXAMPLES\n")[1].split("\n.SH ")[0].replace("\\-", "-")
    lines = re.findall(r"(?m)^(?:srun (?:-\S+ (?:\d+ )?)*)?(scontainer build .*)$", page)
    assert len(lines) >= 6 and len(lines) == page.count("scontainer build "), page
    recipe = f"ARG CUDA=0\nFROM {base()} AS test\nRUN --mount=type=secret,id=token true\nFROM {base()}\nARG CUDA\nRUN echo cuda $CUDA >/cuda\n"
    for name, text in (("Dockerfile", recipe), ("Dockerfile.gpu", recipe), ("token.txt", "secret"), ("app.def", f"Bootstrap: docker\nFrom: {base()}\n%post\ntrue\n")):
        write(f"manual/{name}", text)
    for line in lines:
        words = line.replace("registry.example.org", machine.registry.name).split()
        user(*words[1:], cwd=os.path.join(home, "manual")).succeeds("sha256:")
    user("run", "-q", "app:gpu", "cat", "/cuda").succeeds("cuda 12.4\n")
    assert "lab/app" in machine.registry.repositories and all(os.path.exists(os.path.join(home, "manual", name)) for name in ("app.sif", "app.sqsh"))


def test_killed_build_leaves_nothing_after_the_next():
    write("slow/Dockerfile", f"FROM {base()}\nRUN sleep 60 & sleep 60\n")
    process = machine.start("build", "slow")
    machine.wait_for("the step runs", lambda: any(step.startswith("new-") for step in steps()))
    def commands():
        found = subprocess.run(["ps", "-e", "-o", "pgid=,stat=,comm="], stdout=subprocess.PIPE, text=True).stdout
        return [words[2] for words in map(str.split, found.splitlines()) if int(words[0]) == process.pid and words[1][0] != "Z"]

    machine.wait_for("the command runs", lambda: "sleep" in commands())
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    machine.wait_for("its processes are gone", lambda: not commands())
    build(f"FROM {base()}\nRUN true\n").succeeds()
    assert not [step for step in steps() if step.startswith("new-")], steps()


def test_gc_removes_steps_unused_for_a_month():
    build(f"FROM {base()}\nRUN echo old >/old\n", "-t", "old:1").succeeds()
    kept = steps()
    assert user("gc", "--json").json()["build_steps"] == 0
    for step in kept:
        os.utime(machine.store("build", "steps", step, "layer"), (0, 0))
    build(f"FROM {base()}\nRUN echo old >/old\n", "-t", "old:1").succeeds()  # a use
    assert user("gc", "--json").json()["build_steps"] == len(kept) - 1
    user("gc", "--yes").succeeds()
    blobs = os.listdir(machine.store("build", "blobs"))
    assert len(steps()) == 1 and len(blobs) == 1, (steps(), blobs)
    user("run", "-q", "old:1", "cat", "/old").succeeds("old\n")
