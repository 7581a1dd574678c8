/* Signals come to a program with one thread while its calls are served: another process sends
 * numbers with them as fast as they are taken, and a timer interrupts. Handlers run only between
 * calls, whatever the calls do: they make calls of their own, and jump out. No signal is lost, none
 * comes twice, and all come in their order, with what was sent with them.
 *   signals prepare DIR
 *   signals compare DIR     prints what is wrong */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define WARM 20000
#define SENT 20000
#define AHEAD 20
#define NAMES 8
#define NUMBERED (SIGRTMIN + 3)

static const char *root;
static char paths[3][1024];
static int numbers_fd = -1;
/* What the sender has sent, what has come, and whether the parent knows the sender. */
static volatile long *sent, *taken, *begun;
static volatile long wrong, wrong_at, ticks;
static volatile sig_atomic_t may_jump;
static sigjmp_buf back;
static pid_t sender;

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        _exit(2);
    }
}

#define WRONG_IF(condition) note_wrong(condition, __LINE__)

static void note_wrong(int is_wrong, int line)
{
    if (is_wrong && wrong++ == 0)
        wrong_at = line;
}

static const char *path_of(int room, const char *kind, long number)
{
    snprintf(paths[room], sizeof paths[room], "%s/signals/%s-%ld", root, kind, number);
    return paths[room];
}

/* Makes, writes, reads, renames and removes a file. Every call has to succeed. */
static void use_file(int room, const char *kind, long number)
{
    char text[64], found[64];
    int length = snprintf(text, sizeof text, "%s %ld", kind, number);
    const char *path = path_of(room, kind, number % NAMES);
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    WRONG_IF(fd < 0 || write(fd, text, length) != length);
    WRONG_IF(pread(fd, found, sizeof found, 0) != length || memcmp(text, found, length) != 0);
    WRONG_IF(close(fd) != 0 || chmod(path, 0640) != 0);
    struct stat seen;
    WRONG_IF(stat(path, &seen) != 0 || seen.st_size != length || (seen.st_mode & 07777) != 0640);
    WRONG_IF(unlink(path) != 0 || access(path, F_OK) != -1 || errno != ENOENT);
}

/* Appends the number that came with the signal, by a file that is served. */
static void on_number(int signal, siginfo_t *info, void *context)
{
    int before = errno;
    long number = info->si_value.sival_int;
    (void)context;
    WRONG_IF(signal != NUMBERED || info->si_code != SI_QUEUE || info->si_pid != sender);
    WRONG_IF(write(numbers_fd, &number, sizeof number) != sizeof number);
    if (number % 16 == 0)
        use_file(1, "handler", number);
    *taken = number + 1;
    errno = before;
    if (may_jump && number % 64 == 1)
        siglongjmp(back, 1);
}

static void on_tick(int signal)
{
    struct stat found;
    int before = errno;
    WRONG_IF(signal != SIGALRM || stat(root, &found) != 0);
    ticks++;
    errno = before;
}

static void send_all(void)
{
    while (!*begun)
        if (getppid() == 1)
            _exit(1);
    for (long number = 0; number < SENT; number++) {
        while (number - *taken > AHEAD)
            if (getppid() == 1)
                _exit(1);
        union sigval value = {.sival_int = number};
        while (sigqueue(getppid(), NUMBERED, value) != 0)
            if (errno != EAGAIN)
                _exit(1);
        *sent = number + 1;
    }
    _exit(0);
}

