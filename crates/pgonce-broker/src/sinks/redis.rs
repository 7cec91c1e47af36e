//! Redis Streams.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use pgonce::outbox::Message;
use redis::aio::MultiplexedConnection;
use redis::streams::StreamMaxlen;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind,
};

use super::link::Link;
use super::{Refusal, SOURCE, TIMEOUT, Template, envelope};
use crate::sink::one_by_one_in_each_subject;
use crate::{Delivery, Sink};

const SINK: &str = "Redis";

/// How to reach streams.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RedisStreamsConfig {
    /// Such as `redis://user:password@host:6379/0`, or `rediss://` for TLS.
    pub url: String,
    /// The key of the stream. Default: `{topic}`.
    pub stream: Template,
    /// About how many entries a stream keeps. More are thrown away, read or not.
    pub maxlen: Option<usize>,
    /// CloudEvents' `source`: who speaks, as a URI.
    pub source: String,
    /// How long an answer may take.
    pub timeout: Duration,
}

impl RedisStreamsConfig {
    /// To streams of that server.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            stream: Template::topic(),
            maxlen: None,
            source: SOURCE.to_owned(),
            timeout: TIMEOUT,
        }
    }
}

/// Appends events to streams, a batch at a time.
///
/// The fields of an entry are CloudEvents' attributes (`id`, `type`, `subject` …) and `data`. Redis does
/// not deduplicate: subscriptions do, by the field `id`.
#[derive(Debug)]
pub struct RedisStreams {
    config: RedisStreamsConfig,
    client: Client,
    link: Link<MultiplexedConnection>,
}

impl RedisStreams {
    /// Connects; refused where nobody answers who can be used.
    pub async fn connect(config: RedisStreamsConfig) -> Result<Self, Refusal> {
        let client = Client::open(config.url.as_str()).map_err(|error| Refusal::BadUrl {
            why: error.to_string(),
            expected: "redis://host:6379/0?stream={topic}",
        })?;
        let link = Link::up(connect(&client, &config).await?);
        Ok(Self {
            config,
            client,
            link,
        })
    }

    fn append(&self, message: &Message) -> Cmd {
        let mut command = redis::cmd("XADD");
        command.arg(self.config.stream.fill(message));
        if let Some(maxlen) = self.config.maxlen {
            command.arg(StreamMaxlen::Approx(maxlen));
        }
        command.arg("*");
        for (name, value) in message.attributes(&self.config.source) {
            let value = match value {
                serde_json::Value::String(text) => text,
                other => other.to_string(),
            };
            command.arg(name).arg(value);
        }
        if message.payload.is_some() {
            command.arg("data").arg(envelope::body(message));
        }
        command
    }

    /// In one transaction, so that a server that runs out of memory halfway takes all or none.
    async fn append_all(&self, part: &[&Message]) -> Result<Vec<RedisResult<String>>, Failure> {
        let connecting = connect(&self.client, &self.config);
        let connection = self.link.get(connecting).await;
        let connection = connection.map_err(|reason| Failure::Down { reason })?;
        let mut pipeline = redis::pipe();
        pipeline.atomic().ignore_errors();
        for message in part {
            pipeline.add_command(self.append(message));
        }
        let mut talking = MultiplexedConnection::clone(&connection);
        match pipeline.query_async(&mut talking).await {
            Ok(reply) => Ok(reply),
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::ExecAbort) => {
                Err(Failure::Aborted)
            }
            Err(error) => {
                self.link.lost(&connection).await;
                let reason = error.to_string();
                Err(Failure::Down { reason })
            }
        }
    }
}

enum Failure {
    Down {
        reason: String,
    },
    /// One command made the server refuse them all, and nothing was done.
    Aborted,
}

impl Sink for RedisStreams {
    async fn send(&self, message: &Message) -> Delivery {
        let connecting = connect(&self.client, &self.config);
        let connection = match self.link.get(connecting).await {
            Ok(connection) => connection,
            Err(reason) => return Delivery::Unavailable { reason },
        };
        let mut talking = MultiplexedConnection::clone(&connection);
        let command = self.append(message);
        match command.query_async::<String>(&mut talking).await {
            Ok(_) => Delivery::Acknowledged,
            Err(error) => {
                let delivery = failed(&error);
                // Maybe the address leads to another server by now, and this one is a replica: it would refuse for ever.
                if matches!(delivery, Delivery::Unavailable { .. }) {
                    self.link.lost(&connection).await;
                }
                delivery
            }
        }
    }

