/* What a call costs: through the C library, and from anonymous memory, which is never patched.
 * With "start PROGRAM COUNT": what starting a program costs. Not a test; docs/testing.md names it. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static int start(char **argv, int count)
{
    double best = 1e18, from = now();
    for (int i = 0; i < count; i++) {
        double at = now();
        pid_t child;
        char *args[] = { argv[0], NULL };
        if (posix_spawn(&child, argv[0], NULL, NULL, args, environ))
            return 1;
        waitpid(child, NULL, 0);
        double took = now() - at;
        best = took < best ? took : best;
    }
    printf("start mean %.1f us best %.1f us\n", (now() - from) / count / 1e3, best / 1e3);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 2)
        return start(argv + 2, atoi(argv[1]));
    unsigned char code[] = { 0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0xc3 };
    unsigned char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    mprotect(page, 4096, PROT_READ | PROT_EXEC);
    double best[2] = { 1e18, 1e18 };
    for (int round = 0; round < 20; round++) {
        double at = now();
        for (int i = 0; i < 100000; i++)
            getppid();
        double took = (now() - at) / 100000;
        best[0] = took < best[0] ? took : best[0];
        at = now();
        for (int i = 0; i < 10000; i++)
            ((long (*)(void))page)();
        took = (now() - at) / 10000;
        best[1] = took < best[1] ? took : best[1];
    }
    printf("library %.1f ns anonymous %.1f ns\n", best[0], best[1]);
    return 0;
}
