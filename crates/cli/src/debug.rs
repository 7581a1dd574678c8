//! `warren debug`. `dump` prints structures of a pool without checking them. Nothing is locked, so
//! that it also works while a fleet serves the pool.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use warren_base::{BlockNo, ShardId};
use warren_fsck::dump::{DumpError, Field, Section, Subject, dump};
use warren_runtime::{Blocks, FleetError, OfflinePool, Purpose};

use crate::arguments::{Debug, Dump, DumpSubject};
use crate::failure::{CODE_NOT_FOUND, Failure, print_json};
use crate::output::say;
use crate::{depends, fault};

/// The largest whole number up to which JSON readers that use doubles are exact.
const EXACT_MAX: u64 = 1 << 53;

#[derive(Serialize)]
struct Line<'a> {
    title: &'a str,
    fields: BTreeMap<&'a str, serde_json::Value>,
    lines: &'a [String],
}

pub(crate) fn perform(task: &Debug) -> Result<ExitCode, Failure> {
    let arguments = match task {
        Debug::Dump(arguments) => arguments,
        Debug::Fault(arguments) => return fault::perform(arguments),
        Debug::Depends(arguments) => return depends::perform(arguments),
    };
    let pool = OfflinePool::open(&arguments.pool, Purpose::Beside)?;
    let mut printed = Ok(());
    let mut show = |section: Section| {
        if printed.is_ok() {
            printed = print(&section, arguments.json);
        }
    };
    let mut read = |block, into: &mut [u8]| pool.read(block, into);
    dump(subject(arguments), pool.len_blocks(), &mut read, &mut show)
        .map_err(|error| failure(&arguments.pool, error))?;
    printed.map(|()| ExitCode::SUCCESS)
}

fn failure(pool: &Path, error: DumpError) -> Failure {
    let pool = pool.to_path_buf();
    match error {
        DumpError::NoShard { .. } | DumpError::NoBlock { .. } => {
            let line = format!("{}: {error}; name one of them", pool.display());
            Failure::new(CODE_NOT_FOUND, line)
        }
        DumpError::Superblock(_) | DumpError::TooShort { .. } | DumpError::RootSlot(_) => {
            FleetError::BadPool {
                pool,
                what: format!("{error}; check the pool with `warren fsck`"),
            }
            .into()
        }
    }
}

fn subject(arguments: &Dump) -> Subject {
    match arguments.subject {
        DumpSubject::Superblock => Subject::Superblock,
        DumpSubject::Slots { shard } => Subject::Slots(shard.map(ShardId)),
        DumpSubject::Map => Subject::Map,
        DumpSubject::Log => Subject::Log,
        DumpSubject::Tree { shard } => Subject::Tree(ShardId(shard)),
        DumpSubject::Inode { ino } => Subject::Inode(ino),
        DumpSubject::Block { block } => Subject::Block(BlockNo(block)),
    }
}

/// A number as JSON readers hold it, and as a string beyond that.
fn json_of(value: &Field) -> serde_json::Value {
    match value {
        Field::Number(number) if *number <= EXACT_MAX => (*number).into(),
        Field::Flag(flag) => (*flag).into(),
        Field::Number(_) | Field::Text(_) => value.to_string().into(),
    }
}

fn print(section: &Section, json: bool) -> Result<(), Failure> {
    if json {
        let fields = section.fields.iter().map(|(name, value)| (*name, json_of(value))).collect();
        return print_json(&Line { title: &section.title, fields, lines: &section.lines });
    }
    say!("{}", section.title);
    section.fields.iter().for_each(|(name, value)| say!("  {name}: {value}"));
    section.lines.iter().for_each(|line| say!("    {line}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_numbers_as_long_as_readers_hold_them() {
        let json = |field: Field| json_of(&field).to_string();
        assert_eq!(json(Field::Number(EXACT_MAX)), "9007199254740992");
        assert_eq!(json(Field::Number(EXACT_MAX + 1)), "\"9007199254740993\"");
        assert_eq!(json(Field::Flag(true)), "true");
        assert_eq!(json(Field::Text("none".into())), "\"none\"");
    }
}
