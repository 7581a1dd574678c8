# Limits of names, depths and sizes: 255 bytes, every byte that may be in a name, 1,000 nested
# directories, a sparse file of 1 TiB.
# limit: 120
# needs: python3
python3 - <<'END'
import errno, os
def attempt(what, call, *arguments):
    try:
        call(*arguments)
        print(what, "ok")
    except OSError as error:
        print(what, errno.errorcode[error.errno])
long = "n" * 255
attempt("255 bytes", open, long, "w")
attempt("256 bytes", open, long + "n", "w")
attempt("255 bytes of UTF-8", os.mkdir, "é" * 127 + "x")
attempt("256 bytes of UTF-8", os.mkdir, "é" * 128)
attempt("rename to 255", os.rename, long, "m" * 255)
attempt("rename to 256", os.rename, "m" * 255, "m" * 256)
os.mkdir("bytes")
for value in range(1, 256):
    if value != ord("/"):
        name = b"bytes/" + bytes([value]) + b"x"
        with open(name, "wb") as file:
            file.write(bytes([value]))
print(sorted(os.listdir(b"bytes")) == sorted(bytes([v]) + b"x" for v in range(1, 256) if v != ord("/")))
attempt("dot", os.mkdir, ".")
attempt("dot dot", os.rmdir, "bytes/..")
attempt("empty", os.mkdir, "")
attempt("trailing slash on a file", os.stat, "m" * 255 + "/")
here = os.open(".", os.O_RDONLY)
for depth in range(1000):
    os.mkdir("deep", dir_fd=here)
    below = os.open("deep", os.O_RDONLY, dir_fd=here)
    os.close(here)
    here = below
with open(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here), "w") as file:
    file.write("bottom")
print(os.listdir(here))
os.close(here)
size = 1 << 40
with open("sparse", "wb") as file:
    file.truncate(size)
    for at in (0, 1 << 20, 1 << 32, size - 5):
        file.seek(at)
        file.write(b"mark!")
found = os.stat("sparse")
print(found.st_size == size, found.st_blocks * 512 < 1 << 20)
with open("sparse", "rb") as file:
    for at in (0, 1 << 20, (1 << 30) + 1, 1 << 32, size - 5):
        file.seek(at)
        print(at, file.read(5))
os.unlink("sparse")
targets = ["x", "y" * 4095]
for number, target in enumerate(targets):
    os.symlink(target, f"link{number}")
    print(os.readlink(f"link{number}") == target, os.lstat(f"link{number}").st_size)
attempt("target of 4096 bytes", os.symlink, "z" * 4096, "link-too-long")
END
rm -rf deep
