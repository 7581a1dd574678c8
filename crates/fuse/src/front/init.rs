//! `INIT`, the first request: kernel and front negotiate version and features.

use std::sync::atomic::Ordering;

use warren_base::Errno;
use warren_base::limits::PAYLOAD_MAX;

use super::{Call, PageCaching, Served};
use crate::abi::{self, init};
use crate::front_state::Negotiated;
use crate::reply::InitReply;

/// At most so many requests of the kernel itself (read-ahead, write-back) are in flight: most
/// slots, so that some are left for programs.
const BACKGROUND_MAX: u16 = 48;

impl Call<'_> {
    /// EPROTO for a kernel that is too old. All supported kernels have major version 7.
    pub(super) fn init(
        &mut self,
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u64,
    ) -> Served {
        if major != abi::MAJOR || minor < abi::MINOR_MIN {
            return Err(Errno::EPROTO);
        }
        let drops_names = minor >= abi::MINOR_EPOCH;
        self.front.names_cached.store(drops_names, Ordering::Release);
        let resends = flags & init::HAS_RESEND != 0;
        self.front.state.set_negotiated(Negotiated { drops_names, resends });
        let page_caching = match self.front.options.page_caching {
            PageCaching::Revalidated => init::AUTO_INVAL_DATA,
            PageCaching::Leased => init::EXPLICIT_INVAL_DATA,
        };
        // Without ASYNC_DIO, which leaves stale pages: decision 21.
        let wanted = init::ASYNC_READ
            | init::POSIX_LOCKS
            | init::FLOCK_LOCKS
            | init::DONT_MASK
            | init::POSIX_ACL
            | init::SETXATTR_EXT
            | init::ATOMIC_O_TRUNC
            | init::EXPORT_SUPPORT
            | init::BIG_WRITES
            | init::PARALLEL_DIROPS
            | init::ABORT_ERROR
            | init::MAX_PAGES
            | init::CACHE_SYMLINKS
            | init::HANDLE_KILLPRIV_V2
            | init::INIT_EXT
            | init::DIRECT_IO_ALLOW_MMAP
            | init::HAS_RESEND
            | page_caching;
        self.body.init(&InitReply {
            flags: wanted & flags,
            max_readahead,
            max_write: PAYLOAD_MAX as u32,
            max_background: BACKGROUND_MAX,
        });
        Ok(())
    }
}
