//! Shows the content of a pool to people: any structure as a section of named fields and of lines.
//!
//! A dump trusts and judges nothing: it shows every structure that it can decode, reports those
//! that it cannot, and shows the rest as bytes. `fsck` judges.

use std::fmt::{self, Write};

use thiserror::Error;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Errno, Ino, InodeNumbers, Lsn, ShardId};
use warren_disk::ROOT_SLOT_SIZE;
use warren_disk::XattrValue;
use warren_disk::{BlockPtr, DecodedBody, DecodedNode, HEIGHT_MAX};
use warren_disk::{Inode, Key, Kind};
use warren_disk::{LogTable, read_record};
use warren_disk::{Owner, RegionMap};
use warren_disk::{RootSlot, RootSlotError};
use warren_disk::{SharedRun, Value};
use warren_disk::{Superblock, SuperblockError};

/// Bytes per line of a structure that could not be decoded.
const BYTES_A_LINE: usize = 32;
/// The most nodes of one tree that are shown: a damaged tree may have circles.
const NODES_MAX: usize = 1 << 20;

/// The structures to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    Superblock,
    /// The root slots of one shard, or of all that were used.
    Slots(Option<ShardId>),
    Map,
    Log,
    Tree(ShardId),
    /// The inode that programs see with this number.
    Inode(u64),
    Block(BlockNo),
}

/// The value of a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Field {
    Number(u64),
    Flag(bool),
    Text(String),
}

impl From<u64> for Field {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Field {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<String> for Field {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// One structure.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Section {
    pub title: String,
    pub fields: Vec<(&'static str, Field)>,
    pub lines: Vec<String>,
}

impl Section {
    fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    fn field(&mut self, name: &'static str, value: impl Into<Field>) {
        self.fields.push((name, value.into()));
    }

    fn never_written(title: String) -> Self {
        let mut section = Self::new(title);
        section.field("never written", true);
        section
    }

