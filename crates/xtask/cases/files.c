/* Files that the interposer may serve, beside the same files opened by a name relative to a
 * descriptor, which only the kernel opens. Every answer must be the same.
 *   files prepare DIR     makes the files
 *   files compare DIR     compares, and prints what differs */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
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
static int root_fd;
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

static void fill(const char *name, long size, int salt)
{
    int fd = openat(root_fd, name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    must(fd >= 0, "create");
    char *bytes = malloc(size + 1);
    for (long at = 0; at < size; at++)
        bytes[at] = (at * 31 + at / 251 + salt) & 0xff;
    must(write(fd, bytes, size) == size && close(fd) == 0, "write");
    free(bytes);
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
    kernels = openat(root_fd, name, flags);
    check((ours < 0) == (kernels < 0) && (ours >= 0 || error == errno), name, flags);
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
        open_both(name_of(3), turn % 2 ? O_RDONLY | O_NOFOLLOW : O_RDONLY);
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
            check(strcmp(link[0], link[1]) == 0, link[0], way);
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
        fill("changed", 3000, round);
        struct stat found;
        for (int at = 0; at < 3; at++)
            must(stat(path_of("changed"), &found) == 0, "stat");
        open_both("changed", O_RDONLY);
        BOTH(result, read(fd, buffer[fd == kernels], 100));
        int writer = openat(root_fd, "changed", O_RDWR);
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
            must(unlinkat(root_fd, "changed", 0) == 0, "unlink");
            check(open(path_of("changed"), O_RDONLY) < 0 && errno == ENOENT, "unlinked", round);
            fill("changed", 10, 5);
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
    if (way == 0) {
        ours = open(path_of("list"), O_RDONLY | O_DIRECTORY);
    } else if (way == 1) {
        must(chdir(root) == 0, "chdir");
        ours = open("list", O_RDONLY);
    } else {
        int parent = open(root, O_RDONLY | O_DIRECTORY);
        ours = openat(parent, "list", O_RDONLY | O_DIRECTORY);
        close(parent);
    }
    kernels = openat(root_fd, "list", way == 1 ? O_RDONLY : O_RDONLY | O_DIRECTORY);
    check(ours >= 0 && kernels >= 0, "open of a directory", way);
}

static void directories(void)
{
    char name[300];
    long result = 0;
    must(mkdirat(root_fd, "list", 0755) == 0, "mkdir");
    int listed = openat(root_fd, "list", O_RDONLY | O_DIRECTORY);
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
        open_directories(round % 3);
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
        if (round % 2)
            unlinkat(listed, name, 0);
        else
            close(openat(listed, name, O_CREAT | O_WRONLY, 0644));
    }
    for (int way = 0; way < 9; way++) {
        open_directories(way % 3);
        /* So many that the kernel has given out all that it has asked for. */
        BOTH(result, (long)(syscall(SYS_getdents64, fd, buffer[fd == kernels], 1000) > 0));
        long place = ((struct record *)buffer[0])->next;
        BOTH(result, lseek(fd, place, SEEK_SET));
        must(chdir(way % 2 ? "/" : root) == 0, "chdir");
        if (way / 3 == 0) {
            BOTH(result, (long)mkdirat(fd, "directory", 0700));
        } else if (way / 3 == 1) {
            int copies[2] = {dup(ours), dup(kernels)};
            check(copies[0] >= 0 && close(copies[0]) == 0 && close(copies[1]) == 0, "dup", way);
        } else {
            char link[2][600] = {{0}};
            for (int at = 0; at < 2; at++) {
                snprintf(name, sizeof name, "/proc/self/fd/%d", at ? kernels : ours);
                check(readlink(name, link[at], 599) > 0, "readlink", at);
            }
            check(strcmp(link[0], link[1]) == 0, link[0], way);
        }
        BOTH(result, lseek(fd, 0, SEEK_CUR));
        same_rest();
        BOTH(result, (long)fchdir(fd));
        check(stat("directory", &found) == 0, "a relative path", way);
        close_both();
    }
    for (int way = 0; way < 3; way++) {
        open_directories(way);
        must(renameat(root_fd, "list", root_fd, "dir/moved") == 0, "rename");
        BOTH(result, (long)mkdirat(fd, "directory", 0700));
        check(fchdir(ours) == 0 && getcwd(name, sizeof name) && strstr(name, "dir/moved"), name, way);
        same_rest();
        must(renameat(root_fd, "dir/moved", root_fd, "list") == 0, "rename");
        close_both();
    }
    must(mkdirat(root_fd, "removed", 0755) == 0, "mkdir");
    ours = open(path_of("removed"), O_RDONLY);
    kernels = openat(root_fd, "removed", O_RDONLY);
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
        shared_fd = at ? openat(root_fd, "file-6", O_RDONLY) : open(path_of("file-6"), O_RDONLY);
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

static volatile sig_atomic_t is_child, ended_badly;

static void fork_here(int unused)
{
    int status, saved = errno;
    pid_t child = is_child ? -1 : fork();
    if (child == 0)
        is_child = 1;
    else if (child > 0 && (waitpid(child, &status, 0) != child || status != 0))
        ended_badly++;
    errno = saved;
    (void)unused;
}

/* A handler forks in the middle of a call, and the child goes on there. */
static void forks_in_handlers(void)
{
    struct sigaction action = {.sa_handler = fork_here, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 1500}, {0, 1500}}, never = {{0, 0}, {0, 0}};
    must(sigaction(SIGALRM, &action, 0) == 0 && setitimer(ITIMER_REAL, &often, 0) == 0, "timer");
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
    must(setitimer(ITIMER_REAL, &never, 0) == 0, "timer");
    if (is_child)
        _exit(wrong != 0);
    check(wrong == 0 && ended_badly == 0, "forks in handlers", wrong * 1000 + ended_badly);
}

#define NUMBERS 100

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
        switch (open_now > 20 ? 9 : below(12)) {
        case 0: case 1: case 2:
            got = open(path_of(name_of(below(SIZES - 1))), below(2) ? O_RDONLY | O_CLOEXEC : O_RDONLY);
            break;
        case 3:
            got = openat(root_fd, "file-1", O_RDONLY);
            break;
        case 4:
            got = dup(root_fd);
            break;
        case 5:
            got = socket(AF_UNIX, SOCK_STREAM, 0);
            break;
        case 6:
            got = open("/dev/null", O_RDONLY);
            break;
        default: {
            int victim = first + below(NUMBERS - first);
            for (int at = 0; at < NUMBERS && !(victim != root_fd && used[victim]); at++)
                victim = victim + 1 < NUMBERS ? victim + 1 : first;
            if (victim == root_fd || !used[victim])
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
        if (used[at] && at != root_fd)
            close(at);
}

int main(int count, char **words)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count == 3, "run without a command and a directory");
    root = words[2];
    setenv("FILES", root, 1);
    root_fd = open(root, O_RDONLY | O_DIRECTORY);
    must(root_fd >= 0, root);
    if (strcmp(words[1], "prepare") == 0) {
        prepare();
        return 0;
    }
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
    printf("%ld compared, %ld differ\n", compared, differing);
    return differing != 0;
}
