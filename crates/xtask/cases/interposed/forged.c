/* A mount that is none of Warren's, made by a user who names root's pool as its source.
 *   forged serve POOL MOUNT AT     mounts AT, which shows the attributes of MOUNT's root and has no
 *                                  names, and has this program look at it with LIBRARY
 *   forged look AT                 fails if it has a name */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOOKS 20000
#define REQUEST_MAX (1 << 20)

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        fflush(stdout);
        _exit(2);
    }
}

static void answer(int device, unsigned long unique, int error, void *body, size_t length)
{
    struct fuse_out_header head = {.len = sizeof head + length, .error = error, .unique = unique};
    struct iovec parts[] = {{&head, sizeof head}, {body, length}};
    /* A request may have been interrupted. */
    must(writev(device, parts, 2) > 0 || errno == ENOENT, "answer");
}

static void serve(int device, const struct stat *root)
{
    static char request[REQUEST_MAX];
    struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096};
    struct fuse_attr_out attr = {.attr = {
        .ino = root->st_ino, .mode = root->st_mode, .nlink = root->st_nlink,
        .uid = root->st_uid, .gid = root->st_gid, .size = root->st_size, .blksize = 4096,
        .mtime = root->st_mtim.tv_sec, .mtimensec = root->st_mtim.tv_nsec,
        .ctime = root->st_ctim.tv_sec, .ctimensec = root->st_ctim.tv_nsec,
    }};
    for (;;) {
        ssize_t length = read(device, request, sizeof request);
        if (length < 0 && errno == ENODEV)
            _exit(0);
        must(length >= 0 || errno == EINTR || errno == ENOENT, "read a request");
        if (length < 0)
            continue;
        const struct fuse_in_header *head = (void *)request;
        if (head->opcode == FUSE_INIT)
            answer(device, head->unique, 0, &init, sizeof init);
        else if (head->opcode == FUSE_GETATTR)
            answer(device, head->unique, 0, &attr, sizeof attr);
        else if (head->opcode == FUSE_LOOKUP)
            answer(device, head->unique, -ENOENT, NULL, 0);
        else if (head->opcode != FUSE_FORGET && head->opcode != FUSE_BATCH_FORGET)
            answer(device, head->unique, -ENOSYS, NULL, 0);
    }
}

static int look(const char *at)
{
    char name[4096];
    struct stat found;
    snprintf(name, sizeof name, "%s/name", at);
    for (int count = 0; count < LOOKS; count++) {
        if (stat(name, &found) == 0) {
            printf("%s is there at look %d\n", name, count);
            return 1;
        }
        must(errno == ENOENT, "look");
    }
    return 0;
}

int main(int count, char **words)
{
    must(count >= 3, "find the words");
    if (strcmp(words[1], "look") == 0)
        return look(words[2]);
    struct stat root;
    must(count == 5 && stat(words[3], &root) == 0, "look at the mount");
    int device = open("/dev/fuse", O_RDWR | O_CLOEXEC), status;
    char options[256];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=54321,group_id=54321,"
             "allow_other,default_permissions", device);
    must(device >= 0 && mount(words[2], words[4], "fuse.warren", 0, options) == 0, "mount");
    pid_t server = fork();
    if (server == 0)
        serve(device, &root);
    pid_t looker = fork();
    if (looker == 0) {
        setenv("LD_PRELOAD", getenv("LIBRARY"), 1);
        execl("/proc/self/exe", words[0], "look", words[4], NULL);
        _exit(2);
    }
    must(server > 0 && looker > 0 && waitpid(looker, &status, 0) == looker, "wait");
    must(umount2(words[4], MNT_DETACH) == 0 && kill(server, SIGKILL) == 0, "unmount");
    must(waitpid(server, NULL, 0) == server, "wait for the server");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}
