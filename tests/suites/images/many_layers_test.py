"""Images of many layers: adjacent small ones are merged into one file of the store, so that a start
mounts few and needs little kernel memory. The container's content is unchanged."""
import json
import os
import shutil
import struct

from archives_test import home, mine
from command import await_true
from harness import Skipped, equal, expect, test
from images import Image, named
from site_files import rules

ON = ("-w", "node01")
SHOW = "cd /many && for name in $(ls -A); do echo $name: $(cat $name 2>/dev/null || ls -A $name); done"


def many(count, seed):
    """Returns layers that overlap in one directory, and its expected content. Each has a file and
    replaces one that all have. Every fourth removes the file of the layer before and a directory
    below. Others turn a file into a directory, or have a hard link to a file below."""
    layers, shown = [], {}
    for i in range(count):
        files = {f"{i:03d}": f"{seed} {i}", "top": str(i)}
        entries = [("many", None)] if i % 3 else []
        if i % 4 == 3:
            for gone in (f"{i - 1:03d}", f"dir{i - 2:03d}"):
                entries.append((f"many/.wh.{gone}", b""))
                shown.pop(gone, None)
        if i % 4 == 1:
            entries.append((f"many/dir{i:03d}/inside", b""))
            shown[f"dir{i:03d}"] = "inside"
        if i % 8 == 7:
            entries += [(f"many/{i - 3:03d}", None), (f"many/{i - 3:03d}/now", b"")]
            shown[f"{i - 3:03d}"] = "now"
        if i % 5 == 1 and i % 4 != 3:
            link = named(f"many/link{i:03d}", b"")
            link.type, link.linkname = b"1", f"many/{i - 1:03d}"
            entries.append(link)
            shown[f"link{i:03d}"] = f"{seed} {i - 1}"
        layers.append(entries + [(f"many/{name}", text.encode()) for name, text in files.items()])
        shown.update(files)
    return layers, "\n".join(f"{name}: {shown[name]}" for name in sorted(shown))


def layers_mounted(cluster, image, **how):
    done = cluster.bash("grep ' / / ' /proc/self/mountinfo", *ON, image=image, **how)
    return done.good().split("lowerdir=")[1].split(",")[0].count(":") + 1


def kernel_memory():
    """Returns the MB that belong neither to a process nor to the page cache."""
    fields = dict(line.split(":") for line in open("/proc/meminfo"))
    return sum(int(fields[name].split()[0]) for name in ("SUnreclaim", "VmallocUsed")) / 1000


@test
def image_of_500_layers_takes_few_mounts_and_little_memory(cluster):
    layers = [[(f"many/{i:03d}", b"tiny %d" % i)] for i in range(497)]
    image = cluster.push(Image("suites/many-500", layers, below=cluster.base_layout))
    with_pull = cluster.bash("cat /many/000 /many/496; ls /many | wc -l", *ON, image=image, timeout=300)
    equal(with_pull.good(), "tiny 0tiny 496497", "what the layers say", with_pull)
    cluster.must_be_quiet(store=cluster.stores())
    before = kernel_memory()
    script = "\n".join(["#!/bin/sh", f"srun --container-image={image} -w node01 true", "sleep 2", "echo ready", "sleep 20"])
    job = cluster.submit(script, "-w", "node01")
    await_true(lambda: "ready" in cluster.run("cat", f"/home/alice/{job}.out").out, 30, "the job does not come to its sleep")
    held, loops = kernel_memory() - before, len(cluster.loops("node01"))
    cluster.run("scancel", str(job)).good()
    expect(loops <= 16, f"{loops} loop devices are held for 500 layers")
    expect(held < 60, f"{held:.1f} MB of kernel memory for 500 layers that a job holds")


@test
def merged_layers_show_the_same_as_single_layers(cluster):
    layers, shown = many(40, "forty")
    image = cluster.push(Image("suites/many-40", layers, below=cluster.base_layout))
    equal(cluster.bash(SHOW, *ON, image=image, timeout=60).good(), shown, "the directory in which all layers meet")
    expect(layers_mounted(cluster, image) <= 7, "the layers are not merged")
    few = cluster.push(Image("suites/many-13", layers[:13], below=cluster.base_layout))
    cluster.bash("true", *ON, image=few, timeout=60).good()
    equal(layers_mounted(cluster, few), 16, "layers of an image that has few")


@test
def merged_layers_serve_scontainer_run_by_few_processes(cluster):
    layers, shown = many(40, "own")
    image = cluster.push(Image("suites/many-own", layers, below=cluster.base_layout))
    running = cluster.start("scontainer", "run", image, "bash", "-c", f"{SHOW}; echo ready; sleep 5")
    running.await_text("ready", 60)
    servers = cluster.processes("head", "fuse")
    said = running.end(40).out
    equal(said, f"{shown}\nready\n", "what the layers say")
    expect(0 < len(servers) <= 7, f"{len(servers)} processes serve the layers")


