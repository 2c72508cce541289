"""Login hosts and nodes with different plugins, as during a migration: no command runs on the host
instead of in the container that it names.

The other plugin is NVIDIA's pyxis, compiled from its source if that is beside the checkout, and a
stand-in with its name and options (fake_pyxis.c)."""
import contextlib
import glob
import os
import re
import shutil
import subprocess
import tempfile

from harness import equal, expect, test
from plugstack import plugins_of

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = glob.glob(os.path.join(HERE, "../../../../shared/peers/pyxis-*.tar.gz"))
BASE = "registry:5000/suites/base:1"
IMAGE = f"--container-image={BASE}"
NODE = ("-w", "node01")
ON_HOST = ("/bin/sh", "-c", "test -e /workspace/replaced || echo on the host; touch /home/alice/has-run")
INSIDE = ("cat", "/workspace/replaced")
FROM_PYXIS = "options of a container came from pyxis, and this node has no plugin of that name"
FROM_OURS = "options of a container came from spank_container.so, and this node has only spank_pyxis.so"
NO_PLUGIN = "plugstack.conf of this node has no spank_container.so"


def ours(cluster):
    line = open(os.path.join(cluster.etc, "slurm/plugstack.conf")).read()
    return re.search(r"required (\S+/spank_container\.so)", line)[1]


def ours_as_pyxis(cluster):
    return ours(cluster).replace("spank_container.so", "spank_pyxis.so")


def compiled(cluster, name, build):
    """Returns the plugin's path on the machines, which may have another Slurm version than this
    host."""
    with tempfile.TemporaryDirectory() as directory:
        settings = open(os.path.join(cluster.state, "settings")).read()
        root = re.search(r"^root=(.*)$", settings, re.M)[1].strip("'")
        os.symlink(f"{root}/usr/include/slurm", os.path.join(directory, "slurm"))
        os.environ["CPATH"] = directory
        shutil.copy(build(directory), os.path.join(cluster.shared, name))
    return f"/home/shared/{name}"


def make_fake(directory):
    program = os.path.join(directory, "fake_pyxis.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", program, os.path.join(HERE, "fake_pyxis.c")], check=True)
    return program


def make_nvidias(directory):
    subprocess.run(["tar", "-xzf", SOURCES[0], "-C", directory, "--strip-components=1"], check=True)
    subprocess.run(["make", "-s", "-C", directory, "spank_pyxis.so"], check=True, stdout=subprocess.DEVNULL)
    return os.path.join(directory, "spank_pyxis.so")


@contextlib.contextmanager
def nvidias(cluster):
    """Returns plugins named pyxis other than this project's."""
    makers = {"fake_pyxis.so": make_fake, **({"nvidia_pyxis.so": make_nvidias} if SOURCES else {})}
    try:
        yield [compiled(cluster, name, maker) for name, maker in makers.items()]
    finally:
        for name in makers:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(cluster.shared, name))


def must_not_run(cluster, done, *why):
    """Runs a command of ON_HOST. It must fail with one of these texts before it begins."""
    expect(done.rc != 0, "exit status 0", done)
    expect(any(text in done.out + done.err for text in why), f"not said: {why}", done)
    expect("on the host" not in done.out, "it ran on the host", done)
    equal(os.path.exists(os.path.join(cluster.home, "alice/has-run")), False, "has run")


@test
def login_with_pyxis_and_node_with_ours_is_refused(cluster):
    with nvidias(cluster) as all_of_them:
        for theirs in all_of_them:
            with plugins_of(cluster, "head", theirs):
                for option in (IMAGE, "--container-name=x"):
                    must_not_run(cluster, cluster.run("srun", *NODE, option, *ON_HOST), FROM_PYXIS)
                done = cluster.run("srun", "-N2", IMAGE, *ON_HOST)
                must_not_run(cluster, done, FROM_PYXIS)
                script = "#!/bin/sh\n" + ON_HOST[2] + "\n"
                for more in ([], ["--export=NONE"]):
                    must_not_run(cluster, cluster.batch(script, *NODE, IMAGE, *more), FROM_PYXIS)
                cluster.run("srun", *NODE, "echo", "plain").good("plain")
                cluster.batch("#!/bin/sh\necho plain\nsrun echo step\n", *NODE).good("plain\nstep")
                twin = cluster.run("srun", *NODE, *INSIDE, env=[f"PYXIS_CONTAINER_IMAGE={BASE}"])
                twin.good("upper")
    cluster.await_idle()


@test
def login_with_pyxis_and_node_with_ours_as_pyxis_works(cluster):
    with nvidias(cluster) as all_of_them, plugins_of(cluster, "node01", ours_as_pyxis(cluster)), plugins_of(cluster, "node02", ours_as_pyxis(cluster)):
        for theirs in all_of_them:
            with plugins_of(cluster, "head", theirs):
                cluster.run("srun", *NODE, IMAGE, *INSIDE).good("upper")
                mounts = cluster.run("srun", *NODE, IMAGE, "--container-mounts=/home/shared:/data:ro", "--container-workdir=/data",
                                     "--container-writable", "--no-container-mount-home", "sh", "-c", "pwd; touch x || touch /workspace/x")
                equal(mounts.out.split(), ["/data"], "output with mounts", mounts)
                two = cluster.run("srun", "-N2", "--ntasks-per-node=2", IMAGE, "sh", "-c", "cat /workspace/replaced; echo $SLURMD_NODENAME")
                equal(sorted(two.good().split()), 2 * ["node01"] + 2 * ["node02"] + 4 * ["upper"], "output of two nodes", two)
                wrong = cluster.run("srun", "-N2", "--container-image=registry:5000/suites/none:1", "true")
                equal((wrong.rc, wrong.err.count('repository "suites/none" does not exist')), (1, 2), "an error of each node", wrong)
                script = "#!/bin/sh\ncat /workspace/replaced\n"
                for more in ([], ["--export=NONE"]):
                    cluster.batch(script, *NODE, IMAGE, *more).good("upper")
                nested = "#!/bin/sh\ncat /workspace/replaced; srun cat /workspace/replaced\n"
                cluster.batch(nested, *NODE, IMAGE, env=["SCONTAINER_SLURM=1"]).good("upper\nupper")
                plain = cluster.run("srun", *NODE, "test", "-e", "/workspace/replaced")
                equal(plain.rc, 1, "exit status outside", plain)


