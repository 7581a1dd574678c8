# Access control lists, capabilities and flags of files: what tools see, and what they permit.
# limit: 120
# tree: no
# needs: setfacl setcap chattr rsync setpriv python3
set +e; chmod 755 .
as() { local id=$1; shift; setpriv --reuid "$id" --regid "$id" --clear-groups -- "$@" 2>&1; }
try() { "$@" >/dev/null 2>&1; echo "$*: $?"; }
lists() { find "$@" ! -type l | LC_ALL=C sort | tr '\n' '\0' | xargs -0 getfacl -np 2>&1; }

echo "== lists decide over access"
echo text >file; chmod 640 file; setfacl -m u:1001:r,g:1002:rw,u:1003:rwx,m:rw file
lists file; stat -c %A file
for id in 1001 1002 1003 1004; do try as $id cat file; try as $id sh -c 'echo more >>file'; done
chmod 604 file; lists file; try as 1001 cat file; try as 1004 cat file
chmod 660 file; lists file; try as 1003 sh -c 'echo more >>file'
setfacl -b file; lists file; try as 1001 cat file

echo "== directories: search, and what is inherited"
mkdir dir; chmod 750 dir; echo in >dir/in; setfacl -m u:1001:x dir
try as 1001 cat dir/in; try as 1001 ls dir; try as 1002 cat dir/in; try as 1001 stat dir/./in
setfacl -m d:u:1001:rwx,d:g:1002:rx,d:o:- dir
umask 022
mkdir dir/sub; touch dir/new; ln -s new dir/link; mkfifo dir/pipe; (umask 077; touch dir/private)
python3 - <<'PY'
import os
fd = os.open("dir", os.O_TMPFILE | os.O_RDWR, 0o666)
os.link(f"/proc/self/fd/{fd}", "dir/linked", src_dir_fd=None, follow_symlinks=True)
os.close(os.open("dir/odd", os.O_CREAT | os.O_WRONLY, 0o711))
PY
mkdir dir/sub/deeper; lists dir; ls -lR dir | awk '{print $1, $NF}' | grep -v total
try as 1001 touch dir/sub/mine; setfacl -k dir/sub; touch dir/sub/plain; lists dir/sub
try as 1001 setfacl -m u:1001:rwx dir/new; try setfacl -m d:u:1001:r file
chmod g-w dir/sub; lists dir/sub

echo "== set-group-id and owners"
touch group; chown 1001:1002 group; chmod 2755 group
try as 1001 setfacl -m u:1003:r group; stat -c %a group
try as 1004 setfacl -m u:1003:r group; try as 1004 chmod 600 group

echo "== other names are refused, and illegal lists"
python3 - <<'PY'
import os, struct
def acl(*entries): return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)
N = 0xffffffff
def put(name, value, to="file"):
    try: os.setxattr(to, name, value); print(name, len(value), "set")
    except OSError as e: print(name, len(value), e.strerror)
def get(name, of="file"):
    try: print(name, os.getxattr(of, name, follow_symlinks=False).hex())
    except OSError as e: print(name, e.strerror)
A, D = "system.posix_acl_access", "system.posix_acl_default"
put(A, b""); put(A, struct.pack("<I", 2)); put(A, struct.pack("<I", 3)); put(A, b"\2\0\0")
put(A, acl((1, 6, N), (4, 4, N))); put(A, acl((1, 6, N), (4, 4, N), (32, 4, N)))
put(A, acl((1, 6, N), (2, 4, 7), (4, 4, N), (32, 4, N)))
put(A, acl((4, 4, N), (1, 6, N), (32, 4, N))); put(A, acl((1, 9, N), (4, 4, N), (32, 4, N)))
put(A, acl((1, 6, N), (2, 4, 7), (4, 4, N), (16, 6, N), (32, 0, N))); get(A); get(D)
print(oct(os.stat("file").st_mode), sorted(os.listxattr("file")), sorted(os.listxattr("dir")))
put(D, acl((1, 7, N), (4, 5, N), (32, 5, N))); put(D, acl((1, 7, N), (4, 5, N), (32, 0, N)), "dir/sub")
get(D, "dir/sub"); get(A, "dir/link"); put("system.other", b"x"); get("system.other")
os.removexattr("file", A); get(A)
os.removexattr("file", A); os.removexattr("file", D)
PY

