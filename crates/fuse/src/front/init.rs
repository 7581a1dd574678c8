//! The first request: what kernel and front agree on.

use std::sync::atomic::Ordering;

use warren_base::Errno;
use warren_base::limits::PAYLOAD_MAX;

use super::{Call, PageCaching, Served};
use crate::abi::{self, init};
use crate::ledger::Agreed;
use crate::reply::Terms;

/// Requests of the kernel's own (read-ahead, write-back) at a time: most slots, but not all.
const BACKGROUND_MAX: u16 = 48;

impl Call<'_> {
    /// EPROTO for a kernel that is too old. It speaks no major version but 7 any more.
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
        self.front.ledger.agree(Agreed { drops_names, resends });
        let page_caching = match self.front.options.page_caching {
            PageCaching::Revalidated => init::AUTO_INVAL_DATA,
            PageCaching::Leased => init::EXPLICIT_INVAL_DATA,
        };
        // Not ASYNC_DIO: decision 21.
        let wanted = init::ASYNC_READ
            | init::POSIX_LOCKS
            | init::FLOCK_LOCKS
            | init::ATOMIC_O_TRUNC
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
        self.body.init(&Terms {
            flags: wanted & flags,
            max_readahead,
            max_write: PAYLOAD_MAX as u32,
            max_background: BACKGROUND_MAX,
        });
        Ok(())
    }
}
