//! The arguments of the commands that make a pool, and make it larger.

use std::path::PathBuf;

use clap::Args;

use crate::numbers::{root_percent, shards};
use crate::size;

#[derive(Args)]
pub(crate) struct Mkfs {
    /// Size of the pool, like 10G [default: the size of the block device or existing file]
    #[arg(long, short, value_parser = size::parse)]
    pub size: Option<u64>,
    /// Number of shards: parts of the name space that different cells can serve
    #[arg(long, value_parser = shards())]
    pub shards: Option<u16>,
    /// Size of the op logs, like 64M: larger logs mean fewer checkpoints and a longer recovery
    #[arg(long, value_parser = size::parse)]
    pub log_size: Option<u64>,
    /// A name for people, at most 64 bytes
    #[arg(long, default_value = "")]
    pub label: String,
    /// Allocate the whole file on its host now and keep it allocated, instead of as the pool fills
    #[arg(long)]
    pub reserve: bool,
    /// Percentage of the pool that only root and the user who serves it may fill, 0 to 50 [default:
    /// a sixteenth]
    #[arg(long, value_parser = root_percent())]
    pub root_percent: Option<u8>,
    /// Overwrite existing contents
    #[arg(long, short)]
    pub force: bool,
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
    /// A file, which is made sparse, or a block device
    pub pool: PathBuf,
}

const OF_REJOIN: &str = "\
Exit status:
  0 the cell serves
  1 the cell is not taken out, or is out again; or the fleet did not answer in time
  5 permission denied: only root and the user who runs the fleet may
  7 no such file
  8 no fleet serves the pool";

#[derive(Args)]
#[command(after_help = OF_REJOIN)]
pub(crate) struct Rejoin {
    /// The pool, whose fleet has taken the cell out
    pub pool: PathBuf,
    /// The number of the cell in `warren status`
    pub cell: u16,
}

#[derive(Args)]
pub(crate) struct Grow {
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
    pub pool: PathBuf,
    /// The size that the pool is to have, like 20G [default: that of its file or block device]
    #[arg(value_parser = size::parse)]
    pub size: Option<u64>,
}
