/* Programs with small limits: the library makes calls of its own in them, for which the kernel must
 * not end the program, and the program's own calls must do what they do without the library.
 *   limits prepare DIR
 *   limits compare DIR     runs a program for each limit, prints which of them fail
 * A limit is set before the program is known to the fleet, or afterwards. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WARM 10000
#define FILES 100
#define LENGTH 50

struct limit {
    const char *name;
    int resource;
    unsigned long value;
};

/* Each lets a program make a file of LENGTH bytes, with one descriptor besides its three. */
static const struct limit LIMITS[] = {
    {"FSIZE", RLIMIT_FSIZE, 50},       {"FSIZE", RLIMIT_FSIZE, 51},
    {"FSIZE", RLIMIT_FSIZE, 1000},     {"FSIZE", RLIMIT_FSIZE, 4095},
    {"FSIZE", RLIMIT_FSIZE, 4096},     {"FSIZE", RLIMIT_FSIZE, 100000},
    {"NOFILE", RLIMIT_NOFILE, 4},      {"NOFILE", RLIMIT_NOFILE, 5},
    {"NOFILE", RLIMIT_NOFILE, 16},     {"NOFILE", RLIMIT_NOFILE, 63},
    {"NOFILE", RLIMIT_NOFILE, 64},     {"NOFILE", RLIMIT_NOFILE, 65},
    {"NOFILE", RLIMIT_NOFILE, 500},    {"AS", RLIMIT_AS, 64 << 20},
    {"STACK", RLIMIT_STACK, 16384},    {"STACK", RLIMIT_STACK, 65536},
    {"MEMLOCK", RLIMIT_MEMLOCK, 0},    {"MEMLOCK", RLIMIT_MEMLOCK, 4096},
    {"NPROC", RLIMIT_NPROC, 0},        {"NPROC", RLIMIT_NPROC, 1},
    {"DATA", RLIMIT_DATA, 1 << 20},    {"SIGPENDING", RLIMIT_SIGPENDING, 0},
    {"MSGQUEUE", RLIMIT_MSGQUEUE, 0},  {"CORE", RLIMIT_CORE, 0},
    {"RTPRIO", RLIMIT_RTPRIO, 0},      {"CPU", RLIMIT_CPU, 100},
};
#define LIMIT_COUNT (sizeof LIMITS / sizeof *LIMITS)

static const char *root;
static int failed;

static void check(int right, const char *what)
{
    if (!right && failed++ < 5)
        printf("%s: %s\n", what, strerror(errno));
}

static void set(const struct limit *limit)
{
    struct rlimit both = {limit->value, limit->value};
    check(setrlimit(limit->resource, &both) == 0, "setrlimit");
}

static void use_files(void)
{
    char path[256], bytes[LENGTH], got[LENGTH];
    memset(bytes, 'x', sizeof bytes);
    for (int at = 0; at < FILES; at++) {
        snprintf(path, sizeof path, "%s/l/%d-%d", root, getpid(), at % 8);
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
        check(fd >= 0, "open to write");
        check(write(fd, bytes, LENGTH) == LENGTH, "write");
        check(pread(fd, got, LENGTH, 0) == LENGTH && memcmp(got, bytes, LENGTH) == 0, "pread");
        check(close(fd) == 0, "close");
        fd = open(path, O_RDONLY);
        check(fd >= 0, "open to read");
        check(read(fd, got, LENGTH) == LENGTH && memcmp(got, bytes, LENGTH) == 0, "read");
        check(close(fd) == 0, "close");
    }
    for (int at = 0; at < 8; at++) {
        snprintf(path, sizeof path, "%s/l/%d-%d", root, getpid(), at);
        check(unlink(path) == 0, "unlink");
    }
}

static int with_limit(const struct limit *limit, int is_late)
{
    struct stat found;
    char path[256];
    if (!is_late)
        set(limit);
    snprintf(path, sizeof path, "%s/l", root);
    for (int at = 0; at < WARM; at++)
        check(stat(path, &found) == 0, "stat");
    if (is_late) {
        use_files();
        set(limit);
    }
    use_files();
    return failed != 0;
}

int main(int argc, char **argv)
{
    char path[256], at[16], late[16];
    int result = 0, status;
    if (argc < 3)
        return 2;
    root = argv[2];
    snprintf(path, sizeof path, "%s/l", root);
    if (strcmp(argv[1], "prepare") == 0)
        return mkdir(path, 0777) || chmod(path, 0777);
    if (strcmp(argv[1], "one") == 0 && argc > 4)
        return with_limit(&LIMITS[atoi(argv[3])], atoi(argv[4]));
    for (size_t run = 0; run < LIMIT_COUNT * 2; run++) {
        const struct limit *limit = &LIMITS[run / 2];
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            /* It has three descriptors only. */
            for (int fd = 3; fd < 32; fd++)
                close(fd);
            snprintf(at, sizeof at, "%zu", run / 2);
            snprintf(late, sizeof late, "%zu", run % 2);
            execl("/proc/self/exe", argv[0], "one", root, at, late, NULL);
            _exit(3);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
            printf("%s of %lu, set %s: ended with status %x\n", limit->name, limit->value,
                   run % 2 ? "late" : "early", status);
            result = 1;
        }
    }
    return result;
}
