"""What a former owner may still do, and what callers in user namespaces may do for owners.

The checks of the kernel use the owner that its inode shows. Here the owner changes through root's
process while the former owner has the file open.
"""

import ctypes
import errno
import fcntl
import os
import struct
import sys

ANN, BOB = 54321, 54322
FIRST = 200_000
CLONE_NEWUSER = 0x10000000
SETFLAGS = 0x40086602
LIBC = ctypes.CDLL(None, use_errno=True)


def attempt(what, call, *arguments, **more):
    try:
        call(*arguments, **more)
        print(what, "is done")
    except OSError as error:
        print(what, errno.errorcode[error.errno])


def put(name, owner=0, mode=0o644):
    with open(name, "w") as file:
        file.write("data")
    os.chown(name, owner, owner)
    os.chmod(name, mode)


def state(name):
    found = os.stat(name)
    print(name, oct(found.st_mode), found.st_uid, found.st_gid, os.listxattr(name))


def child(before, meanwhile, after):
    """Runs two parts in another process, and one here between them."""
    ready, go = os.pipe(), os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        kept = before()
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        after(kept)
        sys.stdout.flush()
        os._exit(0)
    os.read(ready[0], 1)
    meanwhile(process)
    os.write(go[1], b"x")
    os.waitpid(process, 0)
    for fd in ready + go:
        os.close(fd)


def become(user):
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def acl():
    """user::rw-, user:ANN:rwx, group::r--, mask::rwx, other::r--"""
    entries = [(1, 6, 0xFFFFFFFF), (2, 7, ANN), (4, 4, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 4, 0xFFFFFFFF)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def former_owner():
    put("taken", ANN)
    os.mkdir("sticky")
    os.chmod("sticky", 0o1777)
    put("sticky/taken", ANN)
    put("sticky/kept", ANN)
    os.mkdir("private")
    os.chown("private", ANN, ANN)

    def before():
        become(ANN)
        kept = [os.open(name, os.O_RDONLY) for name in ("taken", "private")]
        for fd in kept:
            os.fstat(fd)
        os.stat("sticky/taken")
        return kept

    def meanwhile(_process):
        for name in ("taken", "private", "sticky/taken"):
            os.chown(name, BOB, BOB)
        os.chmod("taken", 0o600)

    def after(kept):
        file, directory = kept
        attempt("fchmod", os.fchmod, file, 0o4777)
        attempt("fchown to itself", os.fchown, file, ANN, -1)
        attempt("fchown of the group", os.fchown, file, -1, ANN)
        attempt("futimens", os.utime, file, (1, 1))
        attempt("a list", os.setxattr, file, "system.posix_acl_access", acl())
        attempt("flags", fcntl.ioctl, file, SETFLAGS, struct.pack("l", 0x40))
        attempt("fchmod of a directory", os.fchmod, directory, 0o777)
        attempt("a default list", os.setxattr, directory, "system.posix_acl_default", acl())
        attempt("unlink", os.unlink, "sticky/taken")
        attempt("rename", os.rename, "sticky/taken", "sticky/other")
        attempt("rename over", os.rename, "sticky/kept", "sticky/taken")
        attempt("an own file", os.unlink, "sticky/kept")

    child(before, meanwhile, after)
    for name in ("taken", "private", "sticky/taken"):
        state(name)


def namespace():
    """Root of a user namespace has the rights of the owners that exist in it."""
    for name in ("within", "named"):
        put(name, FIRST + 33)
    put("without", ANN)
    for at, name in enumerate(("bin", "etc")):
        os.mkdir(name)
        os.chown(name, FIRST + at, FIRST + at)
        os.chmod(name, 0o1777)
    put("etc/within", FIRST + 44)
    put("etc/moved", FIRST + 44)
    put("etc/without", ANN)

    def before():
        LIBC.unshare(CLONE_NEWUSER)

    def meanwhile(process):
        for kind in ("uid", "gid"):
            with open(f"/proc/{process}/{kind}_map", "w") as numbers:
                numbers.write(f"0 {FIRST} 1000\n")

    def after(_kept):
        os.setgid(0)
        os.setuid(0)
        attempt("chown", os.chown, "within", 55, 66)
        attempt("chmod", os.chmod, "within", 0o750)
        attempt("chmod of a stranger's", os.chmod, "without", 0o777)
        attempt("chown of a stranger's", os.chown, "without", 0, 0)
        attempt("times", os.utime, "within", (5, 6))
        attempt("a list", os.setxattr, "named", "system.posix_acl_access", acl())
        attempt("times of a stranger's", os.utime, "without", (5, 6))
        attempt("rename", os.rename, "etc/moved", "etc/there")
        attempt("unlink", os.unlink, "etc/within")
        attempt("unlink of a stranger's", os.unlink, "etc/without")
        os.setuid(77)
        attempt("chmod without rights", os.chmod, "within", 0o777)
        attempt("unlink without rights", os.unlink, "etc/there")

    child(before, meanwhile, after)
    for name in ("within", "named", "without"):
        state(name)
    print(sorted(os.listdir("etc")))


os.umask(0o022)
former_owner()
namespace()