    fn wrong(title: String, why: impl ToString) -> Self {
        let mut section = Self::new(title);
        section.field("not intact", why.to_string());
        section
    }
}

type Read<'a> = &'a mut dyn FnMut(BlockNo, &mut [u8]) -> Result<(), Errno>;

/// Why nothing can be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DumpError {
    #[error("{0}")]
    Superblock(SuperblockError),
    #[error("the pool has {needs} blocks, but the device only {has}")]
    TooShort { has: u64, needs: u64 },
    #[error("{0}")]
    RootSlot(RootSlotError),
    #[error("the pool has {shards} shards, from 0 on, and no shard {shard}")]
    NoShard { shard: ShardId, shards: u16 },
    #[error("the device has {blocks} blocks, from 0 on, and no block {block}")]
    NoBlock { block: BlockNo, blocks: u64 },
}

/// Calls `show` with each section of `subject`, for the pool on a device of `device_blocks` blocks,
/// read through `read`.
pub fn dump(
    subject: Subject,
    device_blocks: u64,
    read: Read<'_>,
    show: &mut dyn FnMut(Section),
) -> Result<(), DumpError> {
    let numbers = InodeNumbers::STORED;
    let mut dumper = Dumper { device_blocks, read, show, numbers };
    if let Ok(superblock) = dumper.chosen_superblock() {
        dumper.numbers = superblock.inode_numbers();
    }
    match subject {
        Subject::Superblock => (0..2).for_each(|copy| dumper.superblock(BlockNo(copy))),
        Subject::Block(block) if block.0 >= device_blocks => {
            return Err(DumpError::NoBlock { block, blocks: device_blocks });
        }
        Subject::Block(block) => dumper.block(block),
        subject => {
            let superblock = dumper.chosen_superblock()?;
            match subject {
                Subject::Slots(shard) => dumper.slots(&superblock, shard)?,
                Subject::Map => dumper.map(&superblock)?,
                Subject::Log => dumper.log(&superblock),
                Subject::Tree(shard) => dumper.tree(&superblock, shard, None)?,
                Subject::Inode(number) => {
                    let ino = dumper.numbers.ino(number);
                    dumper.tree(&superblock, ino.shard(), Some(ino))?;
                }
                Subject::Superblock | Subject::Block(_) => {}
            }
        }
    }
    Ok(())
}

struct Dumper<'a> {
    device_blocks: u64,
    read: Read<'a>,
    show: &'a mut dyn FnMut(Section),
    /// The inode numbers that programs see, and so the dump.
    numbers: InodeNumbers,
}

impl Dumper<'_> {
    fn bytes(&mut self, block: BlockNo) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; BLOCK_SIZE];
        (self.read)(block, &mut bytes)?;
        Ok(bytes)
    }

    /// The block, or `None` after showing a section with the reason.
    fn bytes_or_report(&mut self, title: &str, block: BlockNo) -> Option<Vec<u8>> {
        match self.bytes(block) {
            Ok(bytes) => Some(bytes),
            Err(errno) => {
                (self.show)(Section::wrong(title.to_owned(), format!("cannot be read: {errno}")));
                None
            }
        }
    }

    fn chosen_superblock(&mut self) -> Result<Superblock, DumpError> {
        let [a, b] = [0, 1].map(|copy| self.bytes(BlockNo(copy)).unwrap_or_default());
        Superblock::choose(&a, &b).map(|(chosen, _)| chosen).map_err(DumpError::Superblock)
    }

    fn superblock(&mut self, block: BlockNo) {
        let title = format!("superblock, copy {block}");
        let Some(bytes) = self.bytes_or_report(&title, block) else { return };
        (self.show)(match Superblock::decode(&bytes) {
            Err(error) => Section::wrong(title, error),
            Ok(superblock) => superblock_section(title, &superblock),
        });
    }

    fn slots(&mut self, superblock: &Superblock, only: Option<ShardId>) -> Result<(), DumpError> {
        let layout = superblock.layout;
        check_shard(superblock, only.unwrap_or(ShardId(0)))?;
        for shard in (0..layout.shards()).map(ShardId).filter(|s| only.is_none_or(|o| o == *s)) {
            for slot in 0..2 {
                let place = layout.root_slot(shard, slot);
                let title = format!("shard {shard}, root slot {slot}");
                let Some(bytes) = self.bytes_or_report(&title, place.block) else { continue };
                let bytes = &bytes[place.offset..][..ROOT_SLOT_SIZE];
                let is_empty = RootSlot::decode(bytes).is_ok_and(|slot| slot.is_empty());
                if !is_empty || only.is_some() {
                    (self.show)(slot_section(title, bytes));
                }
            }
        }
        Ok(())
    }

    fn map(&mut self, superblock: &Superblock) -> Result<(), DumpError> {
        let layout = superblock.layout;
        // A forged superblock may state a size far beyond the device.
        if layout.total_blocks() > self.device_blocks {
            let (needs, has) = (layout.total_blocks(), self.device_blocks);
            return Err(DumpError::TooShort { has, needs });
        }
        let copies = [0, 1].map(|copy| {
            let pages = (0..layout.region_pages()).map(|page| layout.region_page(copy, page));
            let pages = pages.map(|block| self.bytes(block).unwrap_or(vec![0xEE; BLOCK_SIZE]));
            pages.collect::<Vec<_>>().concat()
        });
        let (map, lost) = RegionMap::salvage(superblock, [&copies[0], &copies[1]]);
        let mut section = Section::new("region map");
        section.field("pages", layout.region_pages());
        section.field("pages lost", lost.len() as u64);
        section.field("pages of which one copy is bad", map.bad_pages().len() as u64);
        section.field("chunks", layout.chunks());
        section.field("free chunks", map.free_chunks());
        let mut runs: Vec<(u64, u64, Owner)> = Vec::new();
        for (chunk, owner) in map.iter() {
            match runs.last_mut() {
                Some((_, end, of)) if *of == owner => *end = chunk + 1,
                _ => runs.push((chunk, chunk + 1, owner)),
            }
        }
        section.lines = (runs.iter())
            .map(|(from, end, owner)| match owner {
                Owner::Shard(shard) => format!("chunks {from}..{end}: shard {shard}"),
                other => format!("chunks {from}..{end}: {other:?}"),
            })
            .collect();
        (self.show)(section);
        Ok(())
    }

    fn log(&mut self, superblock: &Superblock) {
        let layout = superblock.layout;
        for copy in 0..2 {
            self.log_table(format!("log table, copy {copy}"), layout.log_table(copy));
        }
        let copies = [0, 1].map(|copy| self.bytes(layout.log_table(copy)).unwrap_or_default());
        let Ok((table, _)) =
            LogTable::choose([&copies[0], &copies[1]], superblock.generation, layout.logs_max())
        else {
            return;
        };
        for (log, start) in table.starts.iter().enumerate() {
            let area = layout.log_area(log, table.starts.len());
            let mut section = Section::new(format!("log {log}"));
            section.field("first block", area.start.0);
            section.field("blocks", area.blocks);
            let limit = Lsn(start.0.saturating_add(area.bytes()));
            let mut at = *start;
            let mut read = |lsn: Lsn, into: &mut [u8]| self.log_bytes(&area, lsn, into);
            while let Some(record) = read_record(at, limit, table.incarnation, &mut read) {
                let (lsn, end, steps) = (record.lsn.0, record.end.0, record.steps);
                section.lines.push(format!("{lsn}..{end}: {steps} steps {}", hex(&record.body)));
                at = record.end;
            }
            (self.show)(section);
        }
    }

    /// Bytes of a log. Unreadable parts are zeros, which end the log.
    fn log_bytes(&mut self, area: &warren_disk::LogArea, lsn: Lsn, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let (block, offset) = area.place(Lsn(lsn.0 + done as u64));
            let bytes = self.bytes(area.start.offset(block)).unwrap_or(vec![0; BLOCK_SIZE]);
            let len = (BLOCK_SIZE - offset).min(into.len() - done);
            into[done..done + len].copy_from_slice(&bytes[offset..offset + len]);
            done += len;
        }
    }

    fn log_table(&mut self, title: String, block: BlockNo) {
        let Some(bytes) = self.bytes_or_report(&title, block) else { return };
        (self.show)(match LogTable::decode(&bytes) {
            Err(error) if LogTable::damage(&bytes).is_some() => Section::wrong(title, error),
            Err(_) => Section::never_written(title),
            Ok(table) => {
                let mut section = Section::new(title);
                section.field("generation", table.generation);
                section.field("incarnation", table.incarnation);
                let starts = table.starts.iter().enumerate();
                section.lines =
                    starts.map(|(log, lsn)| format!("log {log}: from {}", lsn.0)).collect();
                section
            }
        });
    }

    fn tree(
        &mut self,
        superblock: &Superblock,
        shard: ShardId,
        only: Option<Ino>,
    ) -> Result<(), DumpError> {
        check_shard(superblock, shard)?;
        let slots = [0, 1].map(|slot| {
            let place = superblock.layout.root_slot(shard, slot);
            let block = self.bytes(place.block).unwrap_or(vec![0xEE; BLOCK_SIZE]);
            block[place.offset..][..ROOT_SLOT_SIZE].to_vec()
        });
        let chosen = RootSlot::choose([&slots[0], &slots[1]], superblock, shard)
            .map_err(DumpError::RootSlot)?;
        let mut nodes = NODES_MAX;
        if let Some(root) = chosen.root.root {
            self.node(shard, root, only, HEIGHT_MAX, &mut nodes);
        }
        Ok(())
    }

    /// Shows a node and its descendants; for one inode, only those that lead to it, and its
    /// records.
    fn node(
        &mut self,
        shard: ShardId,
        ptr: BlockPtr,
        only: Option<Ino>,
        levels: usize,
        nodes: &mut usize,
    ) {
        if levels == 0 || *nodes == 0 {
            return (self.show)(Section::wrong(
                format!("node {}", ptr.block),
                "too deep or too many",
            ));
        }
        *nodes -= 1;
        let title = format!("node {}", ptr.block);
        let Some(bytes) = self.bytes_or_report(&title, ptr.block) else { return };
        let node = match DecodedNode::decode(ptr, shard, &bytes) {
            Ok(node) => node,
            Err(error) => return (self.show)(Section::wrong(title, error)),
        };
        let section = node_section(title, shard, &node, (only, self.numbers));
        if only.is_none() || !section.lines.is_empty() {
            (self.show)(section);
        }
        let DecodedBody::Internal(children) = &node.body else { return };
        for (at, child) in children.iter().enumerate() {
            let next = node.keys.get(at + 1);
            let leads = only.is_none_or(|ino| {
                node.keys[at].ino <= ino.0 && next.is_none_or(|next| next.ino >= ino.0)
            });
            if leads {
                self.node(shard, *child, only, levels - 1, nodes);
            }
        }
    }

    /// Shows a block as the structure that its magic names.
    fn block(&mut self, block: BlockNo) {
        let title = format!("block {block}");
        let Some(bytes) = self.bytes_or_report(&title, block) else { return };
        match &bytes[..4] {
            b"WARR" => self.superblock(block),
            b"WLog" => self.log_table(title, block),
            b"WNod" => (self.show)(stray_node(title, block, &bytes, self.numbers)),
            _ if bytes.chunks(ROOT_SLOT_SIZE).any(|slot| slot.starts_with(b"WRoo")) => {
                for (n, slot) in bytes.chunks(ROOT_SLOT_SIZE).enumerate() {
                    (self.show)(slot_section(format!("block {block}, root slot {n}"), slot));
                }
            }
            _ => {
                let mut section = Section::new(title);
                section.field("crc32c", format!("{:#010x}", warren_disk::block_checksum(&bytes)));
                let lines = bytes.chunks(BYTES_A_LINE).enumerate();
                let filled = lines.filter(|(_, line)| line.iter().any(|byte| *byte != 0));
                section.lines = filled
                    .map(|(n, line)| format!("{:4}: {}", n * BYTES_A_LINE, hex(line)))
                    .collect();
                (self.show)(section);
            }
        }
    }
}

