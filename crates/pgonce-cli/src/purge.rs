//! `pgonce purge`.

use pgonce::Once;
use serde_json::json;

use crate::database::Target;
use crate::exit::Result;
use crate::output::{self, Format};

/// How much to purge.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Remove at most so many in one transaction.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: u32,
    /// Go on until none is left.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    target: Target,
}

impl Args {
    pub(crate) fn format(&self) -> Format {
        self.target.format()
    }
}

pub(crate) async fn run(args: Args) -> Result {
    let database = args.target.installed().await?;
    let once = Once::builder(database.driver.clone())
        .schema(&database.schema)
        .behind_pooler()
        .build()?;
    let mut purged = 0;
    let more = loop {
        let count = once.purge(args.limit).await?;
        purged += count;
        let more = count == u64::from(args.limit);
        if !(more && args.all) {
            break more;
        }
    };
    // Whoever relays tends the log as well; where nobody does, this is who.
    once.outbox().maintain().await?;
    let words = format!(
        "purged {purged} finished record{}{}",
        if purged == 1 { "" } else { "s" },
        if more {
            "; there may be more: run it again, or with --all"
        } else {
            ""
        }
    );
    output::say(
        database.format,
        &words,
        &json!({"purged": purged, "more": more}),
    )
}
