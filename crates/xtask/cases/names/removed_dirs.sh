# A working directory that was removed, by a program with the library and by one without: what is
# left of it, and what cannot be done there any more.
# limit: 60
# needs: gcc
cc -O1 -Wall -o program "$CASES/removed_dirs.c"
here=$PWD
export ROUNDS=1
plain() { env -u LD_PRELOAD "$@"; }
try() {
  rm -rf "$here/top"; mkdir -p "$here/top/dir" "$here/top/other"; chmod 750 "$here/top/dir"
  echo x >"$here/top/file"
  "$@"
}
program=$here/program
echo "== removed"; try "$program" top/dir rmdir "$here/top/dir"
echo "== with what was in it"
try bash -c "mkdir -p top/dir/a/b; touch top/dir/a/c; $program top/dir/a rm -rf $here/top/dir/a"
echo "== replaced"; try "$program" top/dir mv -T "$here/top/other" "$here/top/dir"
echo "== by a program without the library"; try "$program" top/dir env -u LD_PRELOAD rmdir "$here/top/dir"
echo "== in a program without the library"; try plain "$program" top/dir rmdir "$here/top/dir"
echo "== removed by one with it"
try env -u LD_PRELOAD "$program" top/dir env LD_PRELOAD="${LD_PRELOAD:-}" rmdir "$here/top/dir"
echo "== a shell"
try bash -c 'cd top/dir; rmdir ../dir; ls -l; ls -ld . | cut -c1-10; cd .; stat -c %h .; cd ..; ls; pwd | grep -o "top$"'
rm -rf top program
