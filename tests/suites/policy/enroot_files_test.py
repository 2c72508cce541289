"""Files of a site and its users in enroot's directories stay in effect: enroot.conf, mounts.d and
environ.d."""
import os
import shutil

import local_files
from errors_test import answered
from harness import equal, expect, test
from site_files import Files

IMAGE = "--container-image=registry:5000/suites/base:1"
ON = {"spank-container/config.d/50-test.toml": "enroot_compat = true\n"}
STANDARD = """# as enroot installs it
/proc           /proc           none    x-create=dir,rbind,nosuid,noexec,nodev  0 -1
/sys            /sys            none    x-create=dir,rbind,nosuid,noexec,nodev,ro  0 -1
/dev            /dev            none    x-create=dir,rbind,nosuid,noexec    0 -1
tmpfs           /tmp            tmpfs   x-create=dir,mode=1777  0 -1
/etc/hosts      /etc/hosts      none    x-create=file,bind,nosuid,noexec,nodev
"""


@test
def enroot_mounts_are_made_in_every_container(cluster):
    local_files.put(os.path.join(cluster.shared, "enroot a/file"), "of the site\n")
    files = {**ON, "enroot/mounts.d/10-system.fstab": STANDARD,
             "enroot/mounts.d/20-site.fstab": "/home/shared/enroot\\040a /opt/site none x-create=dir,bind,ro\n"
                                              "/home/missing /opt/missing none bind,nofail,silent\n"
                                              "${HOME}/of-user /opt/home none bind,nofail,silent # a comment\n"
                                              "server:/export /opt/nfs nfs defaults\n"}
    script = "cat /opt/site/file; touch /opt/site/x 2> /dev/null || echo read-only; test -e /opt/missing || echo missing"
    with Files(cluster, files):
        done = cluster.run("srun", "-w", "node01", IMAGE, "sh", "-c", script)
        done.good("of the site\nread-only\nmissing")
        expect(any('20-site.fstab, line 4' in line and '"nfs"' in line for line in done.messages()), "nfs is not named", done)
    done = cluster.run("srun", "-w", "node01", IMAGE, "sh", "-c", "test ! -e /opt/site")
    done.good()


@test
def enroot_files_of_the_user_apply_to_the_user(cluster):
    own = os.path.join(cluster.home, "alice/.config/enroot")
    local_files.put(os.path.join(cluster.shared, "mine/file"), "hers\n")
    local_files.put(f"{own}/mounts.d/a.fstab", "/home/shared/mine /opt/mine\n")
    local_files.put(f"{own}/environ.d/a.env", "FROM_HER=\"${HOME}/x\"\nOF_BOTH=hers\nENROOT_X=1\n")
    site = {**ON, "enroot/environ.d/10-terminal.env": "TERM=${TERM}\nOF_SITE=site ${NOT_SET}.\nOF_BOTH=site\nPATH_OF_JOB=${SLURM_JOB_ID}\n"}
    script = 'cat /opt/mine/file; echo "$FROM_HER/$OF_BOTH/$OF_SITE/$ENROOT_X"; test "$PATH_OF_JOB" = "$SLURM_JOB_ID"'
    try:
        with Files(cluster, site):
            done = cluster.run("srun", "-w", "node01", "-n2", IMAGE, "sh", "-c", script)
            done.good()
            equal(sorted(done.out.splitlines()), sorted(["hers", "/home/alice/x/hers/site ./"] * 2), "output", done)
            done = cluster.run("srun", "-w", "node01", IMAGE, "sh", "-c", "test ! -e /opt/mine; echo \"$OF_BOTH\"", user="bob")
            done.good("site")
        done = cluster.run("srun", "-w", "node01", IMAGE, "sh", "-c", "test ! -e /opt/mine; echo ${OF_BOTH-unset}")
        done.good("unset")
    finally:
        shutil.rmtree(own)


