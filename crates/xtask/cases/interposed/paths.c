/* Calls by path, as the interposer may answer them, beside the same calls that only the kernel
 * answers: from a descriptor of the same directory in another mount of the tree. KERNEL_FD is the
 * number of a descriptor of that mount. Every byte must be the same.
 *   paths prepare DIR     makes a tree with everything that a path can meet
 *   paths compare DIR     compares, and prints what differs
 *   paths changes DIR     other processes change mounts, and the path to DIR, which is a mount
 *   paths cost DIR        prints what calls cost; fstatat is the kernel's if there is KERNEL_FD */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_faccessat2
#define SYS_faccessat2 439
#endif
#define ROUNDS 1
#define WARM 10000
#define ATTEMPTS 4
#define LINES_MAX 40

static const char *root;
/* The mount in which calls are served, and the other one. The kernel has opened both. */
static int root_fd, kernel_fd = -1;
static long compared, differing;

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        exit(2);
    }
}

/* A name of 255 bytes, one of 256, and a path that is too long. */
static char name_255[256], name_256[257], path_5000[5001], deep[600], closed_256[300];

static void make_names(void)
{
    memset(name_255, 'n', 255);
    memset(name_256, 'm', 256);
    snprintf(closed_256, sizeof closed_256, "closed/%s", name_256);
    for (int at = 0; at < 5000; at++)
        path_5000[at] = at % 2 ? '/' : 'd';
    for (int at = 0; at < 100; at++)
        strcat(deep, "down/");
    strcat(deep, "end");
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
    must(chdir(root) == 0 && chmod(".", 0755) == 0, "enter the tree");
    umask(0);
    directory("dir", 0755, 0, 0);
    file("dir/file", 0644, 0, 0);
    directory("dir/sub", 0755, 0, 0);
    file("dir/sub/leaf", 0600, 54321, 54321);
    file("file", 0644, 54321, 54321);
    file("program", 0755, 0, 0);
    file("powers", 06755, 54321, 54330);
    file("secret", 0, 0, 0);
    file("group", 0070, 0, 54330);
    file("group-only", 0740, 0, 54321);
    file("others", 0007, 54321, 0);
    file("write-only", 0222, 0, 0);
    file(name_255, 0644, 0, 0);
    must(link("file", "dir/hard") == 0, "link");
    directory("sticky", 01777, 0, 0);
    directory("closed", 0, 0, 0);
    directory("search", 0711, 0, 0);
    file("search/inside", 0644, 0, 0);
    directory("listed", 0744, 0, 0);
    file("listed/inside", 0644, 0, 0);
    chmod("closed", 0700);
    file("closed/inside", 0644, 0, 0);
    chmod("closed", 0);
    must(mkfifo("fifo", 0600) == 0 && mknod("socket", S_IFSOCK | 0755, 0) == 0, "mknod");
    must(mknod("char", S_IFCHR | 0644, makedev(1, 3)) == 0, "mknod of a device");
    must(mknod("char-large", S_IFCHR | 0600, makedev(300, 70000)) == 0, "mknod of a device");
    must(mknod("block", S_IFBLK | 0600, makedev(7, 200)) == 0, "mknod of a device");
    char absolute[4096];
    snprintf(absolute, sizeof absolute, "%s/dir/file", root);
    const char *links[][2] = {
        { "file", "to-file" }, { "dir", "to-dir" }, { "dir/", "to-dir-slash" }, { "/etc/passwd", "outside" },
        { "../..", "above" }, { "..", "dir/up" }, { "../file", "dir/to-file" }, { "loop", "loop" }, { "two", "one" },
        { "one", "two" }, { "nothing", "dangling" }, { "nothing/", "dangling-slash" }, { ".", "here" },
        { "/", "to-slash" }, { "file/", "to-file-slash" }, { "dir/sub/../file", "dotted" }, { absolute, "absolute" },
        { "secret/x", "through-file" }, { "closed/inside", "to-closed" }, { "x", "short" },
    };
    for (size_t at = 0; at < sizeof links / sizeof *links; at++)
        must(symlink(links[at][0], links[at][1]) == 0, "symlink");
    for (int at = 0; at < 42; at++) {
        char name[32], target[32];
        snprintf(name, sizeof name, "chain-%d", at);
        snprintf(target, sizeof target, at ? "chain-%d" : "file", at - 1);
        must(symlink(target, name) == 0, "symlink");
    }
    struct timespec old[2] = { { -5, 7 }, { -1000000000, 999999999 } };
    struct timespec far[2] = { { 4000000000, 1 }, { 1, 0 } };
    must(utimensat(AT_FDCWD, "program", old, 0) == 0 && utimensat(AT_FDCWD, "powers", far, 0) == 0, "set times");
    must(truncate("write-only", 5000000000) == 0, "truncate");
    int at = open(".", O_RDONLY | O_DIRECTORY);
    for (int depth = 0; depth < 100; depth++) {
        must(mkdirat(at, "down", 0755) == 0, "mkdir");
        int next = openat(at, "down", O_RDONLY | O_DIRECTORY);
        close(at);
        at = next;
    }
    must(mknodat(at, "end", S_IFREG | 0644, 0) == 0 && close(at) == 0, "mknod");
}

/* The path as the program writes it, and what it is from a descriptor that the kernel has opened, in
 * the mount that is served and in the other one. */
struct place {
    const char *path, *rest;
    int served, from;
};

enum form { WITHOUT_DESCRIPTOR, FROM_NOWHERE, FROM_DESCRIPTOR, FORMS };

enum kind { STAT, STATX, ACCESS, LINK };
struct result {
    long value;
    unsigned char bytes[4200];
};

static long number(long value)
{
    return value < 0 ? -errno : value;
}

/* The ids of the two mounts, the second one unique. */
static unsigned long served_ids[2], kernel_ids[2];

