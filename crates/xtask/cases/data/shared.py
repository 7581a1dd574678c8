"""Copies that share blocks take no space: `begin` copies and changes files; `again` checks them,
perhaps in another fleet, and removes them one after the other."""
import os
import subprocess
import sys

M = 1 << 20
SIZE = 12 * M
COPIES = 10


def used():
    found = os.statvfs(".")
    return (found.f_blocks - found.f_bfree) * found.f_bsize


def settled():
    os.sync()
    return used()


def content(number):
    data = bytearray(bytes(range(256)) * (SIZE // 256))
    if number:
        data[number * 5000:number * 5000 + 3] = b"new"
    return bytes(data)


def copy(name):
    source, target = os.open("source", os.O_RDONLY), os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    done = 0
    while done < SIZE:
        done += os.copy_file_range(source, target, SIZE - done)
    return target


os.chdir(sys.argv[2])
if sys.argv[1] == "begin":
    empty = settled()
    with open("source", "wb") as out:
        out.write(content(0))
    before = settled()
    assert before - empty < SIZE + M, before - empty
    for number in range(1, COPIES):
        target = copy(f"copy{number}")
        os.pwrite(target, b"new", number * 5000)
        os.close(target)
    after = settled()
    print("copies take", (after - before) >> 10, "KiB")
    assert after - before < 2 * M, "the copies are shared"
    subprocess.run(["cp", "source", "copy0"], check=True)
    assert settled() - after < M, "cp shares"
else:
    for number in range(COPIES):
        with open(f"copy{number}", "rb") as found:
            assert found.read() == content(number), number
    full = settled()
    os.unlink("source")
    assert full - settled() < M, "the copies have its blocks"
    for number in range(COPIES - 1):
        os.unlink(f"copy{number}")
    with open(f"copy{COPIES - 1}", "rb") as found:
        assert found.read() == content(COPIES - 1)
    assert full - settled() < 2 * M
    os.unlink(f"copy{COPIES - 1}")
    left = settled()
    print("left", left >> 10, "KiB")
    assert left < M, left
