/* Vectored reads and writes of files that the interposer may serve, beside the same calls by the
 * kernel on twins, which are opened at a descriptor of the same directory in another mount of the
 * tree, whose number is KERNEL_FD.
 *   vectors prepare DIR
 *   vectors compare DIR SEED     compares, and prints what differs */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define WARM 40000
#define ROUNDS 3000
#define CALLS 8
#define LENGTH_MAX 40000
#define ROOM (1 << 18)
#define PIECES_MAX 1100

static const char *root;
static int kernel_fd;
static long compared, differing, round_number;
static unsigned long random_state;
/* A page that cannot be used. */
static char *closed;

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
        printf("cannot %s: %s\n", what, strerror(errno));
        exit(2);
    }
}

static void check(int right, const char *what, long a, long b)
{
    compared++;
    if (!right && differing++ < 40)
        printf("round %ld: %s differs: %ld and %ld\n", round_number, what, a, b);
}

static const char *path_of(const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void gain(int count)
{
    for (int at = 0; at < count; at++)
        close(open(path_of("warm"), O_RDONLY));
}

/* A call and its twin: what it has returned, and the memory that it reads into or writes from. */
struct side {
    int fd, error;
    long result;
    char *memory;
};
static struct side sides[2];

/* The same pieces of the memory of each side. Returns how many there are. */
static int pieces(struct iovec *first, struct iovec *second, int is_strange)
{
    static const int counts[] = {0, 1, 1, 2, 3, 5, 8, 16, 16, 17, 100, 1024};
    int count = counts[below(is_strange ? 12 : 9)];
    long most = count > 20 ? 200 : below(3) ? 3000 : 12000;
    for (int at = 0, place = 0; at < count; at++) {
        long length = below(8) ? below(most) : 0;
        first[at] = (struct iovec){sides[0].memory + place, length};
        second[at] = (struct iovec){sides[1].memory + place, length};
        place += length + below(50);
    }
    if (!is_strange)
        return count;
    static const struct {
        long base, length;
    } bad[] = {{8, 5}, {0, 0}, {0, 1}, {-1, 0}, {-4096, 10}, {1L << 47, 1}, {0, -1}, {0, LONG_MIN}, {0, LONG_MAX}};
    int at = count ? below(count) : 0, how = below(11);
    if (how < 9)
        first[at] = second[at] = (struct iovec){(void *)bad[how].base, bad[how].length};
    else if (how == 9)
        first[at] = second[at] = (struct iovec){closed - 10, 30};
    else
        return UIO_MAXIOV + 1;
    return count;
}

static long position(long size)
{
    static const long strange[] = {-1, -2, LONG_MIN, LONG_MAX, LONG_MAX - 4096, 1L << 50};
    return below(40) ? below(2) ? below(size + 100) : 0 : strange[below(6)];
}

static void offsets_are_same(void)
{
    long a = lseek(sides[0].fd, 0, SEEK_CUR), b = lseek(sides[1].fd, 0, SEEK_CUR);
    check(a == b, "offset", a, b);
}

static void one_call(int writes, long size)
{
    static struct iovec iovecs[2][PIECES_MAX];
    static const int numbers[2][3] = {{SYS_readv, SYS_preadv, SYS_preadv2}, {SYS_writev, SYS_pwritev, SYS_pwritev2}};
    int is_strange = !below(30), is_closed = is_strange && !below(20), which = below(3);
    int count = pieces(iovecs[0], iovecs[1], is_strange);
    long place = which == 2 && !below(3) ? -1 : position(size);
    long flags = is_strange && !below(3) ? below(2) ? RWF_HIPRI : RWF_SYNC | 1 << 20 : 0;
    /* The upper word of the position does not count. */
    long upper = below(3) ? 0 : 7;
    for (int at = 0; at < 2; at++) {
        struct iovec *array = is_closed ? (struct iovec *)closed : iovecs[at];
        memset(sides[at].memory, writes ? 'a' + round_number % 26 : 0, ROOM);
        errno = 0;
        sides[at].result = syscall(numbers[writes][which], sides[at].fd, array, count, place, upper, flags);
        sides[at].error = errno;
    }
    check(sides[0].result == sides[1].result, numbers[writes][which] == SYS_readv ? "readv" : "result", sides[0].result, sides[1].result);
    check(sides[0].error == sides[1].error, "error", sides[0].error, sides[1].error);
    if (!writes && (!is_strange || sides[0].result < 0))
        check(memcmp(sides[0].memory, sides[1].memory, ROOM) == 0, "data", which, count);
    offsets_are_same();
    if (!below(20)) {
        long length = below(3) ? below(100000) : -1L, from = position(size);
        for (int at = 0; at < 2; at++) {
            errno = 0;
            sides[at].result = readahead(sides[at].fd, from, length);
            sides[at].error = errno;
        }
        check(sides[0].result == sides[1].result && sides[0].error == sides[1].error, "readahead", sides[0].error, sides[1].error);
    }
}

/* A file whose bytes are the same on both sides. */
static void fill(const char *first, const char *second, long size)
{
    static char bytes[LENGTH_MAX];
    for (long at = 0; at < size; at++)
        bytes[at] = (at * 31 + at / 251 + round_number) & 0xff;
    int a = open(path_of(first), O_CREAT | O_WRONLY | O_TRUNC, 0644);
    int b = openat(kernel_fd, second, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    must(a >= 0 && b >= 0 && write(a, bytes, size) == size && write(b, bytes, size) == size, "write");
    must(close(a) == 0 && close(b) == 0, "close");
}

static void same_files(const char *first, const char *second)
{
    static char bytes[2][ROOM + LENGTH_MAX];
    int a = openat(kernel_fd, first, O_RDONLY), b = openat(kernel_fd, second, O_RDONLY);
    must(a >= 0 && b >= 0, "open");
    long x = read(a, bytes[0], sizeof bytes[0]), y = read(b, bytes[1], sizeof bytes[1]);
    check(x == y && memcmp(bytes[0], bytes[1], x > 0 ? x : 0) == 0, "the file", x, y);
    close(a), close(b);
}

static void one_round(void)
{
    static const int ways[] = {O_RDONLY, O_RDONLY, O_RDWR, O_WRONLY, O_RDWR | O_APPEND};
    static const long lengths[] = {0, 1, 4096, 5000, 16384, 16385, 40000};
    int way = ways[below(5)];
    long size = lengths[below(7)];
    char first[16], second[32];
    snprintf(first, sizeof first, "ours-%lu", below(6));
    snprintf(second, sizeof second, "kernel-%s", first + 5);
    unlink(path_of(first)), unlinkat(kernel_fd, second, 0);
    fill(first, second, size);
    sides[0].fd = open(path_of(first), way);
    sides[1].fd = openat(kernel_fd, second, way);
    must(sides[0].fd >= 0 && sides[1].fd >= 0, "open");
    for (int at = 0; at < CALLS; at++)
        one_call(way == O_RDONLY ? !below(40) : way == O_WRONLY ? below(40) != 0 : below(2), size);
    must(close(sides[0].fd) == 0 && close(sides[1].fd) == 0, "close");
    same_files(first, second);
    gain(40);
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
    closed = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(closed != MAP_FAILED && mprotect(closed + 4096, 4096, PROT_NONE) == 0, "map");
    /* The kernel writes the bytes before it if their page is there already, and nothing if not. */
    memset(closed, 'c', 4096);
    closed += 4096;
    for (int at = 0; at < 2; at++)
        must((sides[at].memory = malloc(ROOM)) != 0, "get memory");
    close(open(path_of("warm"), O_CREAT | O_WRONLY, 0644));
    for (long at = 0; at < WARM; at++) {
        struct stat found;
        must(stat(path_of("warm"), &found) == 0, "stat");
    }
    gain(200);
    for (round_number = 0; round_number < ROUNDS; round_number++)
        one_round();
    printf("%ld differ of %ld\n", differing, compared);
    return differing != 0;
}
