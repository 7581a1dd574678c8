/* Threads call the same sites at the same time, while each site is found and patched, and the
 * process forks meanwhile. Afterwards no text is writable, in the children either. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
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

/* Mappings that can be written and executed. */
static int writable(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int found = 0;
    while (fgets(line, sizeof line, maps))
        found += strstr(line, " rwx") != NULL;
    fclose(maps);
    return found;
}

/* Calls sites itself, which finds the lock of its parent's other threads. */
static int child(int site)
{
    int wrong = writable();
    for (int i = 0; i < 5; i++)
        wrong += ((long (*)(void))(sites + 32 * site))() != getppid();
    return wrong + writable();
}

int main(void)
{
    pthread_t threads[THREADS];
    long wrong = 0;
    parent = getppid();
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, call_all, NULL);
    for (int i = 0; i < 40; i++) {
        pid_t process = fork();
        if (process == 0)
            _exit(child(SITES - 1 - i));
        int status;
        waitpid(process, &status, 0);
        wrong += status != 0;
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong += (long)result;
    }
    printf("wrong %ld, writable %d\n", wrong, writable());
    return wrong != 0;
}
