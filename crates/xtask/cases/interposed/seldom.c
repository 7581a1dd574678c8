/* Calls that few programs make, as the interposer may serve them, beside the same calls by the kernel: what a
 * mount is (`statfs`), the older calls that set times, files that are written under a limit of their length that
 * is none, and directories that the program watches by F_NOTIFY or that no path leads to. Two trees are the same
 * at the start: in `a` and in `b`. A call in `a` goes by a plain path and in `b` by a path through
 * /proc/self/root, which is the kernel's.
 *   seldom prepare DIR      makes the trees
 *   seldom compare DIR      compares, and prints what differs */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WARM 40000
#define ROUNDS 100
#define WRITTEN 300
#define LOST 20
#define LINES_MAX 30

static const char *const objects[] = {
    "file", "dir", "shut/file", "link", "dangling", "loop", "to-dir", "fifo", "missing", "file/below", "dir/",
    "file/", "to-dir/", ".", "dir/..", "",
};
#define OBJECTS (sizeof objects / sizeof *objects)

static char sides[2][512];
static long differing;

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        exit(2);
    }
}

static void differ(const char *what, const char *object, long ours, long theirs)
{
    if (differing++ < LINES_MAX)
        printf("%s %s: %ld, kernel %ld\n", what, object, ours, theirs);
}

static void make_file(const char *path, mode_t mode)
{
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    must(fd >= 0 && write(fd, "text", 4) == 4 && fchmod(fd, mode) == 0 && close(fd) == 0, path);
}

static void prepare(const char *root)
{
    must(chdir(root) == 0, "enter the directory");
    for (int side = 0; side < 2; side++) {
        must(mkdir(side ? "b" : "a", 0755) == 0 && chdir(side ? "b" : "a") == 0, "make a tree");
        must(chmod(".", 0777) == 0, "open a tree to all");
        make_file("file", 0666);
        must(mkdir("dir", 0755) == 0 && chmod("dir", 0777) == 0, "make a directory");
        must(mkdir("shut", 0700) == 0, "make a directory");
        make_file("shut/file", 0666);
        must(symlink("file", "link") == 0 && symlink("nowhere", "dangling") == 0, "make a link");
        must(symlink("loop", "loop") == 0 && symlink("dir", "to-dir") == 0, "make a link");
        must(mkfifo("fifo", 0666) == 0, "make a fifo");
        must(chdir("..") == 0, "leave a tree");
    }
}

static const char *path_of(int side, const char *object)
{
    static char paths[2][1024];
    snprintf(paths[side], sizeof paths[side], "%s/%s", sides[side], object);
    return paths[side];
}

/* What does not change while files come and go. */
static long summary(const struct statfs *found)
{
    long whole = found->f_type * 31 + found->f_bsize * 7 + found->f_namelen * 5 + found->f_frsize * 3;
    long rest = found->f_flags * 131 + found->f_fsid.__val[0] + found->f_fsid.__val[1];
    int is_counted = found->f_blocks > 0 && found->f_bfree > 0 && found->f_bfree <= found->f_blocks
        && found->f_bavail > 0 && found->f_bavail <= found->f_bfree && found->f_files > found->f_ffree;
    for (size_t at = 0; at < sizeof found->f_spare / sizeof *found->f_spare; at++)
        rest += found->f_spare[at];
    return (whole + rest) * 2 + is_counted;
}

static void mounts(void)
{
    for (int round = 0; round < ROUNDS; round++)
        for (size_t at = 0; at < OBJECTS; at++) {
            long said[2];
            for (int side = 0; side < 2; side++) {
                struct statfs found;
                memset(&found, 0xff, sizeof found);
                said[side] = statfs(path_of(side, objects[at]), &found) ? -errno : summary(&found);
            }
            if (said[0] != said[1])
                differ("statfs", objects[at], said[0], said[1]);
        }
    struct statfs found;
    int fd = open(path_of(0, "file"), O_RDONLY | O_CLOEXEC);
    must(fd >= 0 && statfs(path_of(1, "file"), &found) == 0, "open a file");
    long theirs = summary(&found), ours = fstatfs(fd, &found) ? -errno : summary(&found);
    if (ours != theirs)
        differ("fstatfs", "file", ours, theirs);
    close(fd);
    for (int side = 0; side < 2; side++)
        if (statfs(path_of(side, "file"), (void *)8) != -1 || errno != EFAULT)
            differ("statfs", "to nowhere", errno, EFAULT);
}

/* Sets the times of an object by one of the calls. */
static long set(int way, const char *path, long number)
{
    static const long parts[] = { 0, 1, 999999, 1000000, -1, 500000 };
    long part = parts[number % 6], pair[2] = { 1000 + number, 2000 - number };
    long times[4] = { 1000 + number, part, 2000 - number, parts[number / 6 % 6] };
    switch (way) {
    case 0: return syscall(SYS_utime, path, pair);
    case 1: return syscall(SYS_utimes, path, times);
    case 2: return syscall(SYS_futimesat, AT_FDCWD, path, times);
    case 3: return syscall(SYS_utimes, path, NULL);
    default: return syscall(SYS_utime, path, number % 2 ? NULL : (void *)8);
    }
}

static void times_of(const char *path, long times[4])
{
    struct stat found = { 0 };
    memset(times, 0, 4 * sizeof *times);
    if (stat(path, &found) == 0) {
        times[0] = found.st_atim.tv_sec, times[1] = found.st_atim.tv_nsec;
        times[2] = found.st_mtim.tv_sec, times[3] = found.st_mtim.tv_nsec;
    }
}

