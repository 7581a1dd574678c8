/* Threads that change their own ids or capabilities by the kernel's calls, which concern one thread,
 * while another thread of the process uses files all the time: what each of them makes is its own,
 * and each may do what its own ids allow.
 *   ids prepare DIR
 *   ids compare DIR SEED COUNT     COUNT processes for each call of the family, prints what differs
 * The change comes after as many calls of the other thread as are drawn: before the process is known
 * to the fleet, while it is being admitted, and afterwards. Needs root. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OTHER 54321
#define BEFORE_MAX 12000
#define AFTER 3000
#define ROUNDS 300

static const char *root;
static unsigned long seed, random_state;
static long before, kind;
static atomic_long calls, failed;
static atomic_int changed;

static unsigned long below(unsigned long end)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % end;
}

enum { SETUID, SETREUID, SETRESUID, SETFSUID, SETGID, SETREGID, SETRESGID, SETFSGID, CAPSET, KINDS };
static const char *const NAMES[KINDS] = {"setuid",   "setreuid",  "setresuid", "setfsuid", "setgid",
                                         "setregid", "setresgid", "setfsgid",  "capset"};

static void check(int right, const char *what)
{
    if (!right && failed++ < 3)
        printf("seed %lu, %s after %ld calls: %s: %s\n", seed, NAMES[kind], before, what,
               strerror(errno));
}

static void change(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2];
    memset(none, 0, sizeof none);
    long result = 0;
    switch (kind) {
    case SETUID: result = syscall(SYS_setuid, OTHER); break;
    case SETREUID: result = syscall(SYS_setreuid, OTHER, OTHER); break;
    case SETRESUID: result = syscall(SYS_setresuid, OTHER, OTHER, OTHER); break;
    case SETFSUID: syscall(SYS_setfsuid, OTHER); break;
    case SETGID: result = syscall(SYS_setgid, OTHER); break;
    case SETREGID: result = syscall(SYS_setregid, OTHER, OTHER); break;
    case SETRESGID: result = syscall(SYS_setresgid, OTHER, OTHER, OTHER); break;
    case SETFSGID: syscall(SYS_setfsgid, OTHER); break;
    case CAPSET: result = syscall(SYS_capset, &header, none); break;
    }
    check(result == 0, "the change");
}

/* A program that has dropped rights must not have the memory by which it used the fleet. */
static int has_segments(void)
{
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps)
        return 1;
    while (fgets(line, sizeof line, maps))
        found += strstr(line, "/memfd:warren-") && strchr(line, ' ')[4] == 's';
    fclose(maps);
    return found;
}

/* A file that a thread makes belongs to the ids that it has. */
static void make(const char *name, unsigned uid, unsigned gid)
{
    char path[256];
    struct stat found;
    snprintf(path, sizeof path, "%s/i/%s-%d", root, name, getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    check(fd >= 0, "open of a new file");
    if (fd < 0)
        return;
    check(fstat(fd, &found) == 0 && found.st_uid == uid && found.st_gid == gid, "its owner");
    check(write(fd, "x", 1) == 1, "write");
    check(close(fd) == 0, "close");
    check(chmod(path, 0600) == 0, "chmod of an own file");
    check(unlink(path) == 0, "unlink");
}

static void *change_and_use(void *argument)
{
    char path[256];
    struct stat found;
    (void)argument;
    snprintf(path, sizeof path, "%s/closed/file", root);
    check(stat(path, &found) == 0 && access(path, R_OK) == 0, "stat before the change");
    while (calls < before)
        sched_yield();
    change();
    changed = 1;
    errno = 0;
    check(!has_segments(), "no segments of the fleet");
    int is_user = kind <= SETFSUID, is_group = kind >= SETGID && kind <= SETFSGID;
    for (long at = 0; at < ROUNDS; at++) {
        make("a", is_user ? OTHER : 0, is_group ? OTHER : 0);
        /* Ids of groups take no right from root. */
        int may = is_group, got = stat(path, &found);
        check(may ? got == 0 : got < 0 && errno == EACCES, "stat behind a closed directory");
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        check(may ? fd >= 0 : fd < 0 && errno == EACCES, "open behind a closed directory");
        if (fd >= 0)
            close(fd);
    }
    return NULL;
}

static int one(void)
{
    char path[256];
    struct stat found;
    pthread_t thread;
    int fd;
    pthread_create(&thread, NULL, change_and_use, NULL);
    snprintf(path, sizeof path, "%s/closed/file", root);
    for (long after = 0; after < AFTER; after += changed) {
        check(stat(path, &found) == 0, "stat by the other thread");
        calls++;
        if (calls % 64 == 0) {
            make("b", 0, 0);
            fd = open(path, O_RDONLY | O_CLOEXEC);
            check(fd >= 0, "open by the other thread");
            close(fd);
        }
    }
    pthread_join(thread, NULL);
    return failed != 0;
}

int main(int argc, char **argv)
{
    char path[256], words[2][24];
    int result = 0, status;
    if (argc < 3)
        return 2;
    root = argv[2];
    if (strcmp(argv[1], "prepare") == 0) {
        snprintf(path, sizeof path, "%s/i", root);
        result = mkdir(path, 0777) || chmod(path, 0777);
        snprintf(path, sizeof path, "%s/closed", root);
        result |= mkdir(path, 0700) || chown(path, OTHER + 1, OTHER + 1);
        snprintf(path, sizeof path, "%s/closed/file", root);
        int fd = open(path, O_RDWR | O_CREAT, 0644);
        return result || fd < 0;
    }
    seed = strtoul(argv[3], NULL, 10);
    if (strcmp(argv[1], "one") == 0 && argc > 5) {
        kind = atol(argv[4]);
        before = atol(argv[5]);
        return one();
    }
    random_state = seed * 0x9e3779b97f4a7c15 + 1;
    for (long run = 0; run < KINDS * atol(argv[4]); run++) {
        snprintf(words[0], sizeof words[0], "%ld", run % KINDS);
        snprintf(words[1], sizeof words[1], "%lu", below(BEFORE_MAX));
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            execl("/proc/self/exe", argv[0], "one", root, argv[3], words[0], words[1], NULL);
            _exit(3);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
            printf("%s after %s calls: ended with status %x\n", NAMES[run % KINDS], words[1],
                   status);
            result = 1;
        }
    }
    return result;
}
