//! `pgonce job list`.

use crate::database::Database;
use crate::exit::Result;
use crate::look::{Found, LOOK, among};

/// Which jobs to list.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Only jobs of this queue.
    pub(crate) queue: Option<String>,
    /// Only jobs in this state.
    #[arg(long, value_parser = ["ready", "blocked", "scheduled", "retrying", "running", "succeeded", "dead", "cancelled"])]
    status: Option<String>,
    /// Only jobs of this group.
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// Begin before this number: the last one of the page before. The newest 20000 jobs from there are looked at.
    #[arg(long, value_name = "NUMBER")]
    before: Option<i64>,
    /// Maximum number of jobs.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

/// On Citus: those of the tenant, on its server.
const OF_TENANT: &str = "select id, queue, key, status, attempts, owner, failure_code, created_at, due_at, ended_at, true as matches, false as stopped \
     from pgonce.jobs where tenant = $1 and ($2::text is null or queue = $2) and ($3::text is null or status = $3) \
     and ($4::text is null or group_name = $4) and ($6::text is null or id < $6::text::bigint) order by id desc limit $5::text::int";

const BEFORE: &str = "n.id < coalesce($6::text::bigint, 9223372036854775807)";
const OF_QUEUE: &str = "($2::text is null or x.queue = $2)";

/// Jobs of a group that are looked at for those in one state: each is looked up by itself.
const LOOK_IN_GROUP: u32 = 8000;

/// Jobs of all queues and states that are looked at for those in one state that come by time. `pgonce.queues` counts among the same.
const DUE: u32 = 10_000;

/// What the numbers are read from: rows of `tenant`, `id`, `matches` and `stopped`.
struct Source {
    sql: String,
    looked: u32,
    /// Whether it reads the newest first, so that another list can go on where it stopped.
    is_ordered: bool,
}

impl Source {
    /// The newest jobs of the tenant in a table, of which some match.
    fn newest(table: &str, looked: u32, condition: &str) -> Self {
        let look = format!(
            "select * from pgonce.{table} n where n.tenant = $1 and {BEFORE} order by n.id desc"
        );
        Self {
            sql: among(&look, looked, condition, "$5::text::int"),
            looked,
            is_ordered: true,
        }
    }

    /// The newest that match, all of which are found.
    fn all(of: &str) -> Self {
        Self {
            sql: format!("(select x.*, true as matches, false as stopped from ({of}) x)"),
            looked: 0,
            is_ordered: true,
        }
    }

    /// Jobs that are live and in one state, by the index of that state. The tenant is compared in a way that lets no other index
    /// be chosen, which would read all jobs of the tenant.
    fn in_state(state: &str, order: &str) -> Self {
        Self {
            sql: format!(
                "(select x.*, true as matches, count(*) over () = {LOOK} as stopped from (select * from pgonce.job_live n where {state} \
                 and n.tenant = coalesce($1, n.tenant) and {BEFORE} and ($2::text is null or n.queue = $2) and ($4::text is null or n.group_name = $4) \
                 and case n.state when 'limited' then 'running' else n.state::text end = $3 order by {order} limit {LOOK}) x order by x.id desc limit $5::text::int)"
            ),
            looked: LOOK,
            is_ordered: false,
        }
    }

    /// Jobs that are live and in one of the states that come by time, among those that are due first: these have one index.
    fn due(condition: &str) -> Self {
        let look = "select * from pgonce.job_live n where n.state in ('scheduled', 'retrying', 'running', 'limited') order by n.due_at";
        let before = BEFORE.replace("n.id", "x.id");
        let of_state = among(
            look,
            DUE,
            &format!("x.tenant = $1 and {before} and {condition}"),
            "all",
        );
        Self {
            sql: format!(
                "(select x.tenant, x.id, x.matches, bool_or(x.stopped) over () as stopped from {of_state} x \
                 order by x.stopped and not x.matches, x.id desc limit $5::text::int)"
            ),
            looked: DUE,
            is_ordered: false,
        }
    }

    fn query(&self) -> String {
        format!(
            "select j.id, j.queue, j.key, j.status, j.attempts, j.owner, j.failure_code, j.created_at, j.due_at, j.ended_at, n.matches, n.stopped \
             from {} n cross join lateral (select v.* from pgonce.jobs v where v.tenant = n.tenant and v.id = n.id limit 1) j order by j.id desc",
            self.sql
        )
    }
}

