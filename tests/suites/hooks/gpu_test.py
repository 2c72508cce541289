"""GPUs: selection for a container, and how its programs find the driver. The driver is fake, and so
are its device nodes: opening one gives ENXIO if it is permitted, EPERM if the step's cgroup denies
it, EACCES if the container does."""
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import fake_driver
import vendor_programs
from cluster import BUILD_IMAGE
from command import await_true
from fake_driver import VERSION, FakeDriver
from harness import equal, expect, test
from images import Image, with_probe
from site_files import rules
from outcomes import outcome

TARGET = "/usr/lib/x86_64-linux-gnu"
NVCC = "/usr/local/cuda/bin/nvcc"
OPEN = 'for n in 0 1; do (: <>/dev/nvidia$n) 2>&1 | sed "s/.*: //"; done'
ALLOWED, BY_CGROUP, BY_US = "No such device or address", "Operation not permitted", "Permission denied"


def image_of(cluster, name="gpu", entries=(), **config):
    """Returns Debian with /oracle, /cuda and /hsa, without any variable of NVIDIA."""
    programs = [("oracle", fake_driver.oracle()), ("cuda", vendor_programs.cuda()), ("hsa", vendor_programs.hsa())]
    return Image(f"suites/fake-{name}", [[*programs, *entries]], config, below=cluster.base_layout)


@contextlib.contextmanager
def driver(cluster, settings="", **how):
    with FakeDriver(cluster, **how) as fake, rules(cluster, f'driver_root = "{fake.root}"\n{settings}'):
        yield fake


def run(cluster, script, *options, gpus=1, image=None, env=()):
    gres = [f"--gres=gpu:{gpus}"] if gpus else []
    return cluster.bash(script, *gres, *options, image=image or image_of(cluster), env=env)


def from_driver(name="libcuda", where=TARGET):
    return f"{name}.so.1: {where}/{name}.so.{VERSION}, of {'the driver' if name == 'libcuda' else '?'}"


def refused(done, *words):
    expect(done.rc != 0, "it was not refused", done)
    text = "\n".join(done.errors())
    for word in words:
        expect(word in text, f"nothing was said of {word!r}", done)


# --- discovery ------------------------------------------------------------------------------------

@test
def fake_driver_is_found_by_image_loader(cluster):
    with driver(cluster):
        done = run(cluster, "/oracle libcuda.so.1 libcuda.so libnvidia-ml.so.1 libnvidia-encode.so.1; nvidia-smi")
        done.good("\n".join([from_driver(), from_driver().replace("so.1:", "so:"), from_driver("libnvidia-ml"),
                             "libnvidia-encode.so.1: not found", "fake nvidia-smi"]))
        equal([line for line in done.messages() if "warning" in line], [], "warnings", done)


@test
@outcome(210, "refused", "no GPU; one is asked for and there is none; no driver; a node without a driver behind it")
def step_without_fake_gpus_gets_no_driver(cluster):
    with driver(cluster):
        run(cluster, "/oracle libcuda.so.1; ls /usr/bin/nvidia-smi 2>&1 | tail -c 26", gpus=0).good(
            "libcuda.so.1: not found\nNo such file or directory")


@test
def fake_driver_is_disabled_by_option_or_site(cluster):
    with driver(cluster):
        run(cluster, "/oracle libcuda.so.1", "--no-container-gpu").good("libcuda.so.1: not found")
    with driver(cluster, 'gpu = "off"'):
        run(cluster, "/oracle libcuda.so.1").good("libcuda.so.1: not found")
        run(cluster, "/oracle libcuda.so.1", "--container-gpu").good(from_driver())


@test
@outcome(210, "refused", "no GPU; one is asked for and there is none; no driver; a node without a driver behind it")
def gpu_option_without_fake_gpu_is_refused(cluster):
    with driver(cluster):
        refused(run(cluster, "true", "--container-gpu", gpus=0), "hook 97-gpu: --container-gpu: this step has no GPU on this node",
                "request one")


@test
@outcome(210, "refused", "no GPU; one is asked for and there is none; no driver; a node without a driver behind it")
def fake_gpus_without_driver_are_reported(cluster):
    done = run(cluster, "echo runs")
    done.good("runs")
    expect("no NVIDIA driver" in done.err, "the driver that is missing was not named", done)
    refused(run(cluster, "true", "--container-gpu"), "the node has GPUs, but no NVIDIA driver")


