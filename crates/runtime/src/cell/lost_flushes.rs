//! Failed flushes of other processes: what this cell had written may be lost with them.

use warren_shm::ShardMapReader;

use super::peers::PeerLinks;

/// The supervisor counts its failed flushes beside the shard map, each cell in its vitals.
pub(super) struct LostFlushes {
    map: ShardMapReader,
    /// The supervisor's count when it was last read.
    known: u64,
}

impl LostFlushes {
    pub(super) fn new(map: ShardMapReader) -> Self {
        Self { known: map.lost_flushes(), map }
    }

    /// Whether a flush of another process has failed since the last call.
    pub(super) fn have_come(&mut self, peers: &mut PeerLinks) -> bool {
        let lost = self.map.lost_flushes();
        let is_news = std::mem::replace(&mut self.known, lost) != lost;
        peers.have_lost_flush() | is_news
    }
}
