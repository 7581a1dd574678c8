//! Scripts of the shell, and one of SQL.

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Checks of the configuration that pass, and those that fail.
pub(in crate::apps) const CHECKS_PASSED: usize = HEADERS.len();
const HEADERS: [&str; 20] = [
    "assert", "ctype", "errno", "fcntl", "float", "inttypes", "limits", "locale", "math", "setjmp",
    "signal", "stdarg", "stddef", "stdint", "stdio", "stdlib", "string", "sys/stat", "time",
    "unistd",
];
const MISSING: [&str; 3] = ["warren/absent", "absent", "sys/absent"];

/// Files that the configuration makes of its template.
pub(in crate::apps) const TEMPLATES: u64 = 40;

const ROUNDS_OF_LOOP: u64 = 250;
pub(in crate::apps) const LOOP_FILES: u64 = 2 * ROUNDS_OF_LOOP;
/// The bytes of all files that the loop leaves.
pub(in crate::apps) const LOOP_BYTES: u64 = LOOP_FILES * LINE.len() as u64;
const LINE: &str = "a line of text\n";

const TRANSACTIONS: u64 = 200;
const ROWS_OF_TRANSACTION: u64 = 3;
pub(in crate::apps) const SQL_ROWS: u64 = TRANSACTIONS * ROWS_OF_TRANSACTION;
/// Each transaction adds one to a row.
pub(in crate::apps) const SQL_SUM: u64 = SQL_ROWS * (SQL_ROWS + 1) / 2 + TRANSACTIONS;

const CONFIGURE: &str = include_str!("configure.sh");
const LOOP: &str = include_str!("loop.sh");

pub(super) fn make(directory: &Path) -> std::io::Result<()> {
    let headers: Vec<&str> = HEADERS.iter().chain(&MISSING).copied().collect();
    let variables = format!("headers=\"{}\"\ntemplates={TEMPLATES}\n", headers.join(" "));
    fs::write(directory.join("configure"), variables + CONFIGURE)?;
    let template = "part = @number@\nversion = @version@\nall:\n\techo $(part)\n".repeat(20);
    fs::write(directory.join("template.in"), template)?;
    fs::write(directory.join("loop"), format!("rounds={ROUNDS_OF_LOOP}\n{LOOP}"))?;
    fs::write(directory.join("transactions.sql"), sql())
}

fn sql() -> String {
    let mut sql =
        "create table entries (id integer primary key, name text, value integer);\n".to_owned();
    for transaction in 0..TRANSACTIONS {
        sql.push_str("begin;\n");
        for row in 1..=ROWS_OF_TRANSACTION {
            let id = transaction * ROWS_OF_TRANSACTION + row;
            let _ = writeln!(sql, "insert into entries values ({id}, 'entry {id}', {id});");
        }
        let changed = transaction * ROWS_OF_TRANSACTION / 2 + 1;
        let _ = writeln!(sql, "update entries set value = value + 1 where id = {changed};");
        sql.push_str("commit;\n");
    }
    sql
}
