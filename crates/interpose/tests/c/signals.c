/* Signals: interrupted and restarted calls, jumps out of handlers, the alternate stack, and the
 * program's own view of SIGSYS. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static int pipes[2];
static volatile int handled, wrote;
static sigjmp_buf back;

static void fail(const char *what)
{
    printf("failed: %s (%s)\n", what, strerror(errno));
    exit(1);
}

static void on_alarm(int signal)
{
    int saved = errno;
    handled++;
    getppid();
    if (wrote)
        if (write(pipes[1], "x", 1) != 1)
            fail("write in a handler");
    errno = saved;
}

static void on_alarm_jump(int signal) { siglongjmp(back, 1); }

static void alarm_in(int ms)
{
    struct itimerval timer = { .it_value = { 0, ms * 1000 } };
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void handle(int signal, void (*handler)(int), int flags)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    sigfillset(&action.sa_mask);
    if (sigaction(signal, &action, NULL))
        fail("sigaction");
}

static void interrupted(void)
{
    char byte;
    for (int i = 0; i < 5; i++) {
        handle(SIGALRM, on_alarm, 0);
        wrote = 0;
        alarm_in(5);
        if (read(pipes[0], &byte, 1) != -1 || errno != EINTR)
            fail("read is not interrupted");
        handle(SIGALRM, on_alarm, SA_RESTART);
        wrote = 1;
        alarm_in(5);
        if (read(pipes[0], &byte, 1) != 1)
            fail("read is not restarted");
        wrote = 0;
        alarm_in(5);
        struct pollfd poll_for = { pipes[0], POLLIN, 0 };
        if (poll(&poll_for, 1, 1000) != -1 || errno != EINTR)
            fail("poll is not interrupted");
        alarm_in(5);
        struct timespec left, time = { 1, 0 };
        if (nanosleep(&time, &left) != -1 || errno != EINTR || left.tv_nsec == 0)
            fail("nanosleep is not interrupted");
    }
    printf("interrupted: handled %d\n", handled);
}

static void jumped(void)
{
    handle(SIGALRM, on_alarm_jump, 0);
    volatile int jumps = 0;
    for (volatile int i = 0; i < 200; i++) {
        if (sigsetjmp(back, 1) == 0) {
            char byte;
            struct itimerval timer = { .it_value = { 0, 200 } };
            setitimer(ITIMER_REAL, &timer, NULL);
            if (i % 2)
                (void)!read(pipes[0], &byte, 1);
            else
                for (;;)
                    getppid();
        }
        jumps++;
    }
    printf("jumped %d\n", jumps);
}

static volatile int on_other_stack;
static char *stack;

static void on_stack(int signal)
{
    char here;
    on_other_stack += &here >= stack && &here < stack + 65536;
    getppid();
}

static void alternate(void)
{
    stack = malloc(65536);
    stack_t other = { .ss_sp = stack, .ss_size = 65536 };
    sigaltstack(&other, NULL);
    handle(SIGUSR1, on_stack, SA_ONSTACK);
    for (int i = 0; i < 10; i++)
        raise(SIGUSR1);
    stack_t seen;
    sigaltstack(NULL, &seen);
    other.ss_flags = SS_DISABLE;
    sigaltstack(&other, NULL);
    printf("alternate stack %d, same %d\n", on_other_stack, seen.ss_sp == stack);
}

/* A program whose handlers do not run on the alternate stack may use its memory otherwise. No
 * handler of this program was set with SA_ONSTACK yet, and the call is at a site of its own. */
static void alternate_is_data(void)
{
    static unsigned char data[65536];
    stack_t other = { .ss_sp = data, .ss_size = sizeof data };
    sigaltstack(&other, NULL);
    memset(data, 0xaa, sizeof data);
    long user;
    asm volatile("syscall" : "=a"(user) : "a"(SYS_getuid) : "rcx", "r11", "memory");
    int changed = 0;
    for (size_t at = 0; at < sizeof data; at++)
        changed += data[at] != 0xaa;
    other.ss_flags = SS_DISABLE;
    sigaltstack(&other, NULL);
    printf("user %ld, %d bytes of the alternate stack changed\n", user, changed);
}

static volatile int sigsys, sigsys_code;

static void on_sigsys(int signal, siginfo_t *info, void *context)
{
    sigsys++;
    sigsys_code = info->si_code;
    getppid();
}