@test
@outcome(211, "degraded", "libraries of another version than the kernel's driver; an image for a newer or older driver",
         differs="an image that demands a newer CUDA is refused, as elsewhere")
def fake_library_version_mismatch_names_both_versions(cluster):
    with driver(cluster, kernel="535.104.05"):
        done = run(cluster, "/oracle libcuda.so.1")
        done.good("libcuda.so.1: not found")
        expect(f"kernel driver is 535.104.05, but the libraries on this node are {VERSION}" in done.err, "both versions", done)


@test
def driver_capabilities_select_parts_of_fake_driver(cluster):
    ask = "/oracle libcuda.so.1 libnvidia-ml.so.1 libnvidia-encode.so.1 | cut -d, -f1 | sed 's/: .*lib/ /; s/: not/ not/'"
    def there(*stems):
        return "\n".join(f"{stem}.so.1 {stem[3:]}.so.{VERSION}" if stem in stems else f"{stem}.so.1 not found"
                         for stem in ("libcuda", "libnvidia-ml", "libnvidia-encode"))
    with driver(cluster):
        for words, stems in (("utility", ["libnvidia-ml"]), ("compute", ["libcuda"]), ("video,compute", ["libcuda", "libnvidia-encode"]),
                             ("all", ["libcuda", "libnvidia-ml", "libnvidia-encode"])):
            run(cluster, ask, env=[f"NVIDIA_DRIVER_CAPABILITIES={words}"]).good(there(*stems))
        image = image_of(cluster, "utility", Env=["PATH=/usr/bin:/bin", "NVIDIA_DRIVER_CAPABILITIES=utility"])
        run(cluster, ask, image=image).good(there("libnvidia-ml"))
        run(cluster, ask, image=image, env=["NVIDIA_DRIVER_CAPABILITIES=compute"]).good(there("libcuda"))


@test
@outcome(211, "degraded", "libraries of another version than the kernel's driver; an image for a newer or older driver")
def fake_driver_too_old_for_image_is_refused_like_elsewhere(cluster):
    image = image_of(cluster, "requires", Env=["PATH=/usr/bin:/bin", "NVIDIA_REQUIRE_CUDA=cuda>=12.6 brand=tesla,driver>=535,driver<536"])
    with driver(cluster):
        refused(run(cluster, "true", image=image), "unsatisfied condition: cuda>=12.6, please update your driver to a newer version, "
                "or use an earlier cuda container", f"the driver is {VERSION}, for CUDA 12.4")
        run(cluster, "/oracle libcuda.so.1", image=image, env=["NVIDIA_DISABLE_REQUIRE=1"]).good(from_driver())


@test
@outcome(214, "degraded", "sockets of the driver's daemons there or not; fabric manager absent",
         untested="IMEX channels with a driver: they are the node's, and no GPU was there")
def fake_daemon_sockets_are_inside(cluster):
    show = "for s in /var" + " /var".join(fake_driver.SOCKETS[:2]) + " /tmp/nvidia-mps/control; do test -S $s && echo $s || echo no $s; done"
    with driver(cluster), fake_driver.daemons(cluster):
        where = ["/var" + path for path in fake_driver.SOCKETS[:2]] + ["/tmp/nvidia-mps/control"]
        run(cluster, show, "-w", "node01").good("\n".join(where))
        run(cluster, show, "-w", "node01", "--container-contain").good("\n".join(where))
        run(cluster, show, "-w", "node01", "--container-contain", env=["NVIDIA_DRIVER_CAPABILITIES=video"]).good(
            "\n".join("no " + path for path in where))


# --- selection ------------------------------------------------------------------------------------

@test
@outcome(213, "contained", "MIG; GPUs by number, UUID, garbage; more than the cgroup allows")
def fake_gpus_of_other_jobs_stay_denied(cluster):
    with driver(cluster):
        run(cluster, OPEN, gpus=1).good(f"{ALLOWED}\n{BY_CGROUP}")
        run(cluster, OPEN, gpus=2).good(f"{ALLOWED}\n{ALLOWED}")


