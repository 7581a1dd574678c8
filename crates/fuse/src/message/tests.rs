use proptest::prelude::*;

use warren_proto::RangeKind;

use super::*;
use crate::testing::message;

fn decode(code: u32, parts: &[&[u8]]) -> Result<Operation, Errno> {
    Operation::decode(code, &parts.concat(), 0)
}

fn name(name: &[u8]) -> FileName {
    FileName::new(name).unwrap()
}

#[test]
fn a_header_must_have_the_true_length() {
    let bytes = message(opcode::STATFS, 2, 1, &[]);
    let mut head = [0; HEAD];
    head[..bytes.len()].copy_from_slice(&bytes);
    assert_eq!(Header::decode(&head, 40).map(|header| header.unique), Some(2));
    assert_eq!(Header::decode(&head, 41), None);
    assert_eq!(Header::decode(&head, 39), None);
    assert_eq!(Header::decode(&head, 0), None);
}

#[test]
fn names_end_at_their_nul() {
    assert_eq!(decode(opcode::LOOKUP, &[b"a\0"]), Ok(Operation::Lookup(name(b"a"))));
    assert_eq!(decode(opcode::LOOKUP, &[b"a"]), Err(Errno::EPROTO));
    assert_eq!(decode(opcode::LOOKUP, &[b"\0"]), Err(Errno::EINVAL));
    assert_eq!(decode(opcode::LOOKUP, &[b".\0"]), Ok(Operation::LookupInode));
    assert_eq!(decode(opcode::LOOKUP, &[b"..\0"]), Ok(Operation::LookupParent));
    assert_eq!(decode(opcode::UNLINK, &[b"..\0"]), Err(Errno::EINVAL));
    assert_eq!(decode(opcode::LOOKUP, &[&[b'x'; 256], b"\0"]), Err(Errno::ENAMETOOLONG));
    let symlink = Operation::Symlink { name: name(b"n"), target: b"../t".as_slice().into() };
    assert_eq!(decode(opcode::SYMLINK, &[b"n\0../t\0"]), Ok(symlink));
}

#[test]
fn unsupported_rename_flags_are_refused() {
    let parts = |flags: u32| {
        decode(opcode::RENAME2, &[&9_u64.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 4], b"a\0b\0"])
    };
    for (bits, flags) in [(2, RenameFlags::EXCHANGE), (4, RenameFlags::WHITEOUT)] {
        let rename =
            Operation::Rename { name: name(b"a"), new_dir: Ino(9), new_name: name(b"b"), flags };
        assert_eq!(parts(bits), Ok(rename));
    }
    assert_eq!(parts(1 << 16), Err(Errno::EINVAL));
}

fn write_in(len: u32, write_flags: u32, flags: i32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&3_u64.to_ne_bytes());
    bytes.extend_from_slice(&4096_u64.to_ne_bytes());
    bytes.extend_from_slice(&len.to_ne_bytes());
    bytes.extend_from_slice(&write_flags.to_ne_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes
}

#[test]
fn the_length_of_a_write_must_be_that_of_its_data() {
    let bytes = write_in(10, 0, 0);
    assert!(Operation::decode(opcode::WRITE, &bytes, 10).is_ok());
    assert_eq!(Operation::decode(opcode::WRITE, &bytes, 11), Err(Errno::EPROTO));
}

#[test]
fn a_write_back_never_appends() {
    let appends = |write_flags| {
        let bytes = write_in(0, write_flags, libc::O_APPEND | libc::O_WRONLY);
        let Ok(Operation::Write(write)) = Operation::decode(opcode::WRITE, &bytes, 0) else {
            panic!("a write was expected");
        };
        (write.append, write.kill_privileges)
    };
    assert_eq!(appends(0), (true, false));
    assert_eq!(appends(abi::WRITE_CACHE), (false, false));
    assert_eq!(appends(abi::WRITE_KILL_SUIDGID), (true, true));
}

#[test]
fn a_read_has_the_flags_of_its_descriptor() {
    let flags = |read_flags: u32, flags: i32| {
        let mut bytes = Vec::new();
        for word in [7_u64, 4096] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        for word in [100, read_flags, 0, 0, flags.cast_unsigned(), 0] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        let Ok(Operation::Read { open: 7, offset: 4096, len: 100, flags }) =
            Operation::decode(opcode::READ, &bytes, 0)
        else {
            panic!("a read was expected");
        };
        flags
    };
    assert_eq!(flags(0, libc::O_RDONLY), ReadFlags::empty());
    assert_eq!(flags(abi::READ_LOCKOWNER, libc::O_RDWR), ReadFlags::DIRECT);
    assert_eq!(flags(0, libc::O_NOATIME | libc::O_RDWR), ReadFlags::NO_ATIME);
}

fn lk_in(start: u64, end: u64, kind: i32, flags: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [7, 8, start, end] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    for word in [kind.cast_unsigned(), 99, flags, 0] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes
}

#[test]
fn locks_reach_to_the_end_and_flock_is_the_whole_file() {
    let lock = |bytes: &[u8]| match Operation::decode(opcode::SETLKW, bytes, 0) {
        Ok(Operation::Lock { spec, wait: true, .. }) => Ok((spec.flavour, spec.range)),
        Ok(_) => panic!("a lock was expected"),
        Err(errno) => Err(errno),
    };
    let to_the_end = ByteRange { start: 5, end: u64::MAX };
    let record = lk_in(5, abi::LOCK_END, libc::F_WRLCK, 0);
    assert_eq!(lock(&record), Ok((LockFlavour::Record, to_the_end)));
    let flock = lk_in(5, 6, libc::F_WRLCK, abi::LK_FLOCK);
    assert_eq!(lock(&flock), Ok((LockFlavour::Flock, ByteRange::ALL)));
    assert_eq!(lock(&lk_in(6, 5, libc::F_WRLCK, 0)), Err(Errno::EINVAL));
    assert_eq!(lock(&lk_in(5, 6, 17, 0)), Err(Errno::EINVAL));
}

