//! `pgonce relay`: moves the events of the outbox to where they go.

pub(crate) mod admin;
mod check;
pub(crate) mod config;
pub(crate) mod log;
pub(crate) mod serve;
mod sink;
pub(crate) mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use toml::Spanned;

use crate::config_file::ConfigFile as _;
use crate::database::{Address, Target};
use crate::exit::{self, CliError, Result};
use crate::faults::Stopped;
use crate::output;
use config::{Config, Create, From as Begins, LogFormat, LogLevel, Relay};
use values::{Length, length};

pub(crate) use admin::Watched;
pub(crate) use serve::Started;

/// Starts the log of a program that runs on.
pub(crate) fn start_log(json: bool) {
    let format = if json {
        LogFormat::Json
    } else {
        LogFormat::Text
    };
    log::start(config::Log {
        format,
        level: LogLevel::Info,
    });
}

/// Starts the relays of a file inside another program, over its database, until `stop`.
pub(crate) async fn begin(
    config: &Config,
    address: Address,
    stop: &CancellationToken,
) -> Result<Started> {
    let ends = serve::Ends {
        once: false,
        within: None,
    };
    serve::start_all(config, address, stop, ends).await
}

/// What to relay: a file for all, or flags for one subscription.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration, a TOML file; --print-example shows one. Without it the flags say everything.
    #[arg(value_name = "FILE", conflicts_with_all = ["subscription", "sink", "option", "option_env", "source", "in_flight", "lease",
        "drain_timeout", "create", "behind_pooler", "listen", "log_format", "log_level"])]
    file: Option<PathBuf>,
    /// Whose events.
    #[arg(long, value_name = "NAME")]
    subscription: Option<String>,
    /// Where they go, such as stdout: or nats://host?stream=ORDERS [default: the variable PGONCE_SINK].
    #[arg(long, value_name = "URL")]
    sink: Option<String>,
    /// An option of the sink that is not in its address; may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    option: Vec<(String, String)>,
    /// An option of the sink whose value is in a variable, such as secret=HOOK_SECRET.
    #[arg(long, value_name = "NAME=VARIABLE", value_parser = pair)]
    option_env: Vec<(String, String)>,
    /// Who speaks: the CloudEvents attribute, a URI [default: /pgonce].
    #[arg(long, value_name = "URI")]
    source: Option<String>,
    /// How many events of a lane may be unacknowledged at a time [default: 64].
    #[arg(long, value_name = "EVENTS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    in_flight: Option<u32>,
    /// How long a relay that vanished keeps its lanes [default: 10s].
    #[arg(long, value_name = "TIME", value_parser = lease)]
    lease: Option<Duration>,
    /// Maximum time to finish deliveries in progress after SIGTERM or Ctrl-C [default: 10s].
    #[arg(long, value_name = "TIME", value_parser = length)]
    drain_timeout: Option<Duration>,
    /// Create the subscription where it is missing; one that is there stays as it is.
    #[arg(long)]
    create: bool,
    /// With --create: where it begins.
    #[arg(long, value_enum, default_value = "start", requires = "create")]
    from: Begins,
    /// With --create: only these topics; * stands for any text.
    #[arg(
        long,
        value_name = "PATTERN",
        value_delimiter = ',',
        requires = "create"
    )]
    topics: Vec<String>,
    /// With --create: only these types.
    #[arg(
        long,
        value_name = "PATTERN",
        value_delimiter = ',',
        requires = "create"
    )]
    types: Vec<String>,
    /// With --create: only these tenants.
    #[arg(
        long,
        value_name = "PATTERN",
        value_delimiter = ',',
        requires = "create"
    )]
    tenants: Vec<String>,
    /// There is a transaction pooler in between, such as PgBouncer: nothing is prepared.
    #[arg(long)]
    behind_pooler: bool,
    /// Follow the write-ahead log instead of polling. Needs wal_level = logical, a
    /// role that may replicate, and `pgonce outbox tail on`.
    #[arg(long, env = "PGONCE_WAL", value_parser = clap::builder::FalseyValueParser::new())]
    wal: bool,
    /// Serve /healthz, /readyz and /metrics here, such as 127.0.0.1:9091.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// For whom the log is written, to stderr [default: text].
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
    /// The least that is worth a line [default: info].
    #[arg(long, value_enum)]
    log_level: Option<LogLevel>,
    /// Deliver what is there and end: for cron, and for tests.
    #[arg(long)]
    once: bool,
    /// With --once: give up after so long, with exit code 1.
    #[arg(long, value_name = "TIME", value_parser = length, requires = "once")]
    within: Option<Duration>,
    /// Only say what is wrong with the file. Asks no database and no sink.
    #[arg(long, requires = "file", conflicts_with = "once")]
    check: bool,
    /// Print a commented example of a configuration.
    #[arg(long, conflicts_with_all = ["file", "subscription", "sink", "once"])]
    print_example: bool,
}

