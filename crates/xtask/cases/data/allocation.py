"""fallocate and lseek for data and holes; every result is printed."""
import ctypes
import errno
import mmap
import os
import random

K = 1024
KEEP, PUNCH, COLLAPSE, ZERO, INSERT, UNSHARE = 1, 2, 8, 16, 32, 64
LIBC = ctypes.CDLL(None, use_errno=True)


def fallocate(fd, mode, offset, length):
    result = LIBC.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length))
    return errno.errorcode[ctypes.get_errno()] if result else "ok"


def seek(fd, offset, whence):
    try:
        return os.lseek(fd, offset, whence)
    except OSError as error:
        return errno.errorcode[error.errno]


def layout(fd):
    """The ranges with data."""
    found, at = [], 0
    while True:
        data = seek(fd, at, os.SEEK_DATA)
        if data == "ENXIO":
            return found
        at = seek(fd, data, os.SEEK_HOLE)
        found.append((data, at))


def show(what, fd, exact=True, blocks=True):
    """Not `exact`: blocks were allocated, of which ext4 writes some as zeros. Without `blocks`:
    ext4 counts those of its own records too."""
    stat = os.fstat(fd)
    content = os.pread(fd, 16 * K * K, 0)
    found = layout(fd)
    for before, after in zip([(0, 0)] + found, found + [(len(content), None)]):
        assert not any(content[before[1]:after[0]]), (what, "data in a hole", found)
    runs, last = [], None
    for at in range(0, len(content), 512):
        values = sorted(set(content[at:at + 512]))
        if values != last:
            runs.append((at, values))
            last = values
    print(what, stat.st_size, blocks and stat.st_blocks, exact and found, runs)


def fresh(name, size, byte=b"d"):
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.pwrite(fd, byte * size, 0)
    os.fsync(fd)
    return fd


def modes():
    for offset, length in [(0, 8 * K), (4 * K, 8 * K), (5000, 9000), (100, 200), (30 * K, 20 * K),
                           (28 * K, 4 * K), (60 * K, 10 * K), (4096, 1), (4095, 2)]:
        for mode in [0, KEEP, PUNCH | KEEP, ZERO, ZERO | KEEP]:
            fd = fresh("modes", 40 * K)
            print(mode, offset, length, fallocate(fd, mode, offset, length))
            show("file", fd, exact=mode == PUNCH | KEEP)
            os.close(fd)


def beyond_the_end():
    fd = fresh("beyond", 5000)
    print(fallocate(fd, KEEP, 0, 64 * K))
    show("kept", fd)
    os.pwrite(fd, b"w", 20000)
    show("written", fd, exact=False)
    os.ftruncate(fd, 20001)
    show("cut to its size", fd, exact=False)
    print(fallocate(fd, KEEP, 0, 64 * K))
    os.ftruncate(fd, 10000)
    show("cut", fd, exact=False)
    print(fallocate(fd, 0, 0, 64 * K))
    show("longer", fd, exact=False)
    os.ftruncate(fd, 100 * K)
    show("extended", fd, exact=False)
    os.ftruncate(fd, 0)
    show("empty", fd)
    print(fallocate(fd, 0, 0, 1), os.fstat(fd).st_size)
    os.close(fd)


