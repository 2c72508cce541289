"""Workflow tools that start containers: their command lines.

Images, directories and the programs in the containers are those of the tests. Origin, versions and results:
packaging/migration/workflow-tools.md.
"""
import os
import shlex

from command import await_true
from harness import equal, expect, test
from images import Image

BASE = "registry:5000/suites/base:1"


def directory(cluster, name, **files):
    """Makes a directory in alice's home with executable files; returns its paths here and there."""
    here = os.path.join(cluster.home, "alice", name)
    os.makedirs(here, exist_ok=True)
    os.chown(here, 2001, 2001)
    for file, text in files.items():
        with open(os.path.join(here, file), "w") as out:
            out.write(text)
        os.chmod(os.path.join(here, file), 0o755)
    return here, f"/home/alice/{name}"


def content(*path):
    with open(os.path.join(*path)) as file:
        return file.read()


def exists(*path):
    return os.path.exists(os.path.join(*path))


# --- submitit 1.5.4 (e49d5e7), submitit/slurm/slurm.py ----------------------------------------------------------------

SUBMITIT = f"""#!/bin/bash

# Parameters
#SBATCH --error=/home/alice/submitit/%j_0_log.err
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/home/alice/submitit/%j_0_log.out
#SBATCH --signal=USR2@90
#SBATCH --time=5
#SBATCH --wckey=submitit

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /home/alice/submitit/%j_%t_log.out --error /home/alice/submitit/%j_%t_log.err \
--container-image={BASE} --container-mount-home /home/alice/submitit/program
"""


@test
def submitit_job_gets_variables_and_its_checkpoint_signal(cluster):
    program = """#!/bin/bash
trap 'echo checkpoint; exit 0' USR2
echo $SUBMITIT_EXECUTOR $SLURM_PROCID of $SLURM_NTASKS $(cat /workspace/replaced)
touch /home/alice/submitit/up$SLURM_PROCID
while sleep 0.05; do :; done
"""
    here, _ = directory(cluster, "submitit", program=program)
    job = int(cluster.run("sbatch", "--parsable", stdin=SUBMITIT).good())
    await_true(lambda: exists(here, "up0") and exists(here, "up1"), 30, "the tasks do not start")
    cluster.run("scancel", "--signal=USR2", str(job)).good()
    fields = cluster.await_job(job)
    for task in (0, 1):
        equal(content(here, f"{job}_{task}_log.out").splitlines()[-2:], [f"slurm {task} of 2 upper", "checkpoint"], "output")
    equal(fields["JobState"], "COMPLETED", "state")


# --- NeMo-Run 0.12.0 (9339e12), nemo_run/core/execution/templates: slurm.sh.j2, ray_enroot.sub.j2 ------------------------

NEMO_RUN = f"""#!/bin/bash
#SBATCH --job-name=alice-account.sample_job-0
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --time=00:30:00
export PYTHONUNBUFFERED=1
export SLURM_UNBUFFEREDIO=1
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
nodes_array=($nodes)
head_node=${{nodes_array[0]}}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
export ENV_VAR=value
srun --output /home/alice/nemo/log-0_%j_${{SLURM_RESTART_COUNT:-0}}.out --container-image {BASE} \
--container-mounts /home/alice/nemo:/nemo_run --container-workdir /nemo_run/code --wait=60 --kill-on-bad-exit=1 \
bash ./scripts/start_server.sh & pids[0]=$!
srun --output /home/alice/nemo/log-1_%j_${{SLURM_RESTART_COUNT:-0}}.out --container-image {BASE} \
--container-mounts /home/alice/nemo:/nemo_run --container-workdir /nemo_run/code --wait=60 --kill-on-bad-exit=1 \
bash ./scripts/echo.sh server_host=$head_node_ip & pids[1]=$!
wait ${{pids[0]}} && wait ${{pids[1]}}
"""