@test
def variable_selects_fake_gpus_and_hides_the_others(cluster):
    with driver(cluster):
        for value, wanted in (("all", (ALLOWED, ALLOWED)), ("0", (ALLOWED, BY_US)), ("1", (BY_US, ALLOWED)), ("none", (BY_US, BY_US)),
                              ("GPU-00000000-0000-0000-0000-000000000001", (BY_US, ALLOWED)), ("void", (BY_US, BY_US))):
            run(cluster, OPEN, gpus=2, env=[f"NVIDIA_VISIBLE_DEVICES={value}"]).good("\n".join(wanted))
        run(cluster, "/oracle libcuda.so.1", env=["NVIDIA_VISIBLE_DEVICES=void"]).good("libcuda.so.1: not found")
        run(cluster, "/oracle libcuda.so.1", env=["NVIDIA_VISIBLE_DEVICES=none"]).good(from_driver())


@test
@outcome(213, "contained", "MIG; GPUs by number, UUID, garbage; more than the cgroup allows")
def variable_never_exceeds_fake_gpus_of_the_cgroup(cluster):
    with driver(cluster):
        refused(run(cluster, "true", env=["NVIDIA_VISIBLE_DEVICES=1"]),
                "NVIDIA_VISIBLE_DEVICES=1 requests 1, which this step does not have; available: 0 (/dev/nvidia0, GPU-")
        done = run(cluster, OPEN, env=["NVIDIA_VISIBLE_DEVICES=0,1"])
        done.good(f"{ALLOWED}\n{BY_CGROUP}")
        expect("NVIDIA_VISIBLE_DEVICES=0,1 requests 1, which this step does not have" in done.err, "both lists", done)


@test
def tasks_have_their_own_fake_gpus_of_the_step(cluster):
    with driver(cluster):
        done = cluster.bash(f"x=$({OPEN}); /oracle libcuda.so.1; echo $SLURM_PROCID $x", "-n2", "-N1", "--gpus-per-task=1",
                            "--gpu-bind=single:1", image=image_of(cluster))
        lines = sorted(set(done.good().splitlines()))
        equal(lines, [f"0 {ALLOWED} {BY_CGROUP}", f"1 {BY_CGROUP} {ALLOWED}", from_driver()], "what the tasks see", done)


@test
@outcome(213, "contained", "MIG; GPUs by number, UUID, garbage; more than the cgroup allows")
def fake_gpu_partition_comes_without_the_others(cluster):
    with driver(cluster), fake_driver.parts_of_gpu0(cluster):
        for value, wanted in (("all", "0:gi1 0:gi2"), ("0:0", "0:gi1"), ("0:1", "0:gi2")):
            run(cluster, "/cuda", "-w", "node01", env=[f"NVIDIA_VISIBLE_DEVICES={value}"]).good(f"GPUs 0 {wanted}, cuInit 0")
        refused(run(cluster, "true", "-w", "node01", env=["NVIDIA_VISIBLE_DEVICES=0:2"]), "requests 0:2, which this step does not have")
        done = run(cluster, "true", "-w", "node01", "--container-explain=all")
        expect("/dev/nvidia-caps/nvidia-cap12" in done.out + done.err, "the part's node was not named", done)


@test
def unconstrained_fake_partition_numbers_are_no_gpu_numbers(cluster):
    with driver(cluster), unconstrained(cluster), fake_driver.parts_of_gpu0(cluster):
        run(cluster, "/cuda", "-w", "node01").good("GPUs 0 0:gi1 0:gi2 1, cuInit 0")


@test
def masked_fake_gpu_is_skipped_by_driver_library(cluster):
    with driver(cluster):
        for value, wanted in (("all", "GPUs 0 1, cuInit 0"), ("0", "GPUs 0, cuInit 0"), ("1", "GPUs 1, cuInit 0"), ("none", "GPUs, cuInit 100")):
            for options in ([], ["--container-remap-root"], ["--container-readonly"]):
                run(cluster, "/cuda", *options, gpus=2, env=[f"NVIDIA_VISIBLE_DEVICES={value}"]).good(wanted)
        show = "stat -c '%F %t:%T %a' /dev/nvidia0 /dev/nvidia1"
        run(cluster, show, gpus=2, env=["NVIDIA_VISIBLE_DEVICES=0"]).good("character special file c3:0 666\ncharacter special file c3:1 666")


@test
def missing_fake_uvm_node_is_reported_with_hint(cluster):
    with driver(cluster, uvm=False):
        done = run(cluster, "/cuda")
        done.good("GPUs 0, cuInit 999: /dev/nvidia-uvm: No such file or directory")
        expect("no /dev/nvidia-uvm, which CUDA needs (hint: on the node, as root: nvidia-modprobe -u -c0)" in done.err, "the cure", done)