fn check_shard(superblock: &Superblock, shard: ShardId) -> Result<(), DumpError> {
    let shards = superblock.layout.shards();
    if shard.0 < shards { Ok(()) } else { Err(DumpError::NoShard { shard, shards }) }
}

fn superblock_section(title: String, superblock: &Superblock) -> Section {
    let layout = superblock.layout;
    let mut section = Section::new(title);
    section.field("uuid", hex(&superblock.uuid));
    section.field("generation", superblock.generation);
    section.field("clean", superblock.clean);
    let kept = superblock.kept_percent.map(|percent| format!("{percent} %"));
    section.field("kept for root", kept.unwrap_or_else(|| "a sixteenth".into()));
    section.field("blocks", layout.total_blocks());
    section.field("shards", u64::from(layout.shards()));
    section.field("dense inode numbers", superblock.dense_inos);
    section.field("region map at block", layout.region_start().0);
    section.field("pages of the region map", layout.region_pages());
    section.field("of them before the root slots", layout.first_pages());
    section.field("root slots at block", layout.roots_start().0);
    section.field("op logs at block", layout.log_start().0);
    section.field("blocks of the op logs", layout.log_blocks());
    section.field("first block that may be allocated", layout.metadata_blocks());
    section.field("created", superblock.created.0.to_string());
    section.field("label", superblock.label.escape_debug().to_string());
    section
}