/* The kernel has another handler than the program has set. The program must not see that. */
static void look_at_actions(void)
{
    struct sigaction set = {.sa_sigaction = on_number, .sa_flags = SA_SIGINFO | SA_RESTART}, found;
    sigaddset(&set.sa_mask, SIGUSR2);
    must(sigaction(SIGUSR1, &set, 0) == 0, "set a handler");
    must(sigaction(SIGUSR1, 0, &found) == 0, "see a handler");
    WRONG_IF(found.sa_sigaction != on_number || (found.sa_flags & (SA_SIGINFO | SA_RESTART)) != set.sa_flags);
    WRONG_IF(!sigismember(&found.sa_mask, SIGUSR2) || sigismember(&found.sa_mask, SIGHUP));
    WRONG_IF((void *)signal(SIGUSR1, on_tick) != (void *)on_number);
    WRONG_IF(signal(SIGUSR1, SIG_IGN) != on_tick || signal(SIGUSR1, SIG_DFL) != SIG_IGN);
    WRONG_IF(signal(SIGUSR1, SIG_DFL) != SIG_DFL);
}

/* A handler that is called once, and an action that ends the process, while files are used. */
static void end_by_signal(void)
{
    int status;
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        struct sigaction once = {.sa_handler = on_tick, .sa_flags = SA_RESETHAND};
        must(sigaction(SIGALRM, &once, 0) == 0, "set a handler");
        ticks = 0;
        ualarm(2000, 500);
        for (long number = 0;; number++) {
            use_file(2, "child", number);
            if (ticks > 1 || wrong)
                _exit(3);
        }
    }
    must(waitpid(child, &status, 0) == child, "wait for a child");
    WRONG_IF(!WIFSIGNALED(status) || WTERMSIG(status) != SIGALRM);
    for (int name = 0; name < NAMES; name++)
        unlink(path_of(2, "child", name));
}

static void check_numbers(void)
{
    static long numbers[SENT + 1];
    ssize_t length = pread(numbers_fd, numbers, sizeof numbers, 0);
    WRONG_IF(length != SENT * (ssize_t)sizeof *numbers);
    for (long number = 0; number < SENT && length > 0; number++)
        WRONG_IF(numbers[number] != number);
}

int main(int count, char **words)
{
    char path[1024];
    struct stat found;
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count >= 3, "run without a command and a directory");
    root = words[2];
    snprintf(path, sizeof path, "%s/signals", root);
    if (strcmp(words[1], "prepare") == 0) {
        must(mkdir(path, 0777) == 0 && chmod(path, 0777) == 0, "make a directory");
        return 0;
    }
    sent = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(sent != MAP_FAILED, "share memory");
    taken = sent + 1;
    begun = sent + 2;
    for (int at = 0; at < WARM; at++)
        must(stat(at % 2 ? root : path, &found) == 0, "stat");
    look_at_actions();
    numbers_fd = open(path_of(0, "numbers", 0), O_CREAT | O_EXCL | O_RDWR | O_APPEND | O_CLOEXEC, 0600);
    must(numbers_fd >= 0, "make a file");
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    struct sigaction numbered = {.sa_sigaction = on_number, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct sigaction tick = {.sa_handler = on_tick, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigaddset(&tick.sa_mask, NUMBERED);
    must(sigaltstack(&stack, 0) == 0 && sigaction(NUMBERED, &numbered, 0) == 0, "set a handler");
    must(sigaction(SIGALRM, &tick, 0) == 0, "set a handler");
    sender = fork();
    must(sender >= 0, "fork");
    if (sender == 0)
        send_all();
    *begun = 1;
    struct itimerval each = {{0, 700}, {0, 700}};
    must(setitimer(ITIMER_REAL, &each, 0) == 0, "set a timer");
    volatile long number = 0;
    while (*taken < SENT && wrong == 0) {
        sigsetjmp(back, 1);
        use_file(0, "main", number++);
        /* A handler may jump out from here, while no file is open. */
        may_jump = 1;
        may_jump = stat(root, &found) != 0;
    }
    memset(&each, 0, sizeof each);
    must(setitimer(ITIMER_REAL, &each, 0) == 0, "end the timer");
    int status;
    must(waitpid(sender, &status, 0) == sender && status == 0, "send signals");
    check_numbers();
    end_by_signal();
    if (wrong)
        printf("%ld wrong, first in line %ld, after %ld of %ld signals, %ld ticks and %ld files\n", wrong, wrong_at, *taken, *sent, ticks,
               number);
    return wrong != 0;
}