impl List {
    /// From where a bounded number of rows is read, one after the other until one has all.
    fn sources(&self) -> Vec<Source> {
        let status = self.status.as_deref();
        match (self.group.is_some(), status) {
            (true, None) => vec![Source::all(&format!(
                "select * from pgonce.job n where n.tenant = $1 and n.group_name = $4 and {BEFORE} and ($2::text is null or n.queue = $2) \
                 order by n.id desc limit $5::text::int"
            ))],
            (false, None) => vec![Source::newest("job", LOOK, OF_QUEUE)],
            // Then from queue to queue, in the index of dead letters. As for those of one state, no other index is chosen.
            (false, Some("dead")) => vec![
                Source::newest("job_end", LOOK, &format!("{OF_QUEUE} and x.status::text = $3")),
                Source::all(&format!(
                "with recursive q (queue) as (
                     (select n.queue from pgonce.job_end n where n.status = 'dead' order by n.queue limit 1)
                     union all
                     select m.queue from q cross join lateral (
                         select n.queue from pgonce.job_end n where n.status = 'dead' and n.queue > q.queue order by n.queue limit 1) m)
                 select n.* from q cross join lateral (
                     select * from pgonce.job_end n where n.queue = q.queue and n.status = 'dead' and n.tenant = coalesce($1, n.tenant) and {BEFORE}
                      order by n.id desc limit $5::text::int) n
                  where $2::text is null or q.queue = $2 order by n.id desc limit $5::text::int"
            ))],
            (false, Some("succeeded" | "cancelled")) => {
                let condition = format!("{OF_QUEUE} and x.status::text = $3");
                vec![Source::newest("job_end", LOOK, &condition)]
            }
            (true, Some("succeeded" | "dead" | "cancelled")) => {
                let ended = format!(
                    "{OF_QUEUE} and (select e.status::text from pgonce.job_end e where e.tenant = x.tenant and e.id = x.id) = $3"
                );
                let of_group = format!(
                    "select * from pgonce.job n where n.tenant = $1 and n.group_name = $4 and {BEFORE} order by n.id desc"
                );
                let of_ended = format!(
                    "{OF_QUEUE} and x.status::text = $3 and (select g.group_name from pgonce.job g where g.tenant = x.tenant and g.id = x.id) = $4"
                );
                vec![
                    Source {
                        sql: among(&of_group, LOOK_IN_GROUP, &ended, "$5::text::int"),
                        looked: LOOK_IN_GROUP,
                        is_ordered: true,
                    },
                    Source::newest("job_end", LOOK_IN_GROUP, &of_ended),
                ]
            }
            (_, Some(state)) => {
                let condition = format!(
                    "{OF_QUEUE} and ($4::text is null or x.group_name = $4) and case x.state when 'limited' then 'running' else x.state::text end = $3"
                );
                vec![
                    Source::newest("job_live", LOOK, &condition),
                    match state {
                        "ready" => Source::in_state(
                            "n.state = 'ready'",
                            "n.queue, n.priority desc, n.id",
                        ),
                        "blocked" => Source::in_state("n.state = 'blocked'", "n.queue"),
                        _ => Source::due(&condition),
                    },
                ]
            }
        }
    }

    pub(crate) async fn run(&self, database: &Database, tenant: Option<&str>) -> Result {
        let limit = self.limit.to_string();
        let before = self.before.map(|id| id.to_string());
        let params = [
            tenant,
            self.queue.as_deref(),
            self.status.as_deref(),
            self.group.as_deref(),
            Some(&*limit),
            before.as_deref(),
        ];
        const NOTHING: &str = "No jobs.";
        if database.is_distributed().await? {
            let found = Found::of(database.list(OF_TENANT, &params).await?)?;
            return found.print(database, self.limit, NOTHING, |_| String::new());
        }
        let stop = |found: &Found| found.stopped.as_ref().and_then(|last| last["id"].as_i64());
        // The one that came furthest, where none has all.
        let mut best: Option<(Found, u32)> = None;
        for source in self.sources() {
            let rows = database.list(&source.query(), &params).await?;
            let found = match source.is_ordered {
                true => Found::of(rows)?,
                false => Found::sorted(rows)?,
            };
            if found.is_all(self.limit) {
                best = Some((found, source.looked));
                break;
            }
            let further = best
                .as_ref()
                .is_none_or(|(known, _)| stop(&found) < stop(known));
            if source.is_ordered && further {
                best = Some((found, source.looked));
            } else if !source.is_ordered {
                best = best.map(|(known, looked)| (known.or(found), looked));
            }
        }
        let (found, looked) = best.unwrap_or_default();
        found.print(database, self.limit, NOTHING, |last| {
            format!(
                "{looked} jobs were looked at. To look further: --before {}",
                last["id"]
            )
        })
    }
}
