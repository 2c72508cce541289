"""The commands of packaging/migration, as typed by a user of another system."""
import os

from harness import equal, expect, test
from images import with_probe

BASE = "registry:5000/suites/base:1"


@test
def apptainer_binds_and_work_directory_work(cluster):
    os.makedirs(os.path.join(cluster.home, "alice/migration"), exist_ok=True)
    os.chown(os.path.join(cluster.home, "alice/migration"), 2001, 2001)
    here = "/home/alice/migration"
    done = cluster.bash("touch made; ! touch /mnt/x 2>/dev/null; pwd", f"--container-mounts={here},{here}:/mnt:ro", f"--container-workdir={here}")
    done.good(here)
    expect(os.path.exists(os.path.join(cluster.home, "alice/migration/made")), "the file is not outside", done)


@test
def apptainer_contain_env_and_entrypoint_work(cluster):
    cluster.bash("test -z \"$(ls -A ~; ls -A /tmp)\"; echo $A", "--container-contain", "--container-env=A=1").good("1")
    image = with_probe("runscript", [], Entrypoint=["/probe", "/none"])
    cluster.srun("--container-entrypoint", "/probe", "/probe-of-the-task", image=image).good("/probe-of-the-task: missing\nuid 2001, in /")


@test
def apptainer_instance_is_a_name_joined_by_second_step(cluster):
    web = cluster.start_srun("-w", "node01", "--container-name=web", "sh", "-c", "echo up >/state; echo up; while test ! -e /stop; do sleep 0.05; done")
    web.await_text("up")
    cluster.run("srun", "-w", "node01", "--container-name=web", "sh", "-c", "cat /state; touch /stop").good("up")
    web.end(15).good()


@test
def image_changed_as_root_and_saved_replaces_a_build(cluster):
    made = cluster.run("srun", f"--container-image={BASE}", "--container-remap-root", "--container-save=/home/alice/tools.sqsh",
                       "sh", "-c", "test $(id -u) = 0 && echo tool >/usr/local/bin/tool && chmod +x /usr/local/bin/tool", timeout=60)
    made.good()
    done = cluster.run("srun", "--container-image=/home/alice/tools.sqsh", "sh", "-c", "cat /usr/local/bin/tool; id -u")
    equal(done.good().split(), ["tool", "2001"], "content and user", done)
    os.unlink(os.path.join(cluster.home, "alice/tools.sqsh"))


@test
def enroot_registry_and_mount_syntax_works(cluster):
    cluster.run("srun", "--container-image=docker://registry:5000#suites/base:1", "--container-mounts=/etc/hosts:/h:ro+bind", "cat", "/workspace/replaced").good("upper")


@test
def shifter_host_script_volumes_and_read_only_root_work(cluster):
    script = ("#!/bin/sh\n#SBATCH --container-image=" + BASE + "\n#SBATCH --container-batch=steps\n"
              "test ! -e /workspace/replaced && echo host; touch /tmp/of-the-node\n"
              "srun --container-readonly --container-mounts=/tmp,/home/shared:/data sh -c 'cat /workspace/replaced; ls /tmp/of-the-node; ls -d /data; touch /x 2>/dev/null || echo read-only'\n"
              "rm /tmp/of-the-node\n")
    cluster.batch(script, "-w", "node01").good("host\nupper\n/tmp/of-the-node\n/data\nread-only")


@test
def sarus_mounts_and_variables_work(cluster):
    os.makedirs(os.path.join(cluster.shared, "sarus"), exist_ok=True)
    done = cluster.run("srun", "--container-image=" + BASE, "--container-mounts=/home/shared/sarus:/b:ro", "--container-env=A=1", "--container-workdir=/b",
                       "sh", "-c", "echo $A; pwd; touch x 2>/dev/null || echo read-only")
    done.good("1\n/b\nread-only")


@test
def cscs_environment_file_works_as_script_variables(cluster):
    """Its keys are set once, for all steps of a script that runs on the host."""
    with open(os.path.join(cluster.shared, "cscs.env"), "w") as file:
        file.write("A=of the file\n")
    script = ("#!/bin/sh\nexport SCONTAINER_IMAGE=" + BASE.replace("/", "#", 1) + " SCONTAINER_MOUNTS=/home/shared:/b SCONTAINER_WORKDIR=/b\n"
              "export SCONTAINER_READONLY=1 SCONTAINER_ENTRYPOINT=0 SCONTAINER_ENV_FILE=/home/shared/cscs.env\n"
              "for step in 1 2; do srun sh -c 'echo $A; pwd; cat /workspace/replaced; touch /x 2>/dev/null || echo read-only'; done\n")
    cluster.batch(script, "-w", "node01").good("\n".join(2 * ["of the file", "/b", "upper", "read-only"]))


@test
def podman_hpc_shared_run_is_one_container_on_node_network(cluster):
    show = "echo $(readlink /proc/self/ns/mnt /proc/self/ns/net; id -u)"
    lines = cluster.run("srun", "-w", "node01", "-n2", "--container-image=" + BASE, "--container-mounts=/home/shared:/b", "sh", "-c", show).good().splitlines()
    outside = cluster.run("srun", "-w", "node01", "readlink", "/proc/self/ns/net").good().strip()
    expect(len(lines) == 2 and lines[0] == lines[1] and lines[0].endswith(f" {outside} 2001"), f"two containers, or another network: {lines}")
    cluster.run("srun", "-w", "node01", "--container-image=" + BASE, "--container-remap-root", "id", "-u").good("0")
