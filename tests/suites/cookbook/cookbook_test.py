"""packaging/examples/cookbook: each recipe, unchanged, submitted by a user with test images."""
import contextlib
import hashlib
import os
import re
import shutil
import subprocess

import fake_frameworks
import mpi_abi_test
import mpi_test
from command import await_true
from cluster import HERE
from frameworks_test import Home, python_image
from harness import equal, expect, test
from private_images_test import DOCKER, PRIVATE, in_home
from site_files import rules

COOKBOOK = os.path.join(HERE, "../../../packaging/examples/cookbook")
BASE = "registry:5000/suites/base:1"
SECONDS = 90


@contextlib.contextmanager
def recipes(cluster, *names):
    """Makes a directory of alice on every node with these files of the cookbook."""
    there = "/home/shared/cookbook"
    here = os.path.join(cluster.shared, "cookbook")
    os.makedirs(here)
    for name in names:
        shutil.copy(os.path.join(COOKBOOK, name), here)
    os.chown(here, 2001, 2001)
    try:
        yield here, there
    finally:
        shutil.rmtree(here)


def submit(cluster, there, recipe, *options, code="0:0", **variables):
    """Runs a command line in that directory. Returns its output, including that of all tasks of an
    array."""
    words = [f"{name}={value}" for name, value in variables.items()]
    done = cluster.run("env", "-C", there, *words, "sbatch", "--parsable", *options, recipe)
    job = done.good().strip()
    # sbatch --wait polls every ten seconds only.
    await_true(lambda: not cluster.inquirer.ask(f"squeue -h -j {job}"), SECONDS, f"{recipe} does not end")
    codes = re.findall(r"ExitCode=(\S+)", " ".join(cluster.inquirer.ask(f"scontrol -o show job {job}")))
    output = cluster.run("sh", "-c", f"cat {there}/*-{job}*.out").out
    expect(set(codes) == {code}, f"{recipe} has ended with {codes}: {output}", done)
    return output


@test
def array_tasks_take_one_list_line_each(cluster):
    with recipes(cluster, "array.sbatch") as (here, there):
        for name in ("one", "two", "three"):
            with open(f"{here}/{name}", "w") as file:
                file.write(name)
        with open(f"{here}/inputs.txt", "w") as file:
            file.write("one\ntwo\nthree\n")
        submit(cluster, there, "array.sbatch", "--array=0-2", IMAGE=BASE)
        for name in ("one", "two", "three"):
            equal(open(f"{here}/{name}.sum").read().split(), [hashlib.sha256(name.encode()).hexdigest(), name], "what a task wrote")


@test
def python_packages_are_stored_beside_an_image(cluster):
    with Home(cluster), recipes(cluster, "pip.sbatch") as (here, there):
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/packages", "PIP_BREAK_SYSTEM_PACKAGES": "1"}
        output = submit(cluster, there, "pip.sbatch", "-w", "node01", IMAGE=python_image(cluster), REQUIREMENTS="salute", PROGRAM="salute", **offline)
        equal(output.splitlines()[-1], "hello", "what the package says")
        equal(open(f"{here}/installed.txt").read().split("\n")[0].partition("=")[0].split(" ")[0], "salute", "what pip freeze says")
        with open(f"{here}/constraints.txt", "w") as file:
            file.write("salute==2.0\n")
        done = cluster.run("env", "-C", there, f"IMAGE={python_image(cluster)}", "REQUIREMENTS=salute --force-reinstall",
                           *(f"{name}={value}" for name, value in offline.items()), "sbatch", "--wait", "-w", "node01", "pip.sbatch", timeout=SECONDS)
        expect(done.rc != 0, "the constraints do not count", done)


@test
def image_is_built_on_top_of_another(cluster):
    with recipes(cluster, "extend.sbatch") as (here, there):
        install = "test $(id -u) = 0; printf '#!/bin/sh\\necho of mine\\n' >/usr/bin/mine; chmod 755 /usr/bin/mine"
        output = submit(cluster, there, "extend.sbatch", IMAGE=BASE, INSTALL=install, PROGRAM="mine")
        equal(output.splitlines()[-1], "of mine", "what the new program says")
        expect(os.path.getsize(f"{here}/extended.sqsh") > 1 << 20, "the file is not the whole image")


