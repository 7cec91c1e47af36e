//! `pgonce webhooks`: receives signed webhooks and stores them, each once, for a consumer.

mod config;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;
use pgonce::tokio_postgres::Once;
use pgonce_http::gateway::unstable::serve_router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use toml::Spanned;

use crate::config_file::ConfigFile as _;
use crate::database::{Address, Target, pool};
use crate::exit::{self, CliError, Result};
use crate::faults::Stopped;
use crate::output;
use crate::relay::config::{LogFormat, LogLevel};
use crate::relay::log;
use crate::signals::Signals;
pub(crate) use config::Config;
use config::{Hook, Listen, SchemeName};

/// Connections of the program: storing a message is short.
const CONNECTIONS: usize = 16;

/// What to receive: a file for all, or flags for one sender.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration, a TOML file; --print-example shows one. Without it the flags say everything.
    #[arg(value_name = "FILE", conflicts_with_all = ["listen", "path", "consumer", "source", "scheme", "secret_env", "behind_pooler",
        "log_format", "log_level"])]
    file: Option<PathBuf>,
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// The path that the sender posts to.
    #[arg(long, value_name = "PATH", default_value = "/")]
    path: String,
    /// The consumer that the messages are stored for.
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// The sender's name, under which its message ids are remembered.
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// How the sender signs; a file can describe others.
    #[arg(long, value_enum, default_value = "standard")]
    scheme: SchemeName,
    /// The variable with the secret; several, while it changes, with spaces in between.
    #[arg(long, value_name = "VARIABLE", default_value = "PGONCE_WEBHOOK_SECRET")]
    secret_env: String,
    /// There is a transaction pooler in between, such as PgBouncer: nothing is prepared.
    #[arg(long)]
    behind_pooler: bool,
    /// For whom the log is written, to stderr [default: text].
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
    /// The least that is worth a line [default: info].
    #[arg(long, value_enum)]
    log_level: Option<LogLevel>,
    /// Only say what is wrong with the file. Asks no database.
    #[arg(long, requires = "file")]
    check: bool,
    /// Print a commented example of a configuration.
    #[arg(long, conflicts_with_all = ["file", "consumer", "source"])]
    print_example: bool,
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
        return Ok(serve(config, address).await?);
    };
    let Some(config) = Config::load(file, args.check, target.format())? else {
        return Ok(());
    };
    let address = config.database.address(&config.folder)?;
    Ok(serve(config, address).await?)
}

/// The configuration that the flags say.
fn by_flags(args: Args, target: Target) -> Result<(Config, Address)> {
    let (Some(consumer), Some(source)) = (args.consumer, args.source) else {
        return Err(CliError::new(
            exit::USAGE,
            "neither a file nor a consumer and a source were given",
            "Give a TOML file (`pgonce webhooks --print-example` prints one), or --consumer NAME --source NAME.",
        ));
    };
    let plain = |text: String| Spanned::new(0..0, text);
    let hook = Hook {
        path: plain(args.path),
        consumer: plain(consumer),
        source: plain(source),
        scheme: Spanned::new(0..0, args.scheme),
        secret_env: args.secret_env,
        ..Hook::default()
    };
    if let Some((what, hint)) = hook.wrong() {
        return Err(CliError::new(exit::USAGE, what, hint));
    }
    let (address, schema) = target.address()?;
    let mut config = Config::of(Listen::at(args.listen), hook);
    config.log.format = args.log_format.unwrap_or_default();
    config.log.level = args.log_level.unwrap_or_default();
    config.database.schema = schema;
    config.database.behind_pooler = args.behind_pooler;
    Ok((config, address))
}

async fn serve(config: Config, address: Address) -> Result {
    log::start(config.log);
    let database = &config.database;
    let pool = pool(address, "pgonce webhooks", CONNECTIONS, database.timeout.0)?;
    let driver = TokioPostgres::new(pool);
    let mut once = Once::builder(driver.clone()).schema(&database.schema);
    if database.behind_pooler {
        once = once.behind_pooler();
    }
    let once = once.build()?;
    let migrator = Migrator::new(driver).schema(&database.schema);
    match migrator.check().await.map_err(CliError::from) {
        // Senders get 503 and send again, and `/readyz` says 503.
        Err(error) if error.is_transient() => {
            let (why, _) = error.words();
            tracing::warn!(error = why, "the database is away");
        }
        checked => checked?,
    }
    let migrator = Arc::new(migrator);
    let mut router = Router::new()
        .route("/healthz", get(async || StatusCode::OK))
        .route("/readyz", get(ready).with_state(migrator));
    for hook in &config.webhooks {
        router = router.merge(hook.receiver(&once, &config.listen)?.router(hook.path()));
    }
    let mut asked = Signals::listen()?;
    let cannot = |error: std::io::Error| {
        let address = config.listen.address;
        let what = format!("nothing can be served on {address}: {error}");
        let hint = "Is another program there? See --listen, or `listen` in the file.";
        CliError::new(exit::FAILED, what, hint)
    };
    let listener = TcpListener::bind(config.listen.address)
        .await
        .map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    tracing::info!(%address, "webhooks are received");
    let stop = CancellationToken::new();
    let serving = serve_router(
        listener,
        router,
        config.listen.max_connections,
        stop.clone(),
    );
    let drained = async {
        asked.next().await;
        tracing::info!("asked to stop: nothing is received any more");
        stop.cancel();
        tokio::select! {
            () = tokio::time::sleep(config.listen.drain_timeout.0) => "drain_timeout was over",
            () = asked.next() => "a second signal",
        }
    };
    tokio::select! {
        () = serving => Ok(()),
        why = drained => Err(CliError::new(
            exit::FAILED,
            format!("stopped before every webhook was answered: {why}"),
            "Nothing that was acknowledged is lost; the others are sent again.",
        )),
    }
}

async fn ready(State(migrator): State<Arc<Migrator<TokioPostgres>>>) -> StatusCode {
    match migrator.check().await {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}
