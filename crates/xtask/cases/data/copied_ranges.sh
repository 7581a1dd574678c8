# copy_file_range at random offsets, between files of one and of two directories, beside a copy in
# memory; errors and mappings. cp with and without --reflink.
# limit: 240
# needs: python3
python3 "$CASES/copied_ranges.py"
