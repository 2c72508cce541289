"""Architectures of guests: the emulator, the consoles and the tests of each."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class System:
    kernel: str
    cgroup: str = "v2"
    # The store's file system: the root's; xfs: on a separate disk; tmpfs: a node without disks.
    store: str = "ext4"
    chosen: tuple[str, ...] = ()  # cases that run by default; empty: all
    without: str = ""  # a module that the kernel may not load

    @property
    def name(self):
        return f"{self.kernel}-without-{self.without}" if self.without else self.kernel


@dataclasses.dataclass(frozen=True)
class Machine:
    systems: tuple[System, ...]  # the first one is the default
    root: str  # built by tests/root, with the kernel
    images: str  # the program that builds test images
    emulator: tuple[str, ...]
    console: str
    # How the second port, with the output of the cases, becomes the emulator's standard output.
    cases: tuple[str, ...]


CGROUP_V1 = ("user_sees_the_system_of_the_image",
             "layers_are_mounted_by_kernel_with_owner_mapping",
             "two_tasks_share_a_container",
             "image_files_can_be_changed",
             "user_can_be_root_inside",
             "devices_outside_allocation_are_refused",
             "named_container_keeps_files_for_the_second_step",
             "joined_step_outlives_the_first",
             "scancel_ends_pull",
             "scancel_ends_running_step",
             "slurmd_restart_keeps_the_running_step",
             "root_file_system_writes_count_as_job_memory",
             "end.node_was_never_drained",
             "end.kernel_log_has_no_complaint_about_our_mounts")

# As Linux 5.12 to 5.18, which map the owners of neither file system: RHEL 9's kernel, with stores
# on XFS.
COPIES = ("user_sees_the_system_of_the_image",
          "layers_are_mounted_by_kernel_with_owner_mapping",
          "two_tasks_share_a_container",
          "image_files_can_be_changed",
          "user_can_be_root_inside",
          "named_container_keeps_files_for_the_second_step",
          "joined_step_outlives_the_first",
          "scancel_ends_pull",
          "scancel_ends_running_step",
          "slurmd_restart_keeps_the_running_step",
          "start_times_are_measured",
          "repeated_read_times_are_measured",
          "copies",
          "end.node_was_never_drained",
          "end.kernel_log_has_no_complaint_about_our_mounts")

ARM64 = ("user_sees_the_system_of_the_image",
         "image_of_foreign_architecture_is_refused_with_both_names",
         "layers_are_mounted_by_kernel_with_owner_mapping",
         "two_tasks_share_a_container",
         "image_files_can_be_changed",
         "node_directory_can_be_mounted",
         "user_can_be_root_inside",
         "saved_container_starts_again",
         "batch_script_runs_in_a_container",
         "named_container_keeps_files_for_the_second_step",
         "joined_step_outlives_the_first",
         "by_fuse.joined_step_outlives_the_first",
         "scancel_ends_running_step",
         "arm64",
         "end.node_was_never_drained",
         "end.kernel_log_has_no_complaint_about_our_mounts")

# Features that tests in namespaces of this machine cannot have: systemd, cgroup v2, the package,
# another kernel.
SHORT = ("user_sees_the_system_of_the_image",
         "layers_are_mounted_by_kernel_with_owner_mapping",
         "two_tasks_share_a_container",
         "image_files_can_be_changed",
         "devices_outside_allocation_are_refused",
         "named_container_keeps_files_for_the_second_step",
         "joined_step_outlives_the_first",
         "scancel_ends_running_step",
         "slurmd_restart_keeps_the_running_step",
         "root_file_system_writes_count_as_job_memory",
         "end.node_was_never_drained",
         "end.kernel_log_has_no_complaint_about_our_mounts")

MACHINES = {
    # Kernel 5.10 is too old, so its guest has separate cases.
    "amd64": Machine(systems=(System("6.1"), System("6.12", store="xfs"), System("6.1", cgroup="v1", store="tmpfs", chosen=CGROUP_V1),
                              System("6.1", store="xfs", chosen=COPIES, without="erofs"), System("5.10")),
                     root="guest-{}", images="tests/images/build",
                     emulator=("qemu-system-x86_64", "-cpu", "max,-cx16"), console="ttyS0", cases=("-serial", "stdio")),
    # This machine has one serial port. A virtio port stops output at the end of its input, and a
    # file has no input.
    "arm64": Machine(systems=(System("6.1", chosen=ARM64),), root="guest-arm64", images="tests/arm64/image",
                     emulator=("qemu-system-aarch64", "-machine", "virt", "-cpu", "cortex-a72", "-device", "virtio-rng-pci"), console="ttyAMA0",
                     cases=("-chardev", "file,id=cases,path=/dev/stdout", "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=cases,name=cases")),
}
