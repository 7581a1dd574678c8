//! `warren debug dump`: prints structures of a pool without checking them. Nothing is locked, so
//! that it also works while a fleet serves the pool.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use warren_base::{BlockNo, Ino, ShardId};
use warren_fsck::dump::{DumpError, Section, Subject, dump};
use warren_runtime::{Blocks, FleetError, OfflinePool, Purpose};

use crate::arguments::{Debug, Dump, DumpSubject};
use crate::failure::{CODE_NOT_FOUND, Failure, print_json};
use crate::output::say;

#[derive(Serialize)]
struct Line<'a> {
    title: &'a str,
    fields: BTreeMap<&'a str, &'a str>,
    lines: &'a [String],
}

pub(crate) fn perform(task: &Debug) -> Result<ExitCode, Failure> {
    let Debug::Dump(arguments) = task;
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
        DumpSubject::Inode { ino } => Subject::Inode(Ino(ino)),
        DumpSubject::Block { block } => Subject::Block(BlockNo(block)),
    }
}

fn print(section: &Section, json: bool) -> Result<(), Failure> {
    if json {
        let fields = section.fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        return print_json(&Line { title: &section.title, fields, lines: &section.lines });
    }
    say!("{}", section.title);
    section.fields.iter().for_each(|(name, value)| say!("  {name}: {value}"));
    section.lines.iter().for_each(|line| say!("    {line}"));
    Ok(())
}
