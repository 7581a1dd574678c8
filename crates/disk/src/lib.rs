//! On-disk structures, B+tree, checksums, fsck
