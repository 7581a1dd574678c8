# An honest program at work: honest.py SECONDS SEED DIRECTORY. Files are made, written, read, moved and removed,
# and every answer must be the right one, whatever else the fleet has to do. Prints what it did.
import os, random, statistics, sys, time

seconds, seed = float(sys.argv[1]), int(sys.argv[2])
rng = random.Random(seed)
files, took = {}, []
sides = [f"{sys.argv[3]}/{side}" for side in ("left", "right")]
for side in sides:
    os.makedirs(side)
end = time.monotonic() + seconds


def check(path):
    with open(path, "rb") as file:
        found = file.read()
    assert found == files[path], f"{path}: {len(found)} bytes, not the {len(files[path])} written"


while time.monotonic() < end:
    begun = time.monotonic()
    side, other = rng.sample(sides, 2)
    path = f"{side}/{rng.randrange(40)}"
    deed = rng.randrange(8)
    if deed < 3:
        files[path] = rng.randbytes(rng.choice((0, 10, 5000, 70000, 700000)))
        with open(path, "wb") as file:
            file.write(files[path])
            if rng.randrange(20) == 0:
                os.fsync(file.fileno())
    elif deed == 3 and path in files:
        more = rng.randbytes(3000)
        with open(path, "ab") as file:
            file.write(more)
        files[path] += more
    elif deed == 4 and path in files:
        to = f"{other}/{rng.randrange(40)}"
        os.rename(path, to)
        files[to] = files.pop(path)
    elif deed == 5 and path in files:
        os.unlink(path)
        del files[path]
    elif deed == 6:
        listed = sorted(f"{side}/{name}" for name in os.listdir(side))
        assert listed == sorted(p for p in files if p.startswith(side)), "a listing is wrong"
    elif path in files:
        check(path)
    took.append(1000 * (time.monotonic() - begun))
for path in files:
    check(path)
took.sort()
most = took[len(took) * 95 // 100]
print(f"median {statistics.median(took):.2f} ms, 95 of 100 up to {most:.2f}, slowest {took[-1]:.0f}, {len(took)} rounds")
sys.exit(0 if len(took) >= 20 else f"only {len(took)} rounds")
