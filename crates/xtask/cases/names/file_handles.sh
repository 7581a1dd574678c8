# File handles: of every kind of file, of moved and removed ones, without the kernel's caches, of
# files that are open without a name, forged ones, and without the right to open them.
# limit: 90
# tree: no
# needs: gcc
cc -O1 -Wall -o program "$CASES/file_handles.c"
mkdir tree
chmod 755 . tree
here=$PWD
handles() { ./program "$@"; }
handles make "$here/tree" "$here/handles"
echo "== as they were made"; handles show "$here/tree" "$here/handles"
handles drop x; echo "== without caches"; handles show "$here/tree" "$here/handles"
handles change "$here/tree"
echo "== changed"; handles show "$here/tree" "$here/handles"
handles drop x; echo "== changed, without caches"; handles show "$here/tree" "$here/handles"
echo "== open files"; handles open "$here/tree"
echo "== ways to name them"; handles ways "$here/tree"
echo "== without the right"; handles nobody "$here/tree" "$here/handles"
