//! The table of the system calls of x86-64 Linux, one row a call. The calls whose rows would be
//! empty are listed behind the others.
//!
//! | column | says | used by |
//! | --- | --- | --- |
//! | `class` | what becomes of the call, and whether it may wait | `serve`, `serve::watch` |
//! | `care` | its handler, and which pages it takes away | `calls`, `serve::memory` |
//! | `names` | which descriptors it names | `serve::files::arguments` |
//! | `paths` | which arguments are paths that may lead to a descriptor | the same |
//! | `numbers` | whether it creates or closes descriptors | `serve::files::parked` |
//! | `file` | what it does to a file that is served | `serve::files` |
//! | `takes` | which rights or names it takes from open files | `serve::loss` |
//!
//! A row without one of these columns does not compile. The build script compares the rows with the
//! kernel's header, so that a build fails if the kernel has a call without a row. A program that
//! makes such a call anyway meets [`Row::UNKNOWN`]: all files go to the kernel first.
//!
//! The letters `A` to `F` name the arguments of a call, from the first to the sixth.

/// Makes the table, and the numbers by name, from the rows.
macro_rules! rows {
    ($($number:literal $name:ident $class:ident $care:tt $names:tt $paths:tt $numbers:ident
        $file:tt $takes:tt;)* plain { $($plain:literal $plain_name:ident,)* }) => {
        /// Numbers of system calls.
        pub(crate) mod nr {
            $(pub(crate) const $name: usize = $number;)*
            $(pub(crate) const $plain_name: usize = $plain;)*
        }

        /// The numbers that have rows.
        pub(super) const NUMBERS: &[usize] = &[$($number,)* $($plain,)*];

        /// The last one is for all other numbers.
        pub(super) static ROWS: [crate::syscalls::Row; crate::syscalls::END + 1] = {
            use crate::syscalls::{Arguments, Care, Class, Names, Numbers, OnFile, Row, Takes};
            let mut rows = [Row::UNKNOWN; crate::syscalls::END + 1];
            $(rows[nr::$name] = Row {
                class: Class::$class,
                care: judged!(Care $care),
                names: judged!(Names $names),
                paths: judged!(Arguments $paths),
                numbers: Numbers::$numbers,
                file: judged!(OnFile $file),
                takes: judged!(Takes $takes),
            };)*
            $(rows[nr::$plain_name] = Row::PLAIN;)*
            rows
        };
    };
}

/// The value of a column. `-` is none.
macro_rules! judged {
    (Names -) => {
        Names::In(Arguments::NONE)
    };
    (Arguments -) => {
        Arguments::NONE
    };
    ($column:ident -) => {
        $column::Nothing
    };
    ($column:ident $value:ident) => {
        $column::$value
    };
}

mod rows;

pub(crate) use rows::nr;

/// Numbers from here on have no row.
pub(crate) const END: usize = {
    let (mut end, mut at) = (0, 0);
    while at < rows::NUMBERS.len() {
        end = if rows::NUMBERS[at] < end { end } else { rows::NUMBERS[at] + 1 };
        at += 1;
    }
    end
};

/// The row of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(8))]
pub(crate) struct Row {
    pub class: Class,
    pub care: Care,
    pub names: Names,
    pub paths: Arguments,
    pub numbers: Numbers,
    pub file: OnFile,
    pub takes: Takes,
}

const _: () = assert!(size_of::<Row>() == 8, "a row is one word");

/// The row of the call with this number.
#[inline]
pub(crate) fn row(number: usize) -> &'static Row {
    &rows::ROWS[number.min(END)]
}

impl Row {
    /// A call of a kernel that is newer than this library may name any descriptor, and do anything
    /// to it.
    pub(crate) const UNKNOWN: Self = Self { names: Names::Any, ..Self::PLAIN };

    const PLAIN: Self = Self {
        class: Class::Plain,
        care: Care::Nothing,
        names: Names::In(Arguments::NONE),
        paths: Arguments::NONE,
        numbers: Numbers::Other,
        file: OnFile::Nothing,
        takes: Takes::Nothing,
    };
}

/// The treatment of a call that no served file answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The kernel makes it.
    Plain,
    /// Names a file by its path.
    Path,
    /// Opens a file, and may wait for the other side of a FIFO.
    Open,
    /// May return late, after another process has done something.
    Wait,
    /// The same, unless it reads a file.
    Read,
    /// Is made to wait, or takes what another process has sent.
    Sleep,
    /// Changes a name, or attributes, by path.
    Names,
    /// Changes a directory, or the right to search one, that may lie above the mount.
    Above,
    /// Changes the working directory.
    Directory,
    Mounts,
    Rights,
    /// `prctl`.
    Control,
    /// `seccomp`.
    Filter,
    Close,
    /// Gives a descriptor a number that the program chooses.
    Duplicate,
    CloseRange,
    /// `fcntl`, which takes record locks and watches directories.
    Fcntl,
    /// Watches files.
    Watch,
    /// Makes calls that are not seen here, or handles page faults.
    Unseen,
    Umask,
    /// `setrlimit`.
    Limit,
    /// `prlimit64`.
    Limits,
    /// Makes memory protection keys.
    Keys,
}

