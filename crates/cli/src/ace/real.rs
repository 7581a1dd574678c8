//! Sequences that a real fleet executes, with its processes, shared memory and io_uring. The
//! processes record their writes and flushes; the states after a power cut are checked as those of
//! simulated fleets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use warren_base::Ino;
use warren_device::{Entry, RECORD_ENVIRONMENT, TraceWriter, read_trace};
use warren_proto::{Answer, Capabilities, Capability, Reply, Request};
use warren_runtime::{ConnectOptions, Slot, StopOptions, connect};
use warren_sim::ace::{
    CELLS, Campaign, Client, Covered, Options, POOL_BYTES, Recorded, Sequence, Summary,
};

use crate::failure::{CODE_FAILURE, Failure};

/// The time in which a fleet must serve.
const START_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn run(sequences: &[Sequence], options: Options) -> Result<Summary, Failure> {
    let campaign = Campaign::new(options);
    let mut summary = Summary::default();
    for sequence in sequences {
        let place = Place::new()?;
        let record = perform(&campaign, sequence, &place)?;
        summary.add(campaign.run_recorded(sequence, record));
    }
    Ok(summary)
}

/// A directory with the pool and the record. Removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("warren-ace-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| Failure::io(&path, "make it", &error))?;
        Ok(Self(path))
    }

    fn pool(&self) -> PathBuf {
        self.0.join("pool")
    }

    fn record(&self) -> PathBuf {
        self.0.join("record")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A failure cannot be reported here.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A fleet that ends at the latest when it is dropped.
struct Serving {
    keeper: Child,
    pool: PathBuf,
}

impl Serving {
    fn start(place: &Place) -> Result<Self, Failure> {
        let pool = place.pool();
        let failed = |error| Failure::io(&pool, "serve it", &error);
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["serve", "--cells", &CELLS.to_string(), "--pool"]).arg(&pool);
        command.env(RECORD_ENVIRONMENT, place.record()).stdout(Stdio::null());
        let keeper = command.spawn().map_err(failed)?;
        let serving = Self { keeper, pool: pool.clone() };
        let begun = Instant::now();
        while !warren_runtime::status(&pool).is_ok_and(|status| status.state == "serving") {
            if begun.elapsed() > START_TIMEOUT {
                return Err(Failure::new(CODE_FAILURE, "a fleet did not start".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(serving)
    }

    /// Stops the fleet in order.
    fn stop(mut self) -> Result<(), Failure> {
        warren_runtime::control::stop(&self.pool, StopOptions::default())?;
        self.keeper.wait().map_err(|error| Failure::io(&self.pool, "end its fleet", &error))?;
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // After an error; if the fleet has ended, neither call does anything.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

struct RealClient {
    slot: Slot,
    /// The capabilities of the inodes that its walks have reached.
    capabilities: BTreeMap<Ino, Capability>,
}

impl Client for RealClient {
    fn call(&mut self, request: Request, payload: &[u8]) -> Result<Answer, String> {
        self.slot.payload_out()[..payload.len()].copy_from_slice(payload);
        let of = |ino: Option<Ino>| {
            ino.and_then(|ino| self.capabilities.get(&ino).copied()).unwrap_or(Capability::NONE)
        };
        let (inode, other) = request.named();
        let capabilities = Capabilities { inode: of(inode), other: of(other) };
        let answer = self.slot.call(capabilities, &request, payload.len());
        if let Ok(Reply::Entry(entry) | Reply::Created { entry, .. }) = &answer {
            self.capabilities.insert(entry.ino, self.slot.granted());
        }
        Ok(answer)
    }

    fn payload(&self) -> &[u8] {
        self.slot.payload_in()
    }
}

fn perform(
    campaign: &Campaign,
    sequence: &Sequence,
    place: &Place,
) -> Result<Vec<Recorded>, Failure> {
    let record = place.record();
    let failed = |error| Failure::io(&record, "record its writes", &error);
    write_base(campaign, &place.pool()).map_err(failed)?;
    let serving = Serving::start(place)?;
    let options = ConnectOptions { slots: 1, ..ConnectOptions::default() };
    let connection = connect(&place.pool(), &options)?;
    let slot = connection.slot().expect("it is free");
    let trace = TraceWriter::append_to(&record).map_err(failed)?;
    let mut client = RealClient { slot, capabilities: BTreeMap::new() };
    let performed = campaign.perform_by(&mut client, sequence, |number| trace.mark(number));
    performed.map_err(|why| Failure::new(CODE_FAILURE, format!("{sequence}: {why}")))?;
    drop((client, connection));
    serving.stop()?;
    let entries = read_trace(&fs::read(&record).map_err(failed)?);
    let entries = entries.ok_or_else(|| failed(std::io::ErrorKind::InvalidData.into()))?;
    Ok(recorded(entries))
}

fn write_base(campaign: &Campaign, pool: &Path) -> std::io::Result<()> {
    let file = File::options().write(true).create_new(true).open(pool)?;
    file.set_len(POOL_BYTES)?;
    for (block, bytes) in campaign.base() {
        file.write_all_at(bytes, block.0 * bytes.len() as u64)?;
    }
    Ok(())
}

/// A request in flight: the numbers of its writes, and what it makes durable besides them, if it
/// flushes.
struct UnderWay {
    writes: Range<usize>,
    covers: Option<BTreeSet<usize>>,
}

/// The entries in the form of a campaign: a write counts from its start, a flush from its end.
fn recorded(entries: Vec<Entry>) -> Vec<Recorded> {
    let (mut record, mut under_way) = (Vec::new(), BTreeMap::new());
    let (mut done, mut writes) = (BTreeSet::new(), 0);
    for entry in entries {
        match entry {
            Entry::Write { by, block, bytes, through } => {
                let first = writes;
                for (at, bytes) in (0..).zip(bytes.as_chunks().0) {
                    record.push(Recorded::Write(block.offset(at), Rc::new(*bytes)));
                    writes += 1;
                }
                let covers = through.then(BTreeSet::new);
                under_way.insert(by, UnderWay { writes: first..writes, covers });
            }
            Entry::Flush { by } => {
                let covers = Some(done.clone());
                under_way.insert(by, UnderWay { writes: 0..0, covers });
            }
            Entry::End { by, ok } => {
                let Some(over) = under_way.remove(&by).filter(|_| ok) else { continue };
                done.extend(over.writes.clone());
                if let Some(mut covers) = over.covers {
                    covers.extend(over.writes);
                    record.push(Recorded::Flush(Covered::Writes(Rc::new(covers))));
                }
            }
            Entry::Mark(number) => record.push(match number % 2 {
                0 => Recorded::Begun(number as usize / 2),
                _ => Recorded::Answered(number as usize / 2),
            }),
        }
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::BlockNo;

    #[test]
    fn a_flush_covers_what_was_over_before_it_began_and_a_write_through_itself() {
        let bytes = vec![7; 4096];
        let write = |number, through| {
            let (by, bytes) = ((1, number), bytes.clone());
            Entry::Write { by, block: BlockNo(number), bytes, through }
        };
        let end = |number, ok| Entry::End { by: (1, number), ok };
        let record = recorded(vec![
            write(1, false),
            write(2, false),
            end(1, true),
            Entry::Flush { by: (2, 1) },
            end(2, true),
            Entry::End { by: (2, 1), ok: true },
            write(3, true),
            end(3, true),
            write(4, true),
            end(4, false),
            Entry::Mark(5),
        ]);
        let covered: Vec<Vec<usize>> = record
            .iter()
            .filter_map(|recorded| match recorded {
                Recorded::Flush(Covered::Writes(writes)) => Some(writes.iter().copied().collect()),
                _ => None,
            })
            .collect();
        assert_eq!(covered, [vec![0], vec![2]]);
        assert!(matches!(record.last(), Some(Recorded::Answered(2))));
    }
}
