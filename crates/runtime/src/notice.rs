//! Notifies systemd that a service is ready: one datagram to the socket in `NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `READY=1`. Without the variable, or if no process listens, nothing happens.
pub(crate) fn ready() {
    if let Some(path) = std::env::var_os("NOTIFY_SOCKET") {
        // Only the service manager that set the variable depends on it, and it notices a failure.
        let _ = send(&path, b"READY=1\n");
    }
}

fn send(path: &OsStr, state: &[u8]) -> std::io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    socket.send_to_addr(state, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abstract_sockets_are_notified_too() {
        let name = format!("warren-notice-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("address");
        let receiver = UnixDatagram::bind_addr(&address).expect("bind");
        send(OsStr::new(&format!("@{name}")), b"READY=1\n").expect("send");
        let mut got = [0; 16];
        let len = receiver.recv(&mut got).expect("recv");
        assert_eq!(&got[..len], b"READY=1\n");
    }
}
