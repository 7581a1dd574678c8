// A working directory that was removed: what can still be done there.
//
//   removed_dirs DIR COMMAND...     enters DIR, runs the command, which removes it, and tries
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static void say(const char *what, long result) {
    if (result < 0) printf("%s: %s\n", what, strerrorname_np(errno));
    else printf("%s: %s\n", what, "done");
}

static void say_stat(const char *what, int result, const struct stat *found) {
    if (result < 0) say(what, result);
    else printf("%s: mode %o links %lu of %u:%u\n", what, found->st_mode,
                (unsigned long)found->st_nlink, found->st_uid, found->st_gid);
}

static void list(const char *what, int fd) {
    struct dirent64 entries[64];
    ssize_t length = getdents64(fd, entries, sizeof entries);
    if (length < 0) say(what, length);
    else printf("%s: %s\n", what, length ? "names" : "no names");
}

static void try_all(int directory, unsigned long ino) {
    struct stat found;
    struct statfs volume;
    char text[4096];
    int fd;
    say_stat("stat .", stat(".", &found), &found);
    printf("the same directory %d\n", found.st_ino == ino);
    say_stat("lstat .", lstat(".", &found), &found);
    say_stat("fstat", fstat(directory, &found), &found);
    say_stat("stat of nothing", fstatat(AT_FDCWD, "", &found, AT_EMPTY_PATH), &found);
    say_stat("stat ./.", stat("./.", &found), &found);
    say("statfs .", statfs(".", &volume));
    say("access .", access(".", R_OK | W_OK | X_OK));
    say("getcwd", getcwd(text, sizeof text) ? 0 : -1);
    say("open .", fd = open(".", O_RDONLY | O_DIRECTORY));
    if (fd >= 0) say_stat("its fstat", fstat(fd, &found), &found), list("its names", fd), close(fd);
    say("stat x", stat("x", &found));
    say("open x", open("x", O_RDONLY));
    say("create x", open("x", O_CREAT | O_WRONLY, 0644));
    say("mkdir x", mkdir("x", 0755));
    say("mkdirat x", mkdirat(directory, "x", 0755));
    say("symlink x", symlink("target", "x"));
    say("mkfifo x", mkfifo("x", 0600));
    say("link x", link("../file", "x"));
    say("rename to x", rename("../file", "x"));
    say("rename of x", rename("x", "../y"));
    say("unlink x", unlink("x"));
    say("rmdir x", rmdir("x"));
    say("rmdir .", rmdir("."));
    say("readlink x", readlink("x", text, sizeof text));
    say("getxattr .", getxattr(".", "user.a", text, sizeof text));
    say("chdir .", chdir("."));
    say("fchdir", fchdir(directory));
    say_stat("stat ..", stat("..", &found), &found);
    say_stat("stat ../file", stat("../file", &found), &found);
    say("chdir ..", chdir(".."));
    say_stat("stat file", stat("file", &found), &found);
}

int main(int count, char **arguments) {
    struct stat found;
    if (count < 3 || chdir(arguments[1]) || stat(".", &found)) return 2;
    int directory = open(".", O_PATH);
    if (directory < 0) return 2;
    int child = fork(), status;
    if (!child) {
        execvp(arguments[2], arguments + 2);
        _exit(127);
    }
    if (waitpid(child, &status, 0) != child || status) return 2;
    try_all(directory, found.st_ino);
    return 0;
}
