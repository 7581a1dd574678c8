/* Children of all kinds are made while a timer ticks at 10 kHz. No signal stays blocked. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static volatile int ticks;
static void on_tick(int s) { ticks++; if (getppid() <= 0) _exit(9); }
static void *brief(void *a) { return (void *)(long)(getppid() > 0); }
int main(void) {
    struct sigaction action = { .sa_handler = on_tick, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = { { 0, 100 }, { 0, 100 } };
    setitimer(ITIMER_REAL, &timer, NULL);
    int wrong = 0;
    for (volatile int i = 0; i < 300; i++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) { sigset_t s; sigprocmask(SIG_BLOCK, NULL, &s); _exit(getppid() > 0 && !sigismember(&s, SIGALRM) ? 3 : 4); }
        waitpid(child, &status, 0); wrong += WEXITSTATUS(status) != 3;
        child = vfork();
        if (child == 0) { getppid(); _exit(5); }
        waitpid(child, &status, 0); wrong += WEXITSTATUS(status) != 5;
        pthread_t t; void *r; pthread_create(&t, NULL, brief, NULL); pthread_join(t, &r); wrong += r != (void *)1;
        if (i % 10 == 0) { char *a[] = { "true", NULL }; posix_spawn(&child, "/bin/true", NULL, NULL, a, environ); waitpid(child, &status, 0); wrong += status != 0; }
        sigset_t s; sigprocmask(SIG_BLOCK, NULL, &s); wrong += sigismember(&s, SIGALRM);
    }
    printf("wrong %d, ticked %d\n", wrong, ticks > 10);
    return wrong != 0;
}