@test
def merged_file_is_only_for_owners_of_all_its_blobs(cluster):
    """bob has the manifest of alice's image, its configuration, and all blobs but one of the merged
    ones."""
    layers, shown = many(20, "hers")
    hers = home(cluster, "many")
    shutil.rmtree(hers, ignore_errors=True)
    shutil.move(Image("unused", layers, below=cluster.base_layout).write_layout(cluster.images), hers)
    mine(cluster, hers)
    show = ("-D", "/home/alice", "bash", "-c", SHOW)
    equal(cluster.srun(*ON, *show, image="oci:many", timeout=60).good(), shown, "what alice sees")
    his = home(cluster, "many", "bob")
    shutil.rmtree(his, ignore_errors=True)
    shutil.copytree(hers, his)
    index = json.load(open(os.path.join(his, "index.json")))
    manifest = json.load(open(os.path.join(his, "blobs", index["manifests"][0]["digest"].replace(":", "/"))))
    lacking = os.path.join(his, "blobs", manifest["layers"][5]["digest"].replace(":", "/"))
    os.rename(lacking, f"{his}/kept")
    mine(cluster, his, "bob")
    there = cluster.layers("node01")
    show = ("-D", "/home/bob", *show[2:])
    refused = cluster.srun(*ON, *show, image="oci:many", user="bob", timeout=60)
    expect(refused.rc != 0 and manifest["layers"][5]["digest"] in refused.err, "bob may use the merged file", refused)
    os.rename(f"{his}/kept", lacking)
    equal(cluster.srun(*ON, *show, image="oci:many", user="bob", timeout=60).good(), shown, "what bob sees who has all blobs")
    equal(cluster.layers("node01"), there, "files in the store: bob's image needs no other")


@test
def changes_on_merged_layers_are_saved_and_run(cluster):
    """The saved image has one more layer, on top of the merged files of its base image."""
    layers, shown = many(30, "saved")
    image = cluster.push(Image("suites/many-30", layers, below=cluster.base_layout))
    there = "/home/alice/many.tar"
    cluster.bash("rm /many/top; echo new >/many/new", *ON, f"--container-save=oci-layer:{there}", image=image, timeout=60).good()
    changed = "\n".join(sorted({*shown.split("\n"), "new: new"} - {"top: 29"}))
    for _ in range(2):
        equal(cluster.bash(SHOW, *ON, image=there, timeout=60).good(), changed, "what the saved image shows")
    expect(layers_mounted(cluster, there) <= 8, "the layers below are not merged")


def memory_for_layers(cluster):
    """Returns the KiB of `layer_memory` for each layer that a start may mount: the node's value for
    400 MB, as in runtime/protocol/policy.hpp."""
    with rules(cluster, 'layer_memory = "400M"\n'):
        cluster.srun(*ON, "true").good()
        with open(cluster.inside("node01", "/run/spank-container/policy"), "rb") as file:
            layers = struct.unpack_from("=8sQQ7I", file.read())[-1]
    if not 0 < layers < 500:
        raise Skipped(f"400 MB are for {layers} layers here")
    return (400 << 10) // layers


def six_layers(number):
    return Image(f"suites/six-{number}", [[("six", b"image %d" % number), (f"only{i}", b"%d %d" % (number, i))] for i in range(3)])


@test
def kernel_memory_of_job_layers_is_limited(cluster):
    """Of six images with six layers each, a job holds those within the limit. An image with more
    layers than may be mounted is served by FUSE."""
    few = [six_layers(number) for number in range(6)]
    for image in few:
        image.below = cluster.base_layout
    names = [cluster.push(image) for image in few]
    layers, shown = many(12, "fuse")
    large = cluster.push(Image("suites/many-12", layers, below=cluster.base_layout))
    for image in (*names, large):
        cluster.bash("true", *ON, image=image, timeout=60).good()
    most = 11  # for one start: holding all layers of the first images would need 36
    with rules(cluster, f'layer_memory = "{most * memory_for_layers(cluster)}K"\n'):
        lines = [f"srun -w node01 --container-image={name} cat /six" for name in names]
        last = f"srun -w node01 --container-image={large} sh -c 'cat /many/top; echo ready; sleep 15'"
        job = cluster.submit("\n".join(["#!/bin/sh", *lines, last]), "-w", "node01")
        output = f"/home/alice/{job}.out"
        await_true(lambda: "ready" in cluster.run("cat", output).out, 40, "the job does not come to its last step")
        said, loops, servers = cluster.run("cat", output).out, cluster.loops("node01"), cluster.processes("node01", "fuse")
        cluster.run("scancel", str(job)).good()
        equal(said, "".join(f"image {number}" for number in range(6)) + "11ready\n", "what the images say")
        equal(len(servers), 1, "processes that serve the layers of the last one")
        expect(0 < len(loops) <= most, f"{len(loops)} layers are held: {loops}")
