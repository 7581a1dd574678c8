# A C project as most are: ./configure with compile tests, make -j2, make check, make install, and a
# second make that finds nothing to do, then one that finds one file changed.
# limit: 180
# needs: gcc make
modules=${MODULES:-12}
cat > configure <<'END'
#!/bin/sh
# Looks for a compiler, headers and functions, and writes config.h, config.status and Makefile.
set -e
prefix=/usr/local
for argument; do case $argument in --prefix=*) prefix=${argument#--prefix=} ;; esac; done
exec 5>config.log
: > confdefs.h
try() { # macro, program
  printf '%s\n' "$2" > conftest.c
  if cc -o conftest conftest.c >&5 2>&1 && ./conftest >&5 2>&1; then
    echo "#define $1 1" >> confdefs.h; echo "checking $1... yes"
  else
    echo "/* #undef $1 */" >> confdefs.h; echo "checking $1... no"
  fi
  rm -f conftest conftest.c
}
for header in stdio.h stdint.h unistd.h sys/stat.h pthread.h no_such.h; do
  macro=HAVE_$(echo "$header" | tr 'a-z./' 'A-Z__')
  try "$macro" "#include <$header>
int main(void) { return 0; }"
done
for function in strlen mmap fsync no_such_function; do
  try "HAVE_$(echo $function | tr a-z A-Z)" "char $function();
int main(void) { return $function == 0; }"
done
mv confdefs.h config.h
sed "s,@prefix@,$prefix,g" Makefile.in > Makefile
echo "#!/bin/sh
exec ./configure --prefix=$prefix" > config.status
chmod +x config.status
END
chmod +x configure
objects=""
mkdir src tests
for i in $(seq "$modules"); do
  cat > "src/m$i.h" <<END
int m$i(int);
END
  cat > "src/m$i.c" <<END
#include "../config.h"
#include "m$i.h"
static int table[1024];
int m$i(int x) {
  for (int i = 0; i < 1024; i++) table[i] = i * x + $i;
  int sum = 0;
  for (int i = 0; i < 1024; i++) sum ^= table[i];
  return sum;
}
END
  objects="$objects src/m$i.o"
done
{
  echo '#include <stdio.h>'
  for i in $(seq "$modules"); do echo "#include \"m$i.h\""; done
  echo 'int main(int argc, char **argv) { (void)argv; int s = 0;'
  for i in $(seq "$modules"); do echo "  s += m$i(argc + $i);"; done
  echo '  printf("%d\n", s); return 0; }'
} > src/main.c
cat > Makefile.in <<END
prefix = @prefix@
OBJECTS =$objects
all: prog libm.a
prog: src/main.o libm.a
	cc -o prog src/main.o libm.a
libm.a: \$(OBJECTS)
	rm -f libm.a
	ar rcD libm.a \$(OBJECTS)
%.o: %.c config.h
	cc -O1 -Wall -Isrc -c -o \$@ \$<
check: prog
	./prog > tests/out
	test -s tests/out && echo PASS
install: all
	mkdir -p \$(DESTDIR)\$(prefix)/bin \$(DESTDIR)\$(prefix)/lib
	install -m 755 prog \$(DESTDIR)\$(prefix)/bin/prog
	install -m 644 libm.a \$(DESTDIR)\$(prefix)/lib/libm.a
clean:
	rm -f prog libm.a src/*.o
END
./configure --prefix=/opt/project
make -s -j2
make -s check
cat tests/out
make -s install DESTDIR="$PWD/dest"
make -q && echo "nothing to do"
sleep 0.02
touch src/m3.c
make -n | sed -n '1p'
make -s -j2
make -q && echo "nothing to do"
dest/opt/project/bin/prog
make -s clean
ls src | wc -l
rm config.log
