/* Files made one after the other, in directories of several cells: ordered_times FILES
 *
 * The time of none is earlier than that of the one before. `make` and `test -nt` rest on this.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIRECTORIES = 16 };

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

int main(int count, char **arguments)
{
	long files = count == 2 ? atol(arguments[1]) : 0, early = 0, last = 0, worst = 0;
	char name[32];
	for (int at = 0; at < DIRECTORIES; at++) {
		snprintf(name, sizeof name, "d%d", at);
		if (mkdir(name, 0755))
			fail(name);
	}
	for (long at = 0; at < files; at++) {
		snprintf(name, sizeof name, "d%ld/file", at % DIRECTORIES);
		int file = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
		struct stat found;
		if (file < 0 || close(file) || stat(name, &found) || unlink(name))
			fail(name);
		long time = found.st_mtim.tv_sec * 1000000000 + found.st_mtim.tv_nsec;
		if (time < last) {
			early++;
			worst = last - time > worst ? last - time : worst;
		}
		last = time;
	}
	if (early)
		printf("%ld files have an earlier time than the one before, by up to %ld ns\n",
		       early, worst);
	return early != 0;
}
