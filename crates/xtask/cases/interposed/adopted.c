/* Files that a program has opened for writing before it is known to the fleet, and writes later.
 * Each answer is compared with a model of the file, and the file as the kernel has it with that.
 *   adopted prepare DIR          makes a directory
 *   adopted compare DIR SEED     runs each scene in a process of its own, prints what differs
 * The parent of a scene looks which descriptors of it the kernel has (not if KERNEL_ONLY is set).
 * With the name of a scene in ONLY, `compare` runs that one alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE_MAX_ (1 << 20)
#define LINES_MAX 40

extern char **environ;
static const char *root, *program, *scene = "start";
static int kernel_fd = 9, question[2], answer[2];
static long compared, differing;
/* Before, a look by the kernel's descriptor could make the process a client for its mount. */
static int is_warm;
static unsigned long seed, random_state;

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
        printf("seed %lu, %s: cannot %s: %s\n", seed, scene, what, strerror(errno));
        exit(2);
    }
}

static void check(int right, const char *what, long number)
{
    compared++;
    if (!right && differing++ < LINES_MAX)
        printf("seed %lu, %s: %s (%ld) differs: %s\n", seed, scene, what, number, strerror(errno));
}

/* A file, what must be in it, and where its descriptor must be. */
struct file {
    char name[64];
    int fd, flags, reader;
    long size, offset;
    char *bytes;
};

static void warm(long calls)
{
    struct stat found;
    char path[1024];
    snprintf(path, sizeof path, "%s/w", root);
    for (long at = 0; at < calls; at++)
        must(stat(path, &found) == 0, "stat");
    is_warm = 1;
}

static struct file begin(const char *name, int fd, int flags)
{
    struct file file = {.fd = fd, .flags = flags, .bytes = calloc(1, SIZE_MAX_), .reader = -1};
    must(fd >= 0, name);
    snprintf(file.name, sizeof file.name, "%s", name);
    return file;
}

/* The file as the kernel has it, which has pages of it. */
static int open_reader(struct file *file)
{
    char path[128];
    if (file->reader >= 0)
        return file->reader;
    snprintf(path, sizeof path, "w/%s", file->name);
    int fd = openat(kernel_fd, path, O_RDONLY | O_CLOEXEC);
    must(fd >= 0, path);
    return fd;
}

static long read_whole(struct file *file, void *to, long room)
{
    int fd = open_reader(file);
    long count = pread(fd, to, room, 0);
    if (fd != file->reader)
        close(fd);
    return count;
}

static struct file create(const char *name, int flags)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/w/%s", root, name);
    unlink(path);
    return begin(name, open(path, flags | O_CREAT, 0644), flags);
}

static void same(struct file *file)
{
    static char got[SIZE_MAX_];
    struct stat found;
    check(lseek(file->fd, 0, SEEK_CUR) == file->offset, "offset", file->offset);
    if (!is_warm)
        return;
    int reader = open_reader(file);
    long count = pread(reader, got, SIZE_MAX_, 0);
    check(count == file->size && memcmp(got, file->bytes, file->size) == 0, file->name, count);
    check(fstat(reader, &found) == 0 && found.st_size == file->size, "size", found.st_size);
    if (reader != file->reader)
        close(reader);
}

static void put(struct file *file, long at, const char *bytes, long count)
{
    if (count == 0)
        return;
    if (at > file->size)
        memset(file->bytes + file->size, 0, at - file->size);
    memcpy(file->bytes + at, bytes, count);
    if (at + count > file->size)
        file->size = at + count;
}

static void write_some(struct file *file, int kind)
{
    char bytes[9000];
    long count = below(8) ? below(300) : below(sizeof bytes), at = below(40000);
    for (long n = 0; n < count; n++)
        bytes[n] = below(256);
    struct iovec pieces[2] = {{bytes, count / 3}, {bytes + count / 3, count - count / 3}};
    int appends = file->flags & O_APPEND;
    if ((appends ? file->size : file->offset) + count > 100000)
        return;
    if (kind == 1) {
        check(pwrite(file->fd, bytes, count, at) == count, "pwrite", count);
        put(file, appends ? file->size : at, bytes, count);
        return;
    }
    long wrote = kind ? writev(file->fd, pieces, 2) : write(file->fd, bytes, count);
    check(wrote == count, kind ? "writev" : "write", wrote);
    at = appends ? file->size : file->offset;
    put(file, at, bytes, count);
    if (count > 0)
        file->offset = at + count;
}

