"""The commands apptainer and singularity on top of scontainer, as tutorials and job scripts type them."""

import os
import stat
import subprocess

import machine
from machine import as_user, base, environment, home, run
from enroot_cases import plain

work = os.path.join(home, "apptainer")


def apptainer(*arguments, stdin="", program="apptainer", **variables):
    os.makedirs(work, exist_ok=True)
    os.chown(work, machine.UID, machine.UID)
    return run(as_user([program, *arguments]), stdin, environment(PWD=work, **variables), work)


def refuses(done, *texts):
    """As Apptainer does: status 255, one line."""
    errors = [line for line in done.err.splitlines() if line.startswith("FATAL:   ")]
    assert done.status == 255 and len(errors) == 1, done
    for text in texts:
        assert text in errors[0], f"{text!r} is not in the error of {done}"


def pulled(name="base_1.sif"):
    """A SIF of the base image, whose entrypoint prints its arguments."""
    if not os.path.exists(os.path.join(work, name)):
        apptainer("pull", name, "docker://" + base()).succeeds()
    return name


def says(*arguments, stdin="", **variables):
    return apptainer(*arguments, stdin=stdin, **variables).succeeds().out


def test_apptainer_pull_names_its_file_and_keeps_an_old_one():
    apptainer("pull", "docker://" + base()).succeeds()
    file = os.path.join(work, base().rsplit("/", 1)[1].replace(":", "_") + ".sif")
    assert os.access(file, os.X_OK), os.listdir(work)
    refuses(apptainer("pull", "docker://" + base()), "Image file already exists", "--force")
    apptainer("pull", "--force", "docker://" + base()).succeeds()
    refuses(apptainer("pull", "library://alpine"), "library://alpine", "docker://")


def test_apptainer_defaults_are_home_directory_tmp_and_environment():
    sif = pulled()
    machine.write(os.path.join(work, "here"), "in the work directory\n")
    with open("/tmp/spc-apptainer", "w"):
        pass
    try:
        out = says("exec", sif, "sh", "-c", "pwd; cat here; ls /tmp/spc-apptainer; echo $MINE $APPTAINER_NAME $SINGULARITY_NAME", MINE="mine")
        assert out.split("\n") == [work, "in the work directory", "/tmp/spc-apptainer", f"mine {sif} {sif}", ""], out
    finally:
        os.unlink("/tmp/spc-apptainer")
    done = apptainer("exec", sif, "sh", "-c", "touch /x; exit 3")
    assert done.status == 3 and "Read-only file system" in done.err, done
    assert says("exec", "--writable-tmpfs", sif, "sh", "-c", "echo x >/x && cat /x") == "x\n"
    assert apptainer("exec", sif, "no-such-program").status == 127


def test_apptainer_run_and_the_file_itself_run_the_images_command():
    sif = pulled()
    assert says("run", sif, "a", "b").endswith(": a b\n")
    assert says("run", sif).endswith(f" in {work}: world\n")  # not in the image's WORKDIR, as with Apptainer
    done = run(as_user(["./" + sif, "of the file"]), "", environment(PWD=work), work).succeeds()
    assert done.out.endswith(": of the file\n"), done
    without = apptainer("pull", "--force", "plain.sif", "docker://" + plain()).succeeds()
    assert says("run", "plain.sif", "echo", "its arguments") == "its arguments\n", without


def test_apptainer_contain_and_cleanenv_hide_host_and_variables():
    sif = pulled()
    out = says("exec", "-ce", sif, "sh", "-c", f"pwd; ls; ls {work}; echo [$MINE]; exit 0", MINE="mine")
    assert out == f"{home}\n[]\n", out
    assert says("exec", "-e", "--env", "A=1,B=2,3", sif, "sh", "-c", "echo $A $B $C", APPTAINERENV_C="of the variable") == "1 2,3 of the variable\n"
    out = says("exec", "-C", "--pwd", "/", "-W", "scratch-area", "-S", "/scr", sif, "sh", "-c", "echo 1 >/scr/a; echo 2 >/tmp/b; pwd")
    assert os.path.exists(os.path.join(work, "scratch-area/scratch/scr/a")) and os.path.exists(os.path.join(work, "scratch-area/tmp/b")), out


