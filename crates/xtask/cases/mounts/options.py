"""What a program finds on a mount with some options. It prints one line for each call, which must
be the same on ext4 with the same options.

    options.py prepare DIRECTORY     makes the files, on a mount without options
    options.py probe DIRECTORY       calls by path and by descriptor
    options.py atime DIRECTORY       what reads do to access times
    options.py change DIRECTORY      what changes do on a mount that lets them
    options.py remount DIRECTORY     waits for lines on its standard input, and probes after each
    options.py writer DIRECTORY      writes, waits for a line, and writes again
    options.py client DIRECTORY      changes of a user
"""

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import stat
import subprocess
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
FLAGS = {1: "ro", 2: "nosuid", 4: "nodev", 8: "noexec", 16: "sync", 1024: "noatime",
         2048: "nodiratime", 4096: "relatime", 8192: "nosymfollow"}
OLD = 1_000_000_000
# A program becomes known to the fleet when its calls have cost enough.
CALLS = 4000


def show(name, call):
    try:
        result = call()
    except OSError as error:
        result = errno.errorcode[error.errno]
    except subprocess.CalledProcessError as error:
        result = f"exit {error.returncode}"
    print(f"{name}: {'ok' if result is None else result}")


def opened(path, flags, mode=0o644):
    os.close(os.open(path, flags, mode))


def become_known():
    for _ in range(CALLS):
        os.stat("file")
        os.close(os.open("small", os.O_RDONLY))
    time.sleep(0.01)
    os.stat("file")


def prepare():
    for name in ("file", "small", "removed", "renamed", "linked", "read", "again", "mapped",
                 "removed2"):
        with open(name, "w") as file:
            file.write(f"{name}\n" * 100)
    for name in ("dir", "empty"):
        os.mkdir(name)
    with open("dir/inner", "w") as file:
        file.write("inner\n")
    os.symlink("file", "link")
    os.symlink("dir", "linkdir")
    shutil.copy("/bin/true", "program")
    shutil.copy("/usr/bin/id", "setid")
    os.chmod("setid", 0o4755)
    with open("script", "w") as file:
        file.write("#!/bin/sh\necho ran\n")
    os.chmod("script", 0o755)
    os.mknod("null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mkfifo("fifo")
    os.setxattr("file", "user.kept", b"value")
    for name in ("file", "small", "read", "again", "mapped", "dir/inner", "dir"):
        os.utime(name, (OLD, OLD))


def shown_flags(found):
    return ",".join(name for bit, name in FLAGS.items() if found.f_flag & bit)


def map_file(name, protection, then=None):
    descriptor = os.open(name, os.O_RDONLY)
    try:
        LIBC.mmap.restype = ctypes.c_void_p
        LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [
            ctypes.c_long]
        address = LIBC.mmap(None, 4096, protection, mmap.MAP_PRIVATE, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        if then is not None:
            if LIBC.mprotect(ctypes.c_void_p(address), 4096, then) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
    finally:
        os.close(descriptor)


def by_path():
    made = os.O_CREAT | os.O_WRONLY
    for name, call in {
        "write": lambda: opened("file", os.O_WRONLY),
        "read and write": lambda: opened("file", os.O_RDWR),
        "append": lambda: opened("file", os.O_WRONLY | os.O_APPEND),
        "truncated": lambda: opened("file", os.O_RDONLY | os.O_TRUNC),
        "made": lambda: opened("new", made),
        "made anew": lambda: opened("file", made | os.O_EXCL),
        "found": lambda: opened("file", os.O_CREAT | os.O_RDONLY),
        "nameless": lambda: opened(".", os.O_TMPFILE | os.O_RDWR),
        "mkdir": lambda: os.mkdir("newdir"),
        "mkdir of a name": lambda: os.mkdir("dir"),
        "unlink": lambda: os.unlink("removed"),
        "unlink of nothing": lambda: os.unlink("nothing"),
        "rmdir": lambda: os.rmdir("empty"),
        "rename": lambda: os.rename("renamed", "renamed2"),
        "rename in dir": lambda: os.rename("dir/inner", "dir/inner2"),
        "link": lambda: os.link("linked", "linked2"),
        "symlink": lambda: os.symlink("x", "newlink"),
        "mkfifo": lambda: os.mkfifo("newfifo"),
        "chmod": lambda: os.chmod("file", 0o600),
        "chown": lambda: os.chown("file", 1, 1),
        "lchown": lambda: os.lchown("link", 1, 1),
        "utime": lambda: os.utime("file"),
        "utime to": lambda: os.utime("file", (OLD, OLD)),
        "truncate": lambda: os.truncate("file", 10),
        "setxattr": lambda: os.setxattr("file", "user.new", b"x"),
        "removexattr": lambda: os.removexattr("file", "user.kept"),
        "getxattr": lambda: os.getxattr("file", "user.kept"),
    }.items():
        show(name, call)


def by_descriptor():
    descriptor = os.open("small", os.O_RDONLY)
    for name, call in {
        "fchmod": lambda: os.fchmod(descriptor, 0o600),
        "fchown": lambda: os.fchown(descriptor, 1, 1),
        "futimens": lambda: os.utime(descriptor),
        "fsetxattr": lambda: os.setxattr(descriptor, "user.new", b"x"),
        "ftruncate": lambda: os.ftruncate(descriptor, 1),
        "fsync": lambda: os.fsync(descriptor),
        "flock": lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB),
        "lockf": lambda: fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB),
        "fstatvfs": lambda: shown_flags(os.fstatvfs(descriptor)),
        "read": lambda: len(os.read(descriptor, 1000)),
    }.items():
        show(name, call)
    os.close(descriptor)