fn slot_section(title: String, bytes: &[u8]) -> Section {
    if bytes.iter().all(|byte| *byte == 0) {
        return Section::never_written(title);
    }
    let slot = match RootSlot::decode(bytes) {
        Ok(slot) => slot,
        Err(error) => return Section::wrong(title, error),
    };
    let mut section = Section::new(title);
    section.field("shard", u64::from(slot.shard.0));
    section.field("generation", slot.generation);
    match slot.root {
        Some(root) => section.field("root at block", root.block.0),
        None => section.field("root", "none".to_owned()),
    }
    section.field("height", u64::from(slot.height));
    section.field("next sequence", slot.next_sequence);
    section.field("inodes", slot.inodes);
    section.field("used blocks", slot.used_blocks);
    section
}

/// A node without a parent that points to it: its own header is believed.
fn stray_node(title: String, block: BlockNo, bytes: &[u8], numbers: InodeNumbers) -> Section {
    match DecodedNode::decode_stray(block, bytes) {
        Ok((shard, node)) => node_section(title, shard, &node, (None, numbers)),
        Err(error) => Section::wrong(title, error),
    }
}

fn node_section(
    title: String,
    shard: ShardId,
    node: &DecodedNode,
    (only, numbers): (Option<Ino>, InodeNumbers),
) -> Section {
    let mut section = Section::new(title);
    section.field("shard", u64::from(shard.0));
    section.field("level", u64::from(node.level));
    section.field("generation", node.generation);
    section.field("bytes of records", node.size as u64);
    match &node.body {
        DecodedBody::Leaf(values) => {
            let records = node.keys.iter().zip(values);
            let wanted = records.filter(|(key, _)| only.is_none_or(|ino| key.ino == ino.0));
            section.lines = wanted
                .map(|(key, value)| {
                    format!("{}: {}", key_text(key, numbers), value_text(value, numbers))
                })
                .collect();
        }
        DecodedBody::Internal(children) if only.is_none() => {
            let line = |(key, child): (&Key, &BlockPtr)| {
                format!(
                    "{}: block {}, crc {:#010x}",
                    key_text(key, numbers),
                    child.block,
                    child.checksum
                )
            };
            section.lines = node.keys.iter().zip(children).map(line).collect();
        }
        DecodedBody::Internal(_) => {}
    }
    section
}