@test
def image_is_built_from_recipe_in_the_job(cluster):
    with recipes(cluster, "build.sbatch") as (here, there):
        os.mkdir(f"{here}/app")
        with open(f"{here}/app/Dockerfile", "w") as file:
            file.write(f"FROM {BASE} AS one\nRUN echo of stage one >/one\nFROM {BASE}\nRUN echo of the image >/two\nCOPY --from=one /one /\n")
        output = submit(cluster, there, "build.sbatch", CONTEXT="app", PROGRAM="cat /one /two")
        equal(output.splitlines()[-2:], ["of stage one", "of the image"], "what the image has")


@test
def pip_packages_are_installed_into_a_saved_image(cluster):
    """Without --user. Only changes are saved, as a layer of the image."""
    with recipes(cluster, "extend.sbatch") as (here, there):
        install = "pip install --no-index --find-links /packages --break-system-packages salute"
        output = submit(cluster, there, "extend.sbatch", IMAGE=python_image(cluster), INSTALL=install, PROGRAM="salute", FORMAT="oci-layer:", SAVED="with.tar")
        equal(output.splitlines()[-1], "hello", "what the package says")
        expect(os.path.getsize(f"{here}/with.tar") < 1 << 20, "the file has more than what was changed")


@test
def private_image_is_used_after_login(cluster):
    with recipes(cluster, "private.sbatch") as (_, there), in_home(cluster, ".docker/config.json", DOCKER):
        output = submit(cluster, there, "private.sbatch", IMAGE=PRIVATE, PROGRAM="echo inside")
        equal(output.splitlines()[-1], "inside", "what the program says")


def compiled(here, family):
    """Compiles the program. Debian 12's MPICH sometimes waits in MPI_Finalize forever
    (mpi_test.py), so its program ends without it."""
    source = f"{here}/pingpong.c"
    if family == "mpich":
        text = open(source).read()
        with open(source, "w") as file:
            file.write(text.replace("MPI_Finalize();", "fflush(stdout), _Exit(0);"))
    subprocess.run([f"mpicc.{family}", "-O2", "-o", f"{here}/pingpong", source], check=True)


def table(output):
    """Returns bytes, microseconds and MB/s of all sizes."""
    rows = [line.split() for line in output.splitlines() if re.fullmatch(r"[ \d.]+", line)]
    equal([int(row[0]) for row in rows], [8 ** i for i in range(1, 8)], "sizes")
    expect(all(float(row[1]) > 0 and float(row[2]) >= 0 for row in rows), f"no figures: {rows}")
    return rows


@test
def image_mpi_prints_bandwidth_table(cluster):
    image = mpi_test.prepare(cluster)
    with recipes(cluster, "mpi-hybrid.sbatch", "pingpong.c") as (here, there):
        compiled(here, "openmpi")
        table(submit(cluster, there, "mpi-hybrid.sbatch", IMAGE=image))


@test
def node_mpi_prints_bandwidth_table(cluster):
    image = mpi_test.prepare(cluster)
    with recipes(cluster, "mpi-node.sbatch", "pingpong.c") as (here, there), \
            rules(cluster, 'mpi_libraries = ["/usr/lib/x86_64-linux-gnu/libmpich.so.12"]\n'):
        compiled(here, "mpich")
        job = (cluster, there, "mpi-node.sbatch", "-N1", "--ntasks-per-node=2")
        if mpi_test.node_glibc_is_newer():
            output = submit(*job, code="1:0", IMAGE=image, MPI="pmi2")
            expect(mpi_abi_test.is_refused_for_glibc(output), f"not refused: {output}")
        else:
            table(submit(*job, IMAGE=image, MPI="pmi2"))


@test
def nbody_energy_is_conserved_for_any_number_of_ranks(cluster):
    image = mpi_test.prepare(cluster)
    with recipes(cluster, "nbody.sbatch", "nbody.c") as (here, there):
        subprocess.run(["mpicc.openmpi", "-O2", "-o", f"{here}/nbody", f"{here}/nbody.c", "-lm"], check=True)
        alone = cluster.srun("--mpi=pmix", "-n1", f"--container-mounts={there}:/data:ro", "/data/nbody", "400", "20", image=image, timeout=SECONDS).good()
        energies = []
        for output in (alone, submit(cluster, there, "nbody.sbatch", IMAGE=image, BODIES=400, STEPS=20)):
            rate, energy, change = re.search(r": ([0-9.]+) GFLOP/s\nenergy (-[0-9.]+), changed by (\S+)", output).groups()
            expect(float(rate) > 0 and float(change) < 1e-3, f"no simulation: {output}")
            energies.append(energy)
        expect(" 1 ranks:" in alone and " 4 ranks:" in output, f"other ranks: {output}")
        equal(energies[0][:9], energies[1][:9], "energy by one rank and by four")


