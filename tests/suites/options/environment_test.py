"""The environment of a task, and the user's identity inside."""
import os

from images import Image
from harness import equal, expect, test
from outcomes import outcome

QUICK = True


def variable(cluster, name, *options, env=(), image="base", **how):
    return cluster.srun(*options, "sh", "-c", f"echo ${{{name}-unset}}", env=env, image=image, **how).good()


@test
def image_variables_are_set(cluster):
    equal(variable(cluster, "IMAGE_ONLY"), "from the image", "IMAGE_ONLY")
    cluster.bash("test \"${EMPTY-unset}\" = ''").good()


@test
def job_variables_are_set(cluster):
    equal(variable(cluster, "OF_THE_JOB", env=["OF_THE_JOB=two words"]), "two words", "OF_THE_JOB")


@test
def image_variable_overrides_job_variable(cluster):
    equal(variable(cluster, "GREETER", env=["GREETER=job"]), "base", "GREETER")
    equal(variable(cluster, "PATH", env=["PATH=/usr/bin:/bin:/of/the/job"]), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PATH")


@test
def container_env_makes_job_variable_win(cluster):
    equal(variable(cluster, "GREETER", "--container-env=GREETER,OTHER", env=["GREETER=job"]), "job", "GREETER")
    equal(variable(cluster, "GREETER", "--container-env=A", "--container-env=GREETER", env=["GREETER=job"]), "job", "GREETER of a second option")


@test
def container_env_of_unset_variable_changes_nothing(cluster):
    equal(variable(cluster, "GREETER", "--container-env=GREETER"), "base", "GREETER")


@test
def container_env_of_unset_variables_warns_once(cluster):
    for option, words in (("NOPE", "NOPE is not set (hint: export it, or write NOPE=VALUE)"),
                          ("NOPE,GREETER,GR*T,MINE=1,NONE", "NOPE, NONE are not set (hint: export them, or write NOPE=VALUE)")):
        done = cluster.srun("-N2", "-n4", "--overcommit", f"--container-env={option}", "true", env=["GREETER=job"])
        equal([line for line in done.err.splitlines() if "not set" in line], [f"spank-container: warning: --container-env: {words}"], "lines", done)


@test
def container_env_minus_removes_variables(cluster):
    equal(variable(cluster, "GREETER", "--container-env=-GREET*"), "unset", "GREETER of the image")
    equal(variable(cluster, "OF_THE_JOB", "--container-env=A=1,-OF_THE_JOB", env=["OF_THE_JOB=1"]), "unset", "OF_THE_JOB")


@test
def container_env_accepts_patterns(cluster):
    equal(variable(cluster, "GREETER", "--container-env=OTHER,GR??T*", env=["GREETER=job"]), "job", "GREETER")


@test
def container_env_sets_variables(cluster):
    option = '--container-env=GREETER=mine,LIST="1,2",ESCAPED=1\\,2,HOME=/elsewhere'
    done = cluster.bash("echo $GREETER $LIST $ESCAPED $HOME", option, "--container-env=GREETER", env=["GREETER=job"])
    done.good("mine 1,2 1,2 /elsewhere")
    equal(variable(cluster, "GREETER", env=["SCONTAINER_ENV=GREETER=twin"]), "twin", "GREETER of the twin")


@test
def variable_file_is_read_on_the_host(cluster):
    """Each task reads it independently of its container, which does not have the file."""
    with open(os.path.join(cluster.shared, "some.env"), "w") as file:
        file.write("# a comment\nFROM_FILE=two  words \nGREETER\nBOTH=of the file\nPATH=/bin:/usr/bin\n")
    show = ("sh", "-c", 'echo "$FROM_FILE|$GREETER|$BOTH"')
    said, how = "two  words |job|of the option", {"env": ["GREETER=job"]}
    file = ("-w", "node01", "--container-env-file=/home/shared/some.env", "--container-env=BOTH=of the option")
    for options in ((), ("--container-remap-root",), ("--container-private",), ("--container-unshare=pid",)):
        cluster.srun(*file, "-n2", *options, *show, **how).good(f"{said}\n{said}")
    cluster.srun("--chdir=/home/shared", "--container-env-file=some.env", *show, **how).good("two  words |job|of the file")
    cluster.run("srun", f"--container-image={cluster.name_of('base')}", *show, env=["SCONTAINER_ENV_FILE=/home/shared/some.env", "GREETER=job"]).good("two  words |job|of the file")
    running = cluster.start_srun("-w", "node01", "--container-name=with-file", "sh", "-c", "echo up; until test -e /end; do sleep 0.1; done")
    running.await_text("up")
    cluster.srun(*file, "--container-name=with-file", *show, **how).good(said)
    cluster.srun("-w", "node01", "--container-name=with-file", "sh", "-c", "echo ${FROM_FILE-unset}; touch /end").good("unset")
    running.end().good()
    cluster.run("srun", "-w", "node01", "--container-name=with-file:remove", "true").good()
    done = cluster.srun("--container-env-file=/home/shared/none.env", "true")
    expect(done.rc == 1 and 'open "/home/shared/none.env": no such file' in done.err, "a missing file is not told of", done)


@test
def unset_variables_are_not_given_to_tasks(cluster):
    show = ("sh", "-c", 'echo "${CONDA_A-unset} ${MINE-unset} ${OTHER-unset}"')
    given = ["CONDA_A=1", "MINE=job", "OTHER=job"]
    cluster.srun("--container-unsetenv=CONDA_*,MINE", "--container-unsetenv=OTHER", "--container-env=MINE=option", *show,
                 env=given).good("unset option unset")
    cluster.run("srun", f"--container-image={cluster.name_of('base')}", *show, env=["SCONTAINER_UNSETENV=OTHER", *given]).good(
        "1 job unset")
    done = cluster.srun("--container-unsetenv=A=1", "true")
    expect(done.rc == 1 and '--container-unsetenv: invalid format: "A=1"' in done.err, "a value is not refused", done)


@test
def job_locale_variables_are_dropped(cluster):
    given = ["LANG=de_DE.UTF-8", "LANGUAGE=de", "LC_ALL=C.UTF-8"]
    cluster.bash("echo ${LANG-unset} ${LANGUAGE-unset} ${LC_ALL-unset}", env=given).good("unset unset unset")
    equal(variable(cluster, "LANG", "--container-env=LANG", env=given), "de_DE.UTF-8", "LANG that is asked for")


@test
def image_locale_is_kept(cluster):
    image = Image("suites/locale", [[("marker", b"")]], {"Env": ["LANG=C.UTF-8", "PATH=/usr/bin:/bin"]}, below=cluster.base_layout)
    equal(variable(cluster, "LANG", env=["LANG=de_DE.UTF-8"], image=image), "C.UTF-8", "LANG")


@test
def job_language_is_dropped_with_every_category(cluster):
    given = ["LC_CTYPE=UTF-8", "LC_TIME=de_DE", "LC_MESSAGES=de_DE"]
    cluster.bash("env | grep -c ^LC_ || true", env=given).good("0")
    equal(variable(cluster, "LC_CTYPE", "--container-env=LC_CTYPE", env=given), "UTF-8", "LC_CTYPE that is asked for")
    cluster.srun("perl", "-e", "1", env=given).good("")


def image_with(cluster, name, *variables):
    return Image(f"suites/{name}", [[("marker", b"")]], {"Env": ["PATH=/usr/bin:/bin", *variables]}, below=cluster.base_layout)


OF_ANOTHER_USER = ("HOME=/home/jovyan", "USER=jovyan", "LOGNAME=jovyan", "SHELL=/bin/zsh", "PWD=/nowhere")
OF_ANOTHER_STEP = ("SLURM_JOB_ID=999", "SLURM_PROCID=7", "SLURM_STEP_NODELIST=nowhere", "SLURM_OF_NONE=1", "SLURMD_NODENAME=x",
                   "PMIX_RANK=9", "PMI_RANK=9", "OMPI_COMM_WORLD_RANK=9", "OMPI_MCA_btl=self")
OF_ANOTHER_LAUNCH = ("RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "MASTER_ADDR=localhost", "MASTER_PORT=29500")


@test
def image_user_variable_is_ignored(cluster):
    image = image_with(cluster, "of-a-user", *OF_ANOTHER_USER)
    show = ("bash", "-c", "echo $HOME $USER $LOGNAME $SHELL $PWD ~")
    mine = "/home/alice alice alice /bin/bash /workspace /home/alice"
    for options in ((), ("--container-mount-home",), ("--container-private",), ("--container-contain",), ("--export=NONE",)):
        cluster.srun(*options, *show, image=image).good(mine)
    cluster.srun("--container-remap-root", *show, image=image).good("/root root root /bin/bash /workspace /root")
    cluster.srun("--container-env=HOME", *show, image=image, env=["HOME=/of/the/job"]).good("/of/the/job alice alice /bin/bash /workspace /of/the/job")
    cluster.srun("--container-env=HOME=/set", *show, image=image).good("/set alice alice /bin/bash /workspace /set")
    cluster.srun("-w", "node01", "--container-name=of-a-user", *show, image=image).good(mine)
    cluster.run("srun", "-w", "node01", "--container-name=of-a-user", *show).good(mine)
    cluster.run("srun", "-w", "node01", "--container-name=of-a-user:remove", "true").good()
    cluster.batch(f"#!/bin/bash\n{show[2]}\n", f"--container-image={cluster.name_of(image)}").good(mine)


@test
def image_slurm_variables_are_ignored(cluster):
    image = image_with(cluster, "of-a-step", *OF_ANOTHER_STEP)
    show = ("sh", "-c", "echo $SLURM_PROCID $SLURM_STEP_NODELIST ${SLURM_OF_NONE-} $SLURMD_NODENAME ${PMI_RANK-} ${PMIX_RANK-} ${OMPI_COMM_WORLD_RANK-} $OMPI_MCA_btl; test $SLURM_JOB_ID != 999")
    out = cluster.srun("-n2", "-w", "node01", *show, image=image).good()
    equal(sorted(out.splitlines()), ["0 node01 node01 self", "1 node01 node01 self"], "variables")
    script = "#!/bin/sh\ntest $SLURM_JOB_ID != 999 && echo $SLURM_ARRAY_TASK_ID ${SLURM_PROCID}\n"
    cluster.batch(script, "--array=3", f"--container-image={cluster.name_of(image)}").good("3 0")
    done = cluster.srun("--container-slurm", "--mpi=none", "srun", "--overlap", "-n1", "sh", "-c", "echo step $SLURM_PROCID", image=image, timeout=60)
    done.good("step 0")


@test
def image_launch_variables_are_ignored_for_several_tasks(cluster):
    image = image_with(cluster, "of-a-launch", *OF_ANOTHER_LAUNCH)
    show = ("sh", "-c", "echo ${RANK-} ${WORLD_SIZE-} ${LOCAL_RANK-} ${MASTER_ADDR-} ${MASTER_PORT-}")
    port = lambda line: 61000 <= int(line.split()[4]) <= 65535
    for options in (("-n2", "-w", "node01"), ("-N2", "-n2"), ("-n2", "-w", "node01", "--container-private"), ("-n2", "-w", "node01", "--container-remap-root")):
        lines = sorted(cluster.srun(*options, *show, image=image).good().splitlines())
        equal([line.split()[:2] for line in lines], [["0", "2"], ["1", "2"]], "RANK and WORLD_SIZE")
        expect(all(line.split()[3] == "node01" and port(line) for line in lines), f"the places to meet are {lines}")
    cluster.srun("-n1", *show, image=image).good("0 1 0 localhost 29500")
    cluster.srun("-n1", *show, image=image, env=["MASTER_ADDR=elsewhere"]).good("elsewhere")
    cluster.srun("-n2", "-w", "node01", "--container-env=RANK=5,WORLD_SIZE=9", *show, image=image).good()
    done = cluster.run("srun", "-n1", f"--container-image={cluster.name_of(image)}", *show, ":", "-n1", f"--container-image={cluster.name_of(image)}", *show)
    equal(sorted(line.split()[:2] for line in done.good().splitlines()), [["0", "2"], ["1", "2"]], "RANK and WORLD_SIZE of components")


@test
def job_gpu_variables_are_kept(cluster):
    image = image_with(cluster, "of-a-gpu", "CUDA_VISIBLE_DEVICES=7", "ROCR_VISIBLE_DEVICES=7", "GPU_DEVICE_ORDINAL=7", "ZE_AFFINITY_MASK=7")
    show = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES $GPU_DEVICE_ORDINAL")
    outside = cluster.run("srun", "--gres=gpu:2", *show).good()
    expect("7" not in outside and outside != "", "Slurm sets no variable", None)
    cluster.srun("--gres=gpu:2", "--no-container-gpu", *show, image=image).good(outside)
    cluster.srun("--gres=gpu:2", "--no-container-gpu", "--container-env=GPU_DEVICE_ORDINAL=5", *show, image=image).good(f"{outside.split()[0]} 5")
    cluster.srun("--no-container-gpu", *show, image=image).good("7 7")


@test
def explain_reports_variable_classes(cluster):
    image = image_with(cluster, "of-all", *OF_ANOTHER_USER, *OF_ANOTHER_STEP, *OF_ANOTHER_LAUNCH)
    done = cluster.srun("-n2", "-w", "node01", "--container-explain=all", "--container-env=LOCAL_RANK=4", "true", image=image, env=["MASTER_PORT=1234"])
    said = {line.split(":", 1)[1].split("=")[0].strip(): line.rpartition("(")[2].rstrip(")") for line in done.messages() if line.startswith("variable:")}
    wanted = {"HOME": "user, not the image's", "SLURM_PROCID": "slurm, not the image's", "SLURM_JOB_UID": "slurm", "RANK": "hook",
              "MASTER_PORT": "launch, not the image's", "LOCAL_RANK": "--container-env, not the image's", "OMPI_MCA_btl": "image"}
    equal({name: said.get(name) for name in wanted}, wanted, "origins", done)


@test
def user_identity_is_taken_from_the_node(cluster):
    cluster.bash("echo $HOME $USER $LOGNAME $SHELL").good("/home/alice alice alice /bin/bash")


@test
def image_without_path_gets_the_default_path(cluster):
    image = Image("suites/no-path", [[("marker", b"")]], {"Env": []}, below=cluster.base_layout)
    equal(variable(cluster, "PATH", image=image), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PATH")


@test
def pytorch_image_gets_rank_variables(cluster):
    image = Image("suites/torch-env", [[("marker", b"")]], {"Env": ["PYTORCH_VERSION=2", "PATH=/usr/bin:/bin"]}, below=cluster.base_layout)
    out = cluster.srun("-N2", "--ntasks-per-node=2", "sh", "-c", "echo $RANK $LOCAL_RANK", image=image).good()
    equal(sorted(out.splitlines()), ["0 0", "1 1", "2 0", "3 1"], "RANK and LOCAL_RANK")


@test
def other_images_get_no_rank_variables(cluster):
    equal(variable(cluster, "RANK"), "unset", "RANK")


@test
def slurm_variables_are_per_task(cluster):
    out = cluster.srun("-n3", "sh", "-c", "echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NTASKS").good()
    equal(sorted(out.splitlines()), ["0 0 3", "1 1 3", "2 2 3"], "variables")


@test
@outcome(72, "accepted", "Env malformed, huge, of 5000 entries")
def variable_with_newlines_and_equals_signs_survives(cluster):
    cluster.bash("printf %s \"$ODD\" | od -An -c | tr -d ' \\n'", env=["ODD=a=b\nc\"$x'"]).good("a=b\\nc\"$x'")


@test
def thousand_variables_survive(cluster):
    many = [f"MANY_{number}={'x' * 50}" for number in range(1000)]
    cluster.bash("env | grep -c ^MANY_", env=many).good("1000")


@test
@outcome(74, "accepted", "User odd or out of range")
def user_has_own_ids_and_group_names(cluster):
    cluster.srun("id").good("uid=2001(alice) gid=2001(alice) groups=2001(alice),2100(rigteam)")
    cluster.srun("id", user="bob").good("uid=2002(bob) gid=2002(bob) groups=2002(bob),2100(rigteam)")


@test
@outcome(154, "accepted", "/tmp, /run, home full or absent", untested="nothing is written to /tmp; a full /run")
def user_without_passwd_entry_on_the_node_can_work(cluster):
    done = cluster.srun("bash", "-c", "id -u; test -d \"$HOME\" && echo home; touch /new && stat -c %u /new", user="carol")
    equal(done.good().splitlines()[0], "2003", "user", done)
    expect("2003" in done.out.splitlines()[-1], "a new file does not belong to her", done)


@test
def root_can_run_a_container(cluster):
    cluster.srun("id", "-u", user="root").good("0")


@test
def root_gains_no_privilege_inside(cluster):
    done = cluster.srun("bash", "-c", "grep -E 'CapEff|NoNewPrivs' /proc/self/status; echo $SHELL", user="root")
    expect("NoNewPrivs:\t1" in done.good(), "no_new_privs is not set", done)
