"""Power loss during a pull: the machine restarts without the kernel's unwritten data."""
import os
import random
import time

from command import await_true
from guest import LAYOUTS, NODE
from harness import expect, test
from images import Image

KEPT = ("--container-name=outlives",)


def lost(guest):
    """The image that is being pulled at that moment. Its layers are the same each time."""
    chance = random.Random(14)
    return guest.faulty.publish(Image("guests/lost", [[("first", chance.randbytes(300 << 10))], [("second", chance.randbytes(2 << 20))]],
                                      below=os.path.join(LAYOUTS, "base")))


def empty_files(guest):
    """Without the records of the registries that delivered a layer: an empty one is as none, and the
    next pull asks the registry."""
    return sorted(path for where, _, names in os.walk(guest.store(NODE)) if not where.endswith("/images/delivered")
                  for path in (os.path.join(where, name) for name in names) if os.stat(path).st_size == 0)


def until_it_goes(guest):
    guest.bash("echo one >/made", *KEPT).good()
    guest.memory["store"] = {"entries": guest.store_entries(NODE), "empty": empty_files(guest)}
    guest.root(NODE, "sync").good()
    image, (*_, last) = lost(guest)
    guest.faulty.hold(last)
    step, path = guest.start_srun("true", image=image), f"/v2/guests/lost/blobs/{last}"
    await_true(lambda: step.process.poll() is not None or (guest.faulty.requests[path] and guest.processes(NODE, "layer-writer")), 120, "the pull did not begin")
    expect(step.process.poll() is None, "the step has ended", step.end() if step.process.poll() is not None else None)
    time.sleep(5)
    guest.lose_power()


@test
def power_loss_during_pull_keeps_earlier_objects(guest):
    if not guest.is_back:
        until_it_goes(guest)
    before = guest.memory["store"]
    new = set(empty_files(guest)) - set(before["empty"])
    expect(not new, f"{sorted(new)} have no content")
    gone = set(before["entries"]) - set(guest.store_entries(NODE))
    expect(not gone, f"{sorted(gone)} are gone")
    guest.settle()
    guest.srun("--container-pull=never", "cat", "/workspace/replaced").good("upper")
    guest.run("srun", *KEPT, "cat", "/made").good("one")
    image, _ = lost(guest)
    guest.bash("stat -c %s /first /second", image=image).good(f"{300 << 10}\n{2 << 20}")
    guest.must_be_quiet(within=10)