NEMO_RUN_RAY = f"""#!/bin/bash
#SBATCH --nodes=1
set -eoux pipefail
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
LOG_DIR=/home/alice/ray
srun --container-image={BASE} --no-container-mount-home --container-mounts $LOG_DIR:$LOG_DIR,$LOG_DIR:$LOG_DIR \
--container-workdir=/workspace --container-name=ray-head --nodes=1 --ntasks=1 -w "$head_node" -o $LOG_DIR/ray-head.log \
bash -x -c "touch $LOG_DIR/STARTED_RAY_HEAD; while ! test -e $LOG_DIR/ENDED; do sleep 0.05; done" &
get_container_pid() {{
  local node=$1
  srun --overlap --nodes=1 -w "$node" bash -c "enroot list -f | awk 'NR>1 && \\$2 ~ /^[0-9]+\\$/ {{print \\$2; exit}}'"
}}
until srun --overlap --nodes=1 --ntasks=1 -w $head_node test -f $LOG_DIR/STARTED_RAY_HEAD; do sleep 0.1; done
head_container_pid=$(get_container_pid "$head_node")
srun --overlap --nodes=1 -w "$head_node" -o $LOG_DIR/ray-job.log enroot exec "$head_container_pid" \
bash -c "cd /workspace && cat replaced; touch $LOG_DIR/ENDED"
wait
"""


@test
def nemo_run_group_of_two_commands_runs_in_one_job(cluster):
    here, _ = directory(cluster, "nemo")
    directory(cluster, "nemo/code")
    directory(cluster, "nemo/code/scripts", **{"start_server.sh": "echo server $ENV_VAR; pwd; cat /workspace/replaced\n",
                                               "echo.sh": "echo client $1\n"})
    done = cluster.batch(NEMO_RUN)
    done.good()
    logs = {name.split("_")[0]: content(here, name) for name in os.listdir(here) if name.startswith("log-")}
    equal(logs["log-0"].splitlines()[-3:], ["server value", "/nemo_run/code", "upper"], "server", done)
    expect("client server_host=" in logs["log-1"], "no client", done)


@test
def nemo_run_enters_ray_head_by_the_number_enroot_lists(cluster):
    here, _ = directory(cluster, "ray")
    done = cluster.batch(NEMO_RUN_RAY)
    done.good()
    expect(content(here, "ray-job.log").endswith("upper\n"), "it is not in the container", done)


# --- SkyPilot (00fb32b), sky/provision/slurm/instance.py -------------------------------------------------------------

SKYPILOT = """#!/bin/bash
#SBATCH --job-name=sky-alice
#SBATCH --nodes=2
#SBATCH --wait-all-nodes=1
#SBATCH --no-requeue
#SBATCH --cpus-per-task=1
cleanup() {
    saved_exit=$?
    srun --nodes=2 --ntasks-per-node=1 enroot remove -f pyxis_sky-alice 2>/dev/null || true
    exit $saved_exit
}
trap cleanup EXIT
trap 'exit 0' TERM
srun --nodes=2 mkdir -p /tmp/ccache_$(id -u)
rm -rf /home/alice/sky/.sky_container_init_done
mkdir -p /home/alice/sky/.sky_container_init_done
srun --overlap --label --unbuffered --nodes=2 --ntasks-per-node=1 --container-image='registry:5000#suites/base:1' \
--container-name=sky-alice:create --container-mounts="/home/alice:/home/alice,/tmp/ccache_$(id -u):/var/cache/ccache" \
--container-remap-root --no-container-mount-home --container-writable bash -c 'set -e
echo '"'"'alias sudo=""'"'"' >> ~/.bashrc
touch /home/alice/sky/.sky_container_init_done/$SLURM_PROCID && sleep infinity' &
wait
"""


@test
def skypilot_cluster_is_made_entered_and_removed(cluster):
    here, _ = directory(cluster, "sky")
    job = cluster.submit(SKYPILOT)
    marks = os.path.join(here, ".sky_container_init_done")
    await_true(lambda: exists(marks, "0") and exists(marks, "1"), 30, "the containers are not ready")
    for node in cluster.nodes:
        done = cluster.run("srun", "--unbuffered", "--quiet", "--overlap", f"--jobid={job}", f"--nodelist={node}", "--nodes=1", "--ntasks=1",
                           "--container-remap-root", "--container-name=sky-alice:exec", "bash", "-c", "id -u; tail -n1 ~/.bashrc; cat /workspace/replaced")
        done.good('0\nalias sudo=""\nupper')
    # SkyPilot signals the steps first: their end starts the trap, and this signal can end its `enroot remove`.
    cluster.run("scancel", "--full", "--signal=TERM", "--name=sky-alice").good()
    cluster.await_job(job)
    for node in cluster.nodes:
        done = cluster.run("srun", "-w", node, "--container-name=sky-alice:exec", "true")
        expect(done.rc != 0, f"the container is still on {node}", done)
        await_true(lambda node=node: "pyxis_sky-alice" not in cluster.run("srun", "-w", node, "enroot", "list").good().split(), 20, "it is listed")


