/* Files that stay open without the kernel while children of `vfork` run, and what those do with
 * them. Each answer is compared with what POSIX says of one open file in two processes.
 *   vforked prepare DIR          makes a directory
 *   vforked compare DIR SEED     runs each scene in a process of its own, prints what differs
 * A process that looks from outside says which descriptors the kernel has. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LINES_MAX 40
#define LENGTH_MAX (1 << 16)

extern char **environ;
static const char *root, *scene = "start";
static int question[2], answer[2], is_known;
static long compared, differing, still_served;
static unsigned long random_state;

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
        printf("%s: cannot %s: %s\n", scene, what, strerror(errno));
        exit(2);
    }
}

static void check(int right, const char *what, long number)
{
    compared++;
    if (!right && differing++ < LINES_MAX)
        printf("%s: %s (%ld) differs: %s\n", scene, what, number, strerror(errno));
}

static const char *path_of(const char *name)
{
    static char paths[4][1024];
    static int at;
    char *path = paths[at++ % 4];
    snprintf(path, 1024, "%s/v/%s", root, name);
    return path;
}

/* Is told the numbers of descriptors of its parent. */
static void watch(void)
{
    int fd;
    while (read(question[0], &fd, sizeof fd) == sizeof fd) {
        char path[64], target[64] = "";
        snprintf(path, sizeof path, "/proc/%d/fd/%d", getppid(), fd);
        char is_served = readlink(path, target, 63) > 0 && strncmp(target, "socket:", 7) == 0;
        if (write(answer[1], &is_served, 1) != 1)
            break;
    }
    _exit(0);
}

static int is_served(int fd)
{
    char is;
    must(write(question[1], &fd, sizeof fd) == sizeof fd, "ask");
    must(read(answer[0], &is, 1) == 1, "get an answer");
    return is;
}

static void expect(int fd, int served, const char *what)
{
    check(is_served(fd) == served, what, fd);
}

static void warm(void)
{
    struct stat found;
    for (int at = 0; at < 6000; at++)
        must(stat(path_of(""), &found) == 0, "stat");
    /* The first use of a file that is read is the kernel's. */
    close(open(path_of("warm"), O_CREAT | O_WRONLY, 0644));
    close(open(path_of("warm"), O_RDONLY));
    is_known = 1;
}

/* A handover costs as much as many opens that are served: these make up for those before, so that
 * the next file is served. */
static void make_up(void)
{
    for (int n = 0; n < 80; n++)
        close(open(path_of("warm"), O_RDONLY | O_CLOEXEC));
}