def errors():
    fd = fresh("errors", 100)
    for mode, offset, length in [
            (0, -1, 10), (0, 0, 0), (0, 0, -1), (0, 10, -1), (0, 2 ** 63 - 1, 1), (0, 2 ** 63 - 1, 2),
            (KEEP, 2 ** 62, 2 ** 62), (PUNCH, 0, 10), (PUNCH | ZERO | KEEP, 0, 10),
            (UNSHARE | KEEP | PUNCH, 0, 10), (1 << 20, 0, 10), (COLLAPSE | KEEP, 0, 4096),
            (INSERT | KEEP, 0, 4096), (ZERO | COLLAPSE, 0, 4096)]:
        print("error", mode, offset, length, fallocate(fd, mode, offset, length))
    os.close(fd)
    for flags in [os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_APPEND]:
        fd = os.open("errors", flags)
        print("opened", flags, fallocate(fd, 0, 0, 10), fallocate(fd, PUNCH | KEEP, 0, 10))
        os.close(fd)
    fd = os.open(".", os.O_RDONLY)
    print("directory", fallocate(fd, 0, 0, 10))
    os.close(fd)
    os.mkfifo("fifo")
    fd = os.open("fifo", os.O_RDWR)
    print("fifo", fallocate(fd, 0, 0, 10))
    os.close(fd)
    os.unlink("fifo")
    fd = os.open("errors", os.O_RDWR)
    for offset in [-1, 0, 99, 100, 101, 2 ** 62]:
        print("seek", offset, seek(fd, offset, os.SEEK_DATA), seek(fd, offset, os.SEEK_HOLE))
    print("place", os.lseek(fd, 7, 0), seek(fd, 50, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_CUR),
          seek(fd, 500, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_CUR))
    os.close(fd)


def attributes():
    for mode in [0, KEEP, PUNCH | KEEP, ZERO]:
        fd = fresh("attributes", 20 * K)
        os.utime("attributes", (1, 1))
        os.chmod("attributes", 0o6755)
        before = os.fstat(fd)
        fallocate(fd, mode, 4 * K, 4 * K)
        after = os.fstat(fd)
        print("root", oct(after.st_mode), after.st_mtime > 1, after.st_ctime >= before.st_ctime)
        os.close(fd)
        os.chmod("attributes", 0o6777)
        child = os.fork()
        if child == 0:
            os.setgid(65534)
            os.setuid(65534)
            fd = os.open("attributes", os.O_RDWR)
            fallocate(fd, mode, 4 * K, 4 * K)
            os._exit(0)
        os.waitpid(child, 0)
        print("user", oct(os.stat("attributes").st_mode))


def mapped():
    """What a program stores in a mapping is data, whether it is written back or not."""
    fd = os.open("mapped", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.ftruncate(fd, 64 * K)
    memory = mmap.mmap(fd, 64 * K)
    print("empty", layout(fd))
    memory[8 * K] = 1
    print("stored", layout(fd))
    memory[40 * K + 5] = 2
    memory[41 * K] = 3
    print("stored again", layout(fd), seek(fd, 0, os.SEEK_HOLE))
    fallocate(fd, PUNCH | KEEP, 0, 41 * K)
    print("punched", layout(fd), memory[8 * K], memory[40 * K + 5], memory[41 * K])
    memory[0] = 9
    fallocate(fd, ZERO, 0, 4 * K)
    print("zeroed", memory[0])
    memory[1] = 7
    other = os.open("mapped", os.O_RDONLY)
    print("by another", layout(other), os.pread(other, 4, 0), memory[1])
    os.close(other)
    memory.close()
    os.close(fd)


def sequences():
    """Random changes, in every second sequence without allocation."""
    for seed in range(8):
        draw = random.Random(seed)
        fd = os.open("random", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        for number in range(120):
            at, length = draw.randrange(200 * K), draw.randrange(1, 40 * K)
            if draw.random() < 0.4:
                at, length = at & ~4095, (length + 4095) & ~4095
            what = draw.randrange(9)
            if what < 3:
                os.pwrite(fd, bytes([draw.randrange(1, 255)]) * length, at)
            elif what == 3:
                # ext4 makes data of a hole in which the file ends.
                os.ftruncate(fd, at if seed % 2 else at & ~4095)
            elif what == 4:
                os.fsync(fd)
            else:
                mode = [0, KEEP, PUNCH | KEEP, ZERO, ZERO | KEEP][draw.randrange(5)]
                mode = mode if seed % 2 else PUNCH | KEEP
                end = os.fstat(fd).st_size
                if mode == PUNCH | KEEP:
                    length = min(length, end - at)
                if length > 0:
                    fallocate(fd, mode, at, length)
            if number % 10 == 0:
                show(f"random {seed} {number}", fd, exact=seed % 2 == 0, blocks=False)
        os.close(fd)


modes(), beyond_the_end(), errors(), attributes(), mapped(), sequences()