static void ids(int fd, unsigned long *into)
{
    static const unsigned masks[] = { STATX_MNT_ID, 0x4000 };
    struct statx found;
    for (int at = 0; at < 2; at++) {
        must(syscall(SYS_statx, fd, "", AT_EMPTY_PATH, masks[at], &found) == 0, "statx");
        into[at] = found.stx_mnt_id;
    }
}

/* `form` 0 is the call that has no descriptor, if there is one. */
static void call(struct result *it, enum kind kind, int fd, const char *path, int form, unsigned a, unsigned b)
{
    memset(it, 0xa5, sizeof *it);
    long value = 0;
    switch (kind) {
    case STAT:
        if (form == 0 && a == 0)
            value = syscall(SYS_stat, path, it->bytes);
        else if (form == 0 && a == AT_SYMLINK_NOFOLLOW)
            value = syscall(SYS_lstat, path, it->bytes);
        else
            value = syscall(SYS_newfstatat, fd, path, it->bytes, a);
        break;
    case STATX:
        value = syscall(SYS_statx, fd, path, a, b, it->bytes);
        break;
    case ACCESS:
        if (form == 0 && b == 0)
            value = syscall(SYS_access, path, a);
        else if (b == 0)
            value = syscall(SYS_faccessat, fd, path, a);
        else
            value = syscall(SYS_faccessat2, fd, path, a, b);
        break;
    case LINK:
        value = form == 0 ? syscall(SYS_readlink, path, it->bytes, a) : syscall(SYS_readlinkat, fd, path, it->bytes, a);
    }
    it->value = number(value);
    struct statx *x = (void *)it->bytes;
    /* The kernel shows it unasked if it happens to know it. */
    if (kind == STATX && it->value == 0 && !(b & STATX_BTIME)) {
        x->stx_mask &= ~STATX_BTIME;
        memset(&x->stx_btime, 0, sizeof x->stx_btime);
    }
    if (kind == STATX && it->value == 0)
        for (int at = 0; at < 2; at++)
            if (x->stx_mnt_id == kernel_ids[at])
                x->stx_mnt_id = served_ids[at];
}

/* Where `compare` begins, and whether its directory was removed. */
static int first_form, is_removed;

/* A directory that was removed and is open by O_PATH alone, of which a front knows nothing. */
static int may_be_stale(long kernels)
{
    return is_removed && kernels == -ESTALE;
}

/* The kernel counts the links of a walk twice if it has to begin again, so it may answer ELOOP for a
 * chain that is nearly too long. A difference counts if it stays. */
static void compare(const struct place *place, enum kind kind, unsigned a, unsigned b)
{
    static struct result ours, theirs;
    int agree = 0, form = first_form;
    call(&theirs, kind, place->from, place->rest, 1, a, b);
    for (int attempt = 0; form < FORMS && attempt < ATTEMPTS; form += agree, attempt += !agree) {
        if (form == FROM_DESCRIPTOR)
            call(&ours, kind, place->served, place->rest, 1, a, b);
        else
            call(&ours, kind, AT_FDCWD, place->path, form, a, b);
        agree = !memcmp(&ours, &theirs, sizeof ours) || may_be_stale(theirs.value);
        if (!agree)
            call(&theirs, kind, place->from, place->rest, 1, a, b);
    }
    compared += FORMS;
    if (agree)
        return;
    if (differing++ < LINES_MAX) {
        size_t at = 0;
        while (at < sizeof ours.bytes - 1 && ours.bytes[at] == theirs.bytes[at])
            at++;
        printf("%.80s (%d): %#x %#x form %d: %ld, kernel %ld, byte %zu: %x, kernel %x\n", place->path, kind, a, b, form,
            ours.value, theirs.value, at, ours.bytes[at], theirs.bytes[at]);
    }
}

static void all_calls(const struct place *place)
{
    static const unsigned stat_flags[] = { 0, AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT | AT_SYMLINK_NOFOLLOW, 0x2000, 0x80000 };
    static const unsigned masks[] = { 0, 0x7ff, 0xfff, 0x17ff, 0x1000, 0x4fff, 0x2fff, 0x8000, 0x80000000, 0x5000 };
    static const unsigned sync[] = { 0, AT_SYMLINK_NOFOLLOW, 0x2000, 0x4000 | AT_SYMLINK_NOFOLLOW, 0x6000, 0x80000, 0x900 };
    static const unsigned access_flags[] = { 0, AT_EACCESS, AT_SYMLINK_NOFOLLOW, AT_EACCESS | AT_SYMLINK_NOFOLLOW, 0x800 };
    static const unsigned sizes[] = { 0, -1u, 1, 3, 4096 };
    for (size_t at = 0; at < sizeof stat_flags / sizeof *stat_flags; at++)
        compare(place, STAT, stat_flags[at], 0);
    for (size_t mask = 0; mask < sizeof masks / sizeof *masks; mask++)
        for (size_t at = 0; at < sizeof sync / sizeof *sync; at++)
            compare(place, STATX, sync[at], masks[mask]);
    for (size_t at = 0; at < sizeof access_flags / sizeof *access_flags; at++)
        for (unsigned mode = 0; mode <= 8; mode++)
            compare(place, ACCESS, mode, access_flags[at]);
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++)
        compare(place, LINK, sizes[at], 0);
}

static const char *const names[] = {
    ".", "dir", "dir/file", "dir/sub", "dir/sub/leaf", "file", "program", "powers", "secret", "group", "group-only",
    "others", "write-only", "dir/hard", "sticky", "closed", "closed/inside", "search", "search/inside", "listed",
    "listed/inside", "fifo", "socket", "char", "char-large", "block", "to-file", "to-dir", "to-dir-slash", "outside",
    "above", "dir/up", "dir/up/file", "dir/to-file", "loop", "one", "dangling", "dangling-slash", "here", "to-slash",
    "to-file-slash", "dotted", "absolute", "through-file", "to-closed", "short", "chain-38", "chain-39", "chain-40",
    "chain-41", "nothing", "nothing/below", "file/below", "dir/./file", "dir//file", "./file", "..", "../", "dir/..",
    "dir/../file", "here/here/here/file", name_255, name_256, closed_256, path_5000, deep, "to-dir/sub/leaf", "fifo/x", "outside/x",
};
static const char *const endings[] = { "", "/", "//", "/.", "/..", "/x" };

