//! The state of the process: its parts, and what becomes of each when the program forks, executes
//! another program or begins to have threads, and when an admission ends.
//!
//! A part is the state of one subject: a struct beside the code that uses it, which reaches it by
//! `here()`. It is a field of [`Process`] by its row in the table below, and by nothing else. A row
//! that does not say what becomes of its part at each event does not compile.
//!
//! The rows are in their order in memory. A page that is written to is a page fault at the start
//! and a copy in each child of `fork`, so what every program uses is first and what is large is
//! last. They are also in the order in which an event reaches the parts:
//!
//! * A child of `fork` is a process of its own, and no client, before files are handed over.
//! * Files are handed over before the client ends, which closes them at their cells.
//! * Descriptors of ours are closed before the program may meet their numbers.
//!
//! The end of a thread changes no part. At the end of the process `report` writes what was counted.

use core::mem::offset_of;
use core::sync::atomic::AtomicU64;

use crate::abi::PAGE;
use crate::counts::{CallCounts, Counts};
use crate::deferral::Deferral;
use crate::serve::admission::{self, Admitting};
use crate::serve::files::{adoption, create, parked, passing, pending, pin, placeholder, places};
use crate::serve::files::{record_locks, score, table, takeover};
use crate::serve::lock::{self, Room};
use crate::serve::{changes, choice, clock, cwd, descriptors, facts, kernel_dirs};
use crate::serve::{memory, survey, umask, why};
use crate::slow_lock::SlowLock;
use crate::state::{Life, has_threads};
use crate::threads::Threads;
use crate::trampoline::OpenRegion;
use crate::{exec, fleet, frame, image, inode_numbers, object, patch, report, scan, signal};

/// The functions that change a part at an event. Without one, the part is kept as it is.
struct Fates<P> {
    fork: Option<fn(&P)>,
    thread: Option<fn(&P)>,
    end: Option<fn(&P, &mut Room)>,
}

/// A row of the table: what becomes of the part in a child of `fork`, in a child of `vfork`, at
/// exec, before the program has a second thread, and at the end of an admission, under the lock.
const fn fates<P>(
    fork: Option<fn(&P)>,
    _vfork: Vfork,
    _exec: Exec,
    thread: Option<fn(&P)>,
    end: Option<fn(&P, &mut Room)>,
) -> Fates<P> {
    Fates { fork, thread, end }
}

/// The use that a child of `vfork` makes of a part of its parent's state. They share the memory.
enum Vfork {
    /// The child uses it as the parent does.
    Shared,
    /// The child leaves it alone: it describes the parent.
    Left,
    /// The child takes files from it and passes them to the parent (`lending`).
    Lent,
}

enum Exec {
    /// The part ends with the memory.
    Gone,
    /// The next program has it in its environment (`exec`).
    Environment,
    /// The kernel has what stays open (`handover`).
    HandedOver,
}

use Exec::{Environment, Gone, HandedOver};
use Vfork::{Left, Lent, Shared};
use core::option::Option::{None as Kept, Some as Run};

macro_rules! process {
    ($($(#[$doc:meta])* $group:ident: $Group:ident {
        $($part:ident: $type:ty [$($fates:tt)*])*
    })*) => {
        #[repr(C)]
        pub(crate) struct Process {
            $(pub $group: $Group,)*
        }

        $($(#[$doc])*
        #[repr(C)]
        pub(crate) struct $Group {
            $(pub $part: $type,)*
        }

        $(impl $type {
            const FATES: Fates<Self> = fates($($fates)*);

            #[inline(always)]
            pub(crate) fn here() -> &'static Self {
                &PROCESS.$group.$part
            }
        })*)*

        /// In a child of `fork`, before it returns to the program.
        pub(crate) fn fork() {
            $($(if let Run(change) = <$type>::FATES.fork {
                change(<$type>::here());
            })*)*
        }

        /// Before the program has another thread.
        pub(crate) fn before_thread() {
            if !has_threads() {
                $($(if let Run(change) = <$type>::FATES.thread {
                    change(<$type>::here());
                })*)*
            }
        }

        fn end_admission(room: &mut Room) {
            $($(if let Run(change) = <$type>::FATES.end {
                change(<$type>::here(), room);
            })*)*
        }
    };
}

impl admission::Parts for Admitting {
    fn end(room: &mut Room) {
        end_admission(room);
    }

    fn stop_adoption() {
        pending::stop();
    }

    fn unpin() {
        placeholder::unpin();
    }
}

/// The process begins as zeros, so the library's file has none of it.
// SAFETY: zeros are legal values of all parts. The compiler checks the value of every static.
pub(crate) static PROCESS: Process = unsafe { core::mem::zeroed() };

const _: () = assert!(offset_of!(Process, tables) < PAGE, "the variables begin in the first page");

