//! The descriptor of which all placeholders are duplicates, and the one that pins the mount.
//!
//! The first is an `O_PATH` descriptor of a kernel socket, so that opening it again through `/proc`
//! fails with ENXIO. It stays while the process is admitted. The second keeps the mount from being
//! unmounted while files are open here, as the kernel's open files do. It is closed with the last
//! file, or rather before the next call that may wait, because the program may open another one
//! first. [`super::pin`] knows who uses it.
//!
//! Both are opened and closed under the lock only. A thread that opens a file without the lock
//! duplicates the template by its number, which may be another file's by then. So it looks
//! afterwards whether the template is still the same one.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, SeqCst},
};

use warren_base::Ino;

use crate::abi::{AF_UNIX, AT_FDCWD, F_GETFL, O_CLOEXEC, RLIMIT_NOFILE, nr};
use crate::inode_numbers::ino_of;
use crate::state::children;
use crate::stub;

use super::super::descriptors::{self, OF_PIN, OF_PLACEHOLDER};
use super::super::facts::{self, Facts};
use super::super::kernel::{BASIC_STATS, Statx};
use super::super::proc;
use super::pin::pin as the_pin;

const O_PATH: usize = 0o1000_0000;
const SOCK_STREAM: usize = 1;
/// The template's word has its number plus one, and from this bit on the count of earlier ones.
const COUNT_SHIFT: u32 = 32;

/// The template, and what the mount was pinned for.
pub(crate) struct Template {
    /// 0 in the low half: there is none.
    word: AtomicU64,
    /// The device number of the mount. It is set under the lock, as the next is.
    device: AtomicU64,
    /// The admission for which the mount was pinned.
    admission: AtomicUsize,
}

/// The pin, which is held as long as this lives. Only the lock's holder has one.
pub(super) struct Held {
    pub pin: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        the_pin().release();
    }
}

fn number_of(word: u64) -> Option<usize> {
    (word as u32).checked_sub(1).map(|number| number as usize)
}

pub(super) fn number() -> Option<usize> {
    number_of(Template::here().word.load(Acquire))
}

/// Makes a descriptor from the template. `None` if there is no template, or not any more.
pub(super) fn duplicate(make: impl FnOnce(usize) -> isize) -> Option<isize> {
    let word = Template::here().word.load(SeqCst);
    let made = make(number_of(word)?);
    if Template::here().word.load(SeqCst) == word {
        return Some(made);
    }
    // It may be a duplicate of another file.
    if let Ok(number) = usize::try_from(made) {
        stub::close(number);
    }
    None
}

/// Whether a file may be opened without the lock.
pub(super) fn is_ready() -> bool {
    the_pin().is_set()
        && Template::here().admission.load(Relaxed) == facts::admissions()
        && number().is_some()
}

/// Opens both, as far as they are not there, so that a file can be opened: the pin stays until what
/// is returned is dropped, or until the file is closed. `None` also while a child is being made,
/// which would find a placeholder. Called under the lock.
pub(super) fn ready(facts: &Facts) -> Option<Held> {
    if number().is_none() {
        let template = descriptors::move_away(socket()?, OF_PLACEHOLDER)?;
        let count = Template::here().word.load(Relaxed) >> COUNT_SHIFT;
        Template::here().word.store((count + 1) << COUNT_SHIFT | (template as u64 + 1), SeqCst);
    }
    // It may have been left by an earlier admission, with a file that could not be handed over.
    if the_pin().is_set() && Template::here().admission.load(Relaxed) != facts::admissions() {
        unpin();
    }
    if !the_pin().is_set() {
        pin(facts)?;
    } else if Template::here().admission.load(Relaxed) == facts::admissions() {
        the_pin().hold();
    } else {
        return None;
    }
    held()
}

/// The pin of a file that was open a moment ago, and so of the mount. `None` if it is closed by
/// now, or while a child is being made. Called under the lock.
pub(super) fn keep() -> Option<Held> {
    the_pin().hold()?;
    held()
}

/// The pin is held. Children are looked for after that, because who makes one looks for the pin
/// afterwards, and then waits for the lock: see [`super::lending::begin_child`].
fn held() -> Option<Held> {
    let held = Held { pin: the_pin().number()? };
    children().is_some().then_some(held)
}

fn pin(facts: &Facts) -> Option<()> {
    let opened = open(facts.prefix.address())?;
    let root = facts.mount.root.ino;
    let Some((device, _)) = identity(opened).filter(|(_, ino)| *ino == root) else {
        // Something else is mounted there now.
        stub::close(opened);
        return None;
    };
    let pin = descriptors::move_away(opened, OF_PIN)?;
    Template::here().device.store(device, Relaxed);
    Template::here().admission.store(facts::admissions(), Relaxed);
    the_pin().set(pin);
    Some(())
}

fn socket() -> Option<usize> {
    // SAFETY: it makes a descriptor.
    let socket = unsafe { stub::call(nr::SOCKET, [AF_UNIX, SOCK_STREAM | O_CLOEXEC, 0]) };
    let socket = usize::try_from(socket).ok()?;
    let opened = open(proc::link_of(socket).as_ptr() as usize);
    stub::close(socket);
    opened
}

fn open(path: usize) -> Option<usize> {
    // SAFETY: the path is a string of ours.
    let opened = unsafe { stub::call(nr::OPENAT, [AT_FDCWD, path, O_PATH | O_CLOEXEC]) };
    usize::try_from(opened).ok()
}

