//! A thousand uploads at once, the reply to each, and the peak memory of the process.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const UPLOADS: usize = 1_000;
/// Of one upload.
pub(crate) const SIZE: usize = MIB;
/// The most that the route takes.
pub(crate) const MAX_BODY: usize = 2 * MIB;

/// What a process may grow by beyond its budget for bodies: as much again, since a body that comes in pieces is
/// copied while it grows, and 64 KiB for each connection.
pub(crate) const fn allowance(budget: usize) -> usize {
    budget + UPLOADS * 64 * 1024
}

/// The bytes that everybody sends.
static BLOCK: LazyLock<Vec<u8>> = LazyLock::new(|| vec![b'x'; MAX_BODY + MIB]);

/// What is noted for a client whose connection was reset while it sent.
pub(crate) const HUNG_UP: u16 = 0;

/// How a client sends its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Manner {
    /// Says how long it is, and sends it.
    AtOnce,
    /// The same, but the last byte only when everybody else is through.
    Slowly,
    /// Does not say how long it is.
    InChunks,
    /// Says that it is more than the route takes, and sends it.
    TooLarge,
}

const MANNERS: [Manner; 4] = [
    Manner::AtOnce,
    Manner::Slowly,
    Manner::InChunks,
    Manner::TooLarge,
];

/// To be called before anything else: a thousand sockets are more than many systems allow at first, and the bytes
/// to send are not to be counted.
pub(crate) fn prepare() {
    let mut sockets = getrlimit(Resource::Nofile);
    sockets.current = sockets.maximum;
    setrlimit(Resource::Nofile, sockets).unwrap();
    assert!(BLOCK.len() > MAX_BODY);
}

/// Replies by status.
#[derive(Debug, Default)]
pub(crate) struct Answers(BTreeMap<(Manner, u16), usize>);

impl Answers {
    pub(crate) fn count(&self, status: u16) -> usize {
        let with = self.0.iter().filter(|((_, reply), _)| *reply == status);
        with.map(|(_, times)| times).sum()
    }

    /// Every upload got a documented reply or a reset. Returns how many were accepted.
    pub(crate) fn check(&self) -> usize {
        let (done, turned_away) = (self.count(201), self.count(503));
        let too_large = self.0.get(&(Manner::TooLarge, 413)).copied().unwrap_or(0);
        assert_eq!(too_large, self.count(413), "{self:?}");
        assert_eq!(self.0.get(&(Manner::TooLarge, 201)), None, "{self:?}");
        // A flood of uploads refused while they send: not all can be read to their end.
        let hung_up = self.count(HUNG_UP);
        assert!(hung_up < UPLOADS / 2, "{self:?}");
        assert!(
            done > 0 && too_large > 0 && turned_away > UPLOADS / 4,
            "{self:?}"
        );
        done
    }
}

/// Lets everybody upload to `POST /effects` at once, in all manners; `all_but_slow` is done when only those are left
/// that have not sent their last byte.
pub(crate) async fn at_once(address: &str, all_but_slow: impl AsyncFnOnce()) -> Answers {
    let (go_on, hold) = watch::channel(false);
    let (mut slow, mut others) = (Vec::new(), Vec::new());
    for number in 0..UPLOADS {
        let manner = MANNERS[number % MANNERS.len()];
        let group = match manner {
            Manner::Slowly => &mut slow,
            _ => &mut others,
        };
        let (address, hold) = (address.to_owned(), hold.clone());
        group.push(tokio::spawn(async move {
            (manner, upload(&address, number, manner, hold).await)
        }));
    }
    let mut answers = Answers::default();
    for upload in others {
        *answers.0.entry(upload.await.unwrap()).or_default() += 1;
    }
    all_but_slow().await;
    go_on.send(true).unwrap();
    for upload in slow {
        *answers.0.entry(upload.await.unwrap()).or_default() += 1;
    }
    answers
}

