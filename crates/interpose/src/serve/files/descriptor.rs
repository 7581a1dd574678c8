//! The states of a descriptor that may be served here.
//!
//! ```text
//!        add              freeze             end
//!  Free ─────▶ Open ─────────────▶ Frozen ───────────────▶ Free      the kernel has the file
//!   ▲            │ ◀───────────── │
//!   └────────────┘    unfreeze     │ a child of `vfork` has passed the file (`lending`)
//!       take                       ▼
//!                              Returned ─────────────────▶ Free      its cell knows it
//!                                         take_returned
//! ```
//!
//! A state is one word, so that threads change it by one exchange. Each file that is opened under a
//! number has another generation: a thread that has found a file does nothing to the next one.
//!
//! ```text
//! word     bit 0 open    bit 1 frozen    bit 2 directory    bit 3 written    bit 4 returned
//!          bits 8.. number of the held file    bits 32.. generation
//! offset   bits 0..48 offset    bits 48..63 low bits of the generation    bit 63 frozen
//! ```
//!
//! A file that is frozen is about to become the kernel's: its offset is taken, and calls wait until
//! that is done. Reading moves the offset by one exchange, so that threads that read from one
//! descriptor get each byte once. The offset stays taken when the file is the kernel's: a call that
//! has found the file before does not move it, whatever a handler has done meanwhile.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
};

use warren_client::Held;

use super::shared_word::SharedWord;

#[cfg(test)]
mod model;

const OPEN: u64 = 1;
const FROZEN: u64 = 2;
const DIRECTORY: u64 = 4;
const WRITTEN: u64 = 8;
const RETURNED: u64 = 16;
const HELD_SHIFT: u32 = 8;
const GENERATION_SHIFT: u32 = 32;
const OFFSET_BITS: u32 = 48;
/// Offsets are below.
pub(super) const OFFSET_END: u64 = 1 << (OFFSET_BITS - 1);
/// The bit in the offset of a frozen file, which moves no more.
const TAKEN: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Descriptor {
    /// The number is the kernel's.
    Free,
    Open(Kind),
    /// The file is becoming the kernel's.
    Frozen(Kind),
    /// A child has taken the file, so the kernel has it. The parts that it holds at its cell are
    /// not closed yet.
    Returned(Kind),
}

/// The kind of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A file that is only read, which the client holds.
    Read(Held),
    Written,
    Directory,
}

/// The word of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(u64);

/// The state of a number, and the offset of its file.
pub(super) struct State<W = AtomicU64> {
    word: W,
    offset: W,
}

impl Word {
    pub(super) fn decode(self) -> Descriptor {
        let kind = match self.0 & (DIRECTORY | WRITTEN) {
            0 => Kind::Read(Held((self.0 as u32) >> HELD_SHIFT)),
            WRITTEN => Kind::Written,
            _ => Kind::Directory,
        };
        match self.0 & (OPEN | FROZEN | RETURNED) {
            0 => Descriptor::Free,
            OPEN => Descriptor::Open(kind),
            RETURNED => Descriptor::Returned(kind),
            _ => Descriptor::Frozen(kind),
        }
    }

    fn with(self, state: u64) -> Self {
        Self(self.0 & !(OPEN | FROZEN | RETURNED) | state)
    }

    /// The word of the offset of this file.
    fn tagged(self, offset: u64) -> u64 {
        ((self.0 >> GENERATION_SHIFT) << OFFSET_BITS | offset) & !TAKEN
    }
}

impl<W: SharedWord> State<W> {
    #[cfg(test)]
    pub(super) fn new([word, offset]: [W; 2]) -> Self {
        Self { word, offset }
    }

    /// A step that was there before: the offset may move again, also if the kernel has the file.
    #[cfg(test)]
    pub(super) fn give_back(&self) {
        self.offset.keep(!TAKEN, Relaxed);
    }

    pub(super) fn load(&self) -> Word {
        Word(self.word.load(Acquire))
    }

    /// The word of the next file, which [`Self::open`] makes known.
    pub(super) fn next(&self, kind: Kind) -> Word {
        let generation = (self.word.load(Relaxed) >> GENERATION_SHIFT).wrapping_add(1);
        let kind = match kind {
            Kind::Read(held) => u64::from(held.0) << HELD_SHIFT,
            Kind::Written => WRITTEN,
            Kind::Directory => DIRECTORY,
        };
        Word(generation << GENERATION_SHIFT | kind | OPEN)
    }

    pub(super) fn open(&self, word: Word, offset: u64) {
        self.offset.store(word.tagged(offset), Relaxed);
        self.word.store(word.0, SeqCst);
    }

    /// Makes all other calls wait, and takes the offset, which moves no more. `None` if the file is
    /// not open any more.
    pub(super) fn freeze(&self, word: Word) -> Option<u64> {
        let taken = || self.offset.set(TAKEN, AcqRel) & ((1 << OFFSET_BITS) - 1);
        self.word.exchange(word.0, word.with(OPEN | FROZEN).0, AcqRel).then(taken)
    }

