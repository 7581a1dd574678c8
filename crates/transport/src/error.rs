//! Why an admission cannot be used.

use warren_base::Errno;
use warren_shm::SegmentError;

#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error(
        "the fleet's message makes no sense; restart the fleet, or this program, if one is older"
    )]
    Malformed,
    #[error("the fleet refused: {0}; see `warren status`")]
    Refused(Errno),
    #[error("cannot {doing}: {errno}")]
    System { doing: &'static str, errno: rustix::io::Errno },
    #[error(transparent)]
    Memory(#[from] SegmentError),
}
