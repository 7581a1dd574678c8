/* Extended attributes by path and by descriptor, and calls on places (O_PATH), as the interposer may serve
 * them, beside the same calls by the kernel. Two trees are the same at the start: in `a` and in `b`. Each step
 * makes a call in `a` by a plain path and in `b` by a path through /proc/self/root, which is the kernel's.
 * Results must be the same, and so must be what the kernel finds in both trees at the end.
 *   attributes prepare DIR      makes the trees
 *   attributes compare DIR      compares, and prints what differs
 * CASE_SEED is a number from which the steps follow. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define WARM 40000
#define STEPS 12000
#define PLACES 3000
#define CALLS_OF_A_PLACE 4
#define LINES_MAX 30
#define ROOM 4096

static const char *const objects[] = {
    "file", "readable", "foreign", "dir", "sticky", "shut/file", "link", "dangling", "loop", "to-dir", "fifo",
    "missing", "dir/missing", "file/below", "dir/", "file/", "to-dir/", "link/", ".", "dir/..", "",
};
static const char *const names[] = {
    "user.a", "user.a", "user.b", "user.longer-name", "user.", "user", "trusted.a", "security.a", "bogus.a", "",
    "system.posix_acl_access", "system.posix_acl_default", "system.a",
};
static const size_t lengths[] = { 0, 1, 10, 100, 2048, 2049, 3000 };
static const size_t rooms[] = { 0, 1, 9, 64, ROOM };
static char paths[2][512];
static long differing;
static unsigned long state;

enum operation { GET, LGET, LIST, LLIST, SET, LSET, REMOVE, LREMOVE, FGET, FLIST, FSET, OPERATIONS };
static const char *const operation_names[] = { "getxattr", "lgetxattr", "listxattr", "llistxattr", "setxattr",
    "lsetxattr", "removexattr", "lremovexattr", "fgetxattr", "flistxattr", "fsetxattr" };

/* A list with three entries, as `cp -p` sets it. */
static const unsigned char access_list[28] = { 2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255,
    255, 255, 32, 0, 4, 0, 255, 255, 255, 255 };

static unsigned long below(unsigned long end)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % end;
}

#define PICK(list) (list[below(sizeof list / sizeof *list)])

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        exit(2);
    }
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
        const char *tree = side ? "b" : "a";
        must(mkdir(tree, 0755) == 0 && chdir(tree) == 0 && chmod(".", 0777) == 0, "make a tree");
        make_file("file", 0666);
        make_file("readable", 0644);
        make_file("foreign", 0600);
        must(mkdir("dir", 0755) == 0 && chmod("dir", 0777) == 0, "make a directory");
        must(mkdir("sticky", 0755) == 0 && chmod("sticky", 01777) == 0, "make a directory");
        must(mkdir("shut", 0700) == 0, "make a directory");
        make_file("shut/file", 0666);
        must(symlink("file", "link") == 0 && symlink("nowhere", "dangling") == 0, "make a link");
        must(symlink("loop", "loop") == 0 && symlink("dir", "to-dir") == 0, "make a link");
        must(mkfifo("fifo", 0666) == 0 && chmod("fifo", 0666) == 0, "make a fifo");
        must(chdir("..") == 0, "leave a tree");
    }
}

static struct {
    enum operation what;
    const char *object, *name;
    size_t length, room;
    int flags;
    char value[ROOM];
} op;

struct result {
    long number;
    char bytes[ROOM];
};

static long through(int fd, struct result *result)
{
    long done = op.what == FGET ? fgetxattr(fd, op.name, result->bytes, op.room)
        : op.what == FLIST      ? flistxattr(fd, result->bytes, op.room)
                                : fsetxattr(fd, op.name, op.value, op.length, op.flags);
    int error = errno;
    close(fd);
    errno = error;
    return done;
}

static void call(const char *path, struct result *result)
{
    long done = -1;
    int fd;
    memset(result, 0, sizeof *result);
    switch (op.what) {
    case GET: done = getxattr(path, op.name, result->bytes, op.room); break;
    case LGET: done = lgetxattr(path, op.name, result->bytes, op.room); break;
    case LIST: done = listxattr(path, result->bytes, op.room); break;
    case LLIST: done = llistxattr(path, result->bytes, op.room); break;
    case SET: done = setxattr(path, op.name, op.value, op.length, op.flags); break;
    case LSET: done = lsetxattr(path, op.name, op.value, op.length, op.flags); break;
    case REMOVE: done = removexattr(path, op.name); break;
    case LREMOVE: done = lremovexattr(path, op.name); break;
    default:
        fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        done = fd < 0 ? -1 : through(fd, result);
    }
    result->number = done < 0 ? -errno : done;
}

