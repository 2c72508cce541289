"""--container-slurm: Slurm's commands work inside, with any libraries of the image."""
from harness import equal, expect, same_as_golden, test
from images import with_probe
from site_files import rules

BASE = "registry:5000/suites/base:1"


@test
def squeue_sinfo_and_scontrol_answer(cluster):
    done = cluster.bash("squeue -h -o '%u %T'; sinfo -h -o %D; scontrol show config | grep -m1 SLURM_VERSION; sbatch --version", "--container-slurm")
    lines = done.good().splitlines()
    expect("alice RUNNING" in lines, "squeue does not show the job", done)
    expect(lines[-1].startswith("slurm"), "sbatch does not say its version", done)


@test
def slurm_commands_work_in_image_without_c_library(cluster):
    done = cluster.srun("--container-slurm", "squeue", "-h", "-o", "%u %T", image=with_probe("bare", []))
    expect("alice RUNNING" in done.good().splitlines(), "squeue does not show the job", done)


@test
def srun_is_absent_without_the_option(cluster):
    done = cluster.srun("srun", "--version", image=with_probe("bare", []))
    equal(done.rc, 2, "exit code", done)


@test
def contained_batch_script_starts_steps_on_both_nodes(cluster):
    script = "#!/bin/sh\ntest -e /workspace/file || exit 9\nsrun -N2 sh -c 'cat /workspace/replaced; echo $SLURMD_NODENAME'\nsrun -n1 sh -c 'exit 7'\n"
    done = cluster.batch(script, "-N2", f"--container-image={BASE}", "--container-slurm")
    equal(done.rc, 7, "exit code", done)
    equal(sorted(done.out.split()[:4]), ["node01", "node02", "upper", "upper"], "output of the steps", done)


@test
def option_without_value_reaches_steps_of_batch_job(cluster):
    script = "#!/bin/sh\nsrun -n1 sh -c 'test -d /home/alice/from-outside && echo home'\n"
    import os
    os.makedirs(os.path.join(cluster.home, "alice/from-outside"), exist_ok=True)
    done = cluster.batch(script, f"--container-image={BASE}", "--container-slurm", "--container-mount-home")
    done.good("home")


@test
def job_is_submitted_and_cancelled_from_inside(cluster):
    done = cluster.bash("job=$(sbatch --parsable -H --export=NONE --wrap true); scontrol show job $job | grep -q JobState=PENDING; scancel $job; echo done", "--container-slurm")
    done.good("done")


@test
def image_preloads_do_not_reach_slurm_commands(cluster):
    image = with_probe("preload", [("evil.so", b"no library")], Env=["LD_PRELOAD=/evil.so", "LD_LIBRARY_PATH=/"])
    done = cluster.srun("--container-slurm", "squeue", "-h", "-o", "%u", image=image)
    equal((done.good().splitlines()[0], "evil" in done.err), ("alice", False), "user and messages", done)


@test
def host_files_are_read_only(cluster):
    cluster.bash("! touch /etc/slurm/x 2>/dev/null; ! touch /run/spank-container/slurm/root/usr/x 2>/dev/null", "--container-slurm").good()


@test
def slurm_commands_are_refused_as_root_inside(cluster):
    done = cluster.srun("--container-slurm", "--container-remap-root", "true")
    equal(done.rc, 1, "exit code", done)
    same_as_golden("slurm_and_remap_root", "\n".join(done.errors()) + "\n", done)


@test
def site_default_can_be_overridden(cluster):
    bare = with_probe("bare", [])
    with rules(cluster, "slurm = true\n"):
        cluster.srun("squeue", "-h", image=bare).good()
        equal(cluster.srun("squeue", "-h", image=bare, env=["SCONTAINER_SLURM=0"]).rc, 2, "exit code")
