// DNS messages (RFC 1035): the header, questions and resource records with compressed names, read
// from a datagram whose parts they share, and written into a buffer.

use bytes::{Buf, BufMut};

/// Why a message is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsError {
    /// It ends too early.
    Truncated,
    /// A label of a reserved kind, or a name of more than 255 bytes.
    BadName,
    /// A compression pointer that does not point backwards.
    BadPointer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub id: u16,
    pub flags: u16,
    pub questions: Vec<Question>,
    pub records: Vec<Record>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub name: Name,
    pub kind: u16,
    pub class: u16,
}

/// A resource record of any of the three sections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub name: Name,
    pub kind: u16,
    pub class: u16,
    pub ttl: u32,
    pub data: Bytes,
}

/// Labels, each a part of the message.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Name(pub Vec<Bytes>);

impl Name {
    pub fn parse(text: &'static str) -> Self {
        let labels = text.split('.').filter(|label| !label.is_empty());
        Self(labels.map(Bytes::from).collect())
    }

    /// With a dot behind each label, in lower case, what is not printable escaped.
    pub fn display(&self) -> String {
        let mut text = BytesMut::new();
        for label in &self.0 {
            for byte in label.iter().flat_map(|byte| byte.escape_ascii()) {
                text.put_u8(byte.to_ascii_lowercase());
            }
            text.extend_from_slice(b".");
        }
        String::from_utf8(text.to_vec()).unwrap()
    }
}

/// Reads a message; what is behind it is ignored.
pub fn parse(message: &Bytes) -> Result<Message, DnsError> {
    let mut rest = message.clone();
    if rest.remaining() < 12 {
        return Err(DnsError::Truncated);
    }
    let (id, flags) = (rest.get_u16(), rest.get_u16());
    let question_count = rest.get_u16();
    let record_count = (0..3).map(|_| usize::from(rest.get_u16())).sum();

    let mut questions = Vec::new();
    for _ in 0..question_count {
        let name = parse_name(message, &mut rest)?;
        let kind = rest.try_get_u16().map_err(|_| DnsError::Truncated)?;
        let class = rest.try_get_u16().map_err(|_| DnsError::Truncated)?;
        questions.push(Question { name, kind, class });
    }
    let mut records = Vec::new();
    for _ in 0..record_count {
        let name = parse_name(message, &mut rest)?;
        if rest.remaining() < 10 {
            return Err(DnsError::Truncated);
        }
        let (kind, class, ttl) = (rest.get_u16(), rest.get_u16(), rest.get_u32());
        let len = usize::from(rest.get_u16());
        if rest.remaining() < len {
            return Err(DnsError::Truncated);
        }
        records.push(Record {
            name,
            kind,
            class,
            ttl,
            data: rest.split_to(len),
        });
    }
    Ok(Message {
        id,
        flags,
        questions,
        records,
    })
}

fn parse_name(message: &Bytes, rest: &mut Bytes) -> Result<Name, DnsError> {
    let mut labels = Vec::new();
    let mut total = 0;
    // Where the name goes on, once it has jumped; each jump goes backwards, so it ends.
    let mut jumped: Option<Bytes> = None;
    let mut earliest = message.len() - rest.len();
    loop {
        let from = jumped.as_mut().unwrap_or(rest);
        if !from.has_remaining() {
            return Err(DnsError::Truncated);
        }
        let len = usize::from(from.get_u8());
        match len >> 6 {
            0 if len == 0 => return Ok(Name(labels)),
            0 => {
                if from.remaining() < len {
                    return Err(DnsError::Truncated);
                }
                total += len + 1;
                if total > 254 {
                    return Err(DnsError::BadName);
                }
                labels.push(from.copy_to_bytes(len));
            }
            3 => {
                let low = from.try_get_u8().map_err(|_| DnsError::Truncated)?;
                let target = (len & 0x3f) << 8 | usize::from(low);
                if target >= earliest {
                    return Err(DnsError::BadPointer);
                }
                earliest = target;
                jumped = Some(message.slice(target..));
            }
            _ => return Err(DnsError::BadName),
        }
    }
}

/// Writes a message, all records as answers; names that were written before become pointers.
pub fn encode(message: &Message, to: &mut BytesMut) {
    let start = to.len();
    to.put_u16(message.id);
    to.put_u16(message.flags);
    to.put_u16(message.questions.len() as u16);
    to.put_u16(message.records.len() as u16);
    to.put_u32(0);
    let mut known: Vec<(Name, usize)> = Vec::new();
    for question in &message.questions {
        encode_name(&question.name, &mut known, start, to);
        to.put_u16(question.kind);
        to.put_u16(question.class);
    }
    for record in &message.records {
        encode_name(&record.name, &mut known, start, to);
        to.put_u16(record.kind);
        to.put_u16(record.class);
        to.put_u32(record.ttl);
        // The length is known when the data has been written.
        let at = to.len();
        to.put_u16(0);
        to.extend_from_slice(&record.data);
        let len = to.len() - at - 2;
        to[at..at + 2].copy_from_slice(&(len as u16).to_be_bytes());
    }
}

fn encode_name(name: &Name, known: &mut Vec<(Name, usize)>, start: usize, to: &mut BytesMut) {
    for n in 0..name.0.len() {
        let rest = Name(name.0[n..].to_vec());
        if let Some((_, at)) = known.iter().find(|(known, _)| *known == rest) {
            to.put_u16(0xc000 | *at as u16);
            return;
        }
        let at = to.len() - start;
        if at < 0x4000 {
            known.push((rest, at));
        }
        to.put_u8(name.0[n].len() as u8);
        to.put(name.0[n].clone());
    }
    to.put_u8(0);
}
