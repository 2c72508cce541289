"""Fake libraries of the node and of images, and a program that says whose it was given. None of them needs a C library, so that
they run with every loader."""
import functools
import os
import subprocess
import tempfile

PROGRAM = r"""
const char *whose(void);
static long call(long number, long a, long b, long c) {
#if defined(__x86_64__)
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
#else
  register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
#endif
}
#if defined(__x86_64__)
enum { WRITE = 1, EXIT = 60 };
__asm__(".globl _start\n_start: andq $-16, %rsp\n call begin\n");
#else
enum { WRITE = 64, EXIT = 93 };
__asm__(".globl _start\n_start: bl begin\n");
#endif
void begin(void) {
  const char *text = whose();
  long size = 0;
  while (text[size]) ++size;
  call(WRITE, 1, (long)text, size);
  call(WRITE, 1, (long)"\n", 1);
  call(EXIT, 0, 0, 0);
}
"""
GLIBC = "/lib64/ld-linux-x86-64.so.2" if os.uname().machine == "x86_64" else "/lib/ld-linux-aarch64.so.1"
MUSL = f"/lib/ld-musl-{os.uname().machine}.so.1"
LIBRARIES = f"/usr/lib/{os.uname().machine}-linux-gnu"


def compiled(source, *options, files=()):
    """Returns the library that cc builds; `files`: name and bytes of what is beside the source."""
    with tempfile.TemporaryDirectory() as directory:
        for name, data in (("source.c", source.encode()), *files):
            with open(os.path.join(directory, name), "wb") as file:
                file.write(data)
        subprocess.run(["cc", "-Os", "-s", "-fPIC", "-fno-stack-protector", "-fno-builtin", "-fno-tree-loop-distribute-patterns", "-o", "out", "source.c", "-nostdlib", *options], check=True,
                       cwd=directory)
        return open(os.path.join(directory, "out"), "rb").read()


@functools.cache
def library(soname, says, needs=(), symbol="whose"):
    """needs: (soname, bytes) of libraries that it is linked with."""
    names = [f"{i}.so" for i in range(len(needs))]
    calls = "".join(f"const char *from_{i}(void); void *use_{i} = from_{i};" for i in range(len(needs)))
    return compiled(f'{calls} const char *{symbol}(void) {{ return "{says}"; }}', "-shared", f"-Wl,-soname,{soname}", *names,
                    files=list(zip(names, needs)))


@functools.cache
def versioned(soname, symbol, version):
    """A library that defines its one symbol as of this version: GLIBC_9.99."""
    return compiled(f"int {symbol}(void) {{ return 0; }}", "-shared", f"-Wl,-soname,{soname}", "-Wl,--version-script=map",
                    files=[("map", f"{version} {{ {symbol}; }};".encode())])


@functools.cache
def program(loader, soname, *options):
    """It needs the library and prints what that says."""
    return compiled(PROGRAM, "-pie", f"-Wl,--dynamic-linker={loader}", "lib.so", *options, files=[("lib.so", library(soname, ""))])
