/* What databases and servers do with their files: record locks, syncs of several threads and of
 * directories, advice to the kernel, and calls that name descriptors in memory. a/NAME is opened by its path and may be served by the interposer; its twin
 * b/NAME is opened relative to a descriptor that only the kernel has. Both must answer alike, and
 * locks must be there for other processes as POSIX says.
 *   databases prepare DIR     makes the directories
 *   databases compare DIR     compares, and prints what differs */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef F_SET_RW_HINT
#define F_SET_RW_HINT 1036
#endif
#define SYNCERS 10
#define SYNCS 30
#define RECORD 32

static const char *root;
static int a_fd, b_fd;
static long compared, differing;

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        exit(2);
    }
}

static void check(int right, const char *what, long number)
{
    __atomic_add_fetch(&compared, 1, __ATOMIC_RELAXED);
    if (!right && __atomic_add_fetch(&differing, 1, __ATOMIC_RELAXED) < 40)
        printf("%s (%ld) differs: %s\n", what, number, strerror(errno));
}

static char *path_of(const char *twin, const char *name, char *path)
{
    snprintf(path, 1024, "%s/%s/%s", root, twin, name);
    return path;
}

#define PATH(name) path_of("a", name, (char[1024]){0})

/* What is done often enough makes the process a client of the fleet, and makes it serve files again
 * after some were handed over. */
static void warm(long calls)
{
    struct stat found;
    for (long at = 0; at < calls; at++)
        must(stat(PATH(at % 2 ? "." : "warm"), &found) == 0, "stat");
    for (long at = 0; at < 200; at++) {
        int fd = open(PATH("warm"), O_WRONLY);
        must(fd >= 0 && close(fd) == 0, "open");
    }
}

