# What a former owner may still do, and what callers in user namespaces may do for owners.
# limit: 60
# needs: python3
python3 "$CASES/owners.py"
