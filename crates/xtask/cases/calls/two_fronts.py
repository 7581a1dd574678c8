# One file system through two fronts at once: two_fronts.py HERE THERE STEPS SEED. Each step does
# something through one of them, both keep files open and mapped, and what the other one shows
# must be right at once.
import mmap, os, random, sys

mounts, steps, seed = sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
SIZE_MAX = 600_000
names = [f"file{n}" for n in range(6)]
model = {}  # name -> bytes
held = {}  # (side, name) -> descriptor, opened by that name or one it had


def path(side, name):
    return f"{mounts[side]}/two/{name}"


def opened(side, name):
    if (side, name) not in held:
        held[side, name] = os.open(path(side, name), os.O_RDWR)
    return held[side, name]


def forget(name):
    for side in (0, 1):
        if (side, name) in held:
            os.close(held.pop((side, name)))


def check(side, name):
    expected = bytes(model[name])
    assert os.stat(path(side, name)).st_size == len(expected), f"size of {name} at {side}"
    found = os.pread(opened(side, name), SIZE_MAX * 2, 0)
    assert found == expected, f"{name} at {side}: {len(found)} bytes, {len(expected)} expected"


def step(side):
    name = rng.choice(names)
    if name not in model:
        os.close(os.open(path(side, name), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))
        model[name] = bytearray()
        return
    deed, content = rng.randrange(12), model[name]
    if deed < 4:
        at, new = rng.randrange(SIZE_MAX), rng.randbytes(rng.choice((1, 100, 5000, 60_000)))
        assert os.pwrite(opened(side, name), new, at) == len(new)
        content.extend(bytes(max(0, at - len(content))))
        content[at : at + len(new)] = new
    elif deed == 4:
        size = rng.randrange(SIZE_MAX)
        os.truncate(path(side, name), size)
        del content[size:]
        content.extend(bytes(size - len(content)))
    elif deed == 5 and content:
        at = rng.randrange(len(content))
        new = rng.randbytes(min(3000, len(content) - at))
        with mmap.mmap(opened(side, name), len(content)) as pages:
            pages[at : at + len(new)] = new
            pages.flush()
        content[at : at + len(new)] = new
    elif deed == 6 and content:
        with mmap.mmap(opened(side, name), len(content), prot=mmap.PROT_READ) as pages:
            assert pages[:] == bytes(content), f"{name} mapped at {side}"
    elif deed == 7:
        to = rng.choice(names)
        if to != name:
            os.rename(path(side, name), path(side, to))
            forget(name), forget(to)
            model[to] = model.pop(name)
    elif deed == 8 and rng.randrange(3) == 0:
        os.unlink(path(side, name))
        forget(name)
        del model[name]
    elif deed == 9:
        assert sorted(os.listdir(path(side, ""))) == sorted(model), f"names at {side}"
        for absent in set(names) - set(model):
            assert not os.path.exists(path(side, absent)), f"{absent} is still there at {side}"
    else:
        check(side, name)


# A new owner, and a member of a new group, has his rights at once where the old one was known. The
# kernel checks them by what it has of the file.
def owners():
    at = path(0, "owned")
    os.close(os.open(at, os.O_CREAT, 0o644))
    for turn in range(20):
        os.stat(at)
        user = 54_321 + turn
        os.chown(path(1, "owned"), user, user)
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([]), os.setgid(user), os.setuid(user)
                # Of a group that is not the caller's, the bit would be cleared.
                os.chmod(at, 0o2750)
                os._exit(0 if os.stat(at).st_mode & 0o7777 == 0o2750 else 3)
            except PermissionError:
                os._exit(4)
        assert (status := os.waitpid(child, 0)[1]) == 0, f"a new owner: status {status}"
    os.unlink(at)


os.mkdir(path(0, ""))
kernel = tuple(int(part) for part in os.uname().release.split(".")[:2])
if kernel >= (6, 18):  # older ones forget no names when they are told to
    owners()
for number in range(steps):
    try:
        step(rng.randrange(2))
    except (AssertionError, OSError) as error:
        sys.exit(f"step {number} of seed {seed}: {error}")
for name in model:
    check(0, name), check(1, name)
for name in list(model):
    forget(name)
print(f"{steps} steps")
