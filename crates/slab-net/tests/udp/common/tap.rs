//! A device whose other end is the test.

use super::network::{ioctl, request, set_link_up};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::mem::zeroed;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;

/// An Ethernet whose other end is a file.
pub(crate) struct Tap {
    file: File,
    name: [u8; 5],
}

impl Tap {
    pub(crate) const OURS: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 1);
    pub(crate) const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 2);

    pub(crate) fn open() -> io::Result<Self> {
        const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        let name = *b"slab0";
        let mut make = request(&name);
        make.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        ioctl(&file, TUNSETIFF, &mut make);
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let mut address = request(&name);
        address.ifr_ifru.ifru_addr = sockaddr(Self::OURS);
        ioctl(&socket, libc::SIOCSIFADDR, &mut address);
        set_link_up(&name, true);
        Ok(Self { file, name })
    }

    /// Tells the kernel the other end's hardware address. Until then it holds back what is sent there.
    pub(crate) fn add_arp_entry(&self) {
        self.add_arp_entry_of(Self::THEIRS);
    }

    /// The same of another address at the other end.
    pub(crate) fn add_arp_entry_of(&self, ip: Ipv4Addr) {
        // SAFETY: only integers.
        let mut entry: libc::arpreq = unsafe { zeroed() };
        entry.arp_pa = sockaddr(ip);
        entry.arp_ha.sa_family = libc::ARPHRD_ETHER;
        entry.arp_ha.sa_data[0] = 2;
        entry.arp_flags = libc::ATF_COM | libc::ATF_PERM;
        for (to, from) in entry.arp_dev.iter_mut().zip(self.name) {
            *to = from as libc::c_char;
        }
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        ioctl(&socket, libc::SIOCSARP, &mut entry);
    }

    /// Returns the next packet that contains a datagram.
    pub(crate) fn packet(&mut self) -> Vec<u8> {
        let mut frame = [0; 4096];
        loop {
            let len = self.file.read(&mut frame).unwrap();
            if frame[12..14] == [8, 0] && frame[23] == 17 {
                return frame[14..len].to_vec();
            }
        }
    }

    /// Makes the other end answer with a packet of this protocol.
    pub(crate) fn answer(&mut self, protocol: u8, body: &[u8]) {
        let len = (20 + body.len()) as u16;
        let mut header = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0].to_vec();
        header[2..4].copy_from_slice(&len.to_be_bytes());
        header.extend_from_slice(&Self::THEIRS.octets());
        header.extend_from_slice(&Self::OURS.octets());
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum);
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let mut ours = request(&self.name);
        ioctl(&socket, libc::SIOCGIFHWADDR, &mut ours);
        // SAFETY: filled in by the call, and an integer in any case.
        let mac = unsafe { ours.ifr_ifru.ifru_hwaddr }.sa_data;
        let mut frame: Vec<u8> = mac[..6].iter().map(|&byte| byte as u8).collect();
        frame.extend_from_slice(&[2, 0, 0, 0, 0, 0, 8, 0]);
        frame.extend_from_slice(&header);
        frame.extend_from_slice(body);
        self.file.write_all(&frame).unwrap();
    }

    /// Reports an ICMP error about the next packet. Of "fragmentation needed", the MTU is 1000 bytes.
    pub(crate) fn report(&mut self, kind: u8, code: u8) {
        let mut icmp = vec![kind, code, 0, 0, 0, 0, 3, 232];
        icmp.extend_from_slice(&self.packet()[..28]);
        let sum = checksum(&icmp);
        icmp[2..4].copy_from_slice(&sum);
        self.answer(1, &icmp);
    }

    /// Returns the payloads of all datagrams that arrived for this port.
    pub(crate) fn datagrams(&mut self, port: u16) -> Vec<Vec<u8>> {
        const ETHERNET: usize = 14;
        let mut frame = [0; 4096];
        let mut payloads = Vec::new();
        while let Ok(len) = self.file.read(&mut frame) {
            let frame = &frame[..len];
            let is_udp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&17);
            let to = frame.get(ETHERNET + 22..ETHERNET + 24);
            if is_udp && to == Some(&port.to_be_bytes()) {
                let len = u16::from_be_bytes([frame[ETHERNET + 24], frame[ETHERNET + 25]]);
                payloads.push(frame[ETHERNET + 28..][..usize::from(len) - 8].to_vec());
            }
        }
        payloads
    }
}

/// The checksum of IP and ICMP.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|word| {
        let word = [word[0], word.get(1).copied().unwrap_or(0)];
        u32::from(u16::from_be_bytes(word))
    });
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!(((sum & 0xffff) + (sum >> 16)) as u16)).to_be_bytes()
}

fn sockaddr(ip: Ipv4Addr) -> libc::sockaddr {
    // SAFETY: only integers.
    let mut address: libc::sockaddr = unsafe { zeroed() };
    address.sa_family = libc::AF_INET as libc::sa_family_t;
    for (to, from) in address.sa_data[2..].iter_mut().zip(ip.octets()) {
        *to = from as libc::c_char;
    }
    address
}
