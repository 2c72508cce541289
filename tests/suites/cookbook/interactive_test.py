"""packaging/examples/cookbook/interactive.md: ssh, VS Code over ssh, and Jupyter, in a job's
container."""
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import time

from cluster import BUILD_IMAGE
from command import OPEN, await_true
from cookbook_test import COOKBOOK, recipes
from environment_file_test import environments
from harness import equal, expect, test
from images import Image
from site_files import rules

SECONDS = 60
CONFIG = """Host job job-*
    ProxyCommand ~/bin/job-ssh %n
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
"""


SERVER_FILES = "/run/spank-container/ssh"
PLAIN = "registry:5000/suites/base:1"  # it has no sshd


@functools.cache
def layout(name):
    built = subprocess.run([BUILD_IMAGE, name], check=True, stdout=subprocess.PIPE, text=True).stdout
    return built.split()[-1]


def image_of(cluster, name="interactive"):
    cluster.program("push", layout(name), f"suites/{name}:1").good()
    return f"registry:5000/suites/{name}:1"


def without_option(here):
    """Makes ssh.sbatch one without --container-ssh."""
    with open(f"{here}/ssh.sbatch") as file:
        text = file.read()
    expect(" --container-ssh " in text, "ssh.sbatch does not use the node's sshd")
    with open(f"{here}/ssh.sbatch", "w") as file:
        file.write(text.replace(" --container-ssh ", " "))


@contextlib.contextmanager
def ssh_set_up(cluster):
    """Performs the user's one-time set-up of interactive.md on the login node, with its recipes."""
    home = os.path.join(cluster.home, "alice")
    with recipes(cluster, "ssh.sbatch", "jupyter.sbatch") as (here, there):
        os.makedirs(f"{home}/bin", exist_ok=True)
        shutil.copy(os.path.join(COOKBOOK, "job-ssh"), f"{home}/bin/job-ssh")
        cluster.run("sh", "-euc", "mkdir -m 700 .ssh; ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519; cat >.ssh/config", stdin=CONFIG).good()
        try:
            yield here, there
        finally:
            shutil.rmtree(f"{home}/.ssh")
            shutil.rmtree(f"{home}/bin")


@contextlib.contextmanager
def job_of(cluster, there, recipe, image, **variables):
    words = [f"{name}={value}" for name, value in variables.items()]
    job = cluster.run("env", "-C", there, f"IMAGE={image}", *words, "sbatch", "--parsable", recipe).good()
    try:
        cluster.await_state(job, "RUNNING")
        await_true(lambda: f"{job}.0" in cluster.run("squeue", "-s", "-h", "-o", "%i").out.split(), 20, "the job has no step")
        yield job
    finally:
        cluster.run("scancel", job)
        cluster.await_job(job)


def steps(cluster, job):
    return sorted(step for step in cluster.run("squeue", "-s", "-h", "-o", "%i").out.split() if step.startswith(f"{job}.") and step.split(".")[1].isdigit())


# VS Code sends a script to a shell. The script starts a persistent server on its own port and
# prints the port, which is reached through -D.
SERVER = """
mkdir -p ~/.vscode-server && cd ~/.vscode-server && echo served by $IMAGE_SAYS >file
python3 -u -c '
import functools, http.server
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(server.server_port)
server.serve_forever()' >log 2>err </dev/null &
while ! grep -q . log; do sleep 0.1; done
echo "listeningOn==$(cat log)=="
"""

# A SOCKS 5 client like VS Code's: python3 -c SOCKS PORT-OF-SSH PORT-OF-SERVER
SOCKS = """
import socket, sys
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10)
line.sendall(b"\\5\\1\\0")
assert line.recv(2) == b"\\5\\0"
line.sendall(b"\\5\\1\\0\\1\\x7f\\0\\0\\1" + int(sys.argv[2]).to_bytes(2, "big"))
assert line.recv(10)[1] == 0
line.sendall(b"GET /file HTTP/1.0\\r\\n\\r\\n")
text = b""
while part := line.recv(4096): text += part
print(text.decode())
"""