static void all_names(int absolute, const char *below, int served, int from)
{
    static char path[3 * 4096], rest[2 * 4096];
    for (size_t at = 0; at < sizeof names / sizeof *names; at++) {
        for (size_t end = 0; end < sizeof endings / sizeof *endings; end++) {
            snprintf(rest, sizeof rest, "%s%s%s", below, names[at], endings[end]);
            snprintf(path, sizeof path, "%s%s%s", absolute ? root : "", absolute ? "/" : "", rest);
            struct place place = { path, rest, served, from };
            all_calls(&place);
        }
    }
}

static void special(void)
{
    static char path[4200];
    const char *forms[][2] = { { "%s", "." }, { "%s/", "./" }, { "%s//", "./" }, { "%s//file", "file" },
        { "%s/./file", "./file" }, { "%s/..", ".." } };
    for (size_t at = 0; at < sizeof forms / sizeof *forms; at++) {
        snprintf(path, sizeof path, forms[at][0], root);
        struct place place = { path, forms[at][1], root_fd, kernel_fd };
        all_calls(&place);
    }
    snprintf(path, sizeof path, "%sx/file", root);
    struct place beside = { path, path, root_fd, kernel_fd };
    all_calls(&beside);
}

static void expect(long value, long wanted, const char *what)
{
    compared++;
    if (value != wanted && differing++ < LINES_MAX)
        printf("%s: %ld, not %ld\n", what, value, wanted);
}

/* From a directory that strangers may search and not read. */
static void from_search(void)
{
    static const char *const from[] = { ".", "..", "../file", "../search/inside", "inside", "../closed/inside" };
    int search = openat(root_fd, "search", O_PATH | O_DIRECTORY);
    int kernels = openat(kernel_fd, "search", O_PATH | O_DIRECTORY);
    must(kernels >= 0 && fchdir(search) == 0, "fchdir");
    for (size_t at = 0; at < sizeof from / sizeof *from; at++) {
        struct place place = { from[at], from[at], search, kernels };
        all_calls(&place);
    }
    must(fchdir(root_fd) == 0 && close(search) == 0 && close(kernels) == 0, "fchdir");
}

/* A descriptor that only the kernel has, in the mount that is served. */
static int opened(const char *path, int flags)
{
    unsigned long how[3] = { flags };
    int fd = syscall(SYS_openat2, root_fd, path, how, sizeof how);
    must(fd >= 0, path);
    return fd;
}

static void make_file(int by, const char *path)
{
    int fd = openat(by, path, O_CREAT | O_WRONLY, 0644);
    must(fd >= 0 && write(fd, path, strlen(path)) > 0 && close(fd) == 0, path);
}

/* All calls from a directory, by its descriptor and as the working directory. */
static const char *stage;
static int moved_round;

static void from_here(int ours, int kernels)
{
    static const char *const from[] = { ".", "leaf", "leaf/", "leaf/x", "missing", "..", "../", "../in", "../in/leaf",
        "../missing", "../../file", "../../sticky/other/in/leaf" };
    long before = differing;
    int is_entered = fchdir(ours) == 0;
    /* One that was removed and is open by O_PATH alone. */
    must(is_entered || errno == ESTALE, stage);
    for (size_t at = 0; at < sizeof from / sizeof *from; at++) {
        struct place place = { from[at], from[at], ours, kernels };
        first_form = is_entered ? 0 : FROM_DESCRIPTOR;
        all_calls(&place);
    }
    first_form = 0;
    must(fchdir(root_fd) == 0, "fchdir");
    if (differing != before && before < LINES_MAX)
        printf("%s, of round %d\n", stage, moved_round);
}

/* What happens to a directory that is open. `by`: through which of the mounts. */
static void moved(int flags, int by)
{
    must(mkdirat(by, "sticky/one", 0755) == 0 && mkdirat(by, "sticky/one/in", 0755) == 0, "mkdir");
    make_file(by, "sticky/one/in/leaf");
    int ours = opened("sticky/one/in", flags), kernels = openat(kernel_fd, "sticky/one/in", O_PATH);
    stage = "at first";
    from_here(ours, kernels);
    /* The directory above it, whose name another one has then. */
    must(renameat(by, "sticky/one", by, "sticky/two") == 0, "rename");
    stage = "its parent is renamed";
    from_here(ours, kernels);
    must(mkdirat(by, "sticky/one", 0755) == 0 && mkdirat(by, "sticky/one/in", 0755) == 0, "mkdir");
    make_file(by, "sticky/one/in/other");
    stage = "its parent's name is another's";
    from_here(ours, kernels);
    /* Itself. */
    must(renameat(by, "sticky/two/in", by, "sticky/in") == 0, "rename");
    stage = "renamed to another parent";
    from_here(ours, kernels);
    must(renameat(by, "sticky/in", by, "sticky/two/renamed") == 0, "rename");
    stage = "renamed again";
    from_here(ours, kernels);
    /* A directory above it cannot be searched, or itself. */
    must(fchmodat(by, "sticky/two", 0, 0) == 0, "chmod");
    stage = "its parent is closed";
    from_here(ours, kernels);
    must(fchmodat(by, "sticky/two", 0755, 0) == 0 && fchmodat(by, "sticky/two/renamed", 0644, 0) == 0, "chmod");
    struct place place = { "leaf", "leaf", ours, kernels };
    first_form = FROM_DESCRIPTOR;
    all_calls(&place);
    must(fchmodat(by, "sticky/two/renamed", 0755, 0) == 0, "chmod");
    stage = "it can be searched again";
    from_here(ours, kernels);
    /* Removed, by another one that gets its name. */
    must(unlinkat(by, "sticky/two/renamed/leaf", 0) == 0, "unlink");
    stage = "empty";
    from_here(ours, kernels);
    must(mkdirat(by, "sticky/three", 0755) == 0 && renameat(by, "sticky/three", by, "sticky/two/renamed") == 0, "replace");
    make_file(by, "sticky/two/renamed/leaf");
    is_removed = flags & O_PATH;
    stage = "replaced";
    from_here(ours, kernels);
    must(close(ours) == 0 && close(kernels) == 0, "close");
    must(unlinkat(by, "sticky/two/renamed/leaf", 0) == 0, "unlink");
    /* Removed, and made again. */
    ours = opened("sticky/two/renamed", flags), kernels = openat(kernel_fd, "sticky/two/renamed", O_PATH);
    is_removed = 0;
    stage = "alone";
    from_here(ours, kernels);
    must(unlinkat(by, "sticky/two/renamed", AT_REMOVEDIR) == 0, "rmdir");
    is_removed = flags & O_PATH;
    stage = "removed";
    from_here(ours, kernels);
    must(mkdirat(by, "sticky/two/renamed", 0755) == 0, "mkdir");
    stage = "made again";
    from_here(ours, kernels);
    is_removed = 0;
    must(close(ours) == 0 && close(kernels) == 0, "close");
    must(unlinkat(by, "sticky/two/renamed", AT_REMOVEDIR) == 0 && unlinkat(by, "sticky/two", AT_REMOVEDIR) == 0, "rmdir");
    must(unlinkat(by, "sticky/one/in/other", 0) == 0 && unlinkat(by, "sticky/one/in", AT_REMOVEDIR) == 0
            && unlinkat(by, "sticky/one", AT_REMOVEDIR) == 0, "clear");
}

