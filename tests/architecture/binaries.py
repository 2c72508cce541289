"""Rules about the built programs: exported symbols, needed libraries, whether they load, and what is in the root program."""

import os
import re
import subprocess
import tempfile
from fnmatch import fnmatch
from pathlib import Path

from report import ROOT, data_lines, difference, output_of

LIBRARY = "libspank_container.so.1"
# The same code under two names: Slurm matches options by that of the plugin.
PLUGINS = {"spank_container.so": "spank_container", "spank_pyxis.so": "pyxis"}

# Functions that handle bytes of images and registries must not be in the program that runs as root.
FOREIGN = re.compile(r"^(archive_(read|write|entry)_|curl_|ZSTD_|isal_|sqfs_|SSL_|EVP_|inflate|deflate)|nlohmann|toml::|fmt::v")

LOADER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
  void *plugin = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
  if (plugin == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
  const char *name = dlsym(plugin, "plugin_name");
  const char *type = dlsym(plugin, "plugin_type");
  if (name == NULL || type == NULL || strcmp(name, argv[2]) != 0 || strcmp(type, "spank") != 0)
    return fprintf(stderr, "plugin_name and plugin_type are not those of a SPANK plugin\n"), 1;
  return 0;
}
"""


class Binaries:
    def __init__(self, stage):
        self.library = only(stage, f"usr/lib*/**/{LIBRARY}")
        self.plugins = {file: only(stage, f"usr/lib*/**/{file}") for file in PLUGINS}
        self.agent = only(stage, "usr/lib*/spank-container/agent")
        self.helper = only(stage, "usr/lib*/spank-container/container-helper")
        self.idle = only(stage, "usr/lib*/spank-container/sandbox-idle")
        self.slurm = only(Path("/"), "usr/lib*/*/slurm*/libslurmfull.so")


def only(directory, pattern):
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        hint = "; build and stage the release preset first" if not found else ""
        raise FileNotFoundError(f"{directory}/{pattern}: there are {len(found)} of it{hint}")
    return found[0]


def listed(data_file, name):
    return [line.split()[-1] for line in data_lines(data_file) if name in line.split()[:-1]]


def dynamic_symbols(file, which):
    """Names without versions; the versions themselves are symbols of type A."""
    for line in output_of("nm", "-D", f"--{which}-only", file).splitlines():
        kind, name = line.split()[-2:]
        if kind != "A":
            yield name.split("@")[0]


def dynamic_entries(file, tag):
    return re.findall(rf"\({tag}\).*?\[(.*?)\]", output_of("readelf", "-dW", file))


def needed_problems(file, name):
    expected = listed("needed", name)
    found = dynamic_entries(file, "NEEDED")
    for library in found:
        if not any(fnmatch(library, pattern) for pattern in expected):
            yield f"{name} needs {library}, which is not in the list"
    for pattern in expected:
        # The loader is named only where thread-local data is used.
        if not pattern.startswith(("ld-", "libm.")) and not any(fnmatch(library, pattern) for library in found):
            yield f"{name} does not need {pattern}, which is in the list"
    for tag in ("RPATH", "RUNPATH"):
        yield from (f"{name} has {tag} {path}" for path in dynamic_entries(file, tag))
    if not re.search(r"\(FLAGS_1\).*\bNOW\b", output_of("readelf", "-dW", file)):
        yield f"{name} is not linked with -z now"


def version_script_names(path):
    return re.findall(r"^\s*(spc_\w+);", path.read_text(), re.M)


def api_names(header):
    return re.findall(r"^SPC_API\b[^;]*?\b(spc_\w+)\s*\(", header.read_text(), re.M)


def undefined_problems(binaries, plugin):
    provided = {"slurm": set(dynamic_symbols(binaries.slurm, "defined")), "spc": set(dynamic_symbols(binaries.library, "defined"))}
    undefined = list(dynamic_symbols(plugin, "undefined"))
    if not any(name.startswith("spank_") for name in undefined):
        yield "the plugin calls nothing of SPANK"
    for name in undefined:
        if re.match(r"slurm_|spank_", name) and name not in provided["slurm"]:
            yield f"{name} is not in {binaries.slurm}"
        if name.startswith("spc_") and name not in provided["spc"]:
            yield f"{name} is not in {LIBRARY}"


def load_problems(binaries, plugin):
    with tempfile.TemporaryDirectory() as directory:
        source, program = Path(directory, "loader.c"), Path(directory, "loader")
        source.write_text(LOADER)
        folder = binaries.slurm.parent
        link = ["-Wl,--no-as-needed", f"-L{folder}", "-lslurmfull", f"-Wl,-rpath,{folder}", "-ldl"]
        yield from failure_of(["cc", source, "-o", program, *link])
        if program.exists():
            environment = {**os.environ, "LD_LIBRARY_PATH": str(binaries.library.parent)}
            yield from failure_of([program, plugin, PLUGINS[plugin.name]], environment)


def failure_of(command, environment=None):
    done = subprocess.run([str(word) for word in command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        yield f"{Path(str(command[0])).name}: exit status {done.returncode}"
        yield from done.stdout.splitlines()


def static_problems(program):
    if "INTERP" in output_of("readelf", "-lW", program):
        yield "it asks for a dynamic loader"
    yield from (f"it needs {library}" for library in dynamic_entries(program, "NEEDED"))


def agent_problems(agent):
    yield from static_problems(agent)
    agent = ROOT / "build/release/libexec/agent"  # what is installed is stripped
    symbols = [line.split(" ", 2)[-1] for line in output_of("nm", "-C", "--defined-only", agent).splitlines()]
    if "main" not in symbols:
        yield "it has no symbols to look at"
    yield from (f"it holds {symbol}" for symbol in symbols if FOREIGN.search(symbol))


def check(report, stage):
    binaries = Binaries(stage)
    header = ROOT / "runtime/include/spank_container/runtime.h"
    exports = listed("exports", LIBRARY)
    script = version_script_names(ROOT / "runtime/api/libspank_container.map")
    report.check(f"{LIBRARY} exports what is listed", difference(dynamic_symbols(binaries.library, "defined"), exports, LIBRARY))
    report.check("the version script names what is listed", difference(script, exports, "libspank_container.map"))
    report.check("runtime.h declares what is listed", difference(api_names(header), exports, "runtime.h"))
    report.check(f"{LIBRARY} needs only what is listed", needed_problems(binaries.library, LIBRARY))
    for file, plugin in binaries.plugins.items():
        exported = dynamic_symbols(plugin, "defined")
        report.check(f"{file} exports what is listed", difference(exported, listed("exports", file), file))
        report.check(f"{file} needs only what is listed", needed_problems(plugin, file))
        undefined = undefined_problems(binaries, plugin)
        report.check(f"what {file} calls exists in Slurm and in the library", undefined)
        report.check(f"{file} loads with every symbol resolved", load_problems(binaries, plugin))
    report.check("the agent is static and holds no parser of images", agent_problems(binaries.agent))
    report.check("container-helper runs in images without libraries", static_problems(binaries.helper))
    report.check("sandbox-idle runs in images without libraries", static_problems(binaries.idle))
