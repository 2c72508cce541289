"""scontainer build: the shapes of public Dockerfiles, written anew for the images and packages that are here."""

import io
import json
import os
import tarfile
import zipfile

import machine
from build_cases import build, write
from machine import base, home, user

def full():
    """Returns the name of an image with a compiler, Python, pip and a repository of packages."""
    return f"{machine.registry.name}/tutorials:1"


def shape(name, recipe, *options, files={}, modes={}):
    for path, text in files.items():
        write(f"shapes/{name}/{path}", text, modes.get(path, 0o644))
    return build(recipe, "-t", f"shapes/{name}:1", *options, context=f"shapes/{name}").succeeds()


def output(name, *command, options=()):
    return user("run", "-q", *options, f"shapes/{name}:1", *command).succeeds().out


def config(name):
    """Returns the configuration that the image has for Docker."""
    file = f"shape-{name}.tar"
    user("export", "--force", f"shapes/{name}:1", f"oci-archive:{file}").succeeds()
    with tarfile.open(os.path.join(home, file)) as archive:
        def document(path):
            return json.load(archive.extractfile(path))

        def blob(one):
            return document(f"blobs/sha256/{one['digest'][7:]}")
        return blob(blob(document("index.json")["manifests"][0])["config"])["config"]


def wheel(path, package, text):
    path = os.path.join(home, path, f"{package}-1.0-py3-none-any.whl")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{package}/__init__.py", text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{package} = {package}:main\n")
        archive.writestr(f"{info}/RECORD", "")


def test_apt_installs_and_removes_lists():
    shape("apt", f"""FROM {full()}
ENV DEBIAN_FRONTEND noninteractive
RUN set -eux; \\
    apt-get update; \\
    apt-get install -y --no-install-recommends \\
        # arithmetic
        bc \\

        make \\
    ; \\
    apt-get clean; \\
    rm -rf /var/lib/apt/lists/*
RUN make --version && ! ls /var/lib/apt/lists/*
CMD ["sh", "-c", "echo 6*7 | bc"]
""")
    assert output("apt") == "42\n"


def test_apt_purges_build_packages():
    shape("purge", f"""FROM {full()}
RUN set -eux; \\
    savedAptMark="$(apt-mark showmanual)"; \\
    apt-get update; apt-get install -y --no-install-recommends make bc; \\
    make --version >/made-with; \\
    apt-mark auto '.*' >/dev/null; apt-mark manual $savedAptMark bc >/dev/null; \\
    apt-get purge -y --auto-remove -o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false; \\
    rm -rf /var/lib/apt/lists/*
""")
    assert output("purge", "sh", "-c", "grep -c Make /made-with; echo 1+1 | bc; which make || echo gone").endswith("2\ngone\n")


def test_pip_requirements_before_application():
    wheel("shapes/pip/wheels", "salute", "def main():\n    print('salute')\n")
    shape("pip", f"""# syntax=docker/dockerfile:1
ARG PYTHON=1
FROM {machine.registry.name}/tutorials:${{PYTHON}} AS base
ENV PYTHONDONTWRITEBYTECODE=1 \\
    PYTHONUNBUFFERED=1
WORKDIR /app
COPY requirements.txt .
RUN --mount=type=cache,target=/root/.cache/pip \\
    --mount=type=bind,source=wheels,target=/wheels \\
    pip install --find-links=/wheels -r requirements.txt
COPY . .
EXPOSE 8000
CMD ["python", "app.py"]
""", files={"requirements.txt": "salute==1.0\n", "app.py": "import salute\nsalute.main()\n", ".dockerignore": "*.log\n**/*.pyc\n", "left.log": "", "src/x.pyc": ""})
    assert output("pip") == "salute\n"
    assert output("pip", "sh", "-c", "ls /app /app/src; test -e /wheels || echo gone").endswith("app.py\nrequirements.txt\nsrc\nwheels\n\n/app/src:\ngone\n")


