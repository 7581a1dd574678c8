/* Calls that the interposer watches for the sake of calls by path: directories, descriptors, pages.
 * There is no mount, so the kernel answers all of them. */
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
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static void expect(int right, const char *what)
{
    if (!right) {
        printf("failed: %s (%s)\n", what, strerror(errno));
        exit(1);
    }
}

static int fails(long result, int error)
{
    return result == -1 && errno == error;
}

/* Twice as many calls by path as it takes before mounts are looked for. */
static void many(void)
{
    struct stat found;
    for (int i = 0; i < 200; i++) {
        expect(stat("/", &found) == 0 && access("/proc/self", F_OK) == 0, "a path");
        expect(fails(lstat("/nothing/at/all", &found), ENOENT), "a path to nothing");
    }
    printf("many paths\n");
}

static void pointers(void)
{
    struct stat found;
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(munmap(page + 4096, 4096) == 0, "munmap");
    strcpy(page + 4094, "/");
    expect(stat(page + 4094, &found) == 0, "a path at the end of a page");
    page[4095] = '/';
    expect(fails(syscall(SYS_stat, page + 4094, &found), EFAULT), "a path without an end");
    expect(fails(syscall(SYS_stat, "/", page + 4096 - 8), EFAULT), "a buffer without an end");
    expect(fails(syscall(SYS_stat, 1L << 62, &found), EFAULT), "an address beyond all memory");
    expect(mprotect(page, 4096, PROT_NONE) == 0, "mprotect");
    expect(fails(syscall(SYS_access, page, 0), EFAULT), "a page without rights");
    expect(fails(mprotect(page + 4096, 4096, PROT_READ), ENOMEM), "mprotect of a hole");
    char *other = mremap(page, 4096, 4096, MREMAP_MAYMOVE);
    expect(other != MAP_FAILED && munmap(other, 4096) == 0, "mremap");
    expect(fails(madvise((void *)1, 4096, MADV_DONTNEED), EINVAL), "madvise of an odd address");
    void *end = sbrk(0);
    expect(brk((char *)end + 65536) == 0 && brk(end) == 0, "brk");
    printf("pointers\n");
}

static void descriptors(void)
{
    for (int fd = 480; fd < 560; fd++)
        expect(fails(close(fd), EBADF), "a descriptor that is not open");
    expect(dup2(0, 500) == 500 && dup2(0, 501) == 501 && fcntl(500, F_GETFD) == 0, "dup2");
    expect(syscall(SYS_close_range, 490, 600, 0) == 0 && fails(fcntl(500, F_GETFD), EBADF), "close_range");
    expect(fails(syscall(SYS_close_range, 9, 8, 0), EINVAL), "close_range backwards");
    printf("descriptors\n");
}

static int is_in(const char *wanted)
{
    char path[4096];
    return getcwd(path, sizeof path) && !strcmp(path, wanted) && access(wanted + 1, F_OK) == (wanted[1] ? -1 : 0);
}

static sigjmp_buf jump;
static volatile sig_atomic_t may_jump;

static void on_alarm(int signal)
{
    if (may_jump)
        siglongjmp(jump, signal);
}

static void directories(void)
{
    expect(fails(chdir("/nothing"), ENOENT) && fails(fchdir(-1), EBADF), "chdir to nothing");
    expect(fails(syscall(SYS_chdir, 8), EFAULT), "chdir to a bad pointer");
    struct sigaction action = { .sa_handler = on_alarm };
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = { { 0, 100 }, { 0, 100 } }, never = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_REAL, &often, NULL);
    for (volatile int i = 0; i < 5000; i++) {
        if (sigsetjmp(jump, 1) == 0) {
            may_jump = 1;
            chdir(i % 2 ? "/proc/self" : "/");
        }
        may_jump = 0;
        expect(chdir("/") == 0 && access("proc", F_OK) == 0 && access("status", F_OK) < 0, "the root");
        expect(chdir("/proc/self") == 0 && access("proc", F_OK) < 0 && access("status", F_OK) == 0, "another one");
    }
    setitimer(ITIMER_REAL, &never, NULL);
    expect(chdir("/proc") == 0 && is_in("/proc"), "getcwd");
    for (volatile int i = 0; i < 10; i++) {
        pid_t child = i % 2 ? fork() : vfork();
        if (child == 0)
            _exit(chdir("/") == 0 && access("proc", F_OK) == 0 && close(500) < 0 ? 0 : 1);
        int status = -1;
        waitpid(child, &status, 0);
        expect(status == 0 && is_in("/proc"), "a child in another directory");
    }
    printf("directories\n");
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    descriptors();
    pointers();
    directories();
    many();
    descriptors();
    pointers();
    directories();
    return 0;
}
