/* Children of all kinds: fork with threads, vfork, posix_spawn, clone and clone3. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static volatile int stop;

static void expect(int right, const char *what)
{
    if (!right) {
        printf("failed: %s (%s)\n", what, strerror(errno));
        exit(1);
    }
}

static int status_of(pid_t child)
{
    int status = -1;
    while (waitpid(child, &status, __WALL) < 0 && errno == EINTR)
        ;
    return status;
}

static void *busy(void *argument)
{
    while (!stop) {
        getppid();
        char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(memory, 4096);
    }
    return NULL;
}

static void forks(void)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, busy, NULL);
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (child == 0) {
            for (int call = 0; call < 20; call++)
                getppid();
            int copy = dup(1);
            close(copy);
            if (i % 5 == 0) {
                pid_t grandchild = fork();
                if (grandchild == 0)
                    _exit(5);
                expect(WEXITSTATUS(status_of(grandchild)) == 5, "grandchild");
            }
            _exit(i);
        }
        expect(WEXITSTATUS(status_of(child)) == i, "fork");
    }
    stop = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("forked\n");
}

static void vforks(void)
{
    for (volatile int i = 0; i < 20; i++) {
        volatile int shared = 0;
        pid_t child = vfork();
        if (child == 0) {
            shared = 7;
            getppid();
            char *arguments[] = { "sh", "-c", "exit 9", NULL };
            if (i % 2)
                execv("/bin/sh", arguments);
            execv("/nonexistent", arguments);
            _exit(shared + 2);
        }
        expect(WEXITSTATUS(status_of(child)) == 9, "vfork");
        expect(shared == 7, "memory of vfork");
    }
    printf("vforked\n");
}

/* A child of vfork that has a child of vfork itself. */
static void nested(void)
{
    pid_t child = vfork();
    if (child == 0) {
        pid_t grandchild = vfork();
        if (grandchild == 0)
            _exit(3);
        int status;
        waitpid(grandchild, &status, 0);
        _exit(WEXITSTATUS(status) + 1);
    }
    expect(WEXITSTATUS(status_of(child)) == 4, "nested vfork");
    printf("nested\n");
}

static void spawns(void)
{
    for (int i = 0; i < 20; i++) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, 5, "/dev/null", O_RDWR, 0);
        posix_spawn_file_actions_adddup2(&actions, 5, 6);
        posix_spawn_file_actions_addclose(&actions, 5);
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        sigset_t all;
        sigfillset(&all);
        posix_spawnattr_setsigmask(&attributes, &all);
        posix_spawnattr_setsigdefault(&attributes, &all);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        pid_t child;
        char *arguments[] = { "sh", "-c", "test -e /dev/fd/6 && ! test -e /dev/fd/5 && exit 4", NULL };
        expect(posix_spawn(&child, "/bin/sh", &actions, &attributes, arguments, environ) == 0, "posix_spawn");
        expect(WEXITSTATUS(status_of(child)) == 4, "file actions");
        expect(posix_spawn(&child, "/nonexistent", NULL, NULL, arguments, environ) == ENOENT, "posix_spawn of nothing");
    }
    FILE *output = popen("echo popen", "r");
    char line[32] = "";
    expect(fgets(line, sizeof line, output) && !strcmp(line, "popen\n"), "popen");
    expect(pclose(output) == 0 && system("exit 2") == 2 << 8, "system");
    printf("spawned\n");
}

static volatile int value;

static int on_stack(void *argument)
{
    char here;
    value = (&here > (char *)argument && &here < (char *)argument + 65536) ? getppid() : -1;
    for (int i = 0; i < 100; i++)
        syscall(SYS_getuid);
    syscall(SYS_exit, 6);
    return 0;
}

/* Raw clone and clone3, with the call in this program's text. */
static long start(long number, long a, long b, void *argument)
{
    long result;
    register void *keep asm("r12") = argument;
    register void *function asm("r13") = on_stack;
    register long r10 asm("r10") = 0;
    register long r8 asm("r8") = 0;
    asm volatile("syscall\n test %%rax, %%rax\n jnz 1f\n"
        "xor %%ebp, %%ebp\n and $-16, %%rsp\n mov %%r12, %%rdi\n call *%%r13\n hlt\n1:"
        : "=a"(result)
        : "a"(number), "D"(a), "S"(b), "d"(0L), "r"(r10), "r"(r8), "r"(keep), "r"(function)
        : "rcx", "r11", "memory");
    return result;
}

static void clones(void)
{
    char *stack = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 20; i++) {
        value = 0;
        long child = start(SYS_clone, CLONE_VM | SIGCHLD, (long)stack + 65536, stack);
        expect(child > 0 && WEXITSTATUS(status_of(child)) == 6 && value == getpid(), "clone");
        value = 0;
        struct clone_args args = { .flags = CLONE_VM | CLONE_VFORK, .exit_signal = SIGCHLD,
            .stack = (unsigned long)stack, .stack_size = 65536 };
        child = start(SYS_clone3, (long)&args, sizeof args, stack);
        expect(child > 0 && WEXITSTATUS(status_of(child)) == 6 && value == getpid(), "clone3");
        value = 0;
        args.flags = 0;
        child = start(SYS_clone3, (long)&args, sizeof args, stack);
        expect(child > 0 && WEXITSTATUS(status_of(child)) == 6 && value == 0, "clone3 without memory");
        expect(args.stack_size == 65536, "arguments changed");
        args.flags = 1ULL << 32; /* CLONE_CLEAR_SIGHAND */
        child = start(SYS_clone3, (long)&args, sizeof args, stack);
        expect(child > 0 && WEXITSTATUS(status_of(child)) == 6, "clone3 without handlers");
        struct clone_args plain = { .exit_signal = SIGCHLD };
        child = syscall(SYS_clone3, &plain, sizeof plain);
        if (child == 0)
            _exit(8);
        expect(WEXITSTATUS(status_of(child)) == 8, "clone3 as fork");
    }
    expect(syscall(SYS_clone3, 8, 88) == -1 && errno == EFAULT, "bad arguments");
    expect(syscall(SYS_clone3, stack, 8) == -1 && errno == EINVAL, "short arguments");
    int status = clone(on_stack, stack + 65536, CLONE_VM | CLONE_VFORK | SIGCHLD, stack);
    expect(WEXITSTATUS(status_of(status)) == 6, "clone of the library");
    printf("cloned\n");
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    vforks();
    nested();
    clones();
    spawns();
    forks();
    vforks();
    spawns();
    return 0;
}