/* A file, which is served if the process is known to the fleet. */
static int make(const char *name, int flags)
{
    if (is_known)
        make_up();
    int fd = open(path_of(name), flags | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    must(fd >= 0, name);
    if (is_known)
        expect(fd, 1, "a new file is served");
    return fd;
}

static void holds(const char *name, const char *expected)
{
    static char got[LENGTH_MAX];
    int fd = open(path_of(name), O_RDONLY | O_CLOEXEC);
    long length = read(fd, got, sizeof got - 1);
    got[length < 0 ? 0 : length] = 0;
    check(strcmp(got, expected) == 0, name, length);
    if (strcmp(got, expected) != 0 && differing < 4)
        printf("%s holds \"%.200s\", not \"%.200s\"\n", name, got, expected);
    close(fd);
}

/* The same with a number that is closed first, because there is no other. */
static void holds_full(const char *name, const char *expected, int number)
{
    close(number);
    holds(name, expected);
}

static void put(int fd, const char *text)
{
    check(write(fd, text, strlen(text)) == (long)strlen(text), "write", fd);
}

static void at_offset(int fd, long offset)
{
    long is = lseek(fd, 0, SEEK_CUR);
    check(is == offset, "offset", is);
}

static void ended(pid_t child)
{
    int status = -1;
    must(waitpid(child, &status, 0) == child, "wait");
    check(status == 0, "a child", status);
}

/* A shell with the descriptor as its own number `as`, or only with what it inherits. */
static void shell(const char *script, int fd, int as)
{
    posix_spawn_file_actions_t actions;
    char *words[] = {"sh", "-c", (char *)script, 0};
    pid_t child;
    posix_spawn_file_actions_init(&actions);
    if (as >= 0)
        posix_spawn_file_actions_adddup2(&actions, fd, as);
    int failed = posix_spawn(&child, "/bin/sh", &actions, 0, words, environ);
    check(failed == 0, "posix_spawn", failed);
    posix_spawn_file_actions_destroy(&actions);
    if (!failed)
        ended(child);
}

/* A file of ten lines that this process has written, for reading. */
static int open_lines(void)
{
    char line[16];
    int fd = make("lines", O_WRONLY);
    for (int at = 0; at < 10; at++) {
        snprintf(line, sizeof line, "line %d\n", at);
        put(fd, line);
    }
    close(fd);
    fd = open(path_of("lines"), O_RDONLY | O_CLOEXEC);
    must(fd >= 0, "open the lines");
    return fd;
}

/* Children that use none of the files. */
static void unused(void)
{
    int written = make("unused", O_RDWR), read_ = open_lines();
    char byte;
    put(written, "first\n");
    check(read(read_, &byte, 1) == 1 && byte == 'l', "read", byte);
    for (int at = 0; at < 20; at++) {
        shell(":", -1, -1);
        put(written, "more\n");
        check(read(read_, &byte, 1) == 1, "read", byte);
    }
    at_offset(written, 106);
    at_offset(read_, 21);
    expect(written, 1, "a file that a child has not used is served");
    expect(read_, 1, "a file that was read is served");
    pid_t child = vfork();
    if (child == 0)
        _exit(close(written) == 0 && close(read_) == 0 ? 0 : 1);
    ended(child);
    child = vfork();
    if (child == 0) {
        /* Another file under the same number. */
        close(written);
        int other = open(path_of("other"), O_CREAT | O_WRONLY, 0644);
        int is_right = other == written && write(other, "other\n", 6) == 6;
        _exit(is_right && fcntl(read_, F_GETFD) == FD_CLOEXEC ? 0 : 1);
    }
    ended(child);
    holds("other", "other\n");
    put(written, "end\n");
    at_offset(written, 110);
    expect(written, 1, "a file that children have closed is served");
    close(written);
    close(read_);
}

/* Output of several children and of the parent, by one open file. */
static void output(void)
{
    for (int appends = 0; appends < 2; appends++) {
        int fd = make("output", O_WRONLY | (appends ? O_APPEND : 0));
        put(fd, "parent 1\n");
        shell("echo child 1", fd, 1);
        at_offset(fd, 17);
        put(fd, "parent 2\n");
        shell("echo child 2; echo child 3", fd, 1);
        put(fd, "parent 3\n");
        holds("output", "parent 1\nchild 1\nparent 2\nchild 2\nchild 3\nparent 3\n");
        close(fd);
    }
}

/* A child that reads a line of the parent's input. */
static void input(void)
{
    int fd = open_lines();
    char line[16] = "";
    check(read(fd, line, 7) == 7 && strcmp(line, "line 0\n") == 0, "read", 0);
    shell("read -r line; test \"$line\" = 'line 1'", fd, 0);
    check(read(fd, line, 7) == 7 && strcmp(line, "line 2\n") == 0, line, 0);
    shell("read -r line; test \"$line\" = 'line 3'", fd, 0);
    at_offset(fd, 28);
    close(fd);
}

/* What a child of `vfork` does before it starts a program. */
static void beforehand(void)
{
    int fd = make("beforehand", O_RDWR), mapped = make("mapped", O_RDWR);
    char script[64];
    put(fd, "one\n");
    put(mapped, "mapped\n");
    snprintf(script, sizeof script, "echo two >&%d", fd);
    char *words[] = {"sh", "-c", script, 0};
    pid_t child = vfork();
    if (child == 0) {
        fcntl(fd, F_SETFD, 0);
        execv("/bin/sh", words);
        _exit(9);
    }
    ended(child);
    check(fcntl(fd, F_GETFD) == FD_CLOEXEC, "F_GETFD", fcntl(fd, F_GETFD));
    put(fd, "three\n");
    child = vfork();
    if (child == 0) {
        char *bytes = mmap(0, 7, PROT_READ, MAP_SHARED, mapped, 0);
        struct stat found;
        int is_right = bytes != MAP_FAILED && memcmp(bytes, "mapped\n", 7) == 0 &&
                       fstat(mapped, &found) == 0 && found.st_size == 7 && write(fd, "four\n", 5) == 5;
        _exit(!is_right);
    }
    ended(child);
    put(fd, "five\n");
    put(mapped, "more\n");
    holds("beforehand", "one\ntwo\nthree\nfour\nfive\n");
    holds("mapped", "mapped\nmore\n");
    close(fd);
    close(mapped);
}

/* By `/proc`: another open file, with an offset of its own; also by a list of descriptors. */
static void by_proc(void)
{
    for (int by_list = 0; by_list < 2; by_list++) {
        int fd = make("by-proc", O_WRONLY);
        char path[64];
        put(fd, "0123456789");
        snprintf(path, sizeof path, by_list ? "%d" : "/proc/self/fd/%d", fd);
        pid_t child = vfork();
        if (child == 0) {
            int list = by_list ? open("/proc/self/fd", O_RDONLY | O_DIRECTORY) : AT_FDCWD;
            int other = openat(list, path, O_WRONLY);
            _exit(other < 0 || write(other, "ab", 2) != 2);
        }
        ended(child);
        at_offset(fd, 10);
        put(fd, "c");
        holds("by-proc", "ab23456789c");
        close(fd);
    }
}

/* A child of the child, which has a copy of its memory, and outlives it. */
static void grandchildren(void)
{
    int fd = make("grand", O_WRONLY), nameless = make("nameless", O_RDWR), ready[2];
    char byte;
    put(fd, "parent\n");
    put(nameless, "parent\n");
    must(unlink(path_of("nameless")) == 0 && pipe(ready) == 0, "unlink");
    pid_t child = vfork();
    if (child == 0) {
        if (fork() == 0) {
            int is_right = read(ready[0], &byte, 1) == 1 && write(fd, "grandchild\n", 11) == 11 &&
                           write(nameless, "grandchild\n", 11) == 11;
            _exit(!is_right || write(ready[1], "b", 1) != 1);
        }
        _exit(0);
    }
    ended(child);
    put(fd, "parent again\n");
    put(nameless, "parent again\n");
    must(write(ready[1], "a", 1) == 1, "write");
    do
        must(read(ready[0], &byte, 1) == 1, "read");
    while (byte != 'b' && write(ready[1], &byte, 1) == 1);
    at_offset(fd, 31);
    at_offset(nameless, 31);
    put(fd, "end\n");
    holds("grand", "parent\nparent again\ngrandchild\nend\n");
    close(fd);
    close(nameless);
    close(ready[0]);
    close(ready[1]);
}

/* Ends a helper, which has descriptors of the mount until it is gone. */
static void end(pid_t helper)
{
    must(kill(helper, SIGKILL) == 0 && waitpid(helper, 0, 0) == helper, "end a helper");
}

/* Kills the process whose number it finds, a little later. */
static void kill_them(volatile pid_t *victim)
{
    for (;;) {
        while (*victim == 0)
            usleep(1);
        for (volatile long left = below(100000); left > 0; left--)
            ;
        /* The next one is entered as soon as this one is dead. */
        pid_t found = *victim;
        *victim = 0;
        kill(found, SIGKILL);
    }
}

/* Children that are killed, perhaps while they take the file. */
static void killed(void)
{
    static char expected[LENGTH_MAX];
    volatile pid_t *victim = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t killer = fork();
    if (killer == 0)
        kill_them(victim);
    int fd = make("killed", O_RDWR), status;
    for (long at = 0; at < 400; at++) {
        pid_t child = vfork();
        if (child == 0) {
            *victim = getpid();
            lseek(fd, 0, SEEK_CUR);
            for (;;)
                pause();
        }
        must(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "wait");
        still_served += is_served(fd);
        at_offset(fd, at);
        put(fd, "x");
        expected[at] = 'x';
        close(fd);
        holds("killed", expected);
        fd = open(path_of("killed"), O_RDWR | O_CLOEXEC);
        must(lseek(fd, 0, SEEK_END) == at + 1, "lseek");
        make_up();
    }
    close(fd);
    end(killer);
    printf("%ld files were served after a kill\n", still_served);
}

/* What is about to be adopted stays so over children that do not use it. */
static void pending(void)
{
    int fds[3] = {make("pending-0", O_WRONLY), make("pending-1", O_WRONLY),
                  make("pending-2", O_WRONLY)};
    fcntl(fds[2], F_SETFD, 0);
    for (int at = 0; at < 3; at++)
        shell(":", -1, -1);
    shell("echo child", fds[1], 1);
    for (int round = 0; round < 400; round++)
        for (int at = 0; at < 3; at++)
            check(pwrite(fds[at], "0123456789", 10, 10 * (round % 100)) == 10, "pwrite", at);
    warm();
    for (int round = 0; round < 400; round++)
        for (int at = 0; at < 3; at++)
            check(pwrite(fds[at], "0123456789", 10, 10 * (round % 100)) == 10, "pwrite", at);
    expect(fds[0], 1, "a file that was opened before children is adopted");
    expect(fds[1], 0, "a file that a child had as its output is the kernel's");
    expect(fds[2], 0, "a file that children inherit is the kernel's");
    at_offset(fds[1], 6);
    for (int at = 0; at < 3; at++)
        close(fds[at]);
}

/* The file descriptor is the child's output in each of these ways, after it has given something up. */
static void gives_up(int way, int fd)
{
    struct rlimit none = {fd + 1, fd + 1};
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    int pair[2];
    switch (way) {
    case 0:
        close_range(fd + 1, ~0u, 0);
        break;
    case 1:
        for (int other = fd + 1; other < 1100; other++)
            close(other);
        break;
    case 2:
        socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
        for (int other = 490; other < 520; other++)
            dup2(pair[0], other);
        break;
    case 3:
        /* Of this process alone: `setuid` of the C library is for all threads. */
        if (getuid() == 0)
            syscall(SYS_setresuid, 65534, 65534, 65534);
        break;
    case 4:
        setrlimit(RLIMIT_NOFILE, &none);
        break;
    case 5:
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
        break;
    }
}

static void given_up(void)
{
    for (int uses = 0; uses < 2; uses++)
        for (int way = 0; way < 6; way++) {
            int fd = make("given-up", O_RDWR);
            put(fd, "one\n");
            pid_t child = vfork();
            if (child == 0) {
                gives_up(way, fd);
                _exit(uses && write(fd, "child\n", 6) != 6);
            }
            ended(child);
            put(fd, "two\n");
            at_offset(fd, uses ? 14 : 8);
            pid_t copy = fork();
            if (copy == 0)
                _exit(write(fd, "copy\n", 5) != 5);
            ended(copy);
            holds("given-up", uses ? "one\nchild\ntwo\ncopy\n" : "one\ntwo\ncopy\n");
            close(fd);
        }
}

/* The parent has no number left for what a child sends, and its limit is below the file's. */
static void full(void)
{
    struct rlimit before, less;
    int fd = make("full", O_WRONLY), last = -1, first = -1, other;
    must(getrlimit(RLIMIT_NOFILE, &before) == 0, "get the limit");
    put(fd, "one\n");
    shell(":", -1, -1);
    less = before;
    less.rlim_cur = 600;
    must(setrlimit(RLIMIT_NOFILE, &less) == 0, "set the limit");
    while ((other = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        first = first < 0 ? other : first, last = other;
    pid_t child = vfork();
    if (child == 0) {
        close(last);
        _exit(dup2(fd, 1) != 1 || write(1, "child\n", 6) != 6);
    }
    ended(child);
    put(fd, "two\n");
    at_offset(fd, 14);
    holds_full("full", "one\nchild\ntwo\n", last);
    for (other = first; other <= last; other++)
        close(other);
    close(fd);
    fd = make("full", O_WRONLY);
    put(fd, "one\n");
    less.rlim_cur = fd;
    must(setrlimit(RLIMIT_NOFILE, &less) == 0, "set the limit below the file");
    child = vfork();
    if (child == 0)
        _exit(write(fd, "child\n", 6) != 6);
    ended(child);
    put(fd, "two\n");
    must(setrlimit(RLIMIT_NOFILE, &before) == 0, "set the limit again");
    holds("full", "one\nchild\ntwo\n");
    close(fd);
}

/* What a child has opened or put under a number is not the parent's, whose own file there may be
 * shared with others. The parent is not known to the fleet yet. */
static void of_child(void)
{
    int fd = make("shared", O_WRONLY), again = dup(fd);
    pid_t child = vfork();
    if (child == 0) {
        close(fd);
        int other = open(path_of("of-child"), O_WRONLY | O_CREAT, 0644);
        _exit(other != fd);
    }
    ended(child);
    static char expected[LENGTH_MAX];
    long length = 0;
    for (int at = 0; at < 900; at++) {
        char line[32];
        sprintf(line, "line %d\n", at);
        put(at % 2 ? again : fd, line);
        length += sprintf(expected + length, "%s", line);
    }
    holds("shared", expected);
    close(fd);
    close(again);
}

/* Many files, which a child takes all. */
static void many(void)
{
    static int fds[300];
    char name[32];
    for (int at = 0; at < 300; at++) {
        snprintf(name, sizeof name, "many-%d", at);
        fds[at] = make(name, O_WRONLY);
        put(fds[at], "parent\n");
    }
    pid_t child = vfork();
    if (child == 0) {
        int failed = 0;
        for (int at = 0; at < 300; at++)
            failed |= write(fds[at], "child\n", 6) != 6;
        _exit(failed);
    }
    ended(child);
    for (int at = 0; at < 300; at++) {
        put(fds[at], "parent\n");
        close(fds[at]);
        snprintf(name, sizeof name, "many-%d", at);
        if (at % 30 == 0)
            holds(name, "parent\nchild\nparent\n");
    }
}

static int handled;
static volatile long handlers;

static void on_alarm(int signal)
{
    char byte;
    if (vfork() == 0) {
        lseek(handled, 0, SEEK_CUR);
        _exit(pread(handled, &byte, 1, 0) != 1);
    }
    handlers++;
}

/* A handler that makes a child which takes the file of the call that it has interrupted. */
static void in_handler(void)
{
    /* Each alarm is set by a round of the loop, which so goes on however slow a handler is. */
    struct itimerval once = {{0, 0}, {0, 700}}, never = {{0, 0}, {0, 0}};
    signal(SIGCHLD, SIG_IGN);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    for (int round = 0; round < 20; round++) {
        handled = make("handled", O_RDWR);
        put(handled, "0123456789");
        must(sigaction(SIGALRM, &action, 0) == 0, "set a handler");
        for (long at = 0, seen = -1, until = handlers + 5; handlers < until; at++) {
            char byte = 0;
            if (seen != handlers) {
                seen = handlers;
                must(setitimer(ITIMER_REAL, &once, 0) == 0, "set");
            }
            check(pread(handled, &byte, 1, at % 10) == 1 && byte == '0' + at % 10, "pread", at);
            check(lseek(handled, at % 10, SEEK_SET) == at % 10, "lseek", at);
            check(read(handled, &byte, 1) == 1 && byte == '0' + at % 10, "read", byte);
        }
        must(setitimer(ITIMER_REAL, &never, 0) == 0, "stop");
        close(handled);
    }
    signal(SIGCHLD, SIG_DFL);
}

/* Pages of this process that are in memory. */
static long resident(void)
{
    long size, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    must(file && fscanf(file, "%ld %ld", &size, &pages) == 2, "read statm");
    fclose(file);
    return pages;
}

/* Children with another environment leave nothing in this process. */
static void left(void)
{
    char *words[] = {"true", 0}, *environment[] = {"A=b", 0};
    long before = 0;
    for (int at = 0; at < 220; at++) {
        pid_t child;
        if (at == 20)
            before = resident();
        must(posix_spawn(&child, "/bin/true", 0, 0, words, environment) == 0, "spawn");
        ended(child);
    }
    check(resident() < before + 100, "pages", resident() - before);
}

static const struct {
    const char *name;
    void (*run)(void);
    int is_cold;
} scenes[] = {
    {"unused", unused, 0}, {"output", output, 0}, {"input", input, 0},
    {"beforehand", beforehand, 0}, {"by_proc", by_proc, 0}, {"grandchildren", grandchildren, 0},
    {"killed", killed, 0}, {"pending", pending, 1}, {"given_up", given_up, 0}, {"full", full, 0},
    {"of_child", of_child, 1}, {"many", many, 0}, {"in_handler", in_handler, 0}, {"left", left, 0},
};

static int run(unsigned at)
{
    int status;
    scene = scenes[at].name;
    pid_t process = fork();
    must(process >= 0, "fork");
    if (process == 0) {
        must(pipe(question) == 0 && pipe(answer) == 0, "pipe");
        pid_t watcher = fork();
        if (watcher == 0)
            watch();
        if (!scenes[at].is_cold)
            warm();
        scenes[at].run();
        end(watcher);
        exit(differing != 0);
    }
    must(waitpid(process, &status, 0) == process, "wait");
    return status;
}

int main(int count, char **words)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count >= 3, "run without a command and a directory");
    root = words[2];
    if (strcmp(words[1], "prepare") == 0) {
        umask(0);
        must(mkdir(path_of(""), 0777) == 0, "mkdir");
        return 0;
    }
    random_state = (count > 3 ? strtoul(words[3], 0, 0) : 1) * 2 + 1;
    int failed = 0;
    for (unsigned at = 0; at < sizeof scenes / sizeof *scenes; at++) {
        int status = run(at);
        if (status != 0)
            printf("%s ended with %#x\n", scenes[at].name, status);
        failed |= status != 0;
    }
    return failed;
}