impl Class {
    /// Whether the call may be served by its path.
    pub(crate) fn is_by_path(self) -> bool {
        matches!(self, Self::Path | Self::Open | Self::Names | Self::Above)
    }
}

/// The handler of a call that would undo what the library rests on, or that takes pages away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    Nothing,
    /// `mmap`, which takes away what it is told to replace.
    Map,
    Unmap,
    /// Changes mappings or the rights to them.
    Remap,
    /// Takes pages away: a shorter file those behind its end.
    Pages,
    /// `madvise`: some advices take pages away.
    Advise,
    /// `process_madvise`.
    AdviseOf,
    /// `shmat`, which may replace mappings.
    Attach,
    /// Sets the handler of a signal.
    Action,
    /// Sets the mask of signals.
    Mask,
    /// Returns from a handler.
    Return,
    /// Waits with another mask of signals, to which the first argument leads, ...
    MaskA,
    /// ... the fourth, ...
    MaskD,
    /// ... the fifth, ...
    MaskE,
    /// ... or the sixth, by a pair of an address and a length.
    MaskPair,
    /// Makes a child or a thread.
    Create,
    /// `clone3`.
    Create3,
    Exec,
    ExecAt,
    Exit,
    /// May install a filter of calls, or dispatch.
    Sandbox,
    /// `ptrace`.
    Trace,
}

/// Some of the arguments of a call: a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arguments(u8);

impl Arguments {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const A: Self = Self(1);
    pub(crate) const B: Self = Self(1 << 1);
    pub(crate) const C: Self = Self(1 << 2);
    pub(crate) const D: Self = Self(1 << 3);
    pub(crate) const E: Self = Self(1 << 4);
    pub(crate) const AB: Self = Self::A.and(Self::B);
    pub(crate) const BD: Self = Self::B.and(Self::D);

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Their values.
    #[inline]
    pub(crate) fn of(self, args: &[usize; 6]) -> impl Iterator<Item = usize> {
        let mut bits = self.0;
        core::iter::from_fn(move || {
            let value = args.get(bits.trailing_zeros() as usize).copied();
            bits &= bits.wrapping_sub(1);
            value
        })
    }
}

/// The descriptors that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// These arguments.
    In(Arguments),
    /// The arrays of `poll`.
    Polled,
    /// The sets of `select`.
    Selected,
    /// The socket and the control data of `sendmsg`.
    Sent,
    /// All from the first argument to the second.
    Range,
    /// Any: the call names them in memory that is not looked at, gives them to others, or makes a
    /// child with a copy of the table.
    Any,
}

impl Names {
    pub(crate) const A: Self = Self::In(Arguments::A);
    pub(crate) const B: Self = Self::In(Arguments::B);
    pub(crate) const D: Self = Self::In(Arguments::D);
    pub(crate) const E: Self = Self::In(Arguments::E);
    pub(crate) const AB: Self = Self::In(Arguments::AB);
    pub(crate) const AC: Self = Self::In(Arguments::A.and(Arguments::C));
    pub(crate) const AD: Self = Self::In(Arguments::A.and(Arguments::D));
    pub(crate) const AE: Self = Self::In(Arguments::A.and(Arguments::E));
}

/// The effect of a call on the numbers of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// It neither creates, closes nor displays descriptors, and does not wait for long.
    Keeps,
    /// It creates descriptors.
    Gives,
    /// It closes descriptors, and does nothing else.
    Closes,
    /// It may display descriptors or wait, or is too rare to be judged.
    Other,
}

/// The operation of a call on the file behind its first descriptor, if that file is served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFile {
    /// Before the call, the kernel takes the file over.
    Nothing,
    Read,
    Write,
    Seek,
    ReadAhead,
    Advise,
    Sync,
    SyncData,
    SyncRange,
    Allocate,
    Truncate,
    Stat,
    /// The same, if its path is empty.
    StatAt,
    StatMount,
    SetMode,
    SetOwner,
    SetTimes,
    GetXattr,
    SetXattr,
    ListXattr,
    /// Lists a directory.
    List,
    Control,
    Ioctl,
    Duplicate,
    Close,
    CloseRange,
    Copy,
    Map,
    /// Sets the mode of a file to which a path in `/proc` may lead.
    Link,
    /// Starts a program, which has the files that do not close on exec.
    Exec,
    /// Makes a child, which may have a copy of the table of descriptors.
    Child,
}

