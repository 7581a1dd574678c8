/* Files that threads open, use and close, while other threads make other calls, and threads and
 * other processes remove and replace the files. Each call on a descriptor that the program has must
 * succeed, and what was written must be there. No scene depends on time: the threads that open
 * files make a fixed number of them, and what disturbs them ends with them.
 *   threads_open prepare DIR
 *   threads_open compare DIR SEED COUNT     each scene with COUNT files, in a process of its own
 * With the name of a scene in ONLY, `compare` runs that one alone. Prints what fails. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WARM 40000
#define THREADS_MAX 4
/* One of so many files the kernel must have in the end, and one has lost its name when it is used.
 * They are few, or none would be served. */
#define HANDED_OVER 48
#define UNNAMED 64
/* A spawn takes as long as so many files. */
#define FILES_OF_A_SPAWN 50
#define SYNCED 96
#define LINES_MAX 20
#define RECORD 16

extern char **environ;
static const char *root, *scene_name;
static unsigned long seed;
static long count;
static atomic_long lines, failed, opened, spawned;
static atomic_int working;

enum call { OPEN, WRITE, PREAD, LSEEK, FSTAT, DUP, FCNTL, MMAP, FSYNC, CLOSE, SPAWN, OUTPUT, CALLS };
static const char *const NAMES[CALLS] = {"open",  "write", "pread", "lseek", "fstat", "dup",
                                         "fcntl", "mmap",  "fsync", "close", "spawn", "output"};
static atomic_long made[CALLS], failures[CALLS];

static void must(int right, const char *what)
{
    if (!right) {
        printf("seed %lu, %s: cannot %s: %s\n", seed, scene_name, what, strerror(errno));
        exit(2);
    }
}

static int check(int right, enum call call, const char *what)
{
    made[call]++;
    if (!right) {
        int number = errno;
        failures[call]++;
        failed++;
        if (lines++ < LINES_MAX)
            printf("seed %lu, %s: %s %s: %s\n", seed, scene_name, NAMES[call], what,
                   strerror(number));
    }
    return right;
}

static unsigned long below(unsigned long *state, unsigned long end)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state % end;
}

struct worker {
    int number;
    long files;
    unsigned long state;
};

static char *path_of(char *to, const char *name, int number)
{
    snprintf(to, 256, "%s/t/%s-%d", root, name, number);
    return to;
}

/* A call that only the kernel makes. The descriptor may be another file's kind, but it is open. */
static void hand_over(int fd, int flags, unsigned long chosen)
{
    if (chosen % 3 == 0) {
        int other = dup(fd);
        if (check(other >= 0, DUP, "of an open file"))
            check(close(other) == 0, CLOSE, "of a duplicate");
    } else if (chosen % 3 == 1) {
        int other = fcntl(fd, F_DUPFD_CLOEXEC, 100);
        if (check(other >= 100, FCNTL, "of an open file"))
            check(close(other) == 0, CLOSE, "of a duplicate");
    } else if ((flags & O_ACCMODE) == O_RDWR) {
        void *at = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
        if (check(at != MAP_FAILED, MMAP, "of an open file"))
            munmap(at, 1);
    }
}

/* Other bytes than those that were written: what is read again, and what the kernel reads. */
static void show_again(int fd, long at, const char *got, const char *record)
{
    char again[RECORD + 1] = "", kernels[RECORD + 1] = "";
    long length = pread(fd, again, RECORD, at);
    close(dup(fd));
    long of_kernel = pread(fd, kernels, RECORD, at);
    printf("\"%s\" instead of \"%s\" at %ld, then %ld bytes \"%s\", through the kernel %ld \"%s\"\n",
           got, record, at, length, again, of_kernel, kernels);
}

/* All that is done with one file. `is_own`: no other thread writes it. */
static void use(int fd, int flags, struct worker *worker, int is_own)
{
    char record[RECORD + 1], got[RECORD + 1] = "";
    struct stat found;
    long at = is_own || flags & O_APPEND ? 0 : worker->number * RECORD;
    int is_read = (flags & O_ACCMODE) != O_WRONLY, is_written = (flags & O_ACCMODE) != O_RDONLY;
    snprintf(record, sizeof record, "%1d:%13lx\n", worker->number, worker->state & 0xfffffffffffff);
    check(lseek(fd, at, SEEK_SET) == at, LSEEK, "of an open file");
    if (is_written)
        check(write(fd, record, RECORD) == RECORD, WRITE, "to an open file");
    if (is_read) {
        long length = pread(fd, got, RECORD, at);
        int is_right = length >= 0;
        if (is_written && is_right && (is_own || !(flags & O_APPEND)))
            is_right = length == RECORD && memcmp(got, record, RECORD) == 0;
        if (length >= 0 && !is_right)
            show_again(fd, at, got, record);
        check(is_right, PREAD, "of what was written");
    }
    check(fstat(fd, &found) == 0 && S_ISREG(found.st_mode), FSTAT, "of an open file");
    if (below(&worker->state, HANDED_OVER) == 0)
        hand_over(fd, flags, worker->state >> 20);
    if (is_written && below(&worker->state, SYNCED) == 0)
        check(fsync(fd) == 0, FSYNC, "of an open file");
    if (is_own && is_read && is_written) {
        memset(got, 0, sizeof got);
        check(pread(fd, got, RECORD, at) == RECORD && memcmp(got, record, RECORD) == 0, PREAD,
              "of what was written before a handover");
    }
}

