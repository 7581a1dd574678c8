//! The modes of the interpreter of steps.

/// Why a step is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// The step happens now. Everything that it changes was read in the same run.
    Live,
    /// A log is replayed, and the frames hold everything as it was when the process died.
    Frames,
    /// A log is replayed, and the frames hold nothing.
    Power,
}
