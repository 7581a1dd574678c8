//! The number of threads of the machine that can run: whether a processor is left for one that
//! spins.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// More than the kernel writes to its file of loads.
const LOADS_MAX: usize = 128;

/// The kernel's file of loads.
#[derive(Debug)]
pub struct Loads {
    /// Without one nothing is known.
    file: Option<File>,
}

impl Loads {
    /// Must precede a confinement in which nothing can be opened.
    pub fn open() -> Self {
        Self { file: File::open("/proc/loadavg").ok() }
    }

    /// Threads on the machine that run or could. Takes 1 to 2 µs.
    pub fn runnable(&self) -> Option<usize> {
        let mut text = [0; LOADS_MAX];
        let length = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        running(std::str::from_utf8(&text[..length]).ok()?)
    }
}

/// `0.47 0.75 1.14 1/81 32457`: one of 81 threads can run.
fn running(loads: &str) -> Option<usize> {
    loads.split(' ').nth(3)?.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_file_says_how_many_threads_can_run() {
        assert_eq!(running("0.47 0.75 1.14 3/81 32457\n"), Some(3));
        assert_eq!((running(""), running("1 2 3 4")), (None, None));
        assert!(Loads::open().runnable().is_some_and(|threads| threads > 0), "this thread runs");
    }
}
