# Record locks, open-file-description locks and flock: conflicts, waiting, a waiter that is killed, a
# holder that is killed, a deadlock, and what close releases.
# limit: 90
# tree: no
# needs: gcc flock
cc -O1 -Wall -o locks "$CASES/locks.c"
./locks
# flock(1): two processes take turns.
: > turns
for i in 1 2 3 4; do
  flock gate bash -c "n=\$(wc -l < turns); sleep 0.02; echo \$n >> turns" &
done
wait
sort -n turns | tr '\n' ' '; echo
flock gate sleep 20 & holder=$!
sleep 0.1
flock -n gate true || echo "held: $?"
flock -w 0.2 gate true || echo "timed out: $?"
flock -s gate true & waiter=$!
sleep 0.1
kill -KILL "$waiter"
wait "$waiter" && echo "the waiter ended well" || echo "waiter: $?"
# The program that it holds the lock for; it ends with that.
pkill -P "$holder"
wait "$holder" && echo "the holder ended well" || echo "holder: $?"
flock -w 5 gate echo "free again"
