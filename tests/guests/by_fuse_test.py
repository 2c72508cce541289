"""The same where FUSE serves the layers, which a site can have everywhere: with kernels that can map no owners it is so by itself."""
import guests_test
import site_files
from command import await_true
from guest import NODE, digest_of
from harness import add, equal, test
from images import Image

CASES = (guests_test.a_user_sees_the_system_of_the_image,
         guests_test.two_tasks_share_a_container,
         guests_test.files_of_the_image_can_be_changed,
         guests_test.a_user_can_be_root_inside,
         guests_test.a_second_step_finds_what_the_first_wrote_in_a_container_with_a_name,
         guests_test.a_step_that_joins_another_outlives_it,
         guests_test.scancel_ends_a_pull,
         guests_test.scancel_ends_a_running_step,
         guests_test.slurmd_can_be_restarted_under_a_step)


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
def a_module_of_the_kernel_that_is_blacklisted_is_made_up_for(guest):
    """Without a word in the site's configuration, which is read meanwhile. Before Linux 6.2 what is pulled without erofs stays for FUSE."""
    module, pulled = guest.form(), Image("guests/meanwhile", [[("data", b"pulled")]])
    image, _ = guest.faulty.publish(pulled)
    programs = "--container-mounts=/usr,/lib,/lib64"  # it has none
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