/// A key with the number that programs see. The records of the shard itself have 0.
fn key_text(key: &Key, numbers: InodeNumbers) -> String {
    let ino = numbers.number(Ino(key.ino));
    let sub = if key.kind == Kind::Orphan { numbers.number(Ino(key.sub)) } else { key.sub };
    format!("{ino} {:?} {sub}", key.kind)
}

fn value_text(value: &Value, numbers: InodeNumbers) -> String {
    match value {
        Value::Chunk(used) => format!("used {used:#018x}"),
        Value::Orphan => "orphan".to_owned(),
        Value::Unwritten(blocks) => format!("{blocks} unwritten blocks"),
        Value::Owed(owed) => {
            format!("{} unwritten blocks in {} extents", owed.blocks, owed.extents)
        }
        Value::Shared(runs) => {
            let text = |run: &SharedRun| {
                let (first, last) = (run.first, run.first + run.blocks - 1);
                format!("{first}..={last}: {} other places", run.others)
            };
            runs.iter().map(text).collect::<Vec<_>>().join(", ")
        }
        Value::Target(piece) => format!("\"{}\"", piece.escape_ascii()),
        Value::Entries(bucket) => {
            let names = bucket.iter().map(|dentry| {
                let number = numbers.number(dentry.ino);
                format!("\"{}\" -> {number} {:?}", dentry.name.escape_ascii(), dentry.kind)
            });
            names.collect::<Vec<_>>().join(", ")
        }
        Value::Xattrs(bucket) => {
            let names = bucket.iter().map(|xattr| {
                let value = match &xattr.value {
                    XattrValue::Inline(value) => hex(value),
                    XattrValue::Pieces(len) => format!("{len} bytes in pieces"),
                };
                format!("\"{}\" = {value}", xattr.name.escape_ascii())
            });
            names.collect::<Vec<_>>().join(", ")
        }
        Value::XattrPiece(piece) => hex(piece),
        Value::Extent(extent) => {
            let sums = extent.checksums.iter().map(|sum| format!("{sum:08x}"));
            let sums = sums.collect::<Vec<_>>().join(" ");
            format!("{} blocks from block {} on, crcs {sums}", extent.len(), extent.start)
        }
        Value::Inode(inode) => inode_text(inode, numbers),
        Value::Part(part) => format!("{part:?}"),
    }
}

