"""Other arguments of the plugin in plugstack.conf, for a while. slurmd reads that file when it starts, everybody else always."""
import contextlib
import os


@contextlib.contextmanager
def plugstack(cluster, *arguments):
    path = os.path.join(cluster.etc, "slurm/plugstack.conf")
    before = open(path).read()
    try:
        with open(path, "w") as file:
            file.write("".join(" ".join([line, *arguments]) + "\n" if "spank_container.so" in line else line + "\n" for line in before.splitlines()))
        yield
    finally:
        with open(path, "w") as file:
            file.write(before)
