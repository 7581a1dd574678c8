/* Changes of names and attributes, as the interposer may make them, beside the same changes by the
 * kernel. Two trees are the same at the start: in `a` and in `b`. Each step changes something in `a` by a
 * plain path and in `b` by a path through /proc/self/root, which is the kernel's. Results must be
 * the same, and so must be both trees, each as the process and as the kernel sees it.
 *   changes prepare DIR         makes the trees
 *   changes compare DIR         compares, and prints what differs
 * CASE_SEED is a number from which the random steps follow. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WARM 40000
#define PLAIN 400
#define STEPS 2000
#define STEPS_OF_CHILD 150
#define LINES_MAX 30
#define PAIRS 3
#define NAMES_MAX 400
#define LONG 5200
#define THREADS 3
#define ROUNDS 250

enum side { A, B };
static const char *root;
static char prefixes[2][2][512]; /* by side, and whether it is the kernel's */
static long compared, differing;
static unsigned long state;
static long begun;

static unsigned long below(unsigned long end)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % end;
}

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        exit(2);
    }
}

static long number(long value)
{
    return value < 0 ? -errno : value;
}

#define PICK(list) (list[below(sizeof list / sizeof *list)])

/* What a name is called from: the root, the working directory, or a descriptor. */
struct target {
    enum { ABSOLUTE, CWD, DESCRIPTOR } start;
    int pair, is_raw;
    const char *raw;
    char rest[LONG];
};

enum operation {
    MKDIR, RMDIR, UNLINK, RENAME, LINK, SYMLINK, CHMOD, CHOWN, UTIMENS,
    /* These are the kernel's in both trees. */
    CREATE, MAKE_FIFO, TRUNCATE, BY_DESCRIPTOR, UMASK, CHDIR, OPEN_DIRECTORY, OPEN_FILE,
    OPERATIONS
};

static const char *const operation_names[] = {
    "mkdir", "rmdir", "unlink", "rename", "link", "symlink", "chmod", "chown", "utimens", "create", "mkfifo",
    "truncate", "by descriptor", "umask", "chdir", "open a directory", "open a file",
};

static struct {
    enum operation what;
    struct target from, to;
    unsigned mode, flags, uid, gid;
    int has_times, by_kernel;
    struct timespec times[2];
    const char *target;
    int target_is_absolute;
} op;

static int cwd_b = -1;
static int directories[PAIRS][2] = { { -1, -1 }, { -1, -1 }, { -1, -1 } };
static int files[PAIRS][2] = { { -1, -1 }, { -1, -1 }, { -1, -1 } };
static long step_number;

static void differ(const char *what, long ours, long theirs)
{
    if (differing++ >= LINES_MAX)
        return;
    printf("step %ld, %s%s (%#x %#x %d %d) %d %d:%.60s -> %d %d:%.60s: %s: %ld, kernel %ld\n", step_number,
        operation_names[op.what], op.by_kernel ? " by the kernel" : "", op.mode, op.flags, (int)op.uid, (int)op.gid,
        op.from.start, op.from.pair, op.from.is_raw ? "raw" : op.from.rest, op.to.start, op.to.pair,
        op.to.is_raw ? "raw" : op.to.rest, what, ours, theirs);
}

/* For a directory that is removed while it is in use the kernel has ESTALE once it has asked the
 * front, and another answer before. */
static void same(const char *what, long ours, long theirs)
{
    compared++;
    if (ours != theirs && ours != -ESTALE && theirs != -ESTALE)
        differ(what, ours, theirs);
}

static char *path_of(enum side side, int kernel, const char *rest)
{
    static char paths[8][LONG + 600];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", prefixes[side][kernel], rest);
    return path;
}

/* The path for a call, and the descriptor that it begins at. */
static const char *place(const struct target *it, enum side side, int *fd)
{
    *fd = AT_FDCWD;
    if (it->is_raw)
        return it->raw;
    switch (it->start) {
    case CWD:
        *fd = side == A ? AT_FDCWD : cwd_b;
        return it->rest;
    case DESCRIPTOR:
        *fd = directories[it->pair][side];
        return it->rest;
    default:
        return it->rest[0] ? path_of(side, side == B || op.by_kernel, it->rest) : it->rest;
    }
}

static const char *const tops[] = { "busy", "sticky", "shared", "others", "closed", "grouped", "readable" };
static const char *const names[] = { "d0", "d1", "f0", "f1", "l0", "x", "g0" };
static const char *const endings[] = { "/", "/.", "/..", "//", "/../x", "/./d0" };
/* Nothing here may lead out of the mount, because the test may run as root. */
static const char *const odd[] = { "", ".", "..", "./d0", "../busy/x", "d0/../x", "d0//x" };
static char name_255[256], name_256[257], path_600[700], path_5000[5001], *hole;

static void choose(struct target *it)
{
    static const char *bad[4];
    it->is_raw = 0;
    it->start = below(3);
    it->pair = below(PAIRS);
    unsigned long kind = below(48);
    if (kind == 0) {
        bad[0] = NULL, bad[1] = (char *)1, bad[2] = (char *)-8L, bad[3] = hole;
        it->is_raw = 1;
        it->raw = PICK(bad);
        return;
    }
    const char *special[] = { name_255, name_256, path_600, path_5000, PICK(odd), PICK(odd), PICK(odd) };
    char *end = it->rest;
    *end = 0;
    if (it->start == ABSOLUTE || below(8) == 0)
        end += sprintf(end, "%s%s", it->start == ABSOLUTE ? "" : "../", below(3) ? "busy" : PICK(tops));
    if (kind < 4) {
        sprintf(end, "%s%s", end > it->rest ? "/" : "", PICK(special));
        return;
    }
    for (unsigned long depth = 1 + (below(3) == 0) + (below(6) == 0); depth > 0; depth--)
        end += sprintf(end, "%s%s", end > it->rest ? "/" : "", PICK(names));
    if (kind < 10)
        strcpy(end, PICK(endings));
}