@test
def login_with_ours_and_node_without_plugin_fails(cluster):
    with plugins_of(cluster, "node01"):
        must_not_run(cluster, cluster.run("srun", *NODE, IMAGE, *ON_HOST), NO_PLUGIN)
        must_not_run(cluster, cluster.run("srun", *NODE, "--export=NONE", IMAGE, *ON_HOST), NO_PLUGIN)
        must_not_run(cluster, cluster.run("srun", *NODE, *ON_HOST, env=[f"SCONTAINER_IMAGE={BASE}"]), NO_PLUGIN)
        mixed = cluster.run("srun", "-N2", IMAGE, *INSIDE)
        expect(mixed.rc != 0 and mixed.out == "upper\n" and NO_PLUGIN in mixed.err, "one node without the plugin", mixed)
        cluster.run("srun", *NODE, "echo", "plain").good("plain")


@test
def login_with_ours_and_node_with_pyxis_fails(cluster):
    with nvidias(cluster) as all_of_them:
        for theirs in all_of_them:
            with plugins_of(cluster, "node01", theirs):
                must_not_run(cluster, cluster.run("srun", *NODE, IMAGE, *ON_HOST), NO_PLUGIN)


@test
def login_with_ours_and_node_with_ours_as_pyxis_is_refused(cluster):
    with plugins_of(cluster, "node01", ours_as_pyxis(cluster)):
        must_not_run(cluster, cluster.run("srun", *NODE, IMAGE, *ON_HOST), FROM_OURS)
        must_not_run(cluster, cluster.run("srun", *NODE, "--export=NONE", IMAGE, *ON_HOST), NO_PLUGIN, FROM_OURS)
        script = "#!/bin/sh\n" + ON_HOST[2] + "\n"
        for more in ([], ["--export=NONE"]):
            must_not_run(cluster, cluster.batch(script, *NODE, IMAGE, *more), FROM_OURS)
        cluster.run("srun", *NODE, "echo", "plain").good("plain")


@test
def login_with_ours_as_pyxis_and_node_with_pyxis_reaches_it(cluster):
    """It fails there for lack of NVIDIA's enroot. The test checks that it has the options, and that
    srun's plugin does not refuse the command."""
    with nvidias(cluster) as all_of_them, plugins_of(cluster, "head", ours_as_pyxis(cluster)):
        for theirs in all_of_them:
            with plugins_of(cluster, "node01", theirs):
                cluster.root("node01", "mkdir", "/run/pyxis").good()  # as its slurmd does
                done = cluster.run("srun", *NODE, IMAGE, "--container-mounts=/home", *ON_HOST)
                must_not_run(cluster, done, "pyxis: ")
                expect(re.search(rf"^pyxis: .*{BASE}", done.err, re.M), "the image's name does not arrive", done)
                cluster.root("node01", "rm", "-r", "/run/pyxis").good()


@test
def node_with_both_names_starts_one_container(cluster):
    """The steps of a batch script have its options, and srun prints nothing about two plugins."""
    nested = "#!/bin/sh\ncat /workspace/replaced; srun cat /workspace/replaced\n"
    both = (ours(cluster), ours_as_pyxis(cluster))
    starts = lambda: cluster.program("logs", "node01").out.count("spank-container: start job=")
    with nvidias(cluster) as all_of_them:
        for order in (both, both[::-1]):
            with plugins_of(cluster, "node01", *order):
                for login in (*all_of_them, *both, None):
                    with plugins_of(cluster, "head", *([login] if login else order)):
                        before = starts()
                        cluster.run("srun", *NODE, IMAGE, *INSIDE).good("upper")
                        cluster.run("srun", *NODE, *INSIDE, env=[f"PYXIS_CONTAINER_IMAGE={BASE}"]).good("upper")
                        slurm = ["SCONTAINER_SLURM=1"]
                        cluster.batch(nested, *NODE, IMAGE, env=slurm).good("upper\nupper")
                        equal(starts() - before, 4, f"containers with {login} on the login host")


@test
def user_limits_reach_the_container(cluster):
    show = "ulimit -v; ulimit -m; env | grep -E 'SLURM_(RLIMIT|SCONTAINER)_'"
    for more in ([], ["--propagate=AS,RSS"], ["--propagate=NONE"], ["--export=NONE"]):
        plain, inside = (cluster.run("bash", "-c", f"ulimit -v 9000000; ulimit -m 8000000; exec srun {' '.join(words)} /bin/sh -c \"$0\"", show)
                         for words in ([*NODE, *more], [*NODE, *more, IMAGE]))
        equal(inside.out, plain.out, f"limits with {more}", inside)