    async fn send_batch(&self, batch: &[Message], in_flight: usize) -> Vec<Delivery> {
        let mut deliveries = vec![Delivery::Untried; batch.len()];
        for (nth, chunk) in batch.chunks(in_flight.max(1)).enumerate() {
            for round in rounds(chunk, |message| self.config.stream.fill(message)) {
                let part: Vec<&Message> = round.iter().map(|&at| &chunk[at]).collect();
                let answers = match self.append_all(&part).await {
                    Ok(answers) => one_each(&part, answers),
                    Err(Failure::Aborted) => {
                        let part: Vec<Message> = part.into_iter().cloned().collect();
                        one_by_one_in_each_subject(self, &part, in_flight).await
                    }
                    Err(Failure::Down { reason }) => {
                        vec![Delivery::Unavailable { reason }; part.len()]
                    }
                };
                let stopped = |delivery: &Delivery| *delivery != Delivery::Acknowledged;
                let stops = answers.iter().any(stopped);
                for (at, answer) in round.into_iter().zip(answers) {
                    deliveries[nth * in_flight.max(1) + at] = answer;
                }
                if stops {
                    return deliveries;
                }
            }
        }
        deliveries
    }
}

/// What goes together, by index: of each subject the events up to where it changes to another stream, then those up to the
/// next change. A stream refuses what another one takes, so an event waits for the reply to those before it in other streams.
fn rounds(chunk: &[Message], stream_of: impl Fn(&Message) -> String) -> Vec<Vec<usize>> {
    let mut rounds = Vec::new();
    let mut subjects: HashMap<_, (usize, String)> = HashMap::new();
    for (at, message) in chunk.iter().enumerate() {
        let stream = stream_of(message);
        let subject = (&message.tenant, &message.subject);
        let round = match subjects.get_mut(&subject) {
            Some((round, last)) if *last == stream => *round,
            Some((round, last)) => {
                (*round, *last) = (*round + 1, stream);
                *round
            }
            None => {
                subjects.insert(subject, (0, stream));
                0
            }
        };
        if round == rounds.len() {
            rounds.push(Vec::new());
        }
        rounds[round].push(at);
    }
    rounds
}

/// What refuses one event (there is something else under that key, say) refuses all of its stream, and those of one subject
/// are of one stream here. The first of a subject that failed stands for those behind it.
fn one_each(part: &[&Message], answers: Vec<RedisResult<String>>) -> Vec<Delivery> {
    let mut stopped = HashSet::new();
    let each = part.iter().zip(answers);
    each.map(|(message, answer)| match answer {
        Ok(_) => Delivery::Acknowledged,
        Err(error) if stopped.insert((&message.tenant, &message.subject)) => failed(&error),
        Err(_) => Delivery::Untried,
    })
    .collect()
}

fn failed(error: &RedisError) -> Delivery {
    let reason = error.to_string();
    match error.code() {
        Some("WRONGTYPE") => Delivery::Poison { reason },
        Some("NOPERM") => Delivery::retry(reason),
        _ => Delivery::Unavailable { reason },
    }
}

async fn connect(
    client: &Client,
    config: &RedisStreamsConfig,
) -> Result<MultiplexedConnection, Refusal> {
    let limits = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.timeout))
        .set_response_timeout(Some(config.timeout));
    let (sink, text) = (SINK, |error: RedisError| error.to_string());
    let connecting = client.get_multiplexed_async_connection_with_config(&limits);
    let mut connection = connecting.await.map_err(|error| match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => Refusal::Refused {
            sink,
            why: text(error),
        },
        _ => Refusal::Unreachable {
            sink,
            why: text(error),
        },
    })?;
    // It may be somebody else who listens there, or somebody who is still loading.
    let ping = redis::cmd("PING");
    match ping.query_async::<String>(&mut connection).await {
        Ok(_) => Ok(connection),
        Err(error) if error.code() == Some("NOAUTH") => Err(Refusal::Refused {
            sink,
            why: format!("it wants a password, in the URL: {error}"),
        }),
        Err(error) => Err(Refusal::Unreachable {
            sink,
            why: text(error),
        }),
    }
}
