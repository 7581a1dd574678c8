//! The processors: pinning and identification.

use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::error::{BenchError, system};

/// The machine on which a result was measured.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    /// Whether a hypervisor is below.
    pub is_virtual: bool,
    pub kernel: String,
}

impl Machine {
    pub fn detect() -> Self {
        // Only for the report: what cannot be read stays empty.
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let line = |name: &str| processors.lines().find(|line| line.starts_with(name));
        let after_colon = |line: &str| line.split_once(':').map(|(_, it)| it.trim().to_owned());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processor: line("model name").and_then(after_colon).unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            is_virtual: line("flags").is_some_and(|flags| {
                flags.ends_with(" hypervisor") || flags.contains(" hypervisor ")
            }),
            kernel: kernel.trim().to_owned(),
        }
    }
}

/// The processors that this process may use.
pub(crate) fn processors() -> Result<Vec<usize>, BenchError> {
    let allowed = sched_getaffinity(None).map_err(system("ask for this process's processors"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

/// The processor of the client, and that of the cell: two different ones, if there are two.
pub(crate) fn places() -> Result<(usize, usize), BenchError> {
    let usable = processors()?;
    let first = usable.first().copied().unwrap_or(0);
    Ok((first, usable.get(1).copied().unwrap_or(first)))
}

/// Pins this thread to a processor while the value lives.
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    pub(crate) fn pin(cpu: usize) -> Result<Self, BenchError> {
        let before = sched_getaffinity(None).map_err(system("ask for this thread's processors"))?;
        pin(None, cpu)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It was allowed before; nothing hangs on it now.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Pins a process (its main thread) to a processor; `None` is this thread.
pub(crate) fn pin(process: Option<Pid>, cpu: usize) -> Result<(), BenchError> {
    pin_among(process, &[cpu])
}

/// The same to several processors.
pub(crate) fn pin_among(process: Option<Pid>, cpus: &[usize]) -> Result<(), BenchError> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    sched_setaffinity(process, &set).map_err(system("pin a process to a processor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_is_free_again_afterwards() {
        let before = sched_getaffinity(None).expect("affinity");
        let (cpu, _) = places().expect("places");
        let pinned = Pinned::pin(cpu).expect("pin");
        assert_eq!(sched_getaffinity(None).expect("affinity").count(), 1);
        drop(pinned);
        assert_eq!(sched_getaffinity(None).expect("affinity"), before);
    }
}
