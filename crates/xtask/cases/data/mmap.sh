# Shared mappings by two processes, mappings beside read and write, and programs run from the mount.
# limit: 90
# tree: no
# needs: gcc
cc -O1 -Wall -o mmap "$CASES/mmap.c"
./mmap
cp "$(command -v ls)" ./my-ls
mkdir seen && touch seen/a seen/b
./my-ls seen
printf '#!/bin/bash\necho "script $1"\n' > script && chmod +x script && ./script works
ldd ./my-ls > /dev/null && echo linked
cp "$(command -v sleep)" ./nap
./nap 0.5 & napping=$!
until [[ $(readlink "/proc/$napping/exe") == */nap ]]; do :; done
rm nap && wait "$napping" && echo "ran on after unlink"
chmod 644 script && { ./script 2>/dev/null || echo "not executable: $?"; }