@test
def slurmd_service_creates_fake_uvm_and_modeset_nodes(cluster):
    """With a fake nvidia-modprobe, which makes the same nodes for its arguments as the real one."""
    path = os.path.join(cluster.stage, "usr/lib/systemd/system/slurmd.service.d/spank-container-nvidia.conf")
    commands = [line.strip().partition("=")[2] for line in open(path) if line.startswith("ExecStartPre=")]
    equal([command.split()[0] for command in commands], ["-/usr/bin/nvidia-modprobe"] * 2, "programs, whose failure does not stop slurmd")
    fake = 'case "$*" in "-u -c0" | "-c0 -u") mknod -m 666 /dev/nvidia-uvm c 240 0;; -m) mknod -m 666 /dev/nvidia-modeset c 195 254;; esac'
    with driver(cluster, uvm=False):
        try:
            for command in commands:
                cluster.root("node01", "sh", "-euc", fake, *command.split()).good()
            run(cluster, "/cuda; test -c /dev/nvidia-modeset", "-w", "node01").good("GPUs 0, cuInit 0")
        finally:
            cluster.root("node01", "rm", "-f", "/dev/nvidia-modeset")


@test
def unreadable_fake_gpus_are_reported(cluster):
    """0660 root:video, as on some distributions, and a driver that was reloaded."""
    with driver(cluster):
        for script, undo, why in (("chmod 660 /dev/nvidia0 /dev/nvidia1", "chmod 666 /dev/nvidia0 /dev/nvidia1",
                                   "none can be opened: /dev/nvidia0: permission denied (hint: the user must be in its group"),
                                  ("mv /dev/nvidiactl /dev/gone", "mv /dev/gone /dev/nvidiactl",
                                   "none can be opened: /dev/nvidiactl: no such file or directory (hint: the NVIDIA driver is not loaded")):
            try:
                cluster.root("node01", "sh", "-c", script).good()
                done = run(cluster, "echo runs", "-w", "node01")
                done.good("runs")
                expect("Slurm allocated the GPUs 0, but " + why in done.err, "the reason", done)
            finally:
                cluster.root("node01", "sh", "-c", undo).good()
        equal([line for line in run(cluster, "true", gpus=0).messages() if "Slurm allocated" in line], [], "said of a step without GPUs")


# --- AMD -------------------------------------------------------------------------------------------------------------

@test
def variable_selects_fake_amd_gpus_and_rocm_starts(cluster):
    with fake_driver.amd_node(cluster):
        for value, wanted in (("all", " 129 130 128"), ("0", " 129"), ("1,2", " 130 128"), ("none", ""), ("void", "")):
            done = run(cluster, "/hsa", "-w", "node01", gpus=0, env=[f"AMD_VISIBLE_DEVICES={value}"])
            done.good("hsa_init 0, GPUs" + wanted)
        refused(run(cluster, "/hsa", "-w", "node01", gpus=0, env=["AMD_VISIBLE_DEVICES=3"]), "requests 3, which this step does not have")


@test
def unconstrained_rocm_starts_with_allocated_gpus(cluster):
    straight = ((128, "0000:11:00.0"), (129, "0000:c1:00.0"), (130, "0000:c2:00.0"))
    # These are not in gres.conf, unlike NVIDIA's.
    with fake_driver.amd_node(cluster, gpus=straight):
        run(cluster, "/hsa", "-w", "node01", gpus=1).good("hsa_init 0, GPUs 128")


@test
def fake_gpus_out_of_bus_order_are_masked_only_if_configured(cluster):
    """GPU 0 of Slurm's list is /dev/nvidia0 or the first of the bus, which is /dev/nvidia1: the
    other one belongs to another job."""
    with driver(cluster, buses=(0x30, 0x20)), unconstrained(cluster):
        done = run(cluster, "/cuda; echo $CUDA_VISIBLE_DEVICES", "-w", "node01")
        done.good("GPUs 1 0, cuInit 0\n0")
        expect("these numbers are ambiguous and all GPUs that can be opened are used" in done.err, "the doubt", done)
        for numbers, wanted in (("pci", "1"), ("file", "0")):
            with driver_rules(cluster, f'gpu_numbers = "{numbers}"\n'):
                done = run(cluster, "/cuda; echo $CUDA_VISIBLE_DEVICES", "-w", "node01")
                done.good(f"GPUs {wanted}, cuInit 0\n0")
                expect("ambiguous" not in done.err, "a doubt that the site has settled", done)


