# Positions in directories while another process changes them, also one without the library.
# limit: 120
# tree: no
# needs: gcc
cc -O1 -Wall -o program "$CASES/listings.c"
./program
rm -rf directory
env -u LD_PRELOAD ./program
rm -rf directory