impl OnFile {
    /// Whether the call changes the file.
    pub(crate) fn changes(self) -> bool {
        use OnFile::*;
        matches!(self, Write | Allocate | Truncate | SetMode | SetOwner | SetXattr | SetTimes)
    }

    /// Whether watchers of the file do not get an event from it.
    pub(crate) fn is_unwatched(self) -> bool {
        use OnFile::*;
        matches!(self, Seek | Stat | StatAt | StatMount | Control | Ioctl)
    }

    /// Whether the call leaves the kernel's file as it is: the same one, with one number in one
    /// process. Of `fcntl` and `ioctl` only some commands do.
    pub(crate) fn keeps_identity(self) -> bool {
        use OnFile::*;
        let reads = matches!(self, Read | Seek | ReadAhead | Advise | Stat | StatAt | StatMount);
        reads || matches!(self, Write | Allocate | Truncate | Sync | SyncData | SyncRange)
    }
}

/// A call may take this from files that are open: rights, or the way to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Nothing,
    /// The names of directories.
    Ways,
    /// The same, if the third argument asks for a directory.
    WaysC,
    /// Rights, by the mode in the second argument, ...
    ModeB,
    /// ... or in the third.
    ModeC,
    /// Rights, if the attribute that the second argument names is an access control list.
    Lists,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_where_the_kernel_has_them() {
        let names = |number| row(number).names;
        assert_eq!((names(nr::READ), names(nr::DUP3)), (Names::A, Names::AB));
        assert_eq!((names(nr::MMAP), names(nr::SPLICE)), (Names::E, Names::AC));
        assert_eq!((names(nr::SYMLINKAT), names(nr::FANOTIFY_MARK)), (Names::B, Names::AD));
        assert_eq!(names(nr::GETPID), Names::In(Arguments::NONE));
        assert_eq!((names(nr::SENDMSG), names(nr::FORK)), (Names::Sent, Names::Any));
        assert_eq!((names(nr::KEXEC_FILE_LOAD), names(nr::FSCONFIG)), (Names::AB, Names::AE));
        let args = [10, 11, 12, 13, 14, 15];
        assert!(Arguments(1 << 4 | 1 << 2).of(&args).eq([12, 14]));
    }

    #[test]
    fn paths_are_where_the_kernel_has_them() {
        let paths = |number| row(number).paths;
        assert_eq!((paths(nr::OPEN), paths(nr::OPENAT)), (Arguments::A, Arguments::B));
        assert_eq!((paths(nr::RENAME), paths(nr::RENAMEAT2)), (Arguments::AB, Arguments::BD));
        assert_eq!((paths(nr::SYMLINK), paths(nr::SYMLINKAT)), (Arguments::B, Arguments::C));
        assert_eq!((paths(nr::READ), paths(nr::FANOTIFY_MARK)), (Arguments::NONE, Arguments::E));
    }

    #[test]
    fn numbers_without_a_row_may_be_anything() {
        for number in [337, 423, END, 1 << 30, usize::MAX] {
            assert_eq!(*row(number), Row::UNKNOWN);
        }
        assert_ne!(*row(END - 1), Row::UNKNOWN);
        assert_eq!(Row::UNKNOWN.names, Names::Any);
        assert_ne!(Row::UNKNOWN.numbers, Numbers::Keeps);
    }

    #[test]
    fn a_call_has_one_row() {
        let numbers: std::collections::BTreeSet<_> = rows::NUMBERS.iter().collect();
        assert_eq!(numbers.len(), rows::NUMBERS.len());
    }

    #[test]
    fn columns_of_a_row_agree() {
        for number in rows::NUMBERS {
            let Row { class, names, paths, numbers, file, takes, .. } = *row(*number);
            let names_any = names != Names::In(Arguments::NONE);
            let is_elsewhere = matches!(file, OnFile::Exec | OnFile::Link | OnFile::Child);
            assert!(file == OnFile::Nothing || names_any || is_elsewhere, "{number}");
            assert!(class != Class::Open || numbers == Numbers::Gives, "{number}");
            assert!(class != Class::Sleep || numbers != Numbers::Keeps, "{number}: it may wait");
            // The others name their file by a descriptor alone.
            let has_path = paths != Arguments::NONE;
            let is_alone = file != OnFile::Nothing || *number == nr::FREMOVEXATTR;
            assert!(!class.is_by_path() || has_path || is_alone, "{number}");
            let changes = matches!(class, Class::Names | Class::Above);
            assert!(takes == Takes::Nothing || changes, "{number}");
            let closes = matches!(class, Class::Close | Class::CloseRange);
            assert_eq!(numbers == Numbers::Closes, closes, "{number}");
        }
    }
}