static void choose_time(struct timespec *time)
{
    static const long nanos[] = { 0, 1, 999999999, 123456789, UTIME_NOW, UTIME_OMIT, UTIME_NOW, UTIME_OMIT, -1, 1000000000 };
    static const long seconds[] = { 0, 1, -1, -5000000000, 4294967296, 9000000000, -9000000000, 1L << 40, 1L << 62,
        -(1L << 62), 946684800, 1e9 };
    time->tv_sec = PICK(seconds);
    time->tv_nsec = PICK(nanos);
}

static void choose_operation(void)
{
    static const unsigned modes[] = { 0777, 0700, 0755, 0555, 0, 01777, 02777, 06755, 04711, 07777, 0644, 0666, 02770 };
    static const unsigned ids[] = { 0, 54321, 54322, 54330, -1, -1 };
    static const unsigned rename_flags[] = { 0, 0, 0, 0, 1, 2, 2, 3, 4, 8 };
    static const unsigned link_flags[] = { 0, 0, 0, AT_SYMLINK_FOLLOW, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH, 0x100 };
    static const unsigned no_follow[] = { 0, 0, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, 0x200 };
    static const char *const targets[] = { "d0", "../busy", "f0", ".", "l0", "x/", "d0/x", "", "../busy/d1", "..", "f0/" };
    static const unsigned char often[] = { MKDIR, MKDIR, MKDIR, UNLINK, RENAME, RENAME, RENAME, LINK, SYMLINK, CREATE, CREATE, CHMOD, UTIMENS };
    op.what = below(2) ? PICK(often) : below(OPERATIONS);
    choose(&op.from);
    choose(&op.to);
    op.mode = below(4) ? PICK(modes) : below(010000);
    op.uid = PICK(ids);
    op.gid = PICK(ids);
    op.by_kernel = below(5) == 0;
    op.has_times = below(5) != 0;
    choose_time(&op.times[0]);
    choose_time(&op.times[1]);
    op.target = below(12) ? PICK(targets) : path_600;
    op.target_is_absolute = below(6) == 0 && op.target[0] != '.';
    op.flags = 0;
    if (op.what == RENAME)
        op.flags = PICK(rename_flags);
    if (op.what == LINK)
        op.flags = PICK(link_flags);
    /* What it means depends on who has opened a descriptor. */
    if (op.flags == AT_EMPTY_PATH && op.what == LINK && op.from.start != ABSOLUTE)
        op.flags = 0;
    if (op.what == CHOWN || op.what == UTIMENS)
        op.flags = PICK(no_follow);
    if (op.what == UNLINK || op.what == RMDIR)
        op.flags = below(24) == 0;
}

