use super::*;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

fn line(text: &str) -> Line {
    let (process, text) = ("p".into(), text.to_owned());
    Line { ms: 1, level: Level::INFO, process, text, is_raw: false }
}

#[test]
fn a_backlog_is_bounded_and_counts_what_it_loses() {
    let mut backlog = Backlog::default();
    (0..100_000).for_each(|n| backlog.push(line(&format!("line {n}"))));
    let (kept, lost) = (backlog.lines.len() as u64, backlog.lost);
    assert!(backlog.bytes <= BACKLOG_BYTES_MAX && kept > 1000);
    assert_eq!(kept + lost, 100_000);
    let mut taken = Vec::new();
    let refused = backlog.drain(|line| {
        taken.push(line.text.clone());
        if taken.len() == 10 { Err(Os::NOSPC.into()) } else { Ok(()) }
    });
    assert!(refused.is_err());
    // The tenth is passed again.
    taken.pop();
    let put = |line: &Line| -> io::Result<()> {
        taken.push(line.text.clone());
        Ok(())
    };
    backlog.drain(put).expect("the sink works again");
    assert_eq!(taken.len() as u64, kept + 1);
    assert_eq!((taken[9].as_str(), backlog.bytes), ("line 9", 0));
    assert_eq!(
        taken.last(),
        Some(&format!("{lost} lines were lost while nothing could be recorded"))
    );
}

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("warren-recorder-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("directory");
        Self(path)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn await_change(recorder: &Recorder) -> Option<String> {
    let mut fds = [PollFd::from_borrowed_fd(recorder.changed(), PollFlags::IN)];
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "nothing changed");
    recorder.trouble()
}

#[test]
fn lines_of_dead_processes_are_logged_when_the_recorder_ends() {
    let place = Place::new("ends");
    let recorder = Recorder::start(&Target::File(place.0.join("log")), "/pool").expect("start");
    let pipes: Vec<OwnedFd> =
        (0..3).map(|n| recorder.pipe(&format!("cell {n}")).expect("pipe")).collect();
    for (n, pipe) in pipes.iter().enumerate() {
        let framed = crate::line::frame(Level::WARN, 10 - n as u64, "an event");
        rustix::io::write(pipe, framed.as_bytes()).expect("write");
        rustix::io::write(pipe, b"memory allocation failed").expect("write");
    }
    // One pipe stays open: the end does not wait for it.
    drop(pipes.into_iter().take(2).collect::<Vec<_>>());
    let began = Instant::now();
    drop(recorder);
    assert!(began.elapsed() < END_TIMEOUT);
    let log = place.log();
    for n in 0..3 {
        assert!(log.contains(&format!(" WARN  pool=/pool cell {n}: an event\n")), "{log}");
    }
    assert!(log.contains(" cell 0: memory allocation failed\n"), "{log}");
}

#[test]
fn lines_wait_for_a_failing_sink() {
    let place = Place::new("waits");
    let directory = place.0.join("sub");
    let target = Target::File(directory.join("log"));
    let recorder = Recorder::start(&target, "/pool").expect("start");
    let pipe = recorder.pipe("supervisor").expect("pipe");
    rustix::io::write(&pipe, b"\x01W 5 while it was gone\n").expect("write");
    let trouble = await_change(&recorder).expect("trouble");
    assert!(trouble.starts_with("No such file or directory"), "{trouble}");
    fs::create_dir(&directory).expect("directory");
    assert_eq!(await_change(&recorder), None);
    let log = fs::read_to_string(directory.join("log")).expect("the log");
    assert!(log.ends_with(" supervisor: while it was gone\n"), "{log}");
}
