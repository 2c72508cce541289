"""The processors that guests can have: what is emulated, by which program, and where a guest's consoles are."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Machine:
    kernels: tuple[str, ...]
    root: str  # which tests/root makes, of a kernel
    images: str  # the program that builds test images
    emulator: tuple[str, ...]
    console: str
    cases: tuple[str, ...]  # how the second port, which the cases print to, becomes the emulator's standard output
    chosen: tuple[str, ...] = ()  # the cases that run when none are named; empty: all


MACHINES = {
    "amd64": Machine(kernels=("6.1", "6.12"), root="guest-{}", images="tests/images/build",
                     emulator=("qemu-system-x86_64", "-cpu", "max,-cx16"), console="ttyS0", cases=("-serial", "stdio")),
    # This machine has one serial port; and a port of virtio whose input has ended takes no output: a file has no input.
    "arm64": Machine(kernels=("6.1",), root="guest-arm64", images="tests/arm64/image",
                     emulator=("qemu-system-aarch64", "-machine", "virt", "-cpu", "cortex-a72", "-device", "virtio-rng-pci"), console="ttyAMA0",
                     cases=("-chardev", "file,id=cases,path=/dev/stdout", "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=cases,name=cases"),
                     chosen=("a_user_sees_the_system_of_the_image",
                             "an_image_for_another_architecture_is_refused_with_both_names_and_a_cure",
                             "the_kernel_serves_the_layers_where_it_can_map_their_owners",
                             "two_tasks_share_a_container",
                             "files_of_the_image_can_be_changed",
                             "a_directory_of_the_node_can_be_mounted",
                             "a_user_can_be_root_inside",
                             "a_container_can_be_saved_and_started_again",
                             "a_batch_script_runs_in_a_container",
                             "a_second_step_finds_what_the_first_wrote_in_a_container_with_a_name",
                             "a_step_that_joins_another_outlives_it",
                             "a_step_that_joins_another_outlives_it_where_fuse_serves_the_layers",
                             "scancel_ends_a_running_step",
                             "arm64",
                             "the_node_was_never_drained",
                             "the_kernel_has_nothing_to_say_of_our_mounts")),
}
