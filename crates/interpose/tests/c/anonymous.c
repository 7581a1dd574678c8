/* Calls from memory that no file backs (as a JIT compiler makes), which must stay as it is; from
 * a private file mapping; and calls in sequences that cannot be patched. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned char getppid_code[] = { 0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0xc3 };

static int protection_of(void *address)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], flags[8];
    unsigned long start, end;
    int found = 0;
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s", &start, &end, flags) == 3 && (unsigned long)address >= start
            && (unsigned long)address < end)
            found = (flags[0] == 'r') + 2 * (flags[1] == 'w') + 4 * (flags[2] == 'x');
    fclose(maps);
    return found;
}

static void check(const char *name, unsigned char *code, int calls)
{
    long right = 0;
    for (int i = 0; i < calls; i++)
        right += ((long (*)(void))code)() == getppid();
    printf("%s: right %ld same %d protection %d\n", name, right,
        !memcmp(code, getppid_code, sizeof getppid_code), protection_of(code));
}

int main(void)
{
    unsigned char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, getppid_code, sizeof getppid_code);
    mprotect(page, 4096, PROT_READ | PROT_EXEC);
    check("anonymous", page, 100);
    mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    memcpy(page + 4000, getppid_code, sizeof getppid_code);
    check("writable", page + 4000, 100);
    int file = memfd_create("code", 0);
    if (write(file, getppid_code, sizeof getppid_code) < 0)
        return 1;
    unsigned char *mapped = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    check("memfd", mapped, 100);
    mapped = mmap(page, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, 0);
    check("over", mapped, 100);
    munmap(page, 8192);

    /* The number is in a register, and the `syscall` is reached by a jump. */
    long right = 0;
    for (long number = SYS_getppid, i = 0; i < 100; i++) {
        long result = number;
        asm volatile("jmp 1f\n mov $110, %%eax\n 1: syscall" : "+a"(result) :: "rcx", "r11", "memory");
        right += result == getppid();
        result = 0;
        asm volatile("xor %%eax, %%eax\n add $110, %%al\n syscall" : "+a"(result) :: "rcx", "r11", "memory");
        right += result == getppid();
        unsigned long flags;
        asm volatile("mov $110, %%eax\n stc\n syscall\n pushf\n pop %1" : "=a"(result), "=r"(flags) :: "rcx", "r11", "memory");
        right += result == getppid() && (flags & 1);
        asm volatile("mov $-1, %%rax\n syscall" : "=a"(result) :: "rcx", "r11", "memory");
        right += result == -38;
    }
    printf("sequences: right %ld\n", right);

    /* int $0x80: 20 is getpid. Not every kernel has it. */
    long result = 20;
    if (access("/proc/sys/abi/vsyscall32", F_OK) == 0) {
        asm volatile("int $0x80" : "+a"(result) :: "memory", "r8", "r9", "r10", "r11");
        printf("int 0x80: %d\n", result == getpid());
    }
    return 0;
}
