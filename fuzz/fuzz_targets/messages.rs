//! Whatever a client, a peer or a log says: decoding never panics, and what was decoded encodes to
//! a message that decodes to the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warren_proto::control::{Order, Report};
use warren_proto::{Answer, Cause, PeerReply, PeerRequest, Reply, Request, Step, Wire};

fn there_and_back<T: Wire + PartialEq + std::fmt::Debug>(input: &[u8]) {
    if let Ok(message) = T::from_bytes(input) {
        assert_eq!(T::from_bytes(&message.to_bytes()).as_ref(), Ok(&message));
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, input)) = input.split_first() else { return };
    match kind % 9 {
        0 => there_and_back::<Request>(input),
        1 => there_and_back::<Reply>(input),
        2 => there_and_back::<Answer>(input),
        3 => there_and_back::<PeerRequest>(input),
        4 => there_and_back::<PeerReply>(input),
        5 => there_and_back::<Step>(input),
        6 => there_and_back::<Cause>(input),
        7 => there_and_back::<Order>(input),
        _ => there_and_back::<Report>(input),
    }
});
