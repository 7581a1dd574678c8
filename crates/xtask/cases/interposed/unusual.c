/* What programs do with files beside reading and writing: children with file actions, programs of
 * other kinds that inherit descriptors, ids of threads, io_uring and libaio, sandboxes, roots and
 * mounts, watches, locked memory. Each part runs twice, in the mount, where its files are served, and
 * in a directory of the kernel's own file system. Both must say the same. Every second round another
 * process writes the same files through the kernel, by KERNEL_FD. Slow parts run in one of two.
 *   unusual prepare DIR
 *   unusual compare DIR [ROUNDS PART]     prints what differs
 * OTHERS has the same program as a static one (`static`) and one of 32 bits (`x86`), which copy
 * their input, and a directory of the kernel's own file system (`twin`). */
#ifdef __i386__
static int call(int number, int a, const void *b, int c)
{
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}

void _start(void)
{
    char byte;
    while (call(3, 0, &byte, 1) == 1)
        call(4, 1, &byte, 1);
    call(1, 0, 0, 0);
}
#else
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LENGTH 5000
#define SAID 16384
#define WARM 3000
#define PART_SECONDS_MAX 20
#define OTHER_USER 54323

extern char **environ;

static struct shared {
    char said[2][SAID];
    volatile long at[2], begun, served, stop;
} *shared;

static const char *root, *others;
static char dir[600];
static int side, kernel_fd, is_root, is_counted, was_asked, watcher;
static char bytes[LENGTH], got[LENGTH * 2];

static void say(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    long room = SAID - shared->at[side];
    long length = vsnprintf(shared->said[side] + shared->at[side], room, format, list);
    shared->at[side] += length < room ? length : room - 1;
    va_end(list);
}

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        _exit(2);
    }
}

/* A result, or the error. */
static long of(long result)
{
    return result < 0 ? -errno : result;
}

static const char *path_of(const char *name)
{
    static char paths[4][700];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, 700, "%s/%s", dir, name);
    return path;
}

/* Another process sees what the kernel has under a number: of what is served, a socket. */
static void watch(void)
{
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "make sockets");
    if (fork() == 0) {
        int words[2];
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair[0]);
        while (read(pair[1], words, sizeof words) == sizeof words) {
            char link[64], target[600] = "";
            snprintf(link, sizeof link, "/proc/%d/fd/%d", words[0], words[1]);
            char is_socket = readlink(link, target, 599) > 0 && strncmp(target, "socket:", 7) == 0;
            if (write(pair[1], &is_socket, 1) != 1)
                break;
        }
        _exit(0);
    }
    close(pair[1]);
    watcher = pair[0];
}

static int opened(const char *name, int flags)
{
    int fd = open(path_of(name), flags, 0644);
    if (side == 0 && fd >= 0) {
        int words[2] = {getpid(), fd};
        char is_socket = 0;
        must(write(watcher, words, sizeof words) == sizeof words && read(watcher, &is_socket, 1) == 1, "ask");
        if (is_counted && !was_asked)
            shared->served += is_socket;
        was_asked = 1;
    }
    return fd;
}

/* Until the process is admitted, and its paths are known. */
static void warm(void)
{
    static const char *const known[] = {"f", "g", "lock", "mapped", "made"};
    for (int at = 0; at < WARM; at++)
        must(access(path_of("f"), F_OK) == 0, "look at a file");
    for (int at = 0; at < 200; at++)
        for (int of = 0; of < 5; of++) {
            must(close(open(path_of(known[of]), O_RDONLY)) == 0, "open a file");
            if (at % 4 == 0 && eaccess(path_of("f"), W_OK) == 0)
                must(close(open(path_of(known[of]), O_RDWR | O_CREAT, 0644)) == 0, "open a file to write");
        }
}

static unsigned long sum(const void *from, long length)
{
    unsigned long sum = length;
    for (long at = 0; at < length; at++)
        sum = sum * 31 + ((const unsigned char *)from)[at];
    return sum;
}

static void say_rest(const char *what, int fd)
{
    long at = lseek(fd, 0, SEEK_CUR), count = read(fd, got, sizeof got);
    say("%s: at %ld, then %ld, %lx\n", what, at, of(count), count > 0 ? sum(got, count) : 0);
}

static int status_of(pid_t child)
{
    int status = -1;
    return waitpid(child, &status, 0) == child ? status : -1;
}

static void spawned(void)
{
    int fd = opened("f", O_RDONLY), to = opened("made", O_CREAT | O_TRUNC | O_RDWR);
    say("read %ld\n", of(read(fd, got, 100)));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 40);
    posix_spawn_file_actions_addopen(&actions, 41, path_of("g"), O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, to, 1);
    posix_spawn_file_actions_addclose(&actions, fd);
    posix_spawn_file_actions_addchdir_np(&actions, dir);
    posix_spawn_file_actions_addopen(&actions, 42, "by-child", O_CREAT | O_WRONLY | O_TRUNC, 0600);
    char *words[] = {"bash", "-c",
                     "dd bs=20 count=1 <&40 2>/dev/null; dd bs=7 count=1 <&41 2>/dev/null; echo made >&42; ls f g", 0};
    pid_t child;
    int result = posix_spawn(&child, "/bin/bash", &actions, 0, words, environ);
    say("spawn %d, status %d\n", result, result ? 0 : status_of(child));
    posix_spawn_file_actions_destroy(&actions);
    say_rest("f", fd);
    say("output at %ld\n", (long)lseek(to, 0, SEEK_CUR));
    long length = pread(to, got, sizeof got, 0);
    say("output %ld %lx\n", length, sum(got, length));
    struct stat found;
    say("made %d", stat(path_of("by-child"), &found));
    say(", %ld, %o\n", (long)found.st_size, found.st_mode);
    /* A file that is not there: no child. */
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 41, path_of("missing"), O_RDONLY, 0);
    say("spawn %d\n", posix_spawn(&child, "/bin/true", &actions, 0, words, environ));
    posix_spawn_file_actions_destroy(&actions);
}

