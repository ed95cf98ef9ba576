//! The server's end of a connection: what it does, the test says.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::ops::{Deref, DerefMut};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A connection of the server. Requests are seen without their numbers, which the replies get.
pub(super) struct Peer {
    stream: TcpStream,
    /// The numbers of requests without a reply.
    pub(super) numbers: VecDeque<String>,
}

impl Deref for Peer {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.stream
    }
}

impl DerefMut for Peer {
    fn deref_mut(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}

pub(super) async fn accept(listener: &TcpListener) -> Peer {
    Peer { stream: listener.accept().await.unwrap().0, numbers: VecDeque::new() }
}

/// A request line without its number, and the number.
pub(crate) fn unnumbered(line: &str) -> (String, Option<String>) {
    let is_number = |word: &&str| word.strip_prefix('O').is_some_and(|rest| rest.parse::<u32>().is_ok());
    let number = line.split(' ').find(is_number);
    let words: Vec<_> = line.split(' ').filter(|word| !is_number(word)).collect();
    (words.join(" "), number.map(str::to_owned))
}

/// Reads until this many lines have come.
pub(super) async fn lines(peer: &mut Peer, count: usize) -> String {
    let mut text = String::new();
    while text.matches("\r\n").count() < count {
        let mut buffer = [0; 4096];
        let read = peer.read(&mut buffer).await.unwrap();
        assert!(read > 0, "closed after {text:?}");
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    let mut shown = String::new();
    for line in text.split_inclusive("\r\n") {
        let (line, number) = unnumbered(line.trim_end());
        shown.push_str(&line);
        shown.push_str("\r\n");
        peer.numbers.extend(number);
    }
    shown
}

impl Peer {
    /// Replies of the meta protocol with the numbers of their requests.
    pub(super) fn numbered(&mut self, mut replies: &str) -> String {
        let mut out = String::new();
        while let Some((line, rest)) = replies.split_once("\r\n") {
            let data = match line.strip_prefix("VA ") {
                Some(rest) => rest.split(' ').next().unwrap().parse::<usize>().unwrap() + 2,
                None => 0,
            };
            let number = self.numbers.pop_front().unwrap();
            let number = if line.contains("ERROR") { String::new() } else { format!(" {number}") };
            write!(out, "{line}{number}\r\n{}", &rest[..data]).unwrap();
            replies = &rest[data..];
        }
        out
    }

    pub(super) async fn reply(&mut self, replies: &str) {
        let replies = self.numbered(replies);
        self.write_all(replies.as_bytes()).await.unwrap();
    }
}
