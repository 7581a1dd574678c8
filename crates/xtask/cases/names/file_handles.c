// File handles (name_to_handle_at, open_by_handle_at): of every kind of file, after renames and
// removals, without the kernel's caches, after a restart, forged ones, and without the right.
//
//   file_handles make DIR HANDLES     makes files and writes their handles to the file HANDLES
//   file_handles change DIR           renames, moves and removes some of them
//   file_handles show DIR HANDLES     opens each by its handle and prints what it is
//   file_handles open DIR             handles of open files that have no name any more
//   file_handles ways DIR             by descriptor, by path, connected, forged
//   file_handles nobody DIR HANDLES   without the right to open handles
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define HANDLE_CONNECTABLE 2

struct handle {
    char name[32];
    struct file_handle head;
    unsigned char bytes[MAX_HANDLE_SZ];
};

static const char *const NAMES[] = {
    ".", "file", "dir", "dir/below", "dir/sub", "dir/sub/deep", "link", "fifo",
    "renamed", "moved", "moved-dir", "moved-dir/in", "removed", "removed-dir", "linked", "replaced",
    "kept/deep/dir", "kept/deep/dir/file",
};
enum { COUNT = sizeof NAMES / sizeof *NAMES };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void enter(const char *directory) {
    if (chdir(directory)) fail(directory);
}

static void put(const char *name) {
    int fd = open(name, O_CREAT | O_WRONLY, 0644);
    if (fd < 0 || write(fd, name, strlen(name)) < 0 || close(fd)) fail(name);
}

static const char *word(int error) {
    const char *name = strerrorname_np(error);
    return name ? name : "none";
}

static int handle_of(int at, const char *name, int flags, struct handle *handle) {
    memset(handle, 0, sizeof *handle);
    snprintf(handle->name, sizeof handle->name, "%s", name);
    handle->head.handle_bytes = MAX_HANDLE_SZ;
    int mount_id;
    return name_to_handle_at(at, name, &handle->head, &mount_id, flags);
}

static void drop_caches(void) {
    sync();
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY);
    if (fd < 0 || write(fd, "3", 1) != 1) fail("drop_caches");
    close(fd);
}

static int open_handle(int mount, struct handle *handle, int flags) {
    return open_by_handle_at(mount, &handle->head, flags);
}

static int compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void list(int fd) {
    DIR *directory = fdopendir(dup(fd));
    char *names[64];
    int count = 0;
    if (!directory) fail("list");
    for (struct dirent *entry; (entry = readdir(directory)) && count < 64;)
        names[count++] = strdup(entry->d_name);
    closedir(directory);
    qsort(names, count, sizeof *names, compare);
    for (int at = 0; at < count; at++) printf(" %s", names[at]);
}

// Its path, below the directory `top`, and whether `..` leads to the parent by that path.
static void show_directory(int fd, const char *top) {
    char link[64], path[4096], parent[8192];
    struct stat by_handle, by_path;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) fail("readlink");
    path[length] = 0;
    int is_below = !strncmp(path, top, strlen(top));
    printf(" path %s", is_below ? path + strlen(top) : "elsewhere");
    snprintf(parent, sizeof parent, "%s/..", path);
    if (fstatat(fd, "..", &by_handle, 0) || stat(parent, &by_path)) fail("..");
    printf(" parent %d names", by_handle.st_ino == by_path.st_ino);
    list(fd);
}

