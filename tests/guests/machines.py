"""The processors that guests can have: what is emulated, by which program, where a guest's consoles are, and what runs on it."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class System:
    kernel: str
    cgroup: str = "v2"
    store: str = "ext4"  # the file system that it lies on: the root's; xfs: on a disk of its own; tmpfs: a node without disks
    chosen: tuple[str, ...] = ()  # the cases that run when none are named; empty: all
    without: str = ""  # a module that the kernel may not load

    @property
    def name(self):
        return f"{self.kernel}-without-{self.without}" if self.without else self.kernel


@dataclasses.dataclass(frozen=True)
class Machine:
    systems: tuple[System, ...]  # the first one is the default
    root: str  # which tests/root makes, of a kernel
    images: str  # the program that builds test images
    emulator: tuple[str, ...]
    console: str
    cases: tuple[str, ...]  # how the second port, which the cases print to, becomes the emulator's standard output


CGROUP_V1 = ("a_user_sees_the_system_of_the_image",
             "the_kernel_serves_the_layers_where_it_can_map_their_owners",
             "two_tasks_share_a_container",
             "files_of_the_image_can_be_changed",
             "a_user_can_be_root_inside",
             "devices_that_a_job_has_not_are_refused",
             "a_second_step_finds_what_the_first_wrote_in_a_container_with_a_name",
             "a_step_that_joins_another_outlives_it",
             "scancel_ends_a_pull",
             "scancel_ends_a_running_step",
             "slurmd_can_be_restarted_under_a_step",
             "what_is_written_into_the_root_counts_as_memory_of_the_job",
             "end.the_node_was_never_drained",
             "end.the_kernel_has_nothing_to_say_of_our_mounts")

# As from Linux 5.12 to 5.18, which map the owners of neither file system: that of RHEL 9, whose stores are on XFS.
COPIES = ("a_user_sees_the_system_of_the_image",
          "the_kernel_serves_the_layers_where_it_can_map_their_owners",
          "two_tasks_share_a_container",
          "files_of_the_image_can_be_changed",
          "a_user_can_be_root_inside",
          "a_second_step_finds_what_the_first_wrote_in_a_container_with_a_name",
          "a_step_that_joins_another_outlives_it",
          "scancel_ends_a_pull",
          "scancel_ends_a_running_step",
          "slurmd_can_be_restarted_under_a_step",
          "starts_are_measured",
          "what_is_read_again_is_measured",
          "copies",
          "end.the_node_was_never_drained",
          "end.the_kernel_has_nothing_to_say_of_our_mounts")

ARM64 = ("a_user_sees_the_system_of_the_image",
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
         "by_fuse.a_step_that_joins_another_outlives_it",
         "scancel_ends_a_running_step",
         "arm64",
         "end.the_node_was_never_drained",
         "end.the_kernel_has_nothing_to_say_of_our_mounts")

# What other tests cannot have, which run in namespaces of this machine: systemd, cgroup v2, the package, another kernel.
SHORT = ("a_user_sees_the_system_of_the_image",
         "the_kernel_serves_the_layers_where_it_can_map_their_owners",
         "two_tasks_share_a_container",
         "files_of_the_image_can_be_changed",
         "devices_that_a_job_has_not_are_refused",
         "a_second_step_finds_what_the_first_wrote_in_a_container_with_a_name",
         "a_step_that_joins_another_outlives_it",
         "scancel_ends_a_running_step",
         "slurmd_can_be_restarted_under_a_step",
         "what_is_written_into_the_root_counts_as_memory_of_the_job",
         "end.the_node_was_never_drained",
         "end.the_kernel_has_nothing_to_say_of_our_mounts")

MACHINES = {
    # Of 5.10, which is too old, the guest has cases of its own.
    "amd64": Machine(systems=(System("6.1"), System("6.12", store="xfs"), System("6.1", cgroup="v1", store="tmpfs", chosen=CGROUP_V1),
                              System("6.1", store="xfs", chosen=COPIES, without="erofs"), System("5.10")),
                     root="guest-{}", images="tests/images/build",
                     emulator=("qemu-system-x86_64", "-cpu", "max,-cx16"), console="ttyS0", cases=("-serial", "stdio")),
    # This machine has one serial port; and a port of virtio whose input has ended takes no output: a file has no input.
    "arm64": Machine(systems=(System("6.1", chosen=ARM64),), root="guest-arm64", images="tests/arm64/image",
                     emulator=("qemu-system-aarch64", "-machine", "virt", "-cpu", "cortex-a72", "-device", "virtio-rng-pci"), console="ttyAMA0",
                     cases=("-chardev", "file,id=cases,path=/dev/stdout", "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=cases,name=cases")),
}
