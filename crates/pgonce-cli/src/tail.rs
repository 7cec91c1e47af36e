//! `pgonce tail`: what happens, while it happens.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::database::{Database, Target};
use crate::exit::Result;
use crate::output::{self, Format, printable};
use crate::signals::Signals;

/// What is shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only what has this scope, topic or queue; a star stands for anything.
    #[arg(long)]
    scope: Option<String>,
    /// Only this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Only this status, such as failed_final or dead.
    #[arg(long)]
    status: Option<String>,
    /// Only these kinds.
    #[arg(long, value_delimiter = ',', value_parser = ["intent", "duplicate", "event", "letter", "job", "act"])]
    kind: Vec<String>,
    /// Begin with what happened in this time, such as 10m.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = crate::scope::duration)]
    since: Duration,
    /// Pause between two looks.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = crate::scope::pause)]
    every: Duration,
    /// End after this many lines.
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// How far back each look reads again: what a transaction wrote is seen when it commits, not when it was written.
const OVERLAP: &str = "2 minutes";

/// Each answers at, tenant, place, id, status and detail of what happened since $1. None reads a large table whole: intents
/// are read from the last 16 MB of their table, and by the index of unfinished ones.
const SOURCES: [(&str, &str); 5] = [
    (
        "intent",
        "select coalesce(i.last_at, i.first_at) as at, i.tenant, i.scope as place, i.key as id, i.status::text as status, \
         concat_ws(', ', case when i.attempts > 1 then 'attempt ' || i.attempts end, i.owner, i.failure_code) as detail from pgonce.intent i \
         where i.ctid >= (select format('(%s,0)', greatest(pg_relation_size('pgonce.intent') / current_setting('block_size')::bigint - 2000, 0))::tid) \
         and coalesce(i.last_at, i.first_at) > $1::text::timestamptz \
         union select coalesce(i.last_at, i.first_at), i.tenant, i.scope, i.key, i.status::text, \
         concat_ws(', ', case when i.attempts > 1 then 'attempt ' || i.attempts end, i.owner, i.failure_code) from pgonce.intent i \
         where i.expires_at is null and coalesce(i.lease_until, i.last_at) > $1::text::timestamptz and coalesce(i.last_at, i.first_at) > $1::text::timestamptz",
    ),
    (
        "event",
        "select o.created_at as at, o.tenant, o.topic as place, o.seq::text as id, 'published' as status, concat_ws(' ', o.type, o.subject) as detail \
         from generate_series(0, 15) l cross join lateral (select * from pgonce.outbox e where e.lane = l::smallint order by e.seq desc limit 500) o \
         where o.created_at > $1::text::timestamptz",
    ),
    (
        "letter",
        "select k.parked_at as at, k.tenant, k.subscription as place, k.seq::text as id, k.state as status, concat_ws(' ', k.type, k.subject, k.reason) as detail \
         from pgonce.outbox_subscription s cross join lateral (select * from pgonce.parked p where p.subscription = s.subscription order by p.seq desc limit 2000) k \
         where k.parked_at > $1::text::timestamptz",
    ),
    (
        "job",
        "select e.ended_at as at, e.tenant, e.queue as place, e.id::text as id, e.status::text as status, concat_ws(', ', e.failure_code, e.failure_message) as detail \
         from pgonce.job_end e where e.status = 'dead' and e.ended_at > $1::text::timestamptz",
    ),
    (
        "act",
        "select o.acted_at as at, o.tenant, o.scope as place, o.key as id, o.act as status, concat_ws(': ', coalesce(o.person, o.role), o.reason) as detail \
         from pgonce.operator_act o where o.number > (select coalesce(max(m.number), 0) - 2000 from pgonce.operator_act m) and o.acted_at > $1::text::timestamptz",
    ),
];

const SUPPRESSED: &str = "select s.tenant, s.scope as place, s.replays, s.refusals, s.busy, s.conflicts, pgonce.now() as at from pgonce.suppressed s \
     where ($1::text is null or s.scope like $1) and ($2::text is null or s.tenant = $2)";

/// What was shown, so that nothing is shown twice. The older half is forgotten when there is much.
#[derive(Default)]
struct Seen {
    new: HashSet<String>,
    old: HashSet<String>,
}

impl Seen {
    /// Whether it is new.
    fn add(&mut self, row: &str) -> bool {
        if self.old.contains(row) || !self.new.insert(row.to_owned()) {
            return false;
        }
        if self.new.len() > 100_000 {
            self.old = std::mem::take(&mut self.new);
        }
        true
    }
}

struct Tail {
    database: Database,
    args: Args,
    seen: Seen,
    /// Duplicates by tenant and scope, as they were counted last.
    counted: HashMap<(String, String), [i64; 4]>,
}

const DUPLICATES: [&str; 4] = ["replays", "refusals", "busy", "conflicts"];

impl Tail {
    fn wants(&self, kind: &str) -> bool {
        self.args.kind.is_empty() || self.args.kind.iter().any(|wanted| wanted == kind)
    }

    fn pattern(&self) -> Option<String> {
        let escaped = |scope: &String| {
            let escaped = scope.replace('\\', "\\\\").replace('%', "\\%");
            escaped.replace('_', "\\_").replace('*', "%")
        };
        self.args.scope.as_ref().map(escaped)
    }