process! {
    /// The program and its text.
    program: Program {
        // part                         fork                        vfork   exec         thread end
        patching: patch::Patching        [Run(|it| it.stop()),        Shared, Gone,        Run(|_| scan::patch_all()), Kept]
        life: Life                       [Run(|it| it.begin_again()), Shared, Environment, Run(|it| it.threads.set(true)), Kept]
        deferral: Deferral               [Kept,                       Left,   Gone,        Kept, Kept]
        counts: Counts                   [Run(|it| it.begin_again()), Shared, Gone,        Kept, Kept]
        handlers: signal::Handlers       [Kept,                       Left,   Gone,        Kept, Kept]
        open_region: OpenRegion          [Kept,                       Shared, Gone,        Kept, Kept]
        ends: object::Ends               [Kept,                       Shared, Gone,        Kept, Kept]
        image: image::Image              [Kept,                       Shared, Gone,        Kept, Kept]
    }

    /// The parts that answers rest on.
    answers: Answers {
        // part                         fork                        vfork   exec         thread end
        clock: clock::Clock              [Kept,                       Shared, Gone,        Kept, Kept]
        removals: memory::Removals       [Run(|it| it.begin_again()), Shared, Gone,        Kept, Kept]
        reasons: why::Reasons            [Run(|it| it.begin_again()), Shared, Gone,        Kept, Kept]
        umask: umask::Umask              [Kept,                       Left,   Gone,        Kept, Kept]
        changes: changes::Changes        [Kept,                       Left,   Gone,        Kept, Kept]
        shown_numbers: inode_numbers::ShownNumbers [Kept,                       Shared, Gone,        Kept, Kept]
        admissions: facts::Admissions    [Run(|_| facts::withdraw()), Left,   Gone,        Kept, Kept]
        halves: fleet::Halves            [Run(|_| admission::forget_client()), Left,   Gone,        Kept, Kept]
        slow_lock: SlowLock              [Run(|it| it.free()),        Left,   Gone,        Kept, Kept]
        mapped: lock::Mapped             [Kept,                       Left,   Gone,        Kept, Kept]
        admitting: Admitting             [Run(|it| it.begin_again()), Left,   Gone,        Kept, Kept]
    }

    /// Files that are served, or may be.
    files: OpenFiles {
        // part                         fork                        vfork   exec         thread end
        pin: pin::Pin<AtomicU64>         [Run(|it| it.release()),     Left,   Gone,        Kept, Kept]
        table: table::Table              [Run(|_| takeover::in_child()), Lent,   HandedOver,  Kept, Run(|_, room| takeover::all_under_lock(room))]
        parked: parked::Parked           [Kept,                       Left,   Gone,        Kept, Kept]
        pending: pending::Pending        [Run(|it| it.begin_again()), Shared, Gone,        Kept, Kept]
        passing: passing::Passing        [Run(|it| it.close()),       Lent,   Gone,        Kept, Run(|it, _| it.close())]
        template: placeholder::Template  [Run(|_| placeholder::forget()), Left,   Gone,        Kept, Run(|_, _| placeholder::forget())]
        score: score::Score              [Run(|it| it.forget()),      Left,   Gone,        Kept, Kept]
        record_locks: record_locks::RecordLocks [Run(|it| it.forget()),      Left,   Gone,        Kept, Kept]
        adoption: adoption::Adoption     [Kept,                       Left,   Gone,        Kept, Kept]
        any_length: create::AnyLength    [Kept,                       Left,   Gone,        Kept, Kept]
    }

    /// Descriptors of ours, and the next admission.
    admission: Admission {
        // part                         fork                        vfork   exec         thread end
        descriptors: fleet::Descriptors  [Run(|_| fleet::let_go()),   Left,   Gone,        Kept, Run(|_, room| fleet::end(&mut room.client))]
        mounts: admission::Mounts        [Run(|it| it.close()),       Left,   Gone,        Kept, Run(|it, _| it.close())]
        hidden: descriptors::Hidden      [Run(|it| it.begin_again()), Left,   Gone,        Kept, Run(|it, _| it.forget())]
        survey: survey::Survey           [Run(|it| it.begin_again()), Left,   Gone,        Kept, Kept]
        cwd: cwd::Cwd                    [Run(|it| it.begin_again()), Left,   Gone,        Kept, Run(|it, _| it.forget())]
    }

    /// The large parts. Most programs use a few words of the variables, which are first.
    tables: Tables {
        // part                         fork                        vfork   exec         thread end
        variables: exec::Variables       [Kept,                       Shared, Environment, Kept, Kept]
        sites: patch::Sites              [Kept,                       Shared, Gone,        Kept, Kept]
        call_counts: CallCounts          [Run(|it| it.begin_again()), Shared, Gone,        Kept, Kept]
        choices: choice::Choices         [Run(|it| it.begin_again()), Left,   Gone,        Kept, Kept]
        sigsys_actions: signal::SigsysActions [Kept,                       Left,   Gone,        Kept, Kept]
        parents: frame::Parents          [Kept,                       Shared, Gone,        Kept, Kept]
        report: report::Report           [Kept,                       Left,   Environment, Kept, Kept]
        candidates: survey::Candidates   [Kept,                       Left,   Gone,        Kept, Kept]
        slots: facts::Slots              [Kept,                       Left,   Gone,        Kept, Kept]
        known_pages: memory::KnownPages  [Kept,                       Shared, Gone,        Kept, Kept]
        kernel_dirs: kernel_dirs::KernelDirs [Kept,                       Left,   Gone,        Kept, Kept]
        regions: fleet::Regions          [Kept,                       Left,   Gone,        Kept, Kept]
        words: pending::Words            [Kept,                       Shared, Gone,        Kept, Kept]
        threads: Threads                 [Kept,                       Shared, Gone,        Kept, Kept]
        places: places::Places           [Kept,                       Left,   Gone,        Kept, Kept]
        files: table::Files              [Kept,                       Lent,   HandedOver,  Kept, Kept]
    }
}
