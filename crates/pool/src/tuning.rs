//! The six algorithms and their numbers (fos thesis, section 4.4).

/// Where elements are and when they move. Each after `Distributed` adds to the one before, but pull
/// and push exclude each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Algorithm {
    /// All elements are in one shard; the others send it their adds and gets.
    Centralized,
    /// Elements stay where they were added; a get that finds none here fetches one.
    Distributed,
    /// ... and fetches many.
    Bulk,
    /// ... and an idle shard with few elements fetches some in advance.
    BackgroundPull,
    /// ... or an idle shard with many elements sends some to the others, in turn.
    BackgroundPush,
    /// ... only to shards that have fewer by their estimates.
    EstimatedPush,
}

impl Algorithm {
    pub const ALL: [Self; 6] = [
        Self::Centralized,
        Self::Distributed,
        Self::Bulk,
        Self::BackgroundPull,
        Self::BackgroundPush,
        Self::EstimatedPush,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Centralized => "centralized",
            Self::Distributed => "distributed",
            Self::Bulk => "bulk",
            Self::BackgroundPull => "background_pull",
            Self::BackgroundPush => "background_push",
            Self::EstimatedPush => "estimated_push",
        }
    }
}

/// The numbers of the thesis, which were tuned for 4 KiB pages. A pool of larger elements needs
/// smaller numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Elements moved in one message. A message of them must fit `PEER_MESSAGE_MAX`.
    pub bulk: u32,
    /// One idle call of so many does background work.
    pub idle_calls: u32,
    /// Background pull: fetch while there are fewer here.
    pub pull_below: usize,
    /// Background push: send some while there are more here.
    pub push_above: usize,
    /// Estimates: report the number here when it has changed by so much.
    pub estimate_step: u64,
    /// Estimates: send only to shards that have so many fewer.
    pub estimate_gap: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            bulk: 50,
            idle_calls: 100,
            pull_below: 1024,
            push_above: 20_000,
            estimate_step: 500,
            estimate_gap: 2048,
        }
    }
}