static long by_descriptor(int at, const char *path)
{
    int fd = openat(at, path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return -errno;
    long result = op.flags % 3 == 0 ? fchmod(fd, op.mode)
        : op.flags % 3 == 1         ? fchown(fd, op.uid, op.gid)
                                    : futimens(fd, op.has_times ? op.times : NULL);
    result = number(result);
    close(fd);
    return result;
}

static long create(int at, const char *path)
{
    int fd = openat(at, path, O_CREAT | O_WRONLY | O_NONBLOCK | (op.mode & 1 ? O_EXCL : 0), op.mode & 0777);
    if (fd < 0)
        return -errno;
    long result = number(write(fd, "some text", op.mode % 10));
    close(fd);
    return result;
}

static long perform(enum side side)
{
    int from_fd, to_fd;
    const char *from = place(&op.from, side, &from_fd), *to = place(&op.to, side, &to_fd);
    static char target[700];
    switch (op.what) {
    case MKDIR:
        return number(syscall(SYS_mkdirat, from_fd, from, op.mode));
    case RMDIR:
        return number(syscall(SYS_unlinkat, from_fd, from, AT_REMOVEDIR | op.flags));
    case UNLINK:
        return number(syscall(SYS_unlinkat, from_fd, from, op.flags));
    case RENAME:
        return number(syscall(SYS_renameat2, from_fd, from, to_fd, to, op.flags));
    case LINK:
        return number(syscall(SYS_linkat, from_fd, from, to_fd, to, op.flags));
    case SYMLINK:
        snprintf(target, sizeof target, "%s%s%s", op.target_is_absolute ? prefixes[side][0] : "",
            op.target_is_absolute ? "/" : "", op.target);
        return number(syscall(SYS_symlinkat, op.to.is_raw ? op.to.raw : target, from_fd, from));
    case CHMOD:
        return number(syscall(SYS_fchmodat, from_fd, from, op.mode));
    case CHOWN:
        return number(syscall(SYS_fchownat, from_fd, from, op.uid, op.gid, op.flags));
    case UTIMENS:
        return number(syscall(SYS_utimensat, from_fd, from, op.has_times ? op.times : NULL, op.flags));
    case CREATE:
        return create(from_fd, from);
    case MAKE_FIFO:
        return number(mknodat(from_fd, from, S_IFIFO | (op.mode & 0777), 0));
    case TRUNCATE:
        return from_fd == AT_FDCWD && op.from.start == ABSOLUTE ? number(truncate(from, op.mode)) : 0;
    case BY_DESCRIPTOR:
        return by_descriptor(from_fd, from);
    default:
        return 0;
    }
}

/* Both sides enter a directory. Only the kernel has that of `b`. */
static void change_directory(void)
{
    if (op.from.is_raw || op.from.start != ABSOLUTE)
        return;
    long theirs = number(chdir(path_of(B, 1, op.from.rest)));
    int fd = theirs == 0 ? open(".", O_PATH | O_DIRECTORY) : -1;
    long ours = number(chdir(path_of(A, op.by_kernel, op.from.rest)));
    same("chdir", ours, theirs);
    if (fd >= 0) {
        must(ours == 0, "follow");
        close(cwd_b);
        cwd_b = fd;
    }
}

static void open_pair(int pairs[PAIRS][2], int flags)
{
    int from_fd, *pair = pairs[op.from.pair];
    if (op.from.is_raw || (op.from.start == DESCRIPTOR && pairs == directories))
        return;
    struct stat found;
    const char *path = place(&op.from, B, &from_fd);
    if (!(flags & O_DIRECTORY) && (fstatat(from_fd, path, &found, 0) != 0 || !S_ISREG(found.st_mode)))
        return;
    int theirs = openat(from_fd, path, flags), error = errno;
    path = place(&op.from, A, &from_fd);
    int ours = openat(from_fd, path, flags | (op.by_kernel && flags & O_DIRECTORY ? O_PATH : 0));
    if (!op.by_kernel)
        same("open", ours < 0 ? -errno : 0, theirs < 0 ? -error : 0);
    if (ours < 0 || theirs < 0) {
        close(ours);
        close(theirs);
        return;
    }
    close(pair[A]);
    close(pair[B]);
    pair[A] = ours;
    pair[B] = theirs;
}

/* Times that the test has set are far from the present. */
static int is_present(const struct timespec *time)
{
    return time->tv_sec >= begun - 10000 && time->tv_sec < begun + 10000;
}

static int same_times(const struct timespec *x, const struct timespec *y)
{
    return is_present(x) ? is_present(y) : x->tv_sec == y->tv_sec && x->tv_nsec == y->tv_nsec;
}

static void same_stats(const char *what, const struct stat *x, const struct stat *y)
{
    static const char *const fields[] = { "mode", "uid", "gid", "links", "size", "rdev", "mtime", "seconds" };
    long ours[] = { x->st_mode, x->st_uid, x->st_gid, x->st_nlink, x->st_size, x->st_rdev, 1, 0 };
    long theirs[] = { y->st_mode, y->st_uid, y->st_gid, y->st_nlink, y->st_size, y->st_rdev, same_times(&x->st_mtim, &y->st_mtim), 0 };
    char text[64];
    for (int field = 0; field < 7; field++) {
        snprintf(text, sizeof text, "%s: %s", what, fields[field]);
        same(text, ours[field], theirs[field]);
    }
}

/* An object in all four views: `a` in the process and in the kernel, `b` in both. */
struct seen {
    long result[4];
    struct stat stat[4];
};

static const char *const views[] = { "a", "a in the kernel", "b in the kernel", "b" };

static void look(struct seen *it, const struct target *at, const char *rest, int all)
{
    for (int view = 0; view < 4; view++) {
        enum side side = view / 2;
        int kernel = view == 1 || view == 2, fd = AT_FDCWD;
        const char *path = rest;
        if (at->start == ABSOLUTE) {
            path = path_of(side, kernel, rest);
        } else if (kernel || side == B) {
            /* The kernel's view from a directory: through its descriptor. */
            fd = at->start == CWD ? (side == B ? cwd_b : AT_FDCWD) : directories[at->pair][side];
            if (view == 3 || (view == 1 && at->start == CWD)) {
                it->result[view] = it->result[view - 1];
                it->stat[view] = it->stat[view - 1];
                continue;
            }
        } else {
            fd = at->start == CWD ? AT_FDCWD : directories[at->pair][A];
        }
        if (!all && view != 0 && view != 2) {
            it->result[view] = it->result[view - 1];
            it->stat[view] = it->stat[view - 1];
            continue;
        }
        it->result[view] = number(fstatat(fd, path, &it->stat[view], AT_SYMLINK_NOFOLLOW));
    }
}

static int changed(const struct timespec *before, const struct timespec *now)
{
    return before->tv_sec != now->tv_sec || before->tv_nsec != now->tv_nsec;
}

static void same_looks(const struct seen *before, const struct seen *now)
{
    char text[64];
    for (int view = 0; view < 4; view++) {
        same(views[view], now->result[view], now->result[2]);
        if (now->result[view] != 0 || now->result[2] != 0)
            continue;
        same_stats(views[view], &now->stat[view], &now->stat[2]);
        same(views[view == 1 ? 1 : 3], now->stat[view == 1 ? 1 : 3].st_ino, now->stat[view == 1 ? 0 : 2].st_ino);
        if (op.what == UTIMENS && !is_present(&now->stat[view].st_atim))
            same("atime", same_times(&now->stat[view].st_atim, &now->stat[2].st_atim), 1);
        if (!before || before->result[view] != 0 || before->result[2] != 0)
            continue;
        snprintf(text, sizeof text, "%s: mtime has changed", views[view]);
        same(text, changed(&before->stat[view].st_mtim, &now->stat[view].st_mtim),
            changed(&before->stat[2].st_mtim, &now->stat[2].st_mtim));
        snprintf(text, sizeof text, "%s: ctime has changed", views[view]);
        same(text, changed(&before->stat[view].st_ctim, &now->stat[view].st_ctim),
            changed(&before->stat[2].st_ctim, &now->stat[2].st_ctim));
    }
}

/* The names of a step, and the directories that they are in. */
#define TOUCHED 4
static void touched(int at, const struct target **target, char *rest)
{
    *target = at < 2 ? &op.from : &op.to;
    strcpy(rest, (*target)->is_raw || !(*target)->rest[0] ? "." : (*target)->rest);
    if (at % 2 == 0)
        return;
    char *slash = strrchr(rest, '/');
    strcpy(slash ? slash : rest, slash ? "" : ".");
    if (!rest[0])
        strcpy(rest, ".");
}

static void open_files(int before)
{
    static struct stat old[PAIRS][2];
    for (int at = 0; at < PAIRS; at++) {
        struct stat now[2];
        if (files[at][A] < 0)
            continue;
        must(fstat(files[at][A], &now[A]) == 0 && fstat(files[at][B], &now[B]) == 0, "fstat");
        if (!before && old[at][A].st_ino == now[A].st_ino && old[at][B].st_ino == now[B].st_ino) {
            same_stats("an open file", &now[A], &now[B]);
            same("an open file: ctime has changed", changed(&old[at][A].st_ctim, &now[A].st_ctim),
                changed(&old[at][B].st_ctim, &now[B].st_ctim));
        }
        memcpy(old[at], now, sizeof now);
    }
}

/* Where the kernel finds the working directory. */
static void working_directory(void)
{
    char ours[LONG], theirs[LONG], link[64];
    long got = number(syscall(SYS_getcwd, ours, sizeof ours));
    snprintf(link, sizeof link, "/proc/self/fd/%d", cwd_b);
    long length = readlink(link, theirs, sizeof theirs - 1);
    must(length > 0, "readlink");
    theirs[length] = 0;
    char *deleted = strstr(theirs, " (deleted)");
    same("getcwd", got < 0 ? got : 0, deleted ? -ENOENT : 0);
    if (got > 0 && !deleted && (strlen(ours) < strlen(root) || strcmp(ours + strlen(root) + 2, theirs + strlen(root) + 2))) {
        printf("getcwd: %s, kernel %s\n", ours, theirs);
        differ("getcwd", 0, 1);
    }
}

/* In a directory that is removed while a descriptor is open any call fails, but with which error
 * depends on what the kernel knows. */
static int is_gone(const struct target *it)
{
    struct stat found;
    int fd = it->start == CWD ? cwd_b : directories[it->pair][B];
    return !it->is_raw && it->start != ABSOLUTE && fstat(fd, &found) == 0 && found.st_nlink == 0;
}

/* The kernel takes over a directory by its path. So one that cannot be opened any more is closed. */
static void renew(const struct target *it)
{
    char link[64], path[LONG] = "/proc/self/root";
    int *pair = directories[it->pair];
    if (it->is_raw || it->start != DESCRIPTOR)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", pair[B]);
    long length = readlink(link, path + 15, sizeof path - 16);
    must(length > 0, "readlink");
    path[15 + length] = 0;
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || faccessat(fd, ".", X_OK, 0) != 0) {
        int ours = open(prefixes[A][0], O_RDONLY | O_DIRECTORY), theirs = open(prefixes[B][1], O_RDONLY | O_DIRECTORY);
        must(ours >= 0 && theirs >= 0, "open the top");
        close(pair[A]);
        close(pair[B]);
        pair[A] = ours;
        pair[B] = theirs;
    }
    close(fd);
}

