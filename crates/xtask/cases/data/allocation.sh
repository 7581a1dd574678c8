# fallocate in all modes, and where files have data and holes: sizes, blocks, bytes, errors.
# limit: 120
# needs: python3
python3 "$CASES/allocation.py"
