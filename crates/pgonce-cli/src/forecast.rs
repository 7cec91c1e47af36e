//! `pgonce forecast`: how much is stored, how fast it grows, and how much there will be.

use crate::database::Target;
use crate::exit::Result;
use crate::output::{self, Format};

/// The query; `$1` is a number of days.
const FORECAST: &str = include_str!("forecast.sql");

/// How far to look.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How much there will be after so many days, at the rate of the last seven.
    #[arg(long, value_name = "NUMBER", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

/// The forecast as a query without parameters.
pub(crate) fn query(days: u32) -> String {
    FORECAST.replace("$1", &days.to_string())
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    // Sizes for people, bytes for programs.
    let columns = match database.format {
        Format::Json => {
            "what, rows, bytes, rows_per_day, bytes_per_day, kept, rows_then, bytes_then, observed"
        }
        Format::Table => {
            "what, rows, pg_size_pretty(bytes) as size, rows_per_day, pg_size_pretty(bytes_per_day) as per_day, kept, rows_then, \
             pg_size_pretty(bytes_then) as size_then, observed"
        }
    };
    let query = format!(
        "select {columns} from ({}) f order by place",
        query(args.days)
    );
    let rows = database.read(&query, &[]).await?;
    output::rows(database.format, &rows, "nothing is stored")
}
