/* Files whose contents say which change they are from, read by name while other processes change
 * them. Two processes are interposed, and the kernel serves the third one, by KERNEL_FD. Each name has one
 * writer. Generation G of a name decides its length, its bytes and how it is made. Counters in
 * shared memory, one before a change and one behind it, say which generations a reader may find:
 * an older one is stale, and a mix of two is torn.
 *   records prepare DIR
 *   records compare DIR SEED [MILLISECONDS]     prints what is wrong */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WARM 10000
#define PROCESSES 3
#define READS_MIN 2000
#define NAMES 6
#define READERS 2
#define LENGTH_MAX 140000
#define WAIT_SECONDS 60

/* How a generation is made. Those from IN_PLACE on change the file that is there. */
enum method { RENAME, LINK, AGAIN, ABSENT, CLOSED, IN_PLACE, CUT, METHODS };

struct name {
    volatile long begun, done;
};

static struct shared {
    struct name names[PROCESSES * NAMES];
    volatile long wrong, reads, exact, stop;
} *shared;

static const char *root;
static int kernel_fd, process, is_root;
static unsigned long seed;

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        _exit(2);
    }
}

static unsigned long mix(unsigned long value)
{
    value ^= value >> 33;
    value *= 0xff51afd7ed558ccdUL;
    value ^= value >> 33;
    value *= 0xc4ceb9fe1a85ec53UL;
    return value ^ value >> 33;
}

static unsigned long below(unsigned long *state, unsigned long end)
{
    *state = *state * 6364136223846793005UL + 1442695040888963407UL;
    return mix(*state) % end;
}

static unsigned long drawn(int name, long generation)
{
    return mix(seed * 1000003 + name * 7919 + generation * 104729);
}

static enum method method_of(int name, long generation)
{
    /* The last name of each process is only changed in place. */
    int drawn_method = drawn(name, generation) % METHODS;
    if (generation == 0)
        return RENAME;
    return name % NAMES == NAMES - 1 ? IN_PLACE + drawn_method % 2 : drawn_method;
}

static long length_of(int name, long generation)
{
    static const long lengths[] = {0, 1, 100, 4096, 16383, 16384, 16385, 20000, 131072, 131073};
    return lengths[drawn(name, generation) / METHODS % 10];
}

/* Words of eight bytes that name the generation; also the last bytes do. */
static unsigned char byte_of(int name, long generation, long at)
{
    return (mix(name * 31 + generation) >> at % 8 * 8) + at / 4096;
}

static void fill(unsigned char *bytes, int name, long generation)
{
    for (long at = 0; at < length_of(name, generation); at++)
        bytes[at] = byte_of(name, generation, at);
}

static int is_generation(const unsigned char *bytes, long length, int name, long generation)
{
    if (length != length_of(name, generation))
        return 0;
    for (long at = 0; at < length; at++)
        if (bytes[at] != byte_of(name, generation, at))
            return 0;
    return 1;
}

/* The directory and the path from it: the kernel's process has its own descriptor. */
static int from(void)
{
    return process == PROCESSES - 1 ? kernel_fd : AT_FDCWD;
}

static const char *path_of(char *path, const char *kind, int name)
{
    snprintf(path, 600, "%s%s%s%d", from() == AT_FDCWD ? root : "", from() == AT_FDCWD ? "/" : "", kind, name);
    return path;
}

static void make(const char *path, int flags, const unsigned char *bytes, long length)
{
    int fd = openat(from(), path, O_WRONLY | O_CREAT | flags, 0644);
    must(fd >= 0, "make");
    for (long at = 0; at < length;) {
        ssize_t written = write(fd, bytes + at, length - at);
        must(written > 0, "write");
        at += written;
    }
    must(close(fd) == 0, "close");
}

