//! NATS JetStream.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{
    Context, ContextBuilder, GetStreamErrorKind, PublishError, PublishErrorKind,
};
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::RawMessageErrorKind;
use async_nats::{Client, ConnectErrorKind, HeaderMap, header};
use pgonce::outbox::Message;
use tokio::sync::watch;

use super::{Refusal, SOURCE, TIMEOUT, Template, envelope};
use crate::{Delivery, Sink, jetstream};

const SINK: &str = "NATS";

/// How to reach a stream.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NatsConfig {
    /// Such as `nats://user:password@host:4222`.
    pub url: String,
    /// The stream, which must be there: what it keeps and for how long is yours to say.
    pub stream: String,
    /// The subject of a message. Default: `{topic}`.
    pub subject: Template,
    /// CloudEvents' `source`: who speaks, as a URI.
    pub source: String,
    /// How long an acknowledgement may take.
    pub timeout: Duration,
    /// A file with credentials, as `nsc` writes it.
    pub credentials: Option<PathBuf>,
}

impl NatsConfig {
    /// To this stream of that server.
    pub fn new(url: impl Into<String>, stream: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            stream: stream.into(),
            subject: Template::topic(),
            source: SOURCE.to_owned(),
            timeout: TIMEOUT,
            credentials: None,
        }
    }
}

/// Publishes to a JetStream stream and waits for its acknowledgement.
///
/// `Nats-Msg-Id` is the message id, so the stream itself drops what comes again within its duplicate
/// window. Later than that, and for ever, subscriptions deduplicate by the same id. A stream knows an id once, whatever
/// the subject: what it dropped although it has it under another subject only is sent without `Nats-Msg-Id`.
#[derive(Debug)]
pub struct Nats {
    config: NatsConfig,
    client: Client,
    context: Context,
    duplicate_window: Duration,
    /// Counts how often the connection was lost: what was under way then is not waited for.
    losses: watch::Receiver<u64>,
}

impl Nats {
    /// Connects, and looks at the stream. Refused where it is missing or does not say how long it
    /// remembers message ids.
    pub async fn connect(config: NatsConfig) -> Result<Self, Refusal> {
        let credentials = config.credentials.as_deref();
        let (options, losses) = jetstream::options("pgonce relay", config.timeout, credentials)
            .await
            .map_err(refused)?;
        let client = options.connect(&config.url).await.map_err(not_connected)?;
        let context = ContextBuilder::new()
            .timeout(config.timeout)
            .ack_timeout(config.timeout)
            .build(client.clone());
        let duplicate_window = duplicate_window(&context, &config.stream).await?;
        Ok(Self {
            config,
            client,
            context,
            duplicate_window,
            losses,
        })
    }

    /// How long the stream remembers message ids, as it said at the start.
    pub fn duplicate_window(&self) -> Duration {
        self.duplicate_window
    }

    fn headers(&self, message: &Message, dedupe: bool) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if dedupe {
            headers.insert(header::NATS_MESSAGE_ID, message.id.to_string());
        }
        headers.insert(header::NATS_EXPECTED_STREAM, &*self.config.stream);
        for (name, value) in envelope::headers(message, &self.config.source, "ce-") {
            headers.insert(name, envelope::ascii(&value));
        }
        if message.payload.is_some() {
            headers.insert("content-type", "application/json");
        }
        headers
    }

    async fn publish(
        &self,
        subject: &str,
        message: &Message,
        dedupe: bool,
    ) -> Result<PublishAck, PublishError> {
        let (headers, body) = (self.headers(message, dedupe), envelope::body(message));
        let publish = self
            .context
            .publish_with_headers(subject.to_owned(), headers, body.into());
        publish.await?.await
    }

    async fn publish_once(&self, subject: &str, message: &Message) -> Delivery {
        let ack = match self.publish(subject, message, true).await {
            Ok(ack) if !ack.duplicate => return Delivery::Acknowledged,
            Ok(ack) => ack,
            Err(error) => return self.delivery_of(error, subject).await,
        };
        // The stream has the id, but maybe from another subscription or template, under a subject that is not ours.
        match self.subject_at(ack.sequence).await {
            Ok(Some(there)) if there == subject => return Delivery::Acknowledged,
            // Gone already: whose it was is not known, and to come twice is better than never.
            Ok(_) => {}
            Err(reason) => return Delivery::Unavailable { reason },
        }
        match self.publish(subject, message, false).await {
            Ok(_) => Delivery::Acknowledged,
            Err(error) => self.delivery_of(error, subject).await,
        }
    }

    /// The subject of a message of the stream, unless it is gone.
    async fn subject_at(&self, sequence: u64) -> Result<Option<String>, String> {
        let name = &self.config.stream;
        let unknown = |error: &dyn std::fmt::Display| {
            format!("stream {name} has the id, and does not say under which subject: {error}")
        };
        let stream = self.context.get_stream_no_info(name).await;
        let stream = stream.map_err(|error| unknown(&error))?;
        match stream.get_raw_message(sequence).await {
            Ok(message) => Ok(Some(message.subject.to_string())),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(unknown(&error)),
        }
    }

    /// Nobody took the subject: because no stream has it, or because its stream is just starting?
    async fn unclaimed(&self, subject: &str) -> Delivery {
        let stream = match self.context.get_stream(&self.config.stream).await {
            Ok(stream) => stream,
            Err(error) => {
                let reason = format!("stream {} cannot be asked: {error}", self.config.stream);
                return Delivery::Unavailable { reason };
            }
        };
        let subjects = &stream.cached_info().config.subjects;
        if subjects.iter().any(|pattern| covers(pattern, subject)) {
            let reason = format!("stream {} does not take messages yet", self.config.stream);
            return Delivery::Unavailable { reason };
        }
        Delivery::retry(format!(
            "stream {} does not have the subject {subject}, only {}",
            self.config.stream,
            subjects.join(", ")
        ))
    }

    async fn delivery_of(&self, error: PublishError, subject: &str) -> Delivery {
        let reason = format!("{error:#}");
        match error.kind() {
            PublishErrorKind::StreamNotFound => self.unclaimed(subject).await,
            PublishErrorKind::MaxPayloadExceeded => Delivery::Poison { reason },
            PublishErrorKind::Other => match error_code(&error) {
                Some(ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM) => Delivery::Poison { reason },
                // The subject is another stream's.
                Some(ErrorCode::STREAM_NOT_MATCH) => Delivery::retry(reason),
                _ => Delivery::Unavailable { reason },
            },
            _ => Delivery::Unavailable { reason },
        }
    }
}

