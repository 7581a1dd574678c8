//! Why a call by path goes to the kernel, which calls hand files over, and why a process serves
//! nothing: for the report.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering::Relaxed};

use crate::counts::{self, CallCounts};

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($variant:ident: $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum $name { $($variant,)* }

        impl $name {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant,)*];

            pub(crate) fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    /// Why the kernel makes a call by path.
    Why {
        NotAdmitted: "not-admitted",
        Never: "never-admitted",
        Child: "child-of-vfork",
        Outside: "outside-the-mount",
        Relative: "relative-and-unknown",
        Descriptor: "descriptor",
        Empty: "empty-path",
        Long: "long-path",
        Flags: "other-flags",
        Pointer: "bad-pointer",
        Busy: "lock-taken",
        Lost: "mount-changed",
        FirstUse: "first-use",
        Kernel: "left-to-the-kernel",
        Device: "block-device",
        NoFile: "no-regular-file",
        Large: "large-file",
        NoGain: "files-handed-over",
        Locked: "record-locks",
        Watched: "watches-files",
        Open: "open-directory",
        Directory: "may-remove-the-working-directory",
    }
}

reasons! {
    /// Why a process serves no calls.
    Refusal {
        None: "no reason",
        NoMount: "no Warren mount",
        NoProc: "/proc cannot be read",
        Ids: "its user or group ids differ",
        Capabilities: "its capabilities are not those of its user",
        Groups: "too many groups",
        UserNamespace: "a user namespace that maps ids",
        Seccomp: "a seccomp filter",
        NoNewPrivs: "no_new_privs is set",
        Confined: "a security module confines it",
        NoCycles: "the cycle counter cannot be read",
        Descriptors: "no descriptors left",
        AddressSpace: "its address space is limited",
        FileSize: "its files may not be as long as one of a client",
        Mount: "the mount is not as expected",
        MountInside: "another mount inside the mount",
        NotAllowed: "the mount is another user's",
        NoLinks: "the mount follows no symbolic links",
        Root: "the fleet's root differs from the mount's",
        Fleet: "the fleet does not admit it",
        Often: "admitted too often",
        OwnMount: "it has changed mounts, roots or namespaces",
        Credentials: "it has changed credentials while it had threads",
        Shared: "it shares memory, files or directories with another process",
        Keys: "it uses protection keys",
        Filter: "it has installed a seccomp filter",
        Calls32: "it makes calls by int $0x80, which are not seen",
    }
}

/// Why the kernel makes calls, and why the process serves nothing.
pub(crate) struct Reasons {
    passed: [AtomicU64; Why::ALL.len()],
    refusal: AtomicU8,
    fleet_text: AtomicPtr<c_char>,
}

/// Counts a call that goes to the kernel.
pub(crate) fn count(why: Why) {
    Reasons::here().passed[why as usize].fetch_add(1, Relaxed);
}

pub(crate) fn passed(why: Why) -> u64 {
    Reasons::here().passed[why as usize].load(Relaxed)
}

/// The kernel takes a file over because of a call with this number.
pub(crate) fn count_handover(number: usize) {
    counts::count(&CallCounts::here().handovers, number);
}

/// The last refusal is the one that is reported.
pub(crate) fn set_refusal(refusal: Refusal) {
    Reasons::here().refusal.store(refusal as u8, Relaxed);
}

pub(crate) fn refusal() -> Refusal {
    let raw = Reasons::here().refusal.load(Relaxed);
    Refusal::ALL.get(usize::from(raw)).copied().unwrap_or(Refusal::None)
}

pub(crate) fn set_fleet_text(text: &'static CStr) {
    Reasons::here().fleet_text.store(text.as_ptr().cast_mut(), Relaxed);
}

pub(crate) fn fleet_text() -> &'static str {
    let text = Reasons::here().fleet_text.load(Relaxed);
    // SAFETY: it is a string that is never freed.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
    text.and_then(|text| text.to_str().ok()).unwrap_or_default()
}

impl Reasons {
    /// A child of `fork` counts its own calls.
    pub(crate) fn begin_again(&self) {
        set_refusal(Refusal::None);
        self.passed.iter().for_each(|count| count.store(0, Relaxed));
    }
}
