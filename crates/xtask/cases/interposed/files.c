/* Files that the interposer may serve, beside the same files that only the kernel opens: from a
 * descriptor of the same directory in another mount of the tree, whose number is KERNEL_FD. Every
 * answer must be the same.
 *   files prepare DIR     makes the files
 *   files compare DIR     compares, and prints what differs */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define SIZES 7
#define WARM 40000
#define ROUNDS 60000
#define LINES_MAX 40

static const long sizes[SIZES] = {0, 1, 4096, 5000, 16384, 16385, 100000};
static const char *root;
/* The mount in which files are served, and the other one. The kernel has opened both. */
static int root_fd, kernel_fd;
/* The path of the other one. */
static char beside[512];
static long compared, differing;
static unsigned long random_state = 88172645463325252UL;

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

static void check(int right, const char *what, long number)
{
    compared++;
    if (!right && differing++ < LINES_MAX)
        printf("%s (%ld) differs: %s\n", what, number, strerror(errno));
}

/* A process beside this one, which sees what the kernel has under our numbers. */
static int watcher;
static long asked, served;

static void watch(void)
{
    int pair[2], fd;
    pid_t parent = getpid();
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        close(pair[0]);
        while (read(pair[1], &fd, sizeof fd) == sizeof fd) {
            char link[64], target[64] = {0};
            snprintf(link, sizeof link, "/proc/%d/fd/%d", parent, fd);
            int is_socket = readlink(link, target, sizeof target - 1) > 0 && strncmp(target, "socket:", 7) == 0;
            if (write(pair[1], &is_socket, sizeof is_socket) != sizeof is_socket)
                break;
        }
        _exit(0);
    }
    close(pair[1]);
    watcher = pair[0];
}

/* Counts how many descriptors of those that should be served are. */
static void note_served(int fd)
{
    int is_socket = 0;
    must(write(watcher, &fd, sizeof fd) == sizeof fd, "ask");
    must(read(watcher, &is_socket, sizeof is_socket) == sizeof is_socket, "hear");
    asked++;
    served += is_socket;
}

static char *path_of(const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, 512, "%s/%s", root, name);
    return path;
}

static char *name_of(int at)
{
    static char names[4][32];
    static int next;
    char *name = names[next++ % 4];
    snprintf(name, 32, "file-%d", at);
    return name;
}

