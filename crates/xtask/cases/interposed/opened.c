/* Files that are opened for the first time under a name, and whose data come with the open: hard
 * links, files that take each other's names, and access times. The kernel's descriptor of the same
 * directory in another mount, KERNEL_FD, makes the changes and knows what is right.
 *   opened prepare DIR
 *   opened compare DIR     compares, and prints what differs */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WARM 40000
#define ROUNDS 400
#define NAMES 4
#define LENGTH_MAX 20000

static const char *root;
static int kernel_fd;
static long differing, round_number;
static unsigned long random_state;

static unsigned long below(unsigned long end)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % end;
}

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        exit(2);
    }
}

static void check(int right, const char *what)
{
    if (!right && differing++ < 40)
        printf("round %ld: %s differs: %s\n", round_number, what, strerror(errno));
}

static const char *path_of(const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static const char *name_of(long number)
{
    static char names[NAMES][80];
    char *name = names[number % NAMES];
    snprintf(name, 80, "%ld-%ld", round_number, number);
    return name;
}

/* A file whose bytes tell who has written it. */
static void fill(const char *name, long length, int salt)
{
    static char bytes[LENGTH_MAX];
    for (long at = 0; at < length; at++)
        bytes[at] = (at * 31 + salt) & 0xff;
    int fd = openat(kernel_fd, name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    must(fd >= 0 && write(fd, bytes, length) == length && close(fd) == 0, "make a file");
}

static struct timespec accessed(const char *name)
{
    struct stat found;
    must(fstatat(kernel_fd, name, &found, AT_SYMLINK_NOFOLLOW) == 0, "stat");
    return found.st_atim;
}

/* The whole file, as this open and as the kernel's see it. */
static void same_data(int ours, const char *name)
{
    static char a[LENGTH_MAX + 1], b[LENGTH_MAX + 1];
    int kernels = openat(kernel_fd, name, O_RDONLY);
    must(kernels >= 0, "open as the kernel");
    ssize_t right = pread(kernels, b, sizeof b, 0), count = pread(ours, a, sizeof a, 0);
    check(count == right && memcmp(a, b, count > 0 ? count : 0) == 0, "data");
    struct stat x, y;
    check(fstat(ours, &x) == 0 && fstat(kernels, &y) == 0 && x.st_ino == y.st_ino
              && x.st_size == y.st_size && x.st_nlink == y.st_nlink,
          "attributes");
    close(kernels);
}

/* The access time has been set by a read after the last change, so that data may come with the
 * open. */
static void make_read_before(const char *name)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
    must(utimensat(kernel_fd, name, times, 0) == 0, "set times");
    times[0] = (struct timespec){.tv_sec = time(0) + 3600};
    must(utimensat(kernel_fd, name, times, 0) == 0, "set times");
}

/* Files that are served to their ends, so that those of a round are served, too, of which the
 * kernel has to have some. */
static void gain(void)
{
    for (int at = 0; at < 200; at++)
        close(open(path_of("warm"), O_RDONLY));
}

static void one_round(void)
{
    gain();
    long length = below(2) ? below(5000) : below(LENGTH_MAX);
    fill(name_of(0), length, round_number);
    int is_read_before = below(2);
    if (is_read_before)
        make_read_before(name_of(0));
    if (below(2))
        must(linkat(kernel_fd, name_of(0), kernel_fd, name_of(1), 0) == 0, "link");
    else
        must(symlinkat(name_of(0), kernel_fd, name_of(1)) == 0, "link");
    struct timespec before = accessed(name_of(0));
    int order = below(2);
    int first = open(path_of(name_of(order)), O_RDONLY);
    struct timespec after = accessed(name_of(0));
    check(memcmp(&before, &after, sizeof before) == 0, "access time after an open");
    int second = open(path_of(name_of(!order)), O_RDONLY);
    check(first >= 0 && second >= 0, "open");
    same_data(first, name_of(0));
    if (is_read_before)
        fill(name_of(1), below(LENGTH_MAX), round_number + 1);
    same_data(second, name_of(0));
    same_data(first, name_of(0));
    close(below(2) ? first : dup(first));
    /* Another file takes the name. */
    fill(name_of(2), below(5000), round_number + 2);
    make_read_before(name_of(2));
    must(renameat(kernel_fd, name_of(2), kernel_fd, name_of(1)) == 0, "rename");
    int third = open(path_of(name_of(1)), O_RDONLY);
    check(third >= 0, "open a name that was taken");
    same_data(third, name_of(1));
    same_data(second, name_of(0));
    must(unlinkat(kernel_fd, name_of(1), 0) == 0, "unlink");
    check(open(path_of(name_of(1)), O_RDONLY) < 0 && errno == ENOENT, "a name that is gone");
    check(open(path_of(name_of(3)), O_RDONLY) < 0 && errno == ENOENT, "a name that never was");
    fill(name_of(3), 10, 1);
    int fourth = open(path_of(name_of(3)), O_RDONLY);
    check(fourth >= 0, "a name that was missing");
    same_data(fourth, name_of(3));
    must(close(second) == 0 && close(third) == 0 && close(fourth) == 0, "close");
    close(first);
    must(unlinkat(kernel_fd, name_of(0), 0) == 0 && unlinkat(kernel_fd, name_of(3), 0) == 0, "unlink");
}

/* A read through the copy moves the access time as one through the kernel does. */
static void access_times(void)
{
    for (int round = 0; round < 50; round++) {
        char byte;
        gain();
        round_number = 100000 + round;
        fill(name_of(0), 100, round);
        struct timespec before = accessed(name_of(0));
        int fd = open(path_of(name_of(0)), O_RDONLY);
        must(fd >= 0 && read(fd, &byte, 1) == 1 && close(fd) == 0, "read");
        /* The kernel's copy of the attributes may be old: another name asks anew. */
        must(linkat(kernel_fd, name_of(0), kernel_fd, name_of(1), 0) == 0, "link");
        struct timespec after = accessed(name_of(1));
        check(memcmp(&before, &after, sizeof before) != 0, "access time after a read");
        must(unlinkat(kernel_fd, name_of(0), 0) == 0 && unlinkat(kernel_fd, name_of(1), 0) == 0, "unlink");
    }
}

/* Names at a directory that is open here, each used once. The kernel knows all of them, and is asked
 * for none. */
static void at_directories(void)
{
    for (int round = 0; round < 40; round++) {
        char name[32];
        struct stat ours, right;
        round_number = 200000 + round;
        gain();
        must(mkdirat(kernel_fd, name_of(0), 0755) == 0, "make a directory");
        for (int at = 0; at < 30; at++) {
            snprintf(name, sizeof name, "%s/%d", name_of(0), at);
            fill(name, below(5000), at);
            make_read_before(name);
        }
        int directory = open(path_of(name_of(0)), O_RDONLY | O_DIRECTORY);
        must(directory >= 0, "open a directory");
        for (int at = 0; at < 30; at++) {
            snprintf(name, sizeof name, "%s/%d", name_of(0), at);
            must(fstatat(kernel_fd, name, &right, 0) == 0, "stat");
            const char *last = strchr(name, '/') + 1;
            check(fstatat(directory, last, &ours, 0) == 0 && ours.st_ino == right.st_ino, "stat at a directory");
            int fd = openat(directory, last, O_RDONLY);
            check(fd >= 0, "open at a directory");
            same_data(fd, name);
            close(fd);
            must(unlinkat(kernel_fd, name, 0) == 0, "unlink");
        }
        must(close(directory) == 0 && unlinkat(kernel_fd, name_of(0), AT_REMOVEDIR) == 0, "remove a directory");
    }
}

int main(int count, char **words)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count >= 3, "run without a command and a directory");
    root = words[2];
    if (strcmp(words[1], "prepare") == 0) {
        must(chmod(root, 0777) == 0, "open the directory to all");
        return 0;
    }
    must(count == 4 && getenv("KERNEL_FD") != 0, "run without a seed and another mount: KERNEL_FD is not set");
    kernel_fd = atoi(getenv("KERNEL_FD"));
    random_state = strtoul(words[3], 0, 10) * 2654435761UL + 88172645463325252UL;
    fill("warm", 10, 0);
    for (long at = 0; at < WARM; at++) {
        struct stat found;
        must(stat(path_of("warm"), &found) == 0, "stat");
    }
    for (round_number = 0; round_number < ROUNDS; round_number++)
        one_round();
    access_times();
    at_directories();
    printf("%ld differ\n", differing);
    return differing != 0;
}