static void vforked(void)
{
    int fd = opened("f", O_RDONLY), other = opened("g", O_RDWR);
    volatile long results[6] = {0};
    pid_t child = vfork();
    if (child == 0) {
        results[0] = read(fd, got, 10);
        results[1] = pread(other, got, 10, 5);
        results[2] = open(path_of("f"), O_RDONLY) >= 0;
        results[3] = close(fd);
        results[4] = dup2(other, 50);
        results[5] = access(path_of("missing"), F_OK) < 0 ? errno : 0;
        _exit(7);
    }
    say("status %d:", status_of(child));
    for (int at = 0; at < 6; at++)
        say(" %ld", results[at]);
    say("\nthe child's %ld\n", of(fcntl(50, F_GETFD)));
    say_rest("f", fd);
    say("write %ld\n", of(pwrite(other, bytes, 10, 0)));
}

/* A program with an empty environment copies an inherited file to a pipe. */
static void executed(void)
{
    const char *programs[] = {"/bin/cat", "static", "x86", "setuid"};
    for (int at = 0; at < 4; at++) {
        char program[700];
        snprintf(program, sizeof program, "%s%s%s", at == 0 ? "" : at == 3 ? dir : others, at ? "/" : "", programs[at]);
        if (access(program, X_OK) != 0)
            continue;
        int fd = opened("f", O_RDONLY), pipes[2];
        say("%s: read %ld\n", programs[at], of(read(fd, got, 4000 + at)));
        must(pipe(pipes) == 0, "make a pipe");
        pid_t child = fork();
        if (child == 0) {
            char *words[] = {program, at == 1 ? "copy" : 0, 0}, *none[] = {0};
            dup2(fd, 0);
            dup2(pipes[1], 1);
            closefrom(3);
            execve(program, words, none);
            _exit(99);
        }
        close(pipes[1]);
        long length = 0, count;
        while ((count = read(pipes[0], got + length, sizeof got - length)) > 0)
            length += count;
        say("copied %ld %lx, status %d\n", length, sum(got, length), status_of(child));
        say_rest("f", fd);
        close(pipes[0]);
        close(fd);
    }
}

static int secret_fd;

static void *as_other(void *unused)
{
    /* The calls of the C library change all threads. */
    say("thread: setresuid %ld", of(syscall(SYS_setresuid, -1, OTHER_USER, -1)));
    say(", open %ld", of(open(path_of("secret"), O_RDONLY)));
    say(", read %ld", of(pread(secret_fd, got, 10, 0)));
    int made = open(path_of("of-thread"), O_CREAT | O_WRONLY, 0644);
    struct stat found = {0};
    say(", made %d, of %d\n", made >= 0, fstat(made, &found) ? -1 : (int)found.st_uid);
    return unused;
}

static void ids(void)
{
    secret_fd = opened("secret", O_RDONLY);
    say("secret %d\n", secret_fd >= 0);
    if (!is_root)
        return;
    pthread_t thread;
    must(pthread_create(&thread, 0, as_other, 0) == 0 && pthread_join(thread, 0) == 0, "start a thread");
    int again = open(path_of("secret"), O_RDONLY);
    say("main: open %d, read %ld\n", again >= 0, of(read(again, got, 100)));
    say("fsuid %d", setfsuid(OTHER_USER));
    say(", open %ld", of(open(path_of("secret"), O_RDONLY)));
    say(", mkdir %d", mkdir(path_of("of-fsuid"), 0755));
    struct stat found = {0};
    stat(path_of("of-fsuid"), &found);
    say(", of %d", found.st_uid);
    say(", back %d", setfsuid(0));
    say(", open %d\n", open(path_of("secret"), O_RDONLY) >= 0);
    say("setegid %d", setegid(OTHER_USER));
    say(", seteuid %d", seteuid(OTHER_USER));
    say(", open %ld", of(open(path_of("secret"), O_RDONLY)));
    say(", unlink %ld\n", of(unlink(path_of("secret"))));
}

/* A ring with one entry at a time. */
struct ring {
    int fd;
    struct io_uring_params params;
    char *ring;
    struct io_uring_sqe *entries;
};

static long submit(struct ring *ring, struct io_uring_sqe entry)
{
    struct io_sqring_offsets *sent = &ring->params.sq_off;
    struct io_cqring_offsets *done = &ring->params.cq_off;
    unsigned *tail = (void *)(ring->ring + sent->tail), *mask = (void *)(ring->ring + sent->ring_mask);
    unsigned *array = (void *)(ring->ring + sent->array), *head = (void *)(ring->ring + done->head);
    unsigned *done_mask = (void *)(ring->ring + done->ring_mask);
    unsigned at = *tail & *mask;
    ring->entries[at] = entry;
    array[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    long entered = syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0);
    if (entered != 1)
        return -1000 - errno;
    struct io_uring_cqe *events = (void *)(ring->ring + done->cqes);
    long result = events[*head & *done_mask].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
}