pub(crate) fn pair(text: &str) -> std::result::Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let pair = pair.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "write NAME=VALUE".to_owned())
}

pub(crate) fn lease(text: &str) -> std::result::Result<Duration, String> {
    match length(text)? {
        short if short < Duration::from_secs(1) => Err("give 1s or more".to_owned()),
        fits => Ok(fits),
    }
}

pub(crate) async fn run(args: Args, target: Target) -> ! {
    let format = target.format();
    let code = match obey(args, target).await {
        Ok(()) => 0,
        Err(stopped) => stopped.report(format),
    };
    #[cfg(feature = "otlp")]
    crate::otlp::flush().await;
    // At once: a write to a stdout that nobody reads would hold the runtime's end for ever.
    std::process::exit(i32::from(code))
}

async fn obey(args: Args, target: Target) -> std::result::Result<(), Stopped> {
    if args.print_example {
        return Ok(output::raw(config::EXAMPLE)?);
    }
    let ends = serve::Ends {
        once: args.once,
        within: args.within,
    };
    let wal = args.wal;
    let Some(file) = &args.file else {
        let (config, address) = by_flags(args, target)?;
        return Ok(serve::run(config, address, ends).await?);
    };
    let Some(mut config) = Config::load(file, args.check, target.format())? else {
        return Ok(());
    };
    config.database.wal |= wal;
    let address = config.database.address(&config.folder)?;
    Ok(serve::run(config, address, ends).await?)
}

/// The configuration that the flags say.
fn by_flags(args: Args, target: Target) -> Result<(Config, Address)> {
    let Some(subscription) = args.subscription.filter(|name| !name.is_empty()) else {
        return Err(CliError::new(
            exit::USAGE,
            "neither a file nor a subscription was given",
            "Give a TOML file (`pgonce relay --print-example` prints one), or --subscription NAME --sink URL.",
        ));
    };
    let sink = args.sink.or_else(|| std::env::var("PGONCE_SINK").ok());
    let Some(sink) = sink.filter(|url| !url.is_empty()) else {
        return Err(CliError::new(
            exit::USAGE,
            "no sink was given",
            "Give --sink stdout:, or put the address into the variable PGONCE_SINK.",
        ));
    };
    let patterns = |list: Vec<String>| (!list.is_empty()).then(|| Spanned::new(0..0, list));
    let mut relay = Relay::new(subscription, sink);
    relay.source = args.source;
    for (name, value) in args.option {
        relay.options = relay.options.set(name, value);
    }
    relay.options_env.extend(args.option_env);
    relay.in_flight = args
        .in_flight
        .map(|events| Spanned::new(0..0, events as usize));
    relay.lease = args.lease.map(|time| Spanned::new(0..0, Length(time)));
    relay.drain_timeout = args.drain_timeout.map(Length);
    relay.create = args.create.then(|| Create {
        from: args.from,
        topics: patterns(args.topics),
        types: patterns(args.types),
        tenants: patterns(args.tenants),
        ..Create::default()
    });
    let mut config = Config::of(relay);
    config.listen = args.listen.map(|address| config::Listen { address });
    config.log.format = args.log_format.unwrap_or_default();
    config.log.level = args.log_level.unwrap_or_default();
    let (address, schema) = target.address()?;
    config.database.schema = schema;
    config.database.behind_pooler = args.behind_pooler;
    config.database.wal = args.wal;
    Ok((config, address))
}