static void own_sigsys(void)
{
    struct sigaction old, action = { .sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO };
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGSYS, NULL, &old);
    printf("default %d\n", old.sa_handler == SIG_DFL);
    sigaction(SIGSYS, &action, NULL);
    sigaction(SIGSYS, NULL, &old);
    printf("own %d mask %d\n", old.sa_sigaction == on_sigsys, sigismember(&old.sa_mask, SIGUSR2));
    raise(SIGSYS);
    kill(getpid(), SIGSYS);
    printf("delivered %d code %d\n", sigsys, sigsys_code);

    sigset_t all, before, seen;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    sigprocmask(SIG_BLOCK, NULL, &seen);
    printf("blocked before %d now %d\n", sigismember(&before, SIGSYS), sigismember(&seen, SIGSYS));
    for (int i = 0; i < 100; i++)
        getppid();
    raise(SIGSYS);
    printf("while blocked %d\n", sigsys);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGSYS);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    printf("unblocked %d\n", sigsys);
    sigprocmask(SIG_SETMASK, &before, NULL);
    signal(SIGSYS, SIG_IGN);
    raise(SIGSYS);
    printf("ignored %d\n", sigsys);

    struct sigaction usr = { .sa_handler = on_alarm };
    sigfillset(&usr.sa_mask);
    sigaction(SIGUSR2, &usr, NULL);
    sigaction(SIGUSR2, NULL, &old);
    printf("mask of another has SIGSYS %d flags %x\n", sigismember(&old.sa_mask, SIGSYS), old.sa_flags);
    raise(SIGUSR2);
}

static void on_context(int signal, siginfo_t *info, void *context)
{
    sigfillset(&((ucontext_t *)context)->uc_sigmask);
}

extern char **environ;

/* A child that shares the memory resets its handlers. The parent keeps its own. */
static void spawned(void)
{
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    struct sigaction old, action = { .sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO };
    sigfillset(&action.sa_mask);
    sigaction(SIGSYS, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    char *arguments[] = { "true", NULL };
    pid_t child;
    int status = -1;
    int result = posix_spawn(&child, "/bin/true", NULL, &attributes, arguments, environ);
    waitpid(child, &status, 0);
    sigaction(SIGSYS, NULL, &old);
    printf("spawned %d %d, own %d", result, status, old.sa_sigaction == on_sigsys);
    sigaction(SIGUSR2, NULL, &old);
    printf(" other %d mask %d\n", old.sa_sigaction == on_sigsys, sigismember(&old.sa_mask, SIGSYS));
    sigaction(SIGUSR2, &old, NULL);
    int before = sigsys;
    raise(SIGUSR2);
    raise(SIGSYS);
    printf("handled %d\n", sigsys - before);
}

/* A handler that leaves everything blocked, and calls that replace the mask. */
static void masks(void)
{
    struct sigaction action = { .sa_sigaction = on_context, .sa_flags = SA_SIGINFO };
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    sigset_t seen, all, none;
    sigfillset(&all);
    sigemptyset(&none);
    sigprocmask(SIG_BLOCK, NULL, &seen);
    printf("left blocked %d\n", sigismember(&seen, SIGUSR2));
    syscall(SYS_getppid);
    sigprocmask(SIG_SETMASK, &none, NULL);

    struct timespec time = { 0, 1000000 };
    struct pollfd poll_for = { pipes[0], POLLIN, 0 };
    printf("ppoll %d", ppoll(&poll_for, 1, &time, &all));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pipes[0], &set);
    printf(" pselect %d", pselect(pipes[0] + 1, &set, NULL, NULL, &time, &all));
    int epoll = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN };
    printf(" epoll %d", epoll_pwait(epoll, &event, 1, 1, &all));
    close(epoll);
    handle(SIGALRM, on_alarm, 0);
    sigdelset(&all, SIGALRM);
    alarm_in(5);
    printf(" suspend %d\n", sigsuspend(&all));
    errno = 0;
    long bad = syscall(SYS_rt_sigprocmask, SIG_BLOCK, 8, NULL, 8);
    printf("bad mask %ld %d", bad, errno);
    bad = syscall(SYS_rt_sigaction, SIGUSR1, 8, NULL, 8);
    printf(" bad action %ld %d", bad, errno);
    bad = syscall(SYS_rt_sigaction, SIGSYS, NULL, 8, 8);
    printf(" bad old action %ld %d", bad, errno);
    bad = syscall(SYS_ppoll, 0, 0, &time, 8, 8);
    printf(" bad ppoll %ld %d\n", bad, errno);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (pipe(pipes))
        fail("pipe");
    alternate_is_data();
    interrupted();
    jumped();
    alternate();
    own_sigsys();
    spawned();
    masks();
    return 0;
}
