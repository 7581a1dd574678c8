# What descriptors are good for after the rights of their files were taken away.
# limit: 60
# needs: python3
python3 "$CASES/taken.py"