echo "== capabilities go with the data"
cap() { getcap "$@"; }
new() { cp /bin/true "$1"; setcap cap_net_raw+ep "$1"; }
for how in append overwrite truncate open chown touch chmod mapped; do
    new prog
    case $how in
    append) echo x >>prog ;;
    overwrite) printf x | dd of=prog conv=notrunc bs=1 2>/dev/null ;;
    truncate) truncate -s 100 prog ;;
    open) : >prog ;;
    chown) chown 0:0 prog ;;
    touch) touch prog ;;
    chmod) chmod 700 prog ;;
    mapped) python3 -c "import mmap; f = open('prog', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[9] = 1; m.flush()" ;;
    esac
    echo "$how: $(cap prog)"
done
new prog; mv prog moved; ln moved again; cp -a moved copy; cap moved again copy
chmod 755 moved; as 1001 setcap cap_net_raw+ep moved >/dev/null; echo $?; try as 1001 setfattr -n user.x -v y moved
python3 - <<'PY'
import os
for value in (b"", b"\0\0\0\1" + bytes(8), b"\0\0\0\2" + bytes(16), b"\0\0\0\2" + bytes(15)):
    try: os.setxattr("moved", "security.capability", value); print(len(value), "set")
    except OSError as e: print(len(value), e.strerror)
PY

echo "== flags"
flags() { lsattr -d "$@" 2>&1 | sed 's/[e-]*//; s/-.* / /'; }
bits() { python3 -c "
import fcntl, struct, sys
for name in sys.argv[1:]:
    with open(name) as f:
        print(name, hex(struct.unpack('I', fcntl.ioctl(f, 0x80086601, bytes(4)))[0] & 0xf0))" "$@"; }
echo text >fixed; chattr +i fixed; bits fixed
for change in "sh -c 'echo x >>fixed'" "rm fixed" "mv fixed other" "ln fixed other" "chmod 600 fixed" \
    "chown 1 fixed" "touch fixed" "truncate -s 0 fixed" "setfattr -n user.a -v b fixed" \
    "setfacl -m u:1:r fixed" "cat fixed" "chattr +d fixed"; do
    eval "try $change"
done
chattr -i fixed; try rm fixed
echo text >log; exec 7>>log; chattr +a log; bits log
for change in "sh -c 'echo x >>log'" "sh -c 'echo x >log'" "rm log" "mv log other" "ln log other" \
    "chmod 600 log" "touch log" "touch -d 2001-01-01 log" "truncate -s 0 log" "cp log copied"; do
    eval "try $change"
done
echo y >&7; exec 7>&-; cat log; chattr -a log
python3 - <<'PY'
import ctypes, errno, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, call, *arguments):
    try:
        print(what, call(*arguments))
    except OSError as error:
        print(what, errno.errorcode[error.errno])
def times(atime, mtime):
    now, omit = (1 << 30) - 1, (1 << 30) - 2
    both = (ctypes.c_long * 4)(0, [now, omit][atime], 0, [now, omit][mtime])
    if libc.utimensat(-100, b"grows", both, 0) != 0:
        raise OSError(ctypes.get_errno(), "utimensat")
with open("grows", "wb") as file: file.write(b"x" * 8192)
with open("source", "wb") as file: file.write(b"y" * 4096)
plain, source = os.open("grows", os.O_RDWR), os.open("source", os.O_RDONLY)
os.system("chattr +a grows")
for atime in (0, 1):
    for mtime in (0, 1):
        attempt("times %d %d" % (atime, mtime), times, atime, mtime)
# A descriptor of before may still write anywhere.
attempt("write", os.pwrite, plain, b"z", 1)
attempt("copy", os.copy_file_range, source, plain, 4096, 0, 4096)
print(open("grows", "rb").read() == b"xz" + b"x" * 4094 + b"y" * 4096)
os.system("chattr -a grows")
os.close(plain)

