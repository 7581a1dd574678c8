#!/usr/bin/env python3
"""The reserved names of a mount, as the kernel shows them to a user: handover.py ROOT

A program with the interposer lets the kernel take over files that it has open, by such a name
(proto/src/handover.rs). This program has no file open as a client of the fleet.
"""

import errno
import os
import sys

PREFIX = b".warren-handover\x01"


def refused(expected, call, *arguments, **keywords):
    try:
        result = call(*arguments, **keywords)
    except OSError as error:
        got = errno.errorcode[error.errno]
        assert error.errno == expected, f"{arguments}: {got}, not {errno.errorcode[expected]}"
    else:
        raise AssertionError(f"{arguments}: {result}, not {errno.errorcode[expected]}")


def check_names(directory):
    """No file gets such a name, and a forged proof leads nowhere, also the second time."""
    file = os.path.join(directory, b"file")
    os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
    # The stored number, for each number of bits that a shard may have in the one that is shown.
    number = os.stat(file).st_ino - 1
    stored = [(number & (1 << bits) - 1) << 48 | (number >> bits) + 1 for bits in range(13)]
    forged = [
        PREFIX + b"%08x-%016x-%016x" % (client, number, capability)
        for client in (0, 1, 2, 3)
        for number in (*stored, 1, 0, 2**64 - 1)
        for capability in (0, 1, 2**64 - 1)
    ]
    for name in forged + [PREFIX, PREFIX + b"anything"]:
        for _ in range(2):
            refused(errno.ENOENT, os.stat, os.path.join(directory, name))
            refused(errno.ENOENT, os.open, os.path.join(directory, name), os.O_RDONLY)
    for name in (forged[0], PREFIX, PREFIX + b"anything"):
        path = os.path.join(directory, name)
        refused(errno.EPERM, os.open, path, os.O_CREAT | os.O_WRONLY, 0o600)
        refused(errno.EPERM, os.mkdir, path)
        refused(errno.EPERM, os.mkfifo, path)
        refused(errno.EPERM, os.symlink, b"target", path)
        refused(errno.EPERM, os.link, file, path)
        refused(errno.EPERM, os.rename, file, path)
    assert os.listdir(directory) == [b"file"], os.listdir(directory)
    os.unlink(file)


def main():
    root = os.fsencode(sys.argv[1])
    directory = os.path.join(root, b"of-%d" % os.getuid())
    os.mkdir(directory)
    check_names(directory)
    os.rmdir(directory)


main()
