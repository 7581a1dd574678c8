//! Why a benchmark ended without a result.

use std::path::PathBuf;

use warren_base::Errno;
use warren_runtime::FleetError;

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error("cannot {doing}: {source}")]
    System { doing: String, source: std::io::Error },
    /// Nothing can be made where it shall be.
    #[error("{}: cannot make a directory in it: {source}", .path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    /// A contender did not do what it was asked to.
    #[error("{call} on {contender} failed: {errno}")]
    Call { contender: String, call: &'static str, errno: Errno },
    /// What it takes is not there.
    #[error("{0}")]
    Unavailable(String),
    #[error("stopped by a signal")]
    Interrupted,
}

/// For `map_err`: says what could not be done.
pub(crate) fn system<E: Into<std::io::Error>>(doing: &str) -> impl FnOnce(E) -> BenchError {
    move |source| BenchError::System { doing: doing.to_owned(), source: source.into() }
}
