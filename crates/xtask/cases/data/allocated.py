"""What is allocated can be written, and written again, when the pool is full: `begin` allocates,
fills the pool and writes; `again` does the rest, perhaps in another fleet."""
import ctypes
import errno
import mmap
import os
import sys

M = 1 << 20
KEPT = 12 * M
KEEP, PUNCH = 1, 2
LIBC = ctypes.CDLL(None, use_errno=True)


def fallocate(fd, mode, offset, length):
    result = LIBC.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length))
    return errno.errorcode[ctypes.get_errno()] if result else "ok"


def free():
    found = os.statvfs(".")
    return found.f_bavail * found.f_bsize


def write(fd, byte, piece):
    for at in range(0, KEPT, piece):
        left, done = memoryview(bytes([byte]) * piece), 0
        while done < piece:
            done += os.pwrite(fd, left[done:], at + done)


def check(fd, byte):
    assert os.pread(fd, KEPT, 0) == bytes([byte]) * KEPT


def fill():
    try:
        for number in range(10_000):
            fd = os.open(f"fill{number}", os.O_RDWR | os.O_CREAT)
            for at in range(0, M, 1 << 14):
                os.pwrite(fd, b"f" * (1 << 14), at)
            os.close(fd)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        print(number, "files")
    assert number > 5


def is_full(fd):
    try:
        return os.pwrite(fd, b"x" * 8 * M, KEPT) < 8 * M
    except OSError as error:
        return error.errno == errno.ENOSPC


os.chdir(sys.argv[2])
fd = os.open("kept", os.O_RDWR | os.O_CREAT, 0o644)
if sys.argv[1] == "begin":
    before = free()
    assert fallocate(fd, KEEP, 0, 1 << 40) == "ENOSPC"
    assert fallocate(fd, 0, 0, KEPT) == "ok"
    assert before - free() >= KEPT, (before, free())
    fill()
    write(fd, 65, 4096)
    os.fsync(fd)
    check(fd, 65)
    assert is_full(fd)
    os.ftruncate(fd, KEPT)
    # In another file, what is beyond the end is allocated.
    os.unlink("fill0")
    os.sync()
    other = os.open("beyond", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    assert fallocate(other, KEEP, 0, M // 4) == "ok"
    fill()
    for _ in range(16):
        assert os.write(other, b"a" * (1 << 14)) == 1 << 14
else:
    for byte, piece in [(66, M), (67, 1 << 16), (68, 4096)]:
        write(fd, byte, piece)
        os.fsync(fd)
        check(fd, byte)
    memory = mmap.mmap(fd, KEPT)
    memory[:] = b"m" * KEPT
    memory.flush()
    memory.close()
    check(fd, ord("m"))
    before = free()
    assert fallocate(fd, PUNCH | KEEP, 0, KEPT) == "ok"
    os.sync()
    assert free() - before > KEPT // 2, (before, free())
    check(fd, 0)
    other = os.open("again", os.O_RDWR | os.O_CREAT)
    assert os.pwrite(other, b"x" * M, 0) == M