static void ringed(void)
{
    int fd = opened("f", O_RDONLY), to = opened("made", O_CREAT | O_TRUNC | O_RDWR);
    say("read %ld, write %ld\n", of(read(fd, got, 100)), of(write(to, bytes, 100)));
    struct ring ring = {0};
    ring.fd = syscall(SYS_io_uring_setup, 4, &ring.params);
    if (ring.fd < 0 || !(ring.params.features & IORING_FEAT_SINGLE_MMAP)) {
        say("no ring\n");
        return;
    }
    int later = opened("g", O_RDONLY);
    size_t length = 65536;
    ring.ring = mmap(0, length, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQ_RING);
    ring.entries = mmap(0, 4 * sizeof *ring.entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQES);
    if (ring.ring == MAP_FAILED) {
        length = ring.params.cq_off.cqes + ring.params.cq_entries * sizeof(struct io_uring_cqe);
        ring.ring = mmap(0, length, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQ_RING);
    }
    must(ring.ring != MAP_FAILED && ring.entries != MAP_FAILED, "map a ring");
    int fds[] = {fd, later};
    for (int at = 0; at < 2; at++) {
        struct io_uring_sqe entry = {.opcode = IORING_OP_READ, .fd = fds[at], .addr = (unsigned long)got, .len = 300, .off = -1};
        long count = submit(&ring, entry);
        say("ring reads %ld %lx\n", count, count > 0 ? sum(got, count) : 0);
    }
    struct io_uring_sqe writes = {.opcode = IORING_OP_WRITE, .fd = to, .addr = (unsigned long)bytes, .len = 200, .off = 50};
    say("ring writes %ld\n", submit(&ring, writes));
    struct io_uring_sqe opens = {.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (unsigned long)path_of("f"), .open_flags = O_RDONLY};
    long third = submit(&ring, opens);
    say("ring opens %d, read %ld\n", third >= 0, of(read(third, got, 50)));
    struct io_uring_sqe closes = {.opcode = IORING_OP_CLOSE, .fd = third};
    say("ring closes %ld, read %ld\n", submit(&ring, closes), of(read(third, got, 50)));
    say_rest("f", fd);
    long count = pread(to, got, sizeof got, 0);
    say("written %ld %lx\n", count, sum(got, count));
}

static void asynchronous(void)
{
    int fd = opened("f", O_RDONLY), to = opened("made", O_CREAT | O_TRUNC | O_RDWR);
    say("read %ld, write %ld\n", of(read(fd, got, 100)), of(write(to, bytes, 100)));
    aio_context_t context = 0;
    say("setup %ld\n", of(syscall(SYS_io_setup, 4, &context)));
    struct iocb reads = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = fd, .aio_buf = (unsigned long)got, .aio_nbytes = 300, .aio_offset = 10};
    struct iocb writes = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = to, .aio_buf = (unsigned long)bytes, .aio_nbytes = 200, .aio_offset = 50};
    struct iocb *both[] = {&reads, &writes};
    say("submit %ld", of(syscall(SYS_io_submit, context, 2, both)));
    struct io_event events[2] = {{0}};
    say(", got %ld", of(syscall(SYS_io_getevents, context, 2, 2, events, 0)));
    say(": %lld, %lx\n", events[0].res + events[1].res, sum(got, 300));
    say("destroy %ld\n", of(syscall(SYS_io_destroy, context)));
    say_rest("f", fd);
    long count = pread(to, got, sizeof got, 0);
    say("written %ld %lx\n", count, sum(got, count));
}

static void mapped(void)
{
    int fd = opened("mapped", O_CREAT | O_TRUNC | O_RDWR);
    say("write %ld\n", of(write(fd, bytes, LENGTH)));
    char *map = mmap(0, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int other = opened("mapped", O_RDWR), reader = opened("mapped", O_RDONLY);
    unsigned long sums = 0;
    for (int at = 0; at < 40; at++) {
        int place = at * 97;
        map[place] = at;
        sums = sums * 31 + pread(reader, got, LENGTH, 0) + sum(got, LENGTH);
        sums = sums * 31 + pwrite(at % 2 ? fd : other, bytes + at, 50, place + 1000 - at);
        sums = sums * 31 + sum(map, LENGTH);
    }
    say("%lx, truncate %d", sums, ftruncate(other, 4096));
    say(", %lx, msync %d", sum(map, 4096), msync(map, LENGTH, MS_SYNC));
    say(", munmap %d\n", munmap(map, LENGTH));
    say_rest("mapped", reader);
}

static volatile int number, is_over;
static volatile long odd;

static void *reads_on(void *argument)
{
    char own[LENGTH];
    while (!is_over) {
        long count = pread(number, own, 600, 0);
        unsigned long found = count == 600 ? sum(own, 600) : 0;
        if (count < 0 && errno == EBADF && argument)
            continue;
        if (count != 600 || (found != sum(bytes, 600) && found != sum(bytes + 1000, 600)))
            odd++;
    }
    return 0;
}

/* Numbers are replaced and closed while other threads read from them. */
static void replaced(void)
{
    for (int closes = 0; closes < 2; closes++) {
        number = opened("f", O_RDONLY);
        is_over = odd = 0;
        pthread_t threads[3];
        for (int at = 0; at < 3; at++)
            must(pthread_create(threads + at, 0, reads_on, closes ? (void *)&number : 0) == 0, "start a thread");
        for (int at = 0; at < 300; at++) {
            if (closes)
                close(number);
            int other = open(path_of(at % 2 ? "f" : "g"), O_RDONLY);
            if (!closes && (dup2(other, number) != number || close(other) != 0))
                odd++;
            if (closes && other != number)
                odd++;
        }
        is_over = 1;
        for (int at = 0; at < 3; at++)
            pthread_join(threads[at], 0);
        say("%ld odd\n", odd);
        close(number);
    }
}

static volatile int alarms;

static void on_alarm(int unused)
{
    alarms += unused != 0;
}

static int take(int fd, int way)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (way == 0)
        return fcntl(fd, F_SETLKW, &lock);
    return way == 1 ? fcntl(fd, F_OFD_SETLKW, &lock) : flock(fd, LOCK_EX);
}

