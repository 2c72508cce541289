"""Tests with layers served by FUSE, which a site can configure on any kernel. Kernels without owner
mapping always use FUSE."""
import guests_test
import site_files
from command import await_true
from guest import NODE, digest_of
from harness import add, equal, test
from images import Image

CASES = (guests_test.user_sees_the_system_of_the_image,
         guests_test.two_tasks_share_a_container,
         guests_test.image_files_can_be_changed,
         guests_test.user_can_be_root_inside,
         guests_test.named_container_keeps_files_for_the_second_step,
         guests_test.joined_step_outlives_the_first,
         guests_test.scancel_ends_pull,
         guests_test.scancel_ends_running_step,
         guests_test.slurmd_restart_keeps_the_running_step)


def fuse_serves_all_layers(guest):
    layers, by_fuse = guest.layers_served()
    equal(by_fuse, layers, f"of {layers} layers by FUSE")


def by_fuse(case):
    def run(guest):
        with site_files.rules(guest, 'squashfs = "fuse"'):
            case(guest)
        guest.must_be_quiet(within=10)
    return run


for case in (fuse_serves_all_layers, *CASES):
    add(__name__, case.__name__, by_fuse(case))


@test
def blacklisted_kernel_module_is_replaced(guest):
    """Without site configuration, which is read meanwhile. Before Linux 6.2, layers pulled without
    erofs keep using FUSE."""
    module, pulled = guest.form(), Image("guests/meanwhile", [[("data", b"pulled")]])
    image, _ = guest.faulty.publish(pulled)
    programs = "--container-mounts=/usr,/lib,/lib64"  # the image has no programs
    with site_files.Files(guest, {"modprobe.d/blacklisted.conf": f"blacklist {module}\n", "spank-container/config.d/50-test.toml": "# read again\n"}):
        await_true(lambda: guest.root(NODE, "rmmod", module).rc == 0, 20, f"{module} is still in use")
        fuse_serves_all_layers(guest)
        guest.bash("cat /workspace/replaced").good("upper")
        equal(guest.layers_served(programs, image=image), (1, 1), "layers, and those by FUSE, of what is pulled meanwhile")
    equal(guest.layers_served()[1], 0, "layers by FUSE afterwards")
    stays = module == "erofs"
    equal(guest.layers_served(programs, image=image)[1], int(stays), "layers by FUSE of what was pulled meanwhile")
    told = guest.root(NODE, "scontainer", "doctor", "--node", "--quiet")
    equal((told.rc, "layers: 1 are squashfs" in told.err), (3, True) if stays else (0, False), "what scontainer doctor says of it", told)
    guest.root(NODE, "scontainer", "rm", digest_of(pulled.parts()[0])).good()
    equal(guest.layers_served(programs, image=image)[1], 0, "layers by FUSE of what was pulled again")
