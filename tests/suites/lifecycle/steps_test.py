"""Steps of several components or nodes: each component in its own image, and one line for the same
message of all nodes."""
import os
import re
from pathlib import Path

from cluster import NODES
from command import await_true
from images import with_probe
from harness import equal, expect, test

QUICK = True

BASE = "registry:5000/suites/base:1"
IN_BASE = (f"--container-image={BASE}", "cat", "/workspace/replaced")
UNKNOWN = "--container-image=registry:5000/suites/base:nothing"


def other_image(cluster):
    """Makes an image that contains only /probe."""
    return (f"--container-image={cluster.push(with_probe('het', []))}", "/probe")


def must_be_both(done):
    done.good()
    expect("upper" in done.out.splitlines() and "uid 2001, in /" in done.out, "not both images", done)
    equal(done.errors(), [], "errors", done)


# --- heterogeneous steps ---------------------------------------------------------------------------------------------

@test
def components_have_their_own_images(cluster):
    must_be_both(cluster.run("srun", "-n1", *IN_BASE, ":", "-n1", *other_image(cluster)))


@test
def components_have_own_images_without_exported_variables(cluster):
    must_be_both(cluster.run("srun", "-n1", "--export=NONE", *IN_BASE, ":", "-n1", "--export=NONE", *other_image(cluster)))


@test
def component_without_image_stays_outside(cluster):
    outside = ("sh", "-c", "test ! -e /workspace/replaced && grep -E 'CapPrm|NoNewPrivs' /proc/self/status && echo outside")
    for components in ((*outside, ":", "-n1", *IN_BASE), (*IN_BASE, ":", "-n1", *outside)):
        done = cluster.run("srun", "-n1", *components)
        done.good()
        equal(sorted(done.out.split()), sorted(["CapPrm:", "0" * 16, "NoNewPrivs:", "0", "outside", "upper"]), "output", done)


@test
def components_have_their_own_mounts(cluster):
    show = ("sh", "-c", "echo $SLURM_PROCID $(ls /mnt)")
    for name in ("one, two=%", "three"):
        os.makedirs(os.path.join(cluster.shared, name, name.split(",")[0]), exist_ok=True)
    done = cluster.run("srun", "-n1", f"--container-image={BASE}", '--container-mounts=/home/shared/three:/mnt', *show, ":",
                       "-n2", f"--container-image={BASE}", "--container-workdir=/etc", "pwd")
    equal(sorted(done.good().splitlines()), ["/etc", "/etc", "0 three"], "output", done)


@test
def components_of_batch_job_have_their_own_images(cluster):
    base, other = " ".join(IN_BASE), " ".join(other_image(cluster))
    done = cluster.batch("#!/bin/sh\n#SBATCH -n1 -N1\n#SBATCH hetjob\n#SBATCH -n1 -N1\n"
                         f"srun --het-group=0 {base} : --het-group=1 {other}\n"
                         f"srun --het-group=1 {base} : --het-group=0 {other}\n"
                         f"srun --het-group=1 {other}\n"
                         f"srun --het-group=0,1 {base}\n")
    lines = done.good().splitlines()
    equal((lines.count("upper"), done.out.count("uid 2001, in /")), (4, 3), "tasks in each image", done)


@test
def srun_to_node_variables_do_not_reach_tasks(cluster):
    show = ("sh", "-c", "env | grep -c SLURM_SCONTAINER; true")
    done = cluster.run("srun", "-n1", f"--container-image={BASE}", *show, ":", "-n1", *show)
    equal(done.good().split(), ["0", "0"], "variables", done)


@test
def differing_components_are_refused_when_slurm_merges_them(cluster):
    different = ("-n1", f"--container-image={BASE}", ":", "-n1", "--container-image=other")
    in_a_usual_job = ("salloc", "-N2", "-n2", "srun", "-n1", *IN_BASE, ":", "-n1", *other_image(cluster))
    for command in (("sbatch", *different, "--wrap", "true"), ("salloc", *different, "true"), in_a_usual_job):
        done = cluster.run(*command)
        equal((done.rc, len([line for line in done.errors() if "components" in line])), (1, 1), "exit code and error lines", done)