/// Uploads more than the route takes, again and again, alone. Returns the replies.
#[allow(dead_code, reason = "the gateway's test has no use for it")]
pub(crate) async fn too_large_alone(address: &str, times: usize) -> Vec<u16> {
    let (_go_on, hold) = watch::channel(true);
    let mut reply = Vec::new();
    for number in 0..times {
        reply.push(upload(address, number, Manner::TooLarge, hold.clone()).await);
    }
    reply
}

/// Sends a body and returns the reply, which may arrive before everything is sent.
async fn upload(
    address: &str,
    number: usize,
    manner: Manner,
    mut hold: watch::Receiver<bool>,
) -> u16 {
    let mut wire = TcpStream::connect(address).await.unwrap();
    let (mut listen, mut speak) = wire.split();
    let length = match manner {
        Manner::InChunks => "transfer-encoding: chunked".to_owned(),
        Manner::TooLarge => format!("content-length: {}", BLOCK.len()),
        Manner::AtOnce | Manner::Slowly => format!("content-length: {SIZE}"),
    };
    let head = format!(
        "POST /effects HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         idempotency-key: upload-{number}\r\n{length}\r\n\r\n"
    );
    let sending = async {
        speak.write_all(head.as_bytes()).await?;
        match manner {
            Manner::AtOnce => speak.write_all(&BLOCK[..SIZE]).await,
            Manner::TooLarge => speak.write_all(&BLOCK).await,
            Manner::Slowly => {
                speak.write_all(&BLOCK[1..SIZE]).await?;
                hold.wait_for(|go_on| *go_on).await.unwrap();
                speak.write_all(&BLOCK[..1]).await
            }
            Manner::InChunks => {
                for chunk in BLOCK[..SIZE].chunks(0x4000) {
                    speak.write_all(b"4000\r\n").await?;
                    speak.write_all(chunk).await?;
                    speak.write_all(b"\r\n").await?;
                }
                speak.write_all(b"0\r\n\r\n").await
            }
        }
    };
    let listening = async {
        let mut answer = Vec::new();
        // A refused client may get a reset while it still sends: what it received until then counts.
        while let Ok(1..) = listen.read_buf(&mut answer).await {}
        answer
    };
    let answer = tokio::select! {
        answer = listening => answer,
        // Whether or not all could be sent, there is an answer to wait for.
        never = async { let _ = sending.await; std::future::pending().await } => never,
    };
    let answer = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    if answer.is_empty() {
        return HUNG_UP;
    }
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let documented = match status {
        Some(201) => answer.ends_with(&format!("\r\n\r\n{SIZE}")),
        Some(413) => answer.contains("\"code\":\"body_too_large\""),
        Some(503) => {
            answer.contains("\"code\":\"overloaded\"")
                && (1..=3).any(|after| answer.contains(&format!("retry-after: {after}\r\n")))
        }
        _ => false,
    };
    assert!(documented, "{manner:?} was reply {answer:?}");
    status.unwrap()
}

/// What a process holds in memory, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) now: usize,
    pub(crate) most: usize,
}

impl Held {
    pub(crate) fn by(process: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let bytes = |name: &str| {
            let mut lines = status.lines();
            let line = lines.find_map(|line| line.strip_prefix(name)).unwrap();
            let kib = line.trim().trim_end_matches(" kB");
            kib.parse::<usize>().unwrap() * 1024
        };
        Self {
            now: bytes("VmRSS:"),
            most: bytes("VmHWM:"),
        }
    }

    /// Asserts that a process has not grown by more than it may, whatever it held at most since.
    pub(crate) fn check(self, process: u32, budget: usize) {
        let grown = Self::by(process).most.saturating_sub(self.now) / MIB;
        let allowed = (budget + allowance(budget)) / MIB;
        println!("grew by {grown} MiB at most, allowed are {allowed}, sent were {UPLOADS}");
        assert!(
            grown <= allowed,
            "grew by {grown} MiB, allowed are {allowed}"
        );
    }
}
