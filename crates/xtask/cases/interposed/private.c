/* Private mappings of files that the interposer may serve, beside the same mappings of the same
 * files by the kernel: from a descriptor of the same directory in another mount of the tree, whose
 * number is KERNEL_FD.
 *   private prepare DIR
 *   private compare DIR SEED     compares, and prints what differs */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WARM 40000
#define SIZES 9
#define PAGE 4096L
#define LENGTH_MAX 110000
#define ROUNDS 1500
#define THREADS 4

static const long sizes[SIZES] = {0, 1, 4095, 4096, 4097, 16384, 16385, 50000, 100000};
static const char *root;
static int kernel_fd;
static long compared, differing, asked, served;
static const char *doing = "";
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
        printf("%s: cannot %s: %s\n", doing, what, strerror(errno));
        exit(2);
    }
}

static void check(int right, const char *what, long number)
{
    __atomic_fetch_add(&compared, 1, __ATOMIC_RELAXED);
    if (!right && __atomic_fetch_add(&differing, 1, __ATOMIC_RELAXED) < 40)
        printf("%s: %s (%ld) differs\n", doing, what, number);
}

static const char *path_of(const char *name)
{
    static _Thread_local char path[600];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static const char *name_of(int at)
{
    static _Thread_local char name[32];
    snprintf(name, sizeof name, "file-%d", at);
    return name;
}

/* By the kernel, or by this program. */
static void fill_by(int is_own, const char *name, long size, int salt)
{
    static char bytes[LENGTH_MAX];
    for (long at = 0; at < size; at++)
        bytes[at] = (at * 31 + at / 251 + salt) & 0xff;
    int flags = O_CREAT | O_WRONLY | O_TRUNC;
    int fd = is_own ? open(path_of(name), flags, 0644) : openat(kernel_fd, name, flags, 0644);
    must(fd >= 0 && write(fd, bytes, size) == size && close(fd) == 0, "make a file");
}

static void fill(const char *name, long size, int salt)
{
    fill_by(0, name, size, salt);
}

static int ours(const char *name, int flags)
{
    int fd = open(path_of(name), flags);
    must(fd >= 0, "open");
    return fd;
}

static int kernels(const char *name, int flags)
{
    int fd = openat(kernel_fd, name, flags);
    must(fd >= 0, "open as the kernel");
    return fd;
}

/* Files that are served to their ends make up for those that the kernel must have. */
static void gain(int count)
{
    for (int at = 0; at < count; at++)
        close(ours("warm", O_RDONLY));
}

/* What is mapped at an address. */
static void name_at(const void *address, char *name, size_t room)
{
    unsigned long start, end;
    char line[600], found[500];
    FILE *maps = fopen("/proc/self/maps", "r");
    must(maps != 0, "read the mappings");
    *name = 0;
    while (fgets(line, sizeof line, maps)) {
        found[0] = 0;
        int words = sscanf(line, "%lx-%lx %*s %*s %*s %*s %499[^\n]", &start, &end, found);
        if (words >= 2 && (unsigned long)address >= start && (unsigned long)address < end)
            snprintf(name, room, "%s", found);
    }
    fclose(maps);
}

/* Counts how many mappings of those that should be snapshots are. */
static void note_served(const void *address)
{
    char name[500];
    name_at(address, name, sizeof name);
    asked++;
    served += strncmp(name, "/memfd:warren:", 14) == 0;
}

static sigjmp_buf out;
static volatile sig_atomic_t caught;

static void on_fault(int number)
{
    caught = number;
    siglongjmp(out, 1);
}

/* The byte at an address, or the negative number of the signal that reading it raises. */
static int peek(const volatile void *address)
{
    if (sigsetjmp(out, 1))
        return -caught;
    return *(const volatile unsigned char *)address;
}

/* The same, of a write. */
static int poke(volatile void *address, int value)
{
    if (sigsetjmp(out, 1))
        return -caught;
    *(volatile unsigned char *)address = value;
    return value;
}

static void catch_faults(void)
{
    struct sigaction action = {.sa_handler = on_fault};
    must(sigaction(SIGBUS, &action, 0) == 0 && sigaction(SIGSEGV, &action, 0) == 0, "catch signals");
}

/* Two mappings have the same bytes, and raise the same signals. */
static void same(const char *a, const char *b, long length, const char *what)
{
    static const long edges[] = {0, 1, 2, 2047, 4094, 4095};
    for (long page = 0; page < length; page += PAGE) {
        int first = peek(a + page);
        check(first == peek(b + page), what, page);
        for (int at = 0; first >= 0 && at < 6; at++)
            check(peek(a + page + edges[at]) == peek(b + page + edges[at]), what, page + edges[at]);
        if (first >= 0 && peek(b + page) >= 0)
            check(memcmp(a + page, b + page, PAGE) == 0, what, page);
    }
}

/* Maps a file twice. */
struct pair {
    char *ours, *kernels;
    long length;
};

static struct pair map_with(int a, int b, long length, int protection, int flags, long offset)
{
    struct pair both = {.length = (length + PAGE - 1) / PAGE * PAGE};
    errno = 0;
    both.ours = mmap(0, length, protection, flags, a, offset);
    int error = errno;
    errno = 0;
    both.kernels = mmap(0, length, protection, flags, b, offset);
    check(error == errno, "error", error * 1000 + errno);
    check((both.ours == MAP_FAILED) == (both.kernels == MAP_FAILED), "failure", length);
    return both;
}

static struct pair map_both(const char *name, long length, int protection, int flags, long offset)
{
    int a = ours(name, O_RDONLY), b = kernels(name, O_RDONLY);
    struct pair both = map_with(a, b, length, protection, flags, offset);
    must(close(a) == 0 && close(b) == 0, "close");
    return both;
}

static void unmap(struct pair both)
{
    if (both.ours != MAP_FAILED)
        must(munmap(both.ours, both.length) == 0, "unmap");
    if (both.kernels != MAP_FAILED)
        must(munmap(both.kernels, both.length) == 0, "unmap");
}

/* The file is as it was made. */
static void unchanged(const char *name, long size, int salt)
{
    static unsigned char bytes[LENGTH_MAX];
    int fd = kernels(name, O_RDONLY);
    check(pread(fd, bytes, sizeof bytes, 0) == size, "size", size);
    for (long at = 0; at < size; at++)
        if (bytes[at] != ((at * 31 + at / 251 + salt) & 0xff)) {
            check(0, "data of the file", at);
            break;
        }
    close(fd);
}

static void sizes_and_places(void)
{
    doing = "sizes";
    static const int protections[] = {PROT_READ, PROT_READ | PROT_WRITE, PROT_NONE};
    static const int flags[] = {0, MAP_POPULATE, MAP_NORESERVE, MAP_LOCKED, MAP_32BIT, MAP_STACK, MAP_NONBLOCK | MAP_POPULATE};
    for (int at = 0; at < SIZES; at++)
        for (int protection = 0; protection < 3; protection++)
            for (int flag = 0; flag < 7; flag++)
                for (long offset = 0; offset <= sizes[at] + PAGE; offset += 6 * PAGE) {
                    long length = sizes[at] + 2 * PAGE - offset / 2;
                    struct pair both = map_both(name_of(at), length, protections[protection], MAP_PRIVATE | flags[flag], offset);
                    if (both.ours == MAP_FAILED)
                        continue;
                    if (flag == 0)
                        note_served(both.ours);
                    same(both.ours, both.kernels, both.length, "data");
                    if (protections[protection] & PROT_WRITE) {
                        for (long place = 0; place < both.length; place += 1000)
                            check(poke(both.ours + place, place & 0x7f) == poke(both.kernels + place, place & 0x7f), "write", place);
                        same(both.ours, both.kernels, both.length, "data after a write");
                    }
                    unmap(both);
                }
    for (int at = 0; at < SIZES; at++)
        unchanged(name_of(at), sizes[at], at);
}

/* At addresses that the program chooses, also over other mappings. */
static void addresses(void)
{
    doing = "addresses";
    for (int at = 1; at < SIZES; at++) {
        long length = sizes[at] + PAGE;
        char *room = mmap(0, 4 * LENGTH_MAX / PAGE * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        must(room != MAP_FAILED, "reserve addresses");
        memset(room, 'x', 4 * PAGE);
        int a = ours(name_of(at), O_RDONLY), b = kernels(name_of(at), O_RDONLY);
        char *second = room + 2 * LENGTH_MAX / PAGE * PAGE;
        check(mmap(room + PAGE, length, PROT_READ, MAP_PRIVATE | MAP_FIXED, a, 0) == room + PAGE, "fixed", at);
        must(mmap(second, length, PROT_READ, MAP_PRIVATE | MAP_FIXED, b, 0) == second, "map");
        same(room + PAGE, second, length, "fixed data");
        check(room[0] == 'x' && room[PAGE - 1] == 'x', "what lies before", at);
        close(a);
        gain(40);
        a = ours(name_of(at), O_RDONLY);
        errno = 0;
        check(mmap(room, length, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, a, 0) == MAP_FAILED && errno == EEXIST, "no replacement", at);
        must(munmap(room, PAGE) == 0 && munmap(second, length) == 0, "unmap");
        close(a);
        gain(40);
        a = ours(name_of(at), O_RDONLY);
        check(mmap(second, length, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, a, 0) == second, "a free place", at);
        note_served(second);
        must(munmap(second, length) == 0, "unmap");
        check(mmap(second, length, PROT_READ, MAP_PRIVATE, a, 0) == second, "a hint", at);
        note_served(second);
        must(munmap(room + PAGE, 4 * LENGTH_MAX / PAGE * PAGE - PAGE) == 0, "unmap");
        close(a), close(b);
    }
}

static void memory_calls(void)
{
    doing = "memory";
    static const int advices[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED, MADV_REMOVE, MADV_FREE, MADV_DONTFORK, MADV_DOFORK, MADV_DONTDUMP, MADV_DODUMP, MADV_COLD, MADV_PAGEOUT, MADV_POPULATE_READ, MADV_MERGEABLE};
    for (int at = 0; at < SIZES; at++) {
        long length = sizes[at] + PAGE;
        struct pair both = map_both(name_of(at), length, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
        note_served(both.ours);
        for (int advice = 0; advice < 15; advice++) {
            poke(both.ours, 'w'), poke(both.kernels, 'w');
            int a = madvise(both.ours, both.length, advices[advice]), error = errno;
            int b = madvise(both.kernels, both.length, advices[advice]);
            check(a == b && (a == 0 || error == errno), "madvise", advices[advice]);
            same(both.ours, both.kernels, both.length, "data after madvise");
        }
        static const int syncs[] = {MS_SYNC, MS_ASYNC, MS_INVALIDATE, MS_SYNC | MS_ASYNC};
        for (int sync = 0; sync < 4; sync++)
            check(msync(both.ours, both.length, syncs[sync]) == msync(both.kernels, both.length, syncs[sync]), "msync", sync);
        unsigned char pages[64];
        check(mincore(both.ours, both.length, pages) == mincore(both.kernels, both.length, pages), "mincore", at);
        for (int protection = 0; protection < 8; protection++) {
            int a = mprotect(both.ours, both.length, protection), error = errno;
            int b = mprotect(both.kernels, both.length, protection);
            check(a == b && (a == 0 || error == errno), "mprotect", protection);
            same(both.ours, both.kernels, both.length, "data after mprotect");
        }
        must(mprotect(both.ours, both.length, PROT_READ | PROT_WRITE) == 0 && mprotect(both.kernels, both.length, PROT_READ | PROT_WRITE) == 0, "protect");
        if (sizes[at] > 0) {
            check(mlock(both.ours, sizes[at]) == mlock(both.kernels, sizes[at]), "mlock", at);
            check(munlock(both.ours, sizes[at]) == munlock(both.kernels, sizes[at]), "munlock", at);
        }
        poke(both.ours, 'p'), poke(both.kernels, 'p');
        check(madvise(both.ours, both.length, MADV_DONTNEED) == 0 && madvise(both.kernels, both.length, MADV_DONTNEED) == 0, "give back", at);
        same(both.ours, both.kernels, both.length, "data that came back");
        unmap(both);
    }
}

/* A part of a file, and then more of it elsewhere. */
static void remapped(void)
{
    doing = "mremap";
    for (int at = 1; at < SIZES; at++) {
        struct pair both = map_both(name_of(at), PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
        note_served(both.ours);
        poke(both.ours + 5, 'r'), poke(both.kernels + 5, 'r');
        long length = (sizes[at] + 3 * PAGE) / PAGE * PAGE;
        both.ours = mremap(both.ours, PAGE, length, MREMAP_MAYMOVE);
        both.kernels = mremap(both.kernels, PAGE, length, MREMAP_MAYMOVE);
        check((both.ours == MAP_FAILED) == (both.kernels == MAP_FAILED), "mremap", at);
        both.length = length;
        same(both.ours, both.kernels, length, "data after mremap");
        both.ours = mremap(both.ours, length, PAGE, 0);
        both.kernels = mremap(both.kernels, length, PAGE, 0);
        both.length = PAGE;
        same(both.ours, both.kernels, PAGE, "data of a smaller one");
        check(mremap(both.ours, 0, PAGE, MREMAP_MAYMOVE) == mremap(both.kernels, 0, PAGE, MREMAP_MAYMOVE), "mremap of nothing", at);
        unmap(both);
    }
}

static void forked(void)
{
    doing = "fork";
    for (int at = 1; at < SIZES; at++) {
        int status;
        struct pair both = map_both(name_of(at), sizes[at], PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
        note_served(both.ours);
        poke(both.ours, 'b'), poke(both.kernels, 'b');
        pid_t child = fork();
        must(child >= 0, "fork");
        if (child == 0) {
            long before = differing;
            same(both.ours, both.kernels, both.length, "data of a child");
            poke(both.ours, 'c'), poke(both.kernels, 'c');
            same(both.ours, both.kernels, both.length, "data of a child");
            _exit(differing != before);
        }
        must(waitpid(child, &status, 0) == child, "wait");
        check(status == 0, "child", status);
        same(both.ours, both.kernels, both.length, "data of a parent");
        check(*both.ours == 'b', "a child's write", at);
        unmap(both);
        gain(100);
    }
}

/* Nothing of the descriptor changes: its offset, its number, the number of the next one. */
static void descriptors(void)
{
    doing = "descriptors";
    for (int at = 1; at < SIZES; at++) {
        int fd = ours(name_of(at), O_RDONLY);
        char first, second;
        must(read(fd, &first, 1) == 1, "read");
        char *mapped = mmap(0, sizes[at], PROT_READ, MAP_PRIVATE, fd, 0);
        must(mapped != MAP_FAILED, "map");
        note_served(mapped);
        int next = ours("warm", O_RDONLY);
        check(next == fd + 1, "the next number", next);
        must(close(next) == 0, "close");
        check(read(fd, &second, 1) == (sizes[at] > 1), "offset", at);
        check(first == mapped[0] && (sizes[at] == 1 || second == mapped[1]), "what was read", at);
        check(close(fd) == 0 && close(fd) == -1 && errno == EBADF, "close", at);
        check(first == mapped[0], "after the close", at);
        char name[500];
        name_at(mapped, name, sizeof name);
        char wanted[100];
        snprintf(wanted, sizeof wanted, "%s (deleted)", name_of(at));
        check(strstr(name, wanted) != 0, "name", at);
        must(munmap(mapped, sizes[at]) == 0, "unmap");
    }
}

static int truncate_as_kernel(const char *name)
{
    int fd = kernels(name, O_WRONLY | O_TRUNC);
    return close(fd);
}

/* Names and files that change, before and after the mapping. */
static void changed(void)
{
    doing = "changes";
    for (int at = 1; at < SIZES; at++) {
        long size = sizes[at];
        fill("first", size, 1);
        int a = ours("first", O_RDONLY), b = kernels("first", O_RDONLY);
        struct pair before = map_with(a, b, size, PROT_READ, MAP_PRIVATE, 0);
        same(before.ours, before.kernels, before.length, "data");
        must(renameat(kernel_fd, "first", kernel_fd, "second") == 0, "rename");
        fill("first", size / 2, 2);
        struct pair renamed = map_with(a, b, size, PROT_READ, MAP_PRIVATE, 0);
        same(renamed.ours, renamed.kernels, renamed.length, "data after a rename");
        must(unlinkat(kernel_fd, "second", 0) == 0, "unlink");
        struct pair unlinked = map_with(a, b, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
        same(unlinked.ours, unlinked.kernels, unlinked.length, "data after unlink");
        same(before.ours, before.kernels, before.length, "data");
        close(a), close(b);
        same(before.ours, before.kernels, before.length, "data after close");
        same(unlinked.ours, unlinked.kernels, unlinked.length, "data after close");
        unmap(before), unmap(renamed), unmap(unlinked);
        /* The kernel writes to it while it is open here. */
        gain(100);
        fill("third", size, 3);
        a = ours("third", O_RDONLY), b = kernels("third", O_RDONLY);
        char byte;
        must(pread(a, &byte, 1, 0) == 1, "read");
        fill("third", size / 2 + 1, 4);
        struct pair written = map_with(a, b, size, PROT_READ, MAP_PRIVATE, 0);
        same(written.ours, written.kernels, written.length, "data after a write");
        unmap(written), close(a), close(b);
        /* The one difference: a snapshot has the data that the file had. */
        fill("fourth", size, 5);
        a = ours("fourth", O_RDONLY);
        char *mapped = mmap(0, size, PROT_READ, MAP_PRIVATE, a, 0);
        must(mapped != MAP_FAILED && truncate_as_kernel("fourth") == 0, "truncate");
        int last = peek(mapped + size - 1);
        check(last == -SIGBUS || last == (((size - 1) * 31 + (size - 1) / 251 + 5) & 0xff), "a truncated file", last);
        must(munmap(mapped, size) == 0 && close(a) == 0, "unmap");
        must(unlinkat(kernel_fd, "third", 0) == 0 && unlinkat(kernel_fd, "fourth", 0) == 0, "unlink");
        gain(100);
    }
}

/* A program that writes to a file while it has it mapped sees what it has written, in pages that it
 * has not changed: here and in the kernel. */
static void own_writes(void)
{
    doing = "own writes";
    for (int at = 2; at < SIZES; at++)
        for (int how = 0; how < 3; how++) {
            gain(200);
            fill("twin-1", sizes[at], 1), fill("twin-2", sizes[at], 1);
            int a = open(path_of("twin-1"), O_RDWR), b = openat(kernel_fd, "twin-2", O_RDWR);
            int c = how ? open(path_of("twin-1"), O_RDONLY) : a;
            int d = how ? openat(kernel_fd, "twin-2", O_RDONLY) : b;
            must(a >= 0 && b >= 0 && c >= 0 && d >= 0, "open");
            char byte;
            if (how == 2)
                must(pread(c, &byte, 1, 0) == 1 && pread(d, &byte, 1, 0) == 1, "read");
            struct pair both = map_with(c, d, sizes[at] + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
            poke(both.ours + 10, 'm'), poke(both.kernels + 10, 'm');
            must(pwrite(a, "abc", 3, sizes[at] - 3) == 3 && pwrite(b, "abc", 3, sizes[at] - 3) == 3, "write");
            same(both.ours, both.kernels, both.length, "data after an own write");
            must(ftruncate(a, 1) == 0 && ftruncate(b, 1) == 0, "truncate");
            check(peek(both.ours + PAGE) == peek(both.kernels + PAGE), "behind the end", at);
            unmap(both);
            close(a), close(b);
            if (how)
                close(c), close(d);
            must(unlinkat(kernel_fd, "twin-1", 0) == 0 && unlinkat(kernel_fd, "twin-2", 0) == 0, "unlink");
        }
}

static void shared(void)
{
    doing = "shared";
    for (int at = 1; at < SIZES; at++) {
        gain(100);
        fill("shared", sizes[at], 1);
        struct pair both = map_both("shared", sizes[at], PROT_READ, at % 2 ? MAP_SHARED : MAP_SHARED_VALIDATE, 0);
        int fd = kernels("shared", O_WRONLY);
        must(pwrite(fd, "z", 1, 0) == 1 && close(fd) == 0, "write");
        same(both.ours, both.kernels, both.length, "data of a shared mapping");
        unmap(both);
    }
    must(unlinkat(kernel_fd, "shared", 0) == 0, "unlink");
    gain(100);
}

static void errors(void)
{
    doing = "errors";
    const struct {
        int open, protection, flags;
        long length, offset;
    } wrong[] = {
        {O_RDONLY, PROT_READ, MAP_PRIVATE, 0, 0},
        {O_RDONLY, PROT_READ, MAP_PRIVATE, PAGE, 1},
        {O_RDONLY, PROT_READ, MAP_PRIVATE, PAGE, 2048},
        {O_RDONLY, PROT_READ, MAP_PRIVATE, 1L << 60, 0},
        {O_RDONLY, PROT_READ, MAP_PRIVATE, -1L, 0},
        {O_RDONLY, PROT_READ, MAP_PRIVATE, PAGE, 1L << 62},
        {O_RDONLY, PROT_READ, MAP_PRIVATE, PAGE, -PAGE},
        {O_RDONLY, PROT_READ, 0, PAGE, 0},
        {O_RDONLY, PROT_READ, 4, PAGE, 0},
        {O_RDONLY, PROT_READ, MAP_PRIVATE | MAP_GROWSDOWN, PAGE, 0},
        {O_RDONLY, PROT_READ, MAP_PRIVATE | MAP_HUGETLB, PAGE, 0},
        {O_RDONLY, PROT_READ, MAP_PRIVATE | MAP_SYNC, PAGE, 0},
        {O_RDONLY, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, PAGE, 0},
        {O_RDONLY, PROT_READ | PROT_WRITE, MAP_SHARED, PAGE, 0},
        {O_RDONLY, PROT_READ | PROT_EXEC, MAP_PRIVATE, PAGE, 0},
        {O_RDONLY, PROT_READ, MAP_PRIVATE | MAP_DENYWRITE, PAGE, 0},
        {O_RDONLY, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, PAGE, 0},
        {O_WRONLY, PROT_READ, MAP_PRIVATE, PAGE, 0},
        {O_WRONLY, PROT_WRITE, MAP_PRIVATE, PAGE, 0},
        {O_RDONLY | O_DIRECTORY, PROT_READ, MAP_PRIVATE, PAGE, 0},
        {O_PATH, PROT_READ, MAP_PRIVATE, PAGE, 0},
    };
    for (unsigned at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        gain(100);
        const char *name = wrong[at].open & O_DIRECTORY ? "." : "file-4";
        if (getuid() != 0 && (wrong[at].open & O_ACCMODE) != O_RDONLY)
            continue;
        int a = ours(name, wrong[at].open), b = kernels(name, wrong[at].open);
        struct pair both = map_with(a, b, wrong[at].length, wrong[at].protection, wrong[at].flags, wrong[at].offset);
        if (both.ours != MAP_FAILED && both.kernels != MAP_FAILED)
            same(both.ours, both.kernels, both.length, "data");
        unmap(both);
        close(a), close(b);
    }
    errno = 0;
    check(mmap(0, PAGE, PROT_READ, MAP_PRIVATE, 400, 0) == MAP_FAILED && errno == EBADF, "no descriptor", 0);
}

/* Few descriptors, and few bytes that may be written to a file. */
static void limits(void)
{
    doing = "limits";
    struct rlimit before, less;
    must(getrlimit(RLIMIT_NOFILE, &before) == 0, "get the limit");
    gain(200);
    int fd = ours(name_of(5), O_RDONLY);
    less = (struct rlimit){.rlim_cur = fd + 1, .rlim_max = before.rlim_max};
    must(setrlimit(RLIMIT_NOFILE, &less) == 0, "set the limit");
    char *mapped = mmap(0, sizes[5], PROT_READ, MAP_PRIVATE, fd, 0);
    must(setrlimit(RLIMIT_NOFILE, &before) == 0, "set the limit");
    check(mapped != MAP_FAILED && (unsigned char)mapped[100] == ((100 * 31 + 5) & 0xff), "without a descriptor", fd);
    munmap(mapped, sizes[5]);
    close(fd);
    gain(200);
    fd = ours(name_of(5), O_RDONLY);
    must(getrlimit(RLIMIT_FSIZE, &before) == 0, "get the limit");
    less = (struct rlimit){.rlim_cur = 100, .rlim_max = before.rlim_max};
    must(setrlimit(RLIMIT_FSIZE, &less) == 0, "set the limit");
    mapped = mmap(0, sizes[5], PROT_READ, MAP_PRIVATE, fd, 0);
    check(mapped != MAP_FAILED && (unsigned char)mapped[5000] == ((5000 * 31 + 5000 / 251 + 5) & 0xff), "with a limit of lengths", fd);
    must(setrlimit(RLIMIT_FSIZE, &before) == 0, "set the limit");
    munmap(mapped, sizes[5]);
    close(fd);
}

/* The same access times as after a read. */
static void access_times(void)
{
    doing = "access times";
    for (int round = 0; round < 50; round++) {
        struct stat before, after;
        fill_by(1, "times", sizes[round % (SIZES - 1) + 1], round);
        must(fstatat(kernel_fd, "times", &before, 0) == 0, "stat");
        int fd = ours("times", O_RDONLY);
        char *mapped = mmap(0, 1, PROT_READ, MAP_PRIVATE, fd, 0);
        must(mapped != MAP_FAILED, "map");
        note_served(mapped);
        peek(mapped);
        munmap(mapped, 1);
        close(fd);
        /* The kernel's copy of the attributes may be old: another name asks anew. */
        must(linkat(kernel_fd, "times", kernel_fd, "other", 0) == 0, "link");
        must(fstatat(kernel_fd, "other", &after, 0) == 0, "stat");
        check(memcmp(&before.st_atim, &after.st_atim, sizeof before.st_atim) != 0, "access time", round);
        must(unlinkat(kernel_fd, "times", 0) == 0 && unlinkat(kernel_fd, "other", 0) == 0, "unlink");
    }
}

/* Files with new names and new contents, parts of which are mapped. */
static void random_rounds(void)
{
    doing = "rounds";
    for (int round = 0; round < ROUNDS; round++) {
        char name[32];
        snprintf(name, sizeof name, "round-%lu", below(8));
        long size = below(3) ? below(20000) : below(LENGTH_MAX), length = 1 + below(size + 2 * PAGE);
        long offset = below(2) ? 0 : below(size / PAGE + 1) * PAGE;
        /* A file is not served as long as the kernel has it open for writing, and it tells the cell
         * late that it has closed it. */
        int is_own = below(4);
        unlinkat(kernel_fd, name, 0);
        fill_by(is_own, name, size, round);
        int writes = below(2);
        struct pair both = map_both(name, length, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_PRIVATE, offset);
        if (is_own)
            note_served(both.ours);
        for (int at = 0; writes && at < 5; at++) {
            long place = below(both.length);
            check(poke(both.ours + place, at) == poke(both.kernels + place, at), "write", place);
        }
        same(both.ours, both.kernels, both.length, "data");
        unmap(both);
    }
}

/* Maps files and looks at the last byte of each. */
static void *map_in_thread(void *number)
{
    unsigned long state = (unsigned long)number * 7 + 3;
    for (int round = 0; round < 1500; round++) {
        state = state * 6364136223846793005UL + 1442695040888963407UL;
        int at = 1 + (state >> 40) % (SIZES - 1);
        int fd = open(path_of(name_of(at)), O_RDONLY);
        char *mapped = mmap(0, sizes[at], PROT_READ, MAP_PRIVATE, fd, 0);
        close(fd);
        long last = sizes[at] - 1;
        check(fd >= 0 && mapped != MAP_FAILED && (unsigned char)mapped[last] == ((last * 31 + last / 251 + at) & 0xff), "in a thread", at);
        if (mapped != MAP_FAILED)
            munmap(mapped, sizes[at]);
    }
    return 0;
}

static void threads(void)
{
    doing = "threads";
    pthread_t all[THREADS];
    for (long at = 0; at < THREADS; at++)
        must(pthread_create(&all[at], 0, map_in_thread, (void *)at) == 0, "start a thread");
    for (int at = 0; at < THREADS; at++)
        pthread_join(all[at], 0);
}

int main(int count, char **words)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    must(count >= 3, "run without a command and a directory");
    root = words[2];
    if (strcmp(words[1], "prepare") == 0) {
        must(chmod(root, 0777) == 0, "open the directory to all");
        return 0;
    }
    must(count == 4 && getenv("KERNEL_FD") != 0, "run without a seed and another mount: KERNEL_FD is not set");
    kernel_fd = atoi(getenv("KERNEL_FD"));
    random_state = strtoul(words[3], 0, 10) * 2654435761UL + 88172645463325252UL;
    /* Known to the fleet in this mount, before much is done in the other. */
    fill("warm", 10, 0);
    for (long at = 0; at < WARM; at++) {
        struct stat found;
        must(stat(path_of("warm"), &found) == 0, "stat");
    }
    for (int at = 0; at < SIZES; at++)
        fill(name_of(at), sizes[at], at);
    catch_faults();
    gain(200);
    sizes_and_places();
    memory_calls();
    remapped();
    descriptors();
    forked();
    access_times();
    random_rounds();
    addresses();
    changed();
    own_writes();
    shared();
    errors();
    gain(200);
    threads();
    limits();
    printf("%ld differ of %ld, %ld of %ld mappings were served\n", differing, compared, served, asked);
    return differing != 0 || served < asked - asked / 20;
}