static void from_moved(void)
{
    for (moved_round = 0; moved_round < 4; moved_round++)
        moved(moved_round % 2 ? O_PATH | O_DIRECTORY : O_RDONLY | O_DIRECTORY, moved_round / 2 ? root_fd : kernel_fd);
}

/* A number is another directory's, or nothing's. */
static void reused(void)
{
    static const char *const of[] = { "dir", "sticky", "search", "dir/sub", "." };
    struct stat found, wanted;
    for (int round = 0; round < 300; round++) {
        const char *name = of[round % 5], *next = of[(round + 1 + round % 3) % 5];
        int flags = round % 2 ? O_PATH : O_PATH | O_NOFOLLOW;
        int fd = opened(name, flags);
        for (int turn = 0; turn < 2; turn++) {
            must(fstatat(kernel_fd, turn ? next : name, &wanted, 0) == 0, "stat");
            expect(number(syscall(SYS_newfstatat, fd, ".", &found, 0)), 0, "a directory by a number");
            expect(found.st_ino, wanted.st_ino, turn ? next : name);
            if (turn)
                break;
            if (round % 3 == 0) {
                must(close(fd) == 0, "close");
                expect(opened(next, flags), fd, "a number that was closed");
            } else if (round % 3 == 1) {
                int other = opened(next, flags);
                expect(number(dup2(other, fd)), fd, "dup2");
                must(close(other) == 0, "close");
            } else {
                must(close(fd) == 0, "close");
                expect(number(syscall(SYS_newfstatat, fd, ".", &found, 0)), -EBADF, "a number that is closed");
                expect(number(syscall(SYS_faccessat, fd, "leaf", 0)), -EBADF, "a number that is closed");
                expect(open("/etc/passwd", O_RDONLY), fd, "a file");
                expect(number(syscall(SYS_newfstatat, fd, ".", &found, 0)), -ENOTDIR, "a number of a file");
                must(close(fd) == 0, "close");
                expect(openat(root_fd, next, O_PATH), fd, "a number that was closed");
            }
        }
        must(close(fd) == 0, "close");
    }
}

#define MANY 130

/* More directories than are remembered, in turn. And one that is not there any more, whose path in
 * /proc is that of another one. */
static void many(void)
{
    static int fd[MANY];
    static ino_t inodes[MANY];
    char name[64];
    struct stat found;
    for (int at = 0; at < MANY; at++) {
        snprintf(name, sizeof name, "sticky/many-%d", at);
        must(mkdirat(kernel_fd, name, 0755) == 0 && fstatat(kernel_fd, name, &found, 0) == 0, "mkdir");
        inodes[at] = found.st_ino;
        fd[at] = opened(name, O_PATH);
    }
    for (int turn = 0; turn < 20 * MANY; turn++) {
        int at = turn * 64 % MANY + turn / MANY % 2;
        expect(number(syscall(SYS_newfstatat, fd[at], ".", &found, 0)), 0, "one of many");
        expect(found.st_ino, inodes[at], "one of many");
    }
    for (int at = 0; at < MANY; at++) {
        snprintf(name, sizeof name, "sticky/many-%d", at);
        must(close(fd[at]) == 0 && unlinkat(kernel_fd, name, AT_REMOVEDIR) == 0, "rmdir");
    }
    /* A directory that is known is so in one mount only. */
    for (int turn = 0; turn < 100; turn++) {
        struct statx in[2];
        expect(number(syscall(SYS_statx, root_fd, "dir", 0, STATX_MNT_ID, &in[0])), 0, "statx");
        expect(number(syscall(SYS_statx, kernel_fd, "dir", 0, STATX_MNT_ID, &in[1])), 0, "statx");
        expect(in[0].stx_mnt_id, served_ids[0], "the mount of a directory");
        expect(in[1].stx_mnt_id, kernel_ids[0], "the other mount of a directory");
    }
    must(mkdirat(kernel_fd, "sticky/gone", 0755) == 0, "mkdir");
    int gone = opened("sticky/gone", O_RDONLY | O_DIRECTORY);
    must(unlinkat(kernel_fd, "sticky/gone", AT_REMOVEDIR) == 0, "rmdir");
    must(mkdirat(kernel_fd, "sticky/gone (deleted)", 0755) == 0, "mkdir");
    make_file(kernel_fd, "sticky/gone (deleted)/leaf");
    for (int turn = 0; turn < 100; turn++)
        expect(number(syscall(SYS_newfstatat, gone, "leaf", &found, 0)), -ENOENT, "a file in a directory that is gone");
    must(close(gone) == 0 && unlinkat(kernel_fd, "sticky/gone (deleted)/leaf", 0) == 0
            && unlinkat(kernel_fd, "sticky/gone (deleted)", AT_REMOVEDIR) == 0, "clear");
}