static void show(int mount, struct handle *handle, const char *top) {
    printf("%s:", handle->name);
    int fd = open_handle(mount, handle, O_PATH);
    if (fd < 0) {
        printf(" %s\n", word(errno));
        return;
    }
    struct stat found;
    char text[64] = "";
    if (fstat(fd, &found)) fail(handle->name);
    printf(" mode %o links %lu", found.st_mode, (unsigned long)found.st_nlink);
    close(fd);
    fd = open_handle(mount, handle, S_ISREG(found.st_mode) ? O_RDWR : O_RDONLY | O_NONBLOCK);
    if (fd < 0) {
        printf(" open %s", word(errno));
        fd = open_handle(mount, handle, O_PATH);
        if (S_ISLNK(found.st_mode) && readlinkat(fd, "", text, sizeof text - 1) > 0)
            printf(" to %s", text);
    } else if (S_ISDIR(found.st_mode)) {
        show_directory(fd, top);
    } else if (S_ISREG(found.st_mode)) {
        if (pread(fd, text, sizeof text - 1, 0) < 0) fail("read");
        printf(" reads %s", text);
        if (pwrite(fd, text, strlen(text), 0) != (ssize_t)strlen(text)) fail("write");
    }
    close(fd);
    printf("\n");
}

static int mount_of(const char *directory) {
    int mount = open(directory, O_RDONLY | O_DIRECTORY);
    if (mount < 0) fail(directory);
    return mount;
}

static FILE *handles(const char *path, const char *mode) {
    FILE *file = fopen(path, mode);
    if (!file) fail(path);
    return file;
}

static void make(const char *directory, const char *to) {
    FILE *file = handles(to, "w");
    enter(directory);
    mkdir("dir", 0755), mkdir("dir/sub", 0755), mkdir("moved-dir", 0750), mkdir("removed-dir", 0755);
    mkdir("kept", 0755), mkdir("kept/deep", 0755), mkdir("kept/deep/dir", 0700);
    put("file"), put("dir/below"), put("dir/sub/deep"), put("renamed"), put("moved"), put("removed");
    put("moved-dir/in"), put("linked"), put("replaced"), put("kept/deep/dir/file");
    if (symlink("target", "link") || mkfifo("fifo", 0600)) fail("make");
    for (int at = 0; at < COUNT; at++) {
        struct handle handle;
        if (handle_of(AT_FDCWD, NAMES[at], 0, &handle)) fail(NAMES[at]);
        if (fwrite(&handle, sizeof handle, 1, file) != 1) fail(to);
    }
    fclose(file);
    sync();
}

static void change(const char *directory) {
    enter(directory);
    put("new");
    if (rename("renamed", "renamed-now") || rename("moved", "dir/sub/moved") ||
        rename("moved-dir", "dir/sub/moved-dir") || unlink("removed") || rmdir("removed-dir") ||
        link("linked", "dir/linked") || unlink("linked") || rename("new", "replaced"))
        fail("change");
}

static void show_all(const char *directory, const char *from) {
    char top[4096];
    if (!realpath(directory, top)) fail(directory);
    FILE *file = handles(from, "r");
    int mount = mount_of(directory);
    for (struct handle handle; fread(&handle, sizeof handle, 1, file) == 1;)
        show(mount, &handle, top);
    fclose(file);
}

// FUSE does not wait for the release of a file that is closed, so the file ends a little later.
static void show_ended(int mount, struct handle *handle) {
    for (int fd; (fd = open_handle(mount, handle, O_PATH)) >= 0; usleep(1000)) close(fd);
    show(mount, handle, "");
}

// A file without a name can be opened by its handle while it is open, and not any longer.
static void open_files(const char *directory) {
    enter(directory);
    put("unlinked");
    int fd = open("unlinked", O_RDONLY), mount = mount_of(".");
    struct handle handle, nameless;
    if (fd < 0 || handle_of(AT_FDCWD, "unlinked", 0, &handle) || unlink("unlinked")) fail("unlink");
    int without = open(".", O_TMPFILE | O_RDWR, 0600);
    if (without < 0 || write(without, "x", 1) != 1 || handle_of(without, "", AT_EMPTY_PATH, &nameless))
        fail("O_TMPFILE");
    drop_caches();
    show(mount, &handle, ""), show(mount, &nameless, "");
    close(fd), close(without);
    drop_caches();
    show_ended(mount, &handle), show_ended(mount, &nameless);
}

