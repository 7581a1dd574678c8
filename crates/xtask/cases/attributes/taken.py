"""Descriptors stay of use when their user takes the rights of the file away, or removes the
directory, and the kernel needs them only then."""
import fcntl, os, socket, struct, subprocess, threading

here = os.getcwd()
os.chmod(here, 0o777)
os.setgid(1001)
os.setuid(1001)


def attempt(what, call):
    try:
        print(what, call())
    except OSError as error:
        print(what, error.strerror)


def warm():
    """Long enough that an interposed library serves the calls."""
    for _ in range(300):
        os.stat("warm")
        os.close(os.open("warm", os.O_RDONLY))


def access_list(*rights):
    """Of the owner, the group and others."""
    tags = zip((1, 4, 32), rights)
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, right, 0xFFFFFFFF) for tag, right in tags)


def use(fd):
    attempt("read", lambda: os.pread(fd, 2, 1))
    attempt("lock", lambda: fcntl.flock(fd, fcntl.LOCK_EX))
    attempt("duplicate", lambda: os.close(os.dup(fd)))
    attempt("mode", lambda: oct(os.fstat(fd).st_mode))


class Other:
    """A process that was there before, and changes modes when it is told to."""

    def __init__(self):
        self.ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self.ours.close()
            while request := theirs.recv(200):
                mode, name = request.split(b" ", 1)
                os.chmod(name, int(mode, 8))
                theirs.send(b"done")
            os._exit(0)
        theirs.close()

    def chmod(self, name, mode):
        self.ours.send(f"{mode:o} {name}".encode())
        self.ours.recv(10)

    def end(self):
        self.ours.close()
        os.waitpid(self.pid, 0)


def run(*command, **options):
    return subprocess.run(command, capture_output=True, **options).stdout


with open("warm", "w") as file:
    file.write("warm")
for _ in range(10):
    warm()

for how in "path", "link", "child":
    name = "file_" + how
    with open(name, "w") as file:
        file.write("hello")
    fd = os.open(name, os.O_RDWR)
    if how == "child":
        run("chmod", "000", name)
    else:
        os.chmod(name if how == "path" else f"/proc/self/fd/{fd}", 0)
    attempt(how, lambda: os.read(fd, 2))
    attempt("duplicate", lambda: os.read(os.dup(fd), 9))
    attempt("lock", lambda: fcntl.flock(fd, fcntl.LOCK_EX))
    os.lseek(fd, 0, os.SEEK_SET)
    attempt("input of a child", lambda: run("cat", stdin=fd))

for how in "path", "child":
    name = "dir_" + how
    os.makedirs(name + "/below")
    fd, below = os.open(name, os.O_RDONLY), os.open(name + "/below", os.O_RDONLY)
    if how == "path":
        os.chmod(name, 0)
    else:
        run("chmod", "000", name)
    attempt(how, lambda: oct(os.fstat(fd).st_mode))
    attempt("names", lambda: os.listdir(fd))
    attempt("sync", lambda: os.fsync(fd))
    attempt("duplicate", lambda: os.dup(fd) > fd)
    attempt("names below", lambda: os.listdir(below))
    attempt("work there", lambda: os.fchdir(below))
    os.chdir(here)

for remove in os.rmdir, lambda path: run("rmdir", path):
    for inside in False, True:
        os.mkdir("gone")
        os.chdir("gone")
        fd = os.open(".", os.O_RDONLY)
        if not inside:
            os.chdir("..")
        remove("../gone" if inside else "gone")
        attempt("removed", lambda: (oct(os.fstat(fd).st_mode), os.fstat(fd).st_nlink))
        attempt("names", lambda: os.listdir(fd))
        attempt("sync", lambda: os.fsync(fd))
        attempt("duplicate", lambda: os.dup(fd) > fd)
        attempt("work there", lambda: os.fchdir(fd))
        os.chdir(here)

print("by another program")
other = Other()
for mode, flags in (0, os.O_RDWR), (0o444, os.O_RDWR), (0o200, os.O_RDONLY), (0o066, os.O_WRONLY | os.O_APPEND):
    with open("another", "w") as file:
        file.write("hello")
    warm()
    fd = os.open("another", flags)
    other.chmod("another", mode)
    use(fd)
    attempt("open", lambda: os.close(os.open("another", flags)))
    attempt("mode", lambda: oct(os.stat("another").st_mode))
    os.close(fd)
    os.unlink("another")
