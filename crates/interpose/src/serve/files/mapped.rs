//! Private mappings of files that are served.
//!
//! The program maps a *snapshot*: a memfd with the data that the file has now. It ends where the
//! file ends, so that all that a program can do with such a mapping is as with the file's. Changes
//! of the file are not seen in it. POSIX leaves open whether they are.
//!
//! ```text
//! lock ─▶ memfd_create ─▶ the data are written ─▶ mmap, as the program has asked ─▶ close
//! ```
//!
//! Only the kernel maps: what is shared or executed, what takes the place of another mapping, and
//! files that this process has open for writing, because a program sees its own writes in pages
//! that it has not changed. Errors are the kernel's, too: it makes a call that fails here again.

use core::ffi::CStr;

use crate::abi::{
    MAP_ANONYMOUS, MAP_DENYWRITE, MAP_EXECUTABLE, MAP_FIXED, MAP_GROWSDOWN, MAP_HUGETLB,
    MAP_PRIVATE, MAP_TYPE, MFD_CLOEXEC, MFD_NOEXEC_SEAL, PROT_EXEC, is_error, nr,
};
use crate::call::SystemCall;
use crate::fleet::files as fleet;
use crate::stub;

use super::super::admission;
use super::super::descriptors::{self, OF_SNAPSHOT};
use super::create::may_write_any_length;
use super::open::SERVED_MAX;
use super::table::{self, Served};

/// `ld.so` sets these for the objects that it loads, of which a part is executed.
const OF_OBJECTS: usize = MAP_DENYWRITE | MAP_EXECUTABLE;
const LEFT_TO_THE_KERNEL: usize =
    MAP_FIXED | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_HUGETLB | OF_OBJECTS;

/// `/proc/PID/maps` shows this and the end of the path by which the file was opened.
const NAME: &[u8] = b"warren:";
/// The longest name with its final zero. The kernel takes 249 bytes.
const NAME_MAX: usize = 128;

/// `mmap`. `None` if the kernel is to do it.
pub(super) fn map(call: &SystemCall) -> Option<isize> {
    let [_, _, protection, flags, descriptor, _] = call.args;
    let is_private = flags & (MAP_TYPE | LEFT_TO_THE_KERNEL) == MAP_PRIVATE;
    if !is_private || protection & PROT_EXEC != 0 {
        return None;
    }
    let file = table::find(descriptor as u32 as usize)?;
    let (held, admission) = (file.held()?, admission::current()?);
    // On a `noexec` mount, pages may not be made executable later, either.
    if admission.facts.mount.options.no_exec || is_written(&file) {
        return None;
    }
    admission::waiting(|room| {
        if !may_write_any_length() {
            return None;
        }
        let snapshot = Snapshot::new(&file)?;
        fleet::whole(&mut room.client, held, SERVED_MAX, |data| snapshot.add(data))?;
        if !admission.is_current() || !file.is_open() {
            return None;
        }
        Some(snapshot.map(call)).filter(|result| !is_error(*result))
    })?
}

/// Whether this process has the file open for writing here. If the kernel has it open, data of the
/// file are not kept.
fn is_written(file: &Served) -> bool {
    let ino = file.node().ino;
    table::among(0, usize::MAX).any(|other| other.is_written() && other.node().ino == ino)
}

/// A memfd. Its number is hidden from other threads, which could replace it. Under the lock.
struct Snapshot(usize);

impl Snapshot {
    fn new(file: &Served) -> Option<Self> {
        let mut path = [0; NAME_MAX];
        let mut room = [0; table::PATH_MAX];
        let name = name(file.path(&mut room), &mut path).as_ptr() as usize;
        // SAFETY: it makes a descriptor. The name is a string of ours.
        let made = unsafe { stub::call(nr::MEMFD_CREATE, [name, MFD_CLOEXEC | MFD_NOEXEC_SEAL]) };
        let number = usize::try_from(made).ok()?;
        descriptors::set(OF_SNAPSHOT, number..number + 1);
        Some(Self(number))
    }

    /// Writes behind what is there.
    fn add(&self, data: &[u8]) -> bool {
        // SAFETY: the kernel reads from `data`.
        let wrote = unsafe { stub::call(nr::WRITE, [self.0, data.as_ptr() as usize, data.len()]) };
        usize::try_from(wrote) == Ok(data.len())
    }

    fn map(&self, call: &SystemCall) -> isize {
        let [address, length, protection, flags, _, offset] = call.args;
        let args = [address, length, protection, flags, self.0, offset];
        // SAFETY: the program makes this call. It takes no page away.
        unsafe { stub::call(nr::MMAP, args) }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        descriptors::show(OF_SNAPSHOT);
        stub::close(self.0);
    }
}

fn name<'a>(path: &[u8], room: &'a mut [u8; NAME_MAX]) -> &'a CStr {
    let rest = NAME_MAX - NAME.len() - 1;
    let shown = &path[path.len().saturating_sub(rest)..];
    room[..NAME.len()].copy_from_slice(NAME);
    room[NAME.len()..][..shown.len()].copy_from_slice(shown);
    CStr::from_bytes_until_nul(room).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_end_of_the_path() {
        let name_of = |path: &[u8]| {
            let mut room = [0; NAME_MAX];
            name(path, &mut room).to_bytes().to_vec()
        };
        assert_eq!(name_of(b""), b"warren:");
        assert_eq!(name_of(b"/mnt/file"), b"warren:/mnt/file");
        let long: Vec<u8> = (0..300).map(|at| b'a' + (at % 26) as u8).collect();
        let name = name_of(&long);
        assert_eq!(name.len(), NAME_MAX - 1);
        assert!(name.starts_with(NAME) && long.ends_with(&name[NAME.len()..]));
    }

    #[test]
    fn a_snapshot_has_what_is_added() {
        let name = c"warren:test";
        // SAFETY: it makes a descriptor.
        let made = unsafe { stub::call(nr::MEMFD_CREATE, [name.as_ptr() as usize, MFD_CLOEXEC]) };
        let number = usize::try_from(made).expect("a memfd");
        let snapshot = Snapshot(number);
        assert!(snapshot.add(b"some ") && snapshot.add(b"data"));
        let text = std::fs::read_to_string(format!("/proc/self/fd/{number}")).expect("readable");
        assert_eq!(text, "some data");
    }
}