static void forge(int mount, struct handle handle, int word_of_handle, uint32_t flipped) {
    uint32_t *words = (uint32_t *)handle.head.f_handle;
    words[word_of_handle] ^= flipped;
    show(mount, &handle, "");
}

static void ways(const char *directory) {
    enter(directory);
    put("way");
    mkdir("holder", 0700);
    put("holder/held");
    int file = open("way", O_RDWR), mount = mount_of("holder");
    struct handle by_path, by_descriptor, parent;
    if (file < 0 || handle_of(AT_FDCWD, "way", 0, &by_path)) fail("by path");
    if (handle_of(file, "", AT_EMPTY_PATH, &by_descriptor)) fail("by descriptor");
    int is_same = by_path.head.handle_bytes == by_descriptor.head.handle_bytes &&
                  !memcmp(by_path.head.f_handle, by_descriptor.head.f_handle, by_path.head.handle_bytes);
    printf("the same handle %d\n", is_same);
    if (pwrite(file, "later", 5, 0) != 5) fail("write");
    // The file itself names the mount.
    int fd = open_handle(file, &by_path, O_RDWR);
    char text[8] = "";
    if (fd < 0 || pread(fd, text, 7, 0) < 0 || pwrite(fd, "even ", 5, 0) != 5) fail("open");
    printf("reads %s\n", text);
    if (pread(file, text, 7, 0) < 0) fail("read");
    printf("and then %s\n", text);
    close(fd);
    if (handle_of(mount, "held", 0, &parent)) fail("below a descriptor");
    show(mount, &parent, "");
    struct handle nothing;
    printf("absent: %s\n", handle_of(AT_FDCWD, "absent", 0, &nothing) ? word(errno) : "found");
    if (!handle_of(AT_FDCWD, "holder/held", HANDLE_CONNECTABLE, &parent)) {
        drop_caches();
        fd = open_handle(mount, &parent, O_RDONLY);
        char link[64], path[4096] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (fd < 0 || readlink(link, path, sizeof path - 1) < 0) fail("connected");
        char *end = strstr(path, "/holder/held");
        printf("connected %s\n", end ? end : path);
    } else {
        printf("connected /holder/held\n");
    }
    int words = by_path.head.handle_bytes / 4;
    drop_caches();
    forge(mount, by_path, words - 1, 1);
    forge(mount, by_path, 0, 0x7fff0000);
    forge(mount, by_path, 0, 0xffffffff);
    by_path.head.handle_bytes = 4;
    printf("short: %s\n", open_handle(mount, &by_path, O_PATH) < 0 ? word(errno) : "opened");
}

static void nobody(const char *directory, const char *from) {
    enter(directory);
    FILE *file = handles(from, "r");
    int mount = mount_of(".");
    struct handle handle, own;
    if (setgid(65534) || setuid(65534) || prctl(PR_SET_DUMPABLE, 1)) fail("setuid");
    while (fread(&handle, sizeof handle, 1, file) == 1)
        printf("%s: %s\n", handle.name, open_handle(mount, &handle, O_PATH) < 0 ? word(errno) : "opened");
    printf("its handle: %d\n", handle_of(mount, "file", 0, &own));
}

int main(int count, char **arguments) {
    const char *what = count > 2 ? arguments[1] : "";
    const char *file = count > 3 ? arguments[3] : "";
    if (!strcmp(what, "make")) make(arguments[2], file);
    else if (!strcmp(what, "change")) change(arguments[2]);
    else if (!strcmp(what, "show")) show_all(arguments[2], file);
    else if (!strcmp(what, "drop")) drop_caches();
    else if (!strcmp(what, "open")) open_files(arguments[2]);
    else if (!strcmp(what, "ways")) ways(arguments[2]);
    else if (!strcmp(what, "nobody")) nobody(arguments[2], file);
    else return 2;
    return 0;
}
