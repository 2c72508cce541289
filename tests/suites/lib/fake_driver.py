"""NVIDIA's driver as files: what libraries, the kernel's /proc and nodes look like where there is no GPU. A test that uses it
has `fake` in its name: it shows what is found and injected, not that a GPU works."""
import contextlib
import functools
import os
import shutil
import subprocess
import tempfile

VERSION = "550.54.15"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# The functions of libcuda that the CUDA runtime requests before anything else; 100 is CUDA_ERROR_NO_DEVICE.
LIBCUDA = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
int cuInit(unsigned flags) { (void)flags; return 100; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 0; return 100; }
const char *fake_from(void) { return FROM; }
int cuGetProcAddress(const char *name, void **function, int version, unsigned long flags) {
  (void)version, (void)flags;
  *function = dlsym(RTLD_DEFAULT, name);
  static void *own;
  if (!own) own = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  if (!*function && own) *function = dlsym(own, name);
  return *function ? 0 : 500;
}
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long flags, int *status) {
  int failed = cuGetProcAddress(name, function, version, flags);
  if (status) *status = failed ? 1 : 0;
  return failed;
}
"""
ORACLE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
  for (int i = 1; i < argc; ++i) {
    void *library = dlopen(argv[i], RTLD_NOW);
    struct link_map *map;
    if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map)) { printf("%s: not found\n", argv[i]); continue; }
    char *path = realpath(map->l_name, NULL);
    const char *(*from)(void) = (const char *(*)(void))dlsym(library, "fake_from");
    printf("%s: %s, of %s\n", argv[i], path, from ? from() : "?");
  }
  return 0;
}
"""


def compiled(source, *options):
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "program")
        with open(os.path.join(directory, "source.c"), "w") as file:
            file.write(source)
        subprocess.run(["cc", "-Os", *options, "-o", program, file.name, "-ldl"], check=True)
        return open(program, "rb").read()


@functools.cache
def library(soname, source="int fake;", *options):
    return compiled(source, "-shared", "-fPIC", f"-Wl,-soname,{soname}", *options)


def libcuda(origin):
    """A libcuda that says where it comes from."""
    return library("libcuda.so.1", LIBCUDA, f'-DFROM="{origin}"')


@functools.cache
def oracle():
    """/oracle SONAME...: which file the loader inside takes for each, and whose libcuda it is."""
    return compiled(ORACLE)


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())
    os.chmod(path, 0o755)


def build(root, version=VERSION, directory=LIBRARIES):
    """The driver's files below a directory of the host."""
    write(f"{root}/{directory}/libcuda.so.{version}", libcuda("the driver"))
    for stem in ("libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-encode", "libnvidia-eglcore"):
        write(f"{root}/{directory}/{stem}.so.{version}", library(stem + ".so.1"))
    write(f"{root}/usr/bin/nvidia-smi", "#!/bin/sh\necho fake nvidia-smi\n")
    write(f"{root}/usr/bin/nvidia-cuda-mps-control", "#!/bin/sh\n")
    write(f"{root}/lib/firmware/nvidia/{version}/gsp_ga10x.bin", "firmware")
    write(f"{root}/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n")
    searched = directory
    if "/nvidia/" in directory:  # Debian: the loader knows the driver by links of the alternatives only
        searched = LIBRARIES
        os.makedirs(f"{root}/etc/alternatives")
        for stem in ("libcuda", "libnvidia-ml"):
            os.symlink(f"{stem}.so.{version}", f"{root}/{directory}/{stem}.so.1")
            os.symlink(f"/{directory}/{stem}.so.1", f"{root}/etc/alternatives/glx--{stem}.so.1")
            os.symlink(f"/etc/alternatives/glx--{stem}.so.1", f"{root}/{LIBRARIES}/{stem}.so.1")
    write(f"{root}/etc/ld.so.conf", f"/{searched}\n")
    subprocess.run(["ldconfig", "-r", root], check=True)


INFORMATION = """Model: \t\t {2}
GPU UUID: \t GPU-00000000-0000-0000-0000-00000000000{0}
Bus Location: \t 0000:{1:02x}:00.0
Device Minor: \t {0}
"""
# Nodes of devices that no driver of this kernel has: opening one gives ENXIO if the cgroup lets.
NODES = {"nvidia-uvm": (240, 0), "nvidia-uvm-tools": (240, 1)}


