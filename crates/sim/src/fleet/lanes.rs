//! Memory between clients and cells: lease words and payload lanes.

use hashbrown::{HashMap, HashSet};
use warren_base::{CellId, ClientId};
use warren_cell::SlotRef;
use warren_client::Words;

use crate::fixed::Fixed;

/// Everything clients and cells share. Each part has one writer: words and replies the cell, requests
/// the client.
#[derive(Default)]
pub struct Lanes {
    words: HashMap<(CellId, ClientId, u32), u64, Fixed>,
    requests: HashMap<SlotRef, Vec<u8>, Fixed>,
    replies: HashMap<(CellId, SlotRef), Vec<u8>, Fixed>,
    /// Who has let go of whom.
    closed: HashSet<(CellId, ClientId), Fixed>,
}

impl Lanes {
    /// The cell has no memory of the client any more.
    pub fn close(&mut self, cell: CellId, client: ClientId) {
        self.closed.insert((cell, client));
    }

    pub fn is_closed(&self, cell: CellId, client: ClientId) -> bool {
        self.closed.contains(&(cell, client))
    }

    /// The cell's successor has it again; of the words of its predecessor only those remain that are kept.
    pub fn reopen(&mut self, cell: CellId, client: ClientId, keep_words: bool) {
        self.closed.remove(&(cell, client));
        if !keep_words {
            self.words.retain(|(of, to, _), _| (*of, *to) != (cell, client));
        }
    }

    pub fn store(&mut self, cell: CellId, client: ClientId, word: u32, stamp: u64) {
        self.words.insert((cell, client, word), stamp);
    }

    /// The words as `client` reads them.
    pub fn words_of(&self, client: ClientId) -> WordsOf<'_> {
        WordsOf { lanes: self, client }
    }

    pub fn put_request(&mut self, from: SlotRef, bytes: &[u8]) {
        let lane = self.requests.entry(from).or_default();
        lane.clear();
        lane.extend_from_slice(bytes);
    }

    /// What the client wrote; what it did not write reads as zeros.
    pub fn read_request(&self, from: SlotRef, offset: usize, into: &mut [u8]) {
        let lane = self.requests.get(&from).map_or(&[][..], Vec::as_slice);
        let there = lane.get(offset..).unwrap_or(&[]);
        let len = there.len().min(into.len());
        into[..len].copy_from_slice(&there[..len]);
        into[len..].fill(0);
    }

    /// Room for `offset..offset + len` of a reply's payload.
    pub fn reply_mut(&mut self, cell: CellId, to: SlotRef, offset: usize, len: usize) -> &mut [u8] {
        let lane = self.replies.entry((cell, to)).or_default();
        if lane.len() < offset + len {
            lane.resize(offset + len, STALE);
        }
        &mut lane[offset..offset + len]
    }

    pub fn reply(&self, cell: CellId, to: SlotRef, len: usize) -> Vec<u8> {
        let lane = self.replies.get(&(cell, to)).map_or(&[][..], Vec::as_slice);
        let mut bytes = lane[..len.min(lane.len())].to_vec();
        bytes.resize(len, STALE);
        bytes
    }
}

/// What a reply lane holds that no cell has written: whoever answers without writing is caught.
const STALE: u8 = 0x5a;

pub struct WordsOf<'a> {
    lanes: &'a Lanes,
    client: ClientId,
}

impl Words for WordsOf<'_> {
    fn load(&self, cell: CellId, word: u32) -> u64 {
        self.lanes.words.get(&(cell, self.client, word)).copied().unwrap_or(0)
    }
}
