"""Images that need a login: the user's own credentials from any location, and no other user's."""
import base64
import contextlib
import json
import os
import shutil
import time

from harness import equal, expect, test
from images import Image

PRIVATE = "registry:5001/suites/base:1"
PASSWORD = "wonderland"
AUTH = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
DOCKER = json.dumps({"auths": {"registry:5001": {"auth": AUTH}}})


@contextlib.contextmanager
def in_home(cluster, name, text, mode=0o600, user="alice"):
    """A file in a user's home, removed at the end with the directories made for it."""
    home = os.path.join(cluster.home, user)
    owner = os.stat(home)
    top = os.path.join(home, name.split("/")[0])
    there = os.path.exists(top)
    path = os.path.join(home, name)
    directory = os.path.dirname(path)
    os.makedirs(directory, 0o700, exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)
    while True:
        os.chown(path, owner.st_uid, owner.st_gid)
        if os.path.dirname(path) == home:
            break
        path = os.path.dirname(path)
    try:
        yield
    finally:
        if there:
            os.unlink(os.path.join(home, name))
        elif os.path.isdir(top):
            shutil.rmtree(top)
        else:
            os.unlink(top)


def works(cluster, **how):
    cluster.srun("-w", "node01", "true", image=PRIVATE, **how).good("")


def is_refused(cluster, *texts, **how):
    done = cluster.srun("-w", "node01", "true", image=PRIVATE, **how)
    expect(done.rc == 1 and len(done.errors()) == 1, "not refused with one line", done)
    for text in texts:
        expect(text in done.err, f"the message has no {text!r}", done)
    expect(PASSWORD not in done.err and AUTH not in done.err, "the message has the password", done)


@test
def missing_login_reports_how_to_log_in(cluster):
    is_refused(cluster, '"registry:5001/', "scontainer login registry:5001")


@test
def docker_login_is_used_for_its_user_only(cluster):
    with in_home(cluster, ".docker/config.json", DOCKER):
        works(cluster)
        works(cluster)
        is_refused(cluster, "scontainer login registry:5001", user="bob")
    is_refused(cluster, "scontainer login registry:5001")


@test
def wrong_password_names_user_and_file(cluster):
    wrong = json.dumps({"auths": {"registry:5001": {"username": "alice", "password": "queen"}}})
    with in_home(cluster, ".docker/config.json", wrong):
        is_refused(cluster, 'of user "alice"', ".docker/config.json")


@test
def enroot_credentials_are_used(cluster):
    with in_home(cluster, ".config/enroot/.credentials", f"machine registry login alice password {PASSWORD}\n"):
        works(cluster)
        works(cluster, env=["HOME=/home/alice"])


@test
def credential_helper_on_the_path_is_used(cluster):
    helper = f"#!/bin/sh\nread server\n[ \"$1 $server\" = 'get registry:5001' ] || exit 1\necho '{{\"Username\":\"alice\",\"Secret\":\"{PASSWORD}\"}}'\n"
    with in_home(cluster, "bin/docker-credential-suites", helper, 0o755), \
            in_home(cluster, ".docker/config.json", json.dumps({"credHelpers": {"registry:5001": "suites"}})):
        works(cluster, env=["PATH=/home/alice/bin:/usr/bin:/bin"])
        is_refused(cluster, "docker-credential-suites", "not found in PATH", env=["PATH=/usr/bin:/bin"])


@test
def user_in_image_name_requires_credentials(cluster):
    named = PRIVATE.replace("registry", "alice@registry", 1)
    with in_home(cluster, ".docker/config.json", DOCKER):
        cluster.srun("-w", "node01", "true", image=named).good("")
        done = cluster.srun("-w", "node01", "true", image=named.replace("alice@", "hatter@"))
        expect(done.rc == 1 and "no credentials for the user" in done.err, "another user's credentials were taken", done)


@test
def password_is_in_no_process_and_no_log(cluster):
    name = cluster.push(Image("suites/private-slow", [[("data", os.urandom(3 << 20))]], below=cluster.base_layout)).replace(":5000", ":5001")
    seen = []
    with in_home(cluster, ".docker/config.json", DOCKER):
        step = cluster.start_srun("-w", "node01", "true", image=name)
        while step.process.poll() is None:
            for pid in cluster.everybody():
                for what in ("cmdline", "environ"):
                    with contextlib.suppress(OSError), open(f"/proc/{pid}/{what}", "rb") as file:
                        shown = file.read()
                        seen += [(pid, what)] if PASSWORD.encode() in shown or AUTH.encode() in shown else []
            time.sleep(0.01)
        step.end().good("")
    equal(seen, [], "processes that show the password")
    for directory, _, files in os.walk(cluster.state):
        for file in files:
            path = os.path.join(directory, file)
            if file.endswith(".log") and os.path.isfile(path):
                text = open(path, errors="replace").read()
                expect(PASSWORD not in text and AUTH not in text, f"the password is in {path}")


@test
def layer_saved_on_private_image_needs_login_of_each_user(cluster):
    # The base image and its layers are public elsewhere, so this image has a layer of its own.
    first, there, private = "/home/shared/private-first.tar", "/home/shared/private-layer.tar", "registry:5001/suites/private-layer:1"
    use = ("-w", "node02", "cat", "/secret", "/made")
    with in_home(cluster, ".docker/config.json", DOCKER):
        cluster.bash("date +%N >/secret", "-w", "node01", f"--container-save=oci-layer:{first}", image=PRIVATE).good()
        cluster.run("scontainer", "push", first, private).good()
        secret = cluster.bash("cat /secret; echo of alice >/made", "-w", "node01", f"--container-save=oci-layer:{there}", image=private).good().splitlines()[0]
        os.chmod(os.path.join(cluster.shared, "private-layer.tar"), 0o644)
        for _ in ("before alice", "after alice"):
            done = cluster.srun(*use, image=there, user="bob")
            expect(done.rc == 1 and len(done.errors()) == 1 and "scontainer login registry:5001" in done.err, "bob was not refused with one line", done)
            cluster.srun(*use, image=there).good(f"{secret}\nof alice")
