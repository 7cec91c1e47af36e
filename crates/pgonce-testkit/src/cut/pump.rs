use std::{future, io, sync::atomic::Ordering::SeqCst};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::tcp::{ReadHalf, WriteHalf},
};

use super::{link::Link, state::State};
use crate::{
    plan::Action,
    wire::{self, Direction, Message, OutOfStep, Statements},
};

const CHUNK: usize = 64 * 1024;

/// How a connection ends before its clients want it to.
#[derive(Debug)]
pub(super) enum Cut {
    /// As if a machine had gone: both ends get an error.
    Reset,
    /// Both ends get what is on its way, and then the end.
    Close,
}

impl From<io::Error> for Cut {
    fn from(_: io::Error) -> Self {
        Self::Close
    }
}

impl From<OutOfStep> for Cut {
    fn from(_: OutOfStep) -> Self {
        Self::Close
    }
}

/// Carries one direction of one connection, message by message. Messages are never collected:
/// a large one flows through.
pub(super) struct Pump<'a> {
    state: &'a State,
    link: &'a Link,
    direction: Direction,
    source: ReadHalf<'a>,
    sink: WriteHalf<'a>,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    statements: Statements,
    /// The number of the next message.
    next: u64,
    /// The last thing that was run came as a Query, not as an Execute.
    simple: bool,
    current: Current,
}

/// The message that is on its way.
#[derive(Debug, Default)]
struct Current {
    /// Bytes that have not come by yet.
    left: usize,
    deliver: bool,
    cut_after: bool,
}

impl<'a> Pump<'a> {
    pub(super) fn new(
        state: &'a State,
        link: &'a Link,
        direction: Direction,
        source: ReadHalf<'a>,
        sink: WriteHalf<'a>,
        incoming: Vec<u8>,
    ) -> Self {
        Self {
            state,
            link,
            direction,
            source,
            sink,
            incoming,
            outgoing: Vec::new(),
            statements: Statements::default(),
            next: 0,
            simple: true,
            current: Current::default(),
        }
    }

    pub(super) async fn run(mut self) -> Result<(), Cut> {
        loop {
            self.pass_on().await?;
            self.incoming.reserve(CHUNK);
            if self.source.read_buf(&mut self.incoming).await? == 0 {
                self.sink.shutdown().await?;
                return Ok(());
            }
        }
    }

    async fn pass_on(&mut self) -> Result<(), Cut> {
        let mut at = 0;
        while at < self.incoming.len() {
            if self.current.left == 0 {
                let Some(head) = wire::head(&self.incoming[at..])? else {
                    break;
                };
                let (kind, total) = (head.kind, head.total);
                let ready = self.link.exchange.ready.load(SeqCst);
                self.current = Current {
                    left: total,
                    deliver: true,
                    cut_after: false,
                };
                if ready {
                    let text = self.statements.describe(self.direction, kind, head.body);
                    self.begin(kind, text).await?;
                } else if self.direction == Direction::ToClient {
                    self.log_in(kind, at);
                }
            }
            let passing = self.current.left.min(self.incoming.len() - at);
            if self.current.deliver {
                self.outgoing
                    .extend_from_slice(&self.incoming[at..at + passing]);
            }
            at += passing;
            self.current.left -= passing;
            if self.current.left == 0 && self.current.cut_after {
                self.flush().await?;
                return Err(Cut::Close);
            }
        }
        self.incoming.drain(..at);
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), Cut> {
        self.sink.write_all(&self.outgoing).await?;
        self.outgoing.clear();
        Ok(())
    }

    /// A message of the start-up, which has no number.
    fn log_in(&mut self, kind: u8, at: usize) {
        match kind {
            b'K' => {
                let body = self.incoming.get(at + 5..).unwrap_or_default();
                if let Some(pid) = wire::backend(body) {
                    self.state.logged_in(self.link, pid);
                }
            }
            // Before the client can know of it, so that what it says next is counted.
            b'Z' => self.link.exchange.ready.store(true, SeqCst),
            _ => {}
        }
    }

    /// Decides what becomes of a message whose first bytes are here.
    async fn begin(&mut self, kind: u8, text: String) -> Result<(), Cut> {
        let exchange = &self.link.exchange;
        let swallowing = exchange.swallow_until.load(SeqCst);
        if self.direction == Direction::ToServer
            && swallowing > 0
            && !is_copy(kind)
            && exchange.asked.load(SeqCst) >= swallowing
        {
            // The work whose reply is dropped is under way. What comes behind it must not
            // happen; the cut is near.
            self.flush().await?;
            return future::pending().await;
        }
        let message = Message {
            connection: self.link.number,
            direction: self.direction,
            number: self.next,
            kind: char::from(kind),
            name: wire::name(self.direction, kind),
            text,
        };
        self.next += 1;
        let fired = self.state.meet(self.link, message);
        if fired.is_some() {
            self.flush().await?;
        }
        match fired.as_ref().map(|fired| fired.fault.action) {
            Some(Action::CutBefore) => return Err(Cut::Reset),
            Some(Action::CutAfter) => self.current.cut_after = true,
            Some(Action::DropReply) => self.swallow(kind),
            Some(Action::Hold | Action::SecondClientBetween) => {
                if let Some(fired) = fired {
                    self.state.hold(fired).await;
                }
            }
            None => {}
        }
        match self.direction {
            Direction::ToServer => self.note_question(kind),
            Direction::ToClient => self.note_answer(kind),
        }
        Ok(())
    }

    /// Nothing that the server says reaches the client from here to the end of this exchange.
    /// Set before the message is delivered, so that no reply is quicker.
    fn swallow(&self, kind: u8) {
        let exchange = &self.link.exchange;
        let until = match self.direction {
            Direction::ToServer if !is_copy(kind) => exchange.asked.load(SeqCst) + 1,
            _ => exchange.idle.load(SeqCst) + 1,
        };
        exchange.swallow_until.store(until, SeqCst);
    }

    fn note_question(&mut self, kind: u8) {
        let exchange = &self.link.exchange;
        match kind {
            b'Q' | b'E' => self.simple = kind == b'Q',
            // In the middle of a copy the server ignores Sync, so the count starts afresh.
            b'c' | b'f' => {
                let open = u64::from(self.simple);
                exchange
                    .asked
                    .store(exchange.idle.load(SeqCst) + open, SeqCst);
            }
            _ => {}
        }
        match kind {
            b'Q' | b'S' | b'F' => {
                exchange.asked.fetch_add(1, SeqCst);
            }
            // The client waits for an answer that it will not get, before the server is idle.
            b'H' if exchange.swallow_until.load(SeqCst) > 0 => self.current.cut_after = true,
            _ => {}
        }
    }

    fn note_answer(&mut self, kind: u8) {
        let exchange = &self.link.exchange;
        let idle = match kind {
            b'Z' => exchange.idle.fetch_add(1, SeqCst) + 1,
            _ => exchange.idle.load(SeqCst),
        };
        let until = exchange.swallow_until.load(SeqCst);
        if until == 0 {
            return;
        }
        self.current.deliver = false;
        // It is idle, or it waits for data that the client does not know it should send.
        let waiting = matches!(kind, b'G' | b'W');
        self.current.cut_after = (kind == b'Z' && idle >= until) || waiting;
    }
}

/// Part of an answer that the client gives to the server, in a copy.
fn is_copy(kind: u8) -> bool {
    matches!(kind, b'd' | b'c' | b'f')
}
