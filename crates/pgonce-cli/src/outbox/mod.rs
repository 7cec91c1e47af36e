//! `pgonce outbox`: what operators see of events, and do about them. Each is one call of SQL.

mod deliveries;
mod inspect;
mod moment;
mod subscriptions;
mod tail;

use clap::Subcommand;

use crate::database::Target;
use crate::exit::{self, Result};

/// What to do with the outbox.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show how far every subscription is behind, what is parked for it, and who moves it.
    Status(inspect::StatusArgs),
    /// List what is parked for a subscription, with the reason. Default: dead letters.
    List(inspect::ListArgs),
    /// Show one event whole, and what became of it for a subscription.
    Show(inspect::ShowArgs),
    /// Try dead letters once more, in order.
    Redrive(deliveries::RedriveArgs),
    /// Try once more what a subscription did not get since a time.
    Recover(deliveries::RecoverArgs),
    /// Give up a parked event; what is behind it moves again.
    Skip(deliveries::SkipArgs),
    /// Let a subscription read the log again from an event or a time on, or only a range of it.
    Replay(deliveries::ReplayArgs),
    /// Let a subscription no longer hold the log: its relays stop, and events that it has not read may go.
    Evict(subscriptions::EvictArgs),
    /// List subscriptions; create, alter and drop them.
    Subscriptions(subscriptions::Args),
    /// Show how long events are kept and how large the log is, or change how long.
    Retention(subscriptions::RetentionArgs),
    /// Show whether relays may follow the write-ahead log, and which do; allow it, or no longer.
    Tail(tail::Args),
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    let done = match args.action {
        Action::Status(args) => inspect::status(&database, &args).await,
        Action::List(args) => inspect::list(&database, &args).await,
        Action::Show(args) => inspect::show(&database, &args).await,
        Action::Redrive(args) => deliveries::redrive(&database, &args).await,
        Action::Recover(args) => deliveries::recover(&database, &args).await,
        Action::Skip(args) => deliveries::skip(&database, &args).await,
        Action::Replay(args) => deliveries::replay(&database, &args).await,
        Action::Evict(args) => subscriptions::evict(&database, &args).await,
        Action::Subscriptions(args) => subscriptions::run(&database, args).await,
        Action::Retention(args) => subscriptions::retention(&database, &args).await,
        Action::Tail(args) => tail::run(&database, &args).await,
    };
    done.map_err(|error| {
        error
            .with_hint("42704", "See `pgonce outbox subscriptions`.")
            .with_exit("23514", exit::USAGE)
    })
}