def driver_rules(cluster, text):
    return rules(cluster, 'driver_root = "/home/shared/fake-driver"\n' + text)


@contextlib.contextmanager
def unconstrained(cluster):
    """Configures Slurm to allocate GPUs and to let every job open all of them."""
    path = os.path.join(cluster.etc, "slurm/cgroup.conf")
    text = open(path).read()
    others_gpu = ("srun", "-N2", "sh", "-c", "(: <>/dev/nvidia0) 2>&1 | sed 's/.*: //'")
    def set_to(new, what_others_see):
        with open(path, "w") as file:
            file.write(new)
        cluster.root("head", "scontrol", "reconfigure").good()
        await_true(lambda: cluster.run(*others_gpu).good().splitlines() == [what_others_see] * 2, 10, "the nodes keep their configuration")
    try:
        set_to(text.replace("ConstrainDevices=yes", "ConstrainDevices=no"), ALLOWED)
        yield
    finally:
        set_to(text, BY_CGROUP)


@test
def unconstrained_step_gets_only_allocated_fake_gpus(cluster):
    with driver(cluster), unconstrained(cluster):
        other = cluster.start("srun", "--gres=gpu:1", "-N1", "-w", "node01", "sh", "-c", "echo up; exec sleep 60")
        try:
            other.await_text("up")
            show = f"{OPEN}; echo $CUDA_VISIBLE_DEVICES"
            run(cluster, show, "-w", "node01").good(f"{BY_US}\n{ALLOWED}\n0")
            with rules(cluster, 'gpu_devices = "accessible"\ndriver_root = "/home/shared/fake-driver"\n'):
                run(cluster, show, "-w", "node01").good(f"{ALLOWED}\n{ALLOWED}\n1")
        finally:
            other.send(signal.SIGTERM)
            other.end()


# --- any image, any container ----------------------------------------------------------------------------------------

@test
def fake_driver_works_in_all_kinds_of_containers(cluster):
    with driver(cluster):
        for options in (["--container-readonly"], ["--container-remap-root"], ["--container-name=gpu"], ["--container-name=gpu"],
                        ["--container-private"], ["--container-unshare=pid,ipc"], ["--container-contain"]):
            run(cluster, "/oracle libcuda.so.1", *options).good(from_driver())
        cluster.run("scontainer", "rm", "gpu")


@test
@outcome(216, "accepted", "no ldconfig in the image, musl, a read-only root")
def empty_image_gets_the_fake_driver(cluster):
    with driver(cluster):
        where = "/usr/lib64/libcuda.so." + VERSION
        done = cluster.srun("--gres=gpu:1", "/probe", where, "/usr/lib64/libcuda.so.1", "/usr/bin/nvidia-smi", image=with_probe("fake-empty", []))
        expect(f"{where}: mode 100755" in done.good() and "missing" not in done.out, "the driver's files", done)


@test
def explain_names_fake_driver_and_gpus(cluster):
    with driver(cluster):
        done = run(cluster, "true", "--container-explain=all")
        for text in (f"driver {VERSION} in /home/shared/fake-driver{TARGET}", "GPUs: 0 (/dev/nvidia0, GPU-"):
            expect(text in done.out + done.err, f"nothing was said of {text!r}", done)


@test
@outcome(211, "degraded", "libraries of another version than the kernel's driver; an image for a newer or older driver")
def newer_fake_libcuda_of_image_wins_older_does_not(cluster):
    with driver(cluster):
        for version, wanted in (("560.1.2", "libcuda.so.1: /usr/local/cuda-12.6/compat/libcuda.so.560.1.2, of the image"), ("535.1.2", from_driver())):
            entries = [(f"usr/local/cuda-12.6/compat/libcuda.so.{version}", fake_driver.libcuda("the image")),
                       ("usr/local/cuda-12.6/compat/libcuda.so.1", f"-> libcuda.so.{version}"), ("usr/local/cuda", "-> cuda-12.6")]
            run(cluster, "/oracle libcuda.so.1", image=image_of(cluster, "compat-" + version, entries)).good(wanted)


