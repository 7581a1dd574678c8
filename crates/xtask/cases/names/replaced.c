/* Names that are replaced while other processes use them by path: replaced SECONDS
 *
 * One process renames other files and links over the names of files and of a symbolic link. Two
 * others remove files, and a directory with a file, and make them again. Two more open, stat, list
 * and change all of these by their paths. Where a name is missing for a moment a call may fail with
 * ENOENT. No call fails with ESTALE, and where the name is never missing none fails at all.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 2, USERS = 2, BELOW = 16, CALLS = 9, CONTENT = 13 };

struct counts {
	long calls[CALLS];
	long stale[CALLS];
	long other[CALLS];
	long replaced;
};

static const char *const names[CALLS] = {"open", "stat",  "truncate", "opendir", "create",
					 "link", "below", "chmod",    "readlink"};
static struct counts *counts;
static double end;

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void fail(const char *what)
{
	perror(what);
	exit(2);
}

static void write_file(const char *path)
{
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (file < 0)
		fail(path);
	if (write(file, "some content\n", CONTENT) != CONTENT)
		fail("write");
	close(file);
}

/* Replaces names by renames, which never leave a name without a file. */
static void rename_over(void)
{
	char path[64], next[64];
	for (unsigned turn = 0; now() < end; turn++) {
		snprintf(path, sizeof path, "over%u", turn % FILES);
		snprintf(next, sizeof next, "next%u", turn % FILES);
		write_file(next);
		if (rename(next, path))
			fail("rename");
		if (symlink(path, "next") || rename("next", "current"))
			fail("a link");
		__atomic_fetch_add(&counts->replaced, 1, __ATOMIC_RELAXED);
	}
}

/* Removes files and makes them again. */
static void make_files_again(void)
{
	char path[64];
	for (unsigned turn = 0; now() < end; turn++) {
		snprintf(path, sizeof path, "again%u", turn % FILES);
		if (unlink(path) && errno != ENOENT)
			fail("unlink");
		write_file(path);
		__atomic_fetch_add(&counts->replaced, 1, __ATOMIC_RELAXED);
	}
}

/* Removes a directory with its file and makes it again. */
static void make_directory_again(void)
{
	while (now() < end) {
		unlink("above/file");
		if (rmdir("above") && errno != ENOENT && errno != ENOTEMPTY)
			fail("rmdir");
		if (mkdir("above", 0755) && errno != EEXIST)
			fail("mkdir");
		close(open("above/file", O_WRONLY | O_CREAT, 0644));
		__atomic_fetch_add(&counts->replaced, 1, __ATOMIC_RELAXED);
	}
}

static void count(int call, int result, int is_there)
{
	__atomic_fetch_add(&counts->calls[call], 1, __ATOMIC_RELAXED);
	if (result >= 0)
		return;
	if (errno == ESTALE)
		__atomic_fetch_add(&counts->stale[call], 1, __ATOMIC_RELAXED);
	else if (errno != ENOENT || is_there)
		__atomic_fetch_add(&counts->other[call], 1, __ATOMIC_RELAXED);
}

static int opened(const char *path, int flags)
{
	char bytes[64];
	int file = open(path, flags, 0644);
	if (file < 0)
		return file;
	int got = flags & O_DIRECTORY ? 0 : pread(file, bytes, sizeof bytes, 0);
	if (got < 0 && (flags & O_ACCMODE) != O_WRONLY)
		fail("read of an open file");
	close(file);
	return 0;
}

static void use(void)
{
	char over[64], again[64], linked[64], target[64];
	struct stat stat_of;
	snprintf(linked, sizeof linked, "linked%d", getpid());
	for (unsigned turn = 0; now() < end; turn++) {
		snprintf(over, sizeof over, "over%u", turn % FILES);
		snprintf(again, sizeof again, "again%u", turn % FILES);
		count(0, opened(over, O_RDONLY), 1);
		count(0, opened(again, O_RDONLY), 0);
		count(1, stat(over, &stat_of), 1);
		count(1, stat(again, &stat_of), 0);
		count(1, stat("current", &stat_of), 1);
		count(8, readlink("current", target, sizeof target), 1);
		count(2, truncate(over, CONTENT), 1);
		count(2, opened(over, O_WRONLY | O_TRUNC), 1);
		count(3, opened("above", O_RDONLY | O_DIRECTORY), 0);
		count(4, opened(over, O_RDWR | O_CREAT), 1);
		count(5, link(over, linked), 0);
		unlink(linked);
		/* Where one name of a path is missing as often as the other, most walks are repeated. */
		for (int again = 0; again < BELOW; again++)
			count(6, opened("above/file", O_RDONLY), 0);
		count(7, chmod(over, 0644), 1);
	}
}

static pid_t start(void (*work)(void))
{
	pid_t child = fork();
	if (child < 0)
		fail("fork");
	if (child == 0) {
		work();
		exit(0);
	}
	return child;
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (counts == MAP_FAILED)
		fail("mmap");
	for (int file = 0; file < FILES; file++) {
		char path[64];
		snprintf(path, sizeof path, "over%d", file);
		write_file(path);
	}
	if (symlink("over0", "current"))
		fail("current");
	end = now() + atof(argv[1]);
	start(rename_over);
	start(make_files_again);
	start(make_directory_again);
	for (int user = 0; user < USERS; user++)
		start(use);
	int status, failed = 0;
	while (wait(&status) > 0)
		failed |= status;
	long stale = 0, other = 0;
	for (int call = 0; call < CALLS; call++) {
		fprintf(stderr, "%s: %ld calls, %ld ESTALE, %ld other\n", names[call],
			counts->calls[call], counts->stale[call], counts->other[call]);
		stale += counts->stale[call];
		other += counts->other[call];
	}
	fprintf(stderr, "%ld replaced\n", counts->replaced);
	printf("%ld ESTALE, %ld other errors\n", stale, other);
	return failed || stale || other;
}
