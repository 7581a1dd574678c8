//! Variables of the environment, for `--help` and the man pages.

/// `run` and what it starts look at these variables.
pub(crate) const OF_RUN: &str = "\
Environment:
  WARREN_INTERPOSE=off  keeps the library out of one program below `run`, and of what it starts:
                        `WARREN_INTERPOSE=off PROGRAM`; so does `env -u LD_PRELOAD PROGRAM`
  WARREN_ROOT           is set to the root of the mount";
