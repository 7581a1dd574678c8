"""Descriptors stay of use when their user takes the rights of the file away, or removes the
directory, and the kernel needs them only then."""
import fcntl, os, subprocess

here = os.getcwd()
os.chmod(here, 0o777)
os.setgid(1001)
os.setuid(1001)


def attempt(what, call):
    try:
        print(what, call())
    except OSError as error:
        print(what, error.strerror)


def run(*command, **options):
    return subprocess.run(command, capture_output=True, **options).stdout


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
