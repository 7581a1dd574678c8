# What is not as on ext4: differences.py HERE. Each check is a row of the table in operations.md, and
# fails if the row is not true any more.
import ctypes, errno, fcntl, mmap, os, select, struct, sys, time

os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_EMPTY_PATH, STATX, FALLOCATE = -100, 0x1000, 332, 285
FICLONE, FICLONERANGE, FIDEDUPERANGE, FIEMAP = 0x40049409, 0x4020940D, 0xC0189436, 0xC020660B
GETFLAGS, SETFLAGS, GETVERSION = 0x80086601, 0x40086602, 0x80087601
IMMUTABLE, PAGE = 0x10, 4096
failed = []


def check(what, found, expected):
    if found != expected:
        failed.append(f"{what}: {found!r}, expected {expected!r}")


def errno_of(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0


def system_call(*arguments):
    if libc.syscall(*[ctypes.c_long(it) if isinstance(it, int) else it for it in arguments]) < 0:
        raise OSError(ctypes.get_errno(), "")


def make(name, content=b"", mode=0o644):
    fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)
    os.write(fd, content)
    return fd


def flags(fd, bits):
    fcntl.ioctl(fd, SETFLAGS, struct.pack("L", bits))


def calls_that_linux_does_not_pass_on():
    one, two = make("from", b"x" * 3 * PAGE), make("to", b"y" * 3 * PAGE)
    dedupe = struct.pack("QQHHIqQQiI", 0, PAGE, 1, 0, 0, two, 0, 0, 0, 0)
    extents = struct.pack("QQIIII", 0, 3 * PAGE, 0, 0, 0, 0)
    check("FICLONE", errno_of(fcntl.ioctl, two, FICLONE, one), errno.EOPNOTSUPP)
    clone = struct.pack("qQQQ", one, 0, PAGE, 0)
    check("FICLONERANGE", errno_of(fcntl.ioctl, two, FICLONERANGE, clone), errno.EOPNOTSUPP)
    check("FIDEDUPERANGE", errno_of(fcntl.ioctl, one, FIDEDUPERANGE, dedupe), errno.EOPNOTSUPP)
    check("FIEMAP", errno_of(fcntl.ioctl, one, FIEMAP, extents), errno.EOPNOTSUPP)
    check("FS_IOC_GETVERSION", errno_of(fcntl.ioctl, one, GETVERSION, bytes(8)), errno.ENOTTY)
    for what, mode in ("COLLAPSE_RANGE", 8), ("INSERT_RANGE", 32):
        check(what, errno_of(system_call, FALLOCATE, one, mode, 0, PAGE), errno.EOPNOTSUPP)
    os.close(one), os.close(two)


def what_linux_does_not_ask_for():
    fd = make("marked", b"text")
    flags(fd, IMMUTABLE)
    found = ctypes.create_string_buffer(256)
    system_call(STATX, fd, b"", AT_EMPTY_PATH, 0x7FF, found)
    check("attributes of statx", struct.unpack_from("Q", found, 8)[0] & IMMUTABLE, 0)
    check("flags", struct.unpack("L", fcntl.ioctl(fd, GETFLAGS, bytes(8)))[0], IMMUTABLE)
    check("access of an immutable file", os.access("marked", os.W_OK), True)
    flags(fd, 0)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    shown = [line for line in open("/proc/locks") if line.split()[5].endswith(f":{os.fstat(fd).st_ino}")]
    check("locks in /proc/locks", shown, [])
    os.close(fd)


def polled():
    fd, polls = make("polled", b"text"), select.epoll()
    polls.register(fd, select.EPOLLIN)
    check("epoll", polls.poll(0), [(fd, select.EPOLLIN)])
    polls.close(), os.close(fd)


def mapped():
    fd = make("kept", b"kept" * 1024)
    flags(fd, IMMUTABLE)
    with mmap.mmap(fd, PAGE) as pages:
        pages[:4] = b"lost"
        check("msync of an immutable file", errno_of(pages.flush) != 0, True)
    # The changed page was seen there for a moment longer, seldom.
    end = time.monotonic() + 20
    while os.pread(fd, 4, 0) != b"kept" and time.monotonic() < end:
        time.sleep(0.01)
    check("what is stored in an immutable file", os.pread(fd, 4, 0), b"kept")
    flags(fd, 0)
    os.close(fd)
    fd = make("short", bytes(PAGE))
    with mmap.mmap(fd, PAGE) as pages:
        os.ftruncate(fd, 4)
        pages[100:105] = b"later"
        os.ftruncate(fd, 200)
        check("what is stored behind the end", pages[100:105], b"later")
    os.close(fd)


def without_a_name():
    os.close(make("gone", b"text"))
    fd = os.open("gone", os.O_PATH)
    os.unlink("gone")
    check("a file without a name by O_PATH", errno_of(os.fstat, fd), errno.ESTALE)
    os.close(fd)


def written_by_root():
    capability = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)
    for name, is_kept in ("plain", True), ("able", False):
        fd = make(name, b"text", 0o755)
        os.fchmod(fd, 0o6755)
        if not is_kept:
            os.setxattr(name, "security.capability", capability)
        os.write(fd, b"more")
        check(f"set-id bits of {name}", bool(os.stat(name).st_mode & 0o6000), is_kept)
        os.close(fd)


def access_times():
    os.mkdir("directory"), os.symlink("nowhere", "link"), os.close(make("empty"))
    os.close(make("directory/inside"))
    for name in "directory", "link", "empty":
        os.utime(name, ns=(10**18, 10**18 + 1), follow_symlinks=False)
    os.listdir("directory"), os.readlink("link"), open("empty").read()
    for name in "directory", "link", "empty":
        check(f"the access time of {name}", os.lstat(name).st_atime_ns, 10**18)


for part in (calls_that_linux_does_not_pass_on, what_linux_does_not_ask_for, polled, mapped,
             without_a_name, written_by_root, access_times):
    try:
        part()
    except OSError as error:
        failed.append(f"{part.__name__}: {error}")
sys.exit("\n".join(failed) or 0)