static volatile int release_fd;

/* A signal that restarts the call lets the holder go, so that the call ends. */
static void on_alarm_release(int unused)
{
    if (++alarms == 2 && unused != 0)
        must(write(release_fd, "", 1) == 1, "let the holder go");
}

/* Takes the lock, tells so, and keeps it until a byte or the end of the pipe comes. */
static void hold(int way, int tell, int until)
{
    int own = open(path_of("lock"), O_RDWR);
    char byte = take(own, way) == 0;
    must(write(tell, &byte, 1) == 1, "tell");
    must(read(until, &byte, 1) >= 0, "wait");
    _exit(0);
}

/* Waits for a lock that another process has, disturbed by signals until one has come in time. */
static void locked(void)
{
    for (int turn = 0; turn < 6; turn++) {
        int fd = opened("lock", O_RDWR | O_CREAT), told[2], until[2], way = turn / 2, restarts = turn % 2;
        char byte = 0;
        must(pipe(told) == 0 && pipe(until) == 0, "make pipes");
        pid_t child = fork();
        if (child == 0) {
            close(until[1]);
            hold(way, told[1], until[0]);
        }
        must(read(told[0], &byte, 1) == 1, "wait");
        struct sigaction action = {.sa_handler = restarts ? on_alarm_release : on_alarm,
                                   .sa_flags = restarts ? SA_RESTART : 0};
        sigaction(SIGALRM, &action, 0);
        struct itimerval timer = {{0, 30000}, {0, 30000}}, none = {0};
        alarms = 0;
        release_fd = until[1];
        setitimer(ITIMER_REAL, &timer, 0);
        long result = of(take(fd, way));
        setitimer(ITIMER_REAL, &none, 0);
        say("way %d, restarts %d: held %d, %ld, signals %d\n", way, restarts, byte, result, alarms > 0);
        close(until[1]);
        say("child %d, then %ld\n", status_of(child), of(take(fd, way)));
        close(fd);
        close(until[0]);
        close(told[0]);
        close(told[1]);
    }
}

/* Locks over names, duplicates, children and programs. */
static void other_names(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    for (int way = 0; way < 5; way++) {
        int fd = opened("lock", O_RDWR | O_CREAT), other;
        unlink(path_of("lock-2"));
        say("link %d", link(path_of("lock"), path_of("lock-2")));
        say(", lock %ld\n", of(fcntl(fd, F_SETLK, &lock)));
        switch (way) {
        case 0:
            break;
        case 1:
            other = opened("lock-2", O_RDONLY);
            say("read %ld\n", of(read(other, got, 1)));
            break;
        case 2:
            other = opened("lock-2", O_RDONLY);
            close(other);
            break;
        case 3:
            close(dup(fd));
            break;
        case 4:
            say("rename %d\n", rename(path_of("lock-2"), path_of("lock-3")));
            close(opened("lock-3", O_RDWR));
        }
        pid_t child = fork();
        if (child == 0) {
            struct flock seen = lock;
            int own = open(path_of("lock"), O_RDWR);
            fcntl(own, F_GETLK, &seen);
            /* A child has no locks of its parent, and takes none away. */
            close(fd);
            _exit(seen.l_type == F_UNLCK ? 1 : seen.l_pid == getppid() ? 2 : 3);
        }
        say("way %d: %d\n", way, status_of(child));
        child = fork();
        if (child == 0) {
            struct flock seen = lock;
            fcntl(open(path_of("lock"), O_RDWR), F_GETLK, &seen);
            _exit(seen.l_type == F_UNLCK ? 1 : 2);
        }
        say("again %d\n", status_of(child));
        close(fd);
    }
    /* A program keeps the locks of the one that it replaces. */
    int replaced[2], until[2];
    char byte;
    must(pipe2(replaced, O_CLOEXEC) == 0 && pipe2(until, O_CLOEXEC) == 0, "make pipes");
    pid_t child = fork();
    if (child == 0) {
        int fd = opened("lock", O_RDWR);
        fcntl(fd, F_SETLK, &lock);
        dup2(until[0], 0);
        execl("/bin/cat", "cat", (char *)0);
        _exit(9);
    }
    close(replaced[1]);
    must(read(replaced[0], &byte, 1) == 0, "wait for the program");
    struct flock seen = lock;
    fcntl(opened("lock", O_RDWR), F_GETLK, &seen);
    say("after exec %d, of the child %d", seen.l_type, seen.l_pid == child);
    close(until[1]);
    say(", status %d\n", status_of(child));
    close(replaced[0]);
    close(until[0]);
}

