"""The commands of packaging/migration, as somebody who comes from Apptainer or pyxis would type them."""
import os

from harness import equal, expect, test
from images import with_probe

BASE = "registry:5000/suites/base:1"


@test
def apptainers_binds_and_work_directory(cluster):
    os.makedirs(os.path.join(cluster.home, "alice/migration"), exist_ok=True)
    os.chown(os.path.join(cluster.home, "alice/migration"), 2001, 2001)
    here = "/home/alice/migration"
    done = cluster.bash("touch made; ! touch /mnt/x 2>/dev/null; pwd", f"--container-mounts={here},{here}:/mnt:ro", f"--container-workdir={here}")
    done.good(here)
    expect(os.path.exists(os.path.join(cluster.home, "alice/migration/made")), "the file is not outside", done)


@test
def apptainers_contain_env_and_entrypoint(cluster):
    cluster.bash("test -z \"$(ls -A ~; ls -A /tmp)\"; echo $A", "--container-contain", "--container-env=A=1").good("1")
    image = with_probe("runscript", [], Entrypoint=["/probe", "/none"])
    cluster.srun("--container-entrypoint", "/probe", "/probe-of-the-task", image=image).good("/probe-of-the-task: missing\nuid 2001, in /")


@test
def apptainers_instance_is_a_name_that_a_second_step_joins(cluster):
    web = cluster.start_srun("-w", "node01", "--container-name=web", "sh", "-c", "echo up >/state; echo up; while test ! -e /stop; do sleep 0.05; done")
    web.await_text("up")
    cluster.run("srun", "-w", "node01", "--container-name=web", "sh", "-c", "cat /state; touch /stop").good("up")
    web.end(15).good()


@test
def an_image_is_changed_as_root_and_saved_instead_of_built(cluster):
    made = cluster.run("srun", f"--container-image={BASE}", "--container-remap-root", "--container-save=/home/alice/tools.sqsh",
                       "sh", "-c", "test $(id -u) = 0 && echo tool >/usr/local/bin/tool && chmod +x /usr/local/bin/tool", timeout=60)
    made.good()
    done = cluster.run("srun", "--container-image=/home/alice/tools.sqsh", "sh", "-c", "cat /usr/local/bin/tool; id -u")
    equal(done.good().split(), ["tool", "2001"], "content and user", done)
    os.unlink(os.path.join(cluster.home, "alice/tools.sqsh"))


@test
def enroots_words_for_registry_and_mounts(cluster):
    cluster.run("srun", "--container-image=docker://registry:5000#suites/base:1", "--container-mounts=/etc/hosts:/h:ro+bind", "cat", "/workspace/replaced").good("upper")
