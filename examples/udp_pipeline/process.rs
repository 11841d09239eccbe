//! What the operating system says about this process: resident memory, CPU time by thread, and what
//! the kernel dropped before anybody could read it. Linux only; `None` elsewhere.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Resident memory in bytes.
pub(crate) fn resident_bytes() -> Option<u64> {
    let statm = read("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * page_bytes()?)
}

/// The size of a page, which the kernel tells in its list of mappings.
fn page_bytes() -> Option<u64> {
    use std::sync::OnceLock;
    static PAGE: OnceLock<Option<u64>> = OnceLock::new();
    *PAGE.get_or_init(|| {
        let smaps = read("/proc/self/smaps")?;
        let line = smaps
            .lines()
            .find_map(|l| l.strip_prefix("KernelPageSize:"))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib << 10)
    })
}

/// CPU time that all threads of these names have taken so far.
pub(crate) fn cpu_time(names: &[&str]) -> Option<Duration> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let nanos = threads.filter_map(|thread| {
        let thread = thread.ok()?.path();
        let name = std::fs::read_to_string(thread.join("comm")).ok()?;
        if !names.contains(&name.trim()) {
            return None;
        }
        let stat = std::fs::read_to_string(thread.join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<u64>().ok()
    });
    Some(Duration::from_nanos(nanos.sum()))
}

/// What the kernel dropped because the receive buffer of a socket at this address was full, since
/// these sockets were opened. It counts its own buffers: with GSO one is many datagrams.
pub(crate) fn kernel_drops(address: SocketAddr) -> Option<u64> {
    let table = read(match address {
        SocketAddr::V4(_) => "/proc/net/udp",
        SocketAddr::V6(_) => "/proc/net/udp6",
    })?;
    // "  sl  local_address rem_address ... drops"
    let address = as_in_proc(address);
    let ours = table.lines().skip(1).filter_map(|line| {
        if line.split_whitespace().nth(1)? != address {
            return None;
        }
        line.split_whitespace().last()?.parse::<u64>().ok()
    });
    Some(ours.sum())
}

/// IP:PORT in hexadecimal, the IP as the machine's 32-bit words.
fn as_in_proc(address: SocketAddr) -> String {
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
