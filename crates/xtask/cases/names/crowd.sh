# Several processes at once in the same directories: creates, renames between two directories,
# removals, and a reader that must never see a name twice or lose one that stays.
# limit: 120
# needs: python3
python3 - <<'END'
import os, subprocess, sys
os.mkdir("left"), os.mkdir("right"), os.mkdir("stay")
for i in range(300):
    open(f"stay/{i}", "w").close()
worker = '''
import errno, os, random, sys
me = sys.argv[1]; rng = random.Random(me)
def quiet(call, *arguments):
    try: call(*arguments); return 1
    except OSError as error:
        # What the others do at the same time leads to these, and to nothing else.
        if error.errno not in (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY): raise
        return 0
for i in range(400):
    name = f"{me}-{i % 20}"
    open(f"left/{name}", "w").write(me)
    quiet(os.rename, f"left/{name}", f"right/{name}")
    if i % 3: quiet(os.unlink, f"right/{name}")
    shared = f"shared{rng.randrange(5)}"
    quiet(os.mkdir, f"left/{shared}"); quiet(os.rename, f"left/{shared}", f"right/{shared}")
    quiet(os.rmdir, rng.choice(("left/", "right/")) + shared)
    if i % 10 == 0:
        seen = os.listdir("stay")
        mine = [n for n in seen if not n.startswith("new")]
        assert len(seen) == len(set(seen)) and len(mine) == 300, (len(seen), len(mine))
    open(f"stay/new{me}", "w").close(); os.unlink(f"stay/new{me}")
sys.exit(0)
'''
workers = [subprocess.Popen([sys.executable, "-c", worker, str(n)]) for n in range(4)]
print([w.wait() for w in workers])
for place in ("left", "right"):
    for name in os.listdir(place):
        full = f"{place}/{name}"
        os.rmdir(full) if os.path.isdir(full) else os.unlink(full)
    os.rmdir(place)
print(len(os.listdir("stay")), os.stat(".").st_nlink)
END
