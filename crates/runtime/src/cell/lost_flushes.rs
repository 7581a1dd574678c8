//! Flushes of other processes that have failed: what this cell had written may be lost with them.

use warren_shm::ShardMapReader;

use super::peers::Peers;

/// The supervisor counts its failed flushes beside the shard map, and each cell in its vitals.
pub(super) struct LostFlushes {
    map: ShardMapReader,
    /// So many of the supervisor's are known.
    known: u64,
}

impl LostFlushes {
    pub fn new(map: ShardMapReader) -> Self {
        Self { known: map.lost_flushes(), map }
    }

    /// Whether a flush of another process has failed since this was last asked.
    pub fn have_come(&mut self, peers: &mut Peers) -> bool {
        let lost = self.map.lost_flushes();
        let is_news = std::mem::replace(&mut self.known, lost) != lost;
        peers.have_lost_flush() | is_news
    }
}
