# Thousands of random operations with random arguments: every result, every errno and the tree at the
# end must be what the reference gives.
# limit: 240
# needs: python3
for run in $(seq "${RUNS:-3}"); do
  mkdir "run$run"
  (cd "run$run" && python3 "$CASES/random_ops.py" "$((SEED + run))" "${STEPS:-3000}")
done