def test_apptainer_bind_forms_and_variables_mount():
    sif = pulled()
    for flags in (("-B", "/usr/share:/there:ro"), ("-B/usr/share:/there,/etc:/host-etc",), ("--bind=/usr/share:/there",),
                  ("--mount", "type=bind,source=/usr/share,destination=/there,ro")):
        assert says("exec", *flags, sif, "sh", "-c", "ls -d /there/doc") == "/there/doc\n", flags
    for variable in ("APPTAINER_BIND", "SINGULARITY_BINDPATH"):
        assert says("exec", sif, "ls", "-d", "/there/doc", **{variable: "/usr/share:/there"}) == "/there/doc\n"
    assert says("exec", "-B", "/usr/share:/there", sif, "sh", "-c", "echo $SINGULARITY_BIND") == "/usr/share:/there\n"
    refuses(apptainer("exec", "-B", "/usr/share:there", sif, "true"), "--bind", "absolute")
    refuses(apptainer("exec", "-B", "/a:/b:image-src=/x", sif, "true"), "image-src=/x")


def test_apptainer_home_and_work_directory_can_be_chosen():
    sif = pulled()
    assert says("exec", "-H", f"{work}:/h", sif, "sh", "-c", "echo $HOME; ls ~/here") == "/h\n/h/here\n"
    assert says("exec", "--pwd", "/usr", sif, "pwd") == says("exec", "--cwd=/usr", sif, "pwd") == "/usr\n"
    assert says("exec", "--no-home", "--no-mount", "tmp", sif, "sh", "-c", f"ls {home}") == ""


def test_apptainer_fakeroot_is_root_with_the_users_home():
    sif = pulled()
    assert says("exec", "-f", sif, "sh", "-c", "id -u; echo $HOME; ls /root/apptainer/here") == "0\n/root\n/root/apptainer/here\n"


def test_apptainer_overlay_directory_keeps_changes():
    sif = pulled()
    apptainer("overlay", "create", "--size", "64", "changes").succeeds()
    says("exec", "--overlay", "changes", sif, "touch", "/kept")
    assert says("exec", "-o", "changes:ro", sif, "ls", "/kept") == "/kept\n"
    machine.write(os.path.join(work, "image.ext3"), "")
    refuses(apptainer("exec", "--overlay", "image.ext3", sif, "true"), "only directories are writable", "--overlay image.ext3:ro")
    refuses(apptainer("exec", "--overlay", "none.ext3:ro", sif, "true"), "none.ext3", "no such file")


def test_apptainer_path_of_the_container_is_extended():
    sif = pulled()
    for command in (["exec", sif, "sh", "-c", "echo $PATH"], ["shell", sif, "-c", "echo $PATH"]):
        path = says(*command).strip()
        assert says(*command, APPTAINERENV_PREPEND_PATH="/first", SINGULARITYENV_APPEND_PATH="/last") == f"/first:{path}:/last\n"
    assert says("exec", sif, "sh", "-c", 'echo "$#$1"', "sh", "a  b", APPTAINERENV_PREPEND_PATH="/x") == "1a  b\n"
    assert "PREPEND_PATH" in apptainer("run", sif, APPTAINERENV_PREPEND_PATH="/x").succeeds().err


def overlay_tree(name, files, whiteouts=()):
    tree = os.path.join(work, name)
    for path, text in files.items():
        os.makedirs(os.path.dirname(f"{tree}/{path}"), exist_ok=True)
        machine.write(f"{tree}/{path}", text)
    for path in whiteouts:
        os.makedirs(os.path.dirname(f"{tree}/{path}"), exist_ok=True)
        os.mknod(f"{tree}/{path}", 0o600 | stat.S_IFCHR, os.makedev(0, 0))
    return tree