static void change(int name, long generation, unsigned char *bytes)
{
    char path[600], other[600];
    path_of(path, "name-", name);
    path_of(other, "new-", name);
    long length = length_of(name, generation);
    fill(bytes, name, generation);
    if (generation > 0 && method_of(name, generation - 1) == CLOSED)
        must(fchmodat(from(), path, 0644, 0) == 0, "open to all");
    int is_there = generation > 0 && method_of(name, generation - 1) != ABSENT;
    int fd;
    switch (method_of(name, generation)) {
    case RENAME:
        make(other, O_EXCL, bytes, length);
        must(renameat(from(), other, from(), path) == 0, "rename");
        break;
    case LINK:
        make(other, O_EXCL, bytes, length);
        must(!is_there || unlinkat(from(), path, 0) == 0, "unlink");
        must(linkat(from(), other, from(), path, 0) == 0, "link");
        must(unlinkat(from(), other, 0) == 0, "unlink the other");
        break;
    case AGAIN:
        must(!is_there || unlinkat(from(), path, 0) == 0, "unlink");
        make(path, O_EXCL, bytes, length);
        break;
    case ABSENT:
        must(!is_there || unlinkat(from(), path, 0) == 0, "unlink");
        break;
    case CLOSED:
        make(other, O_EXCL, bytes, length);
        must(fchmodat(from(), other, 0, 0) == 0, "chmod");
        must(renameat(from(), other, from(), path) == 0, "rename");
        break;
    case IN_PLACE:
        make(path, O_TRUNC, bytes, length);
        break;
    default:
        fd = openat(from(), path, O_RDWR | O_CREAT, 0644);
        must(fd >= 0, "open");
        for (long at = 0; at < length;) {
            ssize_t written = pwrite(fd, bytes + at, length - at, at);
            must(written > 0, "pwrite");
            at += written;
        }
        must(ftruncate(fd, length) == 0 && close(fd) == 0, "ftruncate");
    }
}

/* Gives the file a second name and takes it away, by the kernel. A front treats a file that had
 * several names with care, for some time after the removal by a thread that asks nothing else. */
static void name_twice(int name)
{
    char path[600], other[600];
    snprintf(path, 600, "name-%d", name);
    snprintf(other, 600, "twice-%d", name);
    must(linkat(kernel_fd, path, kernel_fd, other, 0) == 0, "link twice");
    must(unlinkat(kernel_fd, other, 0) == 0, "unlink the second name");
}

static void *writer(void *unused)
{
    unsigned char *bytes = malloc(LENGTH_MAX);
    unsigned long state = seed + process * 17 + 5;
    while (!shared->stop) {
        int name = process * NAMES + below(&state, NAMES);
        long generation = shared->names[name].done + 1;
        __atomic_store_n(&shared->names[name].begun, generation, __ATOMIC_SEQ_CST);
        change(name, generation, bytes);
        __atomic_store_n(&shared->names[name].done, generation, __ATOMIC_SEQ_CST);
        struct timespec pause = {0, below(&state, 4) ? 300000 : 10000};
        nanosleep(&pause, 0);
    }
    free(bytes);
    return unused;
}

static void wrong(const char *what, int name, long first, long last, long length, int error)
{
    if (__atomic_fetch_add(&shared->wrong, 1, __ATOMIC_SEQ_CST) < 30)
        printf("process %d: name %d, generation %ld to %ld (how %d, length %ld): %s: length %ld, error %d\n",
               process, name, first, last, method_of(name, last), length_of(name, last), what, length, error);
}

/* The file as a reader may find it, if all changes from `first` to `last` were atomic. */
static int may_be(int name, long first, long last, const unsigned char *bytes, long length, int error)
{
    for (long generation = first; generation <= last; generation++) {
        enum method method = method_of(name, generation);
        if (error == ENOENT && method == ABSENT)
            return 1;
        if (error == EACCES && method == CLOSED && !is_root)
            return 1;
        if (!error && method != ABSENT && (is_root || method != CLOSED)
            && is_generation(bytes, length, name, generation))
            return 1;
    }
    return 0;
}

static int is_atomic(int name, long first, long last)
{
    for (long generation = first + 1; generation <= last; generation++) {
        enum method method = method_of(name, generation);
        /* Rights come back before the next change. */
        if ((method != RENAME && method != CLOSED && method != ABSENT)
            || method_of(name, generation - 1) == CLOSED)
            return 0;
    }
    return 1;
}