/* Through one of the mounts: the program itself changes a file, or another one does. */
static void fill_by(int by, const char *name, long size, int salt)
{
    int fd = openat(by, name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    must(fd >= 0, "create");
    char *bytes = malloc(size + 1);
    for (long at = 0; at < size; at++)
        bytes[at] = (at * 31 + at / 251 + salt) & 0xff;
    must(write(fd, bytes, size) == size && close(fd) == 0, "write");
    free(bytes);
}

static void fill(const char *name, long size, int salt)
{
    fill_by(kernel_fd, name, size, salt);
}

static void prepare(void)
{
    for (int at = 0; at < SIZES; at++)
        fill(name_of(at), sizes[at], at);
    fill("secret", 10, 1);
    must(fchmodat(root_fd, "secret", 0, 0) == 0, "chmod");
    fill("owned", 10, 1);
    must(fchownat(root_fd, "owned", 54321, 54321, 0) == 0 && fchmodat(root_fd, "owned", 0600, 0) == 0,
         "chown");
    umask(0);
    must(mkdirat(root_fd, "dir", 0777) == 0 && symlinkat("file-2", root_fd, "link") == 0, "mkdir");
    must(symlinkat("gone", root_fd, "dangling") == 0 && mkfifoat(root_fd, "fifo", 0644) == 0, "link");
    must(fchmodat(root_fd, ".", 0777, 0) == 0, "chmod");
}

/* Until this process is admitted and has its paths: after that, opens are served. */
static void warm(void)
{
    struct stat found;
    for (long at = 0; at < WARM; at++)
        must(stat(path_of(name_of(at % SIZES)), &found) == 0, "stat");
}

/* The descriptors of one file: by its path, and by the kernel alone. */
static int ours, kernels;

static void open_both(const char *name, int flags)
{
    ours = open(path_of(name), flags);
    int error = errno;
    kernels = openat(kernel_fd, name, flags);
    check((ours < 0) == (kernels < 0) && (ours >= 0 || error == errno), name, flags);
}

/* Files that are served to their ends, so that a few more may be handed over. */
static void gain(void)
{
    for (int at = 0; at < 150; at++)
        close(open(path_of("file-1"), O_RDONLY));
}

static void close_both(void)
{
    check(close(ours) == 0 && close(kernels) == 0, "close", ours);
}

#define BOTH(result, call)                                                                        \
    do {                                                                                          \
        int fd = ours;                                                                            \
        errno = 0;                                                                                \
        long a = (call);                                                                          \
        int ea = errno;                                                                           \
        fd = kernels;                                                                             \
        errno = 0;                                                                                \
        long b = (call);                                                                          \
        check(a == b && ea == errno, #call, a);                                                   \
        (void)(result = a);                                                                               \
    } while (0)

static char buffer[2][200000];

/* Two paths in the two mounts. */
static void same_place(const char *a, const char *b, long number)
{
    size_t length = strlen(root), other = strlen(beside);
    int same = strncmp(a, root, length) == 0 && strncmp(b, beside, other) == 0
               && strcmp(a + length, b + other) == 0;
    check(same, "path", number);
    if (!same && differing < LINES_MAX)
        printf("%s, kernel %s\n", a, b);
}

static void same_bytes(const char *what, long count)
{
    if (count > 0)
        check(memcmp(buffer[0], buffer[1], count) == 0, what, count);
}

/* Calls on the two descriptors, whose offsets move alike. */
static void calls(long size)
{
    long result, offset = below(size + 100), length = below(below(4) ? 9000 : 150000);
    long step = (long)below(200) - 100, back = -(long)below(size + 20), advice = below(8);
    struct stat a, b;
    switch (below(12)) {
    case 0: case 1: case 2:
        BOTH(result, read(fd, buffer[fd == kernels], length));
        same_bytes("read", result);
        break;
    case 3: case 4: case 5:
        BOTH(result, pread(fd, buffer[fd == kernels], length, offset));
        same_bytes("pread", result);
        break;
    case 6:
        BOTH(result, lseek(fd, offset, SEEK_SET));
        break;
    case 7:
        BOTH(result, lseek(fd, step, SEEK_CUR));
        break;
    case 8:
        BOTH(result, lseek(fd, back, SEEK_END));
        break;
    case 9: case 10:
        check(fstat(ours, &a) == 0 && fstat(kernels, &b) == 0, "fstat", size);
        /* Reading through one of them moves the access time. */
        a.st_atim = b.st_atim;
        check(memcmp(&a, &b, sizeof a) == 0, "stat", size);
        break;
    default:
        BOTH(result, fcntl(fd, F_GETFL));
        BOTH(result, fcntl(fd, F_GETFD));
        BOTH(result, isatty(fd));
        BOTH(result, posix_fadvise(fd, 0, 0, advice));
    }
}

static void errors(void)
{
    long result = 0;
    char *volatile nowhere = (char *)8;
    BOTH(result, read(fd, nowhere, 10));
    BOTH(result, pread(fd, buffer[0], 10, -1));
    BOTH(result, lseek(fd, -1, SEEK_SET));
    BOTH(result, lseek(fd, 0, 77));
    BOTH(result, write(fd, "x", 1));
    BOTH(result, ftruncate(fd, 0));
    BOTH(result, (long)ioctl(fd, FIONREAD, buffer[0]));
    BOTH(result, fchdir(fd));
    BOTH(result, fsync(fd));
    BOTH(result, syscall(SYS_getdents64, fd, buffer[0], 100));
    BOTH(result, (long)(fcntl(fd, F_SETFL, O_NONBLOCK) | fcntl(fd, F_GETFL)));
    (void)result;
}

static void opens(void)
{
    static const char *names[] = {"secret", "owned", "dir", "link", "dangling", "missing",
                                  "file-2/x", "file-3", "dir/../file-2", "link/"};
    static const int flags[] = {O_RDONLY, O_RDONLY | O_CLOEXEC, O_RDONLY | O_NOFOLLOW,
                                O_RDONLY | O_NONBLOCK, O_RDONLY | O_DIRECTORY, O_PATH,
                                O_RDONLY | O_NOATIME};
    long result = 0;
    for (int round = 0; round < 3; round++)
        for (unsigned at = 0; at < sizeof names / sizeof *names; at++)
            for (unsigned flag = 0; flag < sizeof flags / sizeof *flags; flag++) {
                open_both(names[at], flags[flag]);
                if (ours < 0 || kernels < 0)
                    continue;
                BOTH(result, fcntl(fd, F_GETFL));
                BOTH(result, fcntl(fd, F_GETFD));
                (void)result;
                close_both();
            }
    open_both("fifo", O_RDONLY | O_NONBLOCK);
    close_both();
}

/* Each way in which the kernel comes to have the file. The offset stays. */
static void handovers(void)
{
    long result = 0;
    for (int turn = 0; turn < 24; turn++) {
        int way = turn / 2;
        gain();
        open_both(name_of(3), turn % 2 ? O_RDONLY | O_NOFOLLOW : O_RDONLY);
        note_served(ours);
        BOTH(result, read(fd, buffer[fd == kernels], 100));
        switch (way) {
        case 0:
            for (int at = 0; at < 2; at++) {
                int fd = at ? kernels : ours;
                char *mapped = mmap(0, 5000, PROT_READ, MAP_PRIVATE, fd, 0);
                check(mapped != MAP_FAILED, "mmap", at);
                memcpy(buffer[at], mapped, 5000);
                munmap(mapped, 5000);
            }
            same_bytes("mapped", 5000);
            break;
        case 1: {
            int copies[2] = {dup(ours), dup(kernels)};
            check(read(copies[0], buffer[0], 10) == 10 && read(copies[1], buffer[1], 10) == 10,
                  "read of a duplicate", way);
            same_bytes("duplicate", 10);
            close(copies[0]);
            close(copies[1]);
            break;
        }
        case 2: {
            int status;
            for (int at = 0; at < 2; at++) {
                int fd = at ? kernels : ours;
                pid_t child = fork();
                if (child == 0)
                    _exit(read(fd, buffer[0], 50) != 50);
                check(waitpid(child, &status, 0) == child && status == 0, "child", status);
            }
            break;
        }
        case 3: {
            char command[100];
            for (int at = 0; at < 2; at++) {
                snprintf(command, sizeof command, "head -c 50 <&%d | md5sum > %s/sum%d",
                         at ? kernels : ours, root, at);
                check(system(command) == 0, "system", at);
            }
            check(system("cmp -s $FILES/sum0 $FILES/sum1") == 0, "sums", 0);
            break;
        }
        case 4: {
            char link[2][600], from[64];
            for (int at = 0; at < 2; at++) {
                snprintf(from, sizeof from, "/proc/self/fd/%d", at ? kernels : ours);
                memset(link[at], 0, 600);
                check(readlink(from, link[at], 599) > 0, "readlink", at);
                int again = open(from, O_RDONLY);
                check(again >= 0 && read(again, buffer[at], 20) == 20, "open again", at);
                close(again);
            }
            same_place(link[0], link[1], way);
            same_bytes("opened again", 20);
            break;
        }
        case 5: {
            int pipes[2];
            must(pipe(pipes) == 0, "pipe");
            BOTH(result, sendfile(pipes[1], fd, NULL, 30));
            BOTH(result, splice(fd, NULL, pipes[1], NULL, 30, 0));
            close(pipes[0]);
            close(pipes[1]);
            break;
        }
        case 6: {
            struct pollfd polled[2] = {{ours, POLLIN, 0}, {kernels, POLLIN, 0}};
            check(poll(polled, 2, 0) == 2 && polled[0].revents == polled[1].revents, "poll", 0);
            break;
        }
        case 7: {
            fd_set set;
            FD_ZERO(&set);
            FD_SET(ours, &set);
            FD_SET(kernels, &set);
            check(select((ours > kernels ? ours : kernels) + 1, &set, 0, 0, 0) == 2, "select", 0);
            break;
        }
        case 8: {
            struct iovec parts[2] = {{buffer[0], 10}, {buffer[0] + 10, 20}};
            BOTH(result, (parts[0].iov_base = buffer[fd == kernels],
                          parts[1].iov_base = buffer[fd == kernels] + 10, readv(fd, parts, 2)));
            same_bytes("readv", result);
            break;
        }
        case 9: {
            /* Replaced by another file, and the name given to a third. */
            fill("new", 50, 77);
            check(dup2(kernels, ours) == ours, "dup2", ours);
            break;
        }
        case 10:
            BOTH(result, flock(fd, 1) | flock(fd, 8));
            break;
        case 11: {
            /* Passed to another process. */
            int pair[2];
            must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
            char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
            struct iovec part = {&byte, 1};
            struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                                     .msg_controllen = sizeof control};
            struct cmsghdr *header = CMSG_FIRSTHDR(&message);
            *header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
            memcpy(CMSG_DATA(header), &ours, sizeof(int));
            check(sendmsg(pair[0], &message, 0) == 1 && recvmsg(pair[1], &message, 0) == 1, "send", 0);
            int received;
            memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
            check(pread(received, buffer[0], 10, 0) == 10, "received", received);
            close(received);
            close(pair[0]);
            close(pair[1]);
        }
        }
        if (way != 9) {
            BOTH(result, lseek(fd, 0, SEEK_CUR));
            BOTH(result, fcntl(fd, F_GETFL));
            BOTH(result, fcntl(fd, F_GETFD));
            BOTH(result, read(fd, buffer[fd == kernels], 1000));
            same_bytes("read afterwards", result);
        }
        close_both();
    }
}

/* What others do to the file while it is open. */
static void changes(void)
{
    long result = 0;
    for (int round = 0; round < 20; round++) {
        int by = round / 5 % 2 ? root_fd : kernel_fd;
        fill_by(by, "changed", 3000, round);
        struct stat found;
        for (int at = 0; at < 3; at++)
            must(stat(path_of("changed"), &found) == 0, "stat");
        gain();
        open_both("changed", O_RDONLY);
        note_served(ours);
        BOTH(result, read(fd, buffer[fd == kernels], 100));
        int writer = openat(by, "changed", O_RDWR);
        switch (round % 5) {
        case 0:
            must(pwrite(writer, "changed", 7, 50) == 7, "write");
            break;
        case 1:
            must(ftruncate(writer, 60) == 0, "truncate");
            break;
        case 2:
            must(ftruncate(writer, 40000) == 0, "grow");
            break;
        case 3: {
            char *mapped = mmap(0, 3000, PROT_READ | PROT_WRITE, MAP_SHARED, writer, 0);
            must(mapped != MAP_FAILED, "mmap");
            memset(mapped + 200, 'm', 1000);
            BOTH(result, pread(fd, buffer[fd == kernels], 3000, 0));
            same_bytes("a mapping", result);
            munmap(mapped, 3000);
            break;
        }
        case 4:
            must(unlinkat(by, "changed", 0) == 0, "unlink");
            check(open(path_of("changed"), O_RDONLY) < 0 && errno == ENOENT, "unlinked", round);
            fill_by(by, "changed", 10, 5);
        }
        close(writer);
        BOTH(result, pread(fd, buffer[fd == kernels], 50000, 0));
        same_bytes("changed", result);
        BOTH(result, lseek(fd, 0, SEEK_END));
        struct stat a, b;
        check(fstat(ours, &a) == 0 && fstat(kernels, &b) == 0 && a.st_nlink == b.st_nlink
                  && a.st_size == b.st_size && a.st_ino == b.st_ino, "fstat", round);
        if (round >= 10) {
            /* The kernel takes it over, with or without a name. */
            int status;
            pid_t child = fork();
            if (child == 0)
                _exit(pread(ours, buffer[0], 40, 0) < 1);
            check(waitpid(child, &status, 0) == child && status == 0, "child", round);
            BOTH(result, pread(fd, buffer[fd == kernels], 50000, 0));
            same_bytes("handed over", result);
        }
        close_both();
    }
}

struct record {
    unsigned long ino;
    long next;
    unsigned short length;
    unsigned char type;
    char name[];
};

/* The rest of a listing, in pieces of any size: how large they are is not said. */
static long collect(int fd, char *into)
{
    long total = 0, count;
    do {
        long room = 300 + below(below(2) ? 300 : 40000);
        count = syscall(SYS_getdents64, fd, into + total, room);
        check(count >= 0, "getdents64", count);
        total += count > 0 ? count : 0;
    } while (count > 0);
    return total;
}

static void same_rest(void)
{
    /* The kernel leaves what is behind the names as it was. */
    memset(buffer, 0, sizeof buffer);
    long lengths[2] = {collect(ours, buffer[0]), collect(kernels, buffer[1])};
    check(lengths[0] == lengths[1], "length of a listing", lengths[0] - lengths[1]);
    same_bytes("listing", lengths[0]);
}

/* A whole listing, and parts from any place. */
static void list_both(void)
{
    long result = 0;
    BOTH(result, lseek(fd, 0, SEEK_SET));
    same_rest();
    BOTH(result, lseek(fd, 0, SEEK_CUR));
    char *at = buffer[0];
    for (unsigned long skipped = below(500); skipped > 0; skipped--)
        at += ((struct record *)at)->length;
    long place = ((struct record *)at)->next;
    BOTH(result, lseek(fd, place, SEEK_SET));
    same_rest();
    BOTH(result, syscall(SYS_getdents64, fd, buffer[0], 10));
}

static void open_directories(int way)
{
    gain();
    if (way == 0) {
        ours = open(path_of("list"), O_RDONLY | O_DIRECTORY);
    } else if (way == 1) {
        must(chdir(root) == 0, "chdir");
        ours = open("list", O_RDONLY);
    } else if (way == 2) {
        int parent = open(root, O_RDONLY | O_DIRECTORY);
        ours = openat(parent, "list", O_RDONLY | O_DIRECTORY);
        close(parent);
    } else {
        ours = openat(root_fd, "list", O_RDONLY | O_DIRECTORY);
    }
    kernels = openat(kernel_fd, "list", way == 1 ? O_RDONLY : O_RDONLY | O_DIRECTORY);
    check(ours >= 0 && kernels >= 0, "open of a directory", way);
    note_served(ours);
}

/* Where the two lead as working directories. The kernel takes ours over. */
static void same_directory(long number)
{
    char paths[2][600] = {{0}};
    check(fchdir(ours) == 0 && getcwd(paths[0], 600) != 0, "getcwd", number);
    check(fchdir(kernels) == 0 && getcwd(paths[1], 600) != 0, "getcwd", number);
    must(chdir(root) == 0, "chdir");
    same_place(paths[0], paths[1], number);
}

static void directories(void)
{
    char name[300];
    long result = 0;
    must(mkdirat(kernel_fd, "list", 0755) == 0, "mkdir");
    int listed = openat(kernel_fd, "list", O_RDONLY | O_DIRECTORY);
    for (int at = 0; at < 700; at++) {
        snprintf(name, sizeof name, "%0*d", (int)(1 + below(200)), at);
        int fd = openat(listed, name, O_CREAT | O_WRONLY, 0644);
        if (fd >= 0)
            close(fd);
    }
    mkdirat(listed, "directory", 0755);
    symlinkat("x", listed, "link");
    struct stat found, other;
    for (int round = 0; round < 60; round++) {
        for (int at = 0; at < 3; at++)
            must(stat(path_of("list"), &found) == 0, "stat");
        open_directories(round % 4);
        list_both();
        check(fstat(ours, &found) == 0 && fstat(kernels, &other) == 0, "fstat", round);
        found.st_atim = other.st_atim;
        check(memcmp(&found, &other, sizeof found) == 0, "stat of a directory", round);
        BOTH(result, (long)read(fd, name, 10));
        BOTH(result, fcntl(fd, F_GETFL));
        BOTH(result, (long)fstatat(fd, "directory", fd == kernels ? &other : &found, 0));
        check(memcmp(&found, &other, sizeof found) == 0, "fstatat", round);
        BOTH(result, (long)fstatat(fd, "missing", &found, 0));
        BOTH(result, (long)faccessat(fd, "link", F_OK, 0));
        BOTH(result, (long)readlinkat(fd, "link", buffer[fd == kernels], 100));
        close_both();
        /* Names come and go between two listings. */
        snprintf(name, sizeof name, "new-%d", round / 2);
        int served = openat(root_fd, "list", O_RDONLY | O_DIRECTORY);
        int by = round / 2 % 2 ? listed : served;
        if (round % 2)
            unlinkat(by, name, 0);
        else
            close(openat(by, name, O_CREAT | O_WRONLY, 0644));
        close(served);
    }
    for (int way = 0; way < 12; way++) {
        open_directories(way % 4);
        /* So many that the kernel has given out all that it has asked for. */
        BOTH(result, (long)(syscall(SYS_getdents64, fd, buffer[fd == kernels], 1000) > 0));
        long place = ((struct record *)buffer[0])->next;
        BOTH(result, lseek(fd, place, SEEK_SET));
        must(chdir(way % 2 ? "/" : root) == 0, "chdir");
        if (way / 4 == 0) {
            BOTH(result, (long)mkdirat(fd, "directory", 0700));
        } else if (way / 4 == 1) {
            int copies[2] = {dup(ours), dup(kernels)};
            check(copies[0] >= 0 && close(copies[0]) == 0 && close(copies[1]) == 0, "dup", way);
        } else {
            char link[2][600] = {{0}};
            for (int at = 0; at < 2; at++) {
                snprintf(name, sizeof name, "/proc/self/fd/%d", at ? kernels : ours);
                check(readlink(name, link[at], 599) > 0, "readlink", at);
            }
            same_place(link[0], link[1], way);
        }
        BOTH(result, lseek(fd, 0, SEEK_CUR));
        same_rest();
        BOTH(result, (long)fchdir(fd));
        check(stat("directory", &found) == 0, "a relative path", way);
        close_both();
    }
    for (int way = 0; way < 8; way++) {
        int by = way / 4 ? root_fd : kernel_fd;
        open_directories(way % 4);
        must(renameat(by, "list", by, "dir/moved") == 0, "rename");
        BOTH(result, (long)mkdirat(fd, "directory", 0700));
        same_directory(way);
        same_rest();
        must(renameat(by, "dir/moved", by, "list") == 0, "rename");
        same_directory(way);
        close_both();
    }
    must(mkdirat(root_fd, "removed", 0755) == 0, "mkdir");
    ours = open(path_of("removed"), O_RDONLY);
    kernels = openat(kernel_fd, "removed", O_RDONLY);
    must(unlinkat(root_fd, "removed", AT_REMOVEDIR) == 0, "rmdir");
    BOTH(result, syscall(SYS_getdents64, fd, buffer[fd == kernels], 2000));
    BOTH(result, (long)openat(fd, "x", O_RDONLY));
    close_both();
    close(listed);
}

static int shared_fd;
static long sum;

static void *reader(void *unused)
{
    unsigned char bytes[7];
    long own = 0, count;
    while ((count = read(shared_fd, bytes, sizeof bytes)) > 0)
        for (long at = 0; at < count; at++)
            own += bytes[at] + 1;
    __atomic_fetch_add(&sum, own, __ATOMIC_SEQ_CST);
    return unused;
}

static void *closer(void *unused)
{
    char path[512];
    snprintf(path, sizeof path, "%s/file-2", root);
    for (int at = 0; at < 2000; at++) {
        int fd = open(path, O_RDONLY);
        char byte;
        check(fd >= 0 && read(fd, &byte, 1) == 1 && close(fd) == 0, "thread", fd);
    }
    return unused;
}

/* Each byte is read once, however many threads read, and a child does so, too. */
static void threads(void)
{
    long expected[2];
    for (int at = 0; at < 2; at++) {
        shared_fd = at ? openat(kernel_fd, "file-6", O_RDONLY) : open(path_of("file-6"), O_RDONLY);
        sum = 0;
        pthread_t threads[4];
        for (int thread = 0; thread < 4; thread++)
            must(pthread_create(&threads[thread], 0, reader, 0) == 0, "thread");
        for (int thread = 0; thread < 4; thread++)
            pthread_join(threads[thread], 0);
        expected[at] = sum;
        close(shared_fd);
    }
    check(expected[0] == expected[1], "sum of what threads have read", expected[0] - expected[1]);
    pthread_t threads[4];
    for (int thread = 0; thread < 4; thread++)
        must(pthread_create(&threads[thread], 0, closer, 0) == 0, "thread");
    for (int at = 0; at < 20; at++) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        waitpid(child, 0, 0);
    }
    for (int thread = 0; thread < 4; thread++)
        pthread_join(threads[thread], 0);
}

