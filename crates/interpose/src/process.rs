//! The state of the process: its parts, and what becomes of each when the program forks, executes
//! another program or begins to have threads, and when an admission ends.
//!
//! A part is the state of one subject: a struct beside the code that uses it, which reaches it by
//! `here()`. It is a field of [`Process`] by its row in the table below, and by nothing else. The
//! row says what becomes of it at each event: it is a literal of [`Fates`], which lacks no field.
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
use crate::serve::files::{adoption, create, parked, passing, pending, pin, placeholder, places};
use crate::serve::files::{record_locks, score, table, takeover};
use crate::serve::lock::{self, Room};
use crate::serve::{admission, changes, choice, clock, cwd, descriptors, facts, kernel_dirs};
use crate::serve::{memory, survey, umask, why};
use crate::slow_lock::SlowLock;
use crate::state::{Counts, Life, has_threads};
use crate::threads::Threads;
use crate::trampoline::OpenRegion;
use crate::{exec, fleet, frame, hook, image, inode_numbers, object, patch, report, scan, signal};

/// What becomes of a part at each event.
struct Fates<P> {
    /// In a child of `fork`.
    fork: Fate<fn(&P)>,
    #[expect(dead_code, reason = "the part says it, and nothing is to be done")]
    vfork: Vfork,
    #[expect(dead_code, reason = "the part says it, and nothing is to be done")]
    exec: Exec,
    /// Before the program has a second thread.
    thread: Fate<fn(&P)>,
    /// At the end of an admission, under the lock.
    end: Fate<fn(&P, &mut Room)>,
}

enum Fate<F> {
    /// The part stays as it is.
    Kept,
    Run(F),
}

/// What a child of `vfork`, which has the memory of its parent, does with a part.
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

macro_rules! process {
    ($($(#[$doc:meta])* $group:ident: $Group:ident {
        $($part:ident: $type:ty { $($fates:tt)* })*
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
            const FATES: Fates<Self> = {
                use {Exec::*, Fate::*, Vfork::*};
                Fates { $($fates)* }
            };

            #[inline(always)]
            pub(crate) fn here() -> &'static Self {
                &PROCESS.$group.$part
            }
        })*)*

        /// In a child of `fork`, before it returns to the program.
        pub(crate) fn fork() {
            $($(if let Fate::Run(change) = <$type>::FATES.fork {
                change(<$type>::here());
            })*)*
        }

        /// Before the program has another thread.
        pub(crate) fn before_thread() {
            if !has_threads() {
                $($(if let Fate::Run(change) = <$type>::FATES.thread {
                    change(<$type>::here());
                })*)*
            }
        }

        impl admission::Ends for admission::Admitting {
            fn end(&self, room: &mut Room) {
                $($(if let Fate::Run(change) = <$type>::FATES.end {
                    change(<$type>::here(), room);
                })*)*
            }
        }
    };
}

/// It begins as zeros, so the library's file has none of it.
// SAFETY: zeros are legal values of all parts. The compiler checks the value of every static.
pub(crate) static PROCESS: Process = unsafe { core::mem::zeroed() };

const _: () = assert!(offset_of!(Process, tables) < PAGE, "the variables begin in the first page");

