//! From a URL to a sink.

#[cfg(feature = "kafka")]
use percent_encoding::percent_decode_str;
use url::Url;

use super::settings::Settings;
use super::{AnySink, JsonLines, Options, Refusal};

/// What a sink's URL can begin with.
pub const SCHEMES: [&str; 11] = [
    "amqp",
    "amqps",
    "http",
    "https",
    "kafka",
    "kafka+tls",
    "nats",
    "nats+tls",
    "redis",
    "rediss",
    "stdout",
];

/// Makes a sink from its URL and options, and asks the other side whether it will do: a missing stream
/// or exchange, a wrong address and an option that is not known are refused here, not found out event by
/// event.
///
/// | URL | options in its query, or beside it |
/// |---|---|
/// | `stdout:` | `source` |
/// | `nats://host:4222`, `nats+tls://…` | `stream`, `subject`, `credentials`, `source`, `timeout` |
/// | `amqp://user:password@host:5672/vhost`, `amqps://…` | `exchange`, `routing_key`, `source`, `timeout` |
/// | `redis://host:6379/0`, `rediss://…` | `stream`, `maxlen`, `source`, `timeout` |
/// | `kafka://host:9092,other:9092`, `kafka+tls://user:password@…` | `topic`, `sasl`, `ca`, `certificate`, `key`, `source`, `timeout` |
/// | `https://host/path`, `http://…` | only beside it: `secret`, `allow`, `allow_http`, `retry_status`, `dead_status`, `source`, `timeout` |
///
/// ```
/// use pgonce_broker::sinks::{Options, open};
///
/// # async fn example() -> Result<(), pgonce_broker::sinks::Refusal> {
/// let nats = open("nats://localhost?stream=ORDERS&subject=events.{topic}", &Options::new()).await?;
/// let secret = Options::new().set("secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
/// let hook = open("https://example.com/hooks?customer=7", &secret).await?;
/// # drop((nats, hook));
/// # Ok(())
/// # }
/// ```
pub async fn open(url: &str, options: &Options) -> Result<AnySink, Refusal> {
    let scheme = url.split(':').next().unwrap_or_default().to_owned();
    if !url.contains(':') || !SCHEMES.contains(&scheme.as_str()) {
        return Err(Refusal::UnknownScheme {
            scheme,
            known: SCHEMES.join(", "),
        });
    }
    match scheme.as_str() {
        "stdout" => {
            let url = parse(url, "stdout:")?;
            let settings = Settings::read("standard output", url, true, options, &["source"])?;
            Ok(AnySink::Stdout(JsonLines::stdout(settings.source()?)))
        }
        "nats" | "nats+tls" => nats(url, options, &scheme).await,
        "amqp" | "amqps" => rabbitmq(url, options, &scheme).await,
        "redis" | "rediss" => redis(url, options, &scheme).await,
        "kafka" | "kafka+tls" => kafka(url, options, &scheme).await,
        _ => webhook(url, options, &scheme).await,
    }
}

pub(crate) fn parse(url: &str, expected: &'static str) -> Result<Url, Refusal> {
    let wrong = |why: String| Refusal::BadUrl { why, expected };
    let parsed = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
    if expected.contains("//") && parsed.host_str().is_none_or(str::is_empty) {
        return Err(wrong("it names no host".to_owned()));
    }
    Ok(parsed)
}

#[allow(dead_code, reason = "needed where a feature is left out")]
pub(crate) fn not_built_in(scheme: &str, feature: &'static str) -> Refusal {
    Refusal::NotBuiltIn {
        scheme: scheme.to_owned(),
        feature,
    }
}

#[cfg(feature = "nats")]
async fn nats(url: &str, options: &Options, _scheme: &str) -> Result<AnySink, Refusal> {
    let known = ["stream", "subject", "credentials", "source", "timeout"];
    let url = parse(url, "nats://host:4222?stream=ORDERS&subject={topic}")?;
    let settings = Settings::read("NATS", url, true, options, &known)?;
    let stream = settings.needed("stream", "the JetStream stream to publish to")?;
    let address = settings.url.as_str().replacen("nats+tls://", "tls://", 1);
    let mut config = super::NatsConfig::new(address, stream);
    config.subject = settings.template("subject")?;
    config.credentials = settings.text("credentials")?.map(Into::into);
    config.source = settings.source()?;
    config.timeout = settings.timeout()?;
    super::Nats::connect(config).await.map(AnySink::Nats)
}

#[cfg(not(feature = "nats"))]
async fn nats(_: &str, _: &Options, scheme: &str) -> Result<AnySink, Refusal> {
    Err(not_built_in(scheme, "nats"))
}

#[cfg(feature = "rabbitmq")]
async fn rabbitmq(url: &str, options: &Options, _scheme: &str) -> Result<AnySink, Refusal> {
    let known = ["exchange", "routing_key", "source", "timeout"];
    let url = parse(url, "amqp://host:5672?exchange=orders&routing_key={topic}")?;
    let settings = Settings::read("RabbitMQ", url, true, options, &known)?;
    let what = "the exchange to publish to; empty for the default exchange";
    let exchange = settings.needed("exchange", what)?;
    let mut config = super::RabbitMqConfig::new(settings.url.as_str(), exchange);
    config.routing_key = settings.template("routing_key")?;
    config.source = settings.source()?;
    config.timeout = settings.timeout()?;
    super::RabbitMq::connect(config)
        .await
        .map(AnySink::RabbitMq)
}

#[cfg(not(feature = "rabbitmq"))]
async fn rabbitmq(_: &str, _: &Options, scheme: &str) -> Result<AnySink, Refusal> {
    Err(not_built_in(scheme, "rabbitmq"))
}