#define BOTH(fds, call)                                                                           \
    ({                                                                                            \
        int fd = (fds)[0];                                                                        \
        errno = 0;                                                                                \
        long a_ = (call);                                                                         \
        int ea_ = errno;                                                                          \
        fd = (fds)[1];                                                                            \
        errno = 0;                                                                                \
        long b_ = (call);                                                                         \
        if (a_ != b_ || ea_ != errno)                                                             \
            printf("%s: %ld (%d), the kernel %ld (%d)\n", #call, a_, ea_, b_, errno);             \
        check(a_ == b_ && ea_ == errno, #call, a_);                                               \
        a_;                                                                                       \
    })

static void open_both(int *fds, const char *name, int flags)
{
    fds[0] = open(PATH(name), flags, 0644);
    fds[1] = openat(b_fd, name, flags, 0644);
    must(fds[0] >= 0 && fds[1] >= 0, name);
}

static void close_both(int *fds)
{
    check(close(fds[0]) == 0 && close(fds[1]) == 0, "close", fds[0]);
}

static void same_mounts(int *fds)
{
    struct statfs found[2];
    memset(found, 0, sizeof found);
    must(fstatfs(fds[0], &found[0]) == 0 && fstatfs(fds[1], &found[1]) == 0, "fstatfs");
    check(found[0].f_type == found[1].f_type && found[0].f_bsize == found[1].f_bsize &&
              found[0].f_blocks == found[1].f_blocks && found[0].f_namelen == found[1].f_namelen &&
              memcmp(&found[0].f_fsid, &found[1].f_fsid, sizeof found[0].f_fsid) == 0,
          "fstatfs", found[0].f_type);
}

/* Calls that promise nothing, and those that the mount does not have. */
static void hints(void)
{
    static const long ranges[][2] = {{0, 0}, {0, 4096}, {100, 1 << 20}, {-1, 5}, {5, -1}, {5, 0},
                                     {1L << 40, 1}, {0x7fffffffffffffff, 1}, {1, 0x7fffffffffffffff}};
    static const int modes[] = {0, 1, 2, 3, 8, 9, 16, 17, 32, 64, 128, 0x4000};
    unsigned long lifetimes[] = {0, 1, 3, 5, 6, 1UL << 40};
    int fds[2];
    for (int way = 0; way < 3; way++) {
        const char *name = way == 2 ? "dir" : "hinted";
        open_both(fds, name, way == 0 ? O_CREAT | O_RDWR : way == 1 ? O_RDONLY : O_RDONLY | O_DIRECTORY);
        if (way == 0)
            BOTH(fds, write(fd, "0123456789", 10));
        for (unsigned range = 0; range < sizeof ranges / sizeof *ranges; range++) {
            long from = ranges[range][0], length = ranges[range][1];
            for (int flags = 0; flags < 10; flags += 3)
                BOTH(fds, (long)sync_file_range(fd, from, length, flags));
            if (way == 0)
                BOTH(fds, (long)posix_fadvise(fd, from, length, range % 8));
        }
        same_mounts(fds);
        BOTH(fds, (long)fsync(fd));
        BOTH(fds, (long)fdatasync(fd));
        for (unsigned at = 0; at < 6; at++)
            BOTH(fds, (long)fcntl(fd, F_SET_RW_HINT, &lifetimes[at]));
        for (unsigned range = 0; range < sizeof ranges / sizeof *ranges; range++)
            for (unsigned mode = 0; mode < sizeof modes / sizeof *modes; mode++)
                BOTH(fds, (long)fallocate(fd, modes[mode], ranges[range][0], ranges[range][1]));
        BOTH(fds, (long)fcntl(fd, F_SET_RW_HINT, (void *)8));
        BOTH(fds, fstatfs(fd, (void *)8));
        BOTH(fds, lseek(fd, 0, SEEK_CUR));
        close_both(fds);
        warm(0);
    }
}

/* Another process, which says whether a file is locked. */
static int ask[2], answer[2];

static void observe(void)
{
    char name[64];
    for (;;) {
        if (read(ask[0], name, sizeof name) != sizeof name)
            _exit(0);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        int fd = openat(a_fd, name, O_RDWR);
        char found = fd < 0 || fcntl(fd, F_GETLK, &lock) != 0 ? '?' : lock.l_type == F_UNLCK ? 'n' : 'y';
        close(fd);
        if (write(answer[1], &found, 1) != 1)
            _exit(1);
    }
}

static void is_locked(const char *name, char wanted, const char *what, long number)
{
    char text[64] = {0}, found = 0;
    strcpy(text, name);
    must(write(ask[1], text, sizeof text) == sizeof text && read(answer[0], &found, 1) == 1, "ask");
    check(found == wanted, what, number);
}

static int set_lock(int fd, int type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
    return fcntl(fd, F_SETLK, &lock);
}

#define WAYS 5

static int open_again(const char *name, int way)
{
    static const int flags[WAYS] = {O_RDONLY, O_WRONLY, O_RDWR | O_CREAT, O_RDWR | O_TRUNC, O_RDONLY};
    return way == 4 ? openat(a_fd, name, flags[way]) : open(PATH(name), flags[way], 0644);
}

static void use(int fd)
{
    char byte;
    check(fcntl(fd, F_GETFL) % 4 == O_WRONLY ? write(fd, "x", 1) == 1 : read(fd, &byte, 1) >= 0, "use", fd);
}

static void others(int count)
{
    for (int at = 0; at < count; at++) {
        int fd = open(PATH("other"), at % 2 ? O_RDONLY : O_CREAT | O_WRONLY, 0644);
        must(fd >= 0, "open");
        use(fd);
        close(fd);
    }
}

/* A process loses its locks on a file when it closes any descriptor of the file, and keeps them
 * otherwise. */
static void record_locks(int rounds)
{
    char name[64];
    for (int round = 0; round < rounds; round++) {
        int way = round % WAYS, is_before = round / WAYS % 2;
        snprintf(name, sizeof name, "locked-%d", round / 3);
        int fd = open(PATH(name), O_RDWR | O_CREAT, 0644), second = -1;
        must(fd >= 0 && write(fd, "locked", 6) == 6, "create");
        if (is_before) {
            second = open_again(name, way);
            use(second);
        }
        check(set_lock(fd, F_WRLCK) == 0, "lock", round);
        is_locked(name, 'y', "locked", round);
        if (!is_before) {
            second = open_again(name, way);
            use(second);
        }
        others(4);
        is_locked(name, 'y', "locked beside another descriptor", round);
        if (round % 4 == 3) {
            pid_t child = fork();
            if (child == 0)
                _exit(0);
            must(waitpid(child, 0, 0) == child, "fork");
            is_locked(name, 'y', "locked after a fork", round);
        }
        check(close(second) == 0, "close", second);
        is_locked(name, 'n', "locked after another descriptor was closed", round);
        check(set_lock(fd, F_RDLCK) == 0, "lock again", round);
        is_locked(name, 'y', "locked again", round);
        check(set_lock(fd, F_UNLCK) == 0, "unlock", round);
        is_locked(name, 'n', "unlocked", round);
        close(fd);
        if (round % 3 == 2)
            must(unlink(PATH(name)) == 0, "unlink");
        warm(0);
    }
}

static volatile int stop_now;

static void *opener(void *unused)
{
    while (!stop_now)
        others(10);
    return unused;
}

/* Other threads open and close other files, while one locks. */
static void locks_beside_threads(void)
{
    pthread_t threads[3];
    for (int at = 0; at < 3; at++)
        must(pthread_create(&threads[at], 0, opener, 0) == 0, "thread");
    record_locks(60);
    stop_now = 1;
    for (int at = 0; at < 3; at++)
        pthread_join(threads[at], 0);
    /* Until their end the threads had files handed over. */
    warm(0);
}

static long alarms;

static void on_alarm(int unused)
{
    (void)unused;
    __atomic_add_fetch(&alarms, 1, __ATOMIC_RELAXED);
}

static int shared_fd;

static void *syncer(void *id)
{
    char name[64], record[RECORD + 1], found[RECORD * SYNCS];
    snprintf(name, sizeof name, "synced-%ld", (long)id);
    int fd = open(PATH(name), O_CREAT | O_RDWR | O_TRUNC, 0644);
    int dir = open(PATH("."), O_RDONLY | O_DIRECTORY);
    must(fd >= 0 && dir >= 0, "create");
    for (long at = 0; at < SYNCS; at++) {
        snprintf(record, sizeof record, "%31ld\n", (long)id * 1000 + at);
        check(write(fd, record, RECORD) == RECORD, "write", at);
        check((at % 2 ? fsync(fd) : fdatasync(fd)) == 0, "sync", at);
        check(pwrite(shared_fd, record, RECORD, ((long)id * SYNCS + at) * RECORD) == RECORD, "write", at);
        check(fsync(shared_fd) == 0, "sync of a file of all threads", at);
        if (at % 4 == 0)
            check(fsync(dir) == 0, "sync of a directory", at);
        if (at % 8 == 5) {
            /* The file may be closed, or become the kernel's, while another thread syncs it. */
            int other = open(PATH(name), O_WRONLY);
            check(fsync(other) == 0 && close(other) == 0, "sync and close", at);
        }
    }
    check(pread(fd, found, sizeof found, 0) == sizeof found, "length", (long)id);
    for (long at = 0; at < SYNCS; at++)
        check(atol(found + at * RECORD) == (long)id * 1000 + at, "a record", at);
    close(fd);
    close(dir);
    must(unlink(PATH(name)) == 0, "unlink");
    return 0;
}

static void *forker(void *unused)
{
    for (int at = 0; at < 10; at++) {
        usleep(5000);
        pid_t child = fork();
        if (child == 0)
            _exit(fsync(shared_fd) != 0);
        int status = -1;
        check(waitpid(child, &status, 0) == child && status == 0, "sync by a child", status);
    }
    return unused;
}

/* More threads than can sync at once, disturbed by signals and, in the second round, by forks, which
 * hand all files over. */
static void syncs(void)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    must(sigaction(SIGALRM, &action, 0) == 0, "sigaction");
    for (int round = 0; round < 2; round++) {
        pthread_t threads[SYNCERS + 1];
        char found[RECORD];
        shared_fd = open(PATH("shared"), O_CREAT | O_RDWR | O_TRUNC, 0644);
        must(shared_fd >= 0 && setitimer(ITIMER_REAL, &often, 0) == 0, "timer");
        for (long at = 0; at < SYNCERS; at++)
            must(pthread_create(&threads[at], 0, syncer, (void *)at) == 0, "thread");
        if (round == 1)
            must(pthread_create(&threads[SYNCERS], 0, forker, 0) == 0, "thread");
        for (int at = 0; at < SYNCERS + round; at++)
            pthread_join(threads[at], 0);
        must(setitimer(ITIMER_REAL, &never, 0) == 0, "timer");
        for (long at = 0; at < SYNCERS * SYNCS; at++)
            check(pread(shared_fd, found, RECORD, at * RECORD) == RECORD &&
                      atol(found) == at / SYNCS * 1000 + at % SYNCS,
                  "a record of a thread", at);
        close(shared_fd);
        must(unlink(PATH("shared")) == 0, "unlink");
        warm(0);
    }
    check(alarms > 0, "alarms", alarms);
}

static long polled(int fd, int other, int events)
{
    struct pollfd fds[3] = {{other, POLLIN, 7}, {fd, events, 7}, {-1, POLLIN, 7}};
    long ready = poll(fds, 3, 0);
    return ready * 10000 + fds[0].revents * 100 + fds[1].revents;
}

static long selected(int fd, int end)
{
    fd_set readers, writers;
    struct timeval now = {0, 0};
    FD_ZERO(&readers);
    FD_ZERO(&writers);
    FD_SET(fd, &readers);
    FD_SET(fd, &writers);
    return select(end, &readers, &writers, 0, &now);
}

/* Sends a descriptor, or none, and returns the one that arrives. */
static int sent(const int *sockets, int fd)
{
    char byte = 's', room[CMSG_SPACE(sizeof fd)] __attribute__((aligned(8))) = {0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = room;
        message.msg_controllen = sizeof room;
        struct cmsghdr *control = CMSG_FIRSTHDR(&message);
        *control = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(control), &fd, sizeof fd);
    }
    must(sendmsg(sockets[0], &message, 0) == 1, "sendmsg");
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    must(recvmsg(sockets[1], &message, 0) == 1, "recvmsg");
    if (message.msg_controllen == 0)
        return -1;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* Calls that name descriptors in memory. Only the files that they name become the kernel's. */
static void named_in_memory(int rounds)
{
    int fds[2], pipes[2], sockets[2];
    struct msghdr nothing = {0};
    must(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "pipe");
    for (int way = 0; way < 8; way++) {
        open_both(fds, "polled", O_CREAT | O_RDWR);
        BOTH(fds, write(fd, "0123456789", 10));
        switch (way) {
        case 0: BOTH(fds, polled(fd, pipes[0], POLLIN)); break;
        case 1: BOTH(fds, polled(fd, pipes[0], POLLOUT | POLLPRI)); break;
        case 2: BOTH(fds, selected(fd, fd + 1)); break;
        case 3: BOTH(fds, selected(fd, fd)); break;
        case 4: BOTH(fds, (long)ppoll(&(struct pollfd){fd, POLLIN, 0}, 1, &(struct timespec){0, 0}, 0)); break;
        case 5: BOTH(fds, sendmsg(fd, &nothing, 0)); break;
        case 6: BOTH(fds, syscall(SYS_poll, fd < 0 ? 0L : 8L, 1, 0)); break;
        default:
            for (int at = 0; at < 2; at++) {
                int other = sent(sockets, fds[at]);
                check(other >= 0 && write(other, "abc", 3) == 3 && close(other) == 0, "a descriptor sent", at);
            }
        }
        BOTH(fds, write(fd, "xyz", 3));
        BOTH(fds, lseek(fd, 0, SEEK_CUR));
        close_both(fds);
        warm(0);
    }
    int fd = open(PATH("polled"), O_RDWR);
    for (long at = 0; at < rounds; at++) {
        if (at % 100 == 0) {
            close(fd);
            fd = open(PATH("polled"), O_RDWR);
        }
        check(polled(-1, pipes[0], 0) == 0, "poll", at);
        check(selected(pipes[1], fd) == 1, "select", at);
        check(sent(sockets, -1) == -1, "send", at);
        check(pwrite(fd, &at, sizeof at, at % 100 * sizeof at) == sizeof at, "write", at);
    }
    close(fd);
    for (int at = 0; at < 2; at++) {
        close(pipes[at]);
        close(sockets[at]);
    }
    must(unlink(PATH("polled")) == 0 && unlinkat(b_fd, "polled", 0) == 0, "unlink");
}

/* A process that locks files, and has threads, still serves the others. */
static void writes(void)
{
    for (long at = 0, fd = -1; at < 20000; at++) {
        if (at % 100 == 0) /* The inode may have been that of a locked file. */
            fd = open(PATH("written"), O_CREAT | O_EXCL | O_RDWR, 0644);
        check(pwrite(fd, &at, sizeof at, at % 100 * sizeof at) == sizeof at, "write", at);
        if (at % 100 == 99)
            must(close(fd) == 0 && unlink(PATH("written")) == 0, "unlink");
    }
}

static void prepare(void)
{
    char path[1024];
    umask(0);
    for (int at = 0; at < 2; at++) {
        const char *twin = at ? "b" : "a";
        must(mkdir(path_of(twin, "", path), 0777) == 0, "mkdir");
        must(mkdir(path_of(twin, "dir", path), 0777) == 0, "mkdir");
        int fd = open(path_of(twin, "warm", path), O_CREAT | O_WRONLY, 0666);
        must(fd >= 0 && close(fd) == 0, "create");
    }
}

int main(int count, char **words)
{
    char path[1024];
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count >= 3, "run without a command and a directory");
    root = words[2];
    if (strcmp(words[1], "prepare") == 0) {
        prepare();
        return 0;
    }
    a_fd = open(path_of("a", "", path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    b_fd = openat(atoi(getenv("KERNEL_FD")), "b", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(a_fd >= 0 && b_fd >= 0 && pipe(ask) == 0 && pipe(answer) == 0, root);
    pid_t observer = fork();
    must(observer >= 0, "fork");
    if (observer == 0) {
        close(ask[1]);
        observe();
    }
    umask(0);
    warm(20000);
    hints();
    named_in_memory(20000);
    record_locks(60);
    syncs();
    locks_beside_threads();
    writes();
    close(ask[1]);
    must(waitpid(observer, 0, 0) == observer, "wait");
    printf("%ld compared, %ld differ\n", compared, differing);
    return differing != 0;
}
