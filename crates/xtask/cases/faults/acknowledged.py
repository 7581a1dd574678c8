# Programs that remember every answer they got: acknowledged.py SECONDS SEED [ENOUGH [MIB]]. They end after so
# many seconds, or when there is a file ENOUGH; so many MiB, if any, are kept in files of pages. Whatever dies
# meanwhile, no call may fail, nothing that was answered may be lost, and nothing may be done twice. Prints how
# many operations there were and the longest that one of them took, in milliseconds. With MAY_BE_FULL in the
# environment a call may be refused with ENOSPC; then it has changed nothing, and is made again.
import errno, fcntl, os, random, struct, sys, time

seconds, seed = float(sys.argv[1]), int(sys.argv[2])
enough = sys.argv[3] if len(sys.argv) > 3 else None
mib = int(sys.argv[4]) if len(sys.argv) > 4 else 0
end = time.monotonic() + seconds
may_be_full = "MAY_BE_FULL" in os.environ
COUNTERS = 3
operations, slowest = 0, 0.0


def is_time():
    return time.monotonic() < end and not (enough and os.path.exists(enough))


def timed(call, *arguments):
    global operations, slowest
    while True:
        begun = time.monotonic()
        try:
            result = call(*arguments)
        except OSError as error:
            if not may_be_full or error.errno != errno.ENOSPC:
                raise
            result = error
        operations, slowest = operations + 1, max(slowest, time.monotonic() - begun)
        if not isinstance(result, OSError):
            return result
        time.sleep(0.02)


def put(file, bytes_, *at):
    """Writes all of it, at once unless the pool may be full."""
    done = 0
    while done < len(bytes_):
        where = [offset + done for offset in at]
        count = timed(os.pwrite if at else os.write, file, bytes_[done:], *where)
        assert count == len(bytes_) or may_be_full, f"{count} of {len(bytes_)} bytes were written"
        done += count