static void polled(void)
{
    int fd = opened("f", O_RDONLY), to = opened("made", O_CREAT | O_RDWR | O_TRUNC), pipes[2];
    must(pipe(pipes) == 0 && write(pipes[1], "x", 1) == 1, "fill a pipe");
    int queue = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT}, events[4];
    /* FUSE lets a regular file be added, other file systems do not. */
    int files[] = {fd, to};
    for (int at = 0; at < 2; at++) {
        long added = of(epoll_ctl(queue, EPOLL_CTL_ADD, files[at], &event));
        say("epoll %d", added == -EPERM || (added == 0 && epoll_ctl(queue, EPOLL_CTL_DEL, files[at], 0) == 0));
    }
    say(" %ld", of(epoll_ctl(queue, EPOLL_CTL_ADD, pipes[0], &event)));
    say(", ready %d\n", epoll_wait(queue, events, 4, 0));
    fd = opened("f", O_RDONLY);
    to = opened("made", O_RDWR);
    struct pollfd all[] = {{fd, POLLIN | POLLOUT | POLLPRI, 0}, {to, POLLIN | POLLOUT, 0}, {pipes[0], POLLIN, 0},
                           {pipes[1], POLLIN, 0}, {-1, POLLIN, 0}, {999, POLLIN, 0}};
    say("poll %d:", poll(all, 6, 50));
    for (int at = 0; at < 6; at++)
        say(" %x", all[at].revents);
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(fd, &in);
    FD_SET(to, &out);
    FD_SET(pipes[0], &in);
    struct timespec none = {0};
    say("\npselect %d", pselect(FD_SETSIZE, &in, &out, 0, &none, 0));
    say(", %d %d %d\n", FD_ISSET(fd, &in), FD_ISSET(to, &out), FD_ISSET(pipes[0], &in));
    say_rest("f", fd);
    say("write %ld\n", of(write(to, bytes, 10)));
}

/* The paths by which a process names its own descriptors. */
static void named(void)
{
    const char *forms[] = {"/dev/stdin", "/dev/fd/0", "/proc/self/fd/0", "/proc/thread-self/fd/0", "/proc/self/fd/../fd/0"};
    for (int at = 0; at < 5; at++) {
        int fd = opened("f", O_RDONLY);
        say("dup2 %d", dup2(fd, 0));
        say(", read %ld", of(read(0, got, 10)));
        close(fd);
        if (at % 2) {
            close(0);
            say(", opened as %d", opened("f", O_RDONLY));
            say(", read %ld", of(read(0, got, 20)));
        }
        int again = open(forms[at], O_RDONLY);
        struct stat found = {0}, own = {0};
        say(", open %d, read %ld", again >= 0, of(read(again, got, 30)));
        say(", stat %d", stat(forms[at], &found));
        say(" %d", fstat(0, &own));
        say(", same %d", own.st_ino == found.st_ino && own.st_size == LENGTH);
        long length = readlink(forms[at], got, 699);
        say(", link %d", at == 0 || (length > 2 && memcmp(got + length - 2, "/f", 2) == 0));
        say(", access %d, write %ld", access(forms[at], R_OK), of(open(forms[at], O_WRONLY) >= 0));
        say(", at %ld\n", (long)lseek(0, 0, SEEK_CUR));
        close(again);
    }
}

/* Changes of names below a directory that is named by its descriptor. */
static void below(void)
{
    for (int way = 0; way < 9; way++) {
        int fd = opened("w", O_RDONLY | O_DIRECTORY);
        char first[64], second[64];
        snprintf(first, sizeof first, "%s/%d/a", way % 2 ? "/dev/fd" : "/proc/self/fd", fd);
        snprintf(second, sizeof second, "/proc/self/fd/%d/b", fd);
        long made = way == 0   ? mkdir(first, 0755)
                    : way == 1 ? rename(first, second)
                    : way == 2 ? renameat2(AT_FDCWD, second, AT_FDCWD, first, 0)
                    : way == 3 ? rmdir(first)
                    : way == 4 ? symlink("f", first)
                    : way == 5 ? unlink(first)
                    : way == 6 ? mknod(first, S_IFIFO | 0644, 0)
                    : way == 7 ? rename(path_of("w/a"), second)
                               : unlinkat(AT_FDCWD, second, 0);
        say("way %d: %ld\n", way, of(made));
        close(fd);
    }
}

