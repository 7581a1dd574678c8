# Parallel make.
# needs: make
set -e
for i in 1 2 3 4 5 6 7 8 9; do echo "int f$i(void){return $i;}" > f$i.c; done; printf 'all: $(patsubst %%.c,%%.o,$(wildcard f*.c))\n\t@ls *.o\n%%.o: %%.c\n\t@gcc -c $< -o $@\n' > Makefile; make -s -j4
