# What POSIX says of single operations: rename over things, unlinked open files, append by many,
# permissions, set-id and sticky bits, times, special files, extended attributes.
# limit: 90
# needs: python3
python3 "$CASES/semantics.py"