def test_python_packages_come_from_builder_stage():
    wheel("shapes/prefix/wheels", "salute", "def main():\n    print('from builder')\n")
    shape("prefix", f"""FROM {full()} AS builder
COPY wheels /wheels
RUN pip install --prefix=/install --no-warn-script-location --find-links=/wheels salute
FROM {full()}
RUN groupadd --system --gid 999 app && useradd --system --gid 999 --uid 999 --create-home app
COPY --from=builder --chown=app:app /install/local /usr/local
USER app
ENTRYPOINT ["salute"]
""")
    assert output("prefix") == "from builder\n" and config("prefix")["User"] == "app"


def test_user_installs_into_own_home():
    wheel("shapes/home/wheels", "salute", "def main():\n    print('of the user')\n")
    shape("home", f"""FROM {full()}
ARG NB_USER="jovyan" NB_UID="1000"
RUN useradd --no-log-init --create-home --shell /bin/bash --uid "${{NB_UID}}" --no-user-group "${{NB_USER}}" && \\
    chown -R "${{NB_USER}}" /opt && chmod g+w /etc/passwd
USER ${{NB_UID}}
WORKDIR /home/$NB_USER
COPY --chown=${{NB_USER}}:100 wheels /tmp/wheels
ENV PATH="/home/${{NB_USER}}/.local/bin:${{PATH}}"
RUN pip install --user --find-links=/tmp/wheels salute && echo "$HOME" >home
USER root
RUN echo "$HOME" >>home && rm -r /tmp/wheels
USER $NB_USER
CMD ["salute"]
""")
    assert output("home", options=("-e", "HOME=/home/jovyan")) == "of the user\n"
    assert output("home", "cat", "home") == "/home/jovyan\n/root\n"


def test_compiled_program_alone_in_scratch():
    shape("static", f"""ARG IMAGE={full()}
FROM --platform=$BUILDPLATFORM $IMAGE AS build
ARG TARGETOS TARGETARCH
ARG VERSION=dev
WORKDIR /src
COPY go.mod go.sum* ./
RUN --mount=type=cache,target=/root/.cache/go-build true
COPY --link *.c .
RUN --mount=type=cache,target=/root/.cache/go-build \\
    mkdir /out && gcc -static -O2 -DVERSION="\\"${{VERSION}} ${{TARGETOS}}/${{TARGETARCH}}\\"" -o /out/app main.c
FROM scratch AS runtime
COPY --from=build /out/app /app
COPY --from=build /etc/passwd /etc/passwd
USER 65532:65532
ENTRYPOINT ["/app"]
CMD ["--help"]
""", "--build-arg", "VERSION=2.1", "--platform", "linux/amd64", files={
        "go.mod": "module example.org/app\n",
        "main.c": '#include <stdio.h>\nint main(int n, char **v) { printf("%s %s\\n", VERSION, n > 1 ? v[1] : ""); return 0; }\n'})
    assert output("static") == "2.1 linux/amd64 --help\n"


def test_library_and_program_built_with_make():
    shape("make", f"""FROM {full()} AS toolchain
RUN apt-get -q update && apt-get -qy install make && rm -rf /var/lib/apt/lists/*

FROM toolchain AS library
WORKDIR /usr/src/greet
COPY greet ./
RUN make -j"$(nproc)" && make install DESTDIR=/stage

FROM toolchain AS program
COPY --from=library /stage/ /
COPY main.c /usr/src/
RUN echo /opt/greet/lib >/etc/ld.so.conf.d/greet.conf && ldconfig \\
 && gcc -I/opt/greet/include -L/opt/greet/lib -o /usr/local/bin/hello /usr/src/main.c -lgreet

FROM {full()}
COPY --from=library /stage /
COPY --from=program /usr/local/bin/hello /usr/local/bin/
COPY --from=program /etc/ld.so.conf.d/greet.conf /etc/ld.so.conf.d/
RUN ldconfig
ENTRYPOINT hello
""", files={"greet/greet.c": '#include <stdio.h>\nvoid greet(void) { puts("greetings"); }\n', "greet/greet.h": "void greet(void);\n",
            "greet/Makefile": "libgreet.so: greet.c\n\tgcc -shared -fPIC -o $@ $<\ninstall: libgreet.so\n"
                              "\tinstall -D libgreet.so $(DESTDIR)/opt/greet/lib/libgreet.so\n\tinstall -D -m 644 greet.h $(DESTDIR)/opt/greet/include/greet.h\n",
            "main.c": '#include "greet.h"\nint main(void) { greet(); return 0; }\n'})
    assert output("make") == "greetings\n"