static void read_some(struct file *file, int positioned)
{
    static char got[9000];
    long count = below(sizeof got), at = positioned ? (long)below(50000) : file->offset;
    long expected = at >= file->size ? 0 : file->size - at < count ? file->size - at : count;
    int may = (file->flags & O_ACCMODE) != O_WRONLY;
    errno = 0;
    long read_ = positioned ? pread(file->fd, got, count, at) : read(file->fd, got, count);
    if (!may) {
        check(read_ == -1 && errno == EBADF, "a read", read_);
        return;
    }
    check(read_ == expected && memcmp(got, file->bytes + at, expected) == 0, "read", read_);
    if (!positioned)
        file->offset += expected;
}

static void step(struct file *file)
{
    struct stat found;
    long at;
    switch (below(24)) {
    case 0:
        read_some(file, 0);
        return;
    case 1:
        read_some(file, 1);
        return;
    case 2:
    case 3:
        at = below(30000);
        check(lseek(file->fd, at, SEEK_SET) == at, "lseek", at);
        file->offset = at;
        return;
    case 4:
        at = -(long)below(file->size + 1);
        file->offset = file->size + at;
        check(lseek(file->fd, at, SEEK_END) == file->offset, "lseek from the end", at);
        return;
    case 5:
        at = below(2) ? (long)below(file->size + 1) : (long)below(60000);
        check(ftruncate(file->fd, at) == 0, "ftruncate", at);
        if (at > file->size)
            memset(file->bytes + file->size, 0, at - file->size);
        file->size = at;
        return;
    case 6:
        check((below(2) ? fsync : fdatasync)(file->fd) == 0, "fsync", 0);
        return;
    case 7:
        check(fstat(file->fd, &found) == 0 && found.st_size == file->size, "fstat", found.st_size);
        return;
    case 8:
        check((fcntl(file->fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK)) ==
                  (file->flags & (O_ACCMODE | O_APPEND | O_NONBLOCK)), "F_GETFL", 0);
        check(fcntl(file->fd, F_GETFD) == (file->flags & O_CLOEXEC ? FD_CLOEXEC : 0), "F_GETFD", 0);
        return;
    case 9:
        check(lseek(file->fd, 0, SEEK_CUR) == file->offset, "position", file->offset);
        return;
    case 10:
        same(file);
        return;
    default:
        write_some(file, below(3));
    }
}

/* Enough writes for an admission, and for an adoption behind it. */
static void settle(struct file *file)
{
    for (int at = 0; at < 300; at++) {
        check(ftruncate(file->fd, 50) == 0, "ftruncate", 50);
        if (file->size < 50)
            memset(file->bytes + file->size, 0, 50 - file->size);
        file->size = 50;
        write_some(file, 1);
        write_some(file, 0);
        if (file->offset > 60000) {
            check(lseek(file->fd, 100, SEEK_SET) == 100, "lseek", 100);
            file->offset = 100;
        }
    }
    same(file);
}

/* The parent looks whether the descriptor is served. */
static void expect(int fd, int served, const char *what)
{
    char is_right;
    int asked[2] = {fd, served};
    must(write(question[1], asked, sizeof asked) == sizeof asked, "ask");
    must(read(answer[0], &is_right, 1) == 1, "get an answer");
    check(is_right, what, fd);
}

static void ended(int process, const char *what)
{
    int status = -1;
    must(waitpid(process, &status, 0) == process, "wait");
    check(status == 0, what, status);
}

