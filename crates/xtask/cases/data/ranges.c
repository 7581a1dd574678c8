// Makes random calls on a file that change its data, and compares what it reads with a copy in
// memory: write, append, truncate, fallocate in all modes, stores in a mapping, copy_file_range,
// sync and opening again. Data must lie where SEEK_DATA and SEEK_HOLE say that they do.
//
//     ranges FILE CALLS SEED [plain]
//
// plain: a short file, without mappings and copies, as an interposed program has it itself.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH = 256 << 10, SHORT = 96 << 10, LONGEST = 48 << 10, PAGE = 4096, KEPT = 24 };

static uint64_t state;
static unsigned char copy[LENGTH], got[LENGTH];
static long size, number;
static const char *name;
static int fd, plain;
static long longest = LENGTH;
static char calls[KEPT][96];

static long draw(long below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (long)(state >> 11) % below;
}

static void fail(const char *what, long at)
{
    printf("call %ld: %s at %ld: %s\n", number, what, at, strerror(errno));
    for (long call = number < KEPT ? 0 : number - KEPT + 1; call <= number; call++)
        printf("  %ld %s\n", call, calls[call % KEPT]);
    exit(1);
}

static void note(const char *what, long at, long length)
{
    snprintf(calls[number % KEPT], sizeof calls[0], "%s %ld %ld, size %ld", what, at, length, size);
}

static void check_read(long at, long length)
{
    long expected = at >= size ? 0 : at + length > size ? size - at : length;
    errno = 0;
    if (pread(fd, got, length, at) != expected)
        fail("read", at);
    for (long byte = 0; byte < expected; byte++)
        if (got[byte] != copy[at + byte])
            fail("wrong byte", at + byte);
}

static void check_holes(void)
{
    long at = 0;
    for (;;) {
        long data = lseek(fd, at, SEEK_DATA);
        if (data < 0 && errno != ENXIO)
            fail("SEEK_DATA", at);
        long end = data < 0 ? size : data;
        if (end < at || end > size)
            fail("data before or behind", end);
        for (; at < end; at++)
            if (copy[at])
                fail("data in a hole", at);
        if (data < 0)
            return;
        at = lseek(fd, data, SEEK_HOLE);
        if (at <= data || at > size)
            fail("SEEK_HOLE", data);
    }
}

static void check_size(void)
{
    struct stat found;
    errno = 0;
    if (fstat(fd, &found) || found.st_size != size)
        fail("size", found.st_size);
}

static void fill(long at, long length)
{
    unsigned char byte = 1 + draw(255);
    for (long offset = at; offset < at + length; offset++)
        copy[offset] = byte + offset % 3 ? byte : 1;
    if (at + length > size)
        size = at + length;
}

static void reopen(void)
{
    close(fd);
    fd = open(name, O_RDWR);
    if (fd < 0)
        fail("open", 0);
}

static void store(long at, long length)
{
    if (size == 0)
        return;
    at %= size;
    if (at + length > size)
        length = size - at;
    long start = at & ~(PAGE - 1L);
    unsigned char *pages = mmap(NULL, at + length - start, PROT_READ | PROT_WRITE, MAP_SHARED, fd, start);
    if (pages == MAP_FAILED)
        fail("mmap", start);
    if (memcmp(pages + (at - start), copy + at, length))
        fail("wrong byte in a mapping", at);
    fill(at, length);
    memcpy(pages + (at - start), copy + at, length);
    if (draw(2))
        check_holes();
    if (draw(30) == 0 && msync(pages, at + length - start, MS_SYNC))
        fail("msync", start);
    munmap(pages, at + length - start);
}

static void change(long at, long length)
{
    static const int modes[] = {
        0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE,
        FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
    };
    int mode = modes[draw(5)];
    note("fallocate", at, length);
    snprintf(calls[number % KEPT] + 60, 30, " mode %d", mode);
    if (fallocate(fd, mode, at, length))
        fail("fallocate", at);
    if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
        memset(copy + at, 0, length);
    if (!(mode & FALLOC_FL_KEEP_SIZE) && at + length > size)
        size = at + length;
}

static void copy_range(long at, long length)
{
    if (size == 0)
        return;
    long from = draw(size);
    length = from + length > size ? size - from : length;
    if (from < at + length && at < from + length)
        return;
    off_t source = from, target = at;
    for (long left = length; left > 0;) {
        long copied = copy_file_range(fd, &source, fd, &target, left, 0);
        if (copied <= 0)
            fail("copy_file_range", at);
        left -= copied;
    }
    memmove(copy + at, copy + from, length);
    if (at + length > size)
        size = at + length;
}

static void one(void)
{
    long at = draw(longest), length = 1 + draw(draw(4) ? LONGEST / 8 : LONGEST);
    if (draw(3) == 0)
        at &= ~(PAGE - 1L), length = (length + PAGE - 1) & ~(PAGE - 1L);
    if (at + length > longest)
        length = longest - at;
    long kind = draw(40);
    note("call", kind, at);
    if (kind < 12) {
        note("read", at, length), check_read(at, length);
    } else if (kind < 20) {
        note("write", at, length), fill(at, length);
        if (pwrite(fd, copy + at, length, at) != length)
            fail("write", at);
    } else if (kind < 23) {
        long end = draw(2) ? at : size + length > longest ? longest : size + length;
        note("truncate", end, 0);
        if (ftruncate(fd, end))
            fail("truncate", end);
        if (end < size)
            memset(copy + end, 0, size - end);
        size = end;
    } else if (kind < 31) {
        change(at, length);
    } else if (kind < 36 && plain) {
        note("size", 0, 0), check_size();
    } else if (kind < 34) {
        note("store", at, length), store(at, length);
    } else if (kind < 36) {
        note("copy", at, length), copy_range(at, length);
    } else if (kind == 36) {
        note("sync", 0, 0);
        if (draw(6) == 0 && (draw(4) ? fdatasync(fd) : fsync(fd)))
            fail("sync", 0);
    } else if (kind == 37) {
        note("open", 0, 0), reopen();
    } else {
        note("holes", 0, 0), check_holes(), check_size();
    }
    // Bytes behind the end are zero when the file becomes longer.
    memset(copy + size, 0, LENGTH - size);
}

int main(int count, char **arguments)
{
    if (count < 4)
        return 2;
    name = arguments[1];
    plain = count > 4;
    if (plain)
        longest = SHORT;
    state = 88172645463325252u + strtoul(arguments[3], NULL, 10) * 1000003;
    fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0)
        return 2;
    for (number = 0; number < strtol(arguments[2], NULL, 10); number++)
        one();
    check_read(0, LENGTH), check_holes(), check_size();
    printf("%ld calls, %ld bytes\n", number, size);
    return 0;
}
