"""Hostile option values: random combinations of pieces of every grammar, and noise. Bytes without
NUL."""
import random

PIECES = [b"/", b".", b"..", b"../", b"./x", b"~/", b":", b"::", b",", b",,", b"+", b"=", b"@", b"#", b"%", b"%s%n%s", b"%N", b"\\", b'"', b"'", b" ", b"\t", b"\n", b"\r",
          b"\x1b[31m", b"\x7f", b"\xff\xfe", b"\xc3\x28", b"\xe2\x80\xae", b"$HOME", b"$(touch /tmp/hostile)", b"`id`", b";", b"|", b"&", b"<", b">", b"*", b"?", b"[", b"]", b"{}",
          b"-", b"--container-image=x", b"(null)", b"0", b"-1", b"1", b"18446744073709551616", b"99999999999999999999T", b"1%", b"101%", b"0x10", b"1e9",
          b"tmpfs", b"umount", b"sqsh", b"ro", b"rw", b"rbind", b"x-create=dir", b"size=1G", b"size=-1", b"/proc", b"/proc/self/mem", b"/proc/1/root", b"/sys", b"/dev",
          b"/dev/mem", b"/dev/null", b"/etc/shadow", b"/run/spank-container", b"/var/lib/spank-container", b"/home/bob/private", b"/home/shared", b"/tmp", b"/x",
          b"auto", b"create", b"exec", b"no_exec", b"replace", b"net", b"ipc", b"uts", b"pid", b"user", b"mnt", b"script", b"steps", b"newer", b"never", b"linux/amd64",
          b"docker://", b"dockerd://", b"podman://", b"oci:", b"oci-archive:", b"docker-archive:", b"file://", b"registry:5000", b"registry:5000/suites/base:1", b"sha256:",
          b"sha256:" + b"a" * 64, b"PATH", b"LD_PRELOAD", b"A=b", b"SLURM_*", b"1.0", b"4294967295.4294967295", b"a" * 255, b"b" * 4096, b"/c" * 600]


def hostile(chance):
    """Returns one value. `chance` is a random.Random."""
    kind = chance.random()
    if kind < 0.75:
        return b"".join(chance.choice(PIECES) for _ in range(chance.randint(1, 6)))
    if kind < 0.9:
        return bytes(chance.randint(1, 255) for _ in range(chance.choice((1, 3, 20, 300))))
    if kind < 0.98:
        return chance.choice(PIECES) * chance.choice((10, 100, 1000))
    return b""


def values(count, seed=0):
    chance = random.Random(seed)
    return [hostile(chance)[:60000] for _ in range(count)]
