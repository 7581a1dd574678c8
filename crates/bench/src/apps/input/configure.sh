# A configuration like those of autoconf. Each check writes, compiles and removes a file. Then files
# are made of a template, and moved to their places if they are new.
# $headers and $templates are set before.
: >config.log
: >confdefs.h
for header in $headers; do
    cat >conftest.c <<END
#include <$header.h>
int main(void) { return 0; }
END
    rm -f conftest.o
    if cc -c conftest.c 2>conftest.err && test -s conftest.o; then
        name=$(echo "$header" | tr 'a-z/' 'A-Z_')
        echo "#define HAVE_${name}_H 1" >>confdefs.h
    else
        cat conftest.err >>config.log
    fi
    rm -f conftest.c conftest.o conftest.err
done
number=0
while test $number -lt $templates; do
    number=$((number + 1))
    mkdir -p "made/part-$number"
    sed -e "s|@number@|$number|g" -e "s|@version@|1.0|g" ../inputs/template.in >conftest.out
    if cmp -s conftest.out "made/part-$number/Makefile"; then
        rm -f conftest.out
    else
        mv -f conftest.out "made/part-$number/Makefile"
    fi
done
cp confdefs.h config.h
