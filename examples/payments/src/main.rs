//! Storms the payments service with each kind of provider: `payments [SECONDS]`, 20 for each by default.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use payments::simulator::Kind;
use payments::storm;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let seconds = std::env::args()
        .nth(1)
        .map_or(Ok(20), |text| text.parse())?;
    let mut agree = true;
    for (name, keys, look_up) in [
        ("honours keys and can be asked", true, true),
        ("knows no keys, and can be asked", false, true),
        ("knows no keys, and cannot be asked", false, false),
    ] {
        let mut out = std::io::stdout();
        writeln!(out, "a provider that {name}, {seconds} s:")?;
        let database = storm::database().await?;
        let kind = Kind { keys, look_up };
        let verdict = storm::run(&database.url(), kind, Duration::from_secs(seconds)).await?;
        writeln!(out, "{verdict}\n")?;
        agree &= verdict.faults.is_empty();
    }
    Ok(if agree {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