static void differ(const char *what, long ours, long theirs)
{
    if (differing++ < LINES_MAX)
        printf("%s %s %s, length %zu, room %zu, flags %d: %s: %ld, kernel %ld\n", operation_names[op.what],
            op.object, op.name, op.length, op.room, op.flags, what, ours, theirs);
}

static void step(void)
{
    static struct result ours, theirs;
    char path[2][1200];
    op.what = below(OPERATIONS);
    op.object = PICK(objects);
    op.name = PICK(names);
    op.length = PICK(lengths);
    op.room = PICK(rooms);
    op.flags = below(4) ? (int)below(4) : 0;
    memset(op.value, 'a' + (int)below(26), sizeof op.value);
    if (strncmp(op.name, "system.posix", 12) == 0 && below(3)) {
        memcpy(op.value, access_list, sizeof access_list);
        op.length = sizeof access_list;
        op.flags = 0;
    }
    for (int side = 0; side < 2; side++)
        snprintf(path[side], sizeof path[side], "%s/%s", paths[side], op.object);
    call(path[0], &ours);
    call(path[1], &theirs);
    if (ours.number != theirs.number)
        differ("result", ours.number, theirs.number);
    else if (memcmp(ours.bytes, theirs.bytes, ROOM) != 0)
        differ("bytes", ours.bytes[0], theirs.bytes[0]);
}

/* By the kernel in both trees, and by the process in the first. */
static void compare_all(void)
{
    static struct result found[3];
    for (size_t at = 0; at < sizeof objects / sizeof *objects; at++)
        for (size_t name = 0; name < sizeof names / sizeof *names; name++) {
            char path[3][1200];
            op.what = LGET, op.object = objects[at], op.name = names[name], op.room = ROOM;
            snprintf(path[0], sizeof path[0], "%s/%s", paths[0], op.object);
            snprintf(path[1], sizeof path[1], "%s/%s", paths[1], op.object);
            snprintf(path[2], sizeof path[2], "/proc/self/root%s/%s", paths[0], op.object);
            for (int way = 0; way < 3; way++)
                call(path[way], &found[way]);
            for (int way = 1; way < 3; way++)
                if (memcmp(&found[0], &found[way], sizeof *found) != 0)
                    differ(way == 1 ? "left in the other tree" : "left by the kernel", found[0].number,
                        found[way].number);
        }
}

enum on_place { GETFL, GETFD, SETFD, SETFL, STAT, STAT_EMPTY, STATFS, LIST_PLACE, SEEK, READ, SYNC, FCHMOD,
    FCHOWN, FUTIMENS, FLOCK, FXATTR, DUPLICATE, ENTER, OPEN_BELOW, MAKE_BELOW, REMOVE_BELOW, CHMOD_LINK,
    CHMODAT_LINK, CHOWN_LINK, TIMES_LINK, CHMOD_NO_FOLLOW, POLL, ON_PLACE };
static const char *const on_place_names[] = { "F_GETFL", "F_GETFD", "F_SETFD", "F_SETFL", "fstat", "fstatat",
    "fstatfs", "getdents64", "lseek", "read", "fsync", "fchmod", "fchown", "futimens", "flock", "fgetxattr",
    "dup", "fchdir", "openat", "mkdirat", "unlinkat", "chmod of the link", "fchmodat of the link", "chown of the link",
    "utimensat of the link", "fchmodat, no follow", "poll" };

