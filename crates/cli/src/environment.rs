//! Variables of the environment, for `--help` and the man pages.

/// `run` and what it starts look at these variables. Behind them: what `run` ends with.
pub(crate) const OF_RUN: &str = "\
Environment:
  WARREN_INTERPOSE=off  keeps the library out of one program below `run`, and of what it starts:
                        `WARREN_INTERPOSE=off PROGRAM`; so does `env -u LD_PRELOAD PROGRAM`
  WARREN_ROOT           is set to the root of the mount

Exit status:
  The command's own, or 128 + the signal's number if a signal has killed it; 126 if it cannot be
  executed, 127 if there is no such command. If the mount or the fleet fails before the command
  runs, the codes are those of warren(1). If the command ends with 0 and a failure follows, the
  code is that failure's:
  1 the mount or the fleet could not be ended in order
  9 the fleet continues to serve, because its last checkpoint failed or a cell is taken out; the
    line says what to do";
