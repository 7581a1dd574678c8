// Opens, stats and lists a directory, and prints the inode numbers that it finds. Compiled without
// _FILE_OFFSET_BITS for 32 bits, its calls fail with EOVERFLOW where a number has more bits. The
// listing of 32 bits is the system call, because the C library's also needs offsets of 32 bits.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// The library serves a process once it has made enough calls, so all is done so many times.
#define ROUNDS 100
static int round_no;

static void fail(const char *call, const char *name) {
    printf("%s %s: %s\n", call, name, strerror(errno));
    exit(1);
}

static void show(const char *name, unsigned long long listed) {
    struct stat by_name, by_link, open_file;
    if (stat(name, &by_name) != 0)
        fail("stat", name);
    if (lstat(name, &by_link) != 0)
        fail("lstat", name);
    int file = open(name, O_RDONLY);
    if (file < 0)
        fail("open", name);
    if (fstat(file, &open_file) != 0)
        fail("fstat", name);
    char byte;
    if (S_ISREG(open_file.st_mode) && read(file, &byte, 1) < 0)
        fail("read", name);
    close(file);
    if (round_no < ROUNDS - 1)
        return;
    printf("%s: %llu %llu %llu, listed %llu\n", name, (unsigned long long)by_name.st_ino,
           (unsigned long long)by_link.st_ino, (unsigned long long)open_file.st_ino, listed);
}

#if __SIZEOF_POINTER__ == 4
struct old_dirent {
    unsigned long ino, offset;
    unsigned short length;
    char name[];
};

static void list(void) {
    int dir = open(".", O_RDONLY | O_DIRECTORY);
    static _Alignas(8) char buffer[4096];
    long length;
    while ((length = syscall(SYS_getdents, dir, buffer, sizeof buffer)) > 0)
        for (long at = 0; at < length;) {
            struct old_dirent *entry = (void *)(buffer + at);
            show(entry->name, entry->ino);
            at += entry->length;
        }
    if (length < 0)
        fail("getdents", ".");
    close(dir);
}
#else
static void list(void) {
    DIR *dir = opendir(".");
    if (!dir)
        fail("opendir", ".");
    for (struct dirent *entry; (entry = readdir(dir));)
        show(entry->d_name, entry->d_ino);
    closedir(dir);
}
#endif

int main(int count, char **words) {
    if (count != 2 || chdir(words[1]) != 0)
        fail("chdir", "the directory");
    for (; round_no < ROUNDS; round_no++)
        list();
    return 0;
}
