/* A program that has files of a mount open while others change the mount: held DIR FILES
 * Opens DIR/held-0, DIR/held-1, ..., of which other calls before have made it a client of the fleet,
 * and prints their descriptors. Then it obeys lines of standard input, each with one line of output:
 *   read    reads all open files: "right", or what is wrong
 *   again   opens all by their paths and reads them: "right", or what the first other one is
 *   close   closes all: "closed" */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES_MAX = 100, WARM = 40000, OPENS = 8, SIZE_MAX_OF_FILE = 1 << 17 };

static const char *root;
static int files, descriptors[FILES_MAX];
static unsigned char bytes[SIZE_MAX_OF_FILE];

static char *path_of(int at)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/held-%d", root, at);
    return path;
}

static int open_one(int at)
{
    int fd = open(path_of(at), O_RDONLY);
    if (fd < 0 && errno != ENOENT) {
        perror(path_of(at));
        exit(2);
    }
    return fd;
}

/* Whether the file is as it was made: byte N of file F is N * 31 + F. */
static int is_right(int fd, int at)
{
    struct stat found;
    long size = pread(fd, bytes, sizeof bytes - 1, 0);
    bytes[size < 0 ? 0 : size] = 0;
    if (fstat(fd, &found) || size != found.st_size || size == 0)
        return 0;
    for (long byte = 0; byte < size; byte++)
        if (bytes[byte] != ((byte * 31 + at) & 0xff))
            return 0;
    return 1;
}

static void read_all(void)
{
    for (int at = 0; at < files; at++)
        if (!is_right(descriptors[at], at)) {
            printf("file %d is wrong: %s\n", at, strerror(errno));
            return;
        }
    puts("right");
}

static void open_again(void)
{
    for (int at = 0; at < files; at++) {
        int fd = open_one(at);
        if (fd < 0) {
            puts("absent");
            return;
        }
        int right = is_right(fd, at);
        close(fd);
        if (!right) {
            printf("other: %.20s\n", bytes);
            return;
        }
    }
    puts("right");
}

int main(int argc, char **argv)
{
    struct stat found;
    if (argc != 3 || (files = atoi(argv[2])) > FILES_MAX)
        return 2;
    root = argv[1];
    for (int at = 0; at < WARM; at++)
        stat(path_of(at % files), &found);
    for (int turn = 0; turn < OPENS; turn++)
        for (int at = 0; at < files; at++)
            close(open_one(at));
    for (int at = 0; at < files; at++)
        printf("%d ", descriptors[at] = open_one(at));
    puts("");
    fflush(stdout);
    for (char line[16]; fgets(line, sizeof line, stdin); fflush(stdout)) {
        if (!strcmp(line, "read\n")) {
            read_all();
        } else if (!strcmp(line, "again\n")) {
            open_again();
        } else {
            for (int at = 0; at < files; at++)
                close(descriptors[at]);
            puts("closed");
        }
    }
    return 0;
}