@test
def ssh_enters_the_container_of_a_job(cluster):
    image = image_of(cluster)
    with ssh_set_up(cluster) as (here, there):
        without_option(here)
        with job_of(cluster, there, "ssh.sbatch", image) as job:
            used_fully(cluster, job, here)


@test
def ssh_option_serves_an_image_with_its_own_sshd(cluster):
    image = image_of(cluster)
    with ssh_set_up(cluster) as (here, there), job_of(cluster, there, "ssh.sbatch", image) as job:
        used_fully(cluster, job, here)
        equal(cluster.run("ssh", "job", "cat /proc/$PPID/comm").good(), "ld.so", "program of the session")


def used_fully(cluster, job, here):
    shell_commands(cluster, job)
    files_go_to_and_fro(cluster, here)
    nobody_else_comes_in(cluster, job)
    as_vs_code_does(cluster, job)
    await_true(lambda: steps(cluster, job) == [f"{job}.0"], 15, "a step of ssh's is left")


def shell_commands(cluster, job):
    ask = "id -un; hostname; echo $IMAGE_SAYS; echo $SLURM_JOB_ID; pwd; test -x /usr/bin/jupyter-server && echo inside"
    for name in ("job", f"job-{job}", "job-ssh"):
        cluster.run("ssh", name, ask).good(f"alice\n{cluster.nodes[0]}\nof the image\n{job}\n/home/alice\ninside")
    equal(cluster.run("ssh", "job", "exit 7").rc, 7, "exit status")
    cluster.run("ssh", "job", 'echo "$ODD"', env=['ODD=a "b\\c $HOME #']).good('a "b\\c $HOME #')
    done = cluster.run("ssh", "-tt", "job", "tty; stty size; exit")
    expect(done.rc == 0 and "/dev/pts/" in done.out, "no terminal", done)


def files_go_to_and_fro(cluster, here):
    data = os.urandom(3 << 20)  # every byte value, and more than a pipe holds
    with open(f"{here}/data", "wb") as file:
        file.write(data)
    cluster.run("scp", "-q", "/home/shared/cookbook/data", "job:/tmp/data").good()
    cluster.run("scp", "-q", "job:/tmp/data", "/home/shared/cookbook/back").good()
    expect(open(f"{here}/back", "rb").read() == data, "scp has changed a file")
    done = cluster.run("sftp", "-q", "-b", "-", "job", stdin="ls -1 /tmp/data\n")
    expect("\n/tmp/data" in done.good(), "sftp does not list it", done)
    expect(not os.path.exists("/tmp/data"), "the file is not in the container")


def nobody_else_comes_in(cluster, job):
    cluster.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/home/shared/cookbook/other").good()
    done = cluster.run("ssh", "-o", "IdentitiesOnly=yes", "-o", "IdentityFile=/home/shared/cookbook/other", "-o", "BatchMode=yes", "-F", "/dev/null",
                       "-o", f"ProxyCommand=/home/alice/bin/job-ssh job-{job}", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "job", "id")
    expect(done.rc == 255 and "Permission denied (publickey)" in done.err, "a strange key comes in", done)
    done = cluster.run("ssh", f"job-{job + '0'}", "id")
    expect(done.rc == 255 and "has no running step" in done.err, "a job that is none", done)


