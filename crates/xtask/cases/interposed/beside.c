/* An interposed program changes names and appends to files, while programs that the kernel serves,
 * by KERNEL_FD, have their working directories beside these names, and read and append to files.
 *   beside prepare DIR
 *   beside compare DIR      prints what is wrong */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WARM 10000
#define NAMES 32
#define READERS 2
#define NAMES_MS 1500
#define APPENDED_MS 800
#define ROUNDS 50

static struct shared {
    volatile long ready, stop, wrong, records;
} *shared;

static const char *root;
static int kernel_fd;

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        fflush(stdout);
        _exit(2);
    }
}

static void wrong(const char *what, long where)
{
    if (__sync_fetch_and_add(&shared->wrong, 1) < 3) {
        printf("%s: %ld\n", what, where);
        fflush(stdout);
    }
}

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static const char *path(const char *name, long number)
{
    static char made[PATH_MAX];
    snprintf(made, sizeof made, "%s/%s%ld", root, name, number);
    return made;
}

static void begin(int children, void (*child)(int))
{
    shared->ready = shared->stop = 0;
    for (int number = 0; number < children; number++) {
        pid_t pid = fork();
        must(pid >= 0, "fork");
        if (pid == 0) {
            child(number);
            _exit(0);
        }
    }
}

static void end(int children)
{
    shared->stop = 1;
    while (children-- > 0)
        must(wait(NULL) > 0, "wait");
}

/* The first child keeps its working directory, the second one looks at names that change. */
static void look(int number)
{
    char here[PATH_MAX], name[32];
    struct stat found;
    if (number == 0) {
        int work = openat(kernel_fd, "work", O_RDONLY | O_DIRECTORY);
        must(work >= 0 && fchdir(work) == 0, "enter a directory");
    }
    for (long round = 0; !shared->stop; round++) {
        if (number == 0) {
            if (getcwd(here, sizeof here) == NULL)
                wrong("no working directory, errno", errno);
            continue;
        }
        snprintf(name, sizeof name, "x%ld", round % NAMES);
        if (fstatat(kernel_fd, name, &found, 0) != 0 && errno != ENOENT)
            wrong("a name that changes, errno", errno);
        if (fstatat(kernel_fd, "work", &found, 0) != 0)
            wrong("a name that does not change, errno", errno);
    }
}

static void names_changed(void)
{
    long until = now_ms() + NAMES_MS;
    begin(2, look);
    for (long round = 0; now_ms() < until; round++) {
        struct stat found;
        char to[PATH_MAX];
        snprintf(to, sizeof to, "%s/y%ld", root, round % NAMES);
        const char *from = path("x", round % NAMES);
        int file = open(from, O_CREAT | O_EXCL | O_WRONLY, 0600);
        must(file >= 0 && close(file) == 0, "create");
        must(rename(from, to) == 0 && stat(to, &found) == 0 && unlink(to) == 0, "change a name");
    }
    end(2);
}

static const char *log_name;

/* Reads the log to its end, and what is appended meanwhile. */
static void follow(int number)
{
    unsigned long seed = number + 1, state = 0;
    char part[4096];
    long at = 0;
    int file = openat(kernel_fd, log_name, O_RDONLY), is_last = 0;
    must(file >= 0, "open the log");
    __sync_fetch_and_add(&shared->ready, 1);
    while (!is_last || at < shared->records * 8) {
        is_last = shared->stop;
        seed = seed * 6364136223846793005UL + 1442695040888963407UL;
        long count = read(file, part, 1000 + (seed >> 33) % 3000);
        must(count >= 0, "read the log");
        for (long i = 0; i < count; i++, at++) {
            state = at % 8 == 0 ? 0 : state;
            state |= (unsigned long)(unsigned char)part[i] << at % 8 * 8;
            if (at % 8 == 7 && state != (unsigned long)at / 8 + 1) {
                wrong("a record that was not written", at / 8);
                return;
            }
        }
    }
}

static int open_log(void)
{
    char log[PATH_MAX];
    snprintf(log, sizeof log, "%s/%s", root, log_name);
    int file = open(log, O_CREAT | O_WRONLY | O_APPEND, 0644);
    must(file >= 0, "open the log to append");
    return file;
}

enum order { READERS_FIRST, WRITER_FIRST, EACH_RECORD };

static void appended(const char *name, enum order order)
{
    log_name = name;
    shared->records = 0;
    int file = order == WRITER_FIRST ? open_log() : -1;
    if (order != WRITER_FIRST)
        must(close(open_log()) == 0, "make the log");
    begin(READERS, follow);
    while (shared->ready < READERS)
        usleep(1000);
    if (order == READERS_FIRST)
        file = open_log();
    long until = now_ms() + APPENDED_MS;
    for (unsigned long record = 1; now_ms() < until; record++) {
        if (order == EACH_RECORD)
            file = open_log();
        must(write(file, &record, sizeof record) == sizeof record, "append");
        if (order == EACH_RECORD)
            close(file);
        shared->records = record;
    }
    end(READERS);
}

/* A file that the kernel has open to append is emptied by its name: it knows the new end. */
static void emptied(void)
{
    const char *name = path("emptied", 0) + strlen(root) + 1;
    int file = openat(kernel_fd, name, O_CREAT | O_WRONLY | O_APPEND, 0644);
    must(file >= 0, "open a file to append");
    for (long round = 0; round < ROUNDS; round++) {
        must(write(file, "longer", 6) == 6, "append");
        int other = open(path("emptied", 0), O_WRONLY | O_TRUNC);
        must(other >= 0 && close(other) == 0, "empty");
        must(write(file, "end", 3) == 3, "append again");
        long at = lseek(file, 0, SEEK_CUR);
        if (at != 3)
            wrong("an end of a file that was emptied", at);
        must(ftruncate(file, 0) == 0, "empty it through the kernel");
    }
    close(file);
}

int main(int count, char **words)
{
    must(count >= 3, "find the words");
    root = words[2];
    if (strcmp(words[1], "prepare") == 0) {
        char work[PATH_MAX];
        snprintf(work, sizeof work, "%s/work", root);
        must(mkdir(work, 0755) == 0 && chmod(root, 0777) == 0, "prepare");
        return 0;
    }
    kernel_fd = atoi(getenv("KERNEL_FD"));
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(shared != MAP_FAILED, "map memory");
    struct stat found;
    for (int i = 0; i < WARM; i++)
        stat(path("work", 0), &found);
    names_changed();
    appended("log1", READERS_FIRST);
    appended("log2", WRITER_FIRST);
    appended("log3", EACH_RECORD);
    emptied();
    if (shared->wrong > 0)
        printf("%ld wrong\n", shared->wrong);
    return shared->wrong > 0;
}
