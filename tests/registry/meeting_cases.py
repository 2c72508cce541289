"""The nodes of a step meet at the library's side of srun, each through a user-source of its own: nothing is played but agent and registry."""

import contextlib
import ctypes
import os
import time

import agent
from peer_cases import big_and_slow, no_relay_left
from scene import big_image, config, new_store, registry, succeeds
from shared_cases import fetched, slowly, wait_for

LIBRARY = os.path.join(os.path.dirname(agent.IMPORT), "../runtime/api/libspank_container.so")
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Srun:
    def __init__(self, nodes):
        self.nodes, self.lines = nodes, []
        self.library = ctypes.CDLL(LIBRARY)
        self.meeting, variable = ctypes.c_void_p(), ctypes.c_char_p()
        assert self.library.spc_meeting_open(ctypes.byref(self.meeting), ctypes.byref(variable)) == 0
        self.variable = variable.value.decode()
        self.log = LOG(lambda level, line, arg: self.lines.append(line.decode()))
        self.library.spc_meeting_start(self.meeting, ctypes.c_uint32(nodes), self.log, None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        began = time.monotonic()
        self.library.spc_meeting_free(self.meeting)
        assert time.monotonic() - began < 0.3, "srun waits for its nodes at its end"

    def start(self, node, name, **options):
        store = new_store()
        environment = {"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_SCONTAINER_MEETING": self.variable, "SLURM_NODEID": str(node),
                       "SLURMD_NODENAME": f"node{node:02}", "HOME": "/nonexistent", "PATH": os.environ["PATH"], **options.pop("variables", {})}
        run = agent.Import(store, f"{registry.name}/{name}:1", config=config(), environment=environment, more=[f"meet={self.nodes}"], **options)
        run.result.store = store
        return run


def each_once(name, layers):
    gets = fetched(registry, name)
    assert len(gets) == len(set(gets)) == layers + 2, gets


def test_eight_nodes_at_once_are_one_pull():
    image = big_image(4, layers=3)
    registry.repository("meeting/app", image, slowly(0.2))
    with Srun(8) as srun:
        runs = [srun.start(node, "meeting/app") for node in range(8)]
        for run in runs:
            assert not succeeds(run.wait(), image).warnings
    each_once("meeting/app", 3)


def test_srun_tells_of_all_nodes_and_import_does_not():
    image = big_image(12)
    hook, _ = big_and_slow(image)
    registry.repository("meeting/line", image, hook)
    with Srun(2) as srun:
        runs = [srun.start(node, "meeting/line") for node in range(2)]
        results = [succeeds(run.wait(), image) for run in runs]
        assert srun.lines and all(line.startswith("pulling on ") and " MB" in line and " node0" in line for line in srun.lines), srun.lines
        assert any("pulling on 2 nodes, slowest node0" in line for line in srun.lines), srun.lines
    assert not any(line.startswith("pulling ") for result in results for line in result.progress), [result.progress for result in results]


def test_the_node_that_pulls_is_killed_and_seven_go_on():
    image = big_image(4)
    hook, seen = big_and_slow(image, after=1)
    ports = []

    def whose(handler, kind, name):
        if name in (layer.digest for layer in image.layers):
            ports.append(handler.client_address[1])
        return hook(handler, kind, name)

    registry.repository("meeting/killed", image, whose)
    with no_relay_left(), Srun(8) as srun:
        runs = [srun.start(node, "meeting/killed") for node in range(8)]
        wait_for(lambda: seen)
        time.sleep(0.6)
        pulling = next(run for run in runs if has_port(run.process.pid, ports[0]))
        died = time.monotonic()
        pulling.kill()
        for run in runs:
            if run is not pulling:
                succeeds(run.wait(), image)
        assert time.monotonic() - died < 8
    assert len(seen) == 2 and seen[1].startswith("bytes="), seen


def has_port(pid, port):
    """Whether this process has a connection from there."""
    with contextlib.suppress(OSError):
        sockets = {os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix("socket:[").removesuffix("]") for fd in os.listdir(f"/proc/{pid}/fd")}
        lines = [line.split() for line in open(f"/proc/{pid}/net/tcp").read().splitlines()[1:]]
        return any(fields[1].endswith(f":{port:04X}") and fields[9] in sockets for fields in lines)
    return False


def test_where_srun_cannot_be_reached_each_node_goes_alone():
    image = big_image(1)
    registry.repository("meeting/alone", image)
    with Srun(2) as srun:
        for number, variables in enumerate(({"SLURM_SCONTAINER_MEETING": "1:" + "0" * 32}, {"SLURM_SCONTAINER_MEETING": ""},
                                            {"SLURM_SCONTAINER_MEETING": srun.variable[:-1] + ("0" if srun.variable[-1] != "0" else "1")}), 1):
            began = time.monotonic()
            result = succeeds(srun.start(0, "meeting/alone", variables=variables).wait(), image)
            assert time.monotonic() - began < 4 and not result.warnings, result
            assert len([path for path in fetched(registry, "meeting/alone") if "blobs" in path]) == 2 * number
