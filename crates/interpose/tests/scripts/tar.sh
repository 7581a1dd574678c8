# Archives through a compressor.
# needs: tar
set -e
mkdir t
for i in $(seq 200); do echo $i > t/$i; done
tar czf t.tgz t
mkdir u
tar xzf t.tgz -C u
diff -r t u/t
tar cf - t | tar tf - | wc -l
