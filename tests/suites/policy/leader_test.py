"""Processes that read input of users, sites and images have no privilege, and privileged ones read
none."""
import json
import os

from harness import equal, expect, test
from hooks_test import hooks

SYS_CHROOT, SYS_ADMIN, NET_ADMIN = 1 << 18, 1 << 21, 1 << 12
TO_ENTER = SYS_CHROOT | SYS_ADMIN | NET_ADMIN

# The process that started this hook, then all processes of this user.
TELLS = """input=$(cat)
stage=$(echo "$input" | sed -n 's/.*"stage": "\\(.*\\)".*/\\1/p' | head -1)
rank=$(echo "$input" | sed -n 's/.*"SLURM_PROCID": "\\([0-9]*\\)".*/\\1/p' | head -1)
tell() {
  sed -n -E 's/^(Name|Uid|CapPrm|CapEff|NoNewPrivs):[\\t ]*([^\\t ]*).*/\\1=\\2/p' "$1" | tr '\\n' ' '
  echo
}
{ tell /proc/$PPID/status
for status in /proc/[0-9]*/status; do
  tell "$status" 2>/dev/null
done | grep "Uid=$(id -u) "
} >/home/shared/seen.$stage.$rank
"""


def seen(cluster):
    """Returns, by stage and rank, the process that started the hook, and all processes of the user
    at that moment."""
    found = {}
    for name in os.listdir(cluster.shared):
        if name.startswith("seen."):
            text = open(os.path.join(cluster.shared, name)).read()
            lines = [dict(word.split("=", 1) for word in line.split()) for line in text.splitlines()]
            found[tuple(name.split(".")[1:])] = (lines[0], lines[1:])
            os.unlink(os.path.join(cluster.shared, name))
    return found


def told(cluster, stages, *options):
    description = json.dumps({"stages": stages})
    with hooks(cluster, {"50-test": TELLS, "50-test.json": (description, 0o644)}):
        try:
            cluster.srun("-wnode01", "-n2", *options, "true").good()
            return seen(cluster)
        finally:
            seen(cluster)


@test
def host_text_reader_has_only_the_chroot_capability(cluster):
    for options in ([], ["--container-remap-root"], ["--container-unshare=net,ipc"]):
        found = told(cluster, ["prepare", "create"], *options)
        equal(sorted({stage for stage, _ in found}), ["create", "prepare"], "stages")
        for (stage, _), (reader, _) in found.items():
            equal(int(reader["CapPrm"], 16) & ~SYS_CHROOT, 0, f"permitted in {stage} {options}")
            equal(int(reader["CapEff"], 16), 0, f"in effect in {stage} {options}")
            equal(reader["NoNewPrivs"], "1", f"no_new_privs in {stage} {options}")


@test
def host_request_process_has_no_privilege(cluster):
    found = told(cluster, ["task"])
    equal(sorted(found), [("task", "0"), ("task", "1")], "tasks")
    for (_, rank), (reader, _) in found.items():
        equal(int(reader["CapPrm"], 16) | int(reader["CapEff"], 16), 0, f"capabilities for task {rank}")
        equal(reader["NoNewPrivs"], "1", f"no_new_privs for task {rank}")


@test
def waiting_task_has_only_the_capabilities_to_enter(cluster):
    waiting = 0
    for (stage, _), (_, all_of_user) in told(cluster, ["prepare", "task"]).items():
        for process in all_of_user:
            permitted = int(process["CapPrm"], 16)
            equal(permitted & ~TO_ENTER, 0, f"permitted in {process['Name']} during {stage}")
            equal(int(process["CapEff"], 16), 0, f"in effect in {process['Name']} during {stage}")
            waiting += permitted == TO_ENTER
    expect(waiting >= 2, f"no task was seen waiting, but {waiting}")


@test
def container_hook_is_started_without_privilege(cluster):
    script = "sed -n -E 's/^(CapPrm|NoNewPrivs):[\\t ]*/\\1=/p' /proc/$PPID/status >/tmp/starter\n"
    with hooks(cluster, {"50-test": script, "50-test.json": (json.dumps({"stages": ["start"]}), 0o644)}):
        out = cluster.srun("-n1", "cat", "/tmp/starter").good()
    equal(sorted(out.split()), ["CapPrm=" + "0" * 16, "NoNewPrivs=1"], "its parent")
