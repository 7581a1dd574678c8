# The usual commands on files.
# needs: sort
set -e
seq 1 1000 > a
cp a b
mv b c
ln -s c d
ls | cat
sha256sum a c
wc a
sort -rn a | head -3
split -l 100 a x
cat x* | cmp - a
du -b a
dd if=a of=e bs=7 2>/dev/null
cmp a e
find . -type f | sort | xargs -n2 echo
tac a | head -1
mkdir -p q/w
rmdir -p q/w
touch -d 2020-01-01 a
stat -c %Y a
env -i /bin/echo x
nice -n 1 true
timeout 5 sleep 0.01
echo a | tee t
chmod 600 t
stat -c %a t
truncate -s 100 t
stat -c %s t