static void numbers(void)
{
    int first = open(path_of("file-1"), O_RDONLY), second = open(path_of("file-2"), O_RDONLY);
    check(second == first + 1, "numbers", second - first);
    close(first);
    int pipes[2];
    must(pipe(pipes) == 0, "pipe");
    check(pipes[0] == first && pipes[1] == second + 1, "the lowest number", pipes[0]);
    check(syscall(SYS_close_range, second, second, 0) == 0, "close_range", second);
    check(read(second, buffer[0], 1) == -1 && errno == EBADF, "closed", second);
    close(pipes[0]);
    close(pipes[1]);
    check(read(first, buffer[0], 1) == -1 && errno == EBADF, "closed", first);
}

/* Lengths and addresses that no buffer can have, at the end of a file, too. */
static void ranges(void)
{
    static char *const addresses[] = {(char *)8, (char *)0x800000000000, (char *)-4096L, buffer[0]};
    static const unsigned long lengths[] = {0, 1, 1000, -1UL, -1UL >> 1, 1UL << 47};
    long result = 0;
    open_both("file-2", O_RDONLY);
    for (int at = 0; at < 4; at++)
        for (int length = 0; length < 6; length++)
            for (int end = 0; end < 2; end++) {
                char *volatile to = addresses[at];
                volatile unsigned long count = lengths[length];
                BOTH(result, syscall(SYS_pread64, fd, to, count, end ? 5000 : 0));
            }
    close_both();
}

