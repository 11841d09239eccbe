//! The `rudp_chat` example end to end: as a process of its own, with a peer that does not chat.

#[path = "common/example.rs"]
mod example;

use example::example;
use packet_slab::slab_net::PacketPool;
use packet_slab::slab_net::rudp::{Connection, EndpointConfig, SessionConfig};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use tokio::io::AsyncWriteExt;

/// What a peer's line may take of the program's memory, and a little more for what is printed around it.
const LONGEST: usize = 5000;

#[tokio::test]
async fn a_line_without_end_takes_bounded_memory_and_is_shown() {
    const BYTES: usize = 300_000;
    let mut chat = Command::new(example("rudp_chat"))
        .args(["listen", "127.0.0.1:0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(chat.stdout.take().unwrap()).lines();
    let mut next = move || lines.next().transpose().unwrap();
    let first = next().unwrap();
    let address = first.strip_prefix("listening on ").expect(&first);

    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let config = EndpointConfig::new(SessionConfig::fast().stream(true));
    let connection = Connection::connect(address.parse().unwrap(), &pool, config).unwrap();
    let shown = std::thread::spawn(move || std::iter::from_fn(next).collect::<Vec<_>>());
    let mut stream = connection.into_stream();
    stream.write_all(&vec![b'a'; BYTES]).await.unwrap();
    // Nor is it text.
    stream.write_all(b"\n\xFF\n").await.unwrap();
    // Erases the screen; sets the title; overwrites the line; turns the direction of writing around.
    let control = "a\x1b[2Jb \x1b]0;title\x07 \rc \u{9b}31m \u{202e}d\n";
    stream.write_all(control.as_bytes()).await.unwrap();
    let plain = r#"Grüße, "it's" c:\new 日本"#;
    stream.write_all(plain.as_bytes()).await.unwrap();
    stream.write_all(b"\nthe last\n").await.unwrap();
    stream.connection().close().await.unwrap();

    let shown = shown.join().unwrap();
    let [.., escaped, unchanged, last] = &shown[..] else {
        panic!("{shown:?}");
    };
    let control = r"> a\u{1b}[2Jb \u{1b}]0;title\u{7} \rc \u{9b}31m \u{202e}d";
    assert_eq!(escaped, control);
    assert_eq!(unchanged, &format!("> {plain}"));
    assert_eq!(last, "> the last");
    assert!(shown.iter().all(|line| line.len() < LONGEST));
    let of_the_line = shown.iter().filter_map(|line| line.strip_prefix("> aa"));
    assert_eq!(of_the_line.map(|rest| 2 + rest.len()).sum::<usize>(), BYTES);
    assert!(chat.wait().unwrap().success());
}

#[test]
fn what_goes_wrong_is_one_line_on_stderr() {
    // An address that no machine has: it is for documentation.
    let listen = Command::new(example("rudp_chat"))
        .args(["listen", "192.0.2.1:1"])
        .output();
    let ended = listen.unwrap();
    assert_eq!(ended.status.code(), Some(2));
    assert_eq!(ended.stdout, b"");
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.starts_with("rudp_chat: ") && said.lines().count() == 1);
}
