//! The library as it is shipped, and a directory for the test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The profile in which nothing unwinds.
const PROFILE: &str = "interposer";

pub(crate) struct Product {
    pub library: PathBuf,
    /// Removed at the end.
    pub scratch: PathBuf,
}

/// The ways in which the library gets into a program.
pub(crate) const WAYS: [&str; 2] = ["LD_PRELOAD", "LD_AUDIT"];

impl Product {
    pub(crate) fn build() -> Self {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target directory");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "warren-interpose", "--profile", PROFILE])
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(built.is_ok_and(|status| status.success()), "the library cannot be built");
        let library = target.join(PROFILE).join("libwarren_interpose.so");
        let scratch = std::env::temp_dir().join(format!("warren-interpose-{}", std::process::id()));
        std::fs::create_dir(&scratch).expect("a directory for the test");
        Self { library, scratch }
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}
