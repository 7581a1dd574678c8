/* seccomp: strict mode, filters that kill and filters that trap, filters of all threads, and dispatch of the program. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define ALLOW(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static int filter(struct sock_filter *code, int length)
{
    struct sock_fprog program = { length, code };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

static void strict(void)
{
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    if (write(1, "strict\n", 7) != 7)
        _exit(1);
    syscall(SYS_exit, 0);
}

static void killing(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_write), ALLOW(SYS_exit_group), ALLOW(SYS_getppid), ALLOW(SYS_clone), ALLOW(SYS_wait4),
        ALLOW(SYS_set_robust_list), ALLOW(SYS_rt_sigprocmask), ALLOW(SYS_gettid),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    if (filter(code, sizeof code / sizeof *code))
        _exit(1);
    for (int i = 0; i < 100; i++)
        getppid();
    pid_t child = fork();
    if (child == 0) {
        getppid();
        _exit(3);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (write(1, "killing\n", 8) != 8 || WEXITSTATUS(status) != 3)
        _exit(2);
    _exit(0);
}

static void on_trap(int signal, siginfo_t *info, void *context)
{
    ucontext_t *at = context;
    if (info->si_code == 1 /* SYS_SECCOMP */ && info->si_syscall == SYS_getuid)
        at->uc_mcontext.gregs[REG_RAX] = 4711;
}

static void trapping(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getuid, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getgid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 77),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
    sigaction(SIGSYS, &action, NULL);
    if (filter(code, sizeof code / sizeof *code))
        _exit(1);
    long gid = syscall(SYS_getgid);
    int error = errno;
    printf("trapped %d, gid %ld %d\n", getuid(), gid, error);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/echo", "echo", "executed", NULL);
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    _exit(status);
}

static void killed(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getuid, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    filter(code, sizeof code / sizeof *code);
    getuid();
    _exit(0);
}

static void refused(void)
{
    errno = 0;
    int result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL);
    printf("no filter %d %d\n", result, errno);
    for (int i = 0; i < 10; i++)
        getppid();
    fflush(stdout);
    _exit(0);
}

static volatile int is_filtered;

/* A call that is made nowhere before. */
__attribute__((noinline)) static long call_here(void)
{
    long result;
    __asm__ volatile("mov $110, %%eax\n\tsyscall" : "=a"(result) : : "rcx", "r11", "memory");
    return result;
}

static void *call_on(void *unused)
{
    long sum = 0;
    while (!is_filtered)
        sched_yield();
    for (int i = 0; i < 20; i++)
        sum += call_here() > 0;
    return (void *)(sum == 20 ? 0L : 1L);
}

/* The filter of one thread is that of all, and forbids to change memory. */
static void of_all_threads(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof code / sizeof *code, code };
    pthread_t thread;
    void *wrong = NULL;
    if (pthread_create(&thread, NULL, call_on, NULL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
        _exit(1);
    is_filtered = 1;
    pthread_join(thread, &wrong);
    _exit(wrong ? 2 : 0);
}

int main(void)
{
    void (*parts[])(void) = { strict, killing, trapping, killed, refused, of_all_threads };
    for (int i = 0; i < 6; i++) {
        pid_t child = fork();
        if (child == 0)
            parts[i]();
        int status;
        waitpid(child, &status, 0);
        printf("part %d: exit %d signal %d\n", i, WEXITSTATUS(status), WTERMSIG(status));
        fflush(stdout);
    }
    return 0;
}