def make(path, bytes_):
    """A new file."""
    file = timed(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    put(file, bytes_)
    os.close(file)


def appends(rng):
    """Each record once, in order: a write that is done twice or not at all shows."""
    log = timed(os.open, "appended", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    count = 0
    while is_time():
        put(log, b"%011d\n" % count)
        count += 1
        if rng.randrange(50) == 0:
            timed(os.fsync, log)
    with open("appended", "rb") as file:
        found = file.read()
    assert found == b"".join(b"%011d\n" % n for n in range(count)), f"{len(found)} bytes of {12 * count}"


def names(rng):
    """Calls that fail the second time they are made."""
    for path in ("names", "names/a", "names/b"):
        timed(os.mkdir, path)
    present = set()
    serial = 0
    while is_time():
        deed = rng.randrange(6)
        side = f"names/{rng.choice('ab')}"
        some = rng.choice(sorted(present)) if present else None
        serial += 1
        new = f"{side}/{serial}"
        if deed == 0 or some is None:
            timed(os.mkdir, new), present.add(new)
        elif deed == 1:
            os.close(timed(os.open, new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)), present.add(new)
        elif deed == 2:
            timed(os.rename, some, new), present.remove(some), present.add(new)
        elif deed == 3:
            if not os.path.isdir(some):
                timed(os.link, some, new), present.add(new)
        elif deed == 4:
            timed(os.symlink, f"to {serial}", new), present.add(new)
            assert timed(os.readlink, new) == f"to {serial}"
        elif os.path.isdir(some) and not os.path.islink(some):
            timed(os.rmdir, some), present.remove(some)
        else:
            timed(os.unlink, some), present.remove(some)
        if rng.randrange(40) == 0 or len(present) > 300:
            found = {f"{side}/{name}" for name in timed(os.listdir, side)}
            assert found == {path for path in present if path.startswith(side)}, found ^ present
            for path in sorted(present)[: len(present) - 150]:
                timed(os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.unlink, path)
                present.remove(path)
    for side in ("names/a", "names/b"):
        found = {f"{side}/{name}" for name in os.listdir(side)}
        assert found == {path for path in present if path.startswith(side)}, found ^ present


def counts(rng, own):
    """A counter under a lock, and how often this program has counted, in a file of its own."""
    counter, mine = os.open("counter", os.O_RDWR), 0
    while is_time():
        timed(fcntl.lockf, counter, fcntl.LOCK_EX)
        (value,) = struct.unpack("<Q", timed(os.pread, counter, 8, 0))
        put(counter, struct.pack("<Q", value + 1), 0)
        mine += 1
        timed(fcntl.lockf, counter, fcntl.LOCK_UN)
        if rng.randrange(4) == 0:
            time.sleep(0.001)
    os.close(counter)
    make(own, str(mine).encode())


def contents(rng):
    """Files against a copy in memory."""
    model = [bytearray() for _ in range(6)]
    files = [timed(os.open, f"contents{n}", os.O_RDWR | os.O_CREAT | os.O_EXCL) for n in range(len(model))]
    while is_time():
        n = rng.randrange(len(model))
        file, at, size = files[n], rng.randrange(900_000), rng.choice((1, 100, 4096, 65_536, 300_000))
        deed = rng.randrange(8)
        if deed < 3:
            bytes_ = rng.randbytes(size)
            put(file, bytes_, at)
            if at > len(model[n]):
                model[n].extend(bytes(at - len(model[n])))
            model[n][at : at + size] = bytes_
        elif deed == 3:
            timed(os.ftruncate, file, at)
            model[n] = model[n][:at] + bytes(max(0, at - len(model[n])))
        elif deed == 4:
            timed(os.fsync, file)
        else:
            assert timed(os.pread, file, size, at) == model[n][at : at + size], f"file {n} at {at}"
        assert timed(os.fstat, file).st_size == len(model[n])
    for n, file in enumerate(files):
        assert os.pread(file, 2_000_000, 0) == model[n], f"file {n} at last"


def pages(rng):
    """Pages that name themselves and how often they were written, in more files than there are cells."""
    run, count = 16, mib * 256 // 16
    files = [timed(os.open, f"pages{n}", os.O_RDWR | os.O_CREAT | os.O_EXCL) for n in range(16)]
    versions = [[0] * count for _ in files]

    def bytes_of(at, version):
        return b"".join(struct.pack("<QQ", page, version) * 256 for page in range(at, at + run))

    # All once, in order, then here and there.
    first = ((n, at) for n in range(len(files)) for at in range(0, count, run))
    while is_time():
        n, at = next(first, None) or (rng.randrange(len(files)), rng.randrange(count // run) * run)
        version = versions[n][at]
        if version > 0 and rng.randrange(3) == 0:
            found = timed(os.pread, files[n], run * 4096, at * 4096)
            assert found == bytes_of(at, version), f"file {n}, page {at}"
        else:
            put(files[n], bytes_of(at, version + 1), at * 4096)
            versions[n][at] = version + 1


make("counter", bytes(8))
roles = [appends, names, contents] + ([pages] if mib > 0 else []) + [lambda rng, n=n: counts(rng, f"counted{n}") for n in range(COUNTERS)]
children = {}
for n, role in enumerate(roles):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            role(random.Random(seed * 100 + n))
            os.write(writer, f"{operations} {slowest}".encode())
        except BaseException as error:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    children[child] = reader
failed, total, longest = 0, 0, 0.0
for child, reader in children.items():
    said = os.read(reader, 100).split()
    _, status = os.waitpid(child, 0)
    if status != 0 or len(said) != 2:
        failed += 1
        continue
    total, longest = total + int(said[0]), max(longest, float(said[1]))
assert failed == 0, f"{failed} of {len(roles)} failed"
assert total > 0, "nothing was done"
with open("counter", "rb") as file:
    (value,) = struct.unpack("<Q", file.read())
counted = sum(int(open(f"counted{n}").read()) for n in range(COUNTERS))
assert value == counted, f"counted {counted} times, and the counter says {value}"
print(f"{total} operations, the longest took {longest * 1000:.0f} ms")
