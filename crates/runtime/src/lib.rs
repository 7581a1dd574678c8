//! Processes, event loops, admission: the real driver of the pure core