static void plain(void)
{
    static const int modes[] = {O_WRONLY, O_RDWR, O_WRONLY | O_APPEND, O_RDWR | O_APPEND,
                                O_WRONLY | O_CLOEXEC, O_RDWR | O_NONBLOCK | O_CLOEXEC};
    struct file files[18];
    char name[64], path[1024];
    must(chdir(root) == 0, "chdir");
    for (int at = 0; at < 18; at++) {
        int flags = modes[at % 6], fd;
        snprintf(name, sizeof name, "plain-%d", at);
        snprintf(path, sizeof path, at < 12 ? "w/%s" : "%s", name);
        if (at == 12)
            must(chdir("w") == 0, "chdir");
        unlink(path);
        if (at % 3 == 1)
            must(close(open(path, O_CREAT | O_WRONLY, 0600)) == 0, "create");
        fd = at % 4 == 3 ? openat(AT_FDCWD, path, flags | O_CREAT | O_TRUNC, 0644)
                         : open(path, flags | O_CREAT, 0600);
        files[at] = begin(name, fd, flags);
    }
    must(chdir("/") == 0, "chdir");
    for (int at = 0; at < 4000; at++) {
        step(&files[below(18)]);
        if (at == 300)
            warm(3000);
    }
    for (int at = 0; at < 18; at++) {
        settle(&files[at]);
        expect(files[at].fd, 1, "a plain file is adopted");
    }
    for (int at = 0; at < 4000; at++)
        step(&files[below(18)]);
    for (int at = 0; at < 18; at++) {
        same(&files[at]);
        /* Now the kernel gets it, with its offset. */
        int other = dup(files[at].fd);
        check(lseek(other, 0, SEEK_CUR) == files[at].offset, "offset of a duplicate", at);
        check(close(other) == 0, "close", at);
        write_some(&files[at], 0);
        same(&files[at]);
        check(close(files[at].fd) == 0, "close", at);
    }
}

/* A process that does nothing but write. */
static void writes_alone(void)
{
    struct file file = create("alone", O_WRONLY);
    for (int round = 0; round < 3; round++)
        settle(&file);
    is_warm = 1;
    same(&file);
    expect(file.fd, 1, "a file of a process that only writes is adopted");
    close(file.fd);
}

/* A reader that has the file open through the kernel all the time, and its pages: a file that grows
 * must not be in that cache, so it stays the kernel's. */
static void read_by_another(void)
{
    struct file files[2] = {create("read", O_WRONLY), create("read-too", O_RDWR | O_APPEND)};
    for (int at = 0; at < 2; at++) {
        files[at].reader = open_reader(&files[at]);
        warm(3000);
        settle(&files[at]);
        expect(files[at].fd, 0, "a file that another one reads is adopted");
        for (int round = 0; round < 500; round++) {
            step(&files[at]);
            same(&files[at]);
        }
        close(files[at].fd);
    }
}

static void duplicates(void)
{
    for (int kind = 0; kind < 4; kind++) {
        for (int late = 0; late < 2; late++) {
            struct file file = create("duplicate", O_RDWR);
            int other = open("/dev/null", O_RDONLY);
            if (late) {
                warm(3000);
                settle(&file);
            }
            if (kind == 0)
                other = dup(file.fd);
            else if (kind == 1)
                must(dup2(file.fd, other) == other, "dup2");
            else if (kind == 2)
                must(dup3(file.fd, other, 0) == other, "dup3");
            else
                other = fcntl(file.fd, F_DUPFD, 20);
            warm(2000);
            for (int at = 0; at < 200; at++) {
                int fd = file.fd;
                file.fd = other;
                other = fd;
                write_some(&file, 0);
                step(&file);
            }
            settle(&file);
            expect(file.fd, 0, "a duplicate is the kernel's");
            close(file.fd);
            close(other);
        }
    }
}

/* Parent and child, or another program, write in turns at one offset. */
static void write_in_turns(struct file *file, int is_program)
{
    char number[16];
    snprintf(number, sizeof number, "%d", file->fd);
    for (int at = 0; at < 5; at++) {
        int process, served = 0;
        if (is_program) {
            char *words[] = {(char *)program, "write", number, 0};
            must(posix_spawn(&process, program, 0, 0, words, environ) == 0, "posix_spawn");
        } else {
            process = fork();
            if (process == 0)
                _exit(write(file->fd, "child\n", 6) != 6);
        }
        ended(process, "a child");
        put(file, file->offset, "child\n", 6);
        file->offset += 6;
        write_some(file, 0);
        same(file);
        expect(file->fd, served, "a file of two processes is the kernel's");
    }
}

