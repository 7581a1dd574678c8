/* Names that a program makes, changes and removes without waiting for the fleet are there, or gone,
 * for every other program that looks after the calls have returned: also if the program is killed
 * at once, and through the kernel.
 *   named prepare DIR       makes a directory
 *   named compare DIR SEED  counts the requests of a program that makes files, and kills others
 * A program tells in shared memory how many of its changes have returned. Its changes follow from
 * a number, so that the parent knows which names there have to be. WARREN is the program that asks
 * for the count of requests. */
#define _GNU_SOURCE
#include <dirent.h>
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

#define ROUNDS 40
#define CHANGES_MAX 1500
/* A program that has made so many calls by path is known to the fleet. */
#define WARM 20000
/* Directories, one of which is below the other, and names of each. */
#define DIRS 2
#define NAMES 12
/* Files that are made and removed, by the same or another program, and the most requests that this
 * may take, with those of the program that counts. */
#define FILES 2000
#define REQUESTS_MAX (FILES / 8)

enum { ABSENT = -1 };

static const char *root;
static volatile long *returned;
static long failed_at;

/* The number of the change that has written each file. */
struct state {
    long written[DIRS][NAMES];
    int mode[DIRS][NAMES];
};

struct change {
    enum { WRITE, REMOVE, RENAME, CHMOD } kind;
    int dir, name, to_dir, to_name;
};

static char *path_of(char *path, long round, int dir, int name)
{
    int length = snprintf(path, 1024, "%s/named/r%ld%s", root, round, dir ? "/below" : "");
    if (name >= 0)
        snprintf(path + length, 1024 - length, "/n%d", name);
    return path;
}

static unsigned next(unsigned *seed, unsigned below)
{
    *seed = *seed * 1103515245 + 12345;
    return (*seed >> 16) % below;
}

static struct change draw(unsigned *seed)
{
    struct change it = {WRITE, next(seed, DIRS), next(seed, NAMES), next(seed, DIRS), next(seed, NAMES)};
    unsigned kind = next(seed, 10);
    it.kind = kind < 5 ? WRITE : kind < 7 ? REMOVE : kind < 9 ? RENAME : CHMOD;
    return it;
}

/* The state after the change. */
static void apply(struct state *state, struct change it, long number)
{
    long *from = &state->written[it.dir][it.name], *to = &state->written[it.to_dir][it.to_name];
    int *mode = &state->mode[it.dir][it.name];
    if (it.kind == WRITE) {
        if (*from == ABSENT)
            *mode = 0644;
        *from = number;
    } else if (it.kind == REMOVE) {
        *from = ABSENT;
    } else if (*from != ABSENT && it.kind == CHMOD) {
        *mode = 0600;
    } else if (*from != ABSENT && from != to) {
        *to = *from;
        state->mode[it.to_dir][it.to_name] = *mode;
        *from = ABSENT;
    }
}

static void make(long round, struct change it, long number, int is_there)
{
    char path[1024], to[1024], text[32];
    path_of(path, round, it.dir, it.name);
    if (it.kind == WRITE) {
        int length = snprintf(text, sizeof text, "%ld", number);
        int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
        must(fd >= 0 && write(fd, text, length) == length && close(fd) == 0, "write a file");
    } else if (it.kind == REMOVE) {
        must((unlink(path) == 0) == is_there && (is_there || errno == ENOENT), "remove a name");
    } else if (it.kind == CHMOD) {
        must((chmod(path, 0600) == 0) == is_there && (is_there || errno == ENOENT), "chmod");
    } else {
        int done = rename(path, path_of(to, round, it.to_dir, it.to_name)) == 0;
        must(done == is_there && (done || errno == ENOENT), "rename");
    }
}

static void warm(void)
{
    struct stat found;
    char path[1024];
    for (int at = 0; at < WARM; at++)
        must(stat(at % 2 ? root : path_of(path, -1, 0, 0), &found) == 0 || errno == ENOENT, "stat");
}

static void start(struct state *state)
{
    for (int at = 0; at < DIRS * NAMES; at++)
        state->written[at / NAMES][at % NAMES] = ABSENT;
}

static void change_until_killed(long round, unsigned seed, long count)
{
    char path[1024];
    struct state state;
    start(&state);
    warm();
    for (int dir = 0; dir < DIRS; dir++)
        must(mkdir(path_of(path, round, dir, -1), 0755) == 0, "make a directory");
    *returned = 0;
    for (long number = 0; number < count; number++) {
        struct change it = draw(&seed);
        make(round, it, number, state.written[it.dir][it.name] != ABSENT);
        apply(&state, it, number);
        *returned = number + 1;
    }
    _exit(0);
}

/* What a name leads to: the number in the file, -2 for a file without one. */
static long found_at(const char *path)
{
    char text[32] = "";
    int fd = open(path, O_RDONLY);
    if (fd < 0) {
        must(errno == ENOENT, "open");
        return ABSENT;
    }
    long length = read(fd, text, sizeof text - 1);
    must(length >= 0 && close(fd) == 0, "read");
    return length == 0 ? -2 : strtol(text, 0, 10);
}