/* Bad pointers, pages that come and go, and strings and buffers across pages. */
static void pointers(void)
{
    char path[4200];
    struct stat buffer;
    snprintf(path, sizeof path, "%s/file", root);
    char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(pages != MAP_FAILED, "map");
    size_t length = strlen(path) + 1;
    for (int round = 0; round < 4; round++) {
        static const long bad[] = { 0, 1, 8, 4095, -1, -4096, 1L << 47, 0x7ffffffff000, 1L << 62 };
        for (size_t at = 0; at < sizeof bad / sizeof *bad; at++) {
            expect(number(syscall(SYS_stat, bad[at], &buffer)), -EFAULT, "a bad path");
            expect(number(syscall(SYS_stat, path, bad[at])), -EFAULT, "a bad buffer");
            expect(number(syscall(SYS_statx, AT_FDCWD, path, 0, 0xfff, bad[at])), -EFAULT, "a bad buffer of statx");
            expect(number(syscall(SYS_access, bad[at], 0)), -EFAULT, "a bad path of access");
        }
        /* Both cross a page. */
        char *across = pages + 4096 - length / 2, *into = pages + 2 * 4096 - 64;
        memcpy(across, path, length);
        expect(number(syscall(SYS_stat, across, into)), 0, "a path across pages");
        expect(((struct stat *)into)->st_size, 5, "a buffer across pages");
        mprotect(pages + 2 * 4096, 4096, PROT_READ);
        expect(number(syscall(SYS_stat, across, into)), -EFAULT, "a buffer that ends in a page without rights");
        expect(number(syscall(SYS_lstat, across, into - 4096 - 512)), 0, "a buffer before it");
        mprotect(pages + 2 * 4096, 4096, PROT_READ | PROT_WRITE);
        expect(number(syscall(SYS_stat, across, into)), 0, "a buffer with rights again");
        munmap(pages + 4096, 4096);
        expect(number(syscall(SYS_stat, across, &buffer)), -EFAULT, "a path that ends in a hole");
        expect(number(syscall(SYS_stat, path, into)), -EFAULT, "a buffer that begins in a hole");
        mmap(pages + 4096, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        memcpy(across, path, length);
        expect(number(syscall(SYS_stat, across, &buffer)), 0, "a path in a page that is back");
        mmap(pages, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        expect(number(syscall(SYS_stat, across, &buffer)), -EFAULT, "a path in pages without rights");
        mmap(pages, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        /* The last bytes before a page that cannot be read. */
        mprotect(pages + 4096, 4096, PROT_NONE);
        memcpy(pages + 4096 - length, path, length);
        expect(number(syscall(SYS_stat, pages + 4096 - length, &buffer)), 0, "a path at the end of a page");
        memset(pages + 4096 - 16, 'x', 16);
        expect(number(syscall(SYS_access, pages + 4096 - 16, 0)), -EFAULT, "a path without an end");
        snprintf(path, sizeof path, "%s/short", root);
        char *last = pages + 4096 - 1;
        *last = 0;
        expect(number(syscall(SYS_readlink, path, last, 1)), 1, "a link into the last byte");
        expect(*last, 'x', "the last byte");
        expect(number(syscall(SYS_readlink, path, last + 1, 1)), -EFAULT, "a link behind it");
        snprintf(path, sizeof path, "%s/file", root);
        mprotect(pages, 2 * 4096, PROT_READ | PROT_WRITE);
    }
    munmap(pages, 3 * 4096);
    /* The end of a file that is mapped. */
    int fd = memfd_create("mapped", 0);
    must(fd >= 0 && ftruncate(fd, 8192) == 0, "make a file");
    pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(pages != MAP_FAILED, "map a file");
    strcpy(pages + 4096, path);
    expect(number(syscall(SYS_stat, pages + 4096, pages)), 0, "a path in a file");
    must(ftruncate(fd, 4096) == 0, "truncate");
    expect(number(syscall(SYS_stat, pages + 4096, pages)), -EFAULT, "a path behind the end of a file");
    munmap(pages, 8192);
    close(fd);
    /* A failure leaves the buffer as it was. */
    memset(&buffer, 0x5a, sizeof buffer);
    snprintf(path, sizeof path, "%s/nothing", root);
    expect(number(syscall(SYS_stat, path, &buffer)), -ENOENT, "a missing file");
    for (size_t at = 0; at < sizeof buffer; at++)
        expect(((unsigned char *)&buffer)[at], 0x5a, "a byte of the buffer");
}

static ino_t inode(const char *path)
{
    struct stat found;
    return syscall(SYS_stat, path, &found) == 0 ? found.st_ino : 0;
}

static ino_t inode_at(int fd, const char *path)
{
    struct stat found;
    return syscall(SYS_newfstatat, fd, path, &found, 0) == 0 ? found.st_ino : 0;
}

/* The working directory changes, here and in children. */
static void directories(void)
{
    struct stat file, leaf;
    must(fstatat(kernel_fd, "file", &file, 0) == 0 && fstatat(kernel_fd, "dir/sub", &leaf, 0) == 0, "stat");
    int sub = openat(root_fd, "dir", O_RDONLY | O_DIRECTORY);
    for (int round = 0; round < 200; round++) {
        must(fchdir(root_fd) == 0, "fchdir");
        expect(inode("file"), file.st_ino, "from the root");
        expect(inode("sub"), 0, "not from the root");
        must(chdir("dir") == 0, "chdir");
        expect(inode("sub"), leaf.st_ino, "from a directory");
        expect(inode("file") != file.st_ino, 1, "another file of the same name");
        must(chdir("/") == 0, "chdir");
        expect(inode("sub"), 0, "from outside");
        must(fchdir(sub) == 0 && chdir("nothing") < 0, "fchdir");
        expect(inode("sub"), leaf.st_ino, "after a chdir that failed");
        if (round % 10 == 0) {
            pid_t child = round % 20 ? fork() : vfork();
            if (child == 0) {
                int right = inode("sub") == leaf.st_ino && chdir("..") == 0 && inode("file") == file.st_ino;
                for (int at = 0; at < 100 && right; at++)
                    right = inode("file") == file.st_ino;
                _exit(right ? 0 : 1);
            }
            int status = -1;
            waitpid(child, &status, 0);
            expect(status, 0, "a child in another directory");
            expect(inode("sub"), leaf.st_ino, "after a child's chdir");
        }
    }
    must(fchdir(root_fd) == 0 && close(sub) == 0, "fchdir");
}

static sigjmp_buf jump;
static volatile sig_atomic_t may_jump, alarms;
static ino_t wanted_in_handler, wrong_in_handler;
static char handler_path[4200];

static void on_alarm(int signal)
{
    (void)signal;
    alarms++;
    wrong_in_handler += inode(handler_path) != wanted_in_handler;
    if (may_jump && alarms % 2)
        siglongjmp(jump, 1);
}

/* A handler interrupts calls by path and calls of directories, makes calls by path itself, and may
 * never return. */
static void handlers(void)
{
    struct stat file, leaf;
    must(fstatat(kernel_fd, "file", &file, 0) == 0 && fstatat(kernel_fd, "dir/sub", &leaf, 0) == 0, "stat");
    int sub = openat(root_fd, "dir", O_RDONLY | O_DIRECTORY);
    snprintf(handler_path, sizeof handler_path, "%s/file", root);
    wanted_in_handler = file.st_ino;
    struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = { { 0, 150 }, { 0, 150 } }, never = { { 0, 0 }, { 0, 0 } };
    for (volatile int round = 0; round < 2; round++) {
        setitimer(ITIMER_REAL, &often, NULL);
        for (volatile int at = 0; at < 4000; at++) {
            if (sigsetjmp(jump, 1) == 0) {
                may_jump = round;
                must(fchdir(at % 2 ? sub : root_fd) == 0, "fchdir");
                ino_t found = at % 2 ? inode("sub") : inode("file");
                must(inode(handler_path) == file.st_ino, "stat");
                may_jump = 0;
                expect(found, at % 2 ? leaf.st_ino : file.st_ino, "a directory among signals");
            }
            may_jump = 0;
            must(fchdir(sub) == 0, "fchdir");
            expect(inode("sub"), leaf.st_ino, "a directory after a jump");
        }
        setitimer(ITIMER_REAL, &never, NULL);
    }
    expect(wrong_in_handler, 0, "in a handler");
    must(fchdir(root_fd) == 0 && close(sub) == 0, "fchdir");
}

static volatile int stop;

static void *pages_come_and_go(void *unused)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/file", root);
    while (!stop) {
        char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct stat *found = (void *)page;
        if (syscall(SYS_stat, path, found) || found->st_size != 5)
            return "a page of its own";
        munmap(page, 4096);
        if (number(syscall(SYS_stat, path, found)) != -EFAULT) {
            /* Another thread may have the page now. */
            static __thread int again;
            if (again++ > 100000)
                return "a page that is gone";
        }
    }
    return unused;
}

static void *in_two_directories(void *unused)
{
    struct stat file, leaf;
    fstatat(kernel_fd, "file", &file, 0);
    fstatat(kernel_fd, "dir/sub", &leaf, 0);
    while (!stop) {
        ino_t found = inode("sub");
        if (found != 0 && found != leaf.st_ino)
            return "a name in one of two directories";
    }
    return unused;
}

static void threads(void)
{
    struct stat leaf;
    must(fstatat(kernel_fd, "dir/sub", &leaf, 0) == 0, "stat");
    int sub = openat(root_fd, "dir", O_RDONLY | O_DIRECTORY);
    void *(*work[])(void *) = { in_two_directories, in_two_directories };
    pthread_t thread[2];
    for (int at = 0; at < 2; at++)
        pthread_create(&thread[at], NULL, work[at], NULL);
    for (int at = 0; at < 20000; at++) {
        must(fchdir(at % 2 ? sub : root_fd) == 0, "fchdir");
        ino_t found = inode("sub");
        expect(found, at % 2 ? leaf.st_ino : 0, "a directory beside threads");
    }
    stop = 1;
    for (int at = 0; at < 2; at++) {
        void *wrong;
        pthread_join(thread[at], &wrong);
        expect(wrong != NULL, 0, wrong ? wrong : "a thread");
    }
    stop = 0;
    pthread_create(&thread[0], NULL, pages_come_and_go, NULL);
    char path[4200];
    snprintf(path, sizeof path, "%s/dir/file", root);
    for (int at = 0; at < 20000; at++)
        expect(inode(path) != 0, 1, "a file beside a thread");
    stop = 1;
    void *wrong;
    pthread_join(thread[0], &wrong);
    expect(wrong != NULL, 0, wrong ? wrong : "a thread");
    must(fchdir(root_fd) == 0 && close(sub) == 0, "fchdir");
}

/* Descriptors that the program does not have must look so. */
static void descriptors(void)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/file", root);
    for (int fd = 400; fd < 600; fd++)
        expect(number(close(fd)), -EBADF, "a descriptor that is not open");
    expect(number(syscall(SYS_close_range, 400, ~0U, 0)), 0, "close_range");
    expect(inode(path) != 0, 1, "after close_range");
    int copy = open("/dev/null", O_RDONLY);
    for (int fd = 490; fd < 520; fd++) {
        expect(number(dup2(copy, fd)), fd, "dup2");
        expect(inode(path) != 0, 1, "after dup2");
    }
    expect(number(syscall(SYS_close_range, 490, 519, 0)), 0, "close_range of copies");
    close(copy);
    for (int at = 0; at < WARM; at++)
        expect(inode(path) != 0, 1, "after that");
}

/* Another process does this, and this one waits for it. */
static void elsewhere(const char *what, const char *a, const char *b)
{
    pid_t child = fork();
    if (child == 0) {
        int done = -1;
        if (!strcmp(what, "mount"))
            done = mount("none", a, "tmpfs", 0, NULL);
        else if (!strcmp(what, "umount"))
            done = umount2(a, MNT_DETACH);
        else if (!strcmp(what, "rename"))
            done = rename(a, b);
        _exit(done == 0 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    expect(status, 0, what);
}

static char file_path[4200], above_path[4200], away_path[4300];

/* In a process that is admitted anew. */
static void in_child(void (*work)(void))
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        compared = differing = 0;
        ino_t wanted = inode(file_path);
        for (int at = 0; at < 10 * WARM; at++)
            expect(inode(file_path), wanted, "a file in a child");
        work();
        fflush(stdout);
        _exit(differing != 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    expect(status, 0, "a child");
}

/* The process itself changes the path to the mount. */
static void above(void)
{
    for (int round = 0; round < 3; round++) {
        must(rename(above_path, away_path) == 0, "rename");
        expect(inode(file_path), 0, "a path that it has moved away");
        expect(inode_at(root_fd, "file") != 0, 1, "a file from a descriptor, moved away");
        must(rename(away_path, above_path) == 0, "rename");
        expect(inode(file_path) != 0, 1, "a path that it has moved back");
    }
}

/* Another process mounts and says so in a pipe. The word is there before it is read, so the read
 * takes no time. */
static void told(void)
{
    int words[2];
    volatile int *said = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(pipe(words) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        while (*said != 1)
            ;
        int done = mount("none", root, "tmpfs", 0, NULL) == 0 && write(words[1], "x", 1) == 1;
        *said = 2;
        _exit(!done);
    }
    expect(inode(file_path) != 0, 1, "a file before a word");
    *said = 1;
    while (*said != 2)
        inode(file_path);
    char word;
    must(read(words[0], &word, 1) == 1, "read");
    expect(inode(file_path), 0, "a file after a word");
    expect(inode_at(root_fd, "file") != 0, 1, "a file below another mount, from a descriptor");
    waitpid(child, NULL, 0);
    umount2(root, MNT_DETACH);
}

/* Nothing follows links on the mount for a while. */
static void links(void)
{
    char link[4300];
    snprintf(link, sizeof link, "%s/to-file", root);
    ino_t wanted = inode(link);
    const unsigned long flags = MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV;
    pid_t child = fork();
    if (child == 0)
        _exit(mount(NULL, root, NULL, flags | 256 /* MS_NOSYMFOLLOW */, NULL) != 0);
    int status = -1;
    waitpid(child, &status, 0);
    expect(status, 0, "remount");
    struct stat found;
    expect(number(syscall(SYS_stat, link, &found)), -ELOOP, "a link that is not followed");
    expect(inode_at(root_fd, "to-file"), 0, "a link that is not followed, from a descriptor");
    must(mount(NULL, root, NULL, flags, NULL) == 0, "remount");
    expect(inode(link), wanted, "a link that is followed again");
}

/* A directory of the mount is mounted elsewhere, and the working directory is moved out of it. */
static void moved_out(void)
{
    char part[4300], bound[4300], inside[4400], outside[4400];
    snprintf(part, sizeof part, "%s/dir", root);
    snprintf(bound, sizeof bound, "%s.bound", root);
    snprintf(inside, sizeof inside, "%s/sub", part);
    snprintf(outside, sizeof outside, "%s/moved", root);
    must((mkdir(bound, 0755) == 0 || errno == EEXIST) && mount(part, bound, NULL, MS_BIND, NULL) == 0, "bind");
    must(chdir(bound) == 0 && chdir("sub") == 0, "enter");
    pid_t child = fork();
    if (child == 0) {
        compared = differing = 0;
        ino_t here = inode("."), file = inode("../file");
        int fd = open(".", O_RDONLY | O_DIRECTORY);
        char path[4400];
        snprintf(path, sizeof path, "%s/file", bound);
        for (int at = 0; at < 10 * WARM; at++)
            expect(inode(path), file, "a file of a part");
        for (int at = 0; at < 100; at++)
            expect(inode_at(fd, "../file"), file, "a file of a part, from a descriptor");
        expect(inode("."), here, "a directory of a part");
        elsewhere("rename", inside, outside);
        expect(inode("."), here, "a directory outside");
        expect(inode(".."), 0, "the parent of a directory outside");
        expect(inode("../file"), 0, "a file beside a directory outside");
        expect(inode("leaf") != 0, 1, "a file in a directory outside");
        expect(inode_at(fd, "."), here, "a directory outside, from a descriptor");
        expect(inode_at(fd, ".."), 0, "the parent of a directory outside, from a descriptor");
        expect(inode_at(fd, "../file"), 0, "a file beside a directory outside, from a descriptor");
        expect(inode_at(fd, "leaf") != 0, 1, "a file in a directory outside, from a descriptor");
        elsewhere("rename", outside, inside);
        expect(inode("../file"), file, "a file beside a directory that is back");
        fflush(stdout);
        _exit(differing != 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    expect(status, 0, "a child in a part");
    must(chdir(root) == 0 && umount2(bound, MNT_DETACH) == 0 && rmdir(bound) == 0, "unmount");
}

static void changes(void)
{
    snprintf(file_path, sizeof file_path, "%s/file", root);
    snprintf(above_path, sizeof above_path, "%s", root);
    *strrchr(above_path, '/') = 0;
    snprintf(away_path, sizeof away_path, "%s.away", above_path);
    in_child(above);
    for (int round = 0; round < 10; round++)
        in_child(told);
    in_child(links);
    moved_out();
    static char dir[4200], file[4200], inside[4300], above[4200], away[4300];
    snprintf(dir, sizeof dir, "%s/dir", root);
    snprintf(file, sizeof file, "%s/file", root);
    snprintf(inside, sizeof inside, "%s/file", dir);
    snprintf(above, sizeof above, "%s", root);
    *strrchr(above, '/') = 0;
    snprintf(away, sizeof away, "%s.away", above);
    ino_t wanted = inode(file);
    for (int round = 0; round < 2; round++) {
        for (int at = 0; at < 10 * WARM; at++)
            expect(inode(file), wanted, "a file");
        expect(inode(inside) != 0, 1, "a file below");
        elsewhere("mount", dir, NULL);
        expect(inode(inside), 0, "a file below another mount");
        expect(inode_at(root_fd, "dir/file"), 0, "a file below another mount, from a descriptor");
        elsewhere("umount", dir, NULL);
        expect(inode(inside) != 0, 1, "a file that can be seen again");
        expect(inode_at(root_fd, "dir/file") != 0, 1, "a file that can be seen again, from a descriptor");
        for (int at = 0; at < 10 * WARM; at++)
            expect(inode("file"), wanted, "a relative path");
        elsewhere("rename", above, away);
        expect(inode(file), 0, "a path that leads elsewhere");
        expect(inode("file"), wanted, "a relative path, elsewhere");
        expect(inode_at(root_fd, "file"), wanted, "a path from a descriptor, elsewhere");
        elsewhere("rename", away, above);
        expect(inode(file), wanted, "a path that leads here again");
    }
    for (int at = 0; at < 100 * WARM; at++)
        inode(file);
    elsewhere("umount", root, NULL);
    expect(inode(file), 0, "a path to a mount that is gone");
    expect(inode("file"), wanted, "a relative path in a mount that is gone");
    expect(inode_at(root_fd, "dir/../file"), wanted, "a path from a descriptor in a mount that is gone");
    expect(inode_at(root_fd, ".."), inode("."), "the parent of a root that is gone");
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void cost(void)
{
    char path[4200];
    struct stat found;
    snprintf(path, sizeof path, "%s/dir/sub/leaf", root);
    for (int at = 0; at < WARM; at++)
        stat(path, &found);
    double best[3] = { 1e18, 1e18, 1e18 };
    for (int round = 0; round < 50; round++) {
        for (int which = 0; which < 3; which++) {
            double from = now();
            for (int at = 0; at < 2000; at++) {
                if (which == 0)
                    stat(path, &found);
                else if (which == 1)
                    access(path, R_OK);
                else
                    fstatat(kernel_fd, "dir/sub/leaf", &found, 0);
            }
            double took = (now() - from) / 2000;
            best[which] = took < best[which] ? took : best[which];
        }
    }
    double renewed[2] = { 1e18, 1e18 };
    for (int round = 0; round < 50; round++) {
        for (int which = 0; which < 2; which++) {
            double from = now();
            for (int at = 0; at < 1000; at++) {
                poll(NULL, 0, 0);
                if (which == 1)
                    stat(path, &found);
            }
            double took = (now() - from) / 1000;
            renewed[which] = took < renewed[which] ? took : renewed[which];
        }
    }
    printf("stat %.0f ns, access %.0f ns, fstatat %.0f ns, stat after a wait %.0f ns\n", best[0], best[1], best[2],
        renewed[1] - renewed[0]);
}

int main(int argc, char **argv)
{
    must(argc == 3, "be called so");
    setvbuf(stdout, 0, _IOLBF, 0);
    root = argv[2];
    make_names();
    if (!strcmp(argv[1], "prepare")) {
        prepare();
        return 0;
    }
    if (getenv("KERNEL_FD"))
        kernel_fd = atoi(getenv("KERNEL_FD"));
    root_fd = open(root, O_RDONLY | O_DIRECTORY);
    must(root_fd >= 0 && chdir(root) == 0, "open the tree");
    if (!strcmp(argv[1], "cost")) {
        if (kernel_fd < 0)
            kernel_fd = root_fd;
        cost();
        return 0;
    }
    if (!strcmp(argv[1], "changes")) {
        changes();
        printf("%ld compared, %ld differ\n", compared, differing);
        return differing != 0;
    }
    must(kernel_fd >= 0, "find another mount of the tree: KERNEL_FD is not set");
    ids(root_fd, served_ids);
    ids(kernel_fd, kernel_ids);
    must(served_ids[0] != kernel_ids[0], "tell the two mounts apart");
    char path[4200];
    snprintf(path, sizeof path, "%s/file", root);
    for (int at = 0; at < WARM; at++)
        expect(inode(path) != 0, 1, "a file");
    for (int round = 0; round < ROUNDS; round++) {
        all_names(1, "", root_fd, kernel_fd);
        all_names(0, "", root_fd, kernel_fd);
        special();
        int sub = opened("dir/sub", O_RDONLY | O_DIRECTORY);
        int kernels = openat(kernel_fd, "dir/sub", O_RDONLY | O_DIRECTORY);
        must(kernels >= 0 && fchdir(sub) == 0, "fchdir");
        all_names(0, "../../", sub, kernels);
        all_names(0, "", sub, kernels);
        must(fchdir(root_fd) == 0 && close(sub) == 0 && close(kernels) == 0, "fchdir");
        from_search();
        from_moved();
        reused();
        many();
    }
    pointers();
    directories();
    threads();
    descriptors();
    handlers();
    printf("%ld compared, %ld differ\n", compared, differing);
    return differing != 0;
}