static void piped(void)
{
    int fd = opened("f", O_RDONLY), to = opened("made", O_CREAT | O_TRUNC | O_RDWR), pipes[2], pair[2];
    must(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "make pipes");
    off_t from = 100;
    loff_t in = 7, out = 3;
    say("sendfile %ld", of(sendfile(pair[0], fd, 0, 300)));
    say(" %ld", of(sendfile(pair[0], fd, &from, 300)));
    say(", %ld, read %ld\n", (long)from, of(read(pair[1], got, 600)));
    say("sum %lx\n", sum(got, 600));
    fd = opened("f", O_RDONLY);
    say("splice %ld", of(splice(fd, 0, pipes[1], 0, 500, 0)));
    say(" %ld", of(splice(pipes[0], 0, to, 0, 200, 0)));
    say(" %ld", of(splice(pipes[0], 0, to, &out, 300, 0)));
    say(", vmsplice %ld", of(vmsplice(pipes[1], &(struct iovec){bytes, 10}, 1, 0)));
    say(", tee %ld\n", of(tee(pipes[0], fd, 5, 0)));
    fd = opened("f", O_RDONLY);
    say("copy %ld", of(copy_file_range(fd, &in, to, 0, 1000, 0)));
    say(" %ld\n", of(copy_file_range(fd, 0, to, 0, 1000, 0)));
    say_rest("f", fd);
    say_rest("piped", to);
    long count = pread(to, got, sizeof got, 0);
    say("all %ld %lx\n", count, sum(got, count));
}

static void passed(void)
{
    int fd = opened("f", O_RDONLY), to = opened("made", O_CREAT | O_TRUNC | O_RDWR), pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "make sockets");
    pid_t child = fork();
    char control[CMSG_SPACE(2 * sizeof(int))] = {0}, byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (child == 0) {
        close(fd);
        close(to);
        int fds[2];
        must(recvmsg(pair[1], &message, 0) == 1, "receive");
        memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fds);
        int right = read(fds[0], got, 1000) == 1000 && write(fds[1], "of the child", 12) == 12;
        _exit(right ? 3 : 4);
    }
    /* Opened after the child was made. */
    fd = opened("f", O_RDONLY);
    to = opened("made", O_RDWR);
    say("read %ld, write %ld\n", of(read(fd, got, 30)), of(write(to, bytes, 30)));
    int fds[2] = {fd, to};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){CMSG_LEN(sizeof fds), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(header), fds, sizeof fds);
    say("send %ld", of(sendmsg(pair[0], &message, 0)));
    say(", child %d\n", status_of(child));
    say_rest("f", fd);
    say("at %ld\n", (long)lseek(to, 0, SEEK_CUR));
}

static void sandboxed(void)
{
    for (int strict = 0; strict < 2; strict++) {
        pid_t child = fork();
        if (child != 0) {
            say("strict %d: status %#x\n", strict, status_of(child));
            continue;
        }
        warm();
        int fd = opened("f", O_RDONLY), to = opened("made", O_CREAT | O_RDWR);
        long before = read(fd, got, 10) + write(to, bytes, 10);
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 5, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 4, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pread64, 3, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof code / sizeof *code, code};
        if (strict)
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        else if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
            _exit(9);
        long inside = read(fd, got, 3000) + write(to, bytes, 20);
        syscall(SYS_exit, before == 20 && inside == 3020 && sum(got, 3000) == sum(bytes + 10, 3000) ? 5 : 6);
    }
    struct stat found;
    say("written %d", stat(path_of("made"), &found));
    say(" %ld\n", (long)found.st_size);
}

static void apart(void)
{
    int fd = opened("f", O_RDONLY), directory = opened("d", O_RDONLY | O_DIRECTORY);
    say("unshare %d", unshare(CLONE_FS));
    say(", chdir %d", chdir(dir));
    say(", stat %d\n", access("f", R_OK));
    say("unshare %d", unshare(CLONE_FILES));
    say_rest(", f", fd);
    if (!is_root)
        return;
    fd = opened("f", O_RDONLY);
    say("unshare %d", unshare(CLONE_NEWNS));
    say(", private %d", mount("none", "/", 0, MS_REC | MS_PRIVATE, 0));
    int inside = open(path_of("d/inside"), O_RDONLY);
    say(", mount %d", mount("none", path_of("d"), "tmpfs", 0, 0));
    say(", hidden %ld", of(access(path_of("d/inside"), F_OK)));
    say(", old %d", faccessat(directory, "inside", F_OK, 0));
    say(", make %d", mkdir(path_of("d/new"), 0755));
    say(", umount %d", umount2(path_of("d"), MNT_DETACH));
    say(", again %d, new %ld\n", access(path_of("d/inside"), F_OK), of(access(path_of("d/new"), F_OK)));
    say_rest("f", fd);
    say_rest("inside", inside);
    fd = opened("f", O_RDONLY);
    say("chroot %d", chroot(dir));
    say(", chdir %d", chdir("/"));
    say(", f %d, d %d, up %d", access("/f", R_OK), access("d/inside", R_OK), access("/../f", R_OK));
    say(", outside %ld\n", of(access(root, F_OK)));
    say_rest("f", fd);
}

static void watched(void)
{
    int fd = opened("f", O_RDONLY), to = opened("made", O_CREAT | O_TRUNC | O_RDWR);
    int events = inotify_init1(IN_NONBLOCK);
    say("watch %d\n", inotify_add_watch(events, path_of("w"), IN_ALL_EVENTS) > 0);
    int made = open(path_of("w/made"), O_CREAT | O_RDWR, 0644);
    say("write %ld", of(write(made, bytes, 10)));
    say(", read %ld", of(pread(made, got, 5, 0)));
    say(", close %d", close(made));
    say(", rename %d", rename(path_of("w/made"), path_of("w/moved")));
    say(", chmod %d", chmod(path_of("w/moved"), 0600));
    say(", link %d", link(path_of("w/moved"), path_of("w/other")));
    say(", unlink %d", unlink(path_of("w/other")));
    say(", truncate %d", truncate(path_of("w/moved"), 3));
    say(", unlink %d\n", unlink(path_of("w/moved")));
    char room[8192];
    long length;
    while ((length = read(events, room, sizeof room)) > 0)
        for (char *at = room; at < room + length;) {
            struct inotify_event *event = (void *)at;
            say(" %x-%s", event->mask, event->len ? event->name : "");
            at += sizeof *event + event->len;
        }
    say("\nwrite %ld\n", of(write(to, bytes, 10)));
    say_rest("f", fd);
}