static void step(void)
{
    struct seen before[TOUCHED], now;
    const struct target *target;
    char rest[LONG];
    step_number++;
    choose_operation();
    renew(&op.from);
    renew(&op.to);
    int all = below(2);
    for (int at = 0; at < TOUCHED; at++) {
        touched(at, &target, rest);
        look(&before[at], target, rest, all);
    }
    open_files(1);
    if (op.what == UMASK)
        umask(op.mode & 2 ? 022 : op.mode & 0777);
    else if (op.what == CHDIR)
        change_directory();
    else if (op.what == OPEN_DIRECTORY)
        open_pair(directories, O_RDONLY | O_DIRECTORY);
    else if (op.what == OPEN_FILE)
        open_pair(files, O_RDONLY);
    else {
        int gone = is_gone(&op.from) || is_gone(&op.to);
        long ours = perform(A), theirs = perform(B);
        same("result", gone ? ours < 0 : ours, gone ? theirs < 0 : theirs);
    }
    if (op.what >= UMASK)
        return;
    for (int at = 0; at < TOUCHED; at++) {
        touched(at, &target, rest);
        look(&now, target, rest, all);
        same_looks(&before[at], &now);
    }
    open_files(0);
    if (below(4) == 0)
        working_directory();
}

/* The names in a directory, in order. */
static int list(const char *path, char found[NAMES_MAX][260])
{
    int count = 0;
    DIR *dir = opendir(path);
    if (!dir)
        return -errno;
    for (struct dirent *entry; (entry = readdir(dir)) && count < NAMES_MAX;)
        strcpy(found[count++], entry->d_name);
    closedir(dir);
    qsort(found, count, sizeof found[0], (int (*)(const void *, const void *))strcmp);
    return count;
}

static ino_t inodes[NAMES_MAX][2];
static int known;

/* Names of one inode in `a` are names of one inode in `b`. */
static void same_inodes(ino_t ours, ino_t theirs)
{
    for (int at = 0; at < known; at++)
        if (inodes[at][A] == ours || inodes[at][B] == theirs) {
            same("inode", inodes[at][A] == ours, inodes[at][B] == theirs);
            return;
        }
    if (known < NAMES_MAX) {
        inodes[known][A] = ours;
        inodes[known++][B] = theirs;
    }
}

static void same_links(const char *rest)
{
    char targets[4][4200];
    for (int view = 0; view < 4; view++) {
        long length = readlink(path_of(view / 2, view == 1 || view == 2, rest), targets[view], 4199);
        must(length >= 0, "readlink");
        targets[view][length] = 0;
        size_t in = strlen(root) + 1;
        if (strncmp(targets[view], prefixes[view / 2][0], in + 1) == 0)
            targets[view][in] = 'a';
    }
    for (int view = 0; view < 4; view++)
        same("target", strcmp(targets[view], targets[2]), 0);
}

