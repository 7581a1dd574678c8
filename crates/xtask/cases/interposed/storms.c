/* Eight threads change one directory in the process while the kernel changes it, by KERNEL_FD, for
 * another process. Signals come at up to 10 kHz, with SA_RESTART and without; handlers jump out of
 * calls; threads are cancelled in calls. Each file is one record, so that a reader finds a whole
 * one. No call fails that may not, none hangs, and at the end both sides see the same tree.
 *   storms prepare DIR
 *   storms compare DIR SEED [ROUNDS MILLISECONDS]     prints what is wrong */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WARM 20000
#define THREADS 8
#define NAMES 12
#define LENGTH_MAX 9000
#define ROUND_SECONDS_MAX 30
#define CALLS_MIN 3000
#define DESCRIPTORS 4000
#define DENIED_MAX 3

enum storm { CALM, RESTARTED, INTERRUPTED, CANCELLED, JUMPED, FORKED, STORMS };
static const char *const storm_names[] = {"calm", "restarted", "interrupted", "cancelled", "jumped", "forked"};

static struct shared {
    volatile long wrong, denied, calls, stop, signals, jumps, cancels;
} *shared;

static const char *root;
static int kernel_fd;
static enum storm storm;
/* Calls of the threads of this process. */
static long calls_of_round;
static long round_number;

/* Of a thread. `jump` is where its handler jumps to, `may_jump` whether it may. */
static __thread sigjmp_buf jump;
static __thread volatile int may_jump, open_fd;
static __thread unsigned long state;

static void must(int right, const char *what)
{
    if (!right) {
        printf("round %ld, %s: cannot %s: %s\n", round_number, storm_names[storm], what, strerror(errno));
        _exit(2);
    }
}

static void wrong(const char *what, const char *name, long value)
{
    int error = errno;
    /* Linux makes the inode of a directory, and drops what was replied for it if its attributes are
     * recalled at this moment and once more. Then the directory has no rights for a moment. */
    if (error == EACCES && geteuid() != 0 && __atomic_fetch_add(&shared->denied, 1, __ATOMIC_SEQ_CST) < DENIED_MAX)
        return;
    if (__atomic_fetch_add(&shared->wrong, 1, __ATOMIC_SEQ_CST) < 30)
        printf("round %ld, %s: %s of %s: %ld, %s\n", round_number, storm_names[storm], what, name, value,
               strerror(error));
}

static unsigned long below(unsigned long end)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % end;
}

/* A record: its length, its salt, and bytes that follow from both. */
static long fill(unsigned char *bytes)
{
    unsigned int length = 8 + below(below(4) ? 300 : LENGTH_MAX - 8), salt = below(1 << 30);
    memcpy(bytes, &length, 4);
    memcpy(bytes + 4, &salt, 4);
    for (unsigned int at = 8; at < length; at++)
        bytes[at] = (salt + at * 7) >> at % 3;
    return length;
}

static int is_record(const unsigned char *bytes, long count)
{
    unsigned int length, salt;
    if (count < 8)
        return 0;
    memcpy(&length, bytes, 4);
    memcpy(&salt, bytes + 4, 4);
    if (length != count)
        return 0;
    for (unsigned int at = 8; at < length; at++)
        if (bytes[at] != (unsigned char)((salt + at * 7) >> at % 3))
            return 0;
    return 1;
}

/* After a jump out of a close the number may be free or not, so it is not closed
 * again. */
static void shut(int fd, const char *path)
{
    open_fd = -1;
    if (close(fd) != 0)
        wrong("close", path, -1);
}

struct place {
    int from;
    char before[560];
};

static const char *path_of(const struct place *place, char *path, const char *kind, long a, long b)
{
    snprintf(path, 700, "%s%s-%ld-%ld", place->before, kind, a, b);
    return path;
}

