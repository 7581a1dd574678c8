//! The modules that all cases use.
//!
//! ```text
//! ground, options        where a run happens, its options, the tally of its results
//! case, script           cases by a table of names; scripts that run twice
//! fleet, survivors       a fleet and its mount; processes and mounts that are left
//! command, process       commands and their exit codes; their time limits
//! programs, preloaded    programs of the cases, and with the library
//! report, tree           what the library reports; a directory tree as lines
//! ```

pub(super) mod case;
pub(super) mod command;
pub(super) mod fleet;
pub(super) mod ground;
pub(super) mod options;
pub(super) mod preloaded;
pub(super) mod process;
pub(super) mod programs;
pub(super) mod report;
pub(super) mod script;
pub(super) mod survivors;
pub(super) mod tree;