    /// The database's time, so long ago, and not before `earliest`.
    async fn time(&self, back: &str, earliest: &str) -> Result<String> {
        let clock =
            "select greatest(pgonce.now() - $1::text::interval, $2::text::timestamptz)::text as at";
        let params = [Some(back), Some(earliest)];
        let row = self.database.read(clock, &params).await?.pop();
        let row: Value = serde_json::from_str(&row.unwrap_or_default())?;
        Ok(row["at"].as_str().unwrap_or_default().to_owned())
    }

    /// What is new since then, in the order of time. It counts as seen once everything is read: what fails on the way is read again.
    async fn look(&mut self, since: &str) -> Result<Vec<Value>> {
        let pattern = self.pattern();
        let mut rows = Vec::new();
        for (kind, source) in SOURCES {
            if !self.wants(kind) {
                continue;
            }
            let query = format!(
                "select x.at, '{kind}' as what, x.tenant, x.place, x.id, x.status, x.detail from ({source}) x \
                 where ($2::text is null or x.place like $2) and ($3::text is null or x.tenant = $3) and ($4::text is null or x.status = $4) \
                 order by x.at desc limit 5000"
            );
            let params = [
                Some(since),
                pattern.as_deref(),
                self.args.tenant.as_deref(),
                self.args.status.as_deref(),
            ];
            rows.extend(self.database.read(&query, &params).await?);
        }
        let mut suppressed = Vec::new();
        if self.wants("duplicate") && self.args.status.is_none() {
            let params = [pattern.as_deref(), self.args.tenant.as_deref()];
            suppressed = self.database.read(SUPPRESSED, &params).await?;
        }
        rows.retain(|row| self.seen.add(row));
        let found = rows.iter().map(|row| pgonce::unstable::json::read(row));
        let mut found = found.collect::<std::result::Result<Vec<Value>, _>>()?;
        self.duplicates(&suppressed, &mut found)?;
        found.sort_by(|a: &Value, b: &Value| a["at"].as_str().cmp(&b["at"].as_str()));
        Ok(found)
    }

    /// Sessions report the duplicates that they turned away as sums.
    fn duplicates(&mut self, suppressed: &[String], found: &mut Vec<Value>) -> Result {
        for row in suppressed {
            let row: Value = serde_json::from_str(row)?;
            let name = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            let now = DUPLICATES.map(|name| row[name].as_i64().unwrap_or_default());
            let before = self.counted.insert((name("tenant"), name("place")), now);
            let before = before.unwrap_or_default();
            let grown = DUPLICATES.iter().zip(now.iter().zip(before));
            let grown = grown.filter(|(_, (now, before))| **now > *before);
            let grown: Vec<_> = grown
                .map(|(name, (now, before))| format!("{} {name}", now - before))
                .collect();
            if !grown.is_empty() {
                found.push(json!({"at": row["at"], "what": "duplicate", "tenant": row["tenant"], "place": row["place"],
                    "id": "", "status": "suppressed", "detail": grown.join(", ")}));
            }
        }
        Ok(())
    }

    fn print(&self, row: &Value) -> Result {
        if self.database.format == Format::Json {
            return output::next_row(&row.to_string());
        }
        let [at, what, tenant, place, id, status, detail] =
            ["at", "what", "tenant", "place", "id", "status", "detail"]
                .map(|name| printable(row[name].as_str().unwrap_or_default()));
        let at = at.get(11..23).unwrap_or(&at).to_owned();
        let place = match tenant.is_empty() {
            true => place,
            false => format!("{tenant}/{place}"),
        };
        let line = format!("{at:<12}  {what:<9}  {status:<16}  {place}  {id}  {detail}");
        output::line(line.trim_end())
    }
}

/// Pauses while the database is away.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let mut signals = Signals::listen()?;
    // The database may let a look wait, for a lock, for as long as it likes.
    tokio::select! {
        () = signals.next() => Ok(()),
        done = follow(args, target) => done,
    }
}

async fn follow(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    database.require_intents().await?;
    let (every, mut left) = (args.every, args.count.unwrap_or(u64::MAX));
    let back = format!("{} milliseconds", args.since.as_millis());
    let mut tail = Tail {
        database,
        args,
        seen: Seen::default(),
        counted: HashMap::new(),
    };
    let start = tail.time(&back, "-infinity").await?;
    let mut since = tail.time(OVERLAP, "-infinity").await?;
    // What is there already counts as seen, but for the time that was asked for.
    tail.look(&since).await?;
    let mut earliest = "-infinity";
    if !tail.args.since.is_zero() {
        tail.seen = Seen::default();
        since.clone_from(&start);
        earliest = &start;
    }
    let mut away = false;
    loop {
        let looked = tail.look(&since).await.and_then(|rows| {
            for row in rows {
                tail.print(&row)?;
                left -= 1;
                if left == 0 {
                    return Ok(true);
                }
            }
            Ok(false)
        });
        let next = match looked {
            Ok(true) => return Ok(()),
            Ok(false) => tail.time(OVERLAP, earliest).await,
            Err(error) => Err(error),
        };
        match next {
            Ok(next) => {
                (since, away) = (next, false);
                tokio::time::sleep(every).await;
            }
            // It may be reachable again at the next look. Said once.
            Err(error) if error.may_pass() => {
                if !std::mem::replace(&mut away, true) {
                    error.print(tail.database.format);
                }
                tokio::time::sleep(every.clamp(PAUSES[0], PAUSES[1])).await;
            }
            Err(error) => return Err(error),
        }
    }
}
