"""scontainer on the login node: attaching to the container of a running job."""

from command import await_true
from harness import equal, expect, test

BASE = "registry:5000/suites/base:1"


def running(cluster):
    step = cluster.start("srun", "-J", "attach", f"--container-image={BASE}", "sh", "-c", "echo here > /tmp/mark; echo job $SLURM_JOB_ID; sleep 60")
    step.await_text("job ")
    return step, step.said().split("job ")[1].split()[0]


@test
def command_joins_container_of_step(cluster):
    step, job = running(cluster)
    try:
        for name in (job, f"{job}.0"):
            cluster.run("scontainer", "exec", name, "sh", "-c", "cat /tmp/mark; echo $SLURM_JOB_ID").good(f"here\n{job}")
        equal(cluster.run("scontainer", "exec", job, "sh", "-c", "exit 9").rc, 9, "exit status")
        # A later step than the job's own.
        other = cluster.start("scontainer", "exec", job, "sh", "-c", "echo first; sleep 1")
        other.await_text("first")
        equal(cluster.run("scontainer", "exec", job, "sh", "-c", "sleep 1.5; cat /tmp/mark").good(), "here", "while another one ends")
        other.end()
        early = cluster.start("scontainer", "exec", job, "sh", "-c", "printf early; sleep 30", env=["SLURM_UNBUFFEREDIO=1"])
        early.await_text("early")
        done = cluster.run("scontainer", "attach", job, stdin="cat /tmp/mark; echo at $debian_chroot\n")
        expect("here" in done.out and f"at {job}" in done.out, "no shell in the container", done)
        done = cluster.run("scontainer", "exec", job, "true", user="bob")
        expect(done.rc != 0, "another user's job", done)
    finally:
        cluster.run("scancel", job)
        step.end(15)
    early.end(15)
    done = cluster.run("scontainer", "exec", job, "true")
    expect(done.rc == 125 and f"job {job} has no running step" in done.err, "a job that has ended", done)


@test
def command_joins_container_of_batch_script(cluster):
    job = cluster.submit("#!/bin/sh\necho here > /tmp/mark\necho up\nsleep 60\n", f"--container-image={BASE}")
    try:
        # The state RUNNING does not imply it.
        await_true(lambda: cluster.run("cat", f"/home/alice/{job}.out").out == "up\n", 30, "the script does not start")
        cluster.run("scontainer", "exec", f"{job}.batch", "cat", "/tmp/mark").good("here")
        cluster.run("scontainer", "exec", str(job), "cat", "/tmp/mark").good("here")
    finally:
        cluster.run("scancel", str(job))
        cluster.await_job(job)


@test
def attach_outside_a_job_is_refused(cluster):
    done = cluster.run("scontainer", "attach", "nonsense")
    expect(done.rc == 125 and "JOB or JOB.STEP" in done.err, "what is no job", done)