static void times(void)
{
    for (long number = 0; number < ROUNDS; number++)
        for (size_t at = 0; at < OBJECTS; at++) {
            int way = (number + at) % 5;
            long said[2], left[2][4];
            for (int side = 0; side < 2; side++)
                said[side] = set(way, path_of(side, objects[at]), number) ? -errno : 0;
            if (said[0] != said[1])
                differ(way ? "utimes" : "utime", objects[at], said[0], said[1]);
            for (int side = 0; side < 2; side++)
                times_of(path_of(side, objects[at]), left[side]);
            for (int field = 0; field < 4 && way < 3; field++)
                if (said[0] == 0 && left[0][field] != left[1][field])
                    differ("time", objects[at], left[0][field], left[1][field]);
        }
}

/* Many programs set all their limits as high as they may. */
static void without_limits(void)
{
    struct rlimit limit;
    must(getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY, "run without a limit");
    for (int at = 0; at < WRITTEN; at++) {
        must(setrlimit(RLIMIT_FSIZE, &limit) == 0, "set no limit");
        must(syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, &limit, NULL) == 0, "set no limit");
        int fd = open(path_of(0, "written"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        must(fd >= 0 && write(fd, "text", 4) == 4 && close(fd) == 0, "write a file");
        must(unlink(path_of(0, "written")) == 0, "remove a file");
    }
    if (syscall(SYS_setrlimit, RLIMIT_FSIZE, (void *)8) != -1 || errno != EFAULT)
        differ("setrlimit", "from nowhere", errno, EFAULT);
}

static volatile sig_atomic_t told;

static void on_event(int number)
{
    (void)number;
    told++;
}

static void expect(const char *what)
{
    if (told == 0)
        differ(what, "was not told of", 0, 1);
    told = 0;
}

/* The kernel tells of what it does itself, before the call returns. */
static void watched(void)
{
    struct sigaction action = { .sa_handler = on_event };
    char byte;
    int early = open(path_of(0, "file"), O_RDONLY | O_CLOEXEC);
    int directory = open(path_of(0, "."), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(early >= 0 && directory >= 0, "open what is there");
    must(sigaction(SIGRTMIN + 1, &action, NULL) == 0, "handle a signal");
    must(fcntl(directory, F_SETSIG, SIGRTMIN + 1) == 0, "choose a signal");
    must(fcntl(directory, F_NOTIFY, DN_ACCESS | DN_MODIFY | DN_CREATE | DN_DELETE | DN_RENAME | DN_ATTRIB | DN_MULTISHOT)
             == 0, "watch a directory");
    must(read(early, &byte, 1) == 1, "read");
    expect("a read of an open file");
    int fd = open(path_of(0, "made"), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    expect("a new file");
    must(fd >= 0 && write(fd, "text", 4) == 4, "write");
    expect("a write");
    close(fd);
    fd = open(path_of(0, "made"), O_RDONLY | O_CLOEXEC);
    must(fd >= 0 && read(fd, &byte, 1) == 1, "read");
    expect("a read");
    close(fd);
    must(chmod(path_of(0, "made"), 0640) == 0, "set a mode");
    expect("a mode");
    char to[1024];
    snprintf(to, sizeof to, "%s/moved", sides[0]);
    must(rename(path_of(0, "made"), to) == 0, "rename");
    expect("a rename");
    must(unlink(to) == 0, "remove");
    expect("a removal");
    close(directory);
    close(early);
}

/* A directory is opened from one to which no path leads any more: a child may not search the one
 * above. What only the kernel does with it works all the same. */
static void lost(void)
{
    char above[600], kernels[1024];
    struct stat found;
    snprintf(above, sizeof above, "%s/above", sides[0]);
    snprintf(kernels, sizeof kernels, "/proc/self/root%s/start", above);
    must(mkdir(above, 0777) == 0 && chmod(above, 0777) == 0 && chdir(above) == 0, "make a directory");
    must(mkdir("start", 0777) == 0 && mkdir("start/dir", 0777) == 0, "make a directory");
    must(chdir("start") == 0, "enter a directory");
    int start = open(kernels, O_PATH | O_DIRECTORY | O_CLOEXEC);
    must(start >= 0, "open a directory");
    for (int round = 0; round < LOST; round++) {
        if (round == LOST / 2)
            must(chmod(above, 0) == 0, "shut a directory");
        for (int way = 0; way < 2; way++) {
            int fd = openat(way ? start : AT_FDCWD, "dir", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            long result = fd < 0 ? -errno : fchmod(fd, 0700 | (round & 077)) ? -errno : 0;
            if (result != 0 || fstat(fd, &found) != 0 || (found.st_mode & 077) != (round & 077))
                differ("fchmod", way ? "at a descriptor" : "here", result, 0);
            close(fd);
        }
    }
    close(start);
}

int main(int count, char **arguments)
{
    must(count == 3, "run without a task and a directory");
    if (strcmp(arguments[1], "prepare") == 0) {
        prepare(arguments[2]);
        return 0;
    }
    snprintf(sides[0], sizeof sides[0], "%s/a", arguments[2]);
    snprintf(sides[1], sizeof sides[1], "/proc/self/root%s/b", arguments[2]);
    for (int at = 0; at < WARM; at++) {
        struct stat found;
        stat(sides[0], &found);
    }
    mounts();
    times();
    without_limits();
    lost();
    watched();
    if (differing)
        printf("%ld differ\n", differing);
    return differing != 0;
}
