/* pthread_cancel of threads that are blocked in calls, with cleanup handlers. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int pipes[2];
static int cleaned;

static void clean(void *argument) { __atomic_add_fetch(&cleaned, 1, __ATOMIC_SEQ_CST); }

static void *blocked(void *argument)
{
    long way = (long)argument;
    char byte;
    pthread_cleanup_push(clean, NULL);
    if (way == 5)
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    pthread_cleanup_push(clean, NULL);
    for (;;) {
        struct timespec time = { 100, 0 };
        sigset_t set;
        sigfillset(&set);
        switch (way) {
        case 0: (void)!read(pipes[0], &byte, 1); break;
        case 1: ppoll(NULL, 0, &time, &set); break;
        case 2: nanosleep(&time, NULL); break;
        case 3: wait(NULL); sleep(100); break;
        case 4: pause(); break;
        default: getppid(); break;
        }
    }
    pthread_cleanup_pop(0);
    pthread_cleanup_pop(0);
    return NULL;
}

int main(int argc, char **argv)
{
    int rounds = 20, canceled = 0;
    if (pipe(pipes))
        return 1;
    for (int round = 0; round < rounds; round++) {
        pthread_t threads[6];
        for (long way = 0; way < 6; way++)
            if (pthread_create(&threads[way], NULL, blocked, (void *)way))
                return 1;
        usleep(round % 4 * 500);
        for (int way = 0; way < 6; way++) {
            void *result;
            pthread_cancel(threads[way]);
            pthread_join(threads[way], &result);
            canceled += result == PTHREAD_CANCELED;
        }
    }
    /* The thread with asynchronous cancellation may end before its second cleanup handler. */
    printf("canceled %d cleaned %d\n", canceled, cleaned >= 11 * rounds);
    return canceled == 6 * rounds && cleaned >= 11 * rounds ? 0 : 1;
}
