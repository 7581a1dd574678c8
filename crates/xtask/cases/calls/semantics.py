"""Single operations with the results that they must have; every result is printed."""
import ctypes
import errno
import os
import stat
import subprocess
import sys

NOBODY = 65534


def attempt(what, call, *arguments, **named):
    try:
        result = call(*arguments, **named)
        print(what, "->", result if isinstance(result, (int, str, bytes, list)) else "ok")
        return result
    except OSError as error:
        print(what, "->", errno.errorcode[error.errno])
        return None


def put(name, text="x", mode=0o644):
    with open(name, "w") as file:
        file.write(text)
    os.chmod(name, mode)


def get(name):
    with open(name) as file:
        return file.read()


def as_nobody(call):
    """Runs `call` in a child with another user's rights."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        call()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)


def renames():
    put("a", "a"), put("b", "b"), os.mkdir("d"), os.mkdir("e"), put("e/in", "in")
    attempt("file over file", os.rename, "a", "b")
    print(get("b"), os.path.exists("a"))
    attempt("file over directory", os.rename, "b", "d")
    attempt("directory over file", os.rename, "d", "b")
    attempt("directory over full directory", os.rename, "d", "e")
    attempt("directory over empty directory", os.rename, "e", "d")
    attempt("into itself", os.rename, "d", "d/below")
    attempt("missing", os.rename, "nothing", "else")
    attempt("to itself", os.rename, "b", "b")
    os.link("b", "b2")
    attempt("over its own link", os.rename, "b", "b2")
    print(sorted(os.listdir(".")), os.stat("b2").st_nlink)
    attempt("rmdir of full", os.rmdir, "d")
    attempt("rmdir of file", os.rmdir, "b")
    attempt("unlink of directory", os.unlink, "d")
    print("links of directories", os.stat(".").st_nlink, os.stat("d").st_nlink)
    attempt("link to a directory", os.link, "d", "hard")
    attempt("open of a directory to write", os.open, "d", os.O_WRONLY)
    attempt("directory as file", os.open, "b/x", os.O_RDONLY)
    attempt("exclusive over existing", os.open, "b", os.O_CREAT | os.O_EXCL)
    os.symlink("loop", "loop")
    attempt("loop", os.stat, "loop")
    attempt("no follow", os.open, "loop", os.O_RDONLY | os.O_NOFOLLOW)


def open_files():
    fd = os.open("ghost", os.O_CREAT | os.O_RDWR, 0o600)
    os.write(fd, b"ghost data")
    os.unlink("ghost")
    print(os.fstat(fd).st_nlink, os.pread(fd, 100, 0))
    os.ftruncate(fd, 5)
    os.pwrite(fd, b"!", 8)
    print(os.pread(fd, 100, 0), os.fstat(fd).st_size)
    put("ghost", "new")
    print(os.pread(fd, 5, 0), get("ghost"))
    os.close(fd)
    put("victim", "old")
    old = os.open("victim", os.O_RDONLY)
    put("fresh", "fresh")
    os.rename("fresh", "victim")
    print(os.read(old, 10), get("victim"))
    directory = os.open("gone", os.O_RDONLY) if os.mkdir("gone") is None else None
    os.rmdir("gone")
    attempt("create in a removed directory", os.open, "x", os.O_CREAT, dir_fd=directory)
    attempt("list a removed directory", os.listdir, directory)
    os.close(directory)
    attempt("hole", lambda: os.close(os.open("hole", os.O_CREAT | os.O_WRONLY)))
    with open("hole", "r+b") as file:
        file.seek(10000)
        file.write(b"end")
    with open("hole", "rb") as file:
        read = file.read()
    print(len(read), read.strip(b"\0"))


def appends():
    """Appends by four processes neither overwrite nor tear."""
    script = (
        "import os, sys\nfd = os.open('log', os.O_WRONLY | os.O_APPEND | os.O_CREAT)\n"
        "for i in range(250): os.write(fd, b'%s %04d\\n' % (sys.argv[1].encode(), i))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, name]) for name in "abcd"]
    print([writer.wait() for writer in writers])
    with open("log") as file:
        lines = file.read().splitlines()
    print(len(lines), len(set(lines)))
    print([[line for line in lines if line[0] == name] == [f"{name} {i:04}" for i in range(250)] for name in "abcd"])
    os.unlink("log")


def creators():
    """Of many that create one name exclusively, one wins; of many renames onto one name, one stays."""
    script = (
        "import os, sys\nwon = 0\nfor i in range(50):\n"
        "    try: os.close(os.open(f'race{i}', os.O_CREAT | os.O_EXCL | os.O_WRONLY)); won += 1\n"
        "    except FileExistsError: pass\n"
        "    mine = f'mine{sys.argv[1]}'\n    open(mine, 'w').write(sys.argv[1]); os.rename(mine, 'prize')\n"
        "print(won)\n"
    )
    racers = [subprocess.Popen([sys.executable, "-c", script, str(n)], stdout=subprocess.PIPE) for n in range(4)]
    print(sum(int(racer.communicate()[0]) for racer in racers), get("prize") in "0123")
    print(len([name for name in os.listdir(".") if name.startswith("race")]))
    for i in range(50):
        os.unlink(f"race{i}")
    os.unlink("prize")


def permissions():
    put("secret", "s", 0o600), put("public", "p", 0o644)
    os.mkdir("closed", 0o700), put("closed/inside"), os.mkdir("sticky"), os.chmod("sticky", 0o1777)
    put("sticky/roots"), os.mkdir("group"), os.chown("group", 0, NOBODY), os.chmod("group", 0o2775)

    def other():
        attempt("read another's", os.open, "secret", os.O_RDONLY)
        attempt("read public", get, "public")
        attempt("write public", os.open, "public", os.O_WRONLY)
        attempt("walk closed", os.stat, "closed/inside")
        attempt("list closed", os.listdir, "closed")
        attempt("chmod another's", os.chmod, "public", 0o777)
        attempt("chown another's", os.chown, "public", NOBODY, NOBODY)
        attempt("utime another's", os.utime, "public")
        attempt("unlink in sticky", os.unlink, "sticky/roots")
        attempt("rename in sticky", os.rename, "sticky/roots", "sticky/mine")
        attempt("create in sticky", put, "sticky/own")
        attempt("give away", os.chown, "sticky/own", 0, -1)
        attempt("set-gid directory", put, "group/in")
        attempt("access", os.access, "secret", os.R_OK)
        attempt("create in root's", put, "denied")
        attempt("set-id", os.chmod, "sticky/own", 0o6755)
        attempt("write clears set-id", lambda: open("sticky/own", "a").write("x"))

    os.chmod(".", 0o755)
    as_nobody(other)
    for name in ("sticky/own", "group/in"):
        found = os.stat(name)
        print(name, oct(found.st_mode), found.st_uid, found.st_gid)
    os.mkdir("group/sub")
    print(oct(os.stat("group/sub").st_mode), os.stat("group/sub").st_gid)
    old = os.umask(0o027)
    put_raw = os.open("masked", os.O_CREAT | os.O_WRONLY, 0o666)
    os.close(put_raw)
    os.mkdir("masked-dir", 0o777)
    os.umask(old)
    print(oct(os.stat("masked").st_mode), oct(os.stat("masked-dir").st_mode))
    put("suid", "x", 0o4755)
    os.chown("suid", NOBODY, NOBODY)
    print("chown clears set-id", oct(os.stat("suid").st_mode))


def times():
    put("t")
    os.utime("t", ns=(1_234_567_890_123_456_789, 987_654_321_987_654_321))
    found = os.stat("t")
    print(found.st_atime_ns, found.st_mtime_ns)
    before = os.stat("t").st_ctime_ns
    os.chmod("t", 0o600)
    after = os.stat("t")
    print("chmod: mtime kept", after.st_mtime_ns == found.st_mtime_ns, "ctime on", after.st_ctime_ns > before)
    with open("t", "a") as file:
        file.write("more")
    print("write: mtime on", os.stat("t").st_mtime_ns > found.st_mtime_ns)
    os.mkdir("td")
    directory = os.stat("td").st_mtime_ns
    put("td/x")
    grown = os.stat("td").st_mtime_ns
    os.unlink("td/x")
    print("directory: mtime on", grown > directory, os.stat("td").st_mtime_ns > grown)
    before = os.stat("t").st_ctime_ns
    os.link("t", "t2")
    print("link: ctime on", os.stat("t").st_ctime_ns > before)
    os.utime("t", ns=(-1_000_000_000, -1))
    print(os.stat("t").st_mtime_ns, os.stat("t").st_atime_ns)
    for name in ("td", "t", "t2"):
        os.utime(name, (0, 0))


def specials():
    os.mkfifo("fifo")
    os.mknod("null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    attempt("socket", os.mknod, "sock", stat.S_IFSOCK | 0o600)
    for name in ("fifo", "null", "sock"):
        found = os.stat(name)
        print(name, oct(found.st_mode), found.st_rdev)
    child = os.fork()
    if child == 0:
        with open("fifo", "w") as pipe:
            pipe.write("through the fifo")
        os._exit(0)
    print(get("fifo"))
    os.waitpid(child, 0)


def attributes():
    put("x")
    attempt("get missing", os.getxattr, "x", "user.none")
    attempt("set", os.setxattr, "x", "user.colour", b"red")
    attempt("create existing", os.setxattr, "x", "user.colour", b"blue", os.XATTR_CREATE)
    attempt("replace missing", os.setxattr, "x", "user.other", b"1", os.XATTR_REPLACE)
    attempt("replace", os.setxattr, "x", "user.colour", b"green", os.XATTR_REPLACE)
    for name in "user.colour", "user.other":
        attempt("create and replace", os.setxattr, "x", name, b"1", os.XATTR_CREATE | os.XATTR_REPLACE)
    attempt("set empty", os.setxattr, "x", "user.empty", b"")
    attempt("get", os.getxattr, "x", "user.colour")
    print(sorted(os.listxattr("x")))
    attempt("remove", os.removexattr, "x", "user.colour")
    attempt("remove missing", os.removexattr, "x", "user.colour")
    attempt("on a symlink", os.setxattr, "loop", "user.x", b"1", follow_symlinks=False)
    print(os.listxattr("x"))


def privileges():
    for mode in (0o4755, 0o2755, 0o2745, 0o6711):
        put("p", "x")
        os.chmod("p", mode)
        os.chown("p", os.getuid(), -1)
        print(oct(mode), "chown", oct(os.stat("p").st_mode))
        os.chmod("p", mode)
        os.chown("p", -1, -1)
        print(oct(mode), "chown to nobody new", oct(os.stat("p").st_mode))
        os.chmod("p", mode)
        os.truncate("p", 0)
        print(oct(mode), "truncate", oct(os.stat("p").st_mode))
        os.unlink("p")


def sizes():
    put("s", "0123456789")
    os.truncate("s", 4)
    print(get("s"))
    os.truncate("s", 6)
    print(get("s").encode())
    attempt("negative", os.truncate, "s", -1)
    attempt("truncate a directory", os.truncate, "d", 0)
    fd = os.open("s", os.O_RDONLY)
    attempt("write to a read-only descriptor", os.write, fd, b"x")
    attempt("truncate a read-only descriptor", os.ftruncate, fd, 0)
    os.close(fd)
    fd = os.open("s", os.O_RDWR | os.O_TRUNC)
    attempt("write", os.write, fd, b"a" * 200_000)
    attempt("read at the end", os.pread, fd, 10, 200_000)
    attempt("fsync", os.fsync, fd)
    attempt("fdatasync", os.fdatasync, fd)
    attempt("preadv", lambda: len(os.pread(fd, 1 << 20, 100)))
    os.close(fd)
    attempt("fsync of a directory", lambda: os.fsync(os.open(".", os.O_RDONLY)))
    free = os.statvfs(".")
    print(free.f_namemax, free.f_bsize >= 512, free.f_bfree <= free.f_blocks)


def name_spaces():
    put("n"), os.symlink("n", "n-link")
    names = ("user.a", "trusted.a", "security.a", "system.a", "other.a", "plain", "user.", "trusted.", "security.", "user")

    def use(what, path, value):
        for name in names:
            attempt(what + " set " + name, os.setxattr, path, name, value, follow_symlinks=False)
            attempt(what + " get " + name, os.getxattr, path, name, follow_symlinks=False)
        print(what, sorted(os.listxattr(path, follow_symlinks=False)))

    use("file", "n", b"1"), use("link", "n-link", b"2")
    os.chmod("n", 0o666)
    as_nobody(lambda: (use("file", "n", b"3"), use("link", "n-link", b"4")))
    os.chmod("n", 0o600)
    as_nobody(lambda: [attempt("get " + name, os.getxattr, "n", name) for name in names[:3]])
    as_nobody(lambda: attempt("remove", os.removexattr, "n", "trusted.a"))
    for name in names:
        attempt("remove " + name, os.removexattr, "n", name)
    print(sorted(os.listxattr("n")))


def whiteouts():
    libc = ctypes.CDLL(None, use_errno=True)
    noreplace, exchange, whiteout = 1, 2, 4

    def rename(old, new, flags):
        if libc.renameat2(-100, old.encode(), -100, new.encode(), flags) != 0:
            raise OSError(ctypes.get_errno(), "renameat2")

    def show(*names):
        for name in names:
            found = os.lstat(name)
            print(name, oct(found.st_mode), found.st_rdev, found.st_nlink, found.st_uid, found.st_size)

    os.mkdir("white"), os.mkdir("white/below"), put("white/a", "aa"), put("white/b", "b")
    attempt("to a new name", rename, "white/a", "white/below/c", whiteout)
    show("white/a", "white/below/c")
    attempt("over a file", rename, "white/below/c", "white/b", whiteout)
    show("white/b", "white/below/c")
    print(get("white/b"))
    attempt("of a directory", rename, "white/below", "white/d", whiteout)
    show("white/below"), print(sorted(os.listdir("white/d")), os.stat("white").st_nlink)
    attempt("over a whiteout", rename, "white/b", "white/a", whiteout)
    attempt("not over a file", rename, "white/a", "white/b", whiteout | noreplace)
    attempt("not over nothing", rename, "white/a", "white/e", whiteout | noreplace)
    attempt("missing", rename, "white/none", "white/f", whiteout)
    attempt("exchange", rename, "white/a", "white/b", whiteout | exchange)
    os.link("white/e", "white/g")
    attempt("to itself", rename, "white/e", "white/g", whiteout)
    attempt("unknown flag", rename, "white/e", "white/h", 8)
    show("white/e", "white/g")
    os.mkdir("open"), os.chmod("open", 0o777)

    def by_another():
        put("open/mine", "m")
        attempt("by another user", rename, "open/mine", "open/yours", whiteout)
        show("open/mine")
        attempt("where it may not", rename, "white/e", "open/stolen", whiteout)

    as_nobody(by_another)
    print(sorted(os.listdir("white")), sorted(os.listdir("open")))
    attempt("removed", os.unlink, "white/a")


def nameless():
    os.mkdir("bare"), os.mkdir("bare/group")
    os.chown("bare/group", -1, 7), os.chmod("bare/group", 0o2777)

    def make(place, flags=0, mode=0o640):
        return os.open(place, os.O_TMPFILE | os.O_RDWR | flags, mode)

    def link(fd, to):
        os.link("/proc/self/fd/%d" % fd, to, src_dir_fd=fd, follow_symlinks=True)

    fd = make("bare")
    os.write(fd, b"nameless")
    found = os.fstat(fd)
    print(found.st_nlink, oct(found.st_mode), found.st_size, os.listdir("bare"))
    attempt("link", link, fd, "bare/named")
    attempt("again", link, fd, "bare/named-too")
    attempt("over", link, fd, "bare/named")
    os.write(fd, b" no more")
    os.close(fd)
    print(get("bare/named"), os.stat("bare/named").st_nlink, sorted(os.listdir("bare")))
    fd = make("bare", os.O_EXCL)
    attempt("never to be named", link, fd, "bare/never")
    os.close(fd)
    os.unlink("bare/named"), os.unlink("bare/named-too")
    fd = make("bare/group", 0, 0o2755)
    print(oct(os.fstat(fd).st_mode), os.fstat(fd).st_gid)
    os.close(fd)
    attempt("read only", os.open, "bare", os.O_TMPFILE | os.O_RDONLY)
    attempt("in a file", make, "s")
    attempt("in nothing", make, "bare/none")
    as_nobody(lambda: (attempt("in another's", make, "bare"), attempt("in a shared one", lambda: os.close(make("bare/group")))))
    several = [make("bare") for _ in range(20)]
    for number, fd in enumerate(several):
        os.write(fd, b"%d" % number)
    for number, fd in enumerate(several[:10]):
        link(fd, "bare/several-%d" % number)
    for fd in several:
        os.close(fd)
    print([get("bare/several-%d" % number) for number in range(10)], len(os.listdir("bare")))


for part in (
    renames, open_files, appends, creators, permissions, times, specials, attributes, privileges, sizes,
    name_spaces, whiteouts, nameless,
):
    print("==", part.__name__)
    part()
