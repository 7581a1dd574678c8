/* Files that another program watches (inotify). What is done in DIR/a/ goes by paths and may be
 * served by the interposer; the same is done in DIR/b/ from a descriptor that only the kernel has.
 * A watcher of both must be told the same of both. DIR/a/lone and DIR/b/lone have one watched file
 * each and no watched directory but that which comes with it.
 *   watched prepare DIR     makes the directories
 *   watched compare DIR     compares, and prints what differs */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define TWINS 2
#define EVENTS_MAX 4096
#define LAST "last"

struct event {
    uint32_t mask;
    char name[32];
};

/* The events of one twin. */
struct told {
    int count;
    struct event events[EVENTS_MAX];
};

static const char *root;
static int twin_fd[TWINS];
static int failures;

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        exit(2);
    }
}

/* Where the name is found: by a path, or from the kernel's descriptor. */
static int at(int twin)
{
    return twin == 0 ? AT_FDCWD : twin_fd[1];
}

static const char *name_of(int twin, const char *name, char *path)
{
    if (twin == 0)
        snprintf(path, 512, "%s/a/%s", root, name);
    else
        snprintf(path, 512, "%s", name);
    return path;
}

#define NAME(name) name_of(twin, name, (char[512]){0})

static void prepare(void)
{
    static const char *const dirs[] = {"a", "b", "a/lone", "b/lone", "a/sub", "b/sub", "warm"};
    char path[512];
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        snprintf(path, sizeof path, "%s/%s", root, dirs[i]);
        must(mkdir(path, 0777) == 0 && chmod(path, 0777) == 0, path);
    }
}

static void make(int twin, const char *name, const char *text)
{
    int file = openat(at(twin), NAME(name), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    must(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text), name);
    must(close(file) == 0, "close");
}

/* Calls by path in another directory, so that the fleet admits the process. */
static void warm_up(void)
{
    char path[512];
    struct stat found;
    for (int i = 0; i < 20000; i++) {
        snprintf(path, sizeof path, "%s/warm/%d", root, i % 40);
        if (i < 400) {
            int file = open(path, O_WRONLY | O_CREAT, 0644);
            must(file >= 0 && close(file) == 0, path);
        }
        must(stat(path, &found) == 0, path);
    }
}

/* Files that are open before any are watched. */
struct early {
    int written[TWINS], read[TWINS];
};

static void open_early(struct early *early)
{
    for (int twin = 0; twin < TWINS; twin++) {
        make(twin, "early-written", "one");
        make(twin, "early-read", "two");
        make(twin, "lone/file", "three");
        early->written[twin] = openat(at(twin), NAME("early-written"), O_WRONLY | O_APPEND);
        early->read[twin] = openat(at(twin), NAME("early-read"), O_RDONLY);
        must(early->written[twin] >= 0 && early->read[twin] >= 0, "open early");
        must(write(early->written[twin], "four", 4) == 4, "write early");
    }
}

static void use_early(const struct early *early, int twin)
{
    char bytes[8];
    must(write(early->written[twin], "five", 4) == 4, "write");
    must(read(early->read[twin], bytes, 3) == 3, "read");
    must(ftruncate(early->written[twin], 2) == 0, "truncate");
    must(close(early->written[twin]) == 0 && close(early->read[twin]) == 0, "close");
}

static void use_names(int twin)
{
    struct timespec times[2] = {{1, 2}, {3, 4}};
    make(twin, "new", "text");
    must(renameat(at(twin), NAME("new"), at(twin), NAME("sub/moved")) == 0, "rename");
    must(renameat(at(twin), NAME("sub/moved"), at(twin), NAME("back")) == 0, "rename back");
    make(twin, "other", "text");
    must(renameat(at(twin), NAME("other"), at(twin), NAME("back")) == 0, "replace");
    must(linkat(at(twin), NAME("back"), at(twin), NAME("link"), 0) == 0, "link");
    must(symlinkat("back", at(twin), NAME("symlink")) == 0, "symlink");
    must(fchmodat(at(twin), NAME("back"), 0600, 0) == 0, "chmod");
    must(utimensat(at(twin), NAME("back"), times, 0) == 0, "utimensat");
    must(unlinkat(at(twin), NAME("link"), 0) == 0, "unlink");
    must(unlinkat(at(twin), NAME("symlink"), 0) == 0, "unlink");
    must(mkdirat(at(twin), NAME("dir"), 0755) == 0, "mkdir");
    must(unlinkat(at(twin), NAME("dir"), AT_REMOVEDIR) == 0, "rmdir");
    must(faccessat(at(twin), NAME("back"), R_OK, 0) == 0, "access");
}

static void use_files(int twin)
{
    char bytes[8];
    struct stat found;
    int file = openat(at(twin), NAME("back"), O_RDONLY);
    must(file >= 0 && read(file, bytes, sizeof bytes) == 4, "read");
    must(fstat(file, &found) == 0 && found.st_size == 4, "fstat");
    must(close(file) == 0, "close");
    file = openat(at(twin), NAME("back"), O_RDWR);
    must(file >= 0 && pwrite(file, "more", 4, 2) == 4 && fsync(file) == 0, "pwrite");
    must(fchmod(file, 0644) == 0 && close(file) == 0, "fchmod");
    file = openat(at(twin), NAME("back"), O_WRONLY | O_TRUNC);
    must(file >= 0 && close(file) == 0, "empty");
    int dir = openat(at(twin), NAME("sub"), O_RDONLY | O_DIRECTORY);
    DIR *listing = dir < 0 ? NULL : fdopendir(dir);
    must(listing != NULL, "opendir");
    while (readdir(listing) != NULL)
        ;
    must(closedir(listing) == 0, "closedir");
    file = openat(at(twin), NAME("lone/file"), O_WRONLY | O_APPEND);
    must(file >= 0 && write(file, "x", 1) == 1 && close(file) == 0, "append");
    must(unlinkat(at(twin), NAME("lone/file"), 0) == 0, "unlink the lone file");
}

