"""Final checks of the node and of the kernel's log."""
from guest import NODE, SLURMCTLD_LOG, read
from harness import equal, expect, test


@test
def node_was_never_drained(guest):
    log = read(SLURMCTLD_LOG)
    bad = [line for line in log.splitlines() if "drain" in line.lower() or "not responding" in line]
    expect("node01" in log and not bad, "slurmctld's log says\n" + "\n".join(bad))
    equal(guest.run("sinfo", "-h", "-R").good(), "", "reasons")


@test
def kernel_log_has_no_complaint_about_our_mounts(guest):
    log = guest.root(NODE, "dmesg", "--notime").good().splitlines()
    # Known: a named container is mounted without CAP_DAC_READ_SEARCH, and overlayfs logs the
    # missing features each time.
    known = ("overlayfs: upper fs does not support file handles, falling back to index=off.", "loop: module loaded")
    bad = [line for line in log if line not in known and any(word in line.lower() for word in ("overlayfs", "squashfs error", "fuse: bad", "loop:"))]
    expect(any("Linux version" in line for line in log), "the kernel's log is not all there: the test is void")
    expect(not bad, f"it has {len(bad)} lines, at first\n" + "\n".join(bad[:10]))