def test_stages_of_stages_plan_and_cook():
    shape("chef", f"""FROM {base()} AS chef
WORKDIR /app
FROM chef AS planner
COPY . .
RUN cat Cargo.toml >recipe.json
FROM chef AS builder
COPY --from=planner /app/recipe.json recipe.json
RUN mkdir -p target/release && cp recipe.json target/release/deps
COPY . .
RUN cat src/main.rs target/release/deps >target/release/app
FROM {base()} AS runtime
WORKDIR app
COPY --from=builder /app/target/release/app /usr/local/bin
ENTRYPOINT ["/bin/cat", "/usr/local/bin/app"]
""", files={"Cargo.toml": "[package]\n", "src/main.rs": "fn main() {}\n", ".dockerignore": "target/\n"})
    assert output("chef") == "fn main() {}\n[package]\n"


def test_node_application_installs_before_sources():
    shape("node", f"""FROM {full()} AS base
ARG NODE_ENV=production
ENV NODE_ENV=${{NODE_ENV}}
RUN groupadd -r node -g 1000 && useradd -r -u 1000 -g node -m -d /home/node node
RUN mkdir -p /usr/src/app/node_modules && chown -R node:node /usr/src/app
WORKDIR /usr/src/app
FROM base AS deps
RUN --mount=type=bind,source=package.json,target=package.json \\
    --mount=type=bind,source=package-lock.json,target=package-lock.json \\
    --mount=type=cache,target=/root/.npm \\
    cat package.json package-lock.json >node_modules/all && touch /root/.npm/kept
FROM base AS final
USER node
COPY package*.json ./
COPY --from=deps --chown=node:node /usr/src/app/node_modules ./node_modules
COPY --chown=node:node . .
EXPOSE 3000/tcp 3001
ENTRYPOINT []
CMD cat node_modules/all; echo $NODE_ENV
""", files={"package.json": "{}\n", "package-lock.json": "[]\n", "server.js": "", ".dockerignore": "node_modules\n*.log\n"})
    assert output("node") == "{}\n[]\nproduction\n"
    assert config("node")["ExposedPorts"] == {"3000/tcp": {}, "3001/tcp": {}}
    assert output("node", "ls") == "Dockerfile\nnode_modules\npackage-lock.json\npackage.json\nserver.js\n"


def test_here_documents_of_run_and_copy():
    shape("here", f"""# syntax=docker/dockerfile:1.4
FROM {full()}
ARG WHO=all
RUN <<EOF
set -e
mkdir /made
echo "a $WHO" >/made/a
EOF
RUN <<EOT bash -e
  echo "b ${{WHO}}" >/made/b
EOT
RUN python3 <<'EOF'
with open("/made/c", "w") as f:
    print("c $WHO", file=f)
EOF
RUN <<-EOF
	cat >/made/d <<-INNER
	d
	INNER
EOF
RUN <<FILE1 cat >/made/e && <<FILE2 cat >/made/f
e
FILE1
f
FILE2
RUN <<EOF
#!/usr/bin/env python3
open("/made/g", "w").write("g\\n")
EOF
COPY --chmod=0755 <<EOF /usr/local/bin/entry
#!/bin/sh
cat /made/* /etc/app/*; echo \\$0 $WHO
EOF
COPY <<one.conf <<"two.conf" /etc/app/
one $WHO
one.conf
two $WHO
two.conf
ENTRYPOINT ["entry"]
""")
    assert output("here") == "a all\nb all\nc $WHO\nd\ne\nf\ng\none all\ntwo $WHO\n/usr/local/bin/entry all\n"