/// Runs `open` where the process has as many descriptors as it may have: with a higher limit, or,
/// if there is none, without the template, which is made again when it is needed. Under the lock.
pub(super) fn with_one_more<R>(open: impl FnOnce() -> R) -> R {
    let limits = stub::limits(RLIMIT_NOFILE).unwrap_or_default();
    let higher = [limits[1].min(limits[0].saturating_add(1)), limits[1]];
    if higher == limits {
        forget_template();
        return open();
    }
    stub::set_limits(RLIMIT_NOFILE, higher);
    let result = open();
    stub::set_limits(RLIMIT_NOFILE, limits);
    result
}

pub(super) fn device() -> u64 {
    Template::here().device.load(Relaxed)
}

/// Whether the number leads to a placeholder still, also in a child, whose descriptors are others.
pub(super) fn is_at(number: usize) -> bool {
    let flags = stub::control(number, F_GETFL, 0);
    let found = || Statx::of_descriptor(number, BASIC_STATS);
    usize::try_from(flags).is_ok_and(|flags| flags & O_PATH != 0)
        && found().is_some_and(|found| found.is_socket())
}

/// The device and the inode behind a descriptor.
pub(super) fn identity(descriptor: usize) -> Option<(u64, Ino)> {
    stub::stat(descriptor).map(|stat| (stat[0], ino_of(stat[1])))
}

/// The mount may be unmounted, unless files are open. Called under the lock.
pub(crate) fn unpin() {
    if let Some(pin) = the_pin().take_unused() {
        descriptors::show(OF_PIN);
        stub::close(pin);
    }
}

/// Closes both. The numbers that were duplicated stay.
pub(crate) fn forget() {
    unpin();
    forget_template();
}

fn forget_template() {
    let word = Template::here().word.fetch_and(!u64::from(u32::MAX), SeqCst);
    if let Some(number) = number_of(word) {
        descriptors::show(OF_PLACEHOLDER);
        stub::close(number);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;
    use crate::abi::F_DUPFD_CLOEXEC;
    use crate::state::{Life, begin_child};

    /// An empty directory that is pinned as the root of a mount. One test has it at a time.
    pub(in super::super) struct Pinned {
        pub directory: PathBuf,
        _alone: MutexGuard<'static, ()>,
    }

    impl Pinned {
        pub(crate) fn new(name: &str) -> Self {
            static ALONE: Mutex<()> = Mutex::new(());
            let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
            let name = format!("warren-{name}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&directory).expect("a directory");
            let path = CString::new(directory.as_os_str().as_bytes()).expect("a path");
            let opened = open(path.as_ptr() as usize).expect("the directory");
            let (device, _) = identity(opened).expect("its identity");
            Template::here().device.store(device, Relaxed);
            Template::here().admission.store(facts::admissions(), Relaxed);
            the_pin().set(opened);
            the_pin().release();
            Self { directory, _alone: alone }
        }
    }

    impl Drop for Pinned {
        fn drop(&mut self) {
            forget();
            std::fs::remove_dir_all(&self.directory).expect("the directory");
        }
    }

    /// Sets a template, as [`ready`] does.
    fn set_template() -> usize {
        let template = socket().expect("a socket");
        Template::here().word.store(template as u64 + 1, SeqCst);
        template
    }

    #[test]
    fn a_placeholder_cannot_be_opened() {
        let _pinned = Pinned::new("opened");
        let socket = socket().expect("a socket");
        let path = format!("/proc/self/fd/{socket}");
        let again = std::fs::File::open(path).expect_err("a socket");
        assert!(is_at(socket) && !is_at(0));
        stub::close(socket);
        assert!(!is_at(socket));
        assert_eq!(again.raw_os_error(), Some(6));
    }

    #[test]
    fn a_duplicate_of_a_template_that_is_replaced_meanwhile_is_closed() {
        let _pinned = Pinned::new("duplicate");
        assert!(!is_ready(), "there is no template");
        let template = set_template();
        assert!(is_ready() && number() == Some(template));
        let duplicated = |template| stub::control(template, F_DUPFD_CLOEXEC, 0);
        let made = duplicate(duplicated).expect("a duplicate") as usize;
        assert!(is_at(made));
        let mut late = 0;
        let lost = duplicate(|template| {
            late = duplicated(template);
            forget_template();
            late
        });
        assert!(lost.is_none() && !is_at(late as usize) && is_at(made));
        assert_eq!(duplicate(|_| unreachable!("there is no template")), None);
        stub::close(made);
    }

    #[test]
    fn the_pin_is_kept_unless_a_child_is_being_made() {
        let _pinned = Pinned::new("keep");
        let held = keep().expect("the pin");
        assert_eq!((the_pin().number(), the_pin().take_unused()), (Some(held.pin), None));
        drop(held);
        begin_child();
        assert!(keep().is_none() && the_pin().is_unused(), "it is not held");
        Life::here().children.fetch_sub(1, SeqCst);
        assert!(keep().is_some());
        unpin();
        assert!(keep().is_none(), "it is closed");
    }

    #[test]
    fn there_is_room_for_one_more_descriptor_than_the_limit() {
        let _pinned = Pinned::new("limit");
        let template = set_template();
        let limits @ [soft, hard] = stub::limits(RLIMIT_NOFILE).expect("limits");
        let found = with_one_more(|| (stub::limits(RLIMIT_NOFILE), number()));
        let higher = (Some([soft + 1, hard]), Some(template));
        assert_eq!(found, if soft < hard { higher } else { (Some(limits), None) });
        assert_eq!(stub::limits(RLIMIT_NOFILE), Some(limits));
    }
}
