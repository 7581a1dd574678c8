/* Threads call the same sites at the same time, while each site is found and patched. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#define SITES 1024
#define THREADS 4

extern char sites[];
static pthread_barrier_t barrier;
static long parent;

static void *call_all(void *argument)
{
    long wrong = 0;
    for (int site = 0; site < SITES; site++) {
        long (*call)(void) = (long (*)(void))(sites + 32 * site);
        if (site % 8 == 0)
            pthread_barrier_wait(&barrier);
        for (int i = 0; i < 20; i++)
            wrong += call() != parent;
    }
    return (void *)wrong;
}

int main(void)
{
    pthread_t threads[THREADS];
    long wrong = 0;
    parent = getppid();
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, call_all, NULL);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong += (long)result;
    }
    printf("wrong %ld\n", wrong);
    return wrong != 0;
}