def test_arguments_before_from_choose_the_image():
    shape("args", f"""ARG REGISTRY={machine.registry.name}
ARG NAME=none
ARG TAG="${{NAME:+1}}"
ARG VARIANT=amd64
FROM ${{REGISTRY}}/${{NAME}}:${{TAG:-latest}} AS base-amd64
ENV KIND=amd
FROM scratch AS base-arm64
COPY nothing /
FROM base-${{VARIANT}} AS final
ARG NAME
ARG TAG
ARG OWN=${{NAME%se}}${{TAG}}
LABEL name="$NAME" \\
      org.example.own=$OWN "with blank"="a b" \\
      description="a text \\
that goes on"
RUN test "$NAME" = base && test "$OWN" = ba1 && test -z "$VARIANT"
ENTRYPOINT []
CMD echo $KIND
""", "--build-arg", "NAME=base")
    assert output("args") == "amd\n"
    labels = config("args")["Labels"]
    assert labels["name"] == "base" and labels["org.example.own"] == "ba1" and labels["with blank"] == "a b"
    assert labels["description"] == "a text that goes on", labels


def test_programs_are_copied_from_another_image():
    shape("from", f"""FROM {base()}
COPY --from={full()} /usr/bin/gcc-1[0-9] /opt/tools/
COPY --from={full()} --chmod=0555 /usr/games/cowsay* /bin/
ENTRYPOINT []
CMD stat -c '%a %n' /bin/cowsay && ls /opt/tools
""")
    assert output("from") == "555 /bin/cowsay\ngcc-12\n"


def test_copy_flags_select_and_set_modes():
    shape("flags", f"""# syntax=docker/dockerfile:1.7-labs
FROM {base()}
WORKDIR /srv
WORKDIR copied
COPY --parents src/*/*.txt ./parents/
COPY --parents ./src/./b/deep/ ./pivot/
COPY --link --chown=1000:1000 --chmod=640 src/a/one.txt linked/
COPY --exclude=*.md --exclude=**/deep src/b kept
COPY src/?/[ot]*.txt found/
COPY ["src/with blank.txt", "./"]
COPY --chmod=u=rwx,go=rx src/a/one.txt symbolic
ADD src/a/one.txt src/b/two.txt added/
RUN --mount=target=/context,rw touch /context/src/new && find /srv/copied -type f | sort >/list && stat -c %a linked/one.txt symbolic >>/list
ENTRYPOINT ["cat", "/list"]
""", files={"src/a/one.txt": "1", "src/b/two.txt": "2", "src/b/read.md": "", "src/b/deep/three.txt": "3", "src/with blank.txt": "4"})
    assert output("flags").replace("/srv/copied/", "").split("\n") == [
        "added/one.txt", "added/two.txt", "found/one.txt", "found/two.txt", "kept/two.txt", "linked/one.txt",
        "parents/src/a/one.txt", "parents/src/b/two.txt", "pivot/b/deep/three.txt", "symbolic", "with blank.txt", "640", "755", ""]
    assert not os.path.exists(os.path.join(home, "shapes/flags/src/new"))


def test_onbuild_runs_in_the_image_that_uses_it():
    shape("onbuild", f"""FROM {base()}
WORKDIR /usr/src/app
ONBUILD ARG NAME=world
ONBUILD COPY . /usr/src/app
ONBUILD RUN cat greeting >made && echo $NAME >>made
ENTRYPOINT ["cat", "made"]
""")
    assert len(config("onbuild")["OnBuild"]) == 3
    shape("onbuilt", "FROM shapes/onbuild:1\nRUN test -s made\n", files={"greeting": "hello\n"})
    assert output("onbuilt") == "hello\nworld\n" and "OnBuild" not in config("onbuilt")