class FakeDriver:
    """A driver in driver_root on both nodes, and what its kernel module would show in /proc, for a while. `directory`: of its
    libraries. `buses`: of the GPUs with the minor numbers 0 and 1. `uvm`: whether its device node has been made since the boot."""

    def __init__(self, cluster, version=VERSION, kernel=None, directory=LIBRARIES, buses=(0x20, 0x30), uvm=True, model="NVIDIA Fake GPU"):
        self.cluster, self.version, self.kernel = cluster, version, kernel or version
        self.root, self.directory, self.buses, self.model = "/home/shared/fake-driver", directory, buses, model
        self.nodes = NODES if uvm else {}

    def __enter__(self):
        self.on_host = os.path.join(self.cluster.shared, "fake-driver")
        self.stack = contextlib.ExitStack()
        self.stack.callback(shutil.rmtree, self.on_host, ignore_errors=True)
        try:
            build(self.on_host, self.version, self.directory)
            for node in ("node01", "node02"):
                self._add_kernel(node)
        except BaseException:
            self.stack.close()
            raise
        return self

    def _add_kernel(self, node):
        script = "mount -t tmpfs driver /proc/driver; "
        script += f"mkdir -p /proc/driver/nvidia; echo 'NVRM version: fake  {self.kernel}  now' >/proc/driver/nvidia/version; "
        for minor, bus in enumerate(self.buses):
            where = f"/proc/driver/nvidia/gpus/0000:{bus:02x}:00.0"
            script += f"mkdir -p {where}; printf '{INFORMATION.format(minor, bus, self.model)}' >{where}/information; "
        script += " ".join(f"mknod -m 666 /dev/{name} c {major} {minor};" for name, (major, minor) in self.nodes.items())
        script += capabilities(CONTROL)
        self.stack.callback(self.cluster.root, node, "sh", "-c",
                            "umount /proc/driver; rm -rf /dev/nvidia-caps " + " ".join("/dev/" + name for name in NODES))
        self.cluster.root(node, "sh", "-euc", script).good()

    def __exit__(self, *_):
        self.stack.close()


# An H100 without instances has these two, and an empty directory for them.
CONTROL = {"mig/config": (1, 0o400), "mig/monitor": (2, 0o444)}


def capabilities(files):
    """The script that makes what the driver says of capabilities, and their nodes with the modes that it says."""
    script = "mkdir -p /dev/nvidia-caps /proc/driver/nvidia/capabilities/gpu0/mig; "
    for name, (number, mode) in files.items():
        path = "/proc/driver/nvidia/capabilities/" + name
        script += f"mkdir -p {os.path.dirname(path)}; "
        script += f"printf 'DeviceFileMinor: {number}\\nDeviceFileMode: {mode}\\nDeviceFileModify: 1\\n' >{path}; "
        script += f"mknod -m {mode:o} /dev/nvidia-caps/nvidia-cap{number} c 242 {number}; "
    return script


SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket", "/tmp/nvidia-mps/control")


@contextlib.contextmanager
def daemons(cluster, node="node01"):
    """The sockets of NVIDIA's daemons, without the daemons."""
    make = "import os, socket, sys\nfor path in sys.argv[1:]:\n os.makedirs(os.path.dirname(path), exist_ok=True)\n"
    make += " socket.socket(socket.AF_UNIX).bind(path); os.chmod(path, 0o666)"
    try:
        cluster.root(node, "python3", "-c", make, *SOCKETS).good()
        yield
    finally:
        cluster.root(node, "rm", "-r", *(os.path.dirname(path) for path in SOCKETS))


@contextlib.contextmanager
def parts_of_gpu0(cluster, node="node01"):
    """GPU 0 has two instances of MIG, whose nodes are 12, 13 and 21, 22. While a FakeDriver is there. Nodes have the modes that the
    driver says and nvidia-modprobe gives them: 0444, and 0400 for config."""
    files, nodes = {}, []
    for instance, number in ((1, 12), (2, 21)):
        files[f"gpu0/mig/gi{instance}/access"] = (number, 0o444)
        files[f"gpu0/mig/gi{instance}/ci0/access"] = (number + 1, 0o444)
        nodes += [f"/dev/nvidia-caps/nvidia-cap{number}", f"/dev/nvidia-caps/nvidia-cap{number + 1}"]
    try:
        cluster.root(node, "sh", "-euc", capabilities(files)).good()
        yield
    finally:
        cluster.root(node, "rm", "-rf", *nodes, "/proc/driver/nvidia/capabilities/gpu0/mig/gi1", "/proc/driver/nvidia/capabilities/gpu0/mig/gi2")


# Render nodes of AMD GPUs as KFD lists them: minor, PCI address or device of a partition. The minors are not in the order of the bus.
AMD = ((129, "0000:11:00.0"), (130, "amdgpu_xcp_0"), (128, "0000:c1:00.0"))


@contextlib.contextmanager
def amd_node(cluster, node="node01", gpus=AMD):
    """The files of amdgpu: /sys/class/drm, KFD's topology, whose node 0 is the processor, and device nodes."""
    script = "mount -t tmpfs -o mode=755 fake-class /sys/class; mkdir -p /dev/dri; mknod -m 666 /dev/kfd c 226 64; "
    topology = "/sys/class/kfd/kfd/topology/nodes"
    script += f"mkdir -p {topology}/0; echo drm_render_minor 0 >{topology}/0/properties; "
    for number, (minor, device) in enumerate(gpus, 1):
        where = f"/sys/class/fake/{device}"
        script += f"mkdir -p {topology}/{number} /sys/class/drm/renderD{minor} {where}/drm/renderD{minor}; "
        script += f"printf 'simd_count 304\\nvendor_id 4098\\ndrm_render_minor {minor}\\n' >{topology}/{number}/properties; "
        script += f"ln -s ../../fake/{device} /sys/class/drm/renderD{minor}/device; mknod -m 666 /dev/dri/renderD{minor} c 226 {minor}; "
        if not device.startswith("amdgpu_xcp"):
            script += f"echo 0x1002 >{where}/vendor; "
    try:
        cluster.root(node, "sh", "-euc", script).good()
        yield
    finally:
        cluster.root(node, "sh", "-c", "umount /sys/class; rm -rf /dev/dri /dev/kfd")
