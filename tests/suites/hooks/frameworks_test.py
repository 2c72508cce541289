"""The variables of PyTorch and similar frameworks, and pip's directory for each image."""
import functools
import os
import re
import shutil
import subprocess

from cluster import BUILD_IMAGE
from images import Image
from harness import equal, expect, test
from site_files import rules

NAMES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK",
         "JAX_COORDINATOR_ADDRESS", "OMP_NUM_THREADS")
SHOW = ("sh", "-c", "echo " + " ".join(f"${{{name}--}}" for name in NAMES))
NOTHING = "- - - - - - - - -"
BASE = "registry:5000/suites/base:1"
TWO_BY_TWO = ("-N2", "--ntasks-per-node=2")


def torch_image(cluster):
    return Image("suites/torch-env", [[("marker", b"")]], {"Env": ["PYTORCH_VERSION=2", "PATH=/usr/bin:/bin"]}, below=cluster.base_layout)


def by_rank(done):
    """Returns the output of every task: rank -> {name: value}."""
    tasks = [dict(zip(NAMES, line.split())) for line in done.good().splitlines()]
    return {task["RANK"]: task for task in tasks}


@test
def tasks_get_rank_and_world_size(cluster):
    tasks = by_rank(cluster.srun(*TWO_BY_TWO, *SHOW))
    equal(sorted(tasks), ["0", "1", "2", "3"], "ranks")
    places = [(task["NODE_RANK"], task["LOCAL_RANK"], task["LOCAL_WORLD_SIZE"], task["WORLD_SIZE"]) for _, task in sorted(tasks.items())]
    equal(places, [("0", "0", "2", "4"), ("0", "1", "2", "4"), ("1", "0", "2", "4"), ("1", "1", "2", "4")], "places")
    meeting = {(task["MASTER_ADDR"], task["MASTER_PORT"], task["JAX_COORDINATOR_ADDRESS"]) for task in tasks.values()}
    equal(len(meeting), 1, "places to meet")
    address, port, jax = meeting.pop()
    equal(address, "node01", "MASTER_ADDR")
    expect(61000 <= int(port) <= 65535, f"MASTER_PORT is {port}")
    expect(re.fullmatch(r"node01:6[1-5][0-9]{3}", jax) and not jax.endswith(port), f"JAX's coordinator is {jax}")
    equal({task["OMP_NUM_THREADS"] for task in tasks.values()}, {"-"}, "OMP_NUM_THREADS of an image without PyTorch")


@test
def uneven_nodes_have_their_own_local_counts(cluster):
    tasks = by_rank(cluster.srun("-N2", "-n3", *SHOW))
    equal(sorted((task["NODE_RANK"], task["LOCAL_WORLD_SIZE"]) for task in tasks.values()), [("0", "2"), ("0", "2"), ("1", "1")], "tasks")


@test
def master_address_is_first_node_of_step_not_of_job(cluster):
    script = f"#!/bin/sh\nsrun --overlap -N1 -w node02 -n2 --container-image={BASE} sh -c 'echo $MASTER_ADDR'\n"
    equal(cluster.batch(script, "-N2", "--ntasks-per-node=2").good().split(), ["node02", "node02"], "MASTER_ADDR")


@test
def single_task_step_gets_no_rank_variables(cluster):
    cluster.srun("-n1", *SHOW).good(NOTHING)
    cluster.srun("-n1", *SHOW, image=torch_image(cluster)).good(NOTHING)


@test
def batch_script_gets_no_rank_variables(cluster):
    script = "#!/bin/sh\n" + SHOW[2] + "\n"
    cluster.batch(script, "-N2", "-n4", f"--container-image={BASE}").good(NOTHING)
    stale = ["SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_NODELIST=node[01-02]", "SLURM_STEP_TASKS_PER_NODE=2(x2)"]
    cluster.batch(script, "-n2", f"--container-image={BASE}", env=stale).good(NOTHING)


@test
def concurrent_steps_use_different_ports(cluster):
    step = f"srun --overlap -N2 -n2 --container-image={BASE} sh -c 'echo $SLURM_STEP_ID $MASTER_PORT $JAX_COORDINATOR_ADDRESS; sleep 1' &\n"
    lines = set(cluster.batch("#!/bin/sh\n" + 2 * step + "wait\n", "-N2", "-n2").good().splitlines())
    equal(len(lines), 2, f"places of two steps in {lines}")
    ports = [line.split()[1] for line in lines] + [line.rpartition(":")[2] for line in lines]
    equal(len(set(ports)), 4, f"different ports in {ports}")


@test
def heterogeneous_components_form_one_world(cluster):
    done = cluster.run("srun", "-n1", f"--container-image={BASE}", *SHOW, ":", "-n2", f"--container-image={BASE}", *SHOW)
    tasks = by_rank(done)
    equal(sorted(tasks), ["0", "1", "2"], "ranks")
    equal({task["WORLD_SIZE"] for task in tasks.values()}, {"3"}, "WORLD_SIZE")
    equal(len({(task["MASTER_ADDR"], task["MASTER_PORT"]) for task in tasks.values()}), 1, "places to meet")
    equal([tasks[rank]["LOCAL_WORLD_SIZE"] for rank in "012"], ["1", "2", "2"], "LOCAL_WORLD_SIZE")


