/* Programs that are executed with an environment built from nothing. Prints how many of them have
 * the library: called as "environment ROUND". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int has_library(void)
{
    char line[1024];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        found |= strstr(line, "libwarren_interpose") != NULL;
    fclose(maps);
    return found;
}

int main(int argc, char **argv)
{
    int round = argc > 1 ? atoi(argv[1]) : 0, variables = 0;
    for (char **variable = environ; variable && *variable; variable++)
        variables += strncmp(*variable, "LD_", 3) && strncmp(*variable, "WARREN_", 7);
    printf("round %d: library %d variables %d\n", round, has_library(), variables);
    fflush(stdout);
    char next[16];
    snprintf(next, sizeof next, "%d", round + 1);
    char *arguments[] = { argv[0], next, NULL };
    char *one[] = { "A=b", NULL };
    char *others[] = { "A=b", "LD_PRELOAD=libc.so.6", "LD_AUDIT=", "C=d", NULL };
    int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    switch (round) {
    case 0: execve(argv[0], arguments, NULL); break;
    case 1: execve(argv[0], arguments, one); break;
    case 2: execve(argv[0], arguments, others); break;
    case 3: syscall(SYS_execveat, self, "", arguments, one, 0x1000); break;
    case 4: {
        pid_t child = vfork();
        if (child == 0) {
            execve("/nonexistent", arguments, one);
            execve(argv[0], arguments, one);
            _exit(1);
        }
        int status;
        waitpid(child, &status, 0);
        return WEXITSTATUS(status);
    }
    default:
        printf("bad %ld\n", syscall(SYS_execve, "/bin/true", arguments, 8));
        return 0;
    }
    return 1;
}
