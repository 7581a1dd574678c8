# Stores through a shared mapping that nothing has written back, and goes on living: mapped.py FILE MIB. Says
# "dirty" when all stores are made.
import mmap, os, sys, time

size = int(sys.argv[2]) << 20
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(file, size)
mapped = mmap.mmap(file, size)
for at in range(0, size, 4096):
    mapped[at : at + 8] = at.to_bytes(8, "little")
print("dirty", flush=True)
time.sleep(600)
