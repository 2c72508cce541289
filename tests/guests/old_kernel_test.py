"""Tests on a kernel that is too old (before Linux 5.12): a start is refused before any pull, with
the required version. The node stays in service, and jobs without a container are unaffected. These
are all cases of such a guest."""
import os

import end_test
from guest import NODE
from harness import add, equal, expect, test

SUITE = "old_kernel"
IMAGE = "registry:5000/suites/base:1"


def must_name_the_kernel(done, rc=1):
    said = f"start a container: Linux {os.uname().release} has no mount_setattr (hint: this node needs Linux 5.12 or newer)"
    equal((done.rc, done.err.count(said)), (rc, 1), "exit code, and how often the kernel is named", done)


def layers():
    return os.listdir("/var/lib/spank-container/layers/sha256")


@test
def step_is_refused_with_kernel_version_and_requirement(guest):
    must_name_the_kernel(guest.srun("true"))
    equal(layers(), [], "layers that were pulled all the same")


@test
def batch_job_is_refused_with_the_same_message(guest):
    done = guest.batch("#!/bin/sh\ntrue\n", f"--container-image={IMAGE}")
    expect(done.rc == 1 and "needs Linux 5.12" in done.out, "it is not refused with a reason", done)


@test
def scontainer_run_prints_the_same_message(guest):
    done = guest.run("scontainer", "run", IMAGE, "true")
    expect(done.rc != 0 and f"Linux {os.uname().release} has no mount_setattr" in done.err, "the kernel is not named", done)
    equal(layers(), [], "layers that were pulled all the same")


@test
def doctor_recognises_the_node(guest):
    """HealthCheckProgram drains on 1: jobs cannot start containers here."""
    done = guest.root(NODE, "scontainer", "doctor", "--node")
    expect(done.rc == 1 and "use Linux 5.12 or newer" in done.out + done.err, "it does not say so", done)


@test
def jobs_without_a_container_are_unaffected(guest):
    guest.run("srun", "-n2", "id", "-u").good("2001\n2001")
    done = guest.batch("#!/bin/sh\nsrun hostname\nexit 3\n")
    equal((done.rc, done.out), (3, "node01\n"), "exit code and output", done)


for case in (end_test.node_was_never_drained, end_test.kernel_log_has_no_complaint_about_our_mounts):
    add(__name__, case.__name__, case)
