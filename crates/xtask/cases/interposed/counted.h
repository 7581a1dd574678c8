/* For programs that count the requests of a fleet. WARREN is the program that is asked. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int right, const char *what)
{
    if (!right) {
        printf("cannot %s: %s\n", what, strerror(errno));
        exit(2);
    }
}

/* Of all cells, since the fleet was started. */
static long requests(void)
{
    char command[1024], *at, text[65536] = "";
    snprintf(command, sizeof command, "'%s' status --json", getenv("WARREN"));
    FILE *status = popen(command, "r");
    must(status != 0, "ask for the counts");
    must(fread(text, 1, sizeof text - 1, status) > 0 && pclose(status) == 0, "read the counts");
    long sum = 0;
    for (at = text; (at = strstr(at, "\"requests\":")) != 0; at++)
        sum += strtol(at + strlen("\"requests\":"), 0, 10);
    return sum;
}
