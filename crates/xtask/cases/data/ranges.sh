# Random changes of one file by all calls that change its data, beside a copy in memory.
# limit: 240
# needs: gcc
gcc -O1 -Wall -Werror -o ranges "$CASES/ranges.c"
./ranges file 100000 1
./ranges file 100000 2 plain
rm ranges
