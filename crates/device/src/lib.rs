//! Block devices behind one trait: io_uring on files and block devices
