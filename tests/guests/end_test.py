"""What must hold after the cases: of the node and of the kernel's log."""
from guest import NODE, SLURMCTLD_LOG, read
from harness import equal, expect, test


@test
def the_node_was_never_drained(guest):
    log = read(SLURMCTLD_LOG)
    bad = [line for line in log.splitlines() if "drain" in line.lower() or "not responding" in line]
    expect("node01" in log and not bad, "slurmctld's log says\n" + "\n".join(bad))
    equal(guest.run("sinfo", "-h", "-R").good(), "", "reasons")


@test
def the_kernel_has_nothing_to_say_of_our_mounts(guest):
    log = guest.root(NODE, "dmesg", "--notime").good().splitlines()
    # Known: a container with a name is mounted without CAP_DAC_READ_SEARCH, and overlayfs says each time what it does without.
    known = ("overlayfs: upper fs does not support file handles, falling back to index=off.", "loop: module loaded")
    bad = [line for line in log if line not in known and any(word in line.lower() for word in ("overlayfs", "squashfs error", "fuse: bad", "loop:"))]
    expect(any("Linux version" in line for line in log), "the kernel's log is not all there: the test is void")
    expect(not bad, f"it has {len(bad)} lines, at first\n" + "\n".join(bad[:10]))