static void read_one(unsigned long *state, unsigned char *bytes)
{
    char path[600];
    int name = below(state, PROCESSES * NAMES);
    path_of(path, "name-", name);
    long first = __atomic_load_n(&shared->names[name].done, __ATOMIC_SEQ_CST), length = 0;
    int by_stat = below(state, 4) == 0, error = 0;
    struct stat found = {0};
    if (by_stat) {
        error = fstatat(from(), path, &found, 0) ? errno : 0;
        length = found.st_size;
    } else {
        int fd = openat(from(), path, O_RDONLY);
        error = fd < 0 ? errno : 0;
        ssize_t count;
        while (!error && (count = read(fd, bytes + length, LENGTH_MAX - length)) != 0) {
            if (count < 0)
                error = 1000 + errno;
            else
                length += count;
        }
        if (fd >= 0)
            close(fd);
    }
    long last = __atomic_load_n(&shared->names[name].begun, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&shared->reads, 1, __ATOMIC_RELAXED);
    if (error && error != ENOENT && error != EACCES)
        wrong("an error", name, first, last, length, error);
    if (error == ENOENT && name % NAMES == NAMES - 1)
        wrong("a name that is always there", name, first, last, length, error);
    if (!is_atomic(name, first, last))
        return;
    __atomic_fetch_add(&shared->exact, 1, __ATOMIC_RELAXED);
    if (!by_stat) {
        if (!may_be(name, first, last, bytes, length, error))
            wrong("stale or torn", name, first, last, length, error);
    } else if (first == last) {
        int is_there = method_of(name, last) != ABSENT;
        if (is_there != !error || (is_there && length != length_of(name, last)))
            wrong("stat", name, first, last, length, error);
    }
}

static void *reader(void *number)
{
    unsigned char *bytes = malloc(LENGTH_MAX);
    unsigned long state = seed + process * 1000 + (long)number;
    while (!shared->stop)
        read_one(&state, bytes);
    free(bytes);
    return 0;
}

static void warm(void)
{
    struct stat found;
    for (long at = 0; at < WARM; at++)
        must(stat(root, &found) == 0, "stat");
}

static void work(int number)
{
    process = number;
    alarm(WAIT_SECONDS);
    /* A process is served in one mount. That of the kernel is another one. */
    warm();
    pthread_t threads[READERS + 1];
    for (long at = 0; at <= READERS; at++)
        must(pthread_create(threads + at, 0, at == READERS ? writer : reader, (void *)at) == 0, "start a thread");
    for (int at = 0; at <= READERS; at++)
        pthread_join(threads[at], 0);
    exit(0);
}

int main(int count, char **words)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count >= 3, "run without a command and a directory");
    root = words[2];
    if (strcmp(words[1], "prepare") == 0)
        return chmod(root, 0777) != 0;
    must(count >= 4 && getenv("KERNEL_FD") != 0, "run without a seed and another mount");
    kernel_fd = atoi(getenv("KERNEL_FD"));
    seed = strtoul(words[3], 0, 10);
    is_root = geteuid() == 0;
    long milliseconds = count > 4 ? atol(words[4]) : 4000;
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(shared != MAP_FAILED, "map");
    unsigned char *bytes = malloc(LENGTH_MAX);
    for (process = 0; process < PROCESSES; process++)
        for (int name = 0; name < NAMES; name++) {
            change(process * NAMES + name, 0, bytes);
            name_twice(process * NAMES + name);
        }
    pid_t children[PROCESSES];
    for (int at = 0; at < PROCESSES; at++) {
        children[at] = fork();
        if (children[at] == 0)
            work(at);
    }
    usleep(milliseconds * 1000);
    /* A busy machine takes longer for what shows anything. The children end after WAIT_SECONDS. */
    for (int waits = 0; waits < WAIT_SECONDS * 50; waits++) {
        if (shared->exact >= milliseconds && shared->reads >= PROCESSES * READS_MIN)
            break;
        usleep(10000);
    }
    shared->stop = 1;
    for (int at = 0; at < PROCESSES; at++) {
        int status;
        must(waitpid(children[at], &status, 0) == children[at], "wait");
        if (status != 0) {
            printf("process %d ended with %#x\n", at, status);
            shared->wrong++;
        }
    }
    long changes = 0;
    for (int at = 0; at < PROCESSES * NAMES; at++)
        changes += shared->names[at].done;
    printf("%ld wrong, of %ld reads, %ld of them between changes; %ld changes\n", shared->wrong, shared->reads,
           shared->exact, changes);
    return shared->wrong != 0 || shared->exact < milliseconds;
}
