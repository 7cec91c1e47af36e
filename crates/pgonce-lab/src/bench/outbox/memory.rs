//! What a relay holds in memory while a long backlog is before it.

use super::{Result, Size, fill, from_the_start, outbox, sink};
use crate::bench::report::{Budget, Line, Unit};
use crate::bench::server::Server;

pub(super) async fn measure(server: &Server, size: &Size) -> Result<Vec<Line>> {
    let url = server.database("backlog").await?;
    fill(&url, size.backlog, size.backlog).await?;
    let outbox = outbox(&url)?;
    from_the_start(&outbox).await?;
    let before = start_over()?;
    sink::relay(outbox, size.backlog, false).await?;
    let most = memory("VmHWM:");
    server.remove(&url).await?;
    let grown = match (before, most) {
        (Some(before), Some(most)) => most - before,
        // Not a system that says.
        _ => return Ok(Vec::new()),
    };
    let name = format!(
        "outbox: relay's memory with {} events before it",
        size.backlog
    );
    let line = Line::new(name, grown, Unit::Mebibytes);
    Ok(vec![line.within(Budget::AtMost(64.0))])
}

/// Forgets the peak; answers what is held now, where the system says.
fn start_over() -> Result<Option<f64>> {
    if cfg!(target_os = "linux") {
        std::fs::write("/proc/self/clear_refs", "5")?;
    }
    Ok(memory("VmRSS:"))
}

/// A figure of this process, in MiB.
fn memory(name: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib / 1024.0)
}