# --- Nextflow (ApptainerBuilder.groovy, SingularityCache.groovy, command-run.txt) ------------------------------------

NEXTFLOW_PULL = "cd /home/alice/nf && apptainer pull  --name base-1.img.pulling.1795842000000 docker://" + BASE + " > /dev/null"

NEXTFLOW = """#!/bin/bash
#SBATCH -J nf-upper
#SBATCH -o /home/alice/nf/tasks/.command.log
#SBATCH --no-requeue
#SBATCH --signal B:USR2@30
#SBATCH -c 1
set -e
set -u
nxf_container_env() {
cat << EOF
export PATH="\\$PWD/bin:\\$PATH"
EOF
}
nxf_launch() {
    set +u; env - PATH="$PATH" ${TMP:+APPTAINERENV_TMP="$TMP"} ${TMPDIR:+APPTAINERENV_TMPDIR="$TMPDIR"} \
${NXF_TASK_WORKDIR:+APPTAINERENV_NXF_TASK_WORKDIR="$NXF_TASK_WORKDIR"} apptainer exec --no-home --pid \
-B /home/alice/nf/data -B "$NXF_TASK_WORKDIR" /home/alice/nf/base-1.img \
/bin/bash -c "cd $NXF_TASK_WORKDIR; eval $(nxf_container_env); /bin/bash -ue $NXF_TASK_WORKDIR/.command.sh"
}
cd /home/alice/nf/tasks
export NXF_TASK_WORKDIR="$PWD"
set +e
(set -o pipefail; (nxf_launch | tee .command.out) 3>&1 1>&2 2>&3 | tee .command.err) &
wait $! || nxf_main_ret=$?
printf -- ${nxf_main_ret:-0} > /home/alice/nf/tasks/.exitcode
"""


@test
def nextflow_task_runs_in_an_image_that_it_pulled(cluster):
    here, _ = directory(cluster, "nf")
    directory(cluster, "nf/data", sample="a sample\n")
    work, _ = directory(cluster, "nf/tasks", **{".command.sh": "tr a-z A-Z <../data/sample >result\ncat /workspace/replaced\ntest ! -e ~/nf/base-1.img\n"})
    cluster.run("srun", "bash", "-c", NEXTFLOW_PULL, timeout=60).good("")
    os.rename(os.path.join(here, "base-1.img.pulling.1795842000000"), os.path.join(here, "base-1.img"))
    job = int(cluster.run("sbatch", "--parsable", stdin=NEXTFLOW).good())
    cluster.await_job(job)
    log = content(work, ".command.log")
    equal((content(work, ".exitcode"), content(work, "result")), ("0", "A SAMPLE\n"), f"result, with the log {log!r}")
    warning = "WARNING: --pid: is not given: processes share the namespace of the host\n"
    equal((content(work, ".command.out"), content(work, ".command.err")), ("upper\n", warning), "output and errors")


# --- Snakemake 9.25.2 (ead894b), src/snakemake/deployment/singularity.py ---------------------------------------------

SNAKEMAKE = f"""#!/bin/bash
cd /home/alice/flow
apptainer --version
apptainer pull --name 5d41402abc4b2a76b9719d911017c592.simg docker://{BASE} 2>&1 >/dev/null || exit 1
 apptainer  exec --home '/home/alice/flow'  /home/alice/flow/5d41402abc4b2a76b9719d911017c592.simg bash -c \
'set -euo pipefail;  tr a-z A-Z <'\\''in put'\\'' >out'
SINGULARITYENV_THREADS=4 apptainer --quiet --silent exec --home '/home/alice/flow' --bind /home/shared --pwd '/home/alice/flow' \
/home/alice/flow/5d41402abc4b2a76b9719d911017c592.simg bash -c 'set -euo pipefail;  echo $THREADS $(pwd) $(cat /workspace/replaced) >threads'
"""