def test_service_has_volume_signal_and_health_check():
    shape("service", f"""FROM {full()}
LABEL maintainer="The Maintainers <docker@example.org>"
MAINTAINER of the old form
RUN set -eux; \\
	groupadd -r postgres --gid=998; \\
	useradd -r -g postgres --uid=998 --home-dir=/var/lib/postgresql --shell=/bin/bash postgres; \\
	install --verbose --directory --owner postgres --group postgres --mode 1777 /var/lib/postgresql
ENV PGDATA /var/lib/postgresql/data
RUN install --verbose --directory --owner postgres --group postgres --mode 3777 /var/run/postgresql && \\
    chown -R postgres:postgres /var/lib/postgresql && ln -sf /dev/stdout /var/log/access.log
VOLUME ["/var/lib/postgresql/data", "/logs"]
VOLUME $PGDATA/more
COPY docker-entrypoint.sh docker-ensure-initdb.sh /usr/local/bin/
RUN ln -sT docker-ensure-initdb.sh /usr/local/bin/docker-enforce-initdb.sh
STOPSIGNAL SIGINT
EXPOSE 5432
HEALTHCHECK --interval=5m --timeout=3s --start-period=1s --retries=2 \\
  CMD curl -f http://localhost/ || exit 1
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres", "-D"]
""", files={"docker-entrypoint.sh": "#!/usr/bin/env bash\nset -Eeo pipefail\nexec echo \"$@\" \"$PGDATA\"\n", "docker-ensure-initdb.sh": ""},
          modes={"docker-entrypoint.sh": 0o755})
    assert output("service") == "postgres -D /var/lib/postgresql/data\n"
    made = config("service")
    assert made["StopSignal"] == "SIGINT" and sorted(made["Volumes"]) == ["/logs", "/var/lib/postgresql/data", "/var/lib/postgresql/data/more"]
    assert made["Healthcheck"] == {"Test": ["CMD-SHELL", "curl -f http://localhost/ || exit 1"], "Interval": 300 * 10**9,
                                   "Timeout": 3 * 10**9, "StartPeriod": 10**9, "Retries": 2}, made
    shape("healthless", "FROM shapes/service:1\nHEALTHCHECK NONE\n")
    assert config("healthless")["Healthcheck"] == {"Test": ["NONE"]}


def test_shell_with_options_runs_the_commands():
    shape("shell", f"""FROM {base()}
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN echo one | tee /one >/dev/null && [[ -s /one ]] && arr=(a b) && echo ${{#arr[@]}} >>/one
RUN if false | true; then exit 1; fi
SHELL ["/bin/sh", "-ec"]
RUN ["/bin/bash", "-c", "echo exec $HOME >>/one"]
RUN ["sh", "-c", "test -n \\"$PATH\\""]
ENTRYPOINT exec cat /one
""")
    assert output("shell") == "one\n2\nexec /root\n"


def test_installer_of_conda_kind_and_its_shell():
    shape("conda", f"""FROM {base()}
ARG INSTALLER=Mini-1.2-Linux-x86_64.sh
ENV CONDA_DIR=/opt/conda \\
    LANG=C.UTF-8 LC_ALL=C.UTF-8
ENV PATH=${{CONDA_DIR}}/bin:$PATH
COPY $INSTALLER /tmp/
RUN echo "$(sha256sum /tmp/$INSTALLER | cut -d' ' -f1) */tmp/$INSTALLER" | sha256sum -c - && \\
    /bin/bash /tmp/$INSTALLER -b -p $CONDA_DIR && \\
    rm /tmp/$INSTALLER && \\
    echo ". ${{CONDA_DIR}}/profile.sh && activate base" >> ~/.bashrc && \\
    ln -s $CONDA_DIR/profile.sh /etc/profile.d/conda.sh && \\
    find ${{CONDA_DIR}} -follow -type f -name '*.a' -delete
COPY environment.yml .
SHELL ["conda", "run", "-n", "env", "/bin/bash", "-c"]
RUN echo in $CONDA_ENV >/opt/ran
SHELL ["/bin/bash", "--login", "-c"]
RUN echo login $ACTIVE >>/opt/ran
ENTRYPOINT ["conda", "run", "-n", "env"]
CMD ["cat", "/opt/ran"]
""", files={"environment.yml": "name: env\n", "Mini-1.2-Linux-x86_64.sh": """#!/bin/bash
mkdir -p $3/bin
echo ACTIVE=yes >$3/profile.sh
touch $3/lib.a
cat >$3/bin/conda <<'END'
#!/bin/bash
[ "$1" = run ] && export CONDA_ENV=$3 && shift 3 && exec "$@"
END
chmod +x $3/bin/conda
"""})
    assert output("conda") == "in env\nlogin yes\n"