@test
def newer_fake_libcuda_of_ngc_image_works_without_entrypoint(cluster):
    """LD_LIBRARY_PATH names a link that only the entrypoint makes."""
    entries = [("usr/local/cuda/compat/lib.real/libcuda.so.560.1.2", fake_driver.libcuda("the image")),
               ("usr/local/cuda/compat/lib.real/libcuda.so.1", "-> libcuda.so.560.1.2")]
    image = image_of(cluster, "ngc", entries, Env=["PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=/usr/local/cuda/compat/lib"])
    newer = "libcuda.so.1: /usr/local/cuda/compat/lib.real/libcuda.so.560.1.2, of the image"
    with driver(cluster):
        run(cluster, "/oracle libcuda.so.1", image=image).good(newer)
        with driver_rules(cluster, "cuda_compat = false\n"):
            run(cluster, "/oracle libcuda.so.1", image=image).good(from_driver())
    with driver(cluster, model="NVIDIA GeForce RTX 4090"):
        run(cluster, "/oracle libcuda.so.1", image=image).good(from_driver())


@test
def fake_driver_of_other_debian_branch_is_found(cluster):
    for branch in ("tesla-550", "tesla", "current"):
        with driver(cluster, directory=f"{TARGET[1:]}/nvidia/{branch}"):
            run(cluster, "/oracle libcuda.so.1 libnvidia-ml.so.1").good(f"{from_driver()}\n{from_driver('libnvidia-ml')}")


def outside(cluster):
    """Returns everything on the node that a faulty start could change: names, sizes and
    modification times."""
    script = "find /etc /usr/lib/x86_64-linux-gnu /usr/local /dev /home/shared -newermt 2000-01-01 -printf '%p %s %C@ %m\\n' 2>/dev/null"
    lines = cluster.root("node01", "sh", "-c", script).out.splitlines()
    return {line for line in lines if not line.startswith(("/dev/pts", "/dev/null", "/dev/tty", "/dev/ptmx", "/dev/shm", "/dev/loop"))}


HOSTILE = r"""
#include <fcntl.h>
__attribute__((constructor)) static void early(void) { open("/tmp/fake-gpu-early", O_CREAT | O_WRONLY, 0666); }
"""