@test
def snakemake_rules_run_in_an_image_that_it_pulled(cluster):
    here, _ = directory(cluster, "flow", **{"in put": "made\n"})
    done = cluster.batch(SNAKEMAKE)
    version = done.good().splitlines()[0]
    expect(version.startswith("apptainer version 1."), f"the version is not one that Snakemake reads: {version}", done)
    equal((content(here, "out"), content(here, "threads")), ("MADE\n", "4 /home/alice/flow upper\n"), "results", done)


# --- ReFrame 4.11.0-dev1 (7547971), reframe/core/containers.py -------------------------------------------------------

REFRAME = f"""#!/bin/bash
srun singularity exec -B"/home/shared:/data" -B"/home/alice/rfm:/rfm_workdir" --pwd /rfm_workdir docker://{BASE} ./check
apptainer run -B"/home/alice/rfm:/rfm_workdir" --pwd /rfm_workdir docker://{BASE}
"""


@test
def reframe_check_runs_in_its_stage_directory(cluster):
    here, _ = directory(cluster, "rfm", check="#!/bin/sh\npwd; ls -d /data; cat /workspace/replaced; echo done >report\n")
    done = cluster.batch(REFRAME)
    equal(done.good().splitlines()[-4:], ["/rfm_workdir", "/data", "upper", "hello from base in /rfm_workdir: world"], "output", done)
    equal(content(here, "report"), "done\n", "report")


# --- verl (3f38806), examples/slurm/ray_on_slurm.slurm ----------------------------------------------------------------

VERL = """#!/bin/bash
#SBATCH --job-name=verl-ray-on-slurm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
verl_workdir=/home/alice/verl
apptainer_image_path=/home/alice/verl/verl-ngc.sif
nodes_array=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head_node=${nodes_array[0]}
worker_num=$((SLURM_JOB_NUM_NODES - 1))
srun --nodes=1 --ntasks=1 -w "$head_node" \\
    apptainer run --nv --bind $verl_workdir $apptainer_image_path \\
        ./ray start --head --node-ip-address="$head_node" --port=6379 --block &
for ((i = 1; i <= worker_num; i++)); do
    node_i=${nodes_array[$i]}
    srun --nodes=1 --ntasks=1 -w "$node_i" \\
        apptainer run --nv --bind $verl_workdir $apptainer_image_path \\
            ./ray start --address "$head_node:6379" --block &
done
PYTHONUNBUFFERED=1 srun --overlap --nodes=1 --ntasks=1 -w "$head_node" \\
    apptainer run --nv --bind $verl_workdir $apptainer_image_path \\
    ./trainer trainer.logger=['console'] trainer.nnodes="${SLURM_NNODES}" 2>&1 | tee verl_demo_slurm.log
"""
RAY = """#!/bin/sh
test -e /workspace/replaced && echo "$(hostname) $*" >ray.$(hostname)
exec sleep 100
"""
TRAINER = """#!/bin/sh
for i in $(seq 100); do [ $(ls ray.* | wc -l) = 2 ] && break; sleep 0.1; done
echo "$PYTHONUNBUFFERED $* $(cat /workspace/replaced)"; cat ray.*
"""


@test
def verl_job_runs_ray_on_two_nodes_and_its_trainer(cluster):
    here, path = directory(cluster, "verl", ray=RAY, trainer=TRAINER)
    # An entrypoint that executes its arguments, as that of NVIDIA's images.
    make = f"scontainer pull -q {BASE} && scontainer export --change 'ENTRYPOINT [\"/usr/bin/env\"]' {BASE} verl-ngc.sif"
    cluster.run("srun", f"--chdir={path}", "sh", "-c", make, timeout=60).good()
    done = cluster.batch(VERL, f"--chdir={path}")
    head, worker = cluster.nodes[:2]
    equal(content(here, "verl_demo_slurm.log").splitlines()[-3:],
          ["1 trainer.logger=[console] trainer.nnodes=2 upper", f"{head} start --head --node-ip-address={head} --port=6379 --block",
           f"{worker} start --address {head}:6379 --block"], "output of the trainer", done)


