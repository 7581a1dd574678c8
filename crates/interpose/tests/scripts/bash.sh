# Pipes, here-documents, jobs, traps and coprocesses of bash.
# needs: bash
set -e
bash -c 'f() { cat <<X | tr a-z A-Z | sort | uniq -c | head -3
b
a
$1
X
}; for i in 1 2 3 4 5; do f $i; done; x=$(echo $(seq 1 50 | while read n; do echo $((n*n)); done | tail -1)); echo $x; trap "echo trapped" USR1; kill -USR1 $$; sleep 0.01 & wait; diff <(seq 3) <(seq 4); echo $?; coproc cat; echo hi >&${COPROC[1]}; read -u ${COPROC[0]} y; echo $y; printf "%s\n" *; ulimit -n; exit 7' || echo "exit $?"