static void children(void)
{
    for (int is_program = 0; is_program < 2; is_program++) {
        for (int late = 0; late < 2; late++) {
            struct file file = create("child", O_RDWR);
            if (late) {
                warm(3000);
                settle(&file);
                expect(file.fd, 1, "a file before a fork is adopted");
            }
            write_in_turns(&file, is_program);
            warm(3000);
            settle(&file);
            write_in_turns(&file, is_program);
            /* It is not this process's alone any more, as far as it knows. */
            expect(file.fd, 0, "a file that was a child's is the kernel's");
            struct file next = create("next", O_WRONLY);
            settle(&next);
            expect(next.fd, 1, "a file behind a fork");
            close(next.fd);
            close(file.fd);
        }
    }
    /* A child whose parent goes on to write. */
    struct file file = create("both", O_WRONLY | O_APPEND);
    int process = fork();
    for (int at = 0; at < 500; at++)
        must(write(file.fd, process ? "p" : "c", 1) == 1, "write");
    if (process == 0)
        _exit(0);
    ended(process, "a child");
    char got[2000];
    long count = read_whole(&file, got, sizeof got), own = 0;
    for (long at = 0; at < count; at++)
        own += got[at] == 'p';
    check(count == 1000 && own == 500, "writes of two", count);
    close(file.fd);
}

/* Another program goes on with this descriptor. */
static void inherited(void)
{
    struct file file = create("inherited", O_RDWR);
    char number[16];
    snprintf(number, sizeof number, "%d", file.fd);
    settle(&file);
    int process = fork();
    if (process == 0) {
        execl(program, program, "inherited", root, number, (char *)0);
        _exit(9);
    }
    for (int at = 0; at < 3; at++)
        ended(process, "a program"), at = 3;
    struct stat found;
    must(fstat(file.fd, &found) == 0, "fstat");
    check(lseek(file.fd, 0, SEEK_CUR) == found.st_size, "offset", found.st_size);
}

static int inherit(int fd)
{
    warm(3000);
    must(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0, "ftruncate");
    for (int at = 0; at < 1000; at++)
        must(write(fd, "word\n", 5) == 5, "write");
    return lseek(fd, 0, SEEK_CUR) != 5000;
}

static char *path_of(const char *name)
{
    static char paths[4][1024];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, 1024, "%s/w/%s", root, name);
    return path;
}

/* The files that were handed over make the process leave others to the kernel for a while. */
static void regain(void)
{
    for (int at = 0; at < 80; at++) {
        int fd = open(path_of("warm"), O_WRONLY | O_CREAT, 0644);
        must(fd >= 0 && close(fd) == 0, "open");
    }
}

/* The path leads elsewhere by now, or nowhere. */
static void names(void)
{
    for (int kind = 0; kind < 5; kind++) {
        for (int late = 0; late < 2; late++) {
            regain();
            struct file file = create("name", O_RDWR);
            file.reader = open_reader(&file);
            int by_kernel = below(2) && !late, is_gone = kind == 1, is_other = kind == 2;
            int at = by_kernel ? kernel_fd : AT_FDCWD;
            const char *from = by_kernel ? "w/name" : path_of("name");
            const char *to = by_kernel ? "w/renamed" : path_of("renamed");
            if (late) {
                warm(3000);
                settle(&file);
                expect(file.fd, 1, "a file before its name changes");
            }
            must(unlink(path_of("renamed")) == 0 || errno == ENOENT, "unlink");
            if (is_gone)
                must(unlinkat(at, from, 0) == 0, "unlink");
            if (is_other || kind == 3)
                must(renameat(at, from, at, to) == 0, "rename");
            if (is_other) {
                int other = open(path_of("name"), O_CREAT | O_EXCL | O_WRONLY, 0644);
                must(write(other, "other", 5) == 5 && close(other) == 0, "write");
            }
            if (kind == 4)
                must(linkat(at, from, at, to, 0) == 0, "link");
            warm(3000);
            settle(&file);
            for (int round = 0; round < 300; round++)
                step(&file);
            settle(&file);
            same(&file);
            if (is_gone && !late)
                expect(file.fd, 0, "a file without a name is the kernel's");
            if (kind == 0 || kind == 4)
                expect(file.fd, 1, "a file that has kept its name");
            close(dup(file.fd));
            write_some(&file, 0);
            same(&file);
            if (is_other) {
                struct stat found;
                must(stat(path_of("name"), &found) == 0, "stat");
                check(found.st_size == 5, "the other file", found.st_size);
            }
            close(file.fd);
            close(file.reader);
            unlink(path_of("name"));
        }
    }
}