static long closes(int fd, int flags, int far)
{
    long result = syscall(SYS_close_range, fd, fd, flags);
    return result * 1000 + (fcntl(fd, F_GETFD) + 5) * 10 + (pread(fd, buffer[0], 1, far) >= 0);
}

/* Descriptors that are named where one would not look. */
static void unusual(void)
{
    long result = 0;
    char name[64];
    static const int flags[] = {0, 4, 8, 64};
    for (int at = 0; at < 4; at++) {
        open_both("file-2", O_RDONLY);
        BOTH(result, closes(fd, flags[at], 0));
        if (flags[at])
            close_both();
    }
    open_both("file-2", O_RDONLY | O_CLOEXEC);
    for (int at = 0; at < 2; at++) {
        snprintf(name, sizeof name, "/proc/self/fd/%d", at ? kernels : ours);
        errno = 0;
        long changed = chmod(name, 0644);
        check(at == 0 || changed == result, "chmod", changed);
        result = changed;
        long listed = syscall(SYS_kcmp, getpid(), getpid(), 0, at ? kernels : ours, root_fd);
        check(listed == 1 || listed == 2 || errno == EPERM || errno == ENOSYS, "kcmp", listed);
    }
    BOTH(result, (long)ioctl(root_fd, 0x40049409, fd));
    close_both();
    int program = openat(root_fd, "program", O_CREAT | O_WRONLY, 0755);
    must(program >= 0 && write(program, "#!/bin/true\n", 12) == 12 && close(program) == 0, "write");
    struct stat found;
    for (int at = 0; at < 3; at++)
        must(stat(path_of("program"), &found) == 0, "stat");
    open_both("program", O_RDONLY);
    for (int at = 0; at < 2; at++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            char *words[] = {"program", 0};
            fexecve(at ? kernels : ours, words, environ);
            _exit(errno);
        }
        waitpid(child, &status, 0);
        check(at == 0 || status == result, "fexecve", status);
        result = status;
    }
    close_both();
}

