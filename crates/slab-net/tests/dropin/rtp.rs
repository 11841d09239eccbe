// RTP (RFC 3550) with H.264 payload (RFC 6184): packets back into their order, NAL units out of
// single, aggregated (STAP-A) and fragmented (FU-A) packets.

use bytes::{Buf, BufMut};
use std::collections::BTreeMap;

/// Why a packet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RtpError {
    Truncated,
    BadVersion,
    BadPadding,
    UnknownPayload(u8),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RtpPacket {
    pub marker: bool,
    pub payload_type: u8,
    pub sequence: u16,
    pub timestamp: u32,
    pub source: u32,
    pub contributors: Vec<u32>,
    pub extension: Option<(u16, Bytes)>,
    pub payload: Bytes,
}

impl RtpPacket {
    pub fn parse(mut packet: Bytes) -> Result<Self, RtpError> {
        if packet.len() < 12 {
            return Err(RtpError::Truncated);
        }
        let (first, second) = (packet.get_u8(), packet.get_u8());
        if first >> 6 != 2 {
            return Err(RtpError::BadVersion);
        }
        let sequence = packet.get_u16();
        let (timestamp, source) = (packet.get_u32(), packet.get_u32());
        let count = usize::from(first & 0x0f);
        if packet.remaining() < count * 4 {
            return Err(RtpError::Truncated);
        }
        let contributors = (0..count).map(|_| packet.get_u32()).collect();
        let mut extension = None;
        if first & 0x10 != 0 {
            if packet.remaining() < 4 {
                return Err(RtpError::Truncated);
            }
            let (profile, words) = (packet.get_u16(), usize::from(packet.get_u16()));
            if packet.remaining() < words * 4 {
                return Err(RtpError::Truncated);
            }
            extension = Some((profile, packet.split_to(words * 4)));
        }
        if first & 0x20 != 0 {
            let padding = usize::from(*packet.last().ok_or(RtpError::BadPadding)?);
            if padding == 0 || padding > packet.len() {
                return Err(RtpError::BadPadding);
            }
            packet.truncate(packet.len() - padding);
        }
        Ok(Self {
            marker: second & 0x80 != 0,
            payload_type: second & 0x7f,
            sequence,
            timestamp,
            source,
            contributors,
            extension,
            payload: packet,
        })
    }

    pub fn encode(&self, to: &mut BytesMut) {
        let extension = u8::from(self.extension.is_some());
        to.put_u8(2 << 6 | extension << 4 | self.contributors.len() as u8);
        to.put_u8(u8::from(self.marker) << 7 | self.payload_type);
        to.put_u16(self.sequence);
        to.put_u32(self.timestamp);
        to.put_u32(self.source);
        for &contributor in &self.contributors {
            to.put_u32(contributor);
        }
        if let Some((profile, data)) = &self.extension {
            to.put_u16(*profile);
            to.put_u16((data.len() / 4) as u16);
            to.put(&data[..]);
        }
        to.extend_from_slice(&self.payload);
    }
}

const STAP_A: u8 = 24;
const FU_A: u8 = 28;

/// Puts packets in order and takes NAL units out of them. Holds at most `window` packets that
/// came before their time; then it gives up waiting for the missing one.
pub struct Depacketiser {
    waiting: BTreeMap<u64, Bytes>,
    /// The sequence number that comes next, extended to 64 bits.
    next: Option<u64>,
    fragment: Option<BytesMut>,
    window: usize,
    pub lost: u64,
    pub late: u64,
}

impl Depacketiser {
    pub fn new(window: usize) -> Self {
        Self {
            waiting: BTreeMap::new(),
            next: None,
            fragment: None,
            window,
            lost: 0,
            late: 0,
        }
    }

    /// Takes a packet; returns the NAL units that it completes.
    pub fn push(&mut self, packet: RtpPacket) -> Result<Vec<Bytes>, RtpError> {
        let next = *self
            .next
            .get_or_insert(u64::from(packet.sequence) + (1 << 16));
        // The nearest number with these low bits.
        let distance = packet.sequence.wrapping_sub(next as u16) as i16;
        let sequence = next.wrapping_add_signed(i64::from(distance));
        if sequence < next {
            self.late += 1;
            return Ok(Vec::new());
        }
        self.waiting.insert(sequence, packet.payload);
        let mut units = Vec::new();
        while let Some((&first, _)) = self.waiting.first_key_value() {
            let next = self.next.expect("set above");
            if first > next {
                if self.waiting.len() <= self.window {
                    break;
                }
                self.lost += first - next;
                self.fragment = None;
            }
            let (_, payload) = self.waiting.pop_first().expect("looked at above");
            self.next = Some(first + 1);
            self.unpack(payload, &mut units)?;
        }
        Ok(units)
    }

    fn unpack(&mut self, mut payload: Bytes, units: &mut Vec<Bytes>) -> Result<(), RtpError> {
        let Some(&header) = payload.first() else {
            return Err(RtpError::Truncated);
        };
        match header & 0x1f {
            1..=23 => units.push(payload),
            STAP_A => {
                payload.advance(1);
                while payload.has_remaining() {
                    let len = payload.try_get_u16().map_err(|_| RtpError::Truncated)?;
                    if payload.len() < usize::from(len) {
                        return Err(RtpError::Truncated);
                    }
                    units.push(payload.split_to(usize::from(len)));
                }
            }
            FU_A => {
                if payload.len() < 2 {
                    return Err(RtpError::Truncated);
                }
                let fragment = payload[1];
                payload.advance(2);
                if fragment & 0x80 != 0 {
                    let mut unit = BytesMut::with_capacity(payload.len() * 4);
                    unit.put_u8(header & 0xe0 | fragment & 0x1f);
                    self.fragment = Some(unit);
                }
                // A fragment whose start is lost is of no use.
                if let Some(mut unit) = self.fragment.take() {
                    unit.unsplit(BytesMut::from(&payload[..]));
                    if fragment & 0x40 != 0 {
                        units.push(unit.freeze());
                    } else {
                        self.fragment = Some(unit);
                    }
                }
            }
            other => return Err(RtpError::UnknownPayload(other)),
        }
        Ok(())
    }
}

/// Cuts a NAL unit into payloads of at most `max` bytes.
pub fn packetise(unit: Bytes, max: usize) -> Vec<Bytes> {
    if unit.len() <= max {
        return vec![unit];
    }
    let header = unit[0];
    let mut rest = unit.slice(1..);
    let mut payloads = Vec::new();
    while !rest.is_empty() {
        let part = rest.split_to(rest.len().min(max - 2));
        let mut payload = BytesMut::with_capacity(part.len() + 2);
        payload.put_u8(header & 0xe0 | FU_A);
        let start = u8::from(payloads.is_empty()) << 7;
        let end = u8::from(rest.is_empty()) << 6;
        payload.put_u8(start | end | header & 0x1f);
        payload.put(part);
        payloads.push(payload.freeze());
    }
    payloads
}