@test
def job_or_option_rank_variables_are_kept(cluster):
    done = cluster.srun("-n2", "--container-env=WORLD_SIZE=9", *SHOW, env=["MASTER_PORT=1234", "RANK=of-the-job"])
    equal({line.split()[1:4][0] for line in done.good().splitlines()}, {"1234"}, "MASTER_PORT")
    equal({line.split()[3] for line in done.out.splitlines()}, {"of-the-job"}, "RANK")
    equal({line.split()[2] for line in done.out.splitlines()}, {"9"}, "WORLD_SIZE")
    image = Image("suites/of-image", [[("marker", b"")]], {"Env": ["MASTER_ADDR=image", "PATH=/usr/bin:/bin"]}, below=cluster.base_layout)
    equal({line.split()[0] for line in cluster.srun("-n2", "-w", "node01", *SHOW, image=image).good().splitlines()}, {"node01"}, "MASTER_ADDR")


@test
def pytorch_image_gets_threads_for_its_cpus(cluster):
    done = cluster.srun(*TWO_BY_TWO, *SHOW, image=torch_image(cluster))
    equal({task["OMP_NUM_THREADS"] for task in by_rank(done).values()}, {"1"}, "OMP_NUM_THREADS")
    done = cluster.srun("-N2", "-n2", *SHOW, image=torch_image(cluster))
    equal({task["OMP_NUM_THREADS"] for task in by_rank(done).values()}, {"-"}, "OMP_NUM_THREADS of one task a node")


@test
def rank_variables_can_be_disabled_by_the_site(cluster):
    for rule in ("frameworks = false\n", 'hooks_off = ["50-slurm-pytorch"]\n'):
        with rules(cluster, rule):
            equal(set(cluster.srun("-n2", *SHOW).good().splitlines()), {NOTHING}, "variables")
            equal(set(cluster.srun("-n2", *SHOW, image=torch_image(cluster)).good().splitlines()), {NOTHING}, "variables with PyTorch")


@test
def explain_names_origin_of_rank_variables(cluster):
    done = cluster.srun("--container-explain=all", *TWO_BY_TWO, "true")
    expect(any(re.match(r'variable: +MASTER_ADDR="node01" \(hook\)', line) for line in done.messages()), "not the variable", done)
    expect(any(re.match(r"hook: +50-slurm-pytorch: rank [01] of 4, rank [01] on node01", line) for line in done.messages()), "no word of it", done)


@test
def occupied_port_is_reported(cluster):
    listener = "import socket, time; s = socket.socket(); s.bind(('', {port})); s.listen(); print('up', flush=True); time.sleep(20)"
    script = f"""#!/bin/bash
python3 -c "{listener.replace('{port}', "$((61000 + SLURM_JOB_ID % 4536))")}" > ~/listener & listener=$!
until grep -q up ~/listener; do sleep 0.1; done
srun -n2 --overlap --container-image={BASE} true
kill $listener
"""
    done = cluster.batch(script, "-n2", "-w", "node01")
    told = [line for line in done.out.splitlines() if "(MASTER_PORT) is in use on this node" in line]
    equal(len(told), 1, f"warnings in {done.out}")


# --- pip -------------------------------------------------------------------------------------------------------------

PIP = "pip install --user --quiet --no-index --no-warn-script-location /packages/salute-*.whl"


@functools.cache
def python_layout():
    built = subprocess.run([BUILD_IMAGE, "python"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return built.split()[-1]


class Home:
    """alice's home with a package in any Python's ~/.local. The packages are removed at the end."""

    def __init__(self, cluster):
        self.path = os.path.join(cluster.home, "alice/.local")

    def __enter__(self):
        for version in ("3.9", "3.10", "3.11", "3.12", "3.13"):
            directory = os.path.join(self.path, f"lib/python{version}/site-packages")
            os.makedirs(directory)
            with open(os.path.join(directory, "of_the_host.py"), "w") as file:
                file.write("")
        subprocess.run(["chown", "-R", "2001:2001", self.path], check=True)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path)


def python_image(cluster, tag="1"):
    cluster.program("push", python_layout(), "suites/python:1").good()
    if tag == "1":
        return "registry:5000/suites/python:1"
    return Image("suites/other-python", [[("marker", b"")]], {}, below=python_layout())


@test
def pip_packages_persist_for_image_in_next_step(cluster):
    home = ("-w", "node01", "--container-mount-home")
    with Home(cluster):
        done = cluster.bash(f"{PIP}; salute; echo $PYTHONUSERBASE", *home, image=python_image(cluster))
        greeting, base = done.good().splitlines()
        equal(greeting, "hello", "what was installed says", done)
        expect(re.fullmatch(r"/home/alice/\.local/share/spank-container/python/[0-9a-f]{16}", base), f"the directory is {base}", done)
        cluster.bash("salute; python3 -c 'import salute'", *home, image=python_image(cluster)).good("hello")
        other = cluster.bash("command -v salute || echo none; echo $PYTHONUSERBASE", *home, image=python_image(cluster, "other")).good().splitlines()
        equal(other[0], "none", "salute in another image")
        expect(other[1] != base, "another image has the same directory")


@test
def host_python_packages_stay_outside(cluster):
    look = "python3 -c 'import of_the_host' 2>/dev/null && echo there || echo not there"
    with Home(cluster):
        cluster.bash(look, "--container-mount-home", image=python_image(cluster)).good("not there")
        with rules(cluster, "python_user_base = false\n"):
            cluster.bash(look, "--container-mount-home", image=python_image(cluster)).good("there")


@test
def pip_without_persistent_home_gets_no_image_directory(cluster):
    for option in ("--no-container-mount-home", "--container-contain"):
        cluster.bash("echo ${PYTHONUSERBASE-unset} $PATH", option).good("unset /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")


@test
def python_user_base_of_the_job_is_kept(cluster):
    done = cluster.bash("echo $PYTHONUSERBASE", "--container-mount-home", env=["PYTHONUSERBASE=/home/shared/mine"])
    done.good("/home/shared/mine")