/* Another process appends through the kernel. */
static void appends(void)
{
    struct file file = create("log", O_WRONLY | O_APPEND);
    int ready[2], process;
    char byte = 0;
    must(pipe(ready) == 0, "pipe");
    process = fork();
    if (process == 0) {
        int fd = openat(kernel_fd, "w/log", O_WRONLY | O_APPEND);
        for (int at = 0; at < 1500; at++)
            if (write(fd, "kernel\n", 7) != 7 || (at == 0 && write(ready[1], "", 1) != 1))
                _exit(1);
        _exit(0);
    }
    must(read(ready[0], &byte, 1) == 1, "read");
    close(file.fd);
    /* This one is not the child's. */
    file.fd = open(path_of("log"), O_WRONLY | O_APPEND);
    for (int at = 0; at < 1500; at++) {
        must(write(file.fd, "served\n", 7) == 7, "write");
        if (at == 200)
            warm(3000);
    }
    ended(process, "another process");
    static char got[SIZE_MAX_];
    long count = read_whole(&file, got, sizeof got), kernels = 0, served = 0;
    for (long at = 0; at + 7 <= count; at += 7) {
        kernels += memcmp(got + at, "kernel\n", 7) == 0;
        served += memcmp(got + at, "served\n", 7) == 0;
    }
    check(count == 21000 && kernels == 1500 && served == 1500, "records", count);
    close(file.fd);
    /* While another descriptor is open for writing, the front does not give the file up. */
    file = create("shared", O_RDWR);
    int other = openat(kernel_fd, "w/shared", O_RDWR);
    must(other >= 0, "open");
    warm(3000);
    for (int at = 0; at < 500; at++) {
        write_some(&file, below(2));
        step(&file);
        long place = below(1000);
        check(pwrite(other, "x", 1, place) == 1, "pwrite", place);
        put(&file, place, "x", 1);
    }
    settle(&file);
    expect(file.fd, 0, "a file that another one writes is the kernel's");
    close(other);
    close(file.fd);
}

static int is_locked(const char *name, int kind)
{
    int process = fork();
    if (process == 0) {
        char path[128];
        snprintf(path, sizeof path, "w/%s", name);
        int fd = openat(kernel_fd, path, O_RDWR);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        int failed = kind == 0   ? flock(fd, LOCK_EX | LOCK_NB)
                     : kind == 1 ? fcntl(fd, F_SETLK, &lock)
                                 : fcntl(fd, F_OFD_SETLK, &lock);
        _exit(fd < 0 ? 2 : failed != 0);
    }
    int status;
    must(waitpid(process, &status, 0) == process && WIFEXITED(status), "wait");
    return WEXITSTATUS(status);
}

static void locks(void)
{
    for (int kind = 0; kind < 4; kind++) {
        for (int late = 0; late < 2; late++) {
            struct file file = create("locked", O_RDWR);
            struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
            /* To close another descriptor would end the lock. */
            file.reader = open_reader(&file);
            int other = kind == 3 ? openat(kernel_fd, "w/locked", O_RDWR | O_CLOEXEC) : -1;
            if (late && kind < 3) {
                warm(3000);
                settle(&file);
            }
            if (kind == 0)
                must(flock(file.fd, LOCK_EX) == 0, "flock");
            else if (kind == 2)
                must(fcntl(file.fd, F_OFD_SETLK, &lock) == 0, "lock");
            else
                must(fcntl(kind == 3 ? other : file.fd, F_SETLK, &lock) == 0, "lock");
            warm(3000);
            settle(&file);
            expect(file.fd, 0, "a locked file is the kernel's");
            check(is_locked("locked", kind == 3 ? 1 : kind), "a lock", kind);
            close(file.fd);
            close(other);
        }
    }
}

