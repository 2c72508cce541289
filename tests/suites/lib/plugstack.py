"""Other plugins or arguments in plugstack.conf, for a while. slurmd reads that file when it starts, everybody else always."""
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


@contextlib.contextmanager
def plugins_of(cluster, machine, *plugins):
    """On one machine only, which has a copy of its own: plugins are paths there, with arguments behind."""
    copy = f"/etc/slurm/plugstack.{machine}"
    with open(os.path.join(cluster.etc, f"slurm/plugstack.{machine}"), "w") as file:
        file.write("".join(f"required {plugin}\n" for plugin in plugins))
    cluster.root(machine, "mount", "--bind", copy, "/etc/slurm/plugstack.conf").good()
    try:
        yield
    finally:
        # A process that reads the file at this moment makes it busy.
        cluster.root(machine, "umount", "--lazy", "/etc/slurm/plugstack.conf").good()
        os.unlink(os.path.join(cluster.etc, f"slurm/plugstack.{machine}"))