/// The fields as derived, but with the mode in octal.
fn inode_text(inode: &Inode, numbers: InodeNumbers) -> String {
    let Inode { kind, mode, uid, gid, nlink, rdev, size, blocks, .. } = inode;
    let Inode { atime, mtime, ctime, btime, generation, parent, flags, .. } = inode;
    let parent = numbers.number(*parent);
    format!(
        "Inode {{ kind: {kind:?}, mode: {mode:04o}, uid: {uid}, gid: {gid}, nlink: {nlink}, \
         rdev: {rdev}, size: {size}, blocks: {blocks}, atime: {atime:?}, mtime: {mtime:?}, \
         ctime: {ctime:?}, btime: {btime:?}, generation: {generation}, parent: {parent}, \
         flags: {flags:?} }}"
    )
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use warren_base::limits::POOL_BLOCKS_MAX;
    use warren_base::{Rng, Timestamp};
    use warren_disk::Layout;
    use warren_disk::format::{FormatOptions, LOG_MIN, image};

    type Pool = BTreeMap<BlockNo, Box<[u8]>>;

    const DEVICE_BLOCKS: u64 = (64 << 20) / BLOCK_SIZE as u64;

    fn pool() -> Pool {
        let options = FormatOptions {
            size_bytes: DEVICE_BLOCKS * BLOCK_SIZE as u64,
            shards: 4,
            log_bytes: LOG_MIN,
            uuid: [1; 16],
            secret: 5,
            now: Timestamp(1),
            uid: 1000,
            gid: 0,
            label: "dumped".to_owned(),
            reserved: false,
            kept_percent: None,
        };
        image(&options).unwrap().into_iter().collect()
    }

    fn sections(pool: &Pool, subject: Subject) -> Result<Vec<Section>, DumpError> {
        let mut sections = Vec::new();
        let mut read = |block: BlockNo, into: &mut [u8]| {
            into.copy_from_slice(pool.get(&block).ok_or(Errno::EIO)?);
            Ok(())
        };
        dump(subject, DEVICE_BLOCKS, &mut read, &mut |section| sections.push(section))?;
        Ok(sections)
    }

    fn subjects(pool: &Pool) -> Vec<Subject> {
        let blocks = pool.keys().map(|block| Subject::Block(*block));
        let others = [
            Subject::Superblock,
            Subject::Slots(None),
            Subject::Slots(Some(ShardId(0))),
            Subject::Map,
            Subject::Log,
            Subject::Tree(ShardId(0)),
            Subject::Inode(1),
        ];
        blocks.chain(others).collect()
    }

    #[test]
    fn every_structure_can_be_looked_at() {
        let pool = pool();
        let text = |subject| format!("{:?}", sections(&pool, subject).unwrap());
        assert!(text(Subject::Superblock).contains("dumped"));
        assert!(text(Subject::Slots(None)).contains("next sequence"));
        assert!(text(Subject::Map).contains("shard 0"));
        assert!(text(Subject::Log).contains("incarnation"));
        assert!(text(Subject::Log).contains("never written"), "the other copy of a new pool");
        assert!(text(Subject::Tree(ShardId(0))).contains("mode: 0755, uid: 1000"));
        assert!(text(Subject::Inode(1)).contains("Directory"));
        assert!(!text(Subject::Inode(2)).contains("Directory"));
        let refused = Err(DumpError::NoShard { shard: ShardId(4), shards: 4 });
        assert_eq!(sections(&pool, Subject::Tree(ShardId(4))), refused);
        assert!(subjects(&pool).into_iter().all(|subject| sections(&pool, subject).is_ok()));
    }

    #[test]
    fn the_map_of_a_pool_that_is_not_all_there_is_not_looked_for() {
        let mut pool = pool();
        let mut superblock = Superblock::decode(&pool[&BlockNo(0)]).unwrap();
        superblock.layout =
            Layout::new(POOL_BLOCKS_MAX, 4, superblock.layout.log_blocks()).unwrap();
        pool.extend([0, 1].map(|copy| (BlockNo(copy), superblock.encode())));
        let (has, needs) = (DEVICE_BLOCKS, POOL_BLOCKS_MAX);
        assert_eq!(sections(&pool, Subject::Map), Err(DumpError::TooShort { has, needs }));
        assert!(sections(&pool, Subject::Superblock).is_ok());
    }

    #[test]
    fn damage_is_shown_and_never_a_panic() {
        let (sound, mut rng) = (pool(), Rng::new(3));
        let blocks: Vec<_> = sound.keys().copied().collect();
        for _ in 0..300 {
            let mut pool = sound.clone();
            let block = *rng.pick(&blocks);
            let at = rng.below(200) as usize;
            pool.get_mut(&block).unwrap()[at] ^= 1 << rng.below(8);
            let near =
                [Subject::Block(block), Subject::Tree(ShardId(0)), Subject::Map, Subject::Log];
            for subject in near {
                let _ = sections(&pool, subject);
            }
        }
    }
}
