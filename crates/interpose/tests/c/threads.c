/* Threads that are created and end by thousands, while others make calls. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *brief(void *argument)
{
    sigset_t seen;
    pthread_sigmask(SIG_BLOCK, NULL, &seen);
    long blocked = sigismember(&seen, SIGSYS);
    return (void *)(getppid() > 0 && syscall(SYS_gettid) > 0 ? blocked + 1 : 0);
}

static void *maker(void *argument)
{
    long wrong = 0;
    for (int i = 0; i < 500; i++) {
        pthread_t threads[4];
        for (int t = 0; t < 4; t++)
            if (pthread_create(&threads[t], NULL, brief, NULL))
                return (void *)-1;
        for (int t = 0; t < 4; t++) {
            void *result;
            pthread_join(threads[t], &result);
            wrong += (long)result != (long)argument + 1;
        }
    }
    return (void *)wrong;
}

int main(void)
{
    pthread_t makers[2];
    long wrong = 0;
    /* The second maker and its threads have SIGSYS blocked, as they believe. */
    for (long i = 0; i < 2; i++) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGSYS);
        pthread_sigmask(i ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
        pthread_create(&makers[i], NULL, maker, (void *)i);
    }
    for (int i = 0; i < 2; i++) {
        void *result;
        pthread_join(makers[i], &result);
        wrong += (long)result;
    }
    printf("wrong %ld\n", wrong);
    return wrong != 0;
}
