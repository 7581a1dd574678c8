//! Chooses a cell's queue to the pool device.

use crate::blocking::Blocking;
use crate::device::Device;
use crate::error::DeviceError;
use crate::pool_file::PoolFile;
use crate::trace::TracedDevice;
use crate::uring::Uring;

/// The best queue that this machine allows: io_uring, or blocking calls where that is forbidden,
/// with the reason. Any other failure of io_uring (no descriptors or memory left) is an error.
pub fn open_queue(pool: PoolFile) -> Result<(Box<dyn Device>, Option<DeviceError>), DeviceError> {
    let trace = pool.trace().cloned();
    let (device, why): (Box<dyn Device>, _) = match Uring::new(pool.try_clone()?) {
        Ok(uring) => (Box::new(uring), None),
        Err(why @ DeviceError::NoUring(_)) => (Box::new(Blocking::new(pool)), Some(why)),
        Err(other) => return Err(other),
    };
    Ok(match trace {
        Some(trace) => (Box::new(TracedDevice::new(device, trace)), why),
        None => (device, why),
    })
}