def probe():
    show("statvfs", lambda: shown_flags(os.statvfs("file")))
    for name in ("file", "program", "script", "dir", "null", "fifo", "link"):
        for mode in (os.R_OK, os.W_OK, os.X_OK):
            show(f"access {name} {mode}", lambda: os.access(name, mode))
    show("execute", lambda: subprocess.run(["./program"], check=True) and None)
    show("script", lambda: subprocess.run(["./script"], check=True, capture_output=True).stdout)
    as_user = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"]
    show("set-id", lambda: subprocess.run(as_user + ["./setid", "-u"], check=True,
                                          capture_output=True).stdout)
    show("device", lambda: opened("null", os.O_RDWR))
    show("through a link", lambda: opened("link", os.O_RDONLY))
    show("through a link to a directory", lambda: os.stat("linkdir/inner").st_size)
    show("readlink", lambda: os.readlink("link"))
    read, write, execute = 1, 2, 4
    show("mapped to execute", lambda: map_file("mapped", read | execute))
    show("executable later", lambda: map_file("mapped", read, read | execute))
    show("mapped to write", lambda: map_file("mapped", read | write))
    by_descriptor()
    by_path()


def accessed(name):
    return "new" if os.stat(name).st_atime > OLD else "old"


def reset(name):
    """The access time becomes older than the modification, or newer."""
    os.utime(name, (OLD, OLD + 1))


def atime():
    def read(name):
        with open(name) as file:
            file.read()

    print("read", accessed("read"), read("read"), accessed("read"))
    # The second read is not due under relatime.
    times = []
    for _ in range(3):
        read("again")
        times.append(os.stat("again").st_atime_ns)
        time.sleep(0.02)
    print("again", times[0] > OLD * 10**9, times[1] > times[0], times[2] > times[1])
    descriptor = os.open("small", os.O_RDONLY)
    times = []
    for _ in range(3):
        os.pread(descriptor, 10, 0)
        times.append(os.fstat(descriptor).st_atime_ns)
        time.sleep(0.02)
    os.close(descriptor)
    print("pread", times[0] > OLD * 10**9, times[1] > times[0], times[2] > times[1])
    for name in ("file", "dir/inner"):
        print("mapped", name, map_and_read(name), accessed(name))


def map_and_read(name):
    with open(name, "rb") as file:
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            return mapped[:5]


def change():
    """Changes of every kind, and how much of them is there afterwards."""
    for at in range(20):
        with open(f"new{at}", "w") as file:
            file.write(str(at))
        os.mkdir(f"newdir{at}")
        os.rename(f"new{at}", f"newdir{at}/moved")
        os.symlink("x", f"newlink{at}")
        os.link(f"newdir{at}/moved", f"hard{at}")
        os.chmod(f"hard{at}", 0o600)
        os.setxattr(f"hard{at}", "user.a", b"b")
        os.truncate(f"hard{at}", 1)
        os.unlink(f"newlink{at}")
    print(sorted(os.listdir(".")))


def remount():
    held = os.open("held", os.O_CREAT | os.O_RDONLY, 0o644)
    for line in sys.stdin:
        print(line.strip())
        show("statvfs", lambda: shown_flags(os.statvfs(".")))
        show("fstatvfs", lambda: shown_flags(os.fstatvfs(held)))
        show("made", lambda: opened("made", os.O_CREAT | os.O_WRONLY))
        show("chmod", lambda: os.chmod("made", 0o600))
        show("fchmod", lambda: os.fchmod(held, 0o600))
        show("written", lambda: written("made"))
        show("mkdir", lambda: os.mkdir("made.dir"))
        show("rmdir", lambda: os.rmdir("made.dir"))
        show("access", lambda: (os.access("made", os.W_OK), os.access("program", os.X_OK)))
        show("unlink", lambda: os.unlink("made"))
        print("done", flush=True)


def written(name):
    with open(name, "w") as file:
        return file.write("text")


def writer():
    """A file that is open for writing while the mount becomes read-only."""
    for at in range(100):
        written(f"written{at}")
    held = os.open("held", os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
    os.write(held, b"first")
    print("ready", flush=True)
    sys.stdin.readline()
    show_write(held)
    os.close(held)


def show_write(held):
    try:
        print("written", os.write(held, b"again"))
    except OSError as error:
        print("written", errno.errorcode[error.errno])


def client():
    """Changes of a user. Shows whether the fleet lets it change anything."""
    with open("dir/made", "w") as file:
        file.write("text")
    print("made" if os.path.exists("dir/made") else "not made")
    print("written" if open("dir/made").read() == "text" else "not written")
    os.unlink("dir/made")
    print("not gone" if os.path.exists("dir/made") else "gone")


os.chdir(sys.argv[2])
if sys.argv[1] != "prepare":
    become_known()
{"prepare": prepare, "probe": probe, "atime": atime, "change": change, "remount": remount,
 "writer": writer, "client": client}[sys.argv[1]]()
