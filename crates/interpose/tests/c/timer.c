/* A timer of 10 kHz while threads make calls. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

static volatile int ticks, stop;

static void on_tick(int signal)
{
    ticks++;
    struct stat stat_of;
    if (getppid() <= 0 || stat("/", &stat_of))
        _exit(3);
}

static void *work(void *argument)
{
    long calls = 0;
    pid_t self = getpid();
    struct stat stat_of;
    while (!stop) {
        if (getpid() != self || stat("/", &stat_of) || stat_of.st_ino == 0)
            _exit(4);
        double x = calls * 1.5;
        if (getppid() <= 0 || x != calls * 1.5)
            _exit(5);
        calls++;
    }
    return (void *)calls;
}

int main(void)
{
    struct sigaction action = { .sa_handler = on_tick, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = { { 0, 100 }, { 0, 100 } };
    setitimer(ITIMER_REAL, &timer, NULL);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    while (ticks < 5000)
        getppid();
    stop = 1;
    for (int i = 0; i < 3; i++) {
        void *calls;
        pthread_join(threads[i], &calls);
        if (!calls)
            return 6;
    }
    printf("ticked\n");
    return 0;
}