/* A file of this thread takes a name that all use. */
static void replace(const struct place *place, long self)
{
    static __thread volatile long made;
    unsigned char bytes[LENGTH_MAX];
    char path[700], to[700];
    path_of(place, path, "new", self, made++);
    path_of(place, to, "name", below(NAMES), 0);
    long length = fill(bytes), done = 0, count;
    int fd = open_fd = openat(place->from, path, O_CREAT | O_EXCL | O_RDWR, 0644);
    if (fd < 0) {
        wrong("create", path, fd);
        return;
    }
    while (done < length && (count = write(fd, bytes + done, length - done)) > 0)
        done += count;
    if (done != length)
        wrong("write", path, done);
    if (below(8) == 0 && fsync(fd) != 0)
        wrong("fsync", path, -1);
    unsigned char again[LENGTH_MAX + 1];
    if (pread(fd, again, sizeof again, 0) != length || memcmp(bytes, again, length))
        wrong("read of what was written", path, length);
    struct stat found;
    if (fstat(fd, &found) != 0 || found.st_size != length)
        wrong("fstat", path, found.st_size);
    shut(fd, path);
    if (renameat(place->from, path, place->from, to) != 0)
        wrong("rename", path, -1);
}

static void look(const struct place *place)
{
    unsigned char bytes[LENGTH_MAX + 1];
    char path[700];
    path_of(place, path, "name", below(NAMES), 0);
    int fd = open_fd = openat(place->from, path, O_RDONLY);
    if (fd < 0) {
        if (errno != ENOENT)
            wrong("open", path, fd);
        return;
    }
    long length = 0, count;
    while ((count = read(fd, bytes + length, sizeof bytes - length)) > 0)
        length += count;
    if (count < 0 || !is_record(bytes, length))
        wrong("read", path, count < 0 ? count : length);
    struct stat found;
    if (fstat(fd, &found) != 0 || found.st_size != length)
        wrong("fstat", path, found.st_size);
    shut(fd, path);
}

static void append(const struct place *place, long self)
{
    char path[700], line[64];
    path_of(place, path, "log", self % 3, 0);
    memset(line, 'a' + self % 26, 63);
    line[63] = '\n';
    int fd = open_fd = openat(place->from, path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0) {
        wrong("open to append", path, fd);
        return;
    }
    if (write(fd, line, 64) != 64)
        wrong("append", path, -1);
    shut(fd, path);
}

static void one_call(const struct place *place, long self)
{
    char path[700], other[700];
    struct stat found;
    path_of(place, path, "name", below(NAMES), 0);
    path_of(place, other, "name", below(NAMES), 0);
    __atomic_fetch_add(&shared->calls, 1, __ATOMIC_RELAXED);
    switch (below(12)) {
    case 0:
    case 1:
        replace(place, self);
        return;
    case 2:
        if (renameat(place->from, path, place->from, other) != 0 && errno != ENOENT)
            wrong("rename", path, -1);
        return;
    case 3:
        if (below(2) && unlinkat(place->from, path, 0) != 0 && errno != ENOENT)
            wrong("unlink", path, -1);
        return;
    case 4:
        if (linkat(place->from, path, place->from, other, 0) != 0 && errno != ENOENT && errno != EEXIST)
            wrong("link", path, -1);
        return;
    case 5:
        append(place, self);
        return;
    case 6:
    case 7:
    case 8:
        if (fstatat(place->from, path, &found, 0) != 0 ? errno != ENOENT : found.st_size < 8)
            wrong("stat", path, found.st_size);
        return;
    default:
        look(place);
    }
}

static struct place ours, kernels;

static void on_signal(int number)
{
    __atomic_fetch_add(&shared->signals, 1, __ATOMIC_RELAXED);
    if (storm == JUMPED && may_jump && below(16) == 0) {
        may_jump = 0;
        siglongjmp(jump, 1);
    }
    if (number && below(64) == 0) {
        struct stat found;
        int error = errno;
        fstatat(AT_FDCWD, root, &found, 0);
        errno = error;
    }
}

static void clean(void *argument)
{
    __atomic_fetch_add(&shared->cancels, 1, __ATOMIC_RELAXED);
    *(volatile int *)argument = 1;
    if (open_fd >= 0)
        close(open_fd);
}

static volatile long stop;

/* On one processor of those that the process may use, or on any. Its cell may be there, too. */
static void move_about(const cpu_set_t *allowed)
{
    cpu_set_t one;
    int processor = below(CPU_COUNT(allowed) + 1), at = 0;
    CPU_ZERO(&one);
    for (int left = processor; processor < CPU_COUNT(allowed); at++)
        if (CPU_ISSET(at, allowed) && left-- == 0) {
            CPU_SET(at, &one);
            break;
        }
    must(sched_setaffinity(0, sizeof one, CPU_COUNT(&one) ? &one : allowed) == 0, "move");
}

