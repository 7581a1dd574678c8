# Developers' tools: sanitizers that find a fault each, and none where there is none; valgrind;
# a debugger and tracers. And how a user keeps the library out of one program.
# limit: 300
# tree: no
# needs: gcc gdb ltrace strace valgrind setarch
build() { local name=$1; shift; gcc -g -O1 -pthread "$@" -o "$name" "$CASES/developers_tools.c"; }
# What a tool says of a program, without addresses and numbers of processes.
report() {
  local code=0
  echo "== $*"
  timeout 60 "$@" > said 2>&1 < /dev/null || code=$?
  grep -oE '^(sum|collected|shifted) .*|runtime error: .*|SUMMARY: [A-Za-z]+: [^/]*|SIGSYS|FATAL.*' said || true
  grep -oE 'come first.*|Tracer caught.*|(definitely|possibly) lost: .*|exited (normally|with.*)' said || true
  grep -oE '^#[0-9]+ .*files_done \(sum=[0-9]+\)' said || true
  [[ $code == 0 ]] || echo "exit $code"
}
mkdir files
build plain
build address -fsanitize=address
build static-address -fsanitize=address -static-libasan
build leak -fsanitize=leak
build undefined -fsanitize=undefined
build thread -fsanitize=thread
for kind in files collect; do report ./plain $kind files; done
for kind in files leak overflow; do report ./address $kind files; done
for kind in files leak overflow; do report ./static-address $kind files; done
# What the library keeps of the buffer varies with what happens at the same time.
for at in {1..12}; do mkdir "files$at"; ./static-address leak "files$at" > "said$at" 2>&1 & done
wait
grep -h "^SUMMARY" said? said?? | sort | uniq -c
for kind in files leak; do report ./leak $kind files; done
for kind in files shift; do report ./undefined $kind files; done
for kind in files race; do report setarch -R ./thread $kind files; done
runtime=$(gcc -print-file-name=libasan.so)
report env LD_PRELOAD="$runtime" ./plain leak files

memcheck="valgrind --leak-check=full --error-exitcode=9"
for kind in files leak; do report $memcheck ./plain $kind files; done
report valgrind --tool=helgrind --error-exitcode=9 ./plain race files
report valgrind --trace-children=yes --error-exitcode=9 bash -c './plain files files && true'

debug() { report gdb -q -batch "$@" -ex continue --args ./plain files files; }
debug -ex run
debug -ex 'break files_done' -ex run -ex backtrace
debug -ex 'set startup-with-shell off' -ex 'break unlink' -ex run -ex delete
# The tracer sees each call, and no others than without the library.
for tracer in "strace" "strace -f"; do
  $tracer -o trace -e trace=unlink,unlinkat,open,openat ./plain files files
  grep -c 'unlink' trace
  grep -cE 'files/alone.*O_RDONLY' trace
  grep -c SIGSYS trace || true
done
ltrace -o trace -e unlink ./plain files files
grep -c 'unlink(' trace
# What the debugged program starts.
report gdb -q -batch -ex run --args bash -c './plain files files; ./plain files files'

# The library is in no program of these, or it does nothing there.
loaded='grep -c libwarren_interpose /proc/self/maps || true'
env -u LD_PRELOAD bash -c "$loaded; env -i bash -c '$loaded'"
LD_PRELOAD='' bash -c "$loaded"
(unset LD_PRELOAD; exec bash -c "$loaded")
WARREN_INTERPOSE=off WARREN_REPORT=$PWD/reports bash -c './plain files files; env -i ./plain files files'
touch reports
grep -cE '^served [1-9]|^warren [0-9]+ ended' reports || true
