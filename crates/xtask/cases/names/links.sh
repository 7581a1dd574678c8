# Links up to the limit, and what the C library says of it. It takes two numbers from the kind of the
# file system; what is enforced must not be below them.
# limit: 120
# tree: no
# needs: python3
python3 - <<'END'
import errno, os

open("file", "w").close()
of_kind = ("PC_LINK_MAX", "PC_FILESIZEBITS")
for name in sorted(os.pathconf_names):
    descriptor = os.open("file", os.O_RDONLY)
    if name not in of_kind:
        print(name, *(os.pathconf(of, name) for of in (".", "file", descriptor)))
    os.close(descriptor)
last = 1
try:
    while True:
        os.link("file", f"link{last}")
        last += 1
except OSError as error:
    print(last, errno.errorcode[error.errno], os.stat("file").st_nlink)
print("enough", last >= os.pathconf("file", "PC_LINK_MAX"))
os.unlink("link5")
os.link("file", "link5")
try:
    os.link("link7", "one-more")
except OSError as error:
    print(errno.errorcode[error.errno])
END