static void mappings(void)
{
    struct file file = create("mapped", O_RDWR);
    must(ftruncate(file.fd, 8192) == 0, "ftruncate");
    file.size = 8192;
    char *pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    must(pages != MAP_FAILED, "mmap");
    warm(3000);
    for (int at = 0; at < 600; at++) {
        long place = below(8192);
        char byte = below(256);
        if (below(2)) {
            pages[place] = byte;
        } else {
            check(pwrite(file.fd, &byte, 1, place) == 1, "pwrite", place);
        }
        put(&file, place, &byte, 1);
        check(memcmp(pages, file.bytes, 8192) == 0, "pages", at);
    }
    expect(file.fd, 0, "a mapped file is the kernel's");
    same(&file);
    munmap(pages, 8192);
    close(file.fd);
}

static void sent(void)
{
    struct file file = create("sent", O_RDWR);
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &file.fd, sizeof(int));
    must(sendmsg(pair[0], &message, 0) == 1, "sendmsg");
    must(recvmsg(pair[1], &message, 0) == 1, "recvmsg");
    int other;
    memcpy(&other, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    warm(3000);
    for (int at = 0; at < 300; at++) {
        int fd = file.fd;
        file.fd = other;
        other = fd;
        write_some(&file, 0);
        step(&file);
    }
    settle(&file);
    expect(file.fd, 0, "a file that was sent is the kernel's");
}

static void watched(void)
{
    struct file file = create("watched", O_RDWR), limited = create("limited", O_WRONLY);
    int fd = inotify_init1(IN_NONBLOCK);
    char events[65536];
    struct rlimit limit = {200000, 200000};
    warm(3000);
    must(setrlimit(RLIMIT_FSIZE, &limit) == 0, "set a limit");
    settle(&limited);
    expect(limited.fd, 0, "the kernel watches over a limit");
    must(inotify_add_watch(fd, path_of("watched"), IN_MODIFY) >= 0, "watch");
    settle(&file);
    expect(file.fd, 0, "a watched file is the kernel's");
    check(read(fd, events, sizeof events) > 0, "events", 0);
}

/* What was written is there, although the writer is killed at some moment. */
static void killed(void)
{
    long *done = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(done != MAP_FAILED, "mmap");
    for (int round = 0; round < 12; round++) {
        unlink(path_of("killed"));
        *done = 0;
        int process = fork();
        if (process == 0) {
            int fd = open(path_of("killed"), O_WRONLY | O_CREAT | (round % 2 ? O_APPEND : 0), 0644);
            for (long at = 0; at < 100000; at++) {
                if (write(fd, &at, sizeof at) != sizeof at)
                    _exit(1);
                *(volatile long *)done = at + 1;
            }
            pause();
        }
        usleep(2000 + below(20000));
        kill(process, SIGKILL);
        waitpid(process, 0, 0);
        int fd = openat(kernel_fd, "w/killed", O_RDONLY);
        long at, count = 0;
        while (fd >= 0 && read(fd, &at, sizeof at) == sizeof at && at == count)
            count++;
        check(count == *done || count == *done + 1, "writes of a process that was killed", count);
        close(fd);
    }
}

static int shared_fds[4];

static void *write_own(void *argument)
{
    long own = (long)argument;
    for (long at = 0; at < 400; at++) {
        long value = own << 32 | at;
        for (int file = 0; file < 3; file++)
            must(pwrite(shared_fds[file], &value, 8, (at * 4 + own) * 8) == 8, "pwrite");
        must(write(shared_fds[3], &value, 8) == 8, "write");
        if (at % 64 == own * 3)
            fsync(shared_fds[own % 3]);
    }
    return 0;
}

