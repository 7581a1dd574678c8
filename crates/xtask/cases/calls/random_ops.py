"""Random operations on few names, so that they meet. Prints each with its result."""
import errno
import hashlib
import os
import random
import stat
import sys

seed, steps = int(sys.argv[1]), int(sys.argv[2])
rng = random.Random(seed)
print("seed", seed)
open_files = {}


def path():
    return "/".join(rng.choice("abcd") for _ in range(rng.choice((1, 1, 2, 2, 3))))


def describe(found):
    kind = stat.S_IFMT(found.st_mode)
    size = found.st_size if kind != stat.S_IFDIR else 0
    return oct(found.st_mode), found.st_nlink, size, found.st_uid, found.st_gid


def do_open():
    flags = rng.choice((os.O_RDONLY, os.O_WRONLY, os.O_RDWR))
    for flag in (os.O_CREAT, os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_APPEND, os.O_NOFOLLOW):
        if rng.random() < 0.4:
            flags |= flag
    if not flags & os.O_CREAT:
        flags &= ~os.O_EXCL
    name, mode = path(), rng.choice((0o644, 0o600, 0o755))
    yield "open", name, oct(flags), oct(mode)
    fd = os.open(name, flags, mode)
    number = rng.randrange(6)
    if number in open_files:
        os.close(open_files.pop(number))
    open_files[number] = fd
    yield describe(os.fstat(fd))


def some_fd():
    if not open_files:
        raise OSError(errno.EBADF, "none")
    number = rng.choice(sorted(open_files))
    return number, open_files[number]


def do_close():
    number, fd = some_fd()
    yield "close", number
    del open_files[number]
    os.close(fd)


def do_write():
    number, fd = some_fd()
    size = rng.choice((1, 10, 4096, 5000, 40000, 140000))
    at = rng.choice((None, 0, 100, 4095, 8192, 70000, 300000))
    data = rng.randbytes(64) * (size // 64 + 1)
    yield "write", number, size, at
    yield os.write(fd, data[:size]) if at is None else os.pwrite(fd, data[:size], at)
    yield os.fstat(fd).st_size, os.lseek(fd, 0, os.SEEK_CUR)


def do_read():
    number, fd = some_fd()
    size, at = rng.choice((1, 100, 4096, 100000, 500000)), rng.choice((0, 50, 4096, 65536, 299999))
    yield "read", number, size, at
    data = os.pread(fd, size, at)
    yield len(data), hashlib.sha1(data).hexdigest()[:10]


def do_seek():
    number, fd = some_fd()
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        return  # Where a directory ends is every file system's own business.
    at, whence = rng.randrange(200000), rng.choice((os.SEEK_SET, os.SEEK_END))
    yield "seek", number, at, whence
    yield os.lseek(fd, at, whence)


def do_ftruncate():
    number, fd = some_fd()
    size = rng.choice((0, 1, 4096, 4097, 100000, 500000))
    yield "ftruncate", number, size
    os.ftruncate(fd, size)
    if rng.random() < 0.2:
        os.fsync(fd)


def do_truncate():
    name, size = path(), rng.choice((0, 5, 4096, 12345, 262144))
    yield "truncate", name, size
    os.truncate(name, size)


def two_paths(call, word):
    source, target = path(), path()
    yield word, source, target
    call(source, target)


def one_path(call, word):
    name = path()
    yield word, name
    call(name)


def do_symlink():
    target, name = rng.choice((path(), "../" + path(), "missing")), path()
    yield "symlink", target, name
    os.symlink(target, name)


def do_stat():
    name = path()
    yield "stat", name
    yield describe(os.lstat(name))
    yield describe(os.stat(name))


def do_list():
    name = rng.choice((path(), "."))
    yield "list", name
    yield sorted(os.listdir(name))


def do_hash():
    name = path()
    yield "hash", name
    with open(name, "rb") as file:
        yield hashlib.sha1(file.read()).hexdigest()[:10]


def do_chmod():
    name, mode = path(), rng.choice((0o644, 0o755, 0o4755, 0o1777, 0o600))
    yield "chmod", name, oct(mode)
    os.chmod(name, mode)


def do_chown():
    name, uid, gid = path(), rng.choice((-1, 0, 1000)), rng.choice((-1, 0, 1000))
    yield "chown", name, uid, gid
    os.chown(name, uid, gid)


def do_utime():
    name, ns = path(), (rng.randrange(2**60), rng.randrange(2**60))
    yield "utime", name, ns
    os.utime(name, ns=ns)
    yield os.stat(name).st_mtime_ns


def do_xattr():
    name, key = path(), "user." + rng.choice("xyz")
    action = rng.choice(("set", "get", "remove", "list"))
    yield action + "xattr", name, key
    if action == "set":
        os.setxattr(name, key, rng.randbytes(rng.choice((0, 1, 50, 300))))
    elif action == "get":
        yield len(os.getxattr(name, key))
    elif action == "remove":
        os.removexattr(name, key)
    else:
        yield sorted(os.listxattr(name))


def do_fifo():
    name = path()
    yield "mkfifo", name
    if name.count("/"):
        os.mkfifo(name, 0o600)
        os.unlink(name)


OPERATIONS = [
    (do_open, 14),
    (do_close, 4),
    (do_write, 12),
    (do_read, 8),
    (do_seek, 2),
    (do_ftruncate, 4),
    (do_truncate, 3),
    (lambda: two_paths(os.rename, "rename"), 12),
    (lambda: two_paths(os.link, "link"), 8),
    (lambda: one_path(os.unlink, "unlink"), 6),
    (lambda: one_path(os.mkdir, "mkdir"), 12),
    (lambda: one_path(os.rmdir, "rmdir"), 6),
    (lambda: one_path(os.readlink, "readlink"), 2),
    (do_symlink, 4),
    (do_stat, 10),
    (do_list, 5),
    (do_hash, 6),
    (do_chmod, 3),
    (do_chown, 2),
    (do_utime, 3),
    (do_xattr, 6),
    (do_fifo, 1),
]
choices, weights = zip(*OPERATIONS)

for step in range(steps):
    line = []
    try:
        line.extend(rng.choices(choices, weights)[0]())
    except OSError as error:
        line.append(errno.errorcode[error.errno])
    print(step, *line)
for fd in open_files.values():
    os.close(fd)