@test
def python_mpi_computes_pi(cluster):
    with recipes(cluster, "pi-mpi.sbatch", "pi-mpi.py") as (_, there):
        output = submit(cluster, there, "pi-mpi.sbatch", IMAGE=mpi_test.prepare(cluster), SLICES=20000)
        expect("4 ranks on 2 nodes: pi is 3.14159265" in output, f"no pi: {output}")


@test
def fake_jax_starts_without_pmix(cluster):
    with recipes(cluster, "jax.sbatch") as (here, there):
        with open(f"{here}/jax.py", "w") as file:
            file.write(fake_frameworks.JAX)
        output = submit(cluster, there, "jax.sbatch", IMAGE=python_image(cluster))
        equal(sorted(line for line in output.splitlines() if "pulling" not in line and "pulled" not in line), [f"{rank} of 4 ['fake:{rank % 2}']" for rank in range(4)], "ranks")


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def ranks(output, tail):
    """Returns the output of four ranks on two nodes, in their order."""
    lines = sorted(re.findall(r"rank .*", output))
    equal(lines, [f"rank {rank} of 4, {rank % 2} on node {rank // 2}: {tail}" for rank in range(4)], "ranks")


@test
def fake_lightning_finds_ranks_by_slurm_variables(cluster):
    with recipes(cluster, "lightning.sbatch") as (here, there):
        write(f"{here}/lightning.py", fake_frameworks.LIGHTNING)
        write(f"{here}/train.py", fake_frameworks.LIGHTNING_TRAIN)
        ranks(submit(cluster, there, "lightning.sbatch", IMAGE=python_image(cluster)), 6)


@test
def fake_horovod_finds_ranks_by_mpi(cluster):
    with recipes(cluster, "horovod.sbatch") as (here, there):
        write(f"{here}/horovod/torch.py", fake_frameworks.HOROVOD)
        write(f"{here}/train.py", fake_frameworks.HOROVOD_TRAIN)
        ranks(submit(cluster, there, "horovod.sbatch", IMAGE=mpi_test.prepare(cluster)), 6)


@test
def fake_nccl_test_has_one_rank_per_fake_gpu(cluster):
    image = mpi_test.prepare(cluster)
    with recipes(cluster, "nccl-tests.sbatch") as (here, there):
        subprocess.run(["mpicc.openmpi", "-O1", "-x", "c", "-", "-o", f"{here}/all_reduce_perf"], input=fake_frameworks.NCCL_TEST, text=True, check=True)
        output = submit(cluster, there, "nccl-tests.sbatch", "--ntasks-per-node=2", "--gpus-per-node=2", IMAGE=image, MAXIMUM="64K", PROGRAM="./all_reduce_perf")
        expect("fake: 4 ranks" in output, f"other ranks: {output}")
        sizes = [int(line.split()[0]) for line in output.splitlines() if re.fullmatch(r" *\d+ +[\d.]+ +[\d.]+", line)]
        equal(sizes, [8 << power for power in range(14)], "sizes of the table")


@test
def job_warned_of_its_end_saves_state_for_the_next_job(cluster):
    program = "trap 'echo $count >new && mv new state; exit 99' USR1\ncount=$(cat state 2>/dev/null || echo 0)\n" \
              "while [ $count -lt 60 ]; do count=$((count + 1)); echo $count >>counted; [ $count != 20 ] || touch told; sleep 0.05; done\n"
    with recipes(cluster, "checkpoint.sbatch") as (here, there):
        with open(f"{here}/program", "w") as file:
            file.write(program)
        job = cluster.run("env", "-C", there, f"IMAGE={BASE}", "PROGRAM=sh program", "sbatch", "--parsable", "checkpoint.sbatch").good()
        await_true(lambda: os.path.exists(f"{here}/told"), 20, "the program does not run")
        cluster.run("scancel", "--signal=USR1", job.strip()).good()
        output = f"{here}/checkpoint.out"
        await_true(lambda: os.path.exists(output) and "another job goes on" in open(output).read(), 20, "it was not saved")
        await_true(lambda: open(f"{here}/counted").read().endswith("\n60\n"), 30, "no other job goes on")
        cluster.await_idle()
        expect(int(open(f"{here}/state").read()) >= 20, "what was saved")
        equal([int(line) for line in open(f"{here}/counted")], list(range(1, 61)), "what both jobs counted")
