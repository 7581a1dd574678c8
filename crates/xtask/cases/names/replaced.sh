# Names that are replaced, while other processes use them, lead to one file or another.
# limit: 60
# tree: no
# needs: gcc
cc -O1 -Wall -Werror -o replaced "$CASES/replaced.c"
./replaced 3
