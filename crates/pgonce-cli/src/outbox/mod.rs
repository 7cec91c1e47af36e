//! `pgonce outbox`: what operators see of events, and do about them. Each is one call of SQL.

mod looking;
mod moment;
mod subscriptions;
mod tail;
mod trouble;

use clap::Subcommand;

use crate::database::Target;
use crate::exit::{self, Result};
use crate::output::Format;

/// What to do with the outbox.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show how far every subscription is behind, what is parked for it, and who moves it.
    Status(looking::StatusArgs),
    /// List what is parked for a subscription, with the reason: dead letters, unless told otherwise.
    List(looking::ListArgs),
    /// Show one event whole, and what became of it for a subscription.
    Show(looking::ShowArgs),
    /// Try dead letters once more, in order.
    Redrive(trouble::RedriveArgs),
    /// Try once more what a subscription did not get since a time.
    Recover(trouble::RecoverArgs),
    /// Give a parked event up; what is behind it moves again.
    Skip(trouble::SkipArgs),
    /// Let a subscription read the log again from a place on, or only a range of it.
    Replay(trouble::ReplayArgs),
    /// Let a subscription no longer hold the log: its relays stop, and events that it has not read may go.
    Evict(subscriptions::EvictArgs),
    /// List subscriptions; create, alter and drop them.
    Subscriptions(subscriptions::Args),
    /// Show how long events are kept and how large the log is, or change how long.
    Retention(subscriptions::RetentionArgs),
    /// Show whether relays can be told of commits by the write-ahead log and who is; allow it, or no longer.
    Tail(tail::Args),
}

impl Args {
    pub(crate) fn format(&self) -> Format {
        self.target.format()
    }
}

pub(crate) async fn run(args: Args) -> Result {
    let database = args.target.installed().await?;
    let done = match args.action {
        Action::Status(args) => looking::status(&database, &args).await,
        Action::List(args) => looking::list(&database, &args).await,
        Action::Show(args) => looking::show(&database, &args).await,
        Action::Redrive(args) => trouble::redrive(&database, &args).await,
        Action::Recover(args) => trouble::recover(&database, &args).await,
        Action::Skip(args) => trouble::skip(&database, &args).await,
        Action::Replay(args) => trouble::replay(&database, &args).await,
        Action::Evict(args) => subscriptions::evict(&database, &args).await,
        Action::Subscriptions(args) => subscriptions::run(&database, args).await,
        Action::Retention(args) => subscriptions::retention(&database, &args).await,
        Action::Tail(args) => tail::run(&database, &args).await,
    };
    done.map_err(|trouble| {
        trouble
            .with_hint("42704", "See `pgonce outbox subscriptions`.")
            .with_exit("42704", exit::NOT_FOUND)
            .with_exit("23514", exit::USAGE)
    })
}