/* `is_own`: no other thread opens it. Without O_CREAT, another one may have removed the name. */
static void open_and_use(const char *path, int flags, struct worker *worker, int is_own)
{
    int fd = open(path, flags | O_CLOEXEC, 0644);
    opened++;
    if (fd < 0 && !(flags & O_CREAT) && errno == ENOENT)
        return;
    if (!check(fd >= 0, OPEN, path))
        return;
    use(fd, flags, worker, is_own);
    check(close(fd) == 0, CLOSE, "of an open file");
}

/* Files that lose their names while they are open, a few of them before they are used. */
static void temporary(struct worker *worker)
{
    char path[256];
    int flags = O_RDWR | O_CREAT | O_EXCL;
    int fd = open(path_of(path, "tmp", worker->number), flags | O_CLOEXEC, 0600);
    opened++;
    if (!check(fd >= 0, OPEN, path))
        return;
    int is_last = below(&worker->state, UNNAMED) != 0;
    if (!is_last)
        must(unlink(path) == 0, "unlink");
    use(fd, flags, worker, 1);
    if (is_last)
        must(unlink(path) == 0, "unlink");
    check(close(fd) == 0, CLOSE, "of an open file");
}

static void one_name(struct worker *worker)
{
    static const int FLAGS[] = {O_RDWR | O_CREAT, O_WRONLY | O_CREAT, O_RDWR, O_RDONLY,
                                O_WRONLY | O_CREAT | O_APPEND, O_RDWR | O_CREAT};
    char path[256];
    int flags = FLAGS[below(&worker->state, 6)];
    open_and_use(path_of(path, "f", 0), flags, worker, 0);
}

/* Another name for each thread. The first one is removed. */
static void own_name(struct worker *worker)
{
    char path[256];
    open_and_use(path_of(path, "own", worker->number), O_RDWR | O_CREAT, worker, 1);
}

/* A program with a file as its output. Files in between keep the library from leaving all files to
 * the kernel. */
static void child(struct worker *worker)
{
    char path[256], got[32] = "", word[24], *arguments[] = {"/bin/echo", word, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status = -1;
    if (worker->files % FILES_OF_A_SPAWN != 0) {
        own_name(worker);
        return;
    }
    int flags = O_RDWR | O_CREAT | O_TRUNC | (worker->state & 4 ? O_CLOEXEC : 0);
    int fd = open(path_of(path, "out", worker->number), flags, 0644);
    opened++;
    spawned++;
    if (!check(fd >= 0, OPEN, path))
        return;
    snprintf(word, sizeof word, "%lx", worker->state);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    int result = posix_spawn(&pid, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    errno = result;
    if (check(result == 0, SPAWN, "with an open file")) {
        must(waitpid(pid, &status, 0) == pid, "wait");
        long length = pread(fd, got, sizeof got - 1, 0);
        int is_whole = length == (long)strlen(word) + 1 && memcmp(got, word, length - 1) == 0;
        check(status == 0 && is_whole, OUTPUT, "of a child");
    }
    check(close(fd) == 0, CLOSE, "of an open file");
}

static void sockets(long turn)
{
    (void)turn;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd >= 0, "make a socket");
    close(fd);
}

static void unlink_one(long turn)
{
    char path[256];
    (void)turn;
    unlink(path_of(path, "f", 0));
}

static void unlink_own(long turn)
{
    char path[256];
    unlink(path_of(path, turn % 2 ? "own" : "out", 0));
}

static void unlink_outputs(long turn)
{
    char path[256];
    unlink(path_of(path, "out", turn % THREADS_MAX));
}

static void make(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0)
        close(fd);
}

static void rename_over(long turn)
{
    char from[256], to[256];
    (void)turn;
    make(path_of(from, "g", 0));
    rename(from, path_of(to, "f", 0));
}

static void exchange(long turn)
{
    char one[256], other[256];
    make(path_of(one, "g", 0));
    renameat2(AT_FDCWD, one, AT_FDCWD, path_of(other, "f", 0), RENAME_EXCHANGE);
    if (turn % 8 == 0)
        unlink(other);
}

struct scene {
    const char *name;
    int threads;
    void (*work)(struct worker *);
    void (*disturb)(long turn);
    /* Whether another process does so, in place of another thread. */
    int is_apart;
};

