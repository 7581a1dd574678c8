# A change has no earlier time than one that had returned before it began, in any directory.
# needs: gcc
# tree: no
cc -O1 -Wall -Werror -o ordered_times "$CASES/ordered_times.c"
./ordered_times 20000
