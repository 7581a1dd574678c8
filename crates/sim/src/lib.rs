//! The simulator: links, disks, clock, faults, reference model, checkers