static int same_trees(const char *rest, int depth)
{
    char(*found)[260] = malloc(4 * NAMES_MAX * 260);
    int counts[4], total = 0;
    for (int view = 0; view < 4; view++)
        counts[view] = list(path_of(view / 2, view == 1 || view == 2, rest), found + view * NAMES_MAX);
    for (int view = 0; view < 4; view++) {
        same("names", counts[view], counts[2]);
        for (int at = 0; at < counts[view] && at < counts[2]; at++)
            same("name", strcmp(found[view * NAMES_MAX + at], found[2 * NAMES_MAX + at]), 0);
    }
    for (int at = 0; at < counts[2]; at++) {
        struct target target = { .start = ABSOLUTE };
        struct seen seen;
        char *name = found[2 * NAMES_MAX + at];
        if (!strcmp(name, ".") || !strcmp(name, "..") || strlen(rest) + strlen(name) > 3000)
            continue;
        snprintf(target.rest, sizeof target.rest, "%s/%s", rest, name);
        look(&seen, &target, target.rest, 1);
        same_looks(NULL, &seen);
        total++;
        if (seen.result[0] != 0 || seen.result[2] != 0)
            continue;
        same_inodes(seen.stat[0].st_ino, seen.stat[2].st_ino);
        if (S_ISLNK(seen.stat[0].st_mode))
            same_links(target.rest);
        if (S_ISDIR(seen.stat[0].st_mode) && depth < 30)
            total += same_trees(target.rest, depth + 1);
    }
    free(found);
    return total;
}

static void compare_trees(void)
{
    op.what = UMASK;
    op.from.is_raw = op.to.is_raw = 1;
    known = 0;
    same_trees(".", 0);
}

/* The random steps, sometimes those of a child. */
static void random_steps(void)
{
    for (int at = 0; at < STEPS; at++) {
        step();
        if (at % 250 == 100) {
            fflush(stdout);
            pid_t child = fork();
            must(child >= 0, "fork");
            if (child == 0) {
                long before = differing;
                for (int of_child = 0; of_child < STEPS_OF_CHILD; of_child++)
                    step();
                fflush(stdout);
                _exit(differing != before);
            }
            int status;
            must(waitpid(child, &status, 0) == child, "wait");
            same("a child", status, 0);
            below(2);
        }
        if (at % 50 == 0)
            compare_trees();
    }
}

/* Changes that nothing keeps from being served, by the calls without descriptors, which the rest
 * seldom uses: the harness counts those that the kernel makes. */
static void plain(void)
{
    umask(022);
    for (int at = 0; at < PLAIN; at++) {
        char first[2600], second[2600];
        struct stat found;
        snprintf(first, sizeof first, "%s/busy/plain-%d", prefixes[A][0], at);
        snprintf(second, sizeof second, "%s/busy/other-%d", prefixes[A][0], at);
        same("mkdir", number(syscall(SYS_mkdir, first, 0777)), 0);
        same("mkdir of what is there", number(syscall(SYS_mkdir, first, 0777)), -EEXIST);
        same("lstat", lstat(first, &found), 0);
        same("mode", found.st_mode, S_IFDIR | 0755);
        same("chmod", number(syscall(SYS_chmod, first, 0700)), 0);
        same("chown", number(syscall(SYS_chown, first, getuid(), -1)), 0);
        same("rename", number(syscall(SYS_rename, first, second)), 0);
        same("the old name", number(syscall(SYS_rmdir, first)), -ENOENT);
        same("rmdir", number(syscall(SYS_rmdir, second)), 0);
        same("symlink", number(syscall(SYS_symlink, "target", first)), 0);
        same("lchown", number(syscall(SYS_lchown, first, -1, getgid())), 0);
        same("link", number(syscall(SYS_link, first, second)), 0);
        same("lstat", lstat(second, &found), 0);
        same("links", found.st_nlink, 2);
        same("unlink", number(syscall(SYS_unlink, first)), 0);
        same("unlink", number(syscall(SYS_unlink, second)), 0);
        same("unlink of what is gone", number(syscall(SYS_unlink, second)), -ENOENT);
    }
}

/* Each thread has names of its own, and looks at those of the others. */
static volatile int threads_end;
static pthread_barrier_t barrier;

static void *changer(void *argument)
{
    long self = (long)argument, wrong = 0;
    char first[2][2600], second[2][2600];
    struct stat found;
    for (int kernel = 0; kernel < 2; kernel++) {
        snprintf(first[kernel], 2600, "%s/busy/of-%ld", prefixes[A][kernel], self);
        snprintf(second[kernel], 2600, "%s/busy/moved-%ld", prefixes[A][kernel], self);
    }
    pthread_barrier_wait(&barrier);
    for (int round = 0; round < ROUNDS; round++) {
        wrong += mkdirat(AT_FDCWD, first[0], 0777) != 0;
        wrong += stat(first[round & 1], &found) != 0 || (found.st_mode & 0700) != 0700;
        /* One thread changes the mask between two. */
        int mask = 0777 & ~(int)found.st_mode;
        wrong += mask != 0 && mask != 022 && mask != 077;
        wrong += mkdirat(AT_FDCWD, first[0], 0777) != -1 || errno != EEXIST;
        wrong += fchmodat(AT_FDCWD, first[0], 0710 | (round & 7), 0) != 0;
        wrong += stat(first[round >> 1 & 1], &found) != 0 || (found.st_mode & 07777) != (unsigned)(0710 | (round & 7));
        wrong += renameat(AT_FDCWD, first[0], AT_FDCWD, second[round >> 2 & 1]) != 0;
        wrong += stat(first[0], &found) == 0 || stat(first[1], &found) == 0;
        wrong += stat(second[0], &found) != 0 || stat(second[1], &found) != 0;
        wrong += unlinkat(AT_FDCWD, second[round >> 3 & 1], AT_REMOVEDIR) != 0;
        wrong += stat(second[1], &found) == 0 || stat(second[0], &found) == 0;
    }
    return (void *)wrong;
}

