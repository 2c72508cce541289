/* The beginning of a program in the place of the C library's: that one ties what is compiled today
 * to glibc 2.34 and newer, and images are older. For `cc -nostartfiles`; the loader has set the C
 * library up before. */
#include <stdlib.h>

int main(int argc, char** argv);

#if defined(__x86_64__)
__asm__(
    ".globl _start\n_start: xorl %ebp, %ebp\n movq %rsp, %rdi\n andq $-16, %rsp\n call start\n");
#else
__asm__(".globl _start\n_start: mov x29, #0\n mov x0, sp\n b start\n");
#endif

/* `stack`: the number of arguments, and these. */
__attribute__((noreturn, used)) void start(long* stack) {
  exit(main((int)*stack, (char**)(stack + 1)));
}
