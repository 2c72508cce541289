"""A kernel that maps owners of neither squashfs nor erofs, as Linux 5.12 to 5.18, with a store
whose files share blocks: layers are read from copies that contain the owners."""
import guests_test
import report
import site_files
from guest import NODE
from harness import equal, test
from loop_files import loop_backing

SUITE = "copies"


@test
def copies_carry_the_number_of_the_user(guest):
    running = guest.start_srun("-J", "copies", "sh", "-c", "stat -c %U:%G /etc; sleep 600")
    running.await_text("alice:alice")
    owners = {loop_backing(f"/dev/{loop}")[2].rsplit(".", 1)[0] for loop in guest.loops(NODE)}
    equal(owners, {"2001.2001"}, "whose copies there are")
    guest.run("scancel", "--name=copies").good()
    running.end(120)
    guest.must_be_quiet(within=10)


@test
def fuse_server_costs_are_measured(guest):
    """In the same guest, for comparison."""
    with report.figures_of(", by FUSE"), site_files.rules(guest, 'squashfs = "fuse"'):
        guests_test.start_times_are_measured(guest)
        guests_test.repeated_read_times_are_measured(guest)
