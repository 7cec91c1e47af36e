//! `pgonce consume`: applies the messages of a source, each once, by a service in any language or a SQL function.

pub(crate) mod config;
pub(crate) mod serve;
mod sql;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use toml::Spanned;

use crate::config_file::ConfigFile as _;
use crate::database::{Address, Target};
use crate::exit::{self, CliError, Result};
use crate::faults::Stopped;
use crate::output;
use crate::relay::config::{Listen, LogFormat, LogLevel};
use crate::relay::values::{Length, length};
use crate::relay::{lease, pair};
pub(crate) use config::Config;
use config::Consumer;
pub(crate) use serve::{start_all, variable};
pub(crate) use sql::is_name;

/// What to consume: a file for all, or flags for one consumer.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration, a TOML file; --print-example shows one. Without it the flags say everything.
    #[arg(value_name = "FILE", conflicts_with_all = ["consumer", "source", "to", "sql", "option", "option_env", "header_env", "batches",
        "batch", "concurrency", "handler_timeout", "lease", "drain_timeout", "store_first", "cloud_events", "behind_pooler",
        "listen", "log_format", "log_level"])]
    file: Option<PathBuf>,
    /// Its name: what applied messages are remembered under.
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Where messages come from, such as nats://host?stream=ORDERS&durable=billing or outbox:billing [default: the variable PGONCE_SOURCE].
    #[arg(long, value_name = "URL")]
    source: Option<String>,
    /// The service that applies them: each is posted there, at least once, always with the same Idempotency-Key.
    #[arg(long, value_name = "URL", conflicts_with = "sql")]
    to: Option<String>,
    /// The function that applies them, with one argument of type jsonb; its effects and the marker are one transaction.
    #[arg(long, value_name = "FUNCTION")]
    sql: Option<String>,
    /// With --sql: the function gets an array of messages.
    #[arg(long, requires = "sql")]
    batches: bool,
    /// An option of the source that is not in its address; may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    option: Vec<(String, String)>,
    /// An option of the source whose value is in a variable.
    #[arg(long, value_name = "NAME=VARIABLE", value_parser = pair)]
    option_env: Vec<(String, String)>,
    /// With --to: a header of every request whose value is in a variable, such as authorization=HANDLER_TOKEN.
    #[arg(long, value_name = "NAME=VARIABLE", value_parser = pair, conflicts_with = "sql")]
    header_env: Vec<(String, String)>,
    /// Maximum messages of one transaction [default: 100].
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: Option<u32>,
    /// Maximum number of concurrent transactions, or requests [default: 4, or 16].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000))]
    concurrency: Option<u32>,
    /// Maximum time for one message [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    handler_timeout: Option<Duration>,
    /// How long a consumer that vanished keeps what it had [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = lease)]
    lease: Option<Duration>,
    /// Maximum time to finish what is in hand after SIGTERM or Ctrl-C [default: 10s].
    #[arg(long, value_name = "TIME", value_parser = length)]
    drain_timeout: Option<Duration>,
    /// Store every message before it is applied, so that the source does not wait. Always so with --to.
    #[arg(long)]
    store_first: bool,
    /// The messages are CloudEvents in JSON: id, type, subject and tenant are read out of them.
    #[arg(long)]
    cloud_events: bool,
    /// There is a transaction pooler in between, such as PgBouncer: nothing is prepared.
    #[arg(long)]
    behind_pooler: bool,
    /// Serve /healthz, /readyz and /metrics here, such as 127.0.0.1:9092.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// For whom the log is written, to stderr [default: text].
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
    /// The least that is worth a line [default: info].
    #[arg(long, value_enum)]
    log_level: Option<LogLevel>,
    /// Only say what is wrong with the file. Asks no database and no source.
    #[arg(long, requires = "file")]
    check: bool,
    /// Print a commented example of a configuration.
    #[arg(long, conflicts_with_all = ["file", "consumer", "source"])]
    print_example: bool,
}

fn some_time(text: &str) -> std::result::Result<Duration, String> {
    match length(text)? {
        Duration::ZERO => Err("give more than nothing".to_owned()),
        time => Ok(time),
    }
}

pub(crate) async fn run(args: Args, target: Target) -> ExitCode {
    let format = target.format();
    match obey(args, target).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(stopped) => ExitCode::from(stopped.report(format)),
    }
}

async fn obey(args: Args, target: Target) -> std::result::Result<(), Stopped> {
    if args.print_example {
        return Ok(output::raw(config::EXAMPLE)?);
    }
    let Some(file) = &args.file else {
        let (config, address) = by_flags(args, target)?;
        return Ok(serve::run(config, address).await?);
    };
    let Some(config) = Config::load(file, args.check, target.format())? else {
        return Ok(());
    };
    let address = config.database.address(&config.folder)?;
    Ok(serve::run(config, address).await?)
}

/// The configuration that the flags say.
fn by_flags(args: Args, target: Target) -> Result<(Config, Address)> {
    let missing = |what: &str, hint: &str| CliError::new(exit::USAGE, what, hint);
    let Some(consumer) = args.consumer.filter(|name| !name.is_empty()) else {
        return Err(missing(
            "neither a file nor a consumer was given",
            "Give a TOML file (`pgonce consume --print-example` prints one), or --consumer NAME --source URL --to URL.",
        ));
    };
    let source = args.source.or_else(|| std::env::var("PGONCE_SOURCE").ok());
    let Some(source) = source.filter(|url| !url.is_empty()) else {
        return Err(missing(
            "no source was given",
            "Give --source outbox:SUBSCRIPTION, or put the address into the variable PGONCE_SOURCE.",
        ));
    };
    if args.to.is_none() && args.sql.is_none() {
        return Err(missing(
            "nothing was given that applies the messages",
            "Give --to http://host/path, or --sql schema.function.",
        ));
    }
    let plain = |text: String| Spanned::new(0..0, text);
    let mut one = Consumer {
        consumer: plain(consumer),
        source: Some(plain(source)),
        to: args.to.map(plain),
        sql: args.sql.map(plain),
        batches: args.batches,
        options_env: args.option_env.into_iter().collect(),
        headers_env: args.header_env.into_iter().collect::<BTreeMap<_, _>>(),
        batch: args.batch.map(|n| Spanned::new(0..0, n as usize)),
        concurrency: args.concurrency.map(|n| Spanned::new(0..0, n as usize)),
        handler_timeout: args
            .handler_timeout
            .map(|time| Spanned::new(0..0, Length(time))),
        lease: args.lease.map(|time| Spanned::new(0..0, Length(time))),
        drain_timeout: args.drain_timeout.map(Length),
        store_first: args.store_first,
        cloud_events: args.cloud_events,
        ..Consumer::default()
    };
    for (name, value) in args.option {
        one.options = one.options.set(name, value);
    }
    let (address, schema) = target.address()?;
    let mut config = Config {
        consumers: vec![one],
        listen: args.listen.map(|address| Listen { address }),
        ..Config::default()
    };
    config.log.format = args.log_format.unwrap_or_default();
    config.log.level = args.log_level.unwrap_or_default();
    config.database.schema = schema;
    config.database.behind_pooler = args.behind_pooler;
    Ok((config, address))
}
