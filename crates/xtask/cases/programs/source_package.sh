# A real source package: fetched, unpacked, configured, built and tested as its authors do. Skipped
# where no source package can be reached.
# full
# limit: 900
# tree: no
# needs: gcc make tar
fetch() {
  apt-get source -q --download-only hello && return
  # No sources are configured: the same places, asked for source packages, with lists of our own.
  mkdir -p lists/partial parts
  find /etc/apt/sources.list /etc/apt/sources.list.d -name '*.list' -exec sed -n 's/^deb /deb-src /p' {} + > parts/lines.list
  for file in /etc/apt/sources.list.d/*.sources; do
    sed 's/^Types:.*/Types: deb-src/' "$file" > "parts/${file##*/}"
  done
  local options=(-q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$PWD/parts"
    -o "Dir::State::lists=$PWD/lists" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update && apt-get "${options[@]}" source --download-only hello
}
cache="$PLACE/source"
if [ ! -d "$cache" ]; then
  mkdir "$cache"
  # Without a network nothing is fetched, which is a reason to skip.
  (cd "$cache" && fetch) > "$cache.log" 2>&1 || echo "failed: $?" >> "$cache.log"
fi
if ! ls "$cache"/*.orig.tar.* > /dev/null 2>&1; then
  echo "skipped: no source package can be fetched"
  exit 0
fi
mkdir package
cd package
for archive in "$cache"/*.orig.tar.*[!c]; do tar xf "$archive" --strip-components=1; done
export FORCE_UNSAFE_CONFIGURE=1
./configure > ../configure.out 2>&1 || { tail -5 ../configure.out; exit 1; }
make -j2 > ../make.out 2>&1 || { tail -5 ../make.out; exit 1; }
make check > ../check.out 2>&1 || { tail -5 ../check.out; exit 1; }
grep -E '^# (TOTAL|PASS|FAIL|ERROR)' ../check.out
make install DESTDIR="$PWD/../installed" > ../install.out 2>&1
find ../installed -type f | wc -l