@test
def enroot_conf_defaults_yield_to_job_variables(cluster):
    step = ["srun", "-w", "node01", IMAGE, "sh", "-c", "touch /usr/x 2> /dev/null && echo writable || echo read-only; id -u"]
    with Files(cluster, {**ON, "enroot/enroot.conf": "ENROOT_ROOTFS_WRITABLE no\nENROOT_REMAP_ROOT yes\nENROOT_DATA_PATH /tmp/$(id -u)\n",
                         "enroot/enroot.conf.d/a.conf": "ENROOT_ROOTFS_WRITABLE yes\n"}):
        cluster.run(*step).good("read-only\n0")
        cluster.run(*step, env=["ENROOT_ROOTFS_WRITABLE=y", "ENROOT_REMAP_ROOT=no"]).good("writable\n2001")
        cluster.run(*step[:4], "--container-writable", "--no-container-remap-root", *step[4:]).good("writable\n2001")
        done = cluster.run(*step[:4], "--container-verbose", "true")
        expect("ENROOT_DATA_PATH needs a shell" in done.err, "the value that is ignored is not named", done)


OFF = ["container-remap-root", "container-unshare", "container-mounts", "container-mount-home", "container-readonly", "container-env"]


@test
def disabled_option_is_refused_in_enroot_variables_and_files(cluster):
    own = os.path.join(cluster.home, "alice/.config/enroot")
    off = {"spank-container/config.d/50-test.toml": f"enroot_compat = true\nfeatures_off = {OFF}\n"}
    step = ["srun", "-w", "node01", IMAGE]
    with Files(cluster, off):
        for variable in ("ENROOT_REMAP_ROOT=y", "ENROOT_UNSHARE_NET=y", "ENROOT_UNSHARE_PID=1", "ENROOT_MOUNT_HOME=yes", "ENROOT_ROOTFS_WRITABLE=n"):
            done = cluster.run(*step, "sh", "-c", "id -u; echo ran", env=[variable])
            expect("ran" not in done.out, f"{variable} got around it", done)
            answered("an_option_that_is_off_by_" + variable.split("=")[0].lower(), done)
        for name, text in (("mounts.d/a.fstab", "/home/shared /opt/mine\n"), ("environ.d/a.env", "FROM_HER=x\n")):
            try:
                local_files.put(f"{own}/{name}", text)
                done = cluster.run(*step, "true")
                answered("an_option_that_is_off_by_" + name.split(".")[0], done)
            finally:
                shutil.rmtree(own)
        # Disabled or overridden files, and the site's own, request nothing.
        cluster.run(*step, "id", "-u", env=["ENROOT_REMAP_ROOT=n", "ENROOT_UNSHARE_NET=no", "ENROOT_X=y"]).good("2001")
        cluster.run(*step, "--no-container-remap-root", "--container-writable", "id", "-u", env=["ENROOT_REMAP_ROOT=y", "ENROOT_ROOTFS_WRITABLE=n"]).good("2001")
    with Files(cluster, {**off, "enroot/enroot.conf": "ENROOT_REMAP_ROOT yes\n", "enroot/mounts.d/a.fstab": "/home/shared /opt/site\n"}):
        cluster.run(*step, "sh", "-c", "id -u; test -d /opt/site", env=["ENROOT_REMAP_ROOT=y"]).good("0")


@test
def world_writable_enroot_file_is_refused(cluster):
    with Files(cluster, {**ON, "enroot/environ.d/a.env": "A=b\n"}) as files:
        os.chmod(files.path("enroot/environ.d/a.env"), 0o666)
        answered("a_file_of_enroot_that_all_can_write", cluster.run("srun", "-w", "node01", IMAGE, "true"))


@test
def enroot_settings_are_ignored_without_enroot_compat(cluster):
    with Files(cluster, {"enroot/enroot.conf": "ENROOT_ROOTFS_WRITABLE no\n", "enroot/mounts.d/a.fstab": "/home/missing /x\n",
                         "enroot/environ.d/a.env": "A=b\n"}):
        cluster.run("srun", "-w", "node01", IMAGE, "sh", "-c", "touch /usr/x; echo ${A-unset}").good("unset")
