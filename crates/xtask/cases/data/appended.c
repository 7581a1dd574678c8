/* Processes append records to one file at the same time through two mounts, some of them with the
 * library, and keep descriptors open or open the file again and again. Each record must be there
 * once, whole, and behind the one that the same process has appended before.
 *   appended run COUNT SEED ONE TWO FILE    COUNT records by each of four processes
 *   appended ends ONE TWO FILE              what a descriptor to append has for its offset */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WRITERS 4
#define WARM 3000
/* The writer, the number of the record, and its length. */
#define HEADER "%1d %8ld %5ld "
#define HEADER_LENGTH 17
#define LENGTH_MAX 9000
#define LOOKS_MAX 10000

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        exit(2);
    }
}

static unsigned long below(unsigned long *state, unsigned long end)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state % end;
}

/* A few records are longer than a page, and one ends in another page than it begins. */
static long length_of(unsigned long *state)
{
    return HEADER_LENGTH + 1 + below(state, below(state, 40) ? 100 : LENGTH_MAX - HEADER_LENGTH - 1);
}

static int open_to_append(const char *path, unsigned long *state)
{
    int file = open(path, O_APPEND | (below(state, 2) ? O_WRONLY : O_RDWR));
    must(file >= 0, "open the file to append");
    return file;
}

/* In a process of its own: `append WRITER COUNT SEED FILE BARRIER`. */
static int append(char **words)
{
    int writer = atoi(words[0]), barrier = atoi(words[4]), file;
    long count = atol(words[1]);
    unsigned long state = (strtoul(words[2], NULL, 10) + 1) * 0x9e3779b97f4a7c15 ^ writer;
    const char *path = words[3];
    char record[LENGTH_MAX], none;
    struct stat found;
    for (int i = 0; i < WARM; i++)
        must(stat(path, &found) == 0, "stat");
    must(read(barrier, &none, 1) == 0, "wait for the others");
    file = open_to_append(path, &state);
    for (long number = 0; number < count; number++) {
        if (below(&state, 16) == 0) {
            must(close(file) == 0, "close");
            file = open_to_append(path, &state);
        }
        long length = length_of(&state);
        memset(record, 'a' + writer, length);
        record[snprintf(record, sizeof record, HEADER, writer, number, length)] = 'a' + writer;
        record[length - 1] = '\n';
        long wrote = write(file, record, length);
        if (wrote != length) {
            printf("writer %d appended %ld of %ld bytes: %s\n", writer, wrote, length,
                   strerror(errno));
            return 1;
        }
    }
    must(close(file) == 0, "close");
    return 0;
}

static int check(const char *path, long count)
{
    static char content[1 << 26];
    long next[WRITERS] = {0}, at = 0, end = 0;
    int file = open(path, O_RDONLY);
    must(file >= 0, "open the file to read");
    for (long got; (got = read(file, content + end, sizeof content - 1 - end)) != 0; end += got)
        must(got > 0, "read");
    close(file);
    while (at < end) {
        int writer;
        long number, length;
        char header[HEADER_LENGTH + 1] = "";
        memcpy(header, content + at, HEADER_LENGTH);
        if (sscanf(header, HEADER, &writer, &number, &length) != 3 || writer < 0 ||
            writer >= WRITERS || length <= HEADER_LENGTH || at + length > end ||
            content[at + length - 1] != '\n') {
            printf("%s: no record at %ld of %ld: %.40s\n", path, at, end, content + at);
            return 1;
        }
        for (long i = HEADER_LENGTH; i < length - 1; i++)
            if (content[at + i] != 'a' + writer) {
                printf("%s: a record at %ld has other bytes at %ld\n", path, at, at + i);
                return 1;
            }
        if (number != next[writer]++) {
            printf("%s: record %ld of writer %d at %ld, expected %ld\n", path, number, writer, at,
                   next[writer] - 1);
            return 1;
        }
        at += length;
    }
    for (int writer = 0; writer < WRITERS; writer++)
        if (next[writer] != count) {
            printf("%s: %ld records of writer %d\n", path, next[writer], writer);
            return 1;
        }
    return 0;
}