@test
def forged_srun_to_node_variables_are_harmless(cluster):
    """--export bypasses our side of srun. The tasks refuse such values, or they have no effect."""
    for value in ("junk", "0", "0;1", "0,container-image=%", "0,container-image=x;" * 2000, "9" * 5000):
        done = cluster.run("srun", "-N2", "-n4", f"--export=ALL,SLURM_SCONTAINER_COMPONENTS={value}", "true")
        equal(done.rc, 1, f"exit code with {value[:20]!r}", done)
        expect("the component of the heterogeneous step is ambiguous" in done.err, "no reason", done)
    for value in ("", "junk", "1:" + "f" * 32, "70000:" + "f" * 32, "x" * 9000):
        # srun sees no image and does not listen.
        image = UNKNOWN.replace("--container-image", "SCONTAINER_IMAGE")
        done = cluster.run("srun", "-N2", f"--export=ALL,{image},SLURM_SCONTAINER_REPORT={value}", "true")
        equal((done.rc, len(done.errors())), (1, 2), f"exit code and error lines with {value[:20]!r}", done)


# --- errors of several nodes -----------------------------------------------------------------------------------------

@test
def nodes_with_equal_errors_are_named_together(cluster):
    done = cluster.run("srun", "-N2", "-n16", UNKNOWN, "true")
    equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
    expect(done.errors()[0].startswith("node[01-02]: "), "the nodes are not named", done)


@test
def components_with_equal_errors_are_named_together(cluster):
    done = cluster.run("srun", "-n1", UNKNOWN, "true", ":", "-n1", UNKNOWN, "true")
    equal((done.rc, len(done.errors())), (1, 1), "exit code and error lines", done)
    expect(done.errors()[0].startswith("node[01-02]: "), "the nodes are not named", done)


@test
def nodes_with_different_errors_have_a_line_each(cluster):
    for node, name in (("node01", "file"), ("node02", "second")):
        cluster.root(node, "sh", "-c", f"mkdir -p /var/tmp/steps; echo >/var/tmp/steps/{name}")
    try:
        done = cluster.run("srun", "-N2", f"--container-image={BASE}", "--container-mounts=/var/tmp/steps/file:/etc", "true")
        equal((done.rc, len(done.errors())), (1, 2), "exit code and error lines", done)
        equal([line.split(": ")[0] for line in sorted(done.errors())], list(NODES), "nodes", done)
        done = cluster.run("srun", "-N2", f"--container-image={BASE}", "--container-mounts=/var/tmp/steps/second:/etc/issue", "true")
        equal([line.split(": ")[0] for line in done.errors()], ["node01"], "the node that failed", done)
    finally:
        for node in NODES:
            cluster.root(node, "rm", "-rf", "/var/tmp/steps")


@test
def error_on_single_node_has_no_node_prefix(cluster):
    done = cluster.run("srun", "-N1", "-n4", UNKNOWN, "true")
    equal(len(done.errors()), 1, "error lines", done)
    expect(not done.errors()[0].startswith("node"), "there is a name", done)


@test
def errors_of_every_node_are_shown_with_verbose(cluster):
    done = cluster.run("srun", "-l", "-N2", "-n4", "--container-verbose", UNKNOWN, "true")
    lines = [line for line in done.err.splitlines() if re.match(r"\d: spank-container: (?!node).*nothing", line)]
    equal(len(lines), 2, "lines", done)


@test
def slurmstepd_children_end_after_the_tasks(cluster):
    """Otherwise it would not monitor its tasks for 0.1 s."""
    name, layers = cluster.faulty.publish(with_probe("steps-leader", [("data", os.urandom(1 << 20))]))
    gate = cluster.faulty.hold(layers[0])
    step = cluster.start_srun("-w", "node01", "-n2", "/probe", image=name)
    try:
        await_true(lambda: cluster.processes("node01", "layer-writer"), 10, "the pull did not begin")
        leaders = cluster.processes("node01", "leader")
        equal(len(leaders), 1, "leaders")
        task = parent(leaders[0])
        equal([comm(task), comm(parent(task))], ["slurmstepd", "slurmstepd"], "a leader's parent, and that one's")
    finally:
        gate.set()
        step.end()


def comm(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