other.end()

link = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"taken-{os.getpid()}")
os.symlink(here, link)
# Ways to a file and to a directory which no library follows.
ways = [
    lambda name, mode: os.chmod(f"{link}/{name}", mode),
    lambda name, mode: os.chmod(f"/proc/self/cwd/{name}", mode),
    lambda name, mode: os.fchmod(os.open(name, os.O_RDONLY), mode),
    lambda name, mode: os.chmod(f"/proc/self/fd/{os.open(name, os.O_PATH)}", mode),
    lambda name, mode: os.setxattr(name, "system.posix_acl_access", access_list(0, 0, 0)),
    lambda name, mode: os.setxattr(os.open(name, os.O_RDONLY), "system.posix_acl_access", access_list(0, 0, 0)),
]
for number, take in enumerate(ways):
    print("way", number)
    with open(f"way_{number}", "w") as file:
        file.write("hello")
    warm()
    fd = os.open(f"way_{number}", os.O_RDWR)
    take(f"way_{number}", 0)
    use(fd)
    os.mkdir(f"ways_{number}")
    os.mkdir(f"ways_{number}/below")
    warm()
    fd, below = os.open(f"ways_{number}", os.O_RDONLY), os.open(f"ways_{number}/below", os.O_RDONLY)
    take(f"ways_{number}", 0)
    attempt("names", lambda: os.listdir(fd))
    attempt("sync", lambda: os.fsync(fd))
    attempt("names below", lambda: os.listdir(below))

print("with more to the path")
for tail in "/", "/.", "/below/..":
    os.makedirs("tail/below")
    warm()
    fd = os.open("tail", os.O_RDONLY)
    os.chmod("tail" + tail, 0)
    attempt(tail, lambda: os.fsync(fd))
    os.chmod("tail", 0o755)
    os.rmdir("tail/below")
    os.rmdir("tail")

print("without its name")
removals = [
    lambda: os.rmdir("gone/"),
    lambda: os.rmdir(f"{link}/gone"),
    lambda: os.rmdir("/proc/self/cwd/gone"),
    lambda: os.rename("other", "gone"),
    lambda: os.rename(f"{link}/other", f"{link}/gone"),
]
for remove in removals:
    os.mkdir("gone")
    if not os.path.exists("other"):
        os.mkdir("other")
    warm()
    fd = os.open("gone", os.O_RDONLY)
    remove()
    attempt("links", lambda: os.fstat(fd).st_nlink)
    attempt("sync", lambda: os.fsync(fd))
    if os.path.exists("gone"):
        os.rmdir("gone")
os.unlink(link)

print("by the list of its directory")
for rights in (4, 0, 0), (2, 0, 0), (0, 0, 0), (6, 0, 0):
    os.mkdir("listed")
    os.setxattr("listed", "system.posix_acl_default", access_list(*rights))
    warm()
    fd = os.open("listed/file", os.O_CREAT | os.O_RDWR, 0o666)
    attempt("write", lambda: os.write(fd, b"hello"))
    use(fd)
    os.unlink("listed/file")
    os.rmdir("listed")

print("beside other threads")
stop = False


def write(number):
    other = os.open(f"written_{number}", os.O_CREAT | os.O_RDWR, 0o600)
    while not stop:
        os.pwrite(other, b"0123456789", 0)


writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
for writer in writers:
    writer.start()
failed = 0
for number in range(60):
    name = f"beside_{number}"
    with open(name, "w") as file:
        file.write("hello")
    fd = os.open(name, os.O_RDWR)
    os.chmod(name, 0)
    os.mkdir("beside")
    directory = os.open("beside", os.O_RDONLY)
    os.rmdir("beside")
    try:
        os.close(os.dup(fd))
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.fsync(directory)
    except OSError:
        failed += 1
    os.close(fd)
    os.close(directory)
stop = True
for writer in writers:
    writer.join()
print("failed", failed)
