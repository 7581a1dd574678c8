/* Programs for developers' tools. Called as "developers_tools WHAT DIRECTORY":
 *
 *   files      makes, reads and lists files until a process in a mount has its calls answered, and
 *              prints what it has seen
 *   leak       the same, and loses the buffer of the last read
 *   overflow   the same, and reads behind a buffer
 *   shift      the same, and shifts by too much
 *   race       the same in two threads, which both write to one variable
 *   collect    the same, and then reads all variables of all libraries, as a garbage collector does
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES = 8, ROUNDS = 500, BYTES = 3000 };

static const char *directory;

static void must(int right, const char *what)
{
    if (!right) {
        perror(what);
        _exit(3);
    }
}

static const char *path_of(char *path, const char *worker, int file)
{
    snprintf(path, 512, "%s/%s-%d", directory, worker, file);
    return path;
}

/* A debugger stops here. */
__attribute__((noinline)) void files_done(long sum)
{
    printf("sum %ld\n", sum);
    fflush(stdout);
}

/* The last buffer that was read into. */
static char *use_files(const char *worker, long *sum)
{
    char path[512], *buffer = malloc(BYTES);
    must(buffer != 0, "malloc");
    for (int file = 0; file < FILES; file++) {
        int made = open(path_of(path, worker, file), O_CREAT | O_WRONLY | O_TRUNC, 0644);
        memset(buffer, 'a' + file, BYTES);
        must(made >= 0 && write(made, buffer, BYTES) == BYTES && close(made) == 0, "make");
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int file = 0; file < FILES; file++) {
            struct stat stat_of;
            path_of(path, worker, file);
            must(stat(path, &stat_of) == 0 && stat_of.st_size == BYTES, "stat");
            int opened = open(path, O_RDONLY);
            memset(buffer, 0, BYTES);
            must(opened >= 0 && read(opened, buffer, BYTES) == BYTES, "read");
            must(close(opened) == 0, "close");
            *sum += buffer[0] + buffer[BYTES - 1];
        }
    }
    for (int file = 0; file < FILES; file++)
        must(unlink(path_of(path, worker, file)) == 0, "unlink");
    return buffer;
}

static int raced;

static void *worker(void *name)
{
    long sum = 0;
    free(use_files(name, &sum));
    raced++;
    return (void *)sum;
}

static void race(void)
{
    pthread_t threads[2];
    void *sums[2];
    must(pthread_create(&threads[0], 0, worker, "one") == 0, "thread");
    must(pthread_create(&threads[1], 0, worker, "two") == 0, "thread");
    must(pthread_join(threads[0], &sums[0]) == 0 && pthread_join(threads[1], &sums[1]) == 0, "join");
    files_done((long)sums[0] + (long)sums[1]);
}

static volatile long seen;

static int read_variables(struct dl_phdr_info *object, size_t size, void *count)
{
    (void)size;
    for (int at = 0; at < object->dlpi_phnum; at++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[at];
        if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_W))
            continue;
        const char *start = (const char *)object->dlpi_addr + segment->p_vaddr;
        for (size_t byte = 0; byte + 8 <= segment->p_memsz; byte += 512)
            seen += *(const volatile char *)(start + byte);
        ++*(int *)count;
    }
    return 0;
}

/* What the stack has left of a lost buffer does not keep it. */
__attribute__((noinline)) static void leave_nothing(void)
{
    char unused[65536];
    memset(unused, 0, sizeof unused);
    __asm__ volatile("" : : "r"(unused) : "memory");
}

/* The registers of the caller do not have the buffer. */
__attribute__((noinline)) static void run(const char *what)
{
    long sum = 0;
    if (strcmp(what, "race") == 0)
        return race();
    char *buffer = use_files("alone", &sum);
    files_done(sum);
    if (strcmp(what, "leak") == 0)
        buffer = 0;
    if (strcmp(what, "overflow") == 0)
        seen += ((volatile char *)buffer)[BYTES];
    if (strcmp(what, "shift") == 0)
        printf("shifted %d\n", 1 << (int)(32 + sum % 2));
    if (strcmp(what, "collect") == 0) {
        int count = 0;
        dl_iterate_phdr(read_variables, &count);
        printf("collected %d\n", count > 1);
    }
    free(buffer);
}

int main(int argc, char **argv)
{
    must(argc > 2, "arguments");
    directory = argv[2];
    run(argv[1]);
    leave_nothing();
    return 0;
}