/* Of the watched file, whose events have no name. */
#define LONE "(lone)"

static void keep(struct told *told, uint32_t mask, const char *name)
{
    /* The kernel opens what it takes over. */
    if (strncmp(name, "early", 5) == 0 && mask == IN_OPEN)
        return;
    /* The kernel leaves out what the watcher has not yet read twice. */
    if (told->count > 0) {
        const struct event *last = &told->events[told->count - 1];
        if (last->mask == mask && strcmp(last->name, name) == 0)
            return;
    }
    must(told->count < EVENTS_MAX, "keep so many events");
    struct event *event = &told->events[told->count++];
    event->mask = mask;
    snprintf(event->name, sizeof event->name, "%s", name);
}

static void show(const struct told *told, const char *which)
{
    printf("%s:", which);
    for (int i = 0; i < told->count; i++)
        printf(" %s:%x", told->events[i].name, told->events[i].mask);
    printf("\n");
}

/* The watcher. It says when it watches, and ends after the last name was made in both twins. */
static void watch(int ready, int go)
{
    static struct told told[TWINS];
    static const char *const paths[TWINS][2] = {{"a", "a/lone/file"}, {"b", "b/lone/file"}};
    char path[512], buffer[1 << 16];
    int watches[TWINS][2], ended = 0;
    must(read(go, path, 1) == 1, "wait");
    int in = inotify_init();
    must(in >= 0, "watch");
    for (int twin = 0; twin < TWINS; twin++)
        for (int i = 0; i < 2; i++) {
            snprintf(path, sizeof path, "%s/%s", root, paths[twin][i]);
            watches[twin][i] = inotify_add_watch(in, path, IN_ALL_EVENTS);
            must(watches[twin][i] >= 0, path);
        }
    must(write(ready, "r", 1) == 1, "say so");
    alarm(60);
    while (ended < TWINS) {
        ssize_t length = read(in, buffer, sizeof buffer);
        must(length > 0, "read events");
        for (char *next = buffer; next < buffer + length;) {
            const struct inotify_event *event = (void *)next;
            next += sizeof *event + event->len;
            for (int twin = 0; twin < TWINS; twin++)
                for (int i = 0; i < 2; i++)
                    if (event->wd == watches[twin][i])
                        keep(&told[twin], event->mask, i == 1 ? LONE : event->len ? event->name : ".");
            ended += event->len > 0 && strcmp(event->name, LAST) == 0 && event->mask == IN_CLOSE_WRITE;
        }
    }
    int same = told[0].count == told[1].count;
    for (int i = 0; same && i < told[0].count; i++) {
        const struct event *a = &told[0].events[i], *b = &told[1].events[i];
        same = a->mask == b->mask && strcmp(a->name, b->name) == 0;
    }
    if (!same || told[0].count < 40) {
        show(&told[0], "told of a");
        show(&told[1], "told of b");
        fflush(stdout);
        _exit(1);
    }
    _exit(0);
}

static void one_round(void)
{
    int ready[2], go[2], status;
    struct early early;
    char byte;
    must(pipe(ready) == 0 && pipe(go) == 0, "pipe");
    fflush(stdout);
    pid_t watcher = fork();
    must(watcher >= 0, "fork");
    if (watcher == 0)
        watch(ready[1], go[0]);
    warm_up();
    open_early(&early);
    must(write(go[1], "g", 1) == 1 && read(ready[0], &byte, 1) == 1, "start the watcher");
    for (int twin = 0; twin < TWINS; twin++) {
        use_early(&early, twin);
        use_names(twin);
        use_files(twin);
        make(twin, LAST, "");
    }
    must(waitpid(watcher, &status, 0) == watcher, "wait");
    failures += status != 0;
    for (int twin = 0; twin < TWINS; twin++) {
        static const char *const names[] = {"early-written", "early-read", "back", LAST};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            must(unlinkat(at(twin), NAME(names[i]), 0) == 0, names[i]);
    }
    for (int i = 0; i < 4; i++) {
        int pipes[] = {ready[0], ready[1], go[0], go[1]};
        close(pipes[i]);
    }
}

/* Nothing is watched any more, so that the same calls are served. */
static void unwatched(void)
{
    int twin = 0;
    warm_up();
    for (int i = 0; i < 2000; i++) {
        make(twin, "unwatched", "text");
        must(unlinkat(at(twin), NAME("unwatched"), 0) == 0, "unlink");
    }
}

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    root = words[2];
    if (strcmp(words[1], "prepare") == 0) {
        prepare();
        return 0;
    }
    const char *kernel = getenv("KERNEL_FD");
    twin_fd[1] = openat(kernel == NULL ? -1 : atoi(kernel), "b", O_RDONLY | O_DIRECTORY);
    must(twin_fd[1] >= 0, "open b");
    for (int i = 0; i < 5; i++)
        one_round();
    unwatched();
    return failures > 0;
}