# What is stored in mappings counts up to the moment when a flag forbids it.
def stored(number, flags):
    """A child that maps the file stores a byte at once, and another one when asked."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        memory = mmap.mmap(os.open("mapped", flags), 4096)
        memory[0:1] = b"1"
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        memory[number:number + 1] = b"2"
        try:
            memory.flush()
        except OSError:
            pass
        os._exit(0)
    os.read(ready[0], 1)
    return child, go[1]
def content():
    fd = os.open("mapped", os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError:
        pass
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return os.read(fd, 5)
def put():
    with open("mapped", "wb") as file: file.write(b"-" * 4096)
put()
child, go = stored(1, os.O_RDWR)
os.system("chattr +i mapped")
os.write(go, b"x"), os.waitpid(child, 0)
print("immutable", content())
os.system("chattr -i mapped")
put()
os.system("chattr +a mapped")
try:
    memory = mmap.mmap(os.open("mapped", os.O_RDWR | os.O_APPEND), 4096)
    memory[2:3] = b"3"
    memory.flush()
except OSError:
    pass
print("append-only", content())
os.system("chattr -a mapped")
print(content())
PY
mkdir kept; touch kept/old; chattr +a kept
for change in "touch kept/new" "rm kept/old" "mv kept/old kept/other" "mv kept/old ." "rmdir kept"; do
    eval "try $change"
done
chattr -a kept; chattr +i kept
for change in "touch kept/more" "rm kept/old" "sh -c 'echo x >>kept/old'" "rmdir kept"; do eval "try $change"; done
chattr -i kept; chattr +dA kept/old; bits kept/old
try as 1001 chattr +i log; chown 1001 log; try as 1001 chattr +d log; bits log; try as 1001 chattr +a log
chattr +A kept/old; touch -a -d 2001-01-01 kept/old; cat kept/old; stat -c %X kept/old
echo "== flags of new files"
mkdir -p heirs; chattr +dA heirs; setfacl -d -m u:1001:rw heirs
echo x >heirs/file; mkdir heirs/dir; mkfifo heirs/pipe; mkdir heirs/dir/deeper; cp -a kept/old heirs/copy
python3 - heirs/nameless <<'PY'
import os, sys
fd = os.open("heirs", os.O_TMPFILE | os.O_RDWR)
os.link(f"/proc/self/fd/{fd}", sys.argv[1], follow_symlinks=True)
PY
bits heirs/file heirs/dir heirs/dir/deeper heirs/copy heirs/nameless; getfacl -cp heirs/dir heirs/file
mv kept/old heirs/moved; bits heirs/moved; chattr -d heirs/dir; touch heirs/dir/file; bits heirs/dir/file
echo y >outside; ln outside heirs/linked; bits heirs/linked; rm -r heirs; touch kept/old
python3 - <<'PY'
import os
# A descriptor that was opened before the flag.
fd = os.open("held", os.O_CREAT | os.O_RDWR); os.write(fd, b"one")
os.system("chattr +i held")
for what in (lambda: os.write(fd, b"two"), lambda: os.ftruncate(fd, 0), lambda: os.fchmod(fd, 0)):
    try: what(); print("done")
    except OSError as e: print(e.strerror)
os.system("chattr -i held"); os.write(fd, b"two"); print(os.pread(fd, 9, 0))
PY
for flag in i a; do
    # Descriptors from before the flag: what fallocate may do still.
    for mode in "" -n "-p" -z; do
        rm -f ranged; head -c 9000 /dev/zero >ranged; exec 7<>ranged; chattr +$flag ranged
        try fallocate $mode -o 4096 -l 8192 /dev/fd/7
        try python3 -c "
import ctypes, os
mode = {'': 0, '-n': 1, '-p': 3, '-z': 16}['$mode']
libc = ctypes.CDLL(None, use_errno=True)
done = libc.fallocate(7, mode, ctypes.c_long(4096), ctypes.c_long(8192))
print(done and os.strerror(ctypes.get_errno()))"
        exec 7>&-; chattr -$flag ranged; stat -c %s ranged
    done
done
for mode in "" -p -z; do
    new prog; fallocate $mode -l 100 prog; echo "$mode $(getcap prog)"
done

echo "== copies"
mkdir tree; cp -a dir tree/; new tree/prog; setfattr -n user.note -v hello tree/dir/in
setfattr -n trusted.note -v root tree/dir/in; cp -a tree one; rsync -aHAX tree/ two
tar --acls --xattrs --xattrs-include='*' -cf tree.tar tree; mkdir three; tar --acls --xattrs --xattrs-include='*' -xpf tree.tar -C three
mv tree moved_tree
for copy in moved_tree one two three/tree; do
    (cd $copy && lists . && find . -exec getfattr -dm- -h {} + 2>/dev/null | grep -v '^# file: \./*$' && getcap -r .) | sort | sha256sum
done
rsync -aHAXi moved_tree/ two | wc -l
rm -r one two three moved_tree tree.tar