def test_apptainer_overlay_files_are_added_read_only():
    """An ext3 image as Apptainer's overlays have it, a squashfs over it, and a directory that keeps changes."""
    sif = pulled()
    conda = overlay_tree("conda", {"upper/ext3/env.sh": "export FROM_EXT3=1\n", "upper/ext3/gone": "x", "work/none": ""})
    above = overlay_tree("above", {"ext3/more": "of the squashfs\n"}, ["ext3/gone"])
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext3", "-d", conda, f"{work}/conda.ext3", "16M"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["mksquashfs", above, f"{work}/above.sqsh", "-quiet", "-no-progress", "-noappend"], check=True, stdout=subprocess.DEVNULL)
    shown = ". /ext3/env.sh; echo $FROM_EXT3; ls /ext3"
    assert says("exec", "--overlay", "conda.ext3:ro", sif, "sh", "-c", shown) == "1\nenv.sh\ngone\n"
    assert says("exec", "-o", "conda.ext3:ro", "-o", "above.sqsh:ro", sif, "sh", "-c", shown) == "1\nenv.sh\nmore\n"
    assert "Read-only" in apptainer("exec", "--overlay", "conda.ext3:ro", sif, "touch", "/ext3/x").err
    both = ("--overlay", "kept", "--overlay", f"{work}/conda.ext3:ro")
    apptainer("overlay", "create", "kept").succeeds()
    says("exec", *both, sif, "sh", "-c", "echo new >/ext3/new; rm /ext3/gone")
    assert says("exec", *both, sif, "ls", "/ext3") == "env.sh\nnew\n"
    refuses(apptainer("exec", "--overlay", "kept", "--overlay", "changes", sif, "true"), "only one overlay can be writable")
    apptainer("build", "--sandbox", "of-overlay", sif).succeeds()
    assert says("exec", "--overlay", "conda.ext3:ro", "of-overlay", "cat", "/ext3/env.sh") == "export FROM_EXT3=1\n"


def test_apptainer_sandbox_is_built_changed_and_packed():
    sif = pulled()
    apptainer("build", "--sandbox", "box", sif).succeeds()
    refuses(apptainer("build", "--sandbox", "box", sif), "already exists")
    says("exec", "-w", "box", "touch", "/inside")
    assert os.path.exists(os.path.join(work, "box/inside"))
    refuses(apptainer("exec", "-w", sif, "true"), "--writable", "--overlay")
    apptainer("build", "packed.sif", "box", program="singularity").succeeds()
    assert says("exec", "packed.sif", "ls", "/inside") == "/inside\n"
    assert not [name for name in os.listdir(work) if name.startswith("box.")], os.listdir(work)


def test_apptainer_shell_reads_commands_of_a_script():
    done = apptainer("shell", pulled(), stdin="echo in the shell\nexit 4\n")
    assert done.status == 4 and done.out == "in the shell\n", done
    assert says("shell", "-s", "/bin/sh", pulled(), stdin="echo $0\n") == "/bin/sh\n"


def test_apptainer_instance_is_started_joined_and_stopped():
    apptainer("instance", "start", pulled(), "one").succeeds()
    assert says("exec", "instance://one", "echo", "joined") == "joined\n"
    assert "one" in says("instance", "list")
    apptainer("instance", "stop", "one").succeeds()
    assert "one" not in says("instance", "list")


def test_apptainer_inspect_prints_files_of_the_image():
    assert "greet" in says("inspect", "-r", pulled())
    assert "Debian" in says("inspect", pulled())


def test_apptainer_flags_without_counterpart_have_one_clear_line():
    sif = pulled()
    for flags, text in ((("--net",), "network of the host"), (("--app", "x"), "SCIF"), (("--memory=1G",), "srun --mem"), (("--fusemount", "x"), "FUSE"),
                        (("--nonsense",), "unknown flag: --nonsense"), (("--bind",), "flag needs an argument"), (("--security", "uid:0"), "seccomp:FILE"),
                        (("--add-caps", "all"), "no capabilities")):
        refuses(apptainer("exec", *flags, *((sif, "true") if flags != ("--bind",) else ())), text)
    for flags in (("-u",), ("--no-init", "--drop-caps", "all"), ("--sharens",), ("--nv=false",)):
        assert says("exec", *flags, sif, "echo", "ran") == "ran\n", flags
    done = apptainer("exec", "-p", "--uts", sif, "echo", "ran").succeeds()
    assert done.out == "ran\n" and done.err.count("WARNING: ") == 2, done
    done = apptainer("exec", "--nv", sif, "echo", "ran").succeeds()
    assert done.out == "ran\n" and "no GPU" in done.err, done


def test_apptainer_commands_without_counterpart_name_the_cure():
    for command in ("key", "remote", "sign", "verify", "sif", "capability", "plugin", "oci", "search"):
        refuses(apptainer(command, "x"), command + ": ")
    refuses(apptainer("exce", "x"), "unknown command", "apptainer help")
    refuses(apptainer("exec", "no-such.sif", "true"), "no-such.sif", "docker://no-such.sif")
    assert apptainer("--version").succeeds().out.startswith("apptainer version 1.")
    assert "exec [FLAGS] IMAGE" in apptainer("help").succeeds().out and "--fakeroot" in apptainer("exec", "--help").succeeds().out
