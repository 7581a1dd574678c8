//! Which queue a cell gets to the pool device.

use crate::blocking::Blocking;
use crate::device::Device;
use crate::error::DeviceError;
use crate::pool_file::PoolFile;
use crate::recording::Recording;
use crate::uring::Uring;

/// The best queue that this machine allows: io_uring, or blocking calls where that is forbidden. Any
/// other failure of io_uring (no descriptors, no memory left) is one. With blocking calls comes why.
pub fn open_queue(pool: PoolFile) -> Result<(Box<dyn Device>, Option<DeviceError>), DeviceError> {
    let recorder = pool.recorder().cloned();
    let (device, why): (Box<dyn Device>, _) = match Uring::new(pool.try_clone()?) {
        Ok(uring) => (Box::new(uring), None),
        Err(why @ DeviceError::NoUring(_)) => (Box::new(Blocking::new(pool)), Some(why)),
        Err(other) => return Err(other),
    };
    Ok(match recorder {
        Some(recorder) => (Box::new(Recording::new(device, recorder)), why),
        None => (device, why),
    })
}
