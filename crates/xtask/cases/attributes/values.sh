# Extended attributes with long values, and with many names. The reference file system need not have
# as much room for them: then the same is printed for what it does not hold.
# limit: 120
# tree: no
# needs: python3
set +e
python3 - <<'PY'
import errno, os, sys
FUSE = 0x65735546
is_here = os.popen("stat -f -c %t .").read().strip() == f"{FUSE:x}"
names = errno.errorcode

def attempt(call, *args, **options):
    try:
        return call(*args, **options)
    except OSError as e:
        return names[e.errno]

def value(length, salt=0):
    return bytes((at * 7 + at // 251 + salt) % 256 for at in range(length))

for make in (lambda: os.mkdir("dir"), lambda: os.close(os.open("file", os.O_CREAT))):
    make()
for path in ("file", "dir"):
    # Every length at which another way begins.
    for length in (0, 1, 128, 129, 1999, 2000, 2001, 2047, 2048, 2049, 4000, 4096, 8000, 8192,
                   16384, 16385, 60000, 65535, 65536, 30, 5000, 129):
        done = attempt(os.setxattr, path, "user.a", value(length))
        if done is not None:
            # A file system with less room refuses it so.
            assert not is_here and done in ("ENOSPC", "E2BIG"), (length, done)
            continue
        assert os.getxattr(path, "user.a") == value(length), length
        assert os.listxattr(path) == ["user.a"]
    print(path, attempt(os.setxattr, path, "user.a", value(65537)),
          attempt(os.setxattr, path, "user.a", value(9000), os.XATTR_CREATE),
          attempt(os.setxattr, path, "user.b", value(9000), os.XATTR_REPLACE),
          attempt(os.removexattr, path, "user.b"), attempt(os.removexattr, path, "user.a"),
          attempt(os.getxattr, path, "user.a"), os.listxattr(path))

# By descriptor, and one value instead of another.
fd = os.open("file", os.O_RDWR)
if is_here:
    for turn in range(20):
        os.setxattr(fd, f"user.{turn % 3}", value(65536 - turn, turn))
        os.setxattr(fd, f"user.{(turn + 1) % 3}", value(10 + turn, turn))
        assert os.getxattr(fd, f"user.{turn % 3}") == value(65536 - turn, turn)
    for name in os.listxattr(fd):
        os.removexattr(fd, name)
    os.setxattr("file", "trusted.long", value(50000))
    assert os.getxattr("file", "trusted.long") == value(50000)
    os.removexattr("file", "trusted.long")
print(os.listxattr(fd))

# As many names as there is room for.
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def size(call, *args):
    found = call(*args)
    return found if found >= 0 else names[ctypes.get_errno()]
count, total = 0, 0
while True:
    name = f"user.{count:0>240}" if count % 2 else f"user.{count}"
    done = attempt(os.setxattr, fd, name, b"x" * (count % 200))
    if done is not None:
        break
    count, total = count + 1, total + len(name) + 1
found = os.listxattr(fd)
assert len(found) == len(set(found)) == count, (len(found), count)
assert total <= 65536 and (not is_here or total > 65536 - 300), total
assert size(libc.flistxattr, fd, None, 0) == total
small = ctypes.create_string_buffer(10)
print(done, size(libc.flistxattr, fd, small, 10))
for name in found:
    assert len(os.getxattr(fd, name)) == int(name[5:]) % 200, name
for name in found[::2]:
    os.removexattr(fd, name)
assert sorted(os.listxattr(fd)) == sorted(found[1::2])
os.unlink("file")
os.close(fd)

# The buffer is too small by one byte.
open("other", "w").close()
length = 65536 if is_here else 1000
os.setxattr("other", "user.a", value(length))
room = ctypes.create_string_buffer(length)
print(size(libc.getxattr, b"other", b"user.a", room, length - 1),
      size(libc.getxattr, b"other", b"user.a", room, length) - length,
      size(libc.getxattr, b"other", b"user.a", None, 0) - length)
PY