def as_vs_code_does(cluster, job):
    """One connection shared by more sessions, a script on standard input, a server that outlives
    it, forwarded ports."""
    there = "/home/shared/cookbook"
    master = cluster.start("ssh", "-M", "-S", f"{there}/master", "-T", "-D", "20801", "-L", "20802:127.0.0.1:20803", "job", "sh", stdin=OPEN)
    try:
        master.process.stdin.write(SERVER.encode())
        master.process.stdin.flush()
        master.await_text("==\n", SECONDS)
        port = re.search("listeningOn==([0-9]+)==", master.said())[1]
        done = cluster.run("python3", "-c", SOCKS, "20801", port)
        expect("served by of the image" in done.good(), "nothing comes over SOCKS", done)
        before = steps(cluster, job)
        equal(cluster.run("ssh", "-S", f"{there}/master", "job", "cat ~/.vscode-server/log").good(), port, "in a shared connection")
        equal(steps(cluster, job), before, "steps with a shared connection")
        listen = "import socket; s = socket.create_server(('127.0.0.1', 20803)); c = s.accept()[0]; c.sendall(b'by -L')"
        other = cluster.start("ssh", "-S", f"{there}/master", "job", f'python3 -c "{listen}"')
        ask = "import socket, time\nfor i in range(100):\n  s = socket.create_connection(('127.0.0.1', 20802)); t = s.recv(9)\n  if t: break\n  time.sleep(0.1)\nprint(t.decode())"
        cluster.run("python3", "-c", ask).good("by -L")
        other.end(10).good()
    finally:
        cluster.run("ssh", "-S", f"{there}/master", "-O", "exit", "job")
        master.end(15)


@test
def ssh_copy_enters_an_image_without_sshd(cluster):
    for taken_from in ("interactive", "openssh-10"):
        image = image_of(cluster, taken_from)
        with ssh_set_up(cluster) as (here, there):
            without_option(here)
            cluster.srun("--container-mount-home", "/home/alice/bin/job-ssh", "take-sshd", image=image, timeout=60).good("")
            try:
                with rules(cluster, 'mounts = ["tmpfs:/tmp:noexec"]\n'), job_of(cluster, there, "ssh.sbatch", PLAIN) as job:
                    entered(cluster, job, here, there)
                await_true(lambda: not cluster.processes(cluster.nodes[0], "ld.so"), 10, "an sshd outlives the job")
            finally:
                shutil.rmtree(os.path.join(cluster.home, "alice/.local/share/spank-container/sshd"))


@test
def ssh_option_serves_an_image_without_sshd(cluster):
    with ssh_set_up(cluster) as (here, there):
        with job_of(cluster, there, "ssh.sbatch", PLAIN) as job:
            entered(cluster, job, here, there)
            changed = f"touch {SERVER_FILES}/sshd || rm {SERVER_FILES}/sshd || mount -o remount,rw {SERVER_FILES}/sshd"
            expect(cluster.run("ssh", "job", changed).rc != 0, "the server's files can be changed")
        await_true(lambda: not cluster.processes(cluster.nodes[0], "ld.so"), 10, "an sshd outlives the job")


@test
def ssh_option_serves_an_image_without_glibc_and_bash(cluster):
    with ssh_set_up(cluster) as (here, there), job_of(cluster, there, "ssh.sbatch", image_of(cluster, "busybox")) as job:
        await_true(lambda: cluster.run("ssh", "job", "true").rc == 0, 20, "ssh does not get in")
        ask = "id -un; echo $SLURM_JOB_ID; echo $0; ls /lib/ld-linux* /lib64 2>/dev/null; readlink /proc/$$/exe"
        cluster.run("ssh", "job", ask).good(f"alice\n{job}\nsh\n/bin/busybox")
        done = cluster.run("ssh", "-tt", "job", "tty; exit 3")
        expect(done.rc == 3 and "/dev/pts/" in done.out, "no terminal", done)
        files_go_to_and_fro(cluster, here)


@test
def ssh_enters_a_batch_script_in_a_container(cluster):
    with ssh_set_up(cluster):
        job = cluster.run("sbatch", "--parsable", "--output=/dev/null", f"--container-image={PLAIN}", "--container-ssh", stdin="#!/bin/sh\nsleep 600\n").good()
        try:
            await_true(lambda: cluster.run("ssh", "job", "true").rc == 0, 30, "ssh does not get in")
            done = cluster.run("ssh", "job", "cat /workspace/replaced; echo $SLURM_JOB_ID")
            done.good(f"upper\n{job}")
            equal(done.err, "", "standard error", done)
        finally:
            cluster.run("scancel", job)
            cluster.await_job(job)


