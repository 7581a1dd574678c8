# A database with a journal and with a log.
# needs: sqlite3
set -e
sqlite3 a.db 'create table t(a,b); with recursive c(x) as (select 1 union all select x+1 from c where x<2000) insert into t select x, x*x from c; select sum(b) from t; pragma integrity_check; pragma journal_mode=wal; insert into t values(1,2); select count(*) from t;'