static void *observer(void *argument)
{
    long wrong = 0;
    char path[2600];
    struct stat found;
    pthread_barrier_wait(&barrier);
    for (long round = 0; !threads_end; round++) {
        int kernel = round >> 1 & 1;
        snprintf(path, sizeof path, "%s/busy/%s-%ld", prefixes[A][kernel], round & 4 ? "of" : "moved", round % THREADS);
        int result = stat(path, &found);
        wrong += result != 0 && errno != ENOENT;
        wrong += result == 0 && !S_ISDIR(found.st_mode);
        if (argument && round % 8 == 0)
            umask(round & 8 ? 022 : round & 16 ? 077 : 0);
    }
    return (void *)wrong;
}

static void threads(void)
{
    /* Root may have removed it. */
    mkdirat(AT_FDCWD, path_of(A, 0, "busy"), 0777);
    must(getuid() != 0 || chmod(path_of(A, 0, "busy"), 0777) == 0, "open the directory to all");
    pthread_t changers[THREADS], observers[2];
    void *wrong;
    umask(022);
    threads_end = 0;
    pthread_barrier_init(&barrier, NULL, THREADS + 2);
    for (long at = 0; at < 2; at++)
        must(pthread_create(&observers[at], NULL, observer, (void *)at) == 0, "create a thread");
    for (long at = 0; at < THREADS; at++)
        must(pthread_create(&changers[at], NULL, changer, (void *)at) == 0, "create a thread");
    for (int at = 0; at < THREADS; at++) {
        pthread_join(changers[at], &wrong);
        same("calls of a thread that changes", (long)wrong, 0);
    }
    threads_end = 1;
    for (int at = 0; at < 2; at++) {
        pthread_join(observers[at], &wrong);
        same("calls of a thread that looks", (long)wrong, 0);
    }
    umask(022);
}

static void *set_mask(void *argument)
{
    umask((long)argument);
    return NULL;
}

/* The mask is that of the process, whichever thread or child sets it. */
static void masks(void)
{
    static const long all[] = { 0, 022, 027, 077, 0777, 0111 };
    struct stat found;
    const char *path = path_of(A, 0, "busy/masked");
    for (int at = 0; at < 60; at++) {
        long mask = all[at % 6];
        pthread_t thread;
        if (at % 3 == 0) {
            must(pthread_create(&thread, NULL, set_mask, (void *)mask) == 0 && pthread_join(thread, NULL) == 0, "create a thread");
        } else {
            umask(mask);
        }
        if (at % 4 == 0) {
            pid_t child = at % 8 == 0 ? vfork() : fork();
            if (child == 0) {
                umask(~mask);
                _exit(0);
            }
            must(waitpid(child, NULL, 0) == child, "wait");
        }
        same("mkdir", mkdir(path, 01777), 0);
        same("stat", stat(path, &found), 0);
        same("a masked mode", found.st_mode & 07777, 01000 | (0777 & ~mask));
        same("rmdir", rmdir(path), 0);
    }
    umask(022);
}

/* A child of vfork, which has the process's memory, makes changes; the process sees them. */
static void vfork_children(void)
{
    struct stat found;
    static char first[2600], second[2600];
    snprintf(first, sizeof first, "%s/busy/of-child", prefixes[A][0]);
    snprintf(second, sizeof second, "%s/busy/of-child-moved", prefixes[A][0]);
    for (int at = 0; at < 30; at++) {
        same("stat", stat(first, &found) == -1 && errno == ENOENT, 1);
        pid_t child = vfork();
        if (child == 0) {
            int wrong = mkdir(first, 0700) != 0 || mkdir(first, 0700) == 0 || chmod(first, 0750) != 0;
            wrong |= rename(first, second) != 0 || stat(first, &found) == 0 || mkdir(first, 0711) != 0;
            _exit(wrong);
        }
        int status;
        must(waitpid(child, &status, 0) == child, "wait");
        same("a child of vfork", status, 0);
        same("stat of what it made", stat(first, &found) == 0 && (found.st_mode & 0777) == 0711, 1);
        same("stat of what it moved", stat(second, &found) == 0 && (found.st_mode & 0777) == 0750, 1);
        same("rmdir", rmdir(first) == 0 && rmdir(second) == 0, 1);
    }
}

/* Both paths of a call have an error: that of the first counts. */
static void first_error(void)
{
    const char *closed = path_of(A, 0, "closed/x"), *missing = path_of(A, 0, "busy/missing/x");
    long wanted = getuid() == 0 ? -ENOENT : -EACCES;
    for (int at = 0; at < 4; at++) {
        same("rename out of a closed directory", number(renameat(AT_FDCWD, closed, AT_FDCWD, missing)), wanted);
        same("rename into a closed directory", number(renameat(AT_FDCWD, missing, AT_FDCWD, closed)), -ENOENT);
        same("link out of a closed directory", number(linkat(AT_FDCWD, closed, AT_FDCWD, missing, 0)), wanted);
    }
}