@test
def ssh_annotations_mount_the_server_and_a_key(cluster):
    with ssh_set_up(cluster) as (_, there):
        cluster.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{there}/other").good()
        text = f'image = "{PLAIN}"\n[annotations.com.hooks.ssh]\nenabled = "true"\nauthorize_ssh_key = "{there}/other.pub"\n'
        with environments(cluster, one=text):
            job = cluster.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", "srun --environment=one sleep infinity").good()
            try:
                with_other = ("ssh", "-o", "IdentitiesOnly=yes", "-o", f"IdentityFile={there}/other", "-o", "BatchMode=yes", f"job-{job}")
                await_true(lambda: cluster.run(*with_other, "true").rc == 0, 30, "the key of the annotation does not get in")
                cluster.run(*with_other, "echo $SLURM_JOB_ID").good(job)
            finally:
                cluster.run("scancel", job)
                cluster.await_job(job)


@test
def ssh_option_warns_once_without_sshd_on_the_node(cluster):
    with rules(cluster, 'sshd = "/nowhere/sshd"\n'):
        done = cluster.srun("-N1", "-n2", "--container-ssh", "true", image=PLAIN)
    lines = [line for line in done.err.splitlines() if "sshd" in line]
    expect(done.rc == 0 and len(lines) == 1 and 'hook 50-ssh: open "/nowhere/sshd": no such file (hint: ' in lines[0], "another warning", done)


@test
def ssh_option_decides_whether_the_server_is_mounted(cluster):
    show = ("sh", "-c", f"test -e {SERVER_FILES} && echo yes || echo no")
    cluster.srun(*show, image=PLAIN).good("no")
    cluster.srun("--container-ssh", "--container-readonly", *show, image=PLAIN).good("yes")
    cluster.srun(*show, image=PLAIN, env=["SCONTAINER_SSH=yes"]).good("yes")
    cluster.srun(*show, image=PLAIN, env=["SCONTAINER_SSH=no"]).good("no")
    with rules(cluster, 'hooks_off = ["50-ssh"]\n'):
        cluster.srun("--container-ssh", *show, image=PLAIN).good("no")
    with rules(cluster, 'features_off = ["container-ssh"]\n'):
        done = cluster.srun("--container-ssh", *show, image=PLAIN)
        expect(done.rc != 0 and "--container-ssh" in done.err, "the site cannot turn it off", done)
    done = cluster.srun("--container-ssh", "--container-explain=all", "true", image=PLAIN)
    expect("job-ssh starts the node's /usr/sbin/sshd" in done.err, "nothing of the hook", done)
    expect(f"{SERVER_FILES}/ld.so" in done.err, "no mounts", done)


@test
def ssh_server_ignores_links_of_a_hostile_image(cluster):
    """The mount points are made in the container, also where the image leads them to a mounted directory of the host."""
    victim = os.path.join(cluster.shared, "ssh-victim")
    os.makedirs(victim)
    os.chown(victim, 2001, 2001)
    try:
        for name, entry in (("ssh", ("run/spank-container/ssh", "-> /home/shared/ssh-victim")), ("top", ("run/spank-container", "-> /home/shared/ssh-victim"))):
            image = cluster.push(Image(f"suites/ssh-hostile-{name}", [[entry]], below=cluster.base_layout))
            done = cluster.srun("--container-ssh", "--container-mounts=/home/shared", "true", image=image)
            equal(os.listdir(victim), [], f"files of the host ({name})", done)
    finally:
        shutil.rmtree(victim)


