# A real source package: fetched, configured, built, tested. Skipped, with a word, where no package
# source can be reached.
# full
# limit: 900
# tree: no
# needs: gcc make tar
cp -r "$CACHE" package
cd package
tar xf ./*.orig.tar.* --strip-components=1
./configure > configure.out 2>&1 || { tail -5 configure.out; exit 1; }
make -j2 > make.out 2>&1 || { tail -5 make.out; exit 1; }
make check > check.out 2>&1 || { tail -5 check.out; exit 1; }
grep -E '^# (TOTAL|PASS|FAIL|ERROR)' check.out