/* Where the process is, after it has moved or removed that directory or one above it. */
static void moved_under_foot(void)
{
    char wanted[2600], found[2600];
    for (int round = 0; round < 12; round++) {
        const char *top = path_of(A, 0, "busy/top"), *moved = path_of(A, 0, "busy/moved-top");
        same("mkdir", mkdir(top, 0755), 0);
        same("mkdir", mkdir(path_of(A, 0, "busy/top/here"), 0755), 0);
        same("chdir", chdir(path_of(A, round & 1, "busy/top/here")), 0);
        same("rename", rename(top, moved), 0);
        snprintf(wanted, sizeof wanted, "%s/busy/moved-top/here", prefixes[A][0]);
        same("getcwd", getcwd(found, sizeof found) && !strcmp(found, wanted), 1);
        same("rename of the cwd", rename("../here", "../there"), 0);
        snprintf(wanted, sizeof wanted, "%s/busy/moved-top/there", prefixes[A][0]);
        same("getcwd", getcwd(found, sizeof found) && !strcmp(found, wanted), 1);
        same("mkdir here", mkdir("x", 0755) == 0 && rmdir("x") == 0, 1);
        same("rmdir of the cwd", rmdir(path_of(A, 0, "busy/moved-top/there")), 0);
        same("getcwd", number(syscall(SYS_getcwd, found, sizeof found)), -ENOENT);
        same("mkdir nowhere", mkdir("x", 0755) == -1 && (errno == ENOENT || errno == ESTALE), 1);
        same("mkdir again", mkdir(path_of(A, 0, "busy/moved-top/there"), 0755), 0);
        same("getcwd", number(syscall(SYS_getcwd, found, sizeof found)), -ENOENT);
        same("mkdir nowhere", mkdir("x", 0755) == -1 && (errno == ENOENT || errno == ESTALE), 1);
        same("rmdir", rmdir(path_of(A, 0, "busy/moved-top/there")), 0);
        must(chdir(path_of(A, 0, "busy")) == 0, "leave");
        same("rmdir", rmdir(moved), 0);
    }
}

/* What the kernel shows of files that it has open. */
static void shown_by_the_kernel(void)
{
    char link[64], found[700];
    struct stat before, now;
    for (int round = 0; round < 8; round++) {
        const char *first = path_of(A, 0, "busy/shown"), *second = path_of(A, 0, "busy/shown-moved");
        int fd = open(first, O_CREAT | O_RDWR, 0644);
        must(fd >= 0 && write(fd, "text", 4) == 4 && fstat(fd, &before) == 0, "create");
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        struct timespec times[2] = { { 5, 6 }, { 7, 8 } };
        same("utimensat", utimensat(AT_FDCWD, first, times, 0), 0);
        same("fstat", fstat(fd, &now) == 0 && now.st_mtim.tv_sec == 7 && now.st_mtim.tv_nsec == 8, 1);
        same("chmod", chmod(first, 0600), 0);
        same("fstat", fstat(fd, &now) == 0 && (now.st_mode & 0777) == 0600, 1);
        same("rename", rename(first, second), 0);
        same("link", linkat(AT_FDCWD, second, AT_FDCWD, first, 0), 0);
        same("fstat", fstat(fd, &now) == 0 && now.st_nlink == 2, 1);
        same("unlink", unlink(second), 0);
        same("unlink", unlink(first), 0);
        same("fstat", fstat(fd, &now) == 0 && now.st_nlink == 0 && now.st_ino == before.st_ino, 1);
        long length = readlink(link, found, sizeof found - 1);
        must(length > 0, "readlink");
        close(fd);
    }
}

/* A set-id bit that a call has set must go when the kernel writes. */
static void set_ids(void)
{
    struct stat found;
    const char *path = path_of(A, 0, "busy/powers");
    for (int round = 0; round < 8; round++) {
        int fd = open(path, O_CREAT | O_RDWR, 0777);
        must(fd >= 0 && write(fd, "text", 4) == 4, "create");
        same("chmod", chmod(path, 04755), 0);
        same("stat", stat(path, &found) == 0 && (found.st_mode & 07777) == 04755, 1);
        must(pwrite(fd, "T", 1, 0) == 1, "write");
        same("stat", stat(path, &found) == 0 && !(found.st_mode & 04000) == (getuid() != 0), 1);
        same("fstat", fstat(fd, &found) == 0 && !(found.st_mode & 04000) == (getuid() != 0), 1);
        must(close(fd) == 0 && unlink(path) == 0, "unlink");
    }
}

static volatile sig_atomic_t signals;

static void count_signal(int unused)
{
    (void)unused;
    signals++;
}

/* The oldest way to watch. In a child, because no change of the process is served afterwards. */
static void directory_signals(void)
{
    int status;
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        struct stat found;
        for (int at = 0; at < WARM; at++)
            must(stat(path_of(A, 0, "busy"), &found) == 0, "stat");
        must(mkdir(path_of(A, 0, "busy/watched"), 0755) == 0, "mkdir");
        int fd = open(path_of(A, 0, "busy/watched"), O_RDONLY | O_DIRECTORY);
        signal(SIGUSR1, count_signal);
        must(fd >= 0 && fcntl(fd, F_SETSIG, SIGUSR1) == 0, "fcntl");
        must(fcntl(fd, F_NOTIFY, DN_CREATE | DN_DELETE | DN_MULTISHOT) == 0, "watch");
        int wrong = mkdir(path_of(A, 0, "busy/watched/x"), 0755) != 0 || signals != 1;
        wrong |= rmdir(path_of(A, 0, "busy/watched/x")) != 0 || signals != 2;
        wrong |= close(fd) != 0 || rmdir(path_of(A, 0, "busy/watched")) != 0;
        _exit(wrong);
    }
    must(waitpid(child, &status, 0) == child, "wait");
    same("signals of a directory", status, 0);
}

