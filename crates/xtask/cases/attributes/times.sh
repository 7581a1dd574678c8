# Times from 1901 to after 2446, and beyond the range, where they are set to its ends.
# needs: python3
for date in 1890-05-06T07:08:09 1901-12-13T20:45:51.5 1901-12-13T20:45:52.5 1901-12-13T20:45:53.5 \
  1901-12-31T23:59:59.123456789 1969-12-31T23:59:59.999999999 1970-01-01T00:00:00 \
  2038-01-19T03:14:08.25 2262-04-11T23:47:16.854775807 2262-04-11T23:47:16.854775808 \
  2262-04-12T00:00:00 2300-02-28T12:00:00.000000001 2446-05-10T22:38:54.75; do
  touch -d "$date" "at-$date"
  stat -c '%n %y %Y %X' "at-$date"
  mkdir "dir-$date"; touch -d "$date" "dir-$date"; stat -c '%Y' "dir-$date"
  ln -s nowhere "link-$date"; touch -hd "$date" "link-$date"; stat -c '%Y' "link-$date"
done
echo "== in order"
ls -t at-*
for pair in "1890-05-06T07:08:09 1901-12-31T23:59:59.123456789" \
  "2038-01-19T03:14:08.25 2262-04-12T00:00:00" "2262-04-11T23:47:16.854775807 2262-04-11T23:47:16.854775808"; do
  set -- $pair
  [ "at-$2" -nt "at-$1" ] && echo "$2 is newer than $1"
  [ "at-$1" -nt "at-$2" ] || echo "$1 is not newer than $2"
done
find . -newermt 2262-01-01 -name 'at-*' | sort
echo "== copied"
cp -a at-2300-02-28T12:00:00.000000001 copy; touch -r at-2262-04-12T00:00:00 other
stat -c '%n %x %y' copy other
echo "== far away"
# The file systems end in different years.
touch -d 2500-01-01 late
[ "$(stat -c %Y late)" -ge "$(stat -c %Y at-2446-05-10T22:38:54.75)" ] && echo late
[ "$(stat -c %Y late)" -lt 16725225600 ] && echo "not so late"
rm late
python3 - <<'PY'
import os
# Reads do not disturb times that are ahead of the present.
open("read", "w").write("text")
os.utime("read", ns=(10413792000 * 10**9 + 6, 10413792000 * 10**9 + 5))
open("read").read()
print(os.stat("read").st_atime_ns, os.stat("read").st_mtime_ns)
with open("read", "a") as f: f.write("more")
print(os.stat("read").st_atime_ns, os.stat("read").st_mtime_ns < 10413792000 * 10**9)
PY
rm read
python3 - <<'PY'
import fcntl, mmap, os
# O_NOATIME of the descriptor at the time of the read, also of a file whose pages are not cached.
open("quiet", "w").write("text" * 5000)
def changes(how, flags, later=0):
    os.utime("quiet", (1, 2))
    fd = os.open("quiet", os.O_RDONLY | flags)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if later:
        fcntl.fcntl(fd, fcntl.F_SETFL, later)
    if how == "mmap":
        mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ)[:4]
    elif how == "pread":
        os.pread(fd, 10, 4090)
    else:
        os.read(fd, 4)
    os.close(fd)
    return os.stat("quiet").st_atime != 1
print("plain:", changes("read", 0), changes("pread", 0))
for how in ("read", "pread", "mmap"):
    print(how, changes(how, os.O_NOATIME), changes(how, 0, os.O_NOATIME))
PY
rm quiet