#[cfg(feature = "redis")]
async fn redis(url: &str, options: &Options, _scheme: &str) -> Result<AnySink, Refusal> {
    let known = ["stream", "maxlen", "source", "timeout"];
    let url = parse(url, "redis://host:6379/0?stream={topic}")?;
    let settings = Settings::read("Redis", url, true, options, &known)?;
    let mut config = super::RedisStreamsConfig::new(settings.url.as_str());
    config.stream = settings.template("stream")?;
    config.maxlen = settings.parsed("maxlen", "a number of entries")?;
    config.source = settings.source()?;
    config.timeout = settings.timeout()?;
    super::RedisStreams::connect(config)
        .await
        .map(AnySink::Redis)
}

#[cfg(not(feature = "redis"))]
async fn redis(_: &str, _: &Options, scheme: &str) -> Result<AnySink, Refusal> {
    Err(not_built_in(scheme, "redis"))
}

#[cfg(feature = "kafka")]
async fn kafka(url: &str, options: &Options, scheme: &str) -> Result<AnySink, Refusal> {
    let expected = "kafka://host:9092,other:9092?topic={topic}";
    let own = ["topic", "source", "timeout"];
    let (brokers, security, settings) = kafka_parts(url, options, scheme, &own, expected)?;
    let mut config = super::KafkaConfig::new(brokers);
    config.topic = settings.template("topic")?;
    config.security = security;
    config.source = settings.source()?;
    config.timeout = settings.timeout()?;
    super::Kafka::connect(config).await.map(AnySink::Kafka)
}

/// The brokers of a Kafka URL, how to connect to them, and its options: these and those about TLS and SASL.
#[cfg(feature = "kafka")]
pub(crate) fn kafka_parts(
    url: &str,
    options: &Options,
    scheme: &str,
    own: &[&'static str],
    expected: &'static str,
) -> Result<(String, crate::KafkaSecurity, Settings), Refusal> {
    // Several brokers with commas between are no host that a URL may have.
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let place = place[scheme.len() + 1..].trim_matches('/');
    let (login, brokers) = match place.rsplit_once('@') {
        Some((login, brokers)) => (format!("{login}@"), brokers),
        None => (String::new(), place),
    };
    if brokers.is_empty() {
        let why = "it names no host".to_owned();
        return Err(Refusal::BadUrl { why, expected });
    }
    let url = parse(&format!("kafka://{login}brokers?{query}"), expected)?;
    let known = [own, &["sasl", "ca", "certificate", "key"]].concat();
    let settings = Settings::read("Kafka", url, true, options, &known)?;
    let security = kafka_security(scheme, &settings)?;
    Ok((brokers.to_owned(), security, settings))
}

#[cfg(feature = "kafka")]
fn kafka_security(scheme: &str, settings: &Settings) -> Result<crate::KafkaSecurity, Refusal> {
    let mut security = match scheme {
        "kafka+tls" => crate::KafkaSecurity::tls(),
        _ => crate::KafkaSecurity::default(),
    };
    if let Some(file) = settings.text("ca")? {
        security = security.ca(file);
    }
    match (settings.text("certificate")?, settings.text("key")?) {
        (Some(certificate), Some(key)) => security = security.client_certificate(certificate, key),
        (None, None) => {}
        _ => {
            return Err(Refusal::MissingOption {
                sink: "Kafka",
                option: "certificate and key",
                what: "two PEM files: a certificate is of no use without its key",
            });
        }
    }
    let expected = "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512";
    let mechanism = settings.parsed("sasl", expected)?;
    let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let url = &settings.url;
    match (url.username(), url.password(), mechanism) {
        ("", None, None) => Ok(security),
        (user, Some(password), mechanism) if !user.is_empty() => {
            let mechanism = mechanism.unwrap_or(crate::SaslMechanism::Plain);
            Ok(security.sasl(mechanism, plain(user), plain(password)))
        }
        _ => Err(Refusal::BadUrl {
            why: "a login by SASL needs a user and a password".to_owned(),
            expected: "kafka+tls://user:password@host:9093?sasl=SCRAM-SHA-512",
        }),
    }
}

#[cfg(not(feature = "kafka"))]
async fn kafka(_: &str, _: &Options, scheme: &str) -> Result<AnySink, Refusal> {
    Err(not_built_in(scheme, "kafka"))
}

#[cfg(feature = "webhook")]
async fn webhook(url: &str, options: &Options, _scheme: &str) -> Result<AnySink, Refusal> {
    let known = [
        "secret",
        "allow",
        "allow_http",
        "retry_status",
        "dead_status",
        "source",
        "timeout",
    ];
    // The query is the endpoint's own.
    let url = parse(url, "https://host/path")?;
    let settings = Settings::read("webhook", url, false, options, &known)?;
    let mut config = super::WebhookConfig::new(settings.url.as_str());
    config.secrets = settings.several("secret").to_vec();
    config.allow = settings.several("allow").to_vec();
    let flag = settings.parsed("allow_http", "true or false")?;
    config.allow_http = flag.unwrap_or(false);
    config.retry_status = settings.statuses("retry_status")?;
    config.dead_status = settings.statuses("dead_status")?;
    config.source = settings.source()?;
    config.timeout = settings.timeout()?;
    super::Webhook::new(config).await.map(AnySink::Webhook)
}

#[cfg(not(feature = "webhook"))]
async fn webhook(_: &str, _: &Options, scheme: &str) -> Result<AnySink, Refusal> {
    Err(not_built_in(scheme, "webhook"))
}
