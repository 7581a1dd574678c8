/* How many requests a fleet gets for what a program does. The fleet counts them itself.
 *   requests prepare DIR     makes files that were read since they were changed
 *   requests compare DIR     looks at all files of a directory and reads them, twice: the second time
 *                            one request for each file must be enough, in one of the directories
 * The first call by a path takes the way that has been cheaper lately, which may be the kernel's.
 * WARREN is the program that asks for the counts. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "counted.h"

#define DIRECTORIES 5
#define FILES 300
/* Names of a directory come together. Some files are opened by the kernel, to see what that costs. */
#define REQUESTS_MAX (FILES * 5 / 4 + 50)

static const char *root;

static char *path_of(int directory, int file)
{
    static char path[1024];
    snprintf(path, sizeof path, file < 0 ? "%s/d%d" : "%s/d%d/f%d", root, directory, file);
    return path;
}

static size_t length_of(int file)
{
    return 1 + file * 37 % 9000;
}

static void prepare(void)
{
    static char data[9000];
    /* An access in the future is later than each change. */
    struct timespec times[2] = {{4000000000, 0}, {1000000000, 0}};
    for (int directory = 0; directory < DIRECTORIES; directory++) {
        must(mkdir(path_of(directory, -1), 0777) == 0, "make a directory");
        for (int file = 0; file < FILES; file++) {
            int fd = open(path_of(directory, file), O_CREAT | O_WRONLY, 0644);
            ssize_t length = length_of(file);
            must(fd >= 0 && write(fd, data, length) == length, "write a file");
            must(futimens(fd, times) == 0 && close(fd) == 0, "set times");
        }
    }
}

static void read_all(int directory)
{
    char data[10000];
    struct stat found;
    for (int file = 0; file < FILES; file++)
        must(stat(path_of(directory, file), &found) == 0, "stat");
    for (int file = 0; file < FILES; file++) {
        int fd = open(path_of(directory, file), O_RDONLY);
        ssize_t length = length_of(file);
        must(fd >= 0 && read(fd, data, sizeof data) == length && close(fd) == 0, "read a file");
    }
}

int main(int count, char **words)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count >= 3, "run without a command and a directory");
    root = words[2];
    if (strcmp(words[1], "prepare") == 0) {
        prepare();
        return 0;
    }
    struct stat found;
    for (int at = 0; at < 40000; at++)
        must(stat(path_of(0, at % 2 - 1), &found) == 0, "stat");
    long least = -1;
    for (int directory = 0; directory < DIRECTORIES; directory++) {
        read_all(directory);
        long before = requests();
        read_all(directory);
        long made = requests() - before;
        least = least < 0 || made < least ? made : least;
    }
    if (least > REQUESTS_MAX)
        printf("%ld requests for %d files, at most %d are needed\n", least, FILES, REQUESTS_MAX);
    return least > REQUESTS_MAX;
}