/* The kernel takes a file over although the process may have no more descriptors. */
static void at_limit(void)
{
    struct rlimit limit, low;
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    int first = dup(root_fd), count = 0, open_now[200];
    close(first);
    low = (struct rlimit){first + 10, limit.rlim_max};
    must(setrlimit(RLIMIT_NOFILE, &low) == 0, "setrlimit");
    while (count < 200 && (open_now[count] = open(path_of("file-2"), O_RDONLY)) >= 0)
        count++;
    check(count == 10 && errno == EMFILE, "opens up to the limit", count);
    char *mapped = mmap(0, 4096, PROT_READ, MAP_PRIVATE, open_now[0], 0);
    check(mapped != MAP_FAILED && mapped[1] == (char)(31 + 2), "mmap at the limit", 0);
    int status;
    pid_t child = fork();
    if (child == 0) {
        for (int at = 0; at < count; at++)
            if (read(open_now[at], buffer[0], 10) != 10)
                _exit(1);
        _exit(0);
    }
    check(waitpid(child, &status, 0) == child && status == 0, "a child at the limit", status);
    for (int at = 0; at < count; at++)
        check(close(open_now[at]) == 0, "close", at);
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

/* Another process makes a file shorter and longer while this one reads behind. By its path: a file
 * that is open for writing is not served. */
static void shrinking(void)
{
    char path[512];
    struct stat found;
    snprintf(path, sizeof path, "%s/shrinking", root);
    fill("shrinking", 16000, 3);
    for (int at = 0; at < 3; at++)
        must(stat(path, &found) == 0, "stat");
    pid_t child = fork();
    while (child == 0)
        if (truncate(path, 100) || truncate(path, 16000))
            _exit(1);
    int fd = open(path, O_RDONLY);
    time_t end = time(0) + 1;
    do {
        for (int at = 0; at < 1000; at++) {
            long count = pread(fd, buffer[0], 10, 5000);
            check(count == 0 || count == 10, "a file that shrinks", count);
        }
    } while (time(0) < end);
    close(fd);
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
}

static volatile int forks_end;

static void *forker(void *unused)
{
    while (!forks_end) {
        int status = 0;
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        check(waitpid(child, &status, 0) == child && status == 0, "fork beside handovers", status);
    }
    return unused;
}

/* A child may be forked while another thread hands a file over. */
static void forks(void)
{
    char path[512];
    pthread_t thread;
    snprintf(path, sizeof path, "%s/file-3", root);
    must(pthread_create(&thread, 0, forker, 0) == 0, "thread");
    for (int at = 0; at < 300; at++) {
        int fd = open(path, O_RDONLY);
        check(fd >= 0 && flock(fd, LOCK_SH) == 0 && close(fd) == 0, "handover", at);
    }
    forks_end = 1;
    pthread_join(thread, 0);
}

static volatile sig_atomic_t is_child, ended_badly, forks_go_on;

/* Once: on a slow machine a fork takes longer than an interval. */
static void fork_after(long microseconds)
{
    struct itimerval once = {{0, 0}, {0, microseconds}};
    must(setitimer(ITIMER_REAL, &once, 0) == 0, "timer");
}

static void fork_here(int unused)
{
    int status, saved = errno;
    pid_t child = is_child ? -1 : fork();
    if (child == 0)
        is_child = 1;
    else if (child > 0 && (waitpid(child, &status, 0) != child || status != 0))
        ended_badly++;
    if (forks_go_on && !is_child)
        fork_after(1500);
    errno = saved;
    (void)unused;
}

/* A handler forks in the middle of a call, and the child goes on there. */
static void forks_in_handlers(void)
{
    struct sigaction action = {.sa_handler = fork_here, .sa_flags = SA_RESTART};
    must(sigaction(SIGALRM, &action, 0) == 0, "handler");
    forks_go_on = 1;
    fork_after(1500);
    int wrong = 0, behind = 0;
    struct stat found;
    char bytes[100], path[512];
    snprintf(path, sizeof path, "%s/file-2", root);
    for (int at = 0; at < 60000 && behind < 20; at++) {
        wrong += stat(path, &found) != 0 || found.st_size != 4096;
        int fd = open(path, O_RDONLY);
        wrong += fd < 0 || pread(fd, bytes, 100, 0) != 100 || bytes[1] != (char)(31 + 2);
        wrong += fstat(fd, &found) != 0 || found.st_size != 4096;
        wrong += close(fd) != 0;
        behind += is_child;
    }
    forks_go_on = 0;
    fork_after(0);
    if (is_child)
        _exit(wrong != 0);
    check(wrong == 0 && ended_badly == 0, "forks in handlers", wrong * 1000 + ended_badly);
}

#define NUMBERS 100

static int is_kept(int fd)
{
    return fd == root_fd || fd == kernel_fd;
}

/* Every new descriptor has the lowest number that is free, whatever was opened and closed before. */
static void lowest(void)
{
    static char used[NUMBERS];
    for (int at = 0; at < NUMBERS; at++)
        used[at] = fcntl(at, F_GETFD) >= 0;
    int first = 0, open_now = 0;
    while (used[first])
        first++;
    for (int round = 0; round < 20000; round++) {
        int wanted = 0, got = -1;
        while (used[wanted])
            wanted++;
        switch (open_now > 20 ? 19 : below(14)) {
        case 0: case 1: case 2:
            got = open(path_of(name_of(below(SIZES - 1))), below(2) ? O_RDONLY | O_CLOEXEC : O_RDONLY);
            break;
        case 3:
            got = openat(root_fd, "file-1", O_RDONLY);
            break;
        case 4:
            got = dup(root_fd);
            break;
        case 12:
            got = open(root, O_RDONLY | O_DIRECTORY);
            break;
        case 13: {
            /* A duplicate of a directory or of anything else, from any number on. */
            int from = first + below(NUMBERS / 2), any = first + below(NUMBERS / 2);
            while (!used[any])
                any = any + 1 < NUMBERS ? any + 1 : 0;
            wanted = from;
            while (used[wanted])
                wanted++;
            got = fcntl(any, below(2) ? F_DUPFD : F_DUPFD_CLOEXEC, from);
            break;
        }
        case 5:
            got = socket(AF_UNIX, SOCK_STREAM, 0);
            break;
        case 6:
            got = open("/dev/null", O_RDONLY);
            break;
        default: {
            int victim = first + below(NUMBERS - first);
            for (int at = 0; at < NUMBERS && !(used[victim] && !is_kept(victim)); at++)
                victim = victim + 1 < NUMBERS ? victim + 1 : first;
            if (is_kept(victim) || !used[victim])
                continue;
            if (below(4) == 0)
                check(lseek(victim, 0, SEEK_CUR) == 0 || errno == ESPIPE, "lseek", victim);
            check(close(victim) == 0, "close", victim);
            used[victim] = 0;
            open_now--;
            struct stat found;
            char name[64];
            snprintf(name, sizeof name, "/proc/self/fd/%d", victim);
            if (below(4) == 0)
                check(lstat(name, &found) == -1 && errno == ENOENT, "a closed one in /proc", victim);
            if (below(4) == 0)
                check(fstat(victim, &found) == -1 && errno == EBADF, "fstat of a closed one", victim);
            if (below(4) == 0)
                check(close(victim) == -1 && errno == EBADF, "closed twice", victim);
            if (below(8) == 0)
                check(fcntl(victim, F_GETFD) == -1 && errno == EBADF, "F_GETFD", victim);
            if (below(8) == 0)
                check(dup(victim) == -1 && errno == EBADF, "dup of a closed one", victim);
            continue;
        }
        }
        check(got == wanted, "the lowest number", got - wanted);
        if (got >= 0 && got < NUMBERS) {
            used[got] = 1;
            open_now++;
        }
    }
    for (int at = first; at < NUMBERS; at++)
        if (used[at] && !is_kept(at))
            close(at);
}

#define COPIES 6

/* Duplicates of one directory, here and in the kernel. */
static int copies[2][COPIES];

static void pick(int slot)
{
    ours = copies[0][slot];
    kernels = copies[1][slot];
}

/* They share their place, whoever has them. */
static void same_places(void)
{
    long result = 0;
    for (int slot = 0; slot < COPIES; slot++) {
        pick(slot);
        if (ours < 0)
            continue;
        BOTH(result, lseek(fd, 0, SEEK_CUR));
        BOTH(result, fcntl(fd, F_GETFD));
        BOTH(result, fcntl(fd, F_GETFL));
    }
    (void)result;
}

/* A call that the kernel must make, or a child, which has duplicates, too. */
static void hand_over(void)
{
    struct stat found;
    long result = 0, place = ((struct record *)buffer[0])->next;
    int status = -1;
    pid_t child;
    switch (below(4)) {
    case 0:
        BOTH(result, (long)fchdir(fd));
        must(chdir(root) == 0, "chdir");
        break;
    case 1:
        BOTH(result, (long)flock(fd, LOCK_SH));
        break;
    case 2:
        BOTH(result, (long)dup2(fd, fd) == fd);
        break;
    default:
        child = fork();
        if (child == 0)
            _exit(lseek(ours, place, SEEK_SET) != place || lseek(kernels, place, SEEK_SET) != place
                  || fstatat(ours, "directory", &found, 0) != 0);
        check(waitpid(child, &status, 0) == child && status == 0, "child", status);
    }
    (void)result;
}

static void duplicate(int slot)
{
    int way = below(5), least = 3 + below(60), result[2] = {-1, -1}, other = below(COPIES);
    for (int at = 0; at < 2; at++) {
        int fd = at ? kernels : ours;
        /* Both get the numbers from the same one on. */
        int wanted = way > 0 && way < 3 ? least : 0;
        while (fcntl(wanted, F_GETFD) >= 0)
            wanted++;
        if (way == 0)
            result[at] = dup(fd);
        else if (way < 3)
            result[at] = fcntl(fd, way == 1 ? F_DUPFD : F_DUPFD_CLOEXEC, least);
        else if (copies[0][other] < 0 || other == slot)
            result[at] = dup(fd);
        else
            result[at] = way == 3 ? dup2(fd, copies[at][other]) : fcntl(fd, F_DUPFD, 0);
        if (way < 3)
            check(result[at] == wanted, "number of a duplicate", result[at] - wanted);
    }
    if (result[0] == copies[0][other])
        return;
    copies[0][slot] = result[0];
    copies[1][slot] = result[1];
}

static void duplicates(void)
{
    for (int round = 0; round < 150; round++) {
        struct stat found;
        for (int at = 0; at < 3; at++)
            must(stat(path_of("list"), &found) == 0, "stat");
        memset(copies, -1, sizeof copies);
        open_directories(round % 4);
        copies[0][0] = ours;
        copies[1][0] = kernels;
        long result = 0, left = 1;
        for (int turn = 0; left > 0; turn++) {
            int slot = below(COPIES), kind = below(turn > 40 ? 2 : 12);
            pick(slot);
            if (ours < 0) {
                if (turn > 40)
                    continue;
                while (ours < 0)
                    pick(slot = (slot + 1) % COPIES);
                int into = 0;
                while (into < COPIES && copies[0][into] >= 0)
                    into++;
                if (into < COPIES) {
                    duplicate(into);
                    left += copies[0][into] >= 0;
                }
                same_places();
                continue;
            }
            if (kind == 0 && (left > 1 || turn > 40)) {
                close_both();
                copies[0][slot] = copies[1][slot] = -1;
                left--;
            } else if (kind < 8) {
                BOTH(result, (long)(syscall(SYS_getdents64, fd, buffer[fd == kernels], 1000) > 0));
                long place = ((struct record *)buffer[0])->next;
                BOTH(result, lseek(fd, result ? place : 0, SEEK_SET));
            } else if (kind < 10) {
                if (turn % 3 == 0)
                    same_rest();
            } else if (kind == 10) {
                hand_over();
            } else {
                BOTH(result, (long)fcntl(fd, F_SETFD, turn % 2 ? FD_CLOEXEC : 0));
            }
            same_places();
        }
    }
}

/* Directories that are opened from descriptors of the kernel, and what happens above them. */
static void from_kernel(void)
{
    long result = 0;
    struct stat found, other;
    for (int round = 0; round < 24; round++) {
        int by = round % 2 ? root_fd : kernel_fd;
        must(mkdirat(by, "above", 0755) == 0 && mkdirat(by, "above/middle", 0755) == 0
                 && mkdirat(by, "above/middle/list", 0755) == 0, "mkdir");
        fill_by(by, "above/middle/list/file", 100, round);
        unsigned long how[3] = {O_RDONLY | O_DIRECTORY};
        int above = syscall(SYS_openat2, root_fd, "above", how, sizeof how);
        int twin = openat(kernel_fd, "above", O_RDONLY | O_DIRECTORY);
        must(above >= 0 && twin >= 0, "open");
        if (round / 2 % 3 == 1)
            must(renameat(by, "above", by, "dir/away") == 0, "rename");
        for (int at = 0; at < 3; at++)
            must(fstatat(above, "middle/list", &found, 0) == 0, "stat");
        gain();
        ours = openat(above, "middle/list", O_RDONLY | O_DIRECTORY);
        kernels = openat(twin, "middle/list", O_RDONLY | O_DIRECTORY);
        check(ours >= 0 && kernels >= 0, "open from a descriptor", round);
        note_served(ours);
        if (round / 2 % 3 == 2)
            must(renameat(by, "above", by, "dir/away") == 0, "rename");
        if (round / 6 % 2)
            must(renameat(above, "middle", above, "renamed") == 0, "rename");
        same_rest();
        BOTH(result, lseek(fd, 0, SEEK_SET));
        BOTH(result, (long)fstatat(fd, "file", fd == kernels ? &other : &found, 0));
        check(memcmp(&found, &other, sizeof found) == 0, "fstatat", round);
        BOTH(result, (long)fstatat(fd, "../..", fd == kernels ? &other : &found, 0));
        found.st_atim = other.st_atim;
        check(memcmp(&found, &other, sizeof found) == 0, "fstatat above", round);
        int copy[2] = {dup(ours), dup(kernels)};
        if (round >= 12)
            same_directory(round);
        else
            BOTH(result, (long)flock(fd, LOCK_SH));
        same_rest();
        close_both();
        ours = copy[0], kernels = copy[1];
        BOTH(result, lseek(fd, 0, SEEK_CUR));
        same_directory(round);
        int files[2] = {openat(ours, "file", O_RDONLY), openat(kernels, "file", O_RDONLY)};
        check(read(files[0], buffer[0], 200) == 100 && read(files[1], buffer[1], 200) == 100, "read", round);
        same_bytes("file", 100);
        close(files[0]);
        close(files[1]);
        close_both();
        const char *middle = round / 6 % 2 ? "renamed" : "middle";
        char path[64];
        snprintf(path, sizeof path, "%s/list/file", middle);
        must(unlinkat(above, path, 0) == 0, "unlink");
        snprintf(path, sizeof path, "%s/list", middle);
        must(unlinkat(above, path, AT_REMOVEDIR) == 0 && unlinkat(above, middle, AT_REMOVEDIR) == 0, "rmdir");
        must(unlinkat(by, round / 2 % 3 ? "dir/away" : "above", AT_REMOVEDIR) == 0, "rmdir");
        close(above);
        close(twin);
    }
}

static unsigned long walked, steps;
static size_t start_length;

static void add(const void *bytes, size_t length)
{
    for (size_t at = 0; at < length; at++)
        walked = (walked ^ ((const unsigned char *)bytes)[at]) * 1099511628211UL;
}

static void step(const char *path, const struct stat *found, int kind)
{
    long facts[] = {kind, found ? (long)found->st_ino : 0, found ? (long)found->st_size : 0,
                    found ? (long)found->st_mode : 0, found ? (long)found->st_nlink : 0};
    add(path + start_length, strlen(path + start_length));
    add(facts, sizeof facts);
    steps++;
}

static int on_entry(const char *path, const struct stat *found, int kind, struct FTW *where)
{
    step(path, kind == FTW_NS ? NULL : found, kind * 100 + where->level);
    return 0;
}

static void walk_fts(char *start, int options)
{
    char *starts[] = {start, NULL};
    FTS *walk = fts_open(starts, options, NULL);
    FTSENT *entry;
    must(walk != 0, "fts_open");
    while ((entry = fts_read(walk)) != 0)
        if (entry->fts_info != FTS_D || entry->fts_level > 0)
            step(entry->fts_path, entry->fts_info == FTS_NS || options & FTS_NOSTAT ? NULL : entry->fts_statp,
                 entry->fts_info * 100 + entry->fts_level);
    fts_close(walk);
}

static void walk_dir(int fd, int depth)
{
    DIR *dir = fdopendir(fd);
    struct dirent *entry;
    must(dir != 0, "fdopendir");
    for (int turn = 0; turn < 2; turn++) {
        long middle = 0, count = 0;
        while ((entry = readdir(dir)) != 0) {
            struct stat found;
            if (++count == 5)
                middle = telldir(dir);
            int failed = fstatat(dirfd(dir), entry->d_name, &found, AT_SYMLINK_NOFOLLOW);
            start_length = 0;
            step(entry->d_name, failed ? NULL : &found, entry->d_type + turn * 100);
            if (turn == 0 && depth < 5 && entry->d_type == DT_DIR && entry->d_name[0] != '.') {
                int below = openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY);
                if (below >= 0)
                    walk_dir(below, depth + 1);
            }
        }
        if (middle)
            seekdir(dir, middle);
        else
            rewinddir(dir);
    }
    must(closedir(dir) == 0, "closedir");
}