@test
@outcome(212, "contained", "a compat directory full of links")
def hostile_image_gets_fake_driver_and_changes_nothing_outside(cluster):
    early = fake_driver.library("early.so", HOSTILE)
    variables = [f"{name}=/early.so" for name in ("LD_PRELOAD", "LD_AUDIT", "GLIBC_TUNABLES")]
    variables += ["LD_LIBRARY_PATH=/", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all", "LD_DEBUG=all"]
    kinds = {"dev": [("dev", "-> /proc/1/root/dev")],
             "compat": [("usr/local/cuda/compat", "-> ../../../../../.."), ("libcuda.so.999.1", "x")],
             "lib64": [("usr/lib64", "-> /etc"), ("etc/passwd", b"root:x:0:0::/:/bin/sh\n")],
             "up": [("usr/lib64", "-> ../../../../../../../etc"), ("usr/bin", "-> /etc")],
             "magic": [("usr/lib64", "-> /proc/self/root/etc"), ("var/run", "-> /proc/1/root/run")]}
    with driver(cluster):
        for name, entries in kinds.items():
            before = outside(cluster)
            image = with_probe("fake-hostile-" + name, [("early.so", early), *entries], Env=variables)
            done = cluster.srun("--gres=gpu:1", "-w", "node01", "/probe", "/", image=image)
            expect("uid 2001" in done.out or done.errors(), "it neither ran nor said why", done)
            equal(outside(cluster) ^ before, set(), f"what {name} changed outside", done)
            equal(cluster.root("node01", "ls", "/tmp/fake-gpu-early").rc, 2, f"whether code of {name} ran before the command", done)


# --- an older C library ---------------------------------------------------------------------------

def needs_glibc_2_34(soname):
    """A library that needs GLIBC_2.34: the first glibc with dlopen in libc.so.6."""
    return fake_driver.library(soname, "#include <dlfcn.h>\nvoid *fake_open(const char *name) { return dlopen(name, 1); }\n")


@test
def fake_graphics_library_beyond_image_glibc_is_left_out(cluster):
    # The symbols of glibc 2.31 end with version 2.30.
    built = subprocess.run([BUILD_IMAGE, "debian-11"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    old = Image("suites/fake-glibc-2-31", [], {"Env": ["PATH=/usr/bin:/bin"]}, below=built)
    wish = ["NVIDIA_DRIVER_CAPABILITIES=all"]
    with driver(cluster) as fake:
        egl = f"{fake.on_host}/{fake_driver.LIBRARIES}/libnvidia-eglcore.so.{VERSION}"
        cuda = egl.replace("libnvidia-eglcore", "libcuda")
        fake_driver.write(egl, needs_glibc_2_34("libnvidia-eglcore.so.1"))
        fake_driver.write(cuda, fake_driver.library("libcuda.so.1"))
        both = run(cluster, "ls " + " ".join(f"{TARGET}/{stem}.so.{VERSION}" for stem in ("libcuda", "libnvidia-eglcore")), env=wish)
        equal(both.good().count(VERSION), 2, "libraries in an image with glibc 2.36", both)
        ask = f"cd {TARGET}; ls libcuda.so.{VERSION} libnvidia-eglcore.so.{VERSION} 2>/dev/null || true"
        done = run(cluster, ask, image=old, env=wish)
        done.good(f"libcuda.so.{VERSION}")
        expect("GLIBC" not in done.err, "a warning, but no graphics was requested by name", done)
        named = run(cluster, ask, image=old, env=["NVIDIA_DRIVER_CAPABILITIES=compute,graphics"])
        named.good(f"libcuda.so.{VERSION}")
        why = "the node's libnvidia-eglcore.so.1 needs GLIBC_2.34, but the image's C library goes up to 2.30: it is left out"
        expect(why + " (hint: use an image of a newer distribution)" in named.err, "no warning", named)
        explained = run(cluster, "true", "--container-explain", image=old, env=wish)
        expect(why in explained.out + explained.err, "no note", explained)
        fake_driver.write(cuda, needs_glibc_2_34("libcuda.so.1"))
        refused(run(cluster, "true", "--container-gpu", image=old), "the node's libcuda.so.1 needs GLIBC_2.34", "so CUDA cannot work")
        expect("libcuda.so.1 needs GLIBC_2.34" in run(cluster, "true", image=old).err, "no warning without --container-gpu")


# --- NVIDIA's own runtime --------------------------------------------------------------------------------------------

CUDART = r"""
#include <cstdio>
#include <cuda_runtime.h>
int main() { int count = -1; std::printf("%d\n", static_cast<int>(cudaGetDeviceCount(&count))); }
"""


@functools.cache
def cudart_program():
    with tempfile.TemporaryDirectory() as directory:
        source, program = os.path.join(directory, "a.cu"), os.path.join(directory, "a")
        with open(source, "w") as file:
            file.write(CUDART)
        subprocess.run([NVCC, "-cudart", "static", "-o", program, source], check=True)
        return open(program, "rb").read()


def cuda_runtime_finds_the_fake_driver(cluster):
    """The result of cudaGetDeviceCount identifies the libcuda: 35 none, 34 the toolkit's stub, 100
    the fake driver's."""
    stub = open("/usr/local/cuda/lib64/stubs/libcuda.so", "rb").read() if os.path.exists("/usr/local/cuda/lib64/stubs/libcuda.so") else None
    entries = [("cudart", cudart_program())]
    with driver(cluster):
        run(cluster, "/cudart", image=image_of(cluster, "cudart", entries)).good("100")
        run(cluster, "/cudart", "--no-container-gpu", image=image_of(cluster, "cudart", entries)).good("35")
        run(cluster, "/cudart", image=image_of(cluster, "cudart", entries), env=["NVIDIA_DRIVER_CAPABILITIES=utility"]).good("35")
        if stub is None:
            return
        stubbed = image_of(cluster, "stub", [*entries, (TARGET[1:] + "/libcuda.so.1", stub)])
        run(cluster, "/cudart", "--no-container-gpu", image=stubbed).good("34")
        run(cluster, "/cudart", image=stubbed).good("100")


# Without a toolkit this test does not exist: the_images_loader tests above check the loader itself.
if shutil.which(NVCC):
    test(cuda_runtime_finds_the_fake_driver)
else:
    print(f"note: no {NVCC}, so gpu.cuda_runtime_finds_the_fake_driver is left out", file=sys.stderr, flush=True)
