// Opens, stats and lists a directory, and prints the inode numbers that it finds. Compiled without
// _FILE_OFFSET_BITS for 32 bits, its calls fail with EOVERFLOW where a number has more bits.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    printf("%s: %llu %llu %llu, listed %llu\n", name, (unsigned long long)by_name.st_ino,
           (unsigned long long)by_link.st_ino, (unsigned long long)open_file.st_ino, listed);
}

int main(int count, char **words) {
    if (count != 2 || chdir(words[1]) != 0)
        fail("chdir", "the directory");
    // A listing shows what the offsets of entries allow; names on the command line would not.
    DIR *dir = opendir(".");
    if (!dir)
        fail("opendir", ".");
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry)
            break;
        show(entry->d_name, entry->d_ino);
    }
    if (errno != 0)
        fail("readdir", ".");
    closedir(dir);
    return 0;
}