/* Whole trees, as libraries walk them. */
static void walks(void)
{
    static const int options[] = {FTS_PHYSICAL, FTS_PHYSICAL | FTS_NOCHDIR, FTS_LOGICAL | FTS_NOCHDIR,
                                  FTS_PHYSICAL | FTS_NOSTAT | FTS_SEEDOT};
    static const int flags[] = {FTW_PHYS, FTW_PHYS | FTW_DEPTH, FTW_PHYS | FTW_CHDIR, FTW_CHDIR | FTW_DEPTH, 0};
    for (int round = 0; round < 30; round++) {
        unsigned long sums[2], counts[2];
        for (int at = 0; at < 2; at++) {
            char start[600];
            snprintf(start, sizeof start, "%s%s", at ? beside : root, round % 2 ? "/list" : "");
            start_length = strlen(at ? beside : root);
            walked = steps = 0;
            if (round % 3 == 0)
                walk_fts(start, options[round / 3 % 4]);
            else if (round % 3 == 1)
                must(nftw(start, on_entry, round % 4 ? 20 : 1, flags[round / 3 % 5]) == 0, "nftw");
            else
                walk_dir(openat(at ? kernel_fd : root_fd, round % 2 ? "list" : ".", O_RDONLY | O_DIRECTORY), 0);
            sums[at] = walked;
            counts[at] = steps;
        }
        check(counts[0] == counts[1], "steps of a walk", (long)(counts[0] - counts[1]));
        check(sums[0] == sums[1], "a walk", round);
        check(counts[0] > 5, "a walk that is no walk", counts[0]);
        must(chdir(root) == 0, "chdir");
    }
}

