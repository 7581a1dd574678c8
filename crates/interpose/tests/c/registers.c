/* A system call changes rax, rcx and r11, and nothing else: registers, red zone, vectors, flags. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE (256 + 32 * 64)

void call_sse(unsigned char *before, unsigned char *after);
void call_avx(unsigned char *before, unsigned char *after);
void call_avx512(unsigned char *before, unsigned char *after);
/* prctl, which the library answers without the kernel if its first argument is 59. */
void served_sse(unsigned char *before, unsigned char *after);
void served_avx(unsigned char *before, unsigned char *after);
void served_avx512(unsigned char *before, unsigned char *after);

static void check(const char *name, void (*call)(unsigned char *, unsigned char *), int width, int count)
{
    static unsigned char before[SIZE], after[SIZE];
    for (int round = 0; round < 1000; round++) {
        for (int i = 0; i < SIZE; i++)
            before[i] = rand();
        unsigned mxcsr = 0x1f80 | (round % 4) << 13;
        unsigned short control = 0x37f & ~((round % 2) << 9);
        unsigned long first = 59;
        memcpy(before + 88, &first, 8);
        memset(before + 96, 0, 32);
        memcpy(before + 104, &mxcsr, 4);
        memcpy(before + 112, &control, 2);
        memset(after, 0, SIZE);
        call(before, after);
        unsigned long flags;
        memcpy(&flags, after + 96, 8);
        int wrong = memcmp(before, after, 96) ? 1 : memcmp(before + 104, after + 104, 4) ? 2
            : memcmp(before + 112, after + 112, 2) ? 3 : memcmp(before + 128, after + 128, 128) ? 4
            : (flags & 0xcd5) != 0x891 ? 5 : 0;
        for (int i = 0; i < count; i++)
            if (memcmp(before + 256 + 64 * i, after + 256 + 64 * i, width))
                wrong = 100 + i;
        if (wrong) {
            printf("%s: round %d: wrong %d flags %lx\n", name, round, wrong, flags);
            exit(1);
        }
    }
    printf("%s: kept\n", name);
}

int main(void)
{
    check("sse", call_sse, 16, 16);
    check("sse served", served_sse, 16, 16);
    if (__builtin_cpu_supports("avx")) {
        check("avx", call_avx, 32, 16);
        check("avx served", served_avx, 32, 16);
    }
    if (__builtin_cpu_supports("avx512f")) {
        check("avx512", call_avx512, 64, 32);
        check("avx512 served", served_avx512, 64, 32);
    }
    return 0;
}