static void threads(void)
{
    struct file files[4];
    char name[32];
    pthread_t started[4];
    for (int at = 0; at < 4; at++) {
        snprintf(name, sizeof name, "threads-%d", at);
        files[at] = create(name, at == 3 ? O_WRONLY : O_RDWR);
        shared_fds[at] = files[at].fd;
    }
    for (int round = 0; round < 2; round++) {
        for (long own = 0; own < 4; own++)
            must(pthread_create(&started[own], 0, write_own, (void *)own) == 0, "a thread");
        warm(3000);
        for (long own = 0; own < 4; own++)
            pthread_join(started[own], 0);
    }
    static long got[8 * 1600];
    for (int file = 0; file < 3; file++) {
        check(read_whole(&files[file], got, sizeof got) == 1600 * 8, "length", file);
        for (long at = 0; at < 1600; at++)
            check(got[at] == ((at % 4) << 32 | at / 4), "a word", at);
    }
    long count = read_whole(&files[3], got, sizeof got), next[4] = {0};
    check(count == 2 * 1600 * 8, "length", count);
    for (long at = 0; at < count / 8; at++) {
        long own = got[at] >> 32 & 3;
        check((got[at] & 0xffffffff) == next[own]++ % 400, "order", at);
    }
    for (int at = 0; at < 4; at++) {
        for (int turn = 0; turn < 200; turn++)
            must(pwrite(shared_fds[at], "x", 1, 0) == 1, "pwrite");
        expect(shared_fds[at], 1, "a file of threads is adopted");
    }
    /* Behind a fork beside threads nothing is. */
    ended(fork() ?: (_exit(0), 0), "a child");
    struct file late = create("late", O_WRONLY | O_APPEND);
    settle(&late);
}

static int crowd_fds[4];

static void *append_own(void *argument)
{
    long own = (long)argument;
    for (long at = 0; at < 1500; at++) {
        long value = own << 32 | at;
        must(write(crowd_fds[own], &value, 8) == 8, "append");
    }
    return 0;
}

/* Threads that append to one file, each by a descriptor of its own. */
static void crowd(void)
{
    static long got[8 * 1500];
    struct file file = create("crowd", O_RDWR);
    pthread_t started[4];
    long next[4] = {0}, end[4] = {0};
    for (int own = 0; own < 4; own++)
        crowd_fds[own] = open(path_of("crowd"), O_WRONLY | O_APPEND);
    for (long own = 0; own < 4; own++)
        must(pthread_create(&started[own], 0, append_own, (void *)own) == 0, "a thread");
    warm(3000);
    for (int own = 0; own < 4; own++)
        pthread_join(started[own], 0);
    long count = read_whole(&file, got, sizeof got);
    check(count == 4 * 1500 * 8, "length", count);
    for (long at = 0; at < count / 8; at++) {
        long own = got[at] >> 32 & 3;
        check((got[at] & 0xffffffff) == next[own]++, "order", at);
        end[own] = (at + 1) * 8;
    }
    for (int own = 0; own < 4; own++) {
        check(lseek(crowd_fds[own], 0, SEEK_CUR) == end[own], "offset", own);
        expect(crowd_fds[own], 1, "one of several descriptors is adopted");
        close(crowd_fds[own]);
    }
    long first = -1;
    check(read(file.fd, &first, 8) == 8 && first == got[0], "read", first);
    check(lseek(file.fd, 0, SEEK_CUR) == 8, "offset of the reader", 8);
    close(file.fd);
}

static volatile int handled, signal_fd;

static void on_alarm(int number)
{
    (void)number;
    int before = errno;
    if (write(signal_fd, "handler\n", 8) == 8)
        handled++;
    errno = before;
}

