// Positions in directories (telldir, seekdir, rewinddir) while another process makes, renames and
// removes names: no name that is there all the time is missed or shown twice.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STAYING = 1500, MARKS = 12, SCANS = 40 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void put(int directory, const char *name) {
    int fd = openat(directory, name, O_CREAT | O_WRONLY, 0644);
    if (fd < 0 || close(fd)) fail(name);
}

// Makes names of all lengths, so that they come between the staying ones everywhere.
static void change(int directory) {
    char name[260], other[260];
    for (unsigned round = 0;; round++) {
        for (int at = 0; at < 64; at++) {
            snprintf(name, sizeof name, "temp-%u-%d-%.*s", round, at, at * 3, "abcdefghijklmnop"
                     "qrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz");
            put(directory, name);
            snprintf(other, sizeof other, "moved-%u-%d", round, at);
            if (at % 3 == 0 && renameat(directory, name, directory, other)) fail("rename");
        }
        for (int at = 0; at < 64; at++) {
            snprintf(name, sizeof name, "temp-%u-%d-%.*s", round, at, at * 3, "abcdefghijklmnop"
                     "qrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz");
            snprintf(other, sizeof other, "moved-%u-%d", round, at);
            if (unlinkat(directory, at % 3 ? name : other, 0)) fail("unlink");
        }
    }
}

static int number(const char *name) {
    return strncmp(name, "stays-", 6) ? -1 : atoi(name + 6);
}

static int missed, twice, wrong_seeks, wrong_order;

static void judge(const int *seen) {
    for (int at = 0; at < STAYING; at++) missed += seen[at] == 0, twice += seen[at] > 1;
}

// A scan, and the rest of it again from some of its positions, in any order.
static void scan(DIR *directory, unsigned *random) {
    static int order[STAYING * 2];
    int seen[STAYING] = {0}, count = 0, marks = 0, counts[MARKS];
    long positions[MARKS];
    rewinddir(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        int staying = number(entry->d_name);
        if (staying >= 0 && count < STAYING * 2) seen[staying]++, order[count++] = staying;
        if (marks < MARKS && rand_r(random) % (STAYING / MARKS) == 0)
            positions[marks] = telldir(directory), counts[marks++] = count;
    }
    judge(seen);
    while (marks-- > 0) {
        int at = counts[marks];
        seekdir(directory, positions[marks]);
        for (struct dirent *entry; (entry = readdir(directory));) {
            int staying = number(entry->d_name);
            if (staying >= 0) wrong_seeks += at >= count || order[at] != staying, at++;
        }
        wrong_order += at != count;
    }
}

// By calls with little room, each of which goes on where the one before ended.
static void scan_in_pieces(int directory, size_t room) {
    int seen[STAYING] = {0};
    char piece[1024];
    if (lseek(directory, 0, SEEK_SET)) fail("lseek");
    for (ssize_t length; (length = getdents64(directory, piece, room));) {
        if (length < 0) fail("getdents64");
        for (ssize_t at = 0; at < length;) {
            struct dirent64 *entry = (void *)(piece + at);
            int staying = number(entry->d_name);
            if (staying >= 0) seen[staying]++;
            at += entry->d_reclen;
        }
    }
    judge(seen);
}

static int shows(DIR *directory, const char *name) {
    int found = 0;
    for (struct dirent *entry; (entry = readdir(directory));) found += !strcmp(entry->d_name, name);
    return found;
}

int main(void) {
    char name[32];
    mkdir("directory", 0755);
    int fd = open("directory", O_RDONLY | O_DIRECTORY);
    for (int at = 0; at < STAYING; at++) snprintf(name, sizeof name, "stays-%d", at), put(fd, name);
    pid_t changer = fork();
    if (!changer) change(fd);
    DIR *directory = opendir("directory");
    unsigned random = 7;
    for (int at = 0; at < SCANS; at++) {
        scan(directory, &random);
        // The child has the place of `fd`, too.
        int own = open("directory", O_RDONLY | O_DIRECTORY);
        scan_in_pieces(own, 300 + at * 7);
        close(own);
    }
    int status;
    if (waitpid(changer, &status, WNOHANG)) fail("the changer has ended");
    kill(changer, SIGKILL);
    waitpid(changer, &status, 0);
    printf("missed %d twice %d wrong %d %d\n", missed, twice, wrong_seeks, wrong_order);
    rewinddir(directory);
    printf("absent %d", shows(directory, "new"));
    put(fd, "new");
    printf(" at the end %d", shows(directory, "new"));
    rewinddir(directory);
    printf(" rewound %d", shows(directory, "new"));
    unlinkat(fd, "new", 0), rewinddir(directory);
    printf(" removed %d\n", shows(directory, "new"));
    seekdir(directory, 0);
    printf("first %s\n", readdir(directory) ? "shown" : "not shown");
    return 0;
}
