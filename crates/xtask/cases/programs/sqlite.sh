# sqlite3 with a write-ahead log and with rollback journals, and two writers at a time.
# limit: 180
# tree: no
# needs: sqlite3
rows=${ROWS:-100000}
for mode in WAL DELETE TRUNCATE PERSIST; do
  sqlite3 "$mode.db" <<END
PRAGMA journal_mode=$mode;
CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, size INTEGER);
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $rows)
INSERT INTO t SELECT i, 'name ' || (i * 7919 % $rows), i % 1000 FROM n;
COMMIT;
CREATE INDEX by_name ON t(name);
BEGIN;
UPDATE t SET size = size + 1 WHERE id % 3 = 0;
DELETE FROM t WHERE id % 5 = 0;
ROLLBACK;
DELETE FROM t WHERE id % 10 = 0;
SELECT count(*), sum(size) FROM t;
PRAGMA integrity_check;
END
  ls "$mode.db"
done
# Small synchronous transactions by two writers and a reader at once.
sqlite3 two.db 'PRAGMA journal_mode=WAL; CREATE TABLE t(w, i);'
writer() { for i in $(seq 40); do sqlite3 -cmd '.timeout 20000' two.db "INSERT INTO t VALUES($1, $i);"; done; }
writer 1 & first=$!
writer 2 & second=$!
for _ in $(seq 10); do sqlite3 -cmd '.timeout 20000' two.db 'SELECT count(*) FROM t;' > /dev/null; done
wait "$first"; wait "$second"
sqlite3 two.db 'SELECT w, count(*), sum(i) FROM t GROUP BY w; PRAGMA integrity_check;'
sqlite3 WAL.db 'VACUUM; PRAGMA wal_checkpoint(TRUNCATE); PRAGMA integrity_check;'