# --- srt-slurm (777e6ec), src/srtctl/core/slurm.py, start_srun_process() ----------------------------------------------

SRT_SLURM = f"""#!/bin/bash
#SBATCH --nodes=2
srun --overlap --nodes 1 --ntasks 1 --nodelist node02 --output /home/alice/srt/worker_%N.out --container-image {BASE} \
--no-container-entrypoint --no-container-mount-home --container-mounts /home/alice/srt:/logs,/home/shared:/model \
bash -c 'export NATS_SERVER=nats://node01:4222 && ls -d /model && echo up >/logs/node02.up && echo "$NATS_SERVER" && sleep 100' &
srun --overlap --nodes 1 --ntasks 1 --nodelist node01 --container-image {BASE} \
--no-container-entrypoint --no-container-mount-home --container-mounts /home/alice/srt:/logs,/home/shared:/model \
bash -c 'until [ -e /logs/node02.up ]; do sleep 0.1; done; test ! -e /home/alice/srt && cat /workspace/replaced'
"""


@test
def srt_slurm_worker_and_benchmark_overlap_in_a_job(cluster):
    here, _ = directory(cluster, "srt")
    done = cluster.batch(SRT_SLURM)
    equal(done.good().splitlines()[0], "upper", "output of the benchmark", done)
    equal(content(here, "worker_node02.out").splitlines()[:2], ["/model", "nats://node01:4222"], "output of the worker", done)


# --- Megatron-LM (157006d), examples/academic_paper_scripts/sc21 ------------------------------------------------------

MEGATRON = """#!/bin/bash

#SBATCH -t 0:30:00 --exclusive --mem=0 --overcommit --ntasks-per-node=2

THIS_DIR=`pwd`
mkdir -p ${THIS_DIR}/logs

CMD="./pretrain_gpt.py ${MEGATRON_PARAMS}"

srun -l \\
     --container-image "registry:5000#suites/base:1" \\
     --container-mounts "${THIS_DIR}:${THIS_DIR},${MEGATRON_CODE_DIR}:${MEGATRON_CODE_DIR},${DOCKER_MOUNT_DIR}:${DOCKER_MOUNT_DIR}" \\
     --output=${THIS_DIR}/logs/%x_%j.log sh -c "cd ${MEGATRON_CODE_DIR} && ${CMD}"
"""


@test
def megatron_job_exports_only_its_own_variables(cluster):
    here, path = directory(cluster, "megatron", **{"pretrain_gpt.py": "#!/bin/sh\necho $* $SLURM_NTASKS $(cat /workspace/replaced)\n"})
    env = [f"MEGATRON_CODE_DIR={path}", "MEGATRON_PARAMS=--num-layers 24", "DOCKER_MOUNT_DIR=/home/shared"]
    done = cluster.batch(MEGATRON, "--job-name=gpt", "--nodes=2", "--export=MEGATRON_CODE_DIR,MEGATRON_PARAMS,DOCKER_MOUNT_DIR", f"--chdir={path}",
                         env=env)
    done.good("")
    (log,) = os.listdir(os.path.join(here, "logs"))
    equal(sorted(content(here, "logs", log).splitlines()), [f"{task}: --num-layers 24 4 upper" for task in range(4)], "output of the tasks", done)


# --- dstack 0.21.2 (511c318), core/backends/slurm/compute.py, core/backends/base/compute.py -----------------------------

DSTACK_COMMANDS = [
    "( :", "unset LD_LIBRARY_PATH && unset LD_PRELOAD", 'exists() { command -v "$1" > /dev/null 2>&1; }',
    "install_pkg() { NAME=Distribution; test -f /etc/os-release && . /etc/os-release; echo $NAME not supported; exit 11; }",
    'if exists apt-get; then install_pkg() { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y "$1"; }; fi',
    "if ! exists sshd; then install_pkg openssh-server; fi", "if ! exists curl; then install_pkg curl; fi", ": )",
    "chmod 0755 /", "sed -i '/^sshd:/d' /etc/passwd", "echo 'sshd:x:0:0:privsep:/dev/null:/sbin/nologin' >> /etc/passwd",
    "curl --connect-timeout 60 --max-time 240 --retry 1 --output /usr/local/bin/dstack-runner http://registry/dstack-runner",
    "chmod +x /usr/local/bin/dstack-runner",
    "/usr/local/bin/dstack-runner --log-level 6 start --temp-dir /tmp/runner --http-port 10999 --ssh-port 10022 "
    "--ssh-authorized-key 'ssh-ed25519 AAAA of the project'"]
