//! A client and a cell in two processes: the cell is this test program, started again with the
//! descriptors that it may have.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use warren_base::{CellId, Epoch, SlotNo};
use warren_proto::RequestHeader;
use warren_proto::slot::Shape;
use warren_shm::*;

const FDS: &str = "WARREN_TEST_FDS";
const SLOTS: usize = 4;
const CELL: CellId = CellId(2);
const QUIT: &[u8] = b"quit";

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the cell with the descriptors inherited, in this order.
fn start_cell(fds: &[&OwnedFd]) -> Killed {
    let list: Vec<String> = fds.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    for fd in fds {
        fcntl_setfd(fd, FdFlags::empty()).unwrap();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "cell_process"]).env(FDS, list.join(","));
    Killed(command.stdout(Stdio::null()).spawn().unwrap())
}

#[test]
fn a_client_and_a_cell_in_two_processes() {
    let out = Segment::create("warren-test", Shape::large(SLOTS).client_segment_len(0)).unwrap();
    let back = Segment::create("warren-test", Shape::large(SLOTS).cell_segment_len()).unwrap();
    let vitals = Segment::create("warren-test", VITALS_LEN).unwrap();
    let bell = WakeFd::new().unwrap();
    let requests = ClientWriter::new(out.map().clone(), Shape::large(SLOTS)).unwrap();
    let vitals_reader = VitalsReader::new(map_read_only(vitals.fd()).unwrap()).unwrap();
    let clone = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
    let (back_fd, vitals_fd) = (clone(back.fd()), clone(vitals.fd()));
    let bell_fd = clone(std::os::fd::AsFd::as_fd(&bell));
    let _cell = start_cell(&[&out.read_only_fd().unwrap(), &back_fd, &vitals_fd, &bell_fd]);

    let deadline = || Some(now() + Duration::from_secs(30));
    wait_for(|| vitals_reader.is_open());
    let replies = ReplyReader::new(map_read_only(back.fd()).unwrap(), Shape::large(SLOTS)).unwrap();
    let mut body = Vec::new();
    for seq in 1..=300u32 {
        let slot = SlotNo((seq % SLOTS as u32) as u16);
        let sent: Vec<u8> = (0..seq * 7).map(|b| (b + seq) as u8).collect();
        requests.write_payload(slot, 0, &sent);
        let payload_len = sent.len() as u32;
        requests.submit(
            CELL,
            slot,
            &RequestHeader { seq, payload_len, ..Default::default() },
            &sent,
        );
        requests.ring(CELL, slot);
        bell.wake_if_parked(&vitals_reader);
        let outcome = replies.wait(&requests, slot, seq, Duration::from_micros(5), deadline());
        assert_eq!(outcome, WaitOutcome::Answered, "request {seq}");
        let header = replies.take(slot, seq, &mut body).unwrap().unwrap();
        assert_eq!((header.payload_len, &body), (payload_len, &sent));
        let mut copy = vec![0; sent.len()];
        replies.copy_payload(slot, 0, &mut copy);
        assert_eq!(copy, sent);
    }
    assert_eq!(vitals_reader.counter(Counter::Requests), 300);
    let quit = RequestHeader { seq: 301, ..Default::default() };
    requests.submit(CELL, SlotNo(0), &quit, QUIT);
    requests.ring(CELL, SlotNo(0));
    bell.wake_if_parked(&vitals_reader);
}

fn wait_for(condition: impl Fn() -> bool) {
    let deadline = now() + Duration::from_secs(30);
    while !condition() {
        assert!(now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Not a test: the other process of the test above.
#[test]
#[ignore = "started by another test"]
fn cell_process() {
    let Ok(list) = std::env::var(FDS) else { return };
    let mut fds = list.split(',').map(|fd| {
        // SAFETY: the parent made these descriptors for this process alone.
        unsafe { OwnedFd::from_raw_fd(fd.parse().unwrap()) }
    });
    let out = fds.next().unwrap();
    assert!(
        map_writable(std::os::fd::AsFd::as_fd(&out)).is_err(),
        "a cell must not write requests"
    );
    let requests = map_read_only(std::os::fd::AsFd::as_fd(&out)).unwrap();
    let client = ClientReader::new(requests, Shape::large(SLOTS)).unwrap();
    let (_back, map) = Segment::adopt(fds.next().unwrap()).unwrap().into_parts();
    let replies = ReplyWriter::new(map, Shape::large(SLOTS), CELL, Epoch(1)).unwrap();
    let (_vitals, map) = Segment::adopt(fds.next().unwrap()).unwrap().into_parts();
    let vitals = VitalsWriter::new(map, CELL, Epoch(1)).unwrap();
    let bell = WakeFd::from_fd(fds.next().unwrap());
    serve(&client, &replies, &vitals, &bell);
}

fn serve(client: &ClientReader, replies: &ReplyWriter, vitals: &VitalsWriter, bell: &WakeFd) {
    let (mut seen, mut last, mut body) = (Doorbell::default(), [0; SLOTS], Vec::new());
    loop {
        vitals.park();
        let mut rung = client.rung(CELL, &mut seen);
        if rung == 0 {
            poll(&mut [PollFd::new(bell, PollFlags::IN)], None).unwrap();
            bell.drain();
            rung = client.rung(CELL, &mut seen);
        }
        vitals.unpark(false);
        for slot in (0..SLOTS).filter(|slot| rung >> slot & 1 == 1) {
            let number = SlotNo(slot as u16);
            let Some(header) = client.take(CELL, number, last[slot], &mut body).unwrap() else {
                continue;
            };
            last[slot] = header.seq;
            if body == QUIT {
                return;
            }
            vitals.add(Counter::Requests, 1);
            let mut payload = vec![0; header.payload_len as usize];
            client.copy_payload(number, 0, &mut payload);
            replies.write_payload(number, 0, &payload);
            let answer = ReplyHeader { errno: None, payload_len: header.payload_len };
            replies.reply(client, number, header.seq, answer, &body);
        }
    }
}