/* Who watches sees changes of its own. The last part, because nothing is served any more then. */
static void watchers(void)
{
    const char *watched = path_of(A, 0, "busy/watched");
    char events[4096];
    must(mkdir(watched, 0755) == 0, "mkdir");
    int watcher = inotify_init1(IN_NONBLOCK);
    must(watcher >= 0 && inotify_add_watch(watcher, watched, IN_ALL_EVENTS) >= 0, "watch");
    same("mkdir", mkdir(path_of(A, 0, "busy/watched/x"), 0755), 0);
    same("rename", rename(path_of(A, 0, "busy/watched/x"), path_of(A, 0, "busy/watched/y")), 0);
    same("chmod", chmod(path_of(A, 0, "busy/watched/y"), 0700), 0);
    same("rmdir", rmdir(path_of(A, 0, "busy/watched/y")), 0);
    unsigned seen = 0;
    long length;
    while ((length = read(watcher, events, sizeof events)) > 0)
        for (char *at = events; at < events + length;) {
            struct inotify_event *event = (void *)at;
            seen |= event->mask;
            at += sizeof *event + event->len;
        }
    same("events", seen & 0xfff, IN_CREATE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB | IN_DELETE);
    close(watcher);
    must(rmdir(path_of(A, 0, "busy/watched")) == 0, "rmdir");
}

static void file(const char *path, mode_t mode, uid_t uid, gid_t gid)
{
    int fd = open(path, O_CREAT | O_WRONLY | O_EXCL, 0600);
    must(fd >= 0 && write(fd, "text\n", 5) == 5, path);
    must(fchown(fd, uid, gid) == 0 && fchmod(fd, mode) == 0 && close(fd) == 0, path);
}

static void directory(const char *path, mode_t mode, uid_t uid, gid_t gid)
{
    must(mkdir(path, 0700) == 0 && chown(path, uid, gid) == 0 && chmod(path, mode) == 0, path);
}

static void prepare(void)
{
    static const struct {
        const char *name;
        mode_t mode;
        uid_t uid;
        gid_t gid;
    } all[] = {
        { "busy", 0777, 0, 0 }, { "sticky", 01777, 0, 0 }, { "shared", 02777, 0, 54330 }, { "others", 0755, 54322, 54321 },
        { "closed", 0700, 0, 0 }, { "grouped", 03770, 0, 54330 }, { "readable", 0555, 54321, 54321 },
    };
    must(chmod(root, 0755) == 0, "chmod");
    for (int side = A; side <= B; side++) {
        /* So that no `..` leads from one tree to the other. */
        char above[512] = "";
        strncat(above, prefixes[side][0], strlen(root) + 2);
        directory(above, 0755, 0, 0);
        directory(strcat(above, "/above"), 0755, 0, 0);
        directory(prefixes[side][0], 0755, 0, 0);
        for (size_t at = 0; at < sizeof all / sizeof *all; at++) {
            must(chdir(prefixes[side][0]) == 0, "enter the tree");
            directory(all[at].name, all[at].mode, all[at].uid, all[at].gid);
            must(chdir(all[at].name) == 0, "enter a directory");
            file("f0", 0644, 54321, 54321);
            file("f1", 0666, 54322, 54330);
            file("g0", 06775, 54321, 54330);
            directory("d0", 0755, 54321, 54321);
            directory("d1", 0777, 54322, 54321);
            must(symlink("d1", "l0") == 0 && lchown("l0", 54321, 54321) == 0, "symlink");
        }
    }
}

static void begin(unsigned long seed)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    begun = now.tv_sec;
    state = seed * 2654435761UL + 88172645463325252UL;
    memset(name_255, 'n', 255);
    memset(name_256, 'm', 256);
    for (int at = 0; at < 600; at++)
        path_600[at] = "./"[at % 2];
    strcpy(path_600 + 600, "f0");
    for (int at = 0; at < 5000; at++)
        path_5000[at] = "d/"[at % 2];
    hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(hole != MAP_FAILED, "map");
    struct stat found;
    /* Until this process is admitted and has its paths. */
    for (int at = 0; at < WARM; at++)
        must(stat(path_of(A, 0, "busy"), &found) == 0, "stat");
    must(chdir(path_of(B, 1, "busy")) == 0, "enter the tree");
    cwd_b = open(".", O_PATH | O_DIRECTORY);
    must(cwd_b >= 0 && chdir(path_of(A, 0, "busy")) == 0, "enter the tree");
    for (int at = 0; at < PAIRS; at++) {
        directories[at][A] = open(path_of(A, 0, tops[at]), O_RDONLY | O_DIRECTORY);
        directories[at][B] = open(path_of(B, 1, tops[at]), O_RDONLY | O_DIRECTORY);
        must(directories[at][A] >= 0 && directories[at][B] >= 0, "open a directory");
    }
}

int main(int count, char **words)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count == 3, "run without a command and a directory");
    root = words[2];
    for (int side = A; side <= B; side++)
        for (int kernel = 0; kernel < 2; kernel++)
            snprintf(prefixes[side][kernel], 512, "%s%s/%c/above/tree", kernel ? "/proc/self/root" : "", root, "ab"[side]);
    if (strcmp(words[1], "prepare") == 0) {
        umask(0);
        prepare();
        return 0;
    }
    begin(getenv("CASE_SEED") ? strtoul(getenv("CASE_SEED"), 0, 10) : 1);
    plain();
    masks();
    vfork_children();
    first_error();
    moved_under_foot();
    shown_by_the_kernel();
    set_ids();
    random_steps();
    threads();
    directory_signals();
    watchers();
    printf("%ld compared, %ld differ\n", compared, differing);
    return differing != 0;
}