static void *worker(void *argument)
{
    long self = (long)argument;
    int is_cleaned = 0;
    state = self * 7919 + round_number * 104729 + 88172645463325252UL;
    open_fd = -1;
    cpu_set_t allowed;
    must(sched_getaffinity(0, sizeof allowed, &allowed) == 0, "find processors");
    pthread_cleanup_push(clean, &is_cleaned);
    while (!stop) {
        if (below(100) == 0)
            move_about(&allowed);
        if (storm == JUMPED) {
            if (sigsetjmp(jump, 1) != 0) {
                __atomic_fetch_add(&shared->jumps, 1, __ATOMIC_RELAXED);
                if (open_fd >= 0)
                    close(open_fd);
                open_fd = -1;
            }
            may_jump = 1;
        }
        one_call(&ours, self);
        may_jump = 0;
        __atomic_fetch_add(&calls_of_round, 1, __ATOMIC_RELAXED);
    }
    pthread_cleanup_pop(0);
    return 0;
}

static void *idle(void *unused)
{
    return unused;
}

/* The threads of one process for a while. */
static void blow(long milliseconds)
{
    pthread_t threads[THREADS];
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = storm == RESTARTED ? SA_RESTART : 0};
    sigaction(SIGALRM, &action, 0);
    for (long at = 0; at < THREADS; at++)
        must(pthread_create(threads + at, 0, worker, (void *)(at + round_number * 10000)) == 0, "start a thread");
    struct itimerval timer = {{0, 100}, {0, 100}}, none = {0};
    /* The threads have the signals, not this one. */
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &blocked, 0);
    if (storm != CALM && storm != CANCELLED)
        setitimer(ITIMER_REAL, &timer, 0);
    struct timespec begun, now;
    long elapsed, is_short;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    long next = round_number * 10000 + THREADS;
    do {
        struct timespec pause = {0, storm == CANCELLED ? 300000 : 5000000};
        nanosleep(&pause, 0);
        if (storm == CANCELLED) {
            int at = next % THREADS;
            void *result;
            must(pthread_cancel(threads[at]) == 0, "cancel");
            must(pthread_join(threads[at], &result) == 0 && result == PTHREAD_CANCELED, "join");
            must(pthread_create(threads + at, 0, worker, (void *)next++) == 0, "start another thread");
        } else if (storm == FORKED) {
            /* Children of all kinds beside the calls. */
            pid_t child = below(2) ? fork() : vfork();
            if (child == 0)
                _exit(0);
            int status;
            must(child > 0 && waitpid(child, &status, 0) == child && status == 0, "make a child");
            pthread_t brief;
            must(pthread_create(&brief, 0, idle, 0) == 0 && pthread_join(brief, 0) == 0, "start a thread");
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        elapsed = (now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000;
        /* A busy machine takes longer for what shows anything. */
        is_short = calls_of_round < CALLS_MIN && elapsed < ROUND_SECONDS_MAX * 500;
    } while (elapsed < milliseconds || is_short);
    setitimer(ITIMER_REAL, &none, 0);
    stop = 1;
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], 0);
}

