"""The images that the tutorials pull or start from, put together of layers of two test images."""

import functools
import json
import os
import subprocess

from cluster import BUILD_IMAGE
from images import LAYER, Image

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Says which libcuda it finds: of the fake driver, whose libraries run no program.
DEVICE_QUERY = b"""#!/usr/bin/python3
import ctypes
library = ctypes.CDLL("libcuda.so.1")
library.fake_from.restype = ctypes.c_char_p
print("libcuda.so.1 of", library.fake_from().decode())
"""


@functools.cache
def built(name):
    return subprocess.run([BUILD_IMAGE, name], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]


class Stack(Image):
    """An image of these layers of test images, (image, number of the layer), and of `layers` on top."""

    def __init__(self, below, layers=(), **config):
        super().__init__("", list(layers), {"Env": [PATH], **config}, below=below)

    def _layers_below(self, blobs):
        descriptors, diff_ids = [], []
        for image, number in self.below:
            layout = built(image)
            records = os.path.join(layout, "records")
            with open(os.path.join(records, sorted(os.listdir(records))[number])) as file:
                record = json.load(file)
            digest = record["digest"]
            with open(os.path.join(layout, "blobs", digest.replace(":", "/")), "rb") as file:
                blobs[digest] = file.read()
            descriptors.append({"mediaType": LAYER, "digest": digest, "size": len(blobs[digest])})
            diff_ids.append(record["diff_id"])
        return descriptors, diff_ids, {}


PLAIN = (("tutorials", 0), ("tutorials", 1))
COMPILERS = (*PLAIN, ("tutorials", 2))
PIP = (*COMPILERS, ("tutorials", 3))
TORCH = (*(("pytorch", number) for number in range(5)), ("tutorials", 3))


def layouts(directory):
    """Yields (name and tag in the registry, OCI layout)."""
    greeting = 'cowsay "${1:-The time is right to make new friends.}"'
    images = {
        "lolcow:latest": Stack(PLAIN, Env=[PATH + ":/usr/games"], Cmd=["sh", "-c", greeting]),
        "ubuntu:18.04": Stack(PLAIN),
        "python:latest": Stack(PIP, Cmd=["python3"]),
        "mpi-common:latest": Stack(PIP),
        "caffe:latest": Stack(PLAIN, [[("usr/local/bin/caffe", DEVICE_QUERY)]]),
        "cuda:12.4.1-devel-ubuntu22.04": Stack(COMPILERS),
        "cuda:12.4.1-base-ubuntu22.04": Stack(PLAIN),
        "pytorch:24.03-py3": Stack(TORCH, WorkingDir="/workspace"),
    }
    for name, image in images.items():
        yield f"tutorials/{name}", image.write_layout(directory)
