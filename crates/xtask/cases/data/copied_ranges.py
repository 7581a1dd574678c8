"""copy_file_range between files, whose contents are known in memory: whole blocks, which may be
shared, and others. The files are written, punched, cut, mapped and renamed in between."""
import ctypes
import errno
import mmap
import os
import random
import subprocess

BLOCK = 4096
REACH = 40 * BLOCK
LIBC = ctypes.CDLL(None, use_errno=True)
KEEP, PUNCH = 1, 2


def name_of(number):
    return f"d{number % 2}/file{number}"


class File:
    def __init__(self, number):
        self.name = name_of(number)
        self.bytes = bytearray()
        self.fd = os.open(self.name, os.O_RDWR | os.O_CREAT, 0o644)

    def resize(self, size):
        self.bytes = self.bytes[:size] + bytes(max(0, size - len(self.bytes)))

    def write(self, at, data):
        os.pwrite(self.fd, data, at)
        self.put(at, data)

    def put(self, at, data):
        if data:
            self.resize(max(len(self.bytes), at + len(data)))
            self.bytes[at:at + len(data)] = data

    def check(self):
        found = os.pread(self.fd, REACH * 4, 0)
        assert found == self.bytes, (self.name, len(found), len(self.bytes))


def place(rng):
    return rng.choice([0, rng.randrange(REACH), BLOCK * rng.randrange(REACH // BLOCK)])


def copy(rng, source, target):
    start, to = place(rng), place(rng)
    length = rng.choice([REACH * 2, BLOCK * rng.randrange(1, 20), rng.randrange(1, REACH)])
    wanted = min(length, max(0, len(source.bytes) - start))
    if source is target and abs(start - to) < wanted:
        return
    data = bytes(source.bytes[start:start + wanted])
    done = 0
    while done < wanted:
        count = os.copy_file_range(source.fd, target.fd, wanted - done, start + done, to + done)
        assert count > 0, (source.name, target.name, start, to, length, done)
        done += count
    target.put(to, data)


def change(rng, file):
    kind = rng.randrange(6)
    if kind <= 2:
        file.write(place(rng), bytes([rng.randrange(256)]) * rng.randrange(1, 4 * BLOCK))
    elif kind == 3:
        size = place(rng)
        os.ftruncate(file.fd, size)
        file.resize(size)
    elif kind == 4:
        at, length = place(rng), rng.randrange(1, 8 * BLOCK)
        arguments = file.fd, PUNCH | KEEP, ctypes.c_long(at), ctypes.c_long(length)
        assert LIBC.fallocate(*arguments) == 0
        end = min(at + length, len(file.bytes))
        file.bytes[at:end] = bytes(max(0, end - at))
    elif file.bytes:
        with mmap.mmap(file.fd, len(file.bytes)) as mapped:
            at = rng.randrange(len(file.bytes))
            mapped[at] = file.bytes[at] = rng.randrange(256)


def random_calls():
    rng = random.Random(13)
    for directory in ("d0", "d1"):
        os.mkdir(directory)
    files = [File(number) for number in range(6)]
    for step in range(4000):
        if rng.randrange(3):
            copy(rng, rng.choice(files), rng.choice(files))
        else:
            change(rng, rng.choice(files))
        if step % 50 == 0:
            os.fsync(rng.choice(files).fd)
        if step % 5 == 0:
            rng.choice(files).check()
        if step % 400 == 0:
            file = rng.choice(files)
            os.close(file.fd)
            os.unlink(file.name)
            file.__init__(files.index(file))
    for file in files:
        file.check()
        print(file.name, os.stat(file.name).st_size, hash_of(file.bytes))


def hash_of(data):
    value = 0
    for byte in data:
        value = (value * 31 + byte) % (1 << 61)
    return value


def errors():
    for name, mode in (("plain", 0o644), ("other", 0o644)):
        with open(name, "wb") as out:
            out.write(name.encode() * 3000)
        os.chmod(name, mode)
    read, write = os.open("plain", os.O_RDONLY), os.open("other", os.O_WRONLY)
    append = os.open("other", os.O_WRONLY | os.O_APPEND)
    both = os.open("other", os.O_RDWR)
    directory = os.open(".", os.O_RDONLY)
    cases = [
        ("to a reader", read, read, 4096, 0, 0),
        ("from a writer", write, write, 4096, 0, 8192),
        ("to an appender", read, append, 4096, 0, 0),
        ("overlapping", both, both, 8192, 0, 4096),
        ("from a directory", directory, write, 4096, 0, 0),
        ("at the end", read, write, 4096, 15000, 0),
        ("behind the end", read, write, 4096, 1 << 40, 0),
        ("nothing", read, write, 0, 0, 0),
    ]
    for what, source, target, length, start, to in cases:
        try:
            print(what, os.copy_file_range(source, target, length, start, to))
        except OSError as error:
            print(what, errno.errorcode[error.errno])


def privileges():
    for mode in (0o4755, 0o2755, 0o6777, 0o2666):
        for user in (0, 12345):
            with open("tool", "wb") as out:
                out.write(bytes(8192))
            os.chmod("tool", mode)
            program = "import os\n"
            program += "a, b = os.open('plain', os.O_RDONLY), os.open('tool', os.O_WRONLY)\n"
            program += f"os.setuid({user})\nos.copy_file_range(a, b, 8192, 0, 0)\n"
            drops = {"user": user, "group": user, "extra_groups": []} if user else {}
            os.chmod("tool", mode | 0o2) if user else None
            subprocess.run(["python3", "-c", program], check=True, **drops)
            print(oct(mode), user, oct(os.stat("tool").st_mode))
            os.unlink("tool")


def with_cp():
    rng = random.Random(7)
    os.mkdir("tree")
    for number in range(20):
        with open(f"tree/{number}", "wb") as out:
            out.write(rng.randbytes(1000 * number * number))
    for argument in ("--reflink=auto", "--reflink=never", "--sparse=always"):
        subprocess.run(["cp", argument, "-a", "tree", f"copy{argument}"], check=True)
        print(subprocess.run(["diff", "-r", "tree", f"copy{argument}"]).returncode)
        for number in range(20):
            copied = f"tree/{number}-copy"
            subprocess.run(["cp", argument, f"tree/{number}", copied], check=True)
            assert subprocess.run(["cmp", f"tree/{number}", copied]).returncode == 0
            os.unlink(copied)
    always = subprocess.run(["cp", "--reflink=always", "tree/9", "always"], capture_output=True)
    print(always.returncode)


random_calls()
errors()
privileges()
with_cp()
