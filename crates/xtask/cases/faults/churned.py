# Files that come and go on a full, fragmented file system: churned.py SECONDS SEED ENOUGH. Ends after so many
# seconds, or when there is a file ENOUGH. First small files until there is no space, of which every second is
# removed; then files of all sizes are written, overwritten in part and removed, at nine tenths of what there
# is. Each file is read and compared before it is removed, and all that are left at the end: whatever dies
# meanwhile, and wherever blocks are moved to, no byte may change. A write may find no space only where little
# is shown. Prints how many files there were.
import errno, os, random, sys, time

seconds, seed, enough = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
end = time.monotonic() + seconds
rng = random.Random(seed)
SMALL = 8 << 10
# Blocks of 512 bytes: each says which version of which file it is, and where it lies.
STEP = 512
files, held, made, refused, compared = {}, 0, 0, 0, 0


def shown():
    stat = os.statvfs(".")
    return stat.f_bavail * stat.f_frsize


def content(number, version, first, last):
    return b"".join(b"%015d %015d %015d\n" % (number, version, at) * 10 + b"." * 30 + b"\n\n" for at in range(first, last))


def write(file, number, version, first, last):
    """Writes these blocks, and returns the first that did not fit."""
    for at in range(first, last, 256):
        until = min(at + 256, last)
        data, done = content(number, version, at, until), 0
        try:
            while done < len(data):
                done += os.pwrite(file, data[done:], at * STEP + done)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return at + done // STEP
    return last


def make(directory, size):
    """A file of about so many bytes. Returns whether there was space for it."""
    global held, made
    path, number, blocks = f"{directory}/f{made}", made, max(1, size // STEP)
    made += 1
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    fit = write(file, number, 0, 0, blocks)
    os.ftruncate(file, fit * STEP)
    if rng.randrange(20) == 0:
        os.fsync(file)
    os.close(file)
    files[path], held = (number, [(0, fit, 0)]), held + fit * STEP
    return fit == blocks


def change(path):
    """Overwrites a part of the file."""
    number, parts = files[path]
    blocks = max((last for _, last, _ in parts), default=0)
    if not blocks:
        return
    first = rng.randrange(blocks)
    last = min(blocks, first + 1 + rng.randrange(64))
    file = os.open(path, os.O_WRONLY)
    fit = write(file, number, len(parts), first, last)
    os.close(file)
    parts.append((first, fit, len(parts)))
    if fit < last:
        # A part of the next block may be there.
        parts.append((fit, fit + 1, None))


def compare(path):
    global compared
    number, parts = files[path]
    with open(path, "rb") as file:
        found = file.read()
    blocks = max((last for _, last, _ in parts), default=0)
    assert len(found) == blocks * STEP, f"{path}: {len(found)} bytes, not {blocks * STEP}"
    versions = {}
    for first, last, version in parts:
        versions.update((at, version) for at in range(first, last))
    for at, version in versions.items():
        piece = found[at * STEP : (at + 1) * STEP]
        if version is None:
            continue
        assert piece == content(number, version, at, at + 1), f"{path}: block {at} is not version {version}: {piece[:60]}"
    compared += 1


def remove(path):
    global held
    compare(path)
    os.unlink(path)
    held -= max((last for _, last, _ in files.pop(path)[1]), default=0) * STEP


assert len(content(1, 2, 3, 4)) == STEP, len(content(1, 2, 3, 4))
room = shown()
directories = [f"d{at}" for at in range(20)]
for directory in directories:
    os.mkdir(directory)
while make(directories[made % 20], SMALL):
    pass
for path in sorted(files)[::2]:
    remove(path)
while time.monotonic() < end and not os.path.exists(enough):
    if rng.randrange(100) == 0 and shown() > room // 10:
        directories.append(f"d{len(directories)}")
        os.mkdir(directories[-1])
    if held > 0.9 * room:
        remove(rng.choice(list(files)))
        continue
    if rng.randrange(3) == 0:
        change(rng.choice(list(files)))
    size = rng.randrange(1 << 20, 4 << 20) if rng.randrange(20) == 0 else rng.randrange(STEP, 1 << 16)
    before = shown()
    if not make(rng.choice(directories), size):
        refused += 1
        assert before < size + room // 4, f"no space for {size} bytes where {before} are shown"
        for path in rng.sample(list(files), len(files) // 20):
            remove(path)
for path in list(files):
    compare(path)
print(f"{made} files, {compared} compared, {refused} times no space")
