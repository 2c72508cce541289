"""The store, attacked by a process of the service user, such as an `import` compromised by a
registry: it can neither make other users run other content nor block them."""
import json
import os

from harness import equal, expect, test
from images import Image

ON = ("-w", "node01")
ATTACK = r"""
cd /var/lib/spank-container
victim=$1 evil=$2 forged=$(mktemp -d)/file
tries() { "$@" 2>/dev/null && echo "did: $*"; }
# Another image's record in place of this one's, at once and through whatever names it has.
for record in records/$victim images/$victim; do
    for other in records/$evil images/$evil; do
        rm -f $forged
        if cp $other $forged 2>/dev/null && test -s $forged; then
            tries chmod u+w $record && { cat $forged >$record; } 2>/dev/null && echo "wrote $record"
            tries cp $forged $record.next && tries mv -f $record.next $record
            tries ln -f $forged $record
        fi
    done
done
# Every name points elsewhere.
for file in refs/* names/* grants/* images/grants/*/*; do
    grep -q "$victim" $file 2>/dev/null || continue
    rm -f $forged
    sed "s/$victim/$evil/g" $file >$forged
    tries chmod u+w $file && { cat $forged >$file; } 2>/dev/null && echo "wrote $file"
    tries cp $forged $file.next && tries mv -f $file.next $file
done
# What it may write says that the other image is what the registry has, for everybody and for ever.
rm -f $forged
{ cat images/origins/$victim; printf 'index=sha256:%s\0' $victim; } >$forged
cp -f $forged images/origins/$evil; touch -d 2100-01-01 images/$evil images/$victim
echo end
"""
FIFOS = r"""
cd /var/lib/spank-container
for file in refs/* names/* grants/* records/* images/* images/origins/*; do
    test -f $file && rm -f $file && mkfifo -m 666 $file
done 2>/dev/null
for name in refs names grants records layers/sha256; do
    mv $name $name.away && mkdir $name
done 2>/dev/null
echo end
"""


def as_service(cluster, script, *arguments):
    done = cluster.root("node01", "setpriv", "--reuid=998", "--regid=998", "--clear-groups", "bash", "-c", script, "-", *arguments)
    expect(done.out.endswith("end\n"), "the attack did not run", done)
    return done


def digest_of(cluster, name):
    """Returns the digest of the image's manifest."""
    for row in json.loads(cluster.root("node01", "scontainer", "images", "--json").good()):
        if any(one["name"].split("@")[0] == name for one in row["names"]):
            return row["digest"][len("sha256:"):]
    raise AssertionError(f"{name} is not in the store")


@test
def service_user_cannot_make_others_run_other_programs(cluster):
    names = {}
    for who in ("victim", "evil"):
        names[who] = cluster.name_of(Image(f"suites/store-{who}", [[("who", who.encode())]], {"Env": [f"WHO={who}"]}, below=cluster.base_layout))
        equal(cluster.srun(*ON, "sh", "-c", "echo $(cat /who) $WHO", image=names[who]).good(), f"{who} {who}", who)
    cluster.run("srun", *ON, "--container-name=store-kept", f"--container-image={names['victim']}", "true").good()
    victim, evil = digest_of(cluster, names["victim"]), digest_of(cluster, names["evil"])
    attack = as_service(cluster, ATTACK, victim, evil)
    for pull in ("missing", "newer", "always"):
        done = cluster.srun(*ON, f"--container-pull={pull}", "sh", "-c", "echo $(cat /who) $WHO", image=names["victim"])
        equal(done.good(), "victim victim", f"what --container-pull={pull} runs after the attack ({attack.out})", done)
    done = cluster.run("srun", *ON, "--container-name=store-kept", "sh", "-c", "echo $(cat /who) $WHO")
    equal(done.good(), "victim victim", "what the named container runs", done)


@test
def service_user_cannot_delay_others(cluster):
    cluster.srun(*ON, "true").good()
    as_service(cluster, FIFOS)
    for pull in ("missing", "newer"):
        done = cluster.srun(*ON, f"--container-pull={pull}", "true", timeout=20)
        expect(done.rc == 0, f"--container-pull={pull} after the attack", done)
    cluster.must_be_quiet()


@test
def named_container_leaves_space_reserved_for_root(cluster):
    store = "/var/lib/spank-container"
    cluster.root("node01", "bash", "-euc", f"""
        truncate -s 256M /run/store.img
        mkfs.ext4 -q -F -m 25 /run/store.img
        mount -o loop,nosuid,nodev /run/store.img {store}
        rmdir {store}/lost+found
        /usr/libexec/spank-container/agent setup 998 998""").good()
    try:
        done = cluster.run("srun", *ON, "--container-name=fills", f"--container-image={cluster.name_of('base')}", "bash", "-c",
                           "cat /dev/zero >/big; stat -c %s /big; sync", timeout=60)
        status = os.statvfs(cluster.inside("node01", store))
    finally:
        cluster.root("node01", "umount", "-l", store)
        cluster.root("node01", "rm", "/run/store.img")
    expect("No space left on device" in done.err, "the file system did not become full, the test is void", done)
    reserved = (status.f_bfree - status.f_bavail) * status.f_frsize
    expect(reserved > 60 << 20, f"{reserved} bytes of 64 MiB are left to root", done)


@test
def root_finds_image_by_tag_requested_by_a_user(cluster):
    name = cluster.name_of(Image("suites/store-tagged", [[("who", b"tagged")]], below=cluster.base_layout))
    cluster.srun(*ON, "true", image=name).good()
    listed = cluster.root("node01", "scontainer", "images").good()
    expect(any(line.split()[0] == name for line in listed.splitlines()), f"{name} is not among the images:\n{listed}")
    cluster.root("node01", "scontainer", "rm", name).good()
    done = cluster.root("node01", "scontainer", "rm", name)
    equal(done.rc, 1, "exit code of the second removal", done)
    cluster.srun(*ON, "true", image=name).good()
    cluster.pushed.discard(name)  # the tag moves
    cluster.name_of(Image("suites/store-tagged", [[("who", b"moved")]], below=cluster.base_layout))
    cluster.srun(*ON, "true", image=name, user="bob").good()
    done = cluster.root("node01", "scontainer", "rm", name)
    expect(done.rc == 1 and "several images were asked for by this tag (hint: use its digest, as scontainer images --digests prints it)" in done.err, "two images of one tag", done)
