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
    /// The directory for the temporary files cannot be written.
    #[error("{}: cannot make a directory in it: {source}", .path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    /// A call to a contender has failed.
    #[error("{call} on {contender} failed: {errno}")]
    Call { contender: String, call: &'static str, errno: Errno },
    /// A requirement of the benchmark is missing.
    #[error("{0}")]
    Unavailable(String),
    /// A measured program has failed, or its result is wrong.
    #[error("{0}")]
    Failed(String),
    /// A measured program does not end.
    #[error("{0}")]
    Stuck(String),
    #[error("stopped by a signal")]
    Interrupted,
}

impl BenchError {
    pub(crate) fn call(contender: &str, call: &'static str, errno: Errno) -> Self {
        Self::Call { contender: contender.to_owned(), call, errno }
    }
}

/// For `map_err`: adds the operation that failed.
pub(crate) fn system<E: Into<std::io::Error>>(doing: &str) -> impl FnOnce(E) -> BenchError {
    move |source| BenchError::System { doing: doing.to_owned(), source: source.into() }
}