/* A daemon closes what it has. */
static void closed(void)
{
    for (int way = 0; way < 4; way++) {
        pid_t child = fork();
        if (child != 0) {
            say("way %d: %#x\n", way, status_of(child));
            continue;
        }
        warm();
        int fd = open(path_of("f"), O_RDONLY), to = open(path_of("closed"), O_CREAT | O_RDWR, 0644), failed = 0;
        if (write(to, bytes, 50) != 50)
            _exit(20);
        struct rlimit limit;
        getrlimit(RLIMIT_NOFILE, &limit);
        long end = limit.rlim_cur < 4096 ? limit.rlim_cur : 4096;
        switch (way) {
        case 0:
            for (int at = 3; at < end; at++)
                close(at);
            break;
        case 1:
            for (int at = end - 1; at >= 0; at--)
                close(at);
            break;
        case 2:
            failed = syscall(SYS_close_range, 3, ~0U, 0);
            break;
        default:
            closefrom(0);
        }
        if (failed || pread(fd, got, 1, 0) >= 0 || errno != EBADF)
            _exit(21);
        int first = way == 1 || way == 3 ? 0 : 3;
        for (int at = 0; at < 40; at++)
            if (open(path_of(at % 2 ? "f" : "g"), O_RDONLY) != first + at)
                _exit(22);
        struct stat found;
        for (int at = 0; at < 100; at++)
            if (stat(path_of("closed"), &found) != 0 || found.st_size != 50)
                _exit(23);
        _exit(pread(first + 1, got, LENGTH, 0) == LENGTH && sum(got, LENGTH) == sum(bytes, LENGTH) ? 7 : 24);
    }
}

static void held_in_memory(void)
{
    for (int way = 0; way < 2; way++) {
        pid_t child = fork();
        if (child != 0) {
            say("way %d: %#x\n", way, status_of(child));
            continue;
        }
        /* The second one has too little for what it maps later. */
        struct rlimit limit = {way ? 4 << 20 : RLIM_INFINITY, way ? 4 << 20 : RLIM_INFINITY};
        if (is_root || way)
            setrlimit(RLIMIT_MEMLOCK, &limit);
        if (way && is_root && seteuid(OTHER_USER) != 0)
            _exit(20);
        mlockall(way ? MCL_FUTURE : MCL_CURRENT | MCL_FUTURE);
        warm();
        int fd = open(path_of("f"), O_RDONLY);
        _exit(read(fd, got, LENGTH) == LENGTH && sum(got, LENGTH) == sum(bytes, LENGTH) ? 7 : 22);
    }
}

static void await_more(const volatile long *count, long than)
{
    while (*count <= than)
        usleep(1000);
}

/* A debugger and a tracer come and go. */
static void traced(void)
{
    static const char *const tracers[] = {
        "strace -f -qq -o /dev/null -p %d & tracer=$!; sleep 0.2; kill -INT $tracer; wait $tracer; true",
        "gdb -nx -batch -p %d -ex 'info threads' -ex detach >/dev/null 2>&1"};
    for (int at = 0; at < 2; at++) {
        if (system(at ? "command -v gdb >/dev/null" : "command -v strace >/dev/null") != 0)
            continue;
        volatile long *counts = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
            while (!counts[0]) {
                int fd = open(path_of("f"), O_RDONLY);
                counts[1] += read(fd, got, LENGTH) != LENGTH || sum(got, LENGTH) != sum(bytes, LENGTH);
                counts[1] += access(path_of("missing"), F_OK) == 0 || errno != ENOENT;
                counts[2]++;
                close(fd);
            }
            _exit(counts[1] != 0);
        }
        await_more(&counts[2], 0);
        char command[300];
        snprintf(command, sizeof command, tracers[at], child);
        int result = system(command);
        await_more(&counts[2], counts[2]);
        say("tracer %d: goes on", result);
        counts[0] = 1;
        say(", status %d, wrong %ld\n", status_of(child), counts[1]);
    }
}

static const struct part {
    const char *name;
    void (*run)(void);
    int is_slow;
} parts[] = {
    {"spawned", spawned, 0}, {"vforked", vforked, 0}, {"executed", executed, 0}, {"ids", ids, 0},
    {"ringed", ringed, 0}, {"asynchronous", asynchronous, 0}, {"mapped", mapped, 0}, {"replaced", replaced, 0},
    {"locked", locked, 1}, {"other_names", other_names, 1}, {"polled", polled, 0}, {"named", named, 0}, {"below", below, 0},
    {"piped", piped, 0}, {"passed", passed, 0}, {"sandboxed", sandboxed, 0}, {"apart", apart, 0},
    {"watched", watched, 0}, {"closed", closed, 0}, {"held_in_memory", held_in_memory, 0}, {"traced", traced, 1},
};
#define PARTS (long)(sizeof parts / sizeof *parts)

