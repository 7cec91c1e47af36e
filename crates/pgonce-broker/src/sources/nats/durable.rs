//! A durable consumer, which any number of workers share.

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{ConsumerInfoError, ConsumerInfoErrorKind};
use async_nats::jetstream::stream::Stream;
use pgonce::Error;

use super::{NatsConfig, unavailable};
use crate::SourceError;

/// The consumer of this name. Made where it is missing; one that exists keeps its settings, and is refused where it would lose
/// messages.
pub(super) async fn find_or_make(
    stream: &Stream,
    config: &NatsConfig,
    name: &str,
) -> Result<PullConsumer, SourceError> {
    let consumer: PullConsumer = match stream.get_consumer(name).await {
        Ok(found) => found,
        Err(error) if is_missing(&error) => {
            // Where somebody else makes one just now, theirs is not changed.
            let made = stream.create_consumer_strict(settings(config, name)).await;
            made.map_err(|error| unavailable("its consumer cannot be made", &error))?
        }
        Err(error) => return Err(unavailable("its consumer cannot be read", &error)),
    };
    let found = &consumer.cached_info().config;
    if found.ack_policy != AckPolicy::Explicit {
        return Err(SourceError::Broken(Error::work(format!(
            "the durable consumer {name:?} must have the acknowledgement policy \"explicit\", not {:?}",
            found.ack_policy
        ))));
    }
    if found.max_deliver > 0 {
        return Err(SourceError::Broken(Error::work(format!(
            "the durable consumer {name:?} stops after {} deliveries, and what is not settled by then \
             is lost: let it deliver without an end; what can never be applied goes to the inbox's poison",
            found.max_deliver
        ))));
    }
    Ok(consumer)
}

fn settings(config: &NatsConfig, name: &str) -> pull::Config {
    pull::Config {
        durable_name: Some(name.to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: config.ack_wait,
        max_deliver: -1,
        max_ack_pending: -1,
        filter_subject: config.subject.clone().unwrap_or_default(),
        ..pull::Config::default()
    }
}

fn is_missing(error: &async_nats::Error) -> bool {
    let error = error.downcast_ref::<ConsumerInfoError>();
    error.is_some_and(|error| error.kind() == ConsumerInfoErrorKind::NotFound)
}
