//! The threads of a mix.

use std::io;

pub(in crate::apps) const THREADS: u32 = 4;

/// Executes it on all threads. Returns the first error.
pub(super) fn on_threads(work: impl Fn(u32) -> io::Result<()> + Sync) -> io::Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        let mut ended = threads.into_iter().map(|thread| thread.join());
        ended.try_for_each(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
