# A tree of many files copied by cp -a, rsync -a and tar, found by find, compared by diff -r, and
# removed.
# limit: 400
# needs: python3 rsync tar find diff
python3 - "$FILES" <<'END'
import os, random, sys
random.seed(7)
count = int(sys.argv[1])
os.makedirs("tree")
made = []
for i in range(count):
    directory = f"tree/{i % 37}/{i % 11}"
    if i < 37 * 11:
        os.makedirs(directory, exist_ok=True)
    name = f"{directory}/f{i}"
    if i % 50 == 49:
        os.symlink(f"../{i % 11}/f{i - 1}", name)
    elif i % 50 == 48 and made:
        os.link(made[-1], name)
    else:
        size = random.choice([0, 1, 100, 4095, 4096, 4097, 9000, 70000 if i % 100 == 0 else 10])
        with open(name, "wb") as file:
            file.write(random.randbytes(size))
        made.append(name)
        os.chmod(name, random.choice([0o644, 0o600, 0o755, 0o444]))
        os.utime(name, ns=(10**18 + i * 1001, 10**18 + i * 1000003))
for directory, _, _ in os.walk("tree", topdown=False):
    os.utime(directory, ns=(10**18, 10**18))
END
cp -a tree copied
rsync -a -H tree/ synced/
mkdir untarred
tar cf tree.tar --sort=name tree
tar xf tree.tar -C untarred
stat -c '%n %Y %y %a %h' $(find tree copied synced untarred -type f -name 'f1*7' | sort | sed -n '1,60p')
diff -r --no-dereference tree copied && diff -r --no-dereference tree synced
diff -r --no-dereference tree untarred/tree && echo same
rsync -a -H --itemize-changes --delete tree/ synced/ | sed '/\/$/d' | wc -l
for kind in f d l; do find tree -type "$kind" | wc -l; done
find tree -type f -links +1 | wc -l
find tree -type f -size +8k | wc -l
find tree -newermt '2001-09-10' -type f | wc -l
find tree -type f -perm 444 | sort | sed -n '1,3p'
ls -U tree/5/3 | sort | cksum
du -s --apparent-size tree | cut -f1 > /dev/null
rm -rf untarred synced tree.tar
find . -mindepth 1 -maxdepth 1 | sort
find copied -type f -name '*7' -delete
find copied | wc -l
chmod -R u+w tree && mv tree moved && find moved | wc -l
rm -rf copied