static void write_file(const char *name, const char *from, long length, int mode)
{
    int fd = open(path_of(name), O_CREAT | O_WRONLY | O_TRUNC, mode);
    must(fd >= 0 && write(fd, from, length) == length && fchmod(fd, mode) == 0 && close(fd) == 0, "write a file");
}

static void begin_part(int of_side)
{
    side = of_side;
    snprintf(dir, sizeof dir, "%s/%s", of_side ? others : root, of_side ? "twin/here" : "here");
    /* What an earlier part has made there. */
    char command[3000];
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s' '%s/d' '%s/w'", dir, dir, dir, dir);
    must(system(command) == 0 && chmod(dir, 0755) == 0, "make a directory");
    write_file("f", bytes, LENGTH, 0644);
    write_file("g", bytes + 1000, LENGTH - 1000, 0644);
    write_file("secret", bytes, 100, 0600);
    static const char *const empty[] = {"lock", "mapped", "made"};
    for (int at = 0; at < 3; at++)
        write_file(empty[at], bytes, 0, 0644);
    write_file("d/inside", bytes, 100, 0644);
    snprintf(command, sizeof command, "cp /bin/cat '%s/setuid' && chown %d '%s/setuid' && chmod 4755 '%s/setuid'", dir,
             OTHER_USER, dir, dir);
    must(!is_root || system(command) == 0, "copy a program");
}

/* Writes what is there. Names that others make and remove come and go beside. */
static void disturb(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (!shared->stop) {
        int fd = openat(kernel_fd, "here/f", O_RDWR);
        if (fd >= 0 && pwrite(fd, bytes, LENGTH, 0) < 0)
            _exit(1);
        close(fd);
        linkat(kernel_fd, "here/g", kernel_fd, "here/beside", 0);
        renameat(kernel_fd, "here/beside", kernel_fd, "here/beside-2");
        unlinkat(kernel_fd, "here/beside-2", 0);
        usleep(300);
    }
    _exit(0);
}

static int run_part(const struct part *part, int of_side, int is_disturbed)
{
    begin_part(of_side);
    shared->stop = 0;
    pid_t other = is_disturbed ? fork() : -1;
    if (other == 0)
        disturb();
    pid_t child = fork();
    if (child == 0) {
        watch();
        warm();
        part->run();
        exit(0);
    }
    int status = 0;
    for (long waited = 0; waitpid(child, &status, WNOHANG) == 0; waited++) {
        if (waited > PART_SECONDS_MAX * 200) {
            printf("%s, %s: not finished\n", part->name, of_side ? "the kernel" : "served");
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return 1;
        }
        usleep(5000);
    }
    shared->stop = 1;
    if (is_disturbed)
        status |= status_of(other);
    if (status != 0)
        printf("%s, %s: status %#x\n", part->name, of_side ? "the kernel" : "served", status);
    return status != 0;
}

static long differing(const struct part *part)
{
    if (strcmp(shared->said[0], shared->said[1]) == 0)
        return 0;
    char *ours = shared->said[0], *kernels = shared->said[1];
    printf("%s differs:\n", part->name);
    for (char *a = strsep(&ours, "\n"), *b = strsep(&kernels, "\n"); a || b;
         a = strsep(&ours, "\n"), b = strsep(&kernels, "\n"))
        if (!a || !b || strcmp(a, b) != 0)
            printf("  served  %s\n  kernel  %s\n", a ? a : "(nothing)", b ? b : "(nothing)");
    return 1;
}

int main(int count, char **words)
{
    if (count == 2 && strcmp(words[1], "copy") == 0) {
        char byte;
        while (read(0, &byte, 1) == 1 && write(1, &byte, 1) == 1)
            ;
        return 0;
    }
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count >= 3, "run without a command and a directory");
    root = words[2];
    if (strcmp(words[1], "prepare") == 0)
        return chmod(root, 0777) != 0;
    others = getenv("OTHERS");
    must(getenv("KERNEL_FD") != 0 && others != 0, "run without another mount and other programs");
    kernel_fd = atoi(getenv("KERNEL_FD"));
    is_root = geteuid() == 0;
    long rounds = count > 3 ? atol(words[3]) : 4, wrong = 0;
    for (int at = 0; at < LENGTH; at++)
        bytes[at] = at * 31 + at / 256;
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(shared != MAP_FAILED, "map");
    for (long round = 0; round < rounds; round++)
        for (long at = 0; at < PARTS; at++) {
            if ((count > 4 && strcmp(words[4], parts[at].name) != 0) || (parts[at].is_slow && round % 2 != at % 2))
                continue;
            memset(shared->said, 0, sizeof shared->said);
            shared->at[0] = shared->at[1] = 0;
            is_counted = round % 2 == 0;
            shared->begun += is_counted;
            wrong += run_part(parts + at, 0, round % 2) + run_part(parts + at, 1, 0) + differing(parts + at);
            if (getenv("UNUSUAL_SHOWS"))
                printf("-- %s\n%s", parts[at].name, shared->said[0]);
        }
    printf("%ld wrong; %ld of %ld parts began with a file that was served\n", wrong, shared->served, shared->begun);
    /* `closed` and two others open their files elsewhere. */
    return wrong != 0 || shared->served * 4 < shared->begun * 3;
}
#endif