impl Sink for Nats {
    async fn send(&self, message: &Message) -> Delivery {
        let subject = self.config.subject.fill(message);
        if !is_subject(&subject) {
            let reason = format!(
                "{subject:?} cannot be a NATS subject: its parts, between dots, must not be empty nor \
                 hold spaces or wildcards"
            );
            return Delivery::Poison { reason };
        }
        let mut losses = self.losses.clone();
        losses.mark_unchanged();
        // The client would keep it for later; the relay does that better.
        if self.client.connection_state() != State::Connected {
            let reason = "not connected to NATS".to_owned();
            return Delivery::Unavailable { reason };
        }
        tokio::select! {
            biased;
            delivery = self.publish_once(&subject, message) => delivery,
            _ = losses.changed() => Delivery::Unavailable {
                reason: "the connection to NATS was lost before it acknowledged".to_owned(),
            },
            () = tokio::time::sleep(self.config.timeout * 2) => Delivery::Unavailable {
                reason: "NATS did not acknowledge in time".to_owned(),
            },
        }
    }
}

async fn duplicate_window(context: &Context, name: &str) -> Result<Duration, Refusal> {
    let stream = match context.get_stream(name).await {
        Ok(stream) => stream,
        Err(error) => {
            return Err(match error.kind() {
                GetStreamErrorKind::JetStream(reply)
                    if reply.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    refused(format!(
                        "there is no stream {name:?}: create it, for example with `nats stream add {name}`"
                    ))
                }
                GetStreamErrorKind::JetStream(reply) => refused(format!(
                    "stream {name:?} cannot be looked at, so how long it remembers message ids is \
                     unknown: {reply}"
                )),
                GetStreamErrorKind::Request => {
                    unreachable_because(format!("JetStream did not answer (is it on?): {error:#}"))
                }
                _ => refused(format!("{name:?} is no name for a stream: {error}")),
            });
        }
    };
    let window = stream.cached_info().config.duplicate_window;
    if window.is_zero() {
        return Err(refused(format!(
            "stream {name:?} does not say how long it remembers message ids: set its duplicate window"
        )));
    }
    Ok(window)
}

fn refused(why: String) -> Refusal {
    Refusal::Refused { sink: SINK, why }
}

fn unreachable_because(why: String) -> Refusal {
    Refusal::Unreachable { sink: SINK, why }
}

fn not_connected(error: async_nats::ConnectError) -> Refusal {
    match error.kind() {
        ConnectErrorKind::ServerParse => Refusal::BadUrl {
            why: format!("{error:#}"),
            expected: "nats://host:4222?stream=ORDERS&subject={topic}",
        },
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            refused(format!("{error:#}"))
        }
        _ => unreachable_because(format!("{error:#}")),
    }
}

fn error_code(error: &PublishError) -> Option<ErrorCode> {
    let source = std::error::Error::source(error);
    let reply = source.and_then(|source| source.downcast_ref::<async_nats::jetstream::Error>());
    reply.map(|reply| reply.error_code())
}

fn is_subject(subject: &str) -> bool {
    let part = |part: &str| {
        let odd = |c: char| c.is_whitespace() || c.is_control() || c == '*' || c == '>';
        !part.is_empty() && !part.contains(odd)
    };
    subject.split('.').all(part)
}

/// NATS' wildcards: `*` is one part, `>` the rest.
fn covers(pattern: &str, subject: &str) -> bool {
    let mut subject = subject.split('.');
    for part in pattern.split('.') {
        match (part, subject.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (part, Some(other)) if part == other => {}
            _ => return false,
        }
    }
    subject.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_cover_what_nats_says_they_do() {
        for (pattern, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            (">", "a", true),
            ("a", "a.b", false),
        ] {
            assert_eq!(covers(pattern, subject), expected, "{pattern} {subject}");
        }
    }

    #[test]
    fn what_nats_would_misread_is_no_subject() {
        for subject in ["a b", "a..b", "", "a.*", "a.>", "a\r\nPUB x 0"] {
            assert!(!is_subject(subject), "{subject:?}");
        }
        assert!(is_subject("orders.order-7"));
    }
}