int main(int count, char **words)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count == 3, "run without a command and a directory");
    root = words[2];
    setenv("FILES", root, 1);
    root_fd = open(root, O_RDONLY | O_DIRECTORY);
    must(root_fd >= 0, root);
    kernel_fd = root_fd;
    if (strcmp(words[1], "prepare") == 0) {
        prepare();
        return 0;
    }
    must(getenv("KERNEL_FD") != 0, "find another mount of the tree: KERNEL_FD is not set");
    /* The lowest number, so that no free one is below it. */
    kernel_fd = dup(atoi(getenv("KERNEL_FD")));
    must(kernel_fd >= 0 && close(atoi(getenv("KERNEL_FD"))) == 0, "move a descriptor");
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", kernel_fd);
    must(readlink(link, beside, sizeof beside - 1) > 0 && strcmp(beside, root) != 0, "tell the two mounts apart");
    watch();
    warm();
    for (int file = 0; file < SIZES; file++)
        for (int round = 0; round < 20; round++) {
            open_both(name_of(file), O_RDONLY);
            for (int at = 0; at < ROUNDS / SIZES / 20; at++)
                calls(sizes[file]);
            close_both();
        }
    open_both(name_of(2), O_RDONLY);
    errors();
    close_both();
    opens();
    changes();
    directories();
    duplicates();
    from_kernel();
    walks();
    lowest();
    ranges();
    unusual();
    at_limit();
    shrinking();
    forks_in_handlers();
    threads();
    forks();
    numbers();
    handovers();
    check(!getenv("LD_PRELOAD") || served > asked / 4 * 3, "share of what should be served", served);
    printf("%ld of %ld served, ", served, asked);
    printf("%ld compared, %ld differ\n", compared, differing);
    return differing != 0;
}