    /// Returns whether the file was open, and is not any more.
    pub(super) fn close(&self, word: Word) -> bool {
        self.word.exchange(word.0, word.with(0).0, AcqRel)
    }

    /// A frozen file is served again.
    pub(super) fn unfreeze(&self, word: Word) {
        self.offset.keep(!TAKEN, Relaxed);
        self.word.store(word.with(OPEN).0, Release);
    }

    /// A frozen file has come back from a child.
    pub(super) fn come_back(&self, word: Word) {
        self.word.store(word.with(RETURNED).0, Release);
    }

    /// A frozen or returned file is the kernel's.
    pub(super) fn end(&self, word: Word) {
        self.word.store(word.with(0).0, Release);
    }

    /// A file that is frozen is served again. All others stay as they are: the offset of one that
    /// is the kernel's must not move again.
    pub(super) fn thaw(&self) {
        let word = self.load();
        if let Descriptor::Frozen(_) = word.decode() {
            self.unfreeze(word);
        }
    }

    /// The offset. `None` if another file has the number, or the file is frozen.
    pub(super) fn offset(&self, word: Word) -> Option<u64> {
        let found = self.offset.load(Acquire);
        let offset = found & ((1 << OFFSET_BITS) - 1);
        (found == word.tagged(offset)).then_some(offset)
    }

    /// Moves the offset, if it is still where it was.
    pub(super) fn seek(&self, word: Word, from: u64, to: u64) -> bool {
        let [from, to] = [from, to].map(|offset| word.tagged(offset));
        self.offset.exchange(from, to, AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 4] =
        [Kind::Read(Held(0)), Kind::Read(Held(0xff_ffff)), Kind::Written, Kind::Directory];

    const FIRST: u64 = 5;

    fn state() -> State {
        State::new([0; 2].map(AtomicU64::new))
    }

    /// A state with an open file.
    fn opened(kind: Kind) -> (State, Word) {
        let state = state();
        let word = state.next(kind);
        state.open(word, FIRST);
        (state, word)
    }

    #[test]
    fn a_file_goes_through_its_states() {
        for kind in KINDS {
            let state = state();
            assert_eq!(state.load().decode(), Descriptor::Free);
            let word = state.next(kind);
            assert_eq!(state.load().decode(), Descriptor::Free, "it is not known yet");
            state.open(word, FIRST);
            assert_eq!(state.load().decode(), Descriptor::Open(kind));
            assert_eq!(state.freeze(word), Some(FIRST));
            assert_eq!(state.load().decode(), Descriptor::Frozen(kind));
            assert!(state.freeze(word).is_none() && !state.close(word), "it is frozen already");
            state.unfreeze(word);
            assert_eq!((state.load(), state.offset(word)), (word, Some(FIRST)));
            assert!(state.freeze(word).is_some());
            state.come_back(state.load());
            assert_eq!(state.load().decode(), Descriptor::Returned(kind));
            assert!(!state.close(word), "it is the kernel's");
            state.end(state.load());
            assert_eq!(state.load().decode(), Descriptor::Free);
        }
    }

    #[test]
    fn a_thread_that_has_found_a_file_does_nothing_to_the_next_one() {
        let (state, first) = opened(Kind::Written);
        assert!(state.close(first));
        let second = state.next(Kind::Written);
        assert_ne!(first, second);
        state.open(second, FIRST);
        assert!(!state.close(first) && state.freeze(first).is_none());
        assert!(state.offset(first).is_none() && !state.seek(first, FIRST, 6));
        assert_eq!(state.offset(second), Some(FIRST));
    }

    #[test]
    fn the_offset_of_a_frozen_file_does_not_move() {
        let state = state();
        let word = state.next(Kind::Read(Held(3)));
        state.open(word, OFFSET_END - 1);
        assert!(state.seek(word, OFFSET_END - 1, 7) && !state.seek(word, 8, 9));
        assert_eq!(state.freeze(word), Some(7));
        assert!(state.offset(word).is_none() && !state.seek(word, 7, 8));
        state.unfreeze(word);
        assert_eq!(state.offset(word), Some(7));
    }

    #[test]
    fn only_what_is_frozen_is_thawed() {
        let (state, word) = opened(Kind::Directory);
        state.thaw();
        assert_eq!((state.load(), state.offset(word)), (word, Some(FIRST)));
        assert!(state.freeze(word).is_some());
        state.thaw();
        assert_eq!((state.load(), state.offset(word)), (word, Some(FIRST)));
        for end in [State::<AtomicU64>::come_back, State::end] {
            let (state, word) = opened(Kind::Written);
            assert!(state.freeze(word).is_some());
            end(&state, state.load());
            let ended = state.load();
            state.thaw();
            assert_eq!(state.load(), ended);
            assert!(!state.seek(word, FIRST, 6), "it is the kernel's");
        }
    }
}