static void handlers(void)
{
    for (int round = 0; round < 4; round++) {
        struct file file = create("handled", O_WRONLY | (round % 2 ? O_APPEND : 0));
        struct itimerval often = {{0, 150 + 100 * round}, {0, 150}}, never = {{0, 0}, {0, 0}};
        handled = 0;
        signal_fd = file.fd;
        signal(SIGALRM, on_alarm);
        setitimer(ITIMER_REAL, &often, 0);
        for (int at = 0; at < 4000; at++)
            must(write(file.fd, "program\n", 8) == 8, "write");
        setitimer(ITIMER_REAL, &never, 0);
        struct stat found;
        must(fstatat(kernel_fd, "w/handled", &found, 0) == 0, "fstat");
        check(found.st_size == 8L * (4000 + handled), "length", found.st_size);
        check(lseek(file.fd, 0, SEEK_CUR) == found.st_size, "offset", handled);
        expect(file.fd, 1, "a file that a handler writes is adopted");
        close(file.fd);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} scenes[] = {{"plain", plain}, {"writes alone", writes_alone}, {"duplicates", duplicates},
              {"read by another", read_by_another},
              {"children", children}, {"inherited", inherited}, {"names", names},
              {"appends", appends}, {"locks", locks}, {"mappings", mappings}, {"sent", sent},
              {"watched", watched}, {"killed", killed}, {"threads", threads},
              {"crowd", crowd},
              {"handlers", handlers}};

static void start(int number)
{
    scene = scenes[number].name;
    random_state = (seed + number) * 2654435761 + 88172645463325252UL;
    umask(022);
    scenes[number].run();
    if (differing)
        printf("%s: %ld compared, %ld differ\n", scene, compared, differing);
    exit(differing != 0);
}

/* Files that must be adopted, and those that were not: on a busy machine the mount's front may take
 * longer to close a file than a program waits. */
static int wanted, missed;

/* Answers the questions of a scene until it ends. */
static int observe(int process)
{
    int asked[2], status;
    while (read(question[0], asked, sizeof asked) == sizeof asked) {
        char path[64], target[64] = "";
        snprintf(path, sizeof path, "/proc/%d/fd/%d", process, asked[0]);
        int is_read = readlink(path, target, sizeof target - 1) > 0;
        int is_served = strncmp(target, "socket:", 7) == 0;
        char is_right = getenv("KERNEL_ONLY") || (is_read && is_served == asked[1]);
        if (asked[1]) {
            wanted++;
            missed += !is_right;
            is_right = 1;
        }
        must(write(answer[1], &is_right, 1) == 1, "answer");
    }
    must(waitpid(process, &status, 0) == process, "wait");
    return status;
}

/* Runs a scene in a process of its own. */
static int run(unsigned at)
{
    char number[16], of_seed[32], pipes[64];
    must(pipe(question) == 0 && pipe(answer) == 0, "pipe");
    snprintf(number, sizeof number, "%u", at);
    snprintf(of_seed, sizeof of_seed, "%lu", seed);
    snprintf(pipes, sizeof pipes, "%d %d", question[1], answer[0]);
    int process = fork();
    if (process == 0) {
        close(question[0]);
        close(answer[1]);
        execl(program, program, "scene", root, of_seed, number, pipes, (char *)0);
        _exit(9);
    }
    close(question[1]);
    close(answer[0]);
    int status = observe(process);
    if (status)
        printf("%s: ended with %x\n", scenes[at].name, status);
    close(question[0]);
    close(answer[1]);
    return status;
}

static int compare(void)
{
    int failed = 0;
    for (unsigned at = 0; at < sizeof scenes / sizeof *scenes; at++) {
        if (getenv("ONLY") && strcmp(getenv("ONLY"), scenes[at].name) != 0)
            continue;
        /* A scene must have files adopted, in one of three turns. */
        int is_missed = 1, status = 0;
        for (int turn = 0; turn < 3 && is_missed && status == 0; turn++) {
            int had = missed, of = wanted;
            status = run(at);
            is_missed = wanted > of && missed - had == wanted - of;
        }
        if (is_missed)
            printf("%s: no file was adopted\n", scenes[at].name);
        failed += status != 0 || is_missed;
    }
    if (missed * 4 > wanted)
        printf("%d of %d files were not adopted\n", missed, wanted);
    return failed != 0 || missed * 4 > wanted;
}

int main(int count, char **words)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    program = words[0];
    if (count == 3 && strcmp(words[1], "write") == 0)
        return write(atoi(words[2]), "child\n", 6) != 6;
    must(count >= 3, "run without a command and a directory");
    root = words[2];
    if (strcmp(words[1], "prepare") == 0) {
        umask(0);
        must(mkdir(path_of(""), 0777) == 0, "mkdir");
        return 0;
    }
    if (strcmp(words[1], "inherited") == 0)
        return inherit(atoi(words[3]));
    seed = count > 3 ? strtoul(words[3], 0, 0) : 1;
    if (getenv("KERNEL_FD"))
        kernel_fd = atoi(getenv("KERNEL_FD"));
    if (strcmp(words[1], "scene") == 0) {
        must(sscanf(words[5], "%d %d", &question[1], &answer[0]) == 2, "get pipes");
        start(atoi(words[4]));
    }
    return compare();
}
