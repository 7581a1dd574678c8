# Whether all stores of mapped.py are in the file: mapped_check.py FILE MIB.
import sys

size = int(sys.argv[2]) << 20
with open(sys.argv[1], "rb") as file:
    content = file.read()
assert len(content) == size, f"{len(content)} bytes of {size}"
lost = [at for at in range(0, size, 4096) if content[at : at + 8] != at.to_bytes(8, "little")]
assert not lost, f"{len(lost)} of {size // 4096} stores are lost"