DSTACK = f"""#!/bin/sh
#SBATCH --job-name=alice-run-0
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=100M
set -eu
export NVIDIA_VISIBLE_DEVICES=void
{shlex.join(["srun", "--cpus-per-task=1", "--container-image=registry:5000#suites/dstack:1", "--container-name=alice-run-0",
             "--container-remap-root", "--container-writable", "--no-container-mount-home",
             "--container-env=NVIDIA_VISIBLE_DEVICES", "sh", "-c", " && ".join(DSTACK_COMMANDS)])}
"""
CURL = """#!/bin/sh
while [ "$1" != --output ]; do shift; done
echo '#!/bin/sh
echo "$(id -u) $NVIDIA_VISIBLE_DEVICES $(stat -c %a /) $(grep -c ^sshd:x:0:0: /etc/passwd) $(ls /home/alice 2>/dev/null | wc -l) $# $9"' >"$2"
"""


@test
def dstack_job_edits_accounts_and_starts_its_runner(cluster):
    programs = [("usr/bin/curl", CURL.encode()), ("usr/sbin/sshd", b"#!/bin/sh\n")]
    cluster.push(Image("suites/dstack", [programs], {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin", "NVIDIA_VISIBLE_DEVICES=all"]},
                       below=cluster.base_layout))
    job = int(cluster.run("sbatch", "--parsable", "--output=/home/alice/dstack.%j", stdin=DSTACK).good())
    # dstack also passes --only-job-state, which the squeue of Slurm 22.05 lacks.
    state = cluster.run("squeue", "-j", str(job), "-h", "-o", "%T")
    expect(state.good().strip() in ("PENDING", "RUNNING", "COMPLETING", "COMPLETED"), "dstack cannot read the state", state)
    cluster.await_job(job)
    equal(content(cluster.home, "alice", f"dstack.{job}").splitlines(), ["0 void 755 1 0 11 10022"] * 2, "output of the runners")
    for node in cluster.nodes:
        cluster.run("srun", "-w", node, "scontainer", "rm", "alice-run-0")


# --- OpenRLHF (3c3be62), examples/scripts/train_nonrl_slurm.sh ----------------------------------------------------------

OPENRLHF = f"""#!/bin/bash
#SBATCH -N 1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --overcommit
readonly GPUS_PER_NODE=8
readonly PROJECT_PATH=$(cd ../../; pwd)
readonly IMAGE_NAME="{BASE}"
training_commands="openrlhf.cli.train_dpo --train.batch_size 256"
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export MASTER_PORT=9901
srun --container-image="$IMAGE_NAME" \
    --container-mounts="$PROJECT_PATH:/openrlhf,$HOME/.cache:/root/.cache" \
    bash -c " cd /openrlhf; ./pip install . ; ./torchrun \
--nproc_per_node $GPUS_PER_NODE --nnodes $SLURM_NNODES --node_rank $SLURM_PROCID \
--master_addr $MASTER_ADDR --master_port $MASTER_PORT -m ${{training_commands}}"
"""


@test
def openrlhf_job_installs_and_trains_in_its_mounts(cluster):
    directory(cluster, ".cache", model="weights\n")
    directory(cluster, "openrlhf", pip="#!/bin/sh\ntouch /usr/local/bin/installed\n",
              torchrun="#!/bin/sh\nls /usr/local/bin/installed; cat /root/.cache/model /workspace/replaced; echo $*\n")
    directory(cluster, "openrlhf/examples")
    _, path = directory(cluster, "openrlhf/examples/scripts")
    done = cluster.batch(OPENRLHF, f"--chdir={path}")
    equal(done.good().splitlines()[-4:],
          ["/usr/local/bin/installed", "weights", "upper",
           f"--nproc_per_node 8 --nnodes 1 --node_rank 0 --master_addr {done.out.split('--master_addr ')[1].split()[0]} "
           "--master_port 9901 -m openrlhf.cli.train_dpo --train.batch_size 256"], "output", done)
