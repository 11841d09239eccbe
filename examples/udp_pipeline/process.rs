//! What the operating system reports about this process: resident memory, CPU time by thread, and datagrams
//! that the kernel dropped before they were read. Linux only; `None` elsewhere.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Returns the resident memory in bytes.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = read("/proc/self/status")?;
    let resident = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = resident.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// Returns the CPU time so far of all threads with these names; `None` too if the kernel keeps no statistics
/// of its scheduler: a sum without a thread would be wrong, and smaller than the one before.
pub(crate) fn cpu_time(names: &[&str]) -> Option<Duration> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let mut nanos = 0;
    for thread in threads {
        let thread = thread.ok()?.path();
        let name = std::fs::read_to_string(thread.join("comm")).ok()?;
        if names.contains(&name.trim()) {
            let stat = std::fs::read_to_string(thread.join("schedstat")).ok()?;
            nanos += stat.split(' ').next()?.parse::<u64>().ok()?;
        }
    }
    Some(Duration::from_nanos(nanos))
}

/// Returns how many buffers the kernel has dropped because the receive buffer of a socket at this address
/// was full, since these sockets were opened. With GSO, one buffer is many datagrams.
pub(crate) fn kernel_drops(address: SocketAddr) -> Option<u64> {
    let table = read(match address {
        SocketAddr::V4(_) => "/proc/net/udp",
        SocketAddr::V6(_) => "/proc/net/udp6",
    })?;
    // "  sl  local_address rem_address ... drops"
    let address = proc_net_format(address);
    let ours = table.lines().skip(1).filter_map(|line| {
        if line.split_whitespace().nth(1)? != address {
            return None;
        }
        line.split_whitespace().last()?.parse::<u64>().ok()
    });
    Some(ours.sum())
}

/// Formats IP:PORT in hexadecimal, the IP as 32-bit words in the machine's byte order.
fn proc_net_format(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).map(|word| {
        let word = [word[0], word[1], word[2], word[3]];
        format!("{:08X}", u32::from_ne_bytes(word))
    });
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

fn read(path: &str) -> Option<String> {
    if cfg!(target_os = "linux") {
        std::fs::read_to_string(path).ok()
    } else {
        None
    }
}
