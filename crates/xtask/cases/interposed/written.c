/* Files that the interposer may write itself, beside twins that the kernel writes through the mount:
 * a/NAME is opened by its path, b/NAME relative to a descriptor that only the kernel has. Every
 * answer must be the same. Then a/NAME is read as the kernel sees it, and b/NAME by its path.
 *   written prepare DIR          makes the directories
 *   written compare DIR SEED     compares, and prints what differs
 *   written append DIR NAME ID   appends records, for `compare`
 * With the name of a part in ONLY, `compare` runs that part alone. With TIMES it prints how long
 * each has taken. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LINES_MAX 40
#define BYTES (4 << 20)

static const char *root, *program;
static int a_fd, b_fd;
static long compared, differing;
static unsigned long seed, random_state;
static const char *section = "start";

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
        printf("seed %lu, %s: cannot %s: %s\n", seed, section, what, strerror(errno));
        exit(2);
    }
}

static void check(int right, const char *what, long number)
{
    compared++;
    if (!right && differing++ < LINES_MAX)
        printf("seed %lu, %s: %s (%ld) differs: %s\n", seed, section, what, number, strerror(errno));
}

static char *path_of(const char *twin, const char *name)
{
    static char paths[4][1024];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, 1024, "%s/%s/%s", root, twin, name);
    return path;
}

static char *numbered(const char *name, long number)
{
    static char names[4][64];
    static int next;
    char *text = names[next++ % 4];
    snprintf(text, 64, "%s-%ld", name, number);
    return text;
}

static void warm(long calls)
{
    struct stat found;
    for (long at = 0; at < calls; at++)
        must(stat(path_of("a", at % 2 ? "." : "warm"), &found) == 0, "stat");
}

static int ours, kernels, opened_error;

/* Whether both are open. */
static int open_both(const char *name, int flags, int mode)
{
    errno = 0;
    ours = open(path_of("a", name), flags, mode);
    opened_error = errno;
    errno = 0;
    kernels = openat(b_fd, name, flags, mode);
    int right = (ours < 0) == (kernels < 0) && (ours >= 0 || opened_error == errno);
    if (!right)
        printf("open %.40s flags %o mode %o: %d (%d), the kernel %d (%d)\n", name, flags, mode, ours,
               opened_error, kernels, errno);
    check(right, name, flags);
    if ((ours < 0) != (kernels < 0))
        close(ours < 0 ? kernels : ours);
    return ours >= 0 && kernels >= 0;
}

static void close_both(void)
{
    check(close(ours) == 0 && close(kernels) == 0, "close", ours);
}

/* The files that were handed over make the process leave opens to the kernel for a while. */
static void regain(void)
{
    for (int at = 0; at < 80; at++) {
        int fd = open(path_of("a", "warm"), O_WRONLY);
        must(fd >= 0 && close(fd) == 0, "open");
    }
}