static const struct scene SCENES[] = {
    {"sockets", 1, temporary, sockets, 0},
    {"sockets_apart", 2, temporary, sockets, 1},
    {"unlinked", 2, one_name, unlink_one, 1},
    {"unlinked_by_thread", 2, one_name, unlink_one, 0},
    {"other_files", 2, own_name, unlink_own, 1},
    {"other_files_by_thread", 2, own_name, unlink_own, 0},
    {"renamed_over", 2, one_name, rename_over, 1},
    {"renamed_over_by_thread", 2, one_name, rename_over, 0},
    {"exchanged", 2, one_name, exchange, 1},
    {"exchanged_by_thread", 2, one_name, exchange, 0},
    {"spawned", 3, child, unlink_outputs, 1},
    {"spawned_by_thread", 3, child, unlink_outputs, 0},
};
#define SCENE_COUNT (sizeof SCENES / sizeof *SCENES)

static const struct scene *scene;

static void *work(void *argument)
{
    struct worker *worker = argument;
    for (; worker->files > 0; worker->files--) {
        below(&worker->state, 2);
        scene->work(worker);
    }
    working--;
    return NULL;
}

static void *disturb(void *argument)
{
    (void)argument;
    for (long turn = 0; working > 0; turn++)
        scene->disturb(turn);
    return NULL;
}

/* Ends when its parent closes the pipe. */
static pid_t disturb_apart(int pipe_to[2])
{
    must(pipe2(pipe_to, O_CLOEXEC) == 0, "make a pipe");
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        char none;
        close(pipe_to[1]);
        fcntl(pipe_to[0], F_SETFL, O_NONBLOCK);
        for (long turn = 0; read(pipe_to[0], &none, 1) < 0; turn++)
            scene->disturb(turn);
        _exit(0);
    }
    close(pipe_to[0]);
    return pid;
}

static void warm(void)
{
    struct stat found;
    char path[256];
    snprintf(path, sizeof path, "%s/t", root);
    for (long at = 0; at < WARM; at++)
        must(stat(path, &found) == 0, "stat");
}

static int run(void)
{
    pthread_t threads[THREADS_MAX], disturber;
    struct worker workers[THREADS_MAX];
    int pipe_to[2] = {-1, -1}, status;
    pid_t apart = scene->is_apart ? disturb_apart(pipe_to) : 0;
    warm();
    working = scene->threads;
    for (int at = 0; at < scene->threads; at++) {
        workers[at].number = at;
        workers[at].files = count / scene->threads;
        workers[at].state = (seed + 1) * 0x9e3779b97f4a7c15 ^ (at + 1) * 0x2545f491;
        must(pthread_create(&threads[at], NULL, work, &workers[at]) == 0, "make a thread");
    }
    if (!apart)
        must(pthread_create(&disturber, NULL, disturb, NULL) == 0, "make a thread");
    for (int at = 0; at < scene->threads; at++)
        pthread_join(threads[at], NULL);
    if (apart) {
        close(pipe_to[1]);
        must(waitpid(apart, &status, 0) == apart && status == 0, "end the other process");
    } else {
        pthread_join(disturber, NULL);
    }
    if (failed || getenv("COUNTS")) {
        printf("%s: %ld files, %ld spawns, %ld failed:", scene->name, opened, spawned, failed);
        for (int at = 0; at < CALLS; at++)
            if (made[at])
                printf(" %s %ld/%ld", NAMES[at], failures[at], made[at]);
        printf("\n");
    }
    return failed != 0;
}

/* The scene runs as a program of its own, so that it begins as one that is not known. */
static int run_in_child(const char *program, char **arguments, const char *name)
{
    int status;
    fflush(stdout);
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        execl(program, program, "scene", arguments[2], arguments[3], arguments[4], name, NULL);
        _exit(3);
    }
    must(waitpid(pid, &status, 0) == pid, "wait");
    if (status != 0 && status != 1 << 8)
        printf("%s: ended with status %x\n", name, status);
    return status != 0;
}

int main(int argc, char **argv)
{
    char path[256];
    if (argc < 3)
        return 2;
    scene_name = argv[1];
    root = argv[2];
    snprintf(path, sizeof path, "%s/t", root);
    if (strcmp(argv[1], "prepare") == 0) {
        must(mkdir(path, 0777) == 0 && chmod(path, 0777) == 0, path);
        return 0;
    }
    if (argc < 5)
        return 2;
    seed = strtoul(argv[3], NULL, 10);
    count = atol(argv[4]);
    if (strcmp(argv[1], "compare") == 0) {
        const char *only = getenv("ONLY");
        int result = 0;
        for (size_t at = 0; at < SCENE_COUNT; at++)
            if (!only || strcmp(only, SCENES[at].name) == 0)
                result |= run_in_child("/proc/self/exe", argv, SCENES[at].name);
        return result;
    }
    for (size_t at = 0; at < SCENE_COUNT && argc > 5; at++)
        if (strcmp(argv[5], SCENES[at].name) == 0)
            scene = &SCENES[at];
    must(scene != NULL, "find a scene");
    scene_name = scene->name;
    return run();
}