/* Whether everything is as in this state, but for a file that is just being written. */
static int is_as(long round, const struct state *state, const struct change *under_way)
{
    char path[1024];
    for (int at = 0; at < DIRS * NAMES; at++) {
        int dir = at / NAMES, name = at % NAMES;
        int is_written = under_way && under_way->kind == WRITE && under_way->dir == dir &&
                         under_way->name == name;
        long found = found_at(path_of(path, round, dir, name));
        struct stat shown;
        failed_at = at;
        if (found != state->written[dir][name] && !(is_written && found == -2))
            return 0;
        if (found != ABSENT && !is_written &&
            (stat(path, &shown) != 0 || (shown.st_mode & 0777) != state->mode[dir][name]))
            return 0;
    }
    return 1;
}

/* Names that the kernel lists, without the library. */
static long listed_by_kernel(long round)
{
    char command[1200], path[1024];
    long count = -1;
    snprintf(command, sizeof command, "LD_PRELOAD= find '%s' -type f | wc -l",
             path_of(path, round, 0, -1));
    FILE *shown = popen(command, "r");
    must(shown != 0 && fscanf(shown, "%ld", &count) == 1 && pclose(shown) == 0, "list by the kernel");
    return count;
}

static long count_of(const struct state *state)
{
    long count = 0;
    for (int at = 0; at < DIRS * NAMES; at++)
        count += state->written[at / NAMES][at % NAMES] != ABSENT;
    return count;
}

static void one_round(long round)
{
    long count = 1 + rand() % CHANGES_MAX, killed_at = rand() % count;
    int status, is_killed = rand() % 4 > 0, is_by_kernel = rand() % 2;
    unsigned seed = rand();
    *returned = -1;
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0)
        change_until_killed(round, seed, count);
    while (is_killed && *returned < killed_at && waitpid(child, 0, WNOHANG | WNOWAIT) == 0)
        sched_yield();
    if (is_killed)
        kill(child, SIGKILL);
    must(waitpid(child, &status, 0) == child, "wait for a program");
    must(is_killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "make all changes");
    long least = *returned;
    if (least < 0)
        return;
    struct state before, after;
    struct change last = {WRITE, 0, 0, 0, 0};
    start(&before);
    for (long number = 0; number < least; number++)
        apply(&before, draw(&seed), number);
    after = before;
    if (least < count)
        apply(&after, last = draw(&seed), least);
    long listed = is_by_kernel ? listed_by_kernel(round) : count_of(&before);
    int is_listed = listed == count_of(&before) || (is_killed && listed == count_of(&after));
    int is_right = is_as(round, &before, is_killed ? &last : 0);
    if (!is_listed || !(is_right || (is_killed && is_as(round, &after, &last)))) {
        printf("round %ld: not as after %ld of %ld changes (name %ld, %ld listed)\n", round, least,
               count, failed_at, listed);
        exit(1);
    }
}

static void make_files(int dir)
{
    char path[1024];
    must(mkdir(path_of(path, 0, dir, -1), 0755) == 0, "make a directory");
    for (int name = 0; name < FILES; name++) {
        int fd = open(path_of(path, 0, dir, name), O_CREAT | O_EXCL | O_WRONLY, 0644);
        must(fd >= 0 && write(fd, "data", 4) == 4 && close(fd) == 0, "make a file");
    }
}

static void remove_files(int dir)
{
    char path[1024];
    for (int name = 0; name < FILES; name++)
        must(unlink(path_of(path, 0, dir, name)) == 0, "remove a file");
}

static void check_requests(long before)
{
    long made = requests() - before;
    if (made > REQUESTS_MAX) {
        printf("%ld requests for %d files, at most %d are needed\n", made, FILES, REQUESTS_MAX);
        exit(1);
    }
}

static void count_requests(void)
{
    int status;
    long before = requests();
    make_files(0);
    remove_files(0);
    check_requests(before);
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        make_files(1);
        exit(0);
    }
    must(waitpid(child, &status, 0) == child && status == 0, "wait for a program");
    before = requests();
    remove_files(1);
    check_requests(before);
}

int main(int count, char **words)
{
    char path[1024];
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count >= 3, "run without a command and a directory");
    root = words[2];
    if (strcmp(words[1], "prepare") == 0) {
        snprintf(path, sizeof path, "%s/named", root);
        must(mkdir(path, 0777) == 0 && chmod(path, 0777) == 0, "make a directory");
        return 0;
    }
    must(count >= 4, "run without a seed");
    srand(atoi(words[3]));
    returned = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(returned != MAP_FAILED, "share memory");
    warm();
    count_requests();
    for (long round = 1; round <= ROUNDS; round++)
        one_round(round);
    return 0;
}
