//! The memory between clients and cells: lease words and payload lanes.

use hashbrown::{HashMap, HashSet};
use warren_base::{CellId, ClientId, Ino};
use warren_cell::SlotRef;
use warren_client::Words;

use super::streams::Streams;
use crate::fixed::Fixed;

/// All memory that clients and cells share. Each part has one writer: the cell writes words and
/// replies, the client writes requests.
#[derive(Default)]
pub(crate) struct ClientMemory {
    words: HashMap<(CellId, ClientId, u32), u64, Fixed>,
    requests: HashMap<SlotRef, Vec<u8>, Fixed>,
    replies: HashMap<(CellId, SlotRef), Vec<u8>, Fixed>,
    /// The number of the last reply of a slot, and the bytes of its payload.
    reply_lens: HashMap<(CellId, SlotRef), (u32, u32), Fixed>,
    /// The inodes that clients have marked as idle.
    idle: HashSet<(ClientId, Ino), Fixed>,
    /// The objects, by their hashes, that the processes of a cell have marked.
    marks: HashSet<(CellId, u64), Fixed>,
    /// The cells that have released a client.
    closed: HashSet<(CellId, ClientId), Fixed>,
    pub streams: Streams,
}

impl ClientMemory {
    /// The cell has unmapped the client's memory.
    pub(crate) fn close(&mut self, cell: CellId, client: ClientId) {
        self.closed.insert((cell, client));
    }

    pub(crate) fn is_closed(&self, cell: CellId, client: ClientId) -> bool {
        self.closed.contains(&(cell, client))
    }

    /// The cell's successor maps it again. The words of its predecessor remain only if `keep_words`
    /// is set.
    pub(crate) fn reopen(&mut self, cell: CellId, client: ClientId, keep_words: bool) {
        self.closed.remove(&(cell, client));
        if !keep_words {
            self.words.retain(|(of, to, _), _| (*of, *to) != (cell, client));
        }
    }

    pub(crate) fn mark_idle(&mut self, client: ClientId, ino: Ino) {
        self.idle.insert((client, ino));
    }

    pub(crate) fn mark_used(&mut self, client: ClientId, ino: Ino) {
        self.idle.remove(&(client, ino));
    }

    pub(crate) fn is_idle(&self, client: ClientId, ino: Ino) -> bool {
        self.idle.contains(&(client, ino))
    }

    pub(crate) fn mark(&mut self, cell: CellId, hash: u64) {
        self.marks.insert((cell, hash));
    }

    pub(crate) fn is_marked(&self, cell: CellId, hash: u64) -> bool {
        self.marks.contains(&(cell, hash))
    }

    pub(crate) fn store(&mut self, cell: CellId, client: ClientId, word: u32, stamp: u64) {
        self.words.insert((cell, client, word), stamp);
    }

    /// The words for `client` to read.
    pub(crate) fn words_of(&self, client: ClientId) -> WordsOf<'_> {
        WordsOf { lanes: self, client }
    }

    pub(crate) fn put_request(&mut self, from: SlotRef, bytes: &[u8]) {
        let lane = self.requests.entry(from).or_default();
        lane.clear();
        lane.extend_from_slice(bytes);
    }

    /// The client's bytes; bytes that it did not write are zeros.
    pub(crate) fn read_request(&self, from: SlotRef, offset: usize, into: &mut [u8]) {
        let lane = self.requests.get(&from).map_or(&[][..], Vec::as_slice);
        let there = lane.get(offset..).unwrap_or(&[]);
        let len = there.len().min(into.len());
        into[..len].copy_from_slice(&there[..len]);
        into[len..].fill(0);
    }

    /// Space for `offset..offset + len` of a reply's payload.
    pub(crate) fn reply_mut(
        &mut self,
        cell: CellId,
        to: SlotRef,
        offset: usize,
        len: usize,
    ) -> &mut [u8] {
        let lane = self.replies.entry((cell, to)).or_default();
        if lane.len() < offset + len {
            lane.resize(offset + len, STALE);
        }
        &mut lane[offset..offset + len]
    }

    pub(crate) fn note_reply(&mut self, cell: CellId, to: SlotRef, seq: u32, payload_len: u32) {
        self.reply_lens.insert((cell, to), (seq, payload_len));
    }

    /// The payload of the slot's reply `seq`.
    pub(crate) fn payload(&self, cell: CellId, to: SlotRef, seq: u32) -> Vec<u8> {
        match self.reply_lens.get(&(cell, to)) {
            Some((last, len)) if *last == seq => self.reply(cell, to, *len as usize),
            _ => Vec::new(),
        }
    }

    pub(crate) fn reply(&self, cell: CellId, to: SlotRef, len: usize) -> Vec<u8> {
        let lane = self.replies.get(&(cell, to)).map_or(&[][..], Vec::as_slice);
        let mut bytes = lane[..len.min(lane.len())].to_vec();
        bytes.resize(len, STALE);
        bytes
    }
}

/// The contents of a reply lane that was never written: they show answers without their data.
const STALE: u8 = 0x5a;

pub(crate) struct WordsOf<'a> {
    lanes: &'a ClientMemory,
    client: ClientId,
}

impl Words for WordsOf<'_> {
    fn load(&self, cell: CellId, word: u32) -> u64 {
        self.lanes.words.get(&(cell, self.client, word)).copied().unwrap_or(0)
    }
}