static int is_name(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Both sides see the same names, attributes and bytes; links are counted right. */
static void compare_sides(void)
{
    struct dirent **names, **others;
    int count = scandir(ours.before, &names, is_name, alphasort);
    int same = scandirat(kernel_fd, "storm", &others, is_name, alphasort);
    if (count != same)
        wrong("count of names", ours.before, count - same);
    for (int at = 0; at < count && count == same; at++) {
        char path[900], other[900];
        static unsigned char a[1 << 20], b[1 << 20];
        struct stat x, y;
        snprintf(path, sizeof path, "%s%s", ours.before, names[at]->d_name);
        snprintf(other, sizeof other, "storm/%s", others[at]->d_name);
        int fd = open(path, O_RDONLY), theirs = openat(kernel_fd, other, O_RDONLY);
        if (fstatat(AT_FDCWD, path, &x, 0) || fstat(theirs, &y) || x.st_ino != y.st_ino || x.st_size != y.st_size
            || x.st_nlink != y.st_nlink || strcmp(names[at]->d_name, others[at]->d_name))
            wrong("attributes", path, x.st_size - y.st_size);
        long length = read(fd, a, sizeof a);
        if (read(theirs, b, sizeof b) != length || (length > 0 && memcmp(a, b, length)))
            wrong("bytes", path, length);
        if (names[at]->d_name[0] == 'n' && names[at]->d_name[1] == 'a' && !is_record(a, length))
            wrong("record", path, length);
        if (names[at]->d_name[0] == 'l' && length % 64 != 0)
            wrong("log", path, length);
        close(fd);
        close(theirs);
        free(names[at]);
        free(others[at]);
    }
    free(names);
    free(others);
}

static void warm(long calls)
{
    struct stat found;
    for (long at = 0; at < calls; at++)
        must(stat(root, &found) == 0, "stat");
}

/* The kernel's process, beside all rounds. */
static void beside(void)
{
    state = 4711;
    warm(WARM);
    while (!shared->stop) {
        one_call(&kernels, 99999 + getpid());
        struct timespec pause = {0, 50000};
        nanosleep(&pause, 0);
    }
    exit(0);
}

static void one_round(long milliseconds)
{
    struct rlimit limit;
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    limit.rlim_cur = limit.rlim_max < DESCRIPTORS ? limit.rlim_max : DESCRIPTORS;
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    state = round_number + 1;
    warm(WARM / 8);
    blow(milliseconds);
    exit(0);
}

static void show(pid_t child)
{
    char command[200];
    printf("round %ld, %s: not finished\n", round_number, storm_names[storm]);
    snprintf(command, sizeof command, "cd /proc/%d/task; grep . */comm */syscall */wchan; cat */stack", child);
    if (system(command) != 0)
        puts("(gone)");
}

int main(int count, char **words)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count >= 3, "run without a command and a directory");
    root = words[2];
    if (strcmp(words[1], "prepare") == 0) {
        char path[700];
        snprintf(path, sizeof path, "%s/storm", root);
        return chmod(root, 0777) != 0 || mkdir(path, 0777) != 0 || chmod(path, 0777) != 0;
    }
    must(count >= 4 && getenv("KERNEL_FD") != 0, "run without a seed and another mount");
    kernel_fd = atoi(getenv("KERNEL_FD"));
    ours.from = AT_FDCWD;
    snprintf(ours.before, sizeof ours.before, "%s/storm/", root);
    kernels.from = kernel_fd;
    strcpy(kernels.before, "storm/");
    long rounds = count > 4 ? atol(words[4]) : 12, milliseconds = count > 5 ? atol(words[5]) : 700;
    int only = count > 6 ? atoi(words[6]) : -1;
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(shared != MAP_FAILED, "map");
    pid_t kernel_process = fork();
    if (kernel_process == 0)
        beside();
    state = strtoul(words[3], 0, 10) + 88172645463325252UL;
    warm(WARM);
    for (long done = 0; done < rounds; done++) {
        round_number = atol(words[3]) % 1000 * 1000 + done;
        storm = only >= 0 ? only : done % STORMS;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0)
            one_round(milliseconds);
        int status = 0;
        long waited = 0;
        while (waitpid(child, &status, WNOHANG) == 0 && waited++ < (milliseconds + ROUND_SECONDS_MAX * 1000) / 20)
            usleep(20000);
        if (waited > (milliseconds + ROUND_SECONDS_MAX * 1000) / 20) {
            show(child);
            shared->wrong++;
            if (getenv("STORM_KEEPS") == 0)
                kill(child, SIGKILL);
            waitpid(child, &status, 0);
        } else if (status != 0) {
            printf("round %ld, %s: ended with %#x\n", round_number, storm_names[storm], status);
            shared->wrong++;
        }
    }
    shared->stop = 1;
    int status;
    must(waitpid(kernel_process, &status, 0) == kernel_process && status == 0, "end the kernel's process");
    compare_sides();
    printf("%ld wrong, %ld denied; %ld calls, %ld signals, %ld jumps, %ld cancelled\n", shared->wrong,
           shared->denied, shared->calls, shared->signals, shared->jumps, shared->cancels);
    return shared->wrong != 0;
}
