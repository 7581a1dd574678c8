//! A mail server: mails of all threads are in one directory, and each that arrives is synced.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use warren_base::Rng;

use super::read::read_whole;
use super::threads::THREADS;

/// Mails of each thread. No other thread uses them, so that each knows what it must read.
const MAILS: u32 = 100;
const LOOPS: u32 = 50;

/// In the directory before and after.
pub(in crate::apps) const FILES: u64 = (THREADS * MAILS) as u64;

/// Bytes of a new mail, and of an addition.
const LEAST_BYTES: u64 = 512;
const MOST_BYTES: u64 = 16 << 10;

/// One thread's mails, with their lengths.
struct Mailbox<'a> {
    directory: &'a Path,
    thread: u32,
    lengths: Vec<usize>,
    rng: Rng,
    buffer: Vec<u8>,
}

pub(super) fn prepare(directory: &Path) -> io::Result<()> {
    for thread in 0..THREADS {
        let mailbox = Mailbox::new(directory, thread);
        for (mail, length) in mailbox.lengths.iter().enumerate() {
            let path = mailbox.path(mail);
            fs::write(path, vec![mailbox.byte(mail); *length])?;
        }
    }
    Ok(())
}

pub(super) fn run(directory: &Path, thread: u32) -> io::Result<()> {
    let mut mailbox = Mailbox::new(directory, thread);
    for _ in 0..LOOPS {
        mailbox.replace()?;
        mailbox.extend()?;
        let mail = mailbox.draw_mail();
        mailbox.read(mail)?;
    }
    Ok(())
}

impl<'a> Mailbox<'a> {
    /// As it is after the preparation.
    fn new(directory: &'a Path, thread: u32) -> Self {
        let mut rng = Rng::new(u64::from(thread));
        let lengths = (0..MAILS).map(|_| length(&mut rng)).collect();
        Self { directory, thread, lengths, rng, buffer: Vec::new() }
    }

    /// A mail is removed, and another one arrives.
    fn replace(&mut self) -> io::Result<()> {
        let mail = self.draw_mail();
        fs::remove_file(self.path(mail))?;
        let length = length(&mut self.rng);
        self.lengths[mail] = length;
        let mut file = File::options().write(true).create_new(true).open(self.path(mail))?;
        file.write_all(&vec![self.byte(mail); length])?;
        file.sync_all()
    }

    /// A mail is read and gets an addition.
    fn extend(&mut self) -> io::Result<()> {
        let mail = self.draw_mail();
        self.read(mail)?;
        let addition = length(&mut self.rng);
        self.lengths[mail] += addition;
        let mut file = File::options().append(true).open(self.path(mail))?;
        file.write_all(&vec![self.byte(mail); addition])?;
        file.sync_all()
    }

    fn read(&mut self, mail: usize) -> io::Result<()> {
        let (path, byte) = (self.path(mail), self.byte(mail));
        read_whole(&path, self.lengths[mail], byte, &mut self.buffer)
    }

    fn draw_mail(&mut self) -> usize {
        self.rng.below(u64::from(MAILS)) as usize
    }

    fn path(&self, mail: usize) -> PathBuf {
        self.directory.join(format!("mail-{}-{mail}", self.thread))
    }

    fn byte(&self, mail: usize) -> u8 {
        (self.thread as usize * MAILS as usize + mail) as u8
    }
}

fn length(rng: &mut Rng) -> usize {
    (LEAST_BYTES + rng.below(MOST_BYTES - LEAST_BYTES)) as usize
}