#[test]
fn unknown_opcodes_get_enosys() {
    for code in [7, 37, 40, 48, 53, 4096, u32::MAX] {
        let unsupported = Operation::Unsupported(Errno::ENOSYS);
        assert_eq!(decode(code, &[&[0; 64]]), Ok(unsupported), "opcode {code}");
    }
}

#[test]
fn ranges_have_the_modes_that_a_kernel_passes_on() {
    let decoded = |mode: u32| {
        let body = [[7_u64, 4096, 8192].map(u64::to_ne_bytes).concat(), mode.to_ne_bytes().into()];
        decode(opcode::FALLOCATE, &[&body.concat(), &[0; 4]])
    };
    let (kind, keep_size, offset, length) = (RangeKind::PunchHole, true, 4096, 8192);
    let change = RangeChange { kind, keep_size, offset, length };
    assert_eq!(decoded(3), Ok(Operation::Fallocate { open: 7, change }));
    assert_eq!(decoded(8), Err(Errno::EOPNOTSUPP));
}

#[test]
fn a_copy_names_both_files_and_no_flag() {
    let decoded = |flags: u64| {
        let body = [7, 4096, 12, 8, 8192, 100, flags].map(u64::to_ne_bytes).concat();
        decode(opcode::COPY_FILE_RANGE, &[&body])
    };
    let copy = RangeCopy { from: 4096, to: 8192, length: 100 };
    let copied = Operation::CopyRange { open: 7, target: Ino(12), target_open: 8, copy };
    assert_eq!((decoded(0), decoded(1)), (Ok(copied), Err(Errno::EINVAL)));
}

#[test]
fn holes_and_data_are_looked_for_and_nothing_else() {
    let decoded = |whence: i32| {
        let body = [[7_u64, 9].map(u64::to_ne_bytes).concat(), whence.to_ne_bytes().into()];
        decode(opcode::LSEEK, &[&body.concat(), &[0; 4]])
    };
    let found = |hole| Ok(Operation::FindData { open: 7, offset: 9, hole });
    assert_eq!((decoded(libc::SEEK_DATA), decoded(libc::SEEK_HOLE)), (found(false), found(true)));
    assert_eq!(decoded(libc::SEEK_END), Err(Errno::EINVAL));
}

#[test]
fn a_file_without_a_name_has_none_in_its_request() {
    let body = [libc::O_RDWR as u32, 0o100_640, 0o22, 0].map(u32::to_ne_bytes).concat();
    let Ok(Operation::TmpFile { mode, umask: 0o22, flags }) =
        decode(opcode::TMPFILE, &[&body, b"/\0"])
    else {
        panic!("another operation");
    };
    assert_eq!((mode, flags), (0o100_640, open_flags(libc::O_RDWR as u32, 0)));
}

/// A kernel that negotiated flags of the request itself sends them before the name.
#[test]
fn an_attribute_is_set_with_and_without_flags_of_the_request() {
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let value = b"value";
    for (head, kills) in [
        (words(&[5, 0]), false),
        (words(&[5, 0, 0, 0]), false),
        (words(&[5, 0, abi::SETXATTR_ACL_KILL_SGID, 0]), true),
    ] {
        let decoded = decode(opcode::SETXATTR, &[&head, b"user.name\0", value]);
        let Ok(Operation::SetXattr { name, value: found, kill_set_gid, .. }) = decoded else {
            panic!("another operation");
        };
        assert_eq!(
            (name.as_bytes(), &*found, kill_set_gid),
            (&b"user.name"[..], &value[..], kills)
        );
    }
}

#[test]
fn calls_on_flags_are_decoded_and_other_ioctls_refused() {
    let call = |command: u32, argument: &[u8]| {
        let head = [&[0; 12][..], &command.to_ne_bytes(), &[0; 16]].concat();
        decode(opcode::IOCTL, &[&head, argument])
    };
    let flags = |call| Ok(Operation::Flags(call));
    assert_eq!(call(abi::ioctl::GETFLAGS, b""), flags(FlagsCall::Get { extended: false }));
    assert_eq!(call(abi::ioctl::FSGETXATTR, b""), flags(FlagsCall::Get { extended: true }));
    let bits = 0x10_u32.to_ne_bytes();
    let set = |extended| flags(FlagsCall::Set { bits: 0x10, extended });
    assert_eq!(call(abi::ioctl::SETFLAGS, &bits), set(false));
    assert_eq!(call(abi::ioctl::FSSETXATTR, &[&bits[..], &[0; 24]].concat()), set(true));
    let project = [&bits[..], &[1; 24]].concat();
    assert_eq!(call(abi::ioctl::FSSETXATTR, &project), Err(Errno::EOPNOTSUPP));
    assert_eq!(call(0x5401, b""), Ok(Operation::Unsupported(Errno::ENOTTY)));
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(
        code in 0_u32..64,
        body in proptest::collection::vec(any::<u8>(), 0..200),
        payload_len in any::<usize>(),
    ) {
        let _ = Operation::decode(code, &body, payload_len);
    }

    #[test]
    fn no_head_makes_decoding_panic(head in any::<[u8; 40]>(), received in 0_usize..200) {
        let mut whole = [0; HEAD];
        whole[..40].copy_from_slice(&head);
        let _ = Header::decode(&whole, received);
    }
}
