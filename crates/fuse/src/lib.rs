//! The FUSE front: one client among others