process! {
    /// The program and its text.
    program: Program {
        patching: patch::Patching {
            fork: Run(patch::Patching::stop), vfork: Shared, exec: Gone,
            thread: Run(|_| scan::patch_all()), end: Kept
        }
        life: Life {
            fork: Run(Life::begin_again), vfork: Shared, exec: Environment,
            thread: Run(|life| life.threads.set(true)), end: Kept
        }
        counts: Counts {
            fork: Run(Counts::begin_again), vfork: Shared, exec: Gone, thread: Kept, end: Kept
        }
        handlers: signal::Handlers {
            fork: Kept, vfork: Left, exec: Gone, thread: Kept, end: Kept
        }
        open_region: OpenRegion { fork: Kept, vfork: Shared, exec: Gone, thread: Kept, end: Kept }
        ends: object::Ends { fork: Kept, vfork: Shared, exec: Gone, thread: Kept, end: Kept }
        image: image::Image { fork: Kept, vfork: Shared, exec: Gone, thread: Kept, end: Kept }
    }

    /// What answers rest on.
    answers: Answers {
        clock: clock::Clock { fork: Kept, vfork: Shared, exec: Gone, thread: Kept, end: Kept }
        removals: memory::Removals {
            fork: Run(memory::Removals::begin_again), vfork: Shared, exec: Gone,
            thread: Kept, end: Kept
        }
        reasons: why::Reasons {
            fork: Run(why::Reasons::begin_again), vfork: Shared, exec: Gone,
            thread: Kept, end: Kept
        }
        umask: umask::Umask { fork: Kept, vfork: Left, exec: Gone, thread: Kept, end: Kept }
        changes: changes::Changes { fork: Kept, vfork: Left, exec: Gone, thread: Kept, end: Kept }
        shown_numbers: inode_numbers::ShownNumbers {
            fork: Kept, vfork: Shared, exec: Gone, thread: Kept, end: Kept
        }
        admissions: facts::Admissions {
            fork: Run(|_| _ = facts::withdraw()), vfork: Left, exec: Gone, thread: Kept, end: Kept
        }
        halves: fleet::Halves {
            fork: Run(|_| admission::forget_client()), vfork: Left, exec: Gone,
            thread: Kept, end: Kept
        }
        slow_lock: SlowLock {
            fork: Run(SlowLock::free), vfork: Left, exec: Gone, thread: Kept, end: Kept
        }
        mapped: lock::Mapped { fork: Kept, vfork: Left, exec: Gone, thread: Kept, end: Kept }
        admitting: admission::Admitting {
            fork: Run(admission::Admitting::begin_again), vfork: Left, exec: Gone,
            thread: Kept, end: Kept
        }
    }

    /// Files that are served, or may be.
    files: OpenFiles {
        pin: pin::Pin<AtomicU64> {
            fork: Run(pin::Pin::release), vfork: Left, exec: Gone, thread: Kept, end: Kept
        }
        table: table::Table {
            fork: Run(|_| takeover::in_child()), vfork: Lent, exec: HandedOver,
            thread: Kept, end: Run(|_, room| takeover::all_under_lock(room))
        }
        parked: parked::Parked { fork: Kept, vfork: Left, exec: Gone, thread: Kept, end: Kept }
        pending: pending::Pending {
            fork: Run(pending::Pending::begin_again), vfork: Shared, exec: Gone,
            thread: Kept, end: Kept
        }
        passing: passing::Passing {
            fork: Run(passing::Passing::close), vfork: Lent, exec: Gone,
            thread: Kept, end: Run(|passing, _| passing.close())
        }
        template: placeholder::Template {
            fork: Run(|_| placeholder::forget()), vfork: Left, exec: Gone,
            thread: Kept, end: Run(|_, _| placeholder::forget())
        }
        score: score::Score {
            fork: Run(score::Score::forget), vfork: Left, exec: Gone, thread: Kept, end: Kept
        }
        record_locks: record_locks::RecordLocks {
            fork: Run(record_locks::RecordLocks::forget), vfork: Left, exec: Gone,
            thread: Kept, end: Kept
        }
        adoption: adoption::Adoption {
            fork: Kept, vfork: Left, exec: Gone, thread: Kept, end: Kept
        }
        any_length: create::AnyLength {
            fork: Kept, vfork: Left, exec: Gone, thread: Kept, end: Kept
        }
    }

    /// Descriptors of ours, and the next admission.
    admission: Admission {
        descriptors: fleet::Descriptors {
            fork: Run(|_| fleet::let_go()), vfork: Left, exec: Gone,
            thread: Kept, end: Run(|_, room| fleet::end(&mut room.client))
        }
        mounts: admission::Mounts {
            fork: Run(admission::Mounts::close), vfork: Left, exec: Gone,
            thread: Kept, end: Run(|mounts, _| mounts.close())
        }
        hidden: descriptors::Hidden {
            fork: Run(descriptors::Hidden::begin_again), vfork: Left, exec: Gone,
            thread: Kept, end: Run(|hidden, _| hidden.forget())
        }
        survey: survey::Survey {
            fork: Run(survey::Survey::begin_again), vfork: Left, exec: Gone,
            thread: Kept, end: Kept
        }
        cwd: cwd::Cwd {
            fork: Run(cwd::Cwd::begin_again), vfork: Left, exec: Gone,
            thread: Kept, end: Run(|cwd, _| cwd.forget())
        }
    }

    /// What is large. Of the variables, which are first, most programs use a few words.
    tables: Tables {
        variables: exec::Variables {
            fork: Kept, vfork: Shared, exec: Environment, thread: Kept, end: Kept
        }
        sites: patch::Sites { fork: Kept, vfork: Shared, exec: Gone, thread: Kept, end: Kept }
        passed: hook::Passed {
            fork: Run(hook::Passed::begin_again), vfork: Shared, exec: Gone,
            thread: Kept, end: Kept
        }
        handovers: why::Handovers {
            fork: Run(why::Handovers::begin_again), vfork: Shared, exec: Gone,
            thread: Kept, end: Kept
        }
        choices: choice::Choices {
            fork: Run(choice::Choices::begin_again), vfork: Left, exec: Gone,
            thread: Kept, end: Kept
        }
        sigsys_actions: signal::SigsysActions {
            fork: Kept, vfork: Left, exec: Gone, thread: Kept, end: Kept
        }
        parents: frame::Parents { fork: Kept, vfork: Shared, exec: Gone, thread: Kept, end: Kept }
        report: report::Report {
            fork: Kept, vfork: Left, exec: Environment, thread: Kept, end: Kept
        }
        candidates: survey::Candidates {
            fork: Kept, vfork: Left, exec: Gone, thread: Kept, end: Kept
        }
        slots: facts::Slots { fork: Kept, vfork: Left, exec: Gone, thread: Kept, end: Kept }
        known_pages: memory::KnownPages {
            fork: Kept, vfork: Shared, exec: Gone, thread: Kept, end: Kept
        }
        kernel_dirs: kernel_dirs::KernelDirs {
            fork: Kept, vfork: Left, exec: Gone, thread: Kept, end: Kept
        }
        regions: fleet::Regions { fork: Kept, vfork: Left, exec: Gone, thread: Kept, end: Kept }
        words: pending::Words { fork: Kept, vfork: Shared, exec: Gone, thread: Kept, end: Kept }
        threads: Threads { fork: Kept, vfork: Shared, exec: Gone, thread: Kept, end: Kept }
        places: places::Places { fork: Kept, vfork: Left, exec: Gone, thread: Kept, end: Kept }
        files: table::Files { fork: Kept, vfork: Lent, exec: HandedOver, thread: Kept, end: Kept }
    }
}
