/* What programs write without waiting for the fleet is there for every other program that looks
 * after their call has returned: also if the writer is killed at once, and through the kernel.
 *   posted prepare DIR       makes a directory
 *   posted compare DIR SEED  counts the requests of a program that appends, and kills writers
 * A writer tells in shared memory how many of its calls have returned. WARREN is the program that
 * asks for the count of requests. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "counted.h"

#define ROUNDS 60
#define RECORD 16
#define RECORDS_MAX 4000
/* A program that has made so many calls by path is known to the fleet. */
#define WARM 20000
/* Appends of one open file, and the most requests that they, the open, the close and the program
 * that counts may take. */
#define APPENDS 2000
#define REQUESTS_MAX (APPENDS / 8)

static const char *root;
static volatile long *written;
static char data[RECORDS_MAX * RECORD + RECORD];

static char *path_of(long file)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/posted/f%ld", root, file);
    return path;
}

/* A record is a number of 15 digits and a newline. */
static void record_of(char *record, long number)
{
    for (int at = RECORD - 2; at >= 0; at--, number /= 10)
        record[at] = '0' + number % 10;
    record[RECORD - 1] = '\n';
}

static void warm(void)
{
    struct stat found;
    for (int at = 0; at < WARM; at++)
        must(stat(at % 2 ? root : path_of(-1), &found) == 0 || errno == ENOENT, "stat");
}

static void append(int fd, long from, long count)
{
    char record[RECORD];
    for (long number = from; number < from + count; number++) {
        record_of(record, number);
        must(write(fd, record, RECORD) == RECORD, "append");
        *written = number + 1;
    }
}

static void count_requests(void)
{
    long before = requests();
    int fd = open(path_of(0), O_CREAT | O_WRONLY | O_APPEND, 0644);
    must(fd >= 0, "make a file");
    append(fd, 0, APPENDS);
    must(close(fd) == 0, "close");
    long made = requests() - before;
    if (made > REQUESTS_MAX) {
        printf("%ld requests for %d appends, at most %d are needed\n", made, APPENDS, REQUESTS_MAX);
        exit(1);
    }
}

/* The file has at least so many records, at most one more that was under way, and all are right. */
static long check(long file, long least, long most)
{
    char record[RECORD];
    int fd = open(path_of(file), O_RDONLY);
    must(fd >= 0, "open a file that was written");
    long length = read(fd, data, sizeof data), count = length / RECORD;
    must(length >= 0 && close(fd) == 0, "read a file that was written");
    for (long number = 0; number < count; number++) {
        record_of(record, number);
        if (memcmp(record, data + number * RECORD, RECORD) != 0) {
            printf("record %ld of file %ld is wrong\n", number, file);
            exit(1);
        }
    }
    if (length % RECORD != 0 || count < least || count > most) {
        printf("file %ld has %ld bytes, of %ld to %ld records\n", file, length, least, most);
        exit(1);
    }
    return count;
}

/* The size as the kernel shows it to a program without the library. */
static long size_by_kernel(long file)
{
    char command[1100];
    long size = -1;
    snprintf(command, sizeof command, "LD_PRELOAD= stat -c %%s '%s'", path_of(file));
    FILE *shown = popen(command, "r");
    must(shown != 0 && fscanf(shown, "%ld", &size) == 1 && pclose(shown) == 0, "stat by the kernel");
    return size;
}

static void write_until_killed(long file, long count)
{
    warm();
    int fd = open(path_of(file), O_CREAT | O_WRONLY | O_APPEND, 0644);
    must(fd >= 0, "make a file");
    append(fd, 0, count);
    /* It ends without a close, or is killed meanwhile. */
    _exit(0);
}

static void one_round(long file)
{
    long count = 1 + rand() % RECORDS_MAX, looks_at = rand() % (2 * count);
    int status;
    int is_killed = rand() % 3 > 0;
    *written = 0;
    pid_t writer = fork();
    must(writer >= 0, "fork");
    if (writer == 0)
        write_until_killed(file, count);
    if (looks_at < count && rand() % 3 == 0) {
        while (*written <= looks_at && waitpid(writer, 0, WNOHANG | WNOWAIT) == 0)
            sched_yield();
        long least = *written, size = least > 0 ? size_by_kernel(file) : 0;
        if (size < least * RECORD) {
            printf("the kernel shows %ld bytes of %ld records\n", size, least);
            exit(1);
        }
    }
    if (is_killed) {
        long killed_at = rand() % count;
        while (*written < killed_at && waitpid(writer, 0, WNOHANG | WNOWAIT) == 0)
            sched_yield();
        kill(writer, SIGKILL);
    }
    must(waitpid(writer, &status, 0) == writer, "wait for a writer");
    long least = *written;
    if (least == 0)
        return;
    long found = check(file, least, is_killed ? least + 1 : least);
    int fd = open(path_of(file), O_WRONLY | O_APPEND);
    must(fd >= 0, "open a file to append");
    append(fd, found, 3);
    must(close(fd) == 0, "close");
    check(file, found + 3, found + 3);
    must(unlink(path_of(file)) == 0, "unlink");
}

int main(int count, char **words)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count >= 3, "run without a command and a directory");
    root = words[2];
    if (strcmp(words[1], "prepare") == 0) {
        char path[1024];
        snprintf(path, sizeof path, "%s/posted", root);
        must(mkdir(path, 0777) == 0 && chmod(path, 0777) == 0, "make a directory");
        return 0;
    }
    must(count >= 4, "run without a seed");
    srand(atoi(words[3]));
    written = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(written != MAP_FAILED, "share memory");
    warm();
    count_requests();
    for (long file = 1; file <= ROUNDS; file++)
        one_round(file);
    return 0;
}