#define BOTH(call)                                                                                \
    ({                                                                                            \
        int fd = ours;                                                                            \
        errno = 0;                                                                                \
        long a_ = (call);                                                                         \
        int ea_ = errno;                                                                          \
        fd = kernels;                                                                             \
        errno = 0;                                                                                \
        long b_ = (call);                                                                         \
        if (a_ != b_ || ea_ != errno)                                                             \
            printf("%s: %ld (%d), the kernel %ld (%d)\n", #call, a_, ea_, b_, errno);             \
        check(a_ == b_ && ea_ == errno, #call, a_);                                               \
        a_;                                                                                       \
    })

static char *bytes, *got[2];

static void same_stat(const struct stat *a, const struct stat *b, const char *what)
{
    int right = a->st_mode == b->st_mode && a->st_nlink == b->st_nlink && a->st_uid == b->st_uid &&
                a->st_gid == b->st_gid && a->st_size == b->st_size;
    if (!right)
        printf("mode %o %o nlink %ld %ld uid %d %d gid %d %d size %ld %ld\n", a->st_mode, b->st_mode,
               (long)a->st_nlink, (long)b->st_nlink, a->st_uid, b->st_uid, a->st_gid, b->st_gid,
               a->st_size, b->st_size);
    check(right, what, a->st_size);
}

#define SECONDS(of)                                                                               \
    kernel.st_##of.tv_sec, kernel.st_##of.tv_nsec, served.st_##of.tv_sec, served.st_##of.tv_nsec

/* What the kernel and the process know of one file. */
static void same_views(int dir, const char *twin, const char *name)
{
    struct stat kernel, served;
    errno = 0;
    int a = fstatat(dir, name, &kernel, AT_SYMLINK_NOFOLLOW), error = errno;
    errno = 0;
    int b = lstat(path_of(twin, name), &served);
    check(a == b && error == errno, "lstat", error);
    if (a != 0 || b != 0)
        return;
    /* A read by the process moves the access time, and the kernel's copy of it stays. */
    served.st_atim = kernel.st_atim;
    if (memcmp(&kernel, &served, sizeof served) != 0)
        printf("size %ld %ld blocks %ld %ld times %ld.%09ld %ld.%09ld, %ld.%09ld %ld.%09ld, %ld.%09ld "
               "%ld.%09ld\n",
               kernel.st_size, served.st_size, kernel.st_blocks, served.st_blocks, SECONDS(atim),
               SECONDS(mtim), SECONDS(ctim));
    check(memcmp(&kernel, &served, sizeof served) == 0, name, kernel.st_size);
}

static long whole(int fd, char *to)
{
    long done = 0, count;
    while ((count = pread(fd, to + done, BYTES - done, done)) > 0)
        done += count;
    return count < 0 ? -errno : done;
}

/* What others see of both. */
static void same_files(const char *name)
{
    struct stat a, b;
    errno = 0;
    int found = fstatat(a_fd, name, &a, AT_SYMLINK_NOFOLLOW), error = errno;
    errno = 0;
    check(found == fstatat(b_fd, name, &b, AT_SYMLINK_NOFOLLOW) && error == errno, name, error);
    if (found != 0)
        return;
    same_stat(&a, &b, name);
    same_views(a_fd, "a", name);
    same_views(b_fd, "b", name);
    if (!S_ISREG(a.st_mode))
        return;
    errno = 0;
    int first = openat(a_fd, name, O_RDONLY);
    error = errno;
    errno = 0;
    int second = open(path_of("b", name), O_RDONLY);
    check((first < 0) == (second < 0) && error == errno, "open to read", error);
    if (first >= 0 && second >= 0) {
        long length = whole(first, got[0]);
        check(length == whole(second, got[1]), "length", length);
        check(length == (a.st_size < BYTES ? a.st_size : BYTES), "size", length);
        long first_wrong = 0;
        while (first_wrong < length && got[0][first_wrong] == got[1][first_wrong])
            first_wrong++;
        check(length <= 0 || first_wrong == length, "a byte", first_wrong);
    }
    if (first >= 0)
        close(first);
    if (second >= 0)
        close(second);
}

static void unlink_both(const char *name)
{
    errno = 0;
    int a = unlinkat(a_fd, name, 0), error = errno;
    errno = 0;
    check(a == unlinkat(b_fd, name, 0) && error == errno, "unlink", error);
}

static long vector(int fd, char *from, int count, long length, int bad)
{
    static struct iovec pieces[1100];
    for (int at = 0; at < count; at++)
        pieces[at] = (struct iovec){from + at * length, (at * 7 + length) % (length + 1)};
    if (bad && count > 0)
        pieces[bad % count] = (struct iovec){bad % 2 ? (char *)8 : from, bad % 2 ? 5 : -5L};
    return writev(fd, pieces, count);
}

static long set_times(int fd, long seconds, long nanos)
{
    struct timespec times[2] = {{seconds, 5}, {seconds + 1, nanos}};
    return futimens(fd, times);
}

/* One call on both descriptors, whose offsets move alike. No position is beyond `most`. */
static void one_call(long most)
{
    long offset = below(most), length = below(below(3) ? 9000 : most / 2 + 1);
    long step = (long)below(2000) - 1000, size = below(most), nanos = below(1200000000);
    char *from = bytes + below(BYTES / 4);
    int mode = 0600 | below(0200), count = below(20);
    struct stat a, b;
    switch (below(24)) {
    case 0: case 1: case 2: case 3:
        if (BOTH(lseek(fd, 0, SEEK_CUR)) < most)
            BOTH(write(fd, from, length));
        break;
    case 4: case 5: case 6: case 7:
        BOTH(pwrite(fd, from, length, offset));
        break;
    case 8: case 9:
        if (BOTH(lseek(fd, 0, SEEK_CUR)) < most)
            BOTH(vector(fd, from, count, length / 20, 0));
        break;
    case 10: case 11: {
        long result = BOTH(read(fd, got[fd == kernels], length));
        check(result <= 0 || memcmp(got[0], got[1], result) == 0, "read", result);
        break;
    }
    case 12: case 13: {
        long result = BOTH(pread(fd, got[fd == kernels], length, offset));
        check(result <= 0 || memcmp(got[0], got[1], result) == 0, "pread", result);
        break;
    }
    case 14:
        BOTH(lseek(fd, offset, SEEK_SET));
        break;
    case 15:
        BOTH(lseek(fd, step, SEEK_CUR));
        break;
    case 16:
        BOTH(lseek(fd, step, SEEK_END));
        break;
    case 17:
        BOTH((long)ftruncate(fd, size));
        break;
    case 18:
        BOTH((long)(below(2) ? fsync(fd) : fdatasync(fd)));
        break;
    case 19:
        BOTH((long)fchmod(fd, mode));
        break;
    case 20:
        BOTH((long)fchown(fd, below(2) ? -1 : getuid(), getgid()));
        break;
    case 21:
        BOTH(set_times(fd, size, nanos));
        break;
    case 22:
        BOTH((long)fcntl(fd, F_GETFL));
        BOTH((long)fcntl(fd, F_GETFD));
        BOTH(write(fd, from, 0));
        break;
    default:
        must(fstat(ours, &a) == 0 && fstat(kernels, &b) == 0, "fstat");
        same_stat(&a, &b, "fstat");
        BOTH((long)posix_fadvise(fd, 0, 0, 4));
    }
}

/* Whether a call changes times. */
static void same_times(long most)
{
    struct stat before[2], after[2];
    fstat(ours, &before[0]);
    fstat(kernels, &before[1]);
    one_call(most);
    fstat(ours, &after[0]);
    fstat(kernels, &after[1]);
    int moved[2];
    for (int at = 0; at < 2; at++)
        moved[at] = !memcmp(&before[at].st_mtim, &after[at].st_mtim, sizeof after->st_mtim) +
                    2 * !memcmp(&before[at].st_ctim, &after[at].st_ctim, sizeof after->st_ctim);
    check(moved[0] == moved[1], "which times have changed", moved[0] * 10 + moved[1]);
}

static void random_calls(int files)
{
    static const int kinds[] = {O_WRONLY, O_WRONLY, O_RDWR, O_RDWR};
    for (int file = 0; file < files; file++) {
        char *name = numbered("random", below(12));
        int flags = kinds[below(4)] | (below(8) ? O_CREAT : 0) | (below(3) ? 0 : O_TRUNC) |
                    (below(4) ? 0 : O_APPEND) | (below(8) ? 0 : O_EXCL) | (below(3) ? 0 : O_CLOEXEC);
        int is_read = (flags & O_ACCMODE) == O_RDWR;
        int is_large = !is_read && below(20) == 0;
        if (!open_both(name, flags, 0600 | below(0200)))
            continue;
        long most = is_large ? 3 << 20 : 60000, calls = below(is_large ? 8 : 40);
        for (long at = 0; at < calls; at++)
            below(8) ? one_call(most) : same_times(most);
        if (below(3) == 0)
            same_files(name);
        close_both();
        same_files(name);
        struct stat found;
        if (fstatat(a_fd, name, &found, 0) == 0 && (below(4) == 0 || found.st_size > 130000))
            unlink_both(name);
    }
    for (int at = 0; at < 12; at++)
        if (faccessat(a_fd, numbered("random", at), F_OK, 0) == 0)
            unlink_both(numbered("random", at));
}

/* What is there for `open_all`. */
#define KINDS 15

static char long_name[300];

static const char *make(int kind, int mode)
{
    static const char *const names[KINDS] = {
        "missing", "plain", "dir", "to-plain", "dangling", "to-dir", "loop", "fifo", "sub/missing",
        "plain/x", "missing/x", long_name, "to-missing/x", "closed/x", "elsewhere"};
    for (int at = 0; at < 2; at++) {
        int dir = at ? b_fd : a_fd;
        static const char *const made[] = {"missing", "plain", "fifo", "to-plain", "dangling", "to-dir",
                                           "loop", "sub/missing", "target", "to-missing", "elsewhere"};
        for (unsigned name = 0; name < sizeof made / sizeof *made; name++)
            unlinkat(dir, made[name], 0);
        unlinkat(dir, long_name, 0);
        if (kind == 1 || kind == 3 || kind == 9) {
            int fd = openat(dir, "plain", O_CREAT | O_WRONLY | O_EXCL, 0600);
            must(fd >= 0 && write(fd, "0123456789", 10) == 10 && fchmod(fd, mode) == 0, "make");
            close(fd);
        }
        if (kind == 3)
            must(symlinkat("plain", dir, "to-plain") == 0, "symlink");
        if (kind == 4)
            must(symlinkat("target", dir, "dangling") == 0, "symlink");
        if (kind == 5)
            must(symlinkat("dir", dir, "to-dir") == 0, "symlink");
        if (kind == 6)
            must(symlinkat("loop", dir, "loop") == 0, "symlink");
        if (kind == 7)
            must(mkfifoat(dir, "fifo", 0600) == 0, "mkfifo");
        if (kind == 12)
            must(symlinkat("gone", dir, "to-missing") == 0, "symlink");
        if (kind == 14)
            must(symlinkat("/tmp/warren-is-not-here/x", dir, "elsewhere") == 0, "symlink");
    }
    return names[kind];
}

static void open_all(int rounds)
{
    static const int modes[] = {0, 0200, 0400, 0444, 0600, 0644, 0666, 0755, 0777, 04644, 06755, 01600};
    static const int bits[] = {O_CREAT, O_CREAT, O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_NOFOLLOW,
                               O_CLOEXEC, O_NONBLOCK, O_NOCTTY};
    static const int rare[] = {O_DIRECTORY, O_SYNC, O_DSYNC, O_DIRECT, __O_TMPFILE, O_PATH, O_NOATIME,
                               O_TMPFILE, 0x40000000, O_LARGEFILE};
    static const char *const ends[] = {"/", "//", "/.", "/.."};
    char name[400];
    for (int round = 0; round < rounds; round++) {
        int kind = below(KINDS), flags = below(below(20) ? 3 : 4);
        for (int at = below(5); at > 0; at--)
            flags |= bits[below(10)];
        if (below(10) == 0)
            flags |= rare[below(10)];
        if (kind == 7)
            flags |= O_NONBLOCK;
        memset(long_name, 'n', sizeof long_name);
        long_name[254 + below(3)] = 0;
        snprintf(name, sizeof name, "%s%s", make(kind, modes[below(12)]), below(10) ? "" : ends[below(4)]);
        int mode = below(4) ? modes[below(12)] : (int)below(010000), mask = below(4) ? 022 : below(01000);
        /* A front does not know all groups of a caller, who may not keep this bit if it is not in the
         * directory's. */
        if (kind == 8)
            mode &= ~02000;
        umask(mask);
        int is_open = open_both(name, flags, mode);
        umask(0);
        if (is_open) {
            BOTH((long)fcntl(fd, F_GETFL));
            BOTH((long)fcntl(fd, F_GETFD));
            struct stat a, b;
            must(fstat(ours, &a) == 0 && fstat(kernels, &b) == 0, "fstat");
            same_stat(&a, &b, name);
            if (!S_ISFIFO(a.st_mode)) {
                BOTH(write(fd, "abc", 3));
                BOTH(lseek(fd, 0, SEEK_CUR));
                BOTH(read(fd, got[fd == kernels], 4));
            }
            close_both();
        }
        same_files("missing");
        same_files("plain");
        same_files("target");
        same_files("gone");
        same_files("sub/missing");
        if (kind == 11)
            same_files(long_name);
    }
    make(0, 0);
    for (int at = 0; at < 2; at++)
        unlinkat(at ? b_fd : a_fd, "gone", 0);
}

/* Arguments that are wrong, on each kind of descriptor. */
static void wrong_arguments(void)
{
    static const int flags[] = {O_WRONLY, O_RDWR, O_WRONLY | O_APPEND, O_RDONLY};
    char *pages = mmap(0, 100 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(pages != MAP_FAILED && mprotect(pages, 4096, PROT_READ | PROT_WRITE) == 0 &&
             mprotect(pages + 8192, 4096, PROT_READ | PROT_WRITE) == 0,
         "mmap");
    char *const addresses[] = {(char *)8, (char *)0x800000000000, (char *)-4096L, bytes, pages,
                               pages + 4096, pages + 8192};
    static const unsigned long lengths[] = {0, 1, 1000, 200000, -1UL, -1UL >> 1, 1UL << 47, 0x7ffff001};
    static const long offsets[] = {0, -1, 5000, 1L << 46, 0x7fffffffffffffff, -0x7fffffffffffffff - 1};
    for (int round = 0; round < 80; round++) {
        regain();
        int end = below(8);
        if (!open_both("wrong", flags[round % 4] | (round % 4 == 3 ? 0 : O_CREAT), 0644))
            continue;
        for (int at = 0; at < 6; at++) {
            char *address = addresses[below(7)];
            unsigned long length = lengths[below(6)], longest = lengths[4 + below(4)];
            long offset = offsets[below(6)];
            /* What can be read of it is not written: it has gigabytes of zeros behind it, perhaps. */
            if (address == bytes && length > BYTES)
                length = 10;
            switch (end < 4 ? end : (int)below(10)) {
            case 0:
                BOTH(syscall(SYS_write, fd, address, length));
                break;
            case 1:
                BOTH(syscall(SYS_pwrite64, fd, address, length, offset));
                break;
            case 2:
                BOTH(syscall(SYS_read, fd, address, length > BYTES ? 10 : length));
                break;
            case 3:
                BOTH(syscall(SYS_pread64, fd, address, length > BYTES ? 10 : length, offset));
                break;
            case 4:
                BOTH((long)ftruncate(fd, offset));
                BOTH((long)ftruncate(fd, 100));
                break;
            case 5:
                BOTH(lseek(fd, offset, below(1) ? SEEK_SET : SEEK_END));
                BOTH(lseek(fd, 10, SEEK_SET));
                break;
            case 6:
                BOTH(vector(fd, bytes, at * 204 + 3, 10, (int)offset & 7));
                break;
            case 7:
                BOTH(writev(fd, (struct iovec *)address, 3));
                break;
            case 8:
                BOTH(writev(fd, (struct iovec *)bytes, offset));
                break;
            default:
                BOTH(syscall(SYS_write, fd, (char *)8, longest));
                BOTH((long)fchmod(fd, offset & 07777 ? 0644 : 0644));
                BOTH((long)fchown(fd, 12345, 23456));
                BOTH(lseek(fd, 1, 77));
                BOTH(syscall(SYS_getdents64, fd, got[0], 100));
            }
        }
        BOTH(lseek(fd, 0, SEEK_CUR));
        same_files("wrong");
        close_both();
        same_files("wrong");
        unlink_both("wrong");
        must(close(openat(a_fd, "wrong", O_CREAT | O_WRONLY, 0644)) == 0, "create");
        must(close(openat(b_fd, "wrong", O_CREAT | O_WRONLY, 0644)) == 0, "create");
    }
    unlink_both("wrong");
    munmap(pages, 100 * 4096);
}

/* Each way in which the kernel comes to have a file that is being written. The offset stays. */
static void handovers(void)
{
    char name[64];
    for (int way = 0; way < 26; way++) {
        regain();
        int flags = way % 3 == 0 ? O_RDWR : way % 3 == 1 ? O_WRONLY | O_APPEND : O_RDWR | O_NOFOLLOW;
        if (!open_both("handed", flags | O_CREAT, 0640))
            continue;
        BOTH(write(fd, bytes, 5000));
        int gone = way / 13;
        if (gone) {
            for (int at = 0; at < 2; at++)
                must(way % 2 ? unlinkat(at ? b_fd : a_fd, "handed", 0) == 0
                             : renameat(at ? b_fd : a_fd, "handed", at ? b_fd : a_fd, "moved") == 0,
                     "rename");
            BOTH(write(fd, bytes + 5000, 300));
        }
        loff_t zero = 0;
        switch (way % 13) {
        case 0:
            BOTH((long)(dup2(fd, 90), write(90, bytes, 77)));
            break;
        case 1: {
            int copies[2] = {fcntl(ours, F_DUPFD, 10), fcntl(kernels, F_DUPFD_CLOEXEC, 10)};
            for (int at = 0; at < 2; at++)
                check(write(copies[at], "dup", 3) == 3 && close(copies[at]) == 0, "dup", at);
            break;
        }
        case 2:
            BOTH((long)fallocate(fd, 0, 0, 20000));
            BOTH((long)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 100, 4096));
            break;
        case 3:
            BOTH((long)flock(fd, LOCK_EX));
            break;
        case 4:
            BOTH(lseek(fd, 0, SEEK_DATA));
            BOTH(lseek(fd, 0, SEEK_HOLE));
            BOTH(lseek(fd, 9000, SEEK_SET));
            break;
        case 5: {
            int other = open("/proc/self/exe", O_RDONLY);
            BOTH(copy_file_range(b_fd, 0, fd, &zero, 10, 0));
            BOTH(copy_file_range(other, 0, fd, 0, 10, 0));
            BOTH((long)ioctl(fd, FICLONE, other));
            close(other);
            break;
        }
        case 6: {
            int from = openat(b_fd, "warm", O_RDONLY);
            BOTH(pread(from, got[0], 1, 0) + sendfile(fd, from, &(off_t){0}, 4));
            close(from);
            break;
        }
        case 7: {
            int pipes[2];
            must(pipe(pipes) == 0, "pipe");
            BOTH(write(pipes[1], "piped", 5) + splice(pipes[0], 0, fd, 0, 5, 0));
            close(pipes[0]);
            close(pipes[1]);
            break;
        }
        case 8:
            for (int at = 0; at < 2; at++) {
                int status;
                pid_t child = fork();
                if (child == 0)
                    _exit(write(at ? kernels : ours, "child", 5) != 5);
                check(waitpid(child, &status, 0) == child && status == 0, "child", status);
            }
            break;
        case 9:
            for (int at = 0; at < 2; at++) {
                int status;
                pid_t child;
                snprintf(name, sizeof name, "echo hello >&%d", at ? kernels : ours);
                char *words[] = {"sh", "-c", name, 0};
                must(posix_spawn(&child, "/bin/sh", 0, 0, words, environ) == 0, "spawn");
                check(waitpid(child, &status, 0) == child && status == 0, "spawn", status);
            }
            break;
        case 10:
            BOTH((long)(fcntl(fd, F_SETFL, O_APPEND) | fcntl(fd, F_GETFL)));
            break;
        case 11:
            for (int at = 0; at < 2; at++) {
                int fd = at ? kernels : ours, right = (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
                char *mapped = mmap(0, 5000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                check((mapped != MAP_FAILED) == right, "mmap", at);
                if (mapped != MAP_FAILED)
                    memset(mapped + 100, 'm', 100), munmap(mapped, 5000);
            }
            break;
        default:
            for (int at = 0; at < 2; at++) {
                struct stat found;
                snprintf(name, sizeof name, "/proc/self/fd/%d", at ? kernels : ours);
                check(stat(name, &found) == 0 && found.st_size == 5000 + 300 * gone, "proc", found.st_size);
                int again = open(name, O_WRONLY);
                check(again >= 0 && write(again, "again", 5) == 5 && close(again) == 0, "again", at);
            }
        }
        BOTH(write(fd, bytes + 999, 111));
        BOTH(lseek(fd, 0, SEEK_CUR));
        BOTH(pread(fd, got[fd == kernels], 9000, 0));
        struct stat a, b;
        must(fstat(ours, &a) == 0 && fstat(kernels, &b) == 0, "fstat");
        same_stat(&a, &b, "fstat");
        close_both();
        close(90);
        const char *left = gone ? "moved" : "handed";
        same_files(left);
        if (!gone || way % 2 == 0)
            unlink_both(left);
    }
}

/* A mapping that the kernel has, and writes beside it. */
static void mappings(void)
{
    for (int round = 0; round < 20; round++) {
        regain();
        int other[2];
        char *mapped[2];
        if (!open_both("mapped", O_CREAT | O_RDWR, 0644))
            return;
        BOTH(write(fd, bytes, 20000));
        for (int at = 0; at < 2; at++) {
            other[at] = openat(at ? b_fd : a_fd, "mapped", O_RDWR);
            mapped[at] = mmap(0, 20000, PROT_READ | PROT_WRITE, MAP_SHARED, other[at], 0);
            must(mapped[at] != MAP_FAILED, "mmap");
        }
        for (int step = 0; step < 20; step++) {
            long at = below(19990), to = below(19990), size = 10000 + below(10000);
            switch (below(4)) {
            case 0:
                mapped[0][at] = mapped[1][at] = step;
                break;
            case 1:
                BOTH(pwrite(fd, bytes + to, 10, at));
                break;
            case 2:
                BOTH((long)ftruncate(fd, size));
                BOTH((long)ftruncate(fd, 20000));
                break;
            default:
                /* What a mapping has changed is not seen here before it is written back. */
                for (int twin = 0; twin < 2; twin++)
                    must(msync(mapped[twin], 20000, MS_SYNC) == 0, "msync");
                if (BOTH(pread(fd, got[fd == kernels], 100, at)) == 100)
                    check(memcmp(got[0], got[1], 100) == 0, "read beside a mapping", at);
            }
            check(memcmp(mapped[0], mapped[1], 20000) == 0, "a mapping", step);
        }
        for (int at = 0; at < 2; at++)
            must(munmap(mapped[at], 20000) == 0 && close(other[at]) == 0, "munmap");
        close_both();
        same_files("mapped");
        unlink_both("mapped");
    }
}

/* Readers with copies of their own see each change at once. */
static void readers(void)
{
    int fd = open(path_of("a", "read"), O_CREAT | O_RDWR | O_TRUNC, 0644);
    for (long round = 0; round < 3000; round++) {
        long size = 8 + below(12000), found_size;
        struct stat found;
        check(ftruncate(fd, size) == 0 && pwrite(fd, &round, 8, size - 8) == 8, "write", round);
        int reader = open(path_of("a", "read"), O_RDONLY);
        long value = -1;
        check(pread(reader, &value, 8, size - 8) == 8 && value == round, "a reader", value - round);
        check(pread(reader, got[0], 10, size) == 0, "a reader behind the end", size);
        check(fstat(reader, &found) == 0 && found.st_size == size, "its size", found.st_size - size);
        found_size = stat(path_of("a", "read"), &found) == 0 ? found.st_size : -1;
        check(found_size == size, "size by path", found_size);
        close(reader);
    }
    close(fd);
    must(unlink(path_of("a", "read")) == 0, "unlink");
}

#define RECORDS 2000
#define RECORD 24

/* Appends records, each in one write. Opens the file anew now and then. */
static int append(const char *name, int id, int through)
{
    char text[64];
    int fd = -1;
    for (int at = 0; at < RECORDS; at++) {
        if (fd < 0)
            fd = through ? openat(a_fd, name, O_WRONLY | O_APPEND) : open(path_of("a", name), O_WRONLY | O_APPEND);
        snprintf(text, sizeof text, "%d %06d              ", id, at);
        text[RECORD - 1] = '\n';
        long done = fd < 0 ? -2 : write(fd, text, RECORD);
        if (done != RECORD) {
            printf("append %d by %d through %d: %ld: %s\n", at, id, fd, done, strerror(errno));
            return 1;
        }
        if (at % 50 == 49)
            close(fd), fd = -1;
    }
    return 0;
}

static int is_each_once(const int *ids, int count, long length)
{
    int next[8] = {0}, right = length == (long)count * RECORDS * RECORD;
    for (long at = 0; right && at + RECORD <= length; at += RECORD) {
        int id = -1, number = -1, which = 0;
        sscanf(got[0] + at, "%d %d", &id, &number);
        while (which < count - 1 && ids[which] != id)
            which++;
        right = ids[which] == id && number == next[which]++;
    }
    return right;
}

/* Where the kernel has appended at a wrong place of its cache, its pages and its size of the file are
 * corrected after the write has returned. */
static void each_once(const char *name, const int *ids, int count)
{
    int right = 0;
    long length = 0;
    for (int turn = 0; turn < 500 && !right; turn++) {
        int fd = openat(a_fd, name, O_RDONLY);
        length = whole(fd, got[0]);
        right = is_each_once(ids, count, length);
        close(fd);
        if (!right)
            usleep(10000);
    }
    check(right, "each record once", length);
}

static void *appender(void *id)
{
    check(append("appended", (long)id, 0) == 0, "append by a thread", (long)id);
    return 0;
}

static pid_t start(const char *command, const char *name, const char *id, int is_plain)
{
    char *words[] = {(char *)program, (char *)command, (char *)root, (char *)name, (char *)id, 0};
    char *variables[200];
    int count = 0;
    for (char **at = environ; *at && count < 198; at++)
        variables[count++] = *at;
    if (is_plain)
        variables[count++] = "WARREN_INTERPOSE=off";
    variables[count] = 0;
    pid_t child;
    must(posix_spawn(&child, program, 0, 0, words, variables) == 0, "spawn");
    return child;
}

static void wait_for(pid_t child, const char *what)
{
    int status = -1;
    check(waitpid(child, &status, 0) == child && status == 0, what, status);
}

/* Processes with and without the interposer, and a process that the kernel serves. */
static void appends_of_processes(void)
{
    static const int ids[] = {1, 2, 3, 4};
    must(close(open(path_of("a", "all"), O_CREAT | O_WRONLY | O_TRUNC, 0666)) == 0, "create");
    pid_t plain = start("append", "all", "1", 1), other = start("append", "all", "2", 0);
    regain();
    check(append("all", 3, 0) == 0 && append("all", 4, 1) == 0, "append", 0);
    wait_for(plain, "a plain process");
    wait_for(other, "another process");
    each_once("all", ids, 4);
    must(unlink(path_of("a", "all")) == 0, "unlink");
}

static int shared_fd;

static void *writer(void *id)
{
    char text[RECORD + 1];
    for (int at = 0; at < RECORDS; at++) {
        snprintf(text, sizeof text, "%ld %06d               ", (long)id, at);
        text[RECORD - 1] = '\n';
        check(write(shared_fd, text, RECORD) == RECORD, "write by a thread", at);
        if (at % 500 == 0)
            check(fsync(shared_fd) == 0, "fsync by a thread", at);
    }
    return 0;
}

/* Threads with one descriptor, whose offset moves, and with descriptors of their own. */
static void threads(void)
{
    static const int ids[] = {1, 2, 3, 4};
    pthread_t all[4];
    for (int way = 0; way < 2; way++) {
        shared_fd = open(path_of("a", "appended"), O_CREAT | O_WRONLY | O_TRUNC, 0644);
        for (long at = 0; at < 4; at++)
            must(pthread_create(&all[at], 0, way ? writer : appender, (void *)(at + 1)) == 0, "thread");
        for (int at = 0; at < 4; at++)
            pthread_join(all[at], 0);
        close(shared_fd);
        each_once("appended", ids, 4);
    }
    must(unlink(path_of("a", "appended")) == 0, "unlink");
}

static void *overwriter(void *unused)
{
    for (int at = 0; at < 20000; at++)
        check(write(shared_fd, "w", 1) == 1, "write beside reads", at);
    return unused;
}

static void *skipper(void *unused)
{
    char byte;
    for (int at = 0; at < 20000; at++)
        check(read(shared_fd, &byte, 1) == 1, "read beside writes", at);
    return unused;
}

/* Reads and writes of threads move one offset, one after the other. */
static void readers_and_writers(void)
{
    pthread_t all[2];
    shared_fd = open(path_of("a", "both"), O_CREAT | O_RDWR | O_TRUNC, 0644);
    memset(got[0], 'r', 60000);
    must(write(shared_fd, got[0], 60000) == 60000 && lseek(shared_fd, 0, SEEK_SET) == 0, "write");
    must(pthread_create(&all[0], 0, overwriter, 0) == 0, "thread");
    must(pthread_create(&all[1], 0, skipper, 0) == 0, "thread");
    pthread_join(all[0], 0);
    pthread_join(all[1], 0);
    long end = lseek(shared_fd, 0, SEEK_CUR), written = 0;
    check(end == 40000, "the offset of two threads", end);
    must(whole(shared_fd, got[0]) == 60000, "read");
    for (long at = 0; at < 60000; at++)
        written += got[0][at] == 'w';
    check(written == 20000, "what one thread has written", written);
    close(shared_fd);
    must(unlink(path_of("a", "both")) == 0, "unlink");
}

/* A parent and its children share the offset. */
static void children(void)
{
    static const int ids[] = {1, 2, 3, 4};
    pid_t child[3];
    shared_fd = open(path_of("a", "forked"), O_CREAT | O_WRONLY | O_TRUNC, 0644);
    for (long at = 0; at < 3; at++) {
        child[at] = fork();
        must(child[at] >= 0, "fork");
        if (child[at] == 0) {
            differing = 0;
            writer((void *)(at + 2));
            _exit(differing != 0);
        }
    }
    writer((void *)1);
    for (int at = 0; at < 3; at++)
        wait_for(child[at], "a child");
    close(shared_fd);
    each_once("forked", ids, 4);
    must(unlink(path_of("a", "forked")) == 0, "unlink");
}

/* What was acknowledged is there after the writer was killed. */
static void killed(void)
{
    long *said = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(said != MAP_FAILED, "mmap");
    for (int round = 0; round < 5; round++) {
        *said = 0;
        pid_t child = fork();
        must(child >= 0, "fork");
        if (child == 0) {
            int fd = open(path_of("a", "killed"), O_CREAT | O_WRONLY | O_TRUNC, 0644);
            warm(8000);
            close(fd);
            fd = open(path_of("a", "killed"), O_WRONLY);
            for (long at = 1;; at++) {
                if (write(fd, &at, sizeof at) != sizeof at)
                    _exit(1);
                __atomic_store_n(said, at, __ATOMIC_SEQ_CST);
            }
        }
        while (__atomic_load_n(said, __ATOMIC_SEQ_CST) < (long)below(3000) + 1)
            usleep(100);
        must(kill(child, SIGKILL) == 0 && waitpid(child, 0, 0) == child, "kill");
        int fd = openat(a_fd, "killed", O_RDONLY);
        long last = *said, count = whole(fd, got[0]) / 8;
        check(count == last || count == last + 1 || count == BYTES / 8, "what was acknowledged", count - last);
        for (long at = 0; at < count && at < last; at++)
            check(((long *)got[0])[at] == at + 1, "a value", at);
        close(fd);
    }
    munmap(said, 4096);
    must(unlinkat(a_fd, "killed", 0) == 0, "unlink");
}

static sigjmp_buf back;
static volatile sig_atomic_t may_jump, signals;

static void on_alarm(int unused)
{
    (void)unused;
    signals++;
    if (may_jump && signals % 16 == 0)
        siglongjmp(back, 1);
}

/* Signals in the middle of writes, and handlers that do not return to them. */
static void interrupted(void)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    static volatile long at, jumps;
    at = jumps = 0;
    int fd = open(path_of("a", "interrupted"), O_CREAT | O_RDWR | O_TRUNC, 0644);
    must(fd >= 0 && sigaction(SIGALRM, &action, 0) == 0, "sigaction");
    must(setitimer(ITIMER_REAL, &often, 0) == 0, "timer");
    while (jumps < 20 && at < 40000) {
        if (sigsetjmp(back, 1)) {
            may_jump = 0;
            jumps++;
        }
        int other = open(path_of("a", "interrupted"), O_WRONLY);
        may_jump = 1;
        long value = at;
        long done = pwrite(fd, &value, 8, value % 1000 * 8);
        may_jump = 0;
        at++;
        check(done == 8, "an interrupted write", done);
        check(other >= 0 && close(other) == 0, "close", other);
    }
    must(setitimer(ITIMER_REAL, &never, 0) == 0, "timer");
    check(lseek(fd, 0, SEEK_CUR) == 0, "offset", 0);
    close(fd);
    for (int other = 3; other < 80; other++)
        if (other != a_fd && other != b_fd)
            close(other);
    must(unlink(path_of("a", "interrupted")) == 0, "unlink");
}

/* No number, no file. And numbers that the table does not have. */
static void descriptors_run_out(void)
{
    struct rlimit limit, low;
    static int open_now[6000];
    int count = 0;
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    low = (struct rlimit){40, limit.rlim_max};
    must(setrlimit(RLIMIT_NOFILE, &low) == 0, "setrlimit");
    while (count < 100 && (open_now[count] = open(path_of("a", numbered("n", count)), O_CREAT | O_EXCL | O_WRONLY, 0600)) >= 0)
        count++;
    check(count < 40 && errno == EMFILE, "opens up to the limit", count);
    check(faccessat(a_fd, numbered("n", count), F_OK, 0) == -1, "a file without a number", count);
    for (int at = 1; at < count; at++)
        for (int between = open_now[at - 1] + 1; between < open_now[at]; between++)
            check(fcntl(between, F_GETFD) >= 0, "the lowest number", open_now[at]);
    check(write(open_now[count - 1], "x", 1) == 1, "write at the limit", 0);
    void *mapped = mmap(0, 10, PROT_WRITE, MAP_SHARED, open_now[0], 0);
    check(mapped == MAP_FAILED && errno == EACCES, "mmap at the limit", 0);
    for (int at = 0; at < count; at++)
        check(close(open_now[at]) == 0 && unlink(path_of("a", numbered("n", at))) == 0, "close", at);
    low.rlim_cur = limit.rlim_max < 5000 ? limit.rlim_max : 5000;
    must(setrlimit(RLIMIT_NOFILE, &low) == 0, "setrlimit");
    regain();
    int used = dup2(a_fd, 60);
    for (count = 0; count < 4300 && used > 0; count++)
        if ((open_now[count] = dup(0)) < 0)
            break;
    for (int at = 0; at < 40; at++) {
        int fd = open(path_of("a", numbered("high", at)), O_CREAT | O_EXCL | O_WRONLY, at % 2 ? 0400 : 0600);
        check(fd >= 0 && write(fd, "high", 4) == 4, "a high number", fd);
        close(fd);
        check(unlink(path_of("a", numbered("high", at))) == 0, "unlink", at);
    }
    for (int at = 0; at < count; at++)
        close(open_now[at]);
    close(used);
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

static volatile sig_atomic_t too_long;

static void on_too_long(int unused)
{
    (void)unused;
    too_long++;
}

/* The result, and the signals since the last one. */
static long signalled(long result)
{
    int saved = errno;
    long both = result + 100000 * too_long;
    too_long = 0;
    errno = saved;
    return both;
}

/* The limit of the length, set before and after the file was opened. In a child, which keeps it. */
static void lengths_run_out(void)
{
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child) {
        wait_for(child, "a child with a limit");
        return;
    }
    struct rlimit limit = {10000, RLIM_INFINITY};
    differing = 0;
    warm(8000);
    regain();
    signal(SIGXFSZ, on_too_long);
    open_both("limited", O_CREAT | O_RDWR, 0600);
    BOTH(write(fd, bytes, 9000));
    must(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
    for (int round = 0; round < 2; round++) {
        BOTH(signalled(write(fd, bytes, 9000)));
        BOTH(signalled(write(fd, bytes, 9000)));
        BOTH(signalled(pwrite(fd, bytes, 10, 20000)));
        BOTH(signalled(ftruncate(fd, 20000)));
        close_both();
        open_both("limited", O_RDWR, 0600);
    }
    close_both();
    same_files("limited");
    unlink_both("limited");
    _exit(differing != 0);
}

/* Descriptors over exec, and the lowest number. */
static void numbers(void)
{
    regain();
    char script[200];
    int kept = open(path_of("a", "kept"), O_CREAT | O_RDWR | O_TRUNC, 0644);
    int closed = open(path_of("a", "closed-on-exec"), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    check(closed == kept + 1, "the lowest number", closed);
    check(write(kept, "one ", 4) == 4 && write(closed, "one", 3) == 3, "write", 0);
    pid_t child = fork();
    if (child == 0) {
        snprintf(script, sizeof script, "echo two >&%d; (echo three >&%d) 2>/dev/null", kept, closed);
        execl("/bin/sh", "sh", "-c", script, (char *)0);
        _exit(9);
    }
    waitpid(child, 0, 0);
    check(pread(kept, got[0], 100, 0) == 8 && memcmp(got[0], "one two\n", 8) == 0, "exec", 0);
    check(lseek(kept, 0, SEEK_CUR) == 8, "the offset behind a child's", 0);
    check(fstatat(a_fd, "closed-on-exec", &(struct stat){0}, 0) == 0, "stat", 0);
    close(kept);
    int pipes[2];
    must(pipe(pipes) == 0, "pipe");
    check(pipes[0] == kept, "the lowest number", pipes[0]);
    close(pipes[0]);
    close(pipes[1]);
    check(close(closed) == 0, "close", closed);
    int first = open(path_of("a", "kept"), O_WRONLY);
    check(syscall(SYS_close_range, first, first, 0) == 0, "close_range", first);
    check(write(first, "x", 1) == -1 && errno == EBADF, "closed", first);
    first = open(path_of("a", "kept"), O_WRONLY);
    check(syscall(SYS_close_range, first, first, 4) == 0, "close_range", first);
    check(write(first, "x", 1) == 1 && fcntl(first, F_GETFD) == FD_CLOEXEC, "closes on exec", first);
    pid_t fast = vfork();
    if (fast == 0) {
        int copy = dup2(first, 70);
        long result = write(copy, "v", 1);
        close(copy);
        close(first);
        _exit(result != 1);
    }
    wait_for(fast, "a child of vfork");
    check(write(first, "x", 1) == 1 && lseek(first, 0, SEEK_CUR) == 3, "beside a child of vfork", first);
    close(first);
    must(unlinkat(a_fd, "kept", 0) == 0 && unlinkat(a_fd, "closed-on-exec", 0) == 0, "unlink");
}

/* Rights that go while a file is open: it stays open. Only root's can be handed over then. */
static void rights(void)
{
    for (int way = getuid() == 0 ? 3 : 0; way >= 0; way--) {
        regain();
        if (!open_both("rights", O_CREAT | O_RDWR, 0600))
            return;
        BOTH(write(fd, "before", 6));
        must(chmod(path_of("a", "rights"), 0) == 0 && chmod(path_of("b", "rights"), 0) == 0, "chmod");
        BOTH(write(fd, "after", 5));
        BOTH(pread(fd, got[fd == kernels], 20, 0));
        if (way == 1)
            BOTH((long)flock(fd, LOCK_EX));
        if (way == 2) {
            int copies[2] = {dup(ours), dup(kernels)};
            check(copies[0] >= 0 && copies[1] >= 0 && write(copies[0], "d", 1) == 1 &&
                      write(copies[1], "d", 1) == 1, "dup without rights", copies[0]);
            close(copies[0]);
            close(copies[1]);
        }
        if (way == 3) {
            must(seteuid(54321) == 0, "seteuid");
            BOTH(write(fd, "user", 4));
            must(seteuid(0) == 0, "seteuid");
            BOTH(write(fd, "root", 4));
        }
        BOTH(write(fd, "end", 3));
        BOTH((long)fchmod(fd, 0644));
        close_both();
        same_files("rights");
        unlink_both("rights");
    }
    warm(8000);
}

static void prepare(void)
{
    umask(0);
    for (int at = 0; at < 2; at++) {
        const char *twin = at ? "b" : "a";
        must(mkdir(path_of(twin, ""), 0777) == 0 && mkdir(path_of(twin, "dir"), 0777) == 0, "mkdir");
        must(mkdir(path_of(twin, "sub"), 02777) == 0 && mkdir(path_of(twin, "closed"), 0500) == 0, "mkdir");
        must(chown(path_of(twin, "sub"), 0, 54330) == 0 && chmod(path_of(twin, "sub"), 02777) == 0, "chown");
        int fd = open(path_of(twin, "warm"), O_CREAT | O_WRONLY, 0666);
        must(fd >= 0 && write(fd, "warm", 4) == 4 && close(fd) == 0, "create");
    }
}

static void run(const char *name, void (*part)(void))
{
    struct timespec begun, ended;
    section = name;
    const char *only = getenv("ONLY");
    if (only && strcmp(only, name) != 0)
        return;
    random_state = seed * 2654435761 + 88172645463325252UL;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    part();
    clock_gettime(CLOCK_MONOTONIC, &ended);
    if (getenv("TIMES"))
        printf("%s: %ld ms, %ld differ\n", name,
               (ended.tv_sec - begun.tv_sec) * 1000 + (ended.tv_nsec - begun.tv_nsec) / 1000000, differing);
    regain();
}

static void calls(void)
{
    random_calls(400);
}

static void opens(void)
{
    open_all(700);
}

int main(int count, char **words)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count >= 3, "run without a command and a directory");
    program = words[0];
    root = words[2];
    if (strcmp(words[1], "prepare") == 0) {
        prepare();
        return 0;
    }
    a_fd = open(path_of("a", ""), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    b_fd = open(path_of("b", ""), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(a_fd >= 0 && b_fd >= 0, root);
    if (strcmp(words[1], "append") == 0) {
        warm(8000);
        return append(words[3], atoi(words[4]), 0);
    }
    seed = count > 3 ? strtoul(words[3], 0, 0) : 1;
    random_state = seed * 2654435761 + 88172645463325252UL;
    bytes = malloc(BYTES);
    got[0] = malloc(BYTES);
    got[1] = malloc(BYTES);
    for (long at = 0; at < BYTES; at++)
        bytes[at] = below(256);
    umask(0);
    warm(20000);
    run("calls", calls);
    run("opens", opens);
    run("wrong arguments", wrong_arguments);
    run("readers", readers);
    run("mappings", mappings);
    run("handovers", handovers);
    run("numbers", numbers);
    run("rights", rights);
    run("children", children);
    run("killed", killed);
    run("descriptors run out", descriptors_run_out);
    run("lengths run out", lengths_run_out);
    run("processes", appends_of_processes);
    run("interrupted", interrupted);
    run("threads", threads);
    run("readers and writers", readers_and_writers);
    printf("%ld compared, %ld differ\n", compared, differing);
    return differing != 0;
}
