"""Images of many layers: small ones that follow each other are one file in the store, so a start mounts few and takes little of the
kernel's memory, and what the container sees is the same."""
import json
import os
import shutil

from archives_test import home, mine
from command import await_true
from harness import equal, expect, test
from images import Image, named

ON = ("-w", "node01")
SHOW = "cd /many && for name in $(ls -A); do echo $name: $(cat $name 2>/dev/null || ls -A $name); done"


def many(count, seed):
    """Layers that meet in one directory, and what it shows: each has a file and replaces one that all have; every fourth takes away
    the file of the layer before and a directory below; others make a directory of a file, or a hard link to one below."""
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
    """MB that no process and no page cache accounts for."""
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
def merged_layers_show_what_single_ones_would(cluster):
    layers, shown = many(40, "forty")
    image = cluster.push(Image("suites/many-40", layers, below=cluster.base_layout))
    equal(cluster.bash(SHOW, *ON, image=image, timeout=60).good(), shown, "the directory in which all layers meet")
    expect(layers_mounted(cluster, image) <= 7, "the layers are not merged")
    few = cluster.push(Image("suites/many-13", layers[:13], below=cluster.base_layout))
    cluster.bash("true", *ON, image=few, timeout=60).good()
    equal(layers_mounted(cluster, few), 16, "layers of an image that has few")


@test
def merged_file_is_only_for_owners_of_all_its_blobs(cluster):
    """bob has the manifest of alice's image, its configuration, and all blobs but one of those that were merged."""
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
    """What is saved has one layer more, and lies on the merged files of the image it was made from."""
    layers, shown = many(30, "saved")
    image = cluster.push(Image("suites/many-30", layers, below=cluster.base_layout))
    there = "/home/alice/many.tar"
    cluster.bash("rm /many/top; echo new >/many/new", *ON, f"--container-save=oci-layer:{there}", image=image, timeout=60).good()
    changed = "\n".join(sorted({*shown.split("\n"), "new: new"} - {"top: 29"}))
    for _ in range(2):
        equal(cluster.bash(SHOW, *ON, image=there, timeout=60).good(), changed, "what the saved image shows")
    expect(layers_mounted(cluster, there) <= 8, "the layers below are not merged")