/* What a call on the place returns, with what it finds. */
static long on_place(enum on_place what, int fd, int number)
{
    static char room[ROOM];
    struct stat found = { 0 };
    struct statfs mount = { 0 };
    struct pollfd polled = { .fd = fd, .events = POLLIN };
    struct timespec times[2] = { { 1000 + number, 5 }, { 2000 + number, 6 } };
    char link[64];
    long done;
    int other;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    switch (what) {
    case GETFL: return fcntl(fd, F_GETFL);
    case GETFD: return fcntl(fd, F_GETFD);
    case SETFD: return fcntl(fd, F_SETFD, number & 1);
    case SETFL: return fcntl(fd, F_SETFL, O_NONBLOCK);
    case STAT: return fstat(fd, &found) ? -1 : (long)found.st_mode * 1000 + (long)found.st_nlink;
    case STAT_EMPTY:
        done = fstatat(fd, "", &found, AT_EMPTY_PATH);
        return done ? done : (long)found.st_mode * 1000 + (long)found.st_nlink;
    case STATFS: return fstatfs(fd, &mount) ? -1 : (long)mount.f_type;
    case LIST_PLACE: return syscall(SYS_getdents64, fd, room, sizeof room) < 0 ? -1 : 1;
    case SEEK: return lseek(fd, 0, SEEK_CUR);
    case READ: return read(fd, room, 10);
    case SYNC: return fsync(fd);
    case FCHMOD: return fchmod(fd, 0700);
    case FCHOWN: return fchown(fd, -1, -1);
    case FUTIMENS: return futimens(fd, times);
    case FLOCK: return flock(fd, LOCK_SH | LOCK_NB);
    case FXATTR: return fgetxattr(fd, "user.a", room, sizeof room) >= 0;
    case DUPLICATE:
        other = dup(fd);
        done = other < 0 ? -1 : fcntl(other, F_GETFL);
        close(other);
        return done;
    case ENTER: return fchdir(fd) ? -1 : access("file", F_OK) == 0;
    case OPEN_BELOW:
        other = openat(fd, "file", O_RDONLY | O_CLOEXEC);
        done = other < 0 ? -1 : 0;
        if (other >= 0)
            close(other);
        return done;
    case MAKE_BELOW: return mkdirat(fd, "made", 0755);
    case REMOVE_BELOW: return unlinkat(fd, "made", AT_REMOVEDIR);
    case CHMOD_LINK: return chmod(link, 0700 | number % 0100);
    case CHMODAT_LINK: return fchmodat(AT_FDCWD, link, 0700 | number % 0100, 0);
    case CHOWN_LINK: return chown(link, -1, -1);
    case TIMES_LINK: return utimensat(AT_FDCWD, link, times, 0);
    case CHMOD_NO_FOLLOW:
        return fchmodat(fd, number & 1 ? "link" : "file", 0600 | number % 0100, AT_SYMLINK_NOFOLLOW);
    case POLL: return poll(&polled, 1, 0) < 0 ? -1 : polled.revents;
    default: return -1;
    }
}

static void place(void)
{
    static const char *const places[] = { "dir", "dir", ".", "sticky", "shut", "file", "link", "to-dir", "fifo",
        "missing", "dir/" };
    static const int flags[] = { O_PATH | O_NOFOLLOW | O_CLOEXEC, O_PATH, O_PATH | O_DIRECTORY,
        O_PATH | O_WRONLY, O_PATH | O_CLOEXEC | O_NONBLOCK, O_PATH | O_CREAT, O_RDONLY | O_DIRECTORY };
    const char *name = PICK(places);
    int flag = PICK(flags), fds[2];
    long numbers[2];
    char path[2][1200];
    memset(&op, 0, sizeof op);
    op.object = name;
    op.flags = flag;
    for (int side = 0; side < 2; side++) {
        snprintf(path[side], sizeof path[side], "%s/%s", paths[side], name);
        fds[side] = open(path[side], flag, 0600);
        numbers[side] = fds[side] < 0 ? -errno : 0;
    }
    op.name = "open";
    if (numbers[0] != numbers[1])
        differ("result", numbers[0], numbers[1]);
    for (int at = 0; at < CALLS_OF_A_PLACE && fds[0] >= 0 && fds[1] >= 0; at++) {
        enum on_place what = below(ON_PLACE);
        int number = below(1000);
        op.name = on_place_names[what];
        for (int side = 0; side < 2; side++) {
            numbers[side] = on_place(what, fds[side], number);
            if (numbers[side] < 0)
                numbers[side] = -errno;
        }
        if (numbers[0] != numbers[1])
            differ("result", numbers[0], numbers[1]);
    }
    for (int side = 0; side < 2; side++)
        if (fds[side] >= 0)
            close(fds[side]);
}

int main(int count, char **arguments)
{
    const char *seed = getenv("CASE_SEED");
    must(count == 3, "run without a task and a directory");
    if (strcmp(arguments[1], "prepare") == 0) {
        prepare(arguments[2]);
        return 0;
    }
    state = (seed ? strtoul(seed, NULL, 10) : 0) * 2 + 1;
    snprintf(paths[0], sizeof paths[0], "%s/a", arguments[2]);
    snprintf(paths[1], sizeof paths[1], "/proc/self/root%s/b", arguments[2]);
    for (int at = 0; at < WARM; at++) {
        struct stat found;
        stat(paths[0], &found);
    }
    for (int at = 0; at < STEPS; at++) {
        step();
        if (at % (STEPS / PLACES) == 0)
            place();
    }
    compare_all();
    if (differing)
        printf("%ld differ\n", differing);
    return differing != 0;
}