def entered(cluster, job, here, there):
    """A command, a shell that reads a script, its environment, a file by sftp and a forwarded port."""
    await_true(lambda: cluster.run("ssh", "job", "true").rc == 0, 20, "ssh does not get in")
    cluster.run("ssh", "job", "! command -v sshd; cat /workspace/replaced; id -u; echo $SLURM_JOB_ID").good(f"upper\n2001\n{job}")
    done = cluster.run("ssh", "-T", "job", "bash -lc sh", stdin="test -e /workspace/replaced && echo script; exit 5\n")
    equal((done.rc, done.out), (5, "script\n"), "status and output of a script", done)
    cluster.run("sftp", "-b", "-", "job", stdin=f"get /workspace/replaced {there}/fetched\n")
    equal(open(os.path.join(here, "fetched")).read(), "upper\n", "file by sftp")
    master = cluster.start("ssh", "-M", "-S", f"{there}/master", "-T", "-L", "20804:127.0.0.1:20805", "job", "sh", stdin=OPEN)
    try:
        await_true(lambda: cluster.run("ssh", "-S", f"{there}/master", "-O", "check", "job").rc == 0, 15, "no connection to share")
        listen = "use IO::Socket::INET; $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 20805, Listen => 1, ReuseAddr => 1); " \
                 "print qq(up\\n); STDOUT->flush; $c = $s->accept; print $c qq(from inside\\n)"
        other = cluster.start("ssh", "-S", f"{there}/master", "job", f'perl -e "{listen.replace("$", chr(92) + "$")}"')
        other.await_text("up")
        cluster.run("bash", "-c", "cat </dev/tcp/127.0.0.1/20804").good("from inside")
        other.end(10).good()
    finally:
        cluster.run("ssh", "-S", f"{there}/master", "-O", "exit", "job")
        master.end(15)


@test
def ssh_failure_reports_the_reason(cluster):
    image = image_of(cluster)
    with ssh_set_up(cluster) as (here, there):
        def refused(why):
            done = cluster.run("ssh", "job", "id")
            for _ in range(50):  # the job runs before its step's container does
                if "is not running" not in done.err:
                    break
                time.sleep(0.2)
                done = cluster.run("ssh", "job", "id")
            expect(done.rc == 255 and why in done.err, "it is not said", done)

        refused("no running job (hint: squeue --me)")
        with job_of(cluster, there, "ssh.sbatch", image, SCONTAINER_REMAP_ROOT="yes"):
            refused("as root inside, sshd cannot start (hint: drop --container-remap-root)")
        without_option(here)
        with job_of(cluster, there, "ssh.sbatch", PLAIN):
            refused("the container has no sshd (hint: srun --container-ssh, or #SBATCH --container-ssh;")


@test
def jupyter_is_reached_by_a_tunnel(cluster):
    image = image_of(cluster)
    with ssh_set_up(cluster) as (here, there), job_of(cluster, there, "jupyter.sbatch", image, JUPYTER="server") as job:
        output = f"{here}/jupyter-{job}.out"
        await_true(lambda: re.search(r"http://127.0.0.1:\d+/\S*\?token=\w+", open(output).read()), 40, "Jupyter does not say where it is")
        text = open(output).read()
        equal(os.stat(output).st_mode & 0o777, 0o600, "mode of the file with the token")
        port, token = re.search(r"http://127.0.0.1:(\d+)/\S*\?token=(\w+)", text).groups()
        command = re.search(r"ssh -N -L (\S+) job-(\d+)", text)
        tunnel = cluster.start("ssh", "-N", "-L", command[1], f"job-{command[2]}")
        try:
            def get(path):
                script = f"import urllib.request as u, urllib.error as e\ntry: print(u.urlopen('http://127.0.0.1:{port}/{path}', timeout=9).read().decode())\n" \
                         "except e.HTTPError as error: print(error.code)\nexcept (e.URLError, OSError): print('none')"
                return cluster.run("python3", "-c", script).good()
            await_true(lambda: get("api") != "none", 20, "no tunnel")
            expect("version" in json.loads(get("api")), "it is not Jupyter")
            equal(get("api/contents"), "403", "without the token")
            names = [one["name"] for one in json.loads(get(f"api/contents?token={token}"))["content"]]
            expect("jupyter.sbatch" in names, f"the work directory is another: {names}")
        finally:
            tunnel.send(15)
            tunnel.end(10)