def test_escape_directive_changes_continuations():
    shape("escape", f"""# escape=`
FROM {base()}
RUN echo 'C:\\' >/path && `
    # a comment between
    echo two >>/path

ENV DIR=C:\\tools
RUN printf '%s\\n' "$DIR" >>/path
ENTRYPOINT ["cat", "/path"]
""")
    assert output("escape") == "C:\\\ntwo\nC:\\tools\n"


def test_lower_case_tabs_and_line_ends_of_other_systems():
    shape("style", f"from\t{base()}\r\n  run\techo one \\\r\n  && echo two >/two\r\n# comment\r\nenv A=1 \\\r\n\r\n   B=2\r\n"
                   "entrypoint [\"sh\", \"-c\"]\r\ncmd [\"cat /two; echo $A$B\"]\r\n")
    assert output("style") == "two\n12\n"


def test_step_without_network_sees_loopback_alone():
    shape("network", f"""FROM {base()}
RUN --network=none tail -n +3 /proc/net/dev | wc -l >/count
RUN --network=host tail -n +3 /proc/net/dev | wc -l >>/count
RUN --network=default --security=sandbox true
ENTRYPOINT ["cat", "/count"]
""")
    with open("/proc/net/dev") as file:
        links = len(file.readlines()) - 2
    assert output("network") == f"1\n{links}\n"
    build(f"FROM {base()}\nRUN --security=insecure true\n").fails(1, "Dockerfile:2: RUN", "--security=insecure")
    build(f"FROM {base()}\nRUN --network=bridge true\n").fails(1, "Dockerfile:2: RUN", "--network=bridge")


def test_secrets_are_files_or_variables_of_one_step():
    write("npmrc", "token\n", 0o644)
    shape("secret", f"""FROM {base()}
RUN --mount=type=secret,id=npmrc,target=/root/.npmrc,required=true wc -c </root/.npmrc >/size
RUN --mount=type=secret,id=npmrc cat /run/secrets/npmrc | wc -c >>/size
RUN --mount=type=secret,id=TOKEN,env=API_TOKEN printf %s "$API_TOKEN" | wc -c >>/size
RUN --mount=type=secret,id=missing test ! -e /run/secrets/missing
RUN ! test -e /root/.npmrc && test -z "$API_TOKEN"
ENTRYPOINT ["cat", "/size"]
""", "--secret", f"id=npmrc,src={home}/npmrc", "--secret", f"id=TOKEN,src={home}/npmrc")
    assert output("secret") == "6\n6\n6\n"


def test_archive_is_unpacked_configured_and_removed():
    write("shapes/source/rocker_scripts/install.sh", "#!/bin/bash\nset -e\necho script $1 >>/usr/local/share/tool\n", 0o755)
    with tarfile.open(os.path.join(home, "shapes/source/tool-1.0.tar.xz"), "w:xz") as archive:
        text = b"#!/bin/sh\necho \"prefix=$1\" >config.status\n"
        entry = tarfile.TarInfo("tool-1.0/configure")
        entry.size, entry.mode = len(text), 0o755
        archive.addfile(entry, io.BytesIO(text))
    shape("source", f"""FROM {base()}
ENV VERSION=1.0
ADD tool-${{VERSION}}.tar.xz /usr/src/
WORKDIR /usr/src/tool-${{VERSION}}
RUN ./configure --prefix=/usr/local && install -D config.status /usr/local/share/tool
WORKDIR /
RUN rm -rf /usr/src/tool-*
COPY rocker_scripts /rocker_scripts
RUN /rocker_scripts/install.sh
RUN ["/rocker_scripts/install.sh", "again"]
ENTRYPOINT ["cat", "/usr/local/share/tool"]
""")
    assert output("source") == "prefix=--prefix=/usr/local\nscript\nscript again\n"


def test_stage_is_named_by_number_and_target_stops():
    shape("target", f"""FROM {base()}
RUN echo zero >/zero
FROM {base()} as Debug
COPY --from=0 /zero /
ENTRYPOINT ["cat", "/zero"]
FROM debug as release
RUN exit 1
""", "--target", "debug")
    assert output("target") == "zero\n"