static char *joined(const char *directory, const char *name)
{
    char *path;
    must(asprintf(&path, "%s/%s", directory, name) > 0, "make a path");
    return path;
}

static int run(const char *count, const char *seed, char *paths[2])
{
    char number[8], barrier[8];
    int pipe_to[2], status, result = 0;
    must(close(open(paths[0], O_CREAT | O_EXCL | O_WRONLY, 0644)) == 0, "make the file");
    must(pipe(pipe_to) == 0, "make a pipe");
    snprintf(barrier, sizeof barrier, "%d", pipe_to[0]);
    for (int writer = 0; writer < WRITERS; writer++) {
        pid_t pid = fork();
        must(pid >= 0, "fork");
        if (pid == 0) {
            close(pipe_to[1]);
            snprintf(number, sizeof number, "%d", writer);
            if (writer >= WRITERS / 2)
                unsetenv("LD_PRELOAD");
            execl("/proc/self/exe", "appended", "append", number, count, seed, paths[writer % 2],
                  barrier, NULL);
            _exit(3);
        }
    }
    close(pipe_to[0]);
    close(pipe_to[1]);
    for (int writer = 0; writer < WRITERS; writer++) {
        must(wait(&status) > 0, "wait");
        result |= status != 0;
    }
    return result | check(paths[0], atol(count)) | check(paths[1], atol(count));
}

static void appends(int file, const char *what)
{
    must(write(file, what, strlen(what)) == (long)strlen(what), "append");
}

static int differs(const char *what, long found, long expected)
{
    if (found != expected)
        printf("%s: %ld, expected %ld\n", what, found, expected);
    return found != expected;
}

/* Asks until the kernel has this end: it drops an answer that comes with a recall. */
static void look(int file, long end)
{
    for (int try = 0; try < LOOKS_MAX && lseek(file, 0, SEEK_END) != end; try++)
        usleep(1000);
}

/* Each append is at the end, wherever the other mount has put it. The offset of the descriptor is
 * that of the end, too, once this mount's kernel has it. */
static int ends(char *paths[2])
{
    char content[64] = "";
    int result = 0;
    int one = open(paths[0], O_CREAT | O_EXCL | O_RDWR | O_APPEND, 0644);
    int two = open(paths[1], O_RDWR | O_APPEND);
    must(one >= 0 && two >= 0, "open a file twice");
    appends(one, "first ");
    appends(two, "second ");
    appends(one, "third ");
    result |= differs("the length", pread(one, content, sizeof content, 0), 19);
    result |= differs("the content", strcmp(content, "first second third "), 0);
    appends(two, "fourth ");
    look(one, 26);
    appends(one, "fifth ");
    result |= differs("the offset after a look", lseek(one, 0, SEEK_CUR), 32);
    must(truncate(paths[1], 6) == 0, "truncate");
    appends(one, "sixth ");
    look(two, 12);
    result |= differs("the length after a cut", lseek(two, 0, SEEK_END), 12);
    memset(content, 0, sizeof content);
    result |= differs("the length that is read", pread(one, content, sizeof content, 0), 12);
    result |= differs("the content after a cut", strcmp(content, "first sixth "), 0);
    look(one, 12);
    appends(one, "seventh ");
    result |= differs("the offset after a cut", lseek(one, 0, SEEK_CUR), 20);
    return result;
}

int main(int count, char **words)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count == 7 && strcmp(words[1], "append") == 0)
        return append(words + 2);
    if (count == 7 && strcmp(words[1], "run") == 0)
        return run(words[2], words[3], (char *[]){joined(words[4], words[6]), joined(words[5], words[6])});
    if (count == 5 && strcmp(words[1], "ends") == 0)
        return ends((char *[]){joined(words[2], words[4]), joined(words[3], words[4])});
    return 2;
}
