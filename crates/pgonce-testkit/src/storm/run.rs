use std::{collections::BTreeSet, sync::Arc};

use tokio::{sync::watch, task::JoinSet, time::Instant};

use super::{
    Call, Plan, Report,
    clients::Clients,
    fault_injector::{self, FaultInjector},
    target::Target,
};
use crate::{
    Error, Result,
    checker::{self, Effect, Kind},
    cut::CuttingProxy,
    history::{History, Outcome},
    wait::{Deadline, connect},
};

/// A dead client's session may have to finish a statement first.
const SESSIONS_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

pub(super) async fn run<H, F>(handler: H, plan: Plan, url: &str) -> Result<Report>
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Outcome> + Send + 'static,
{
    let began = Instant::now();
    let query = plan.effects.clone().ok_or_else(|| {
        refused(
            "begin the storm",
            "call `.effects(\"select … as intent from …\")` first",
        )
    })?;
    let target = Target::read(url)?;
    // What is there from before is not ours to judge; and a wrong query is reported at once.
    let earlier = Effect::read(url, &query).await?;
    let earlier: BTreeSet<_> = earlier.into_iter().map(|effect| effect.intent).collect();

    let seed = plan.seed.unwrap_or_else(rand::random);
    let proxy = Arc::new(CuttingProxy::start(target.server())?);
    let clients = Arc::new(Clients {
        handler: Arc::new(handler),
        plan,
        url: target.through(proxy.addr()),
        history: Arc::new(History::new()),
        ended: watch::Sender::default(),
        run: rand::random(),
    });

    rehearse(&clients).await?;
    let spread = fault_injector::spread(&proxy.transcript());
    proxy.start_over();
    let mut fault_injector = FaultInjector::new();
    if clients.plan.cuts {
        let connections = clients
            .plan
            .intents
            .saturating_mul(clients.plan.duplicates * 8);
        fault_injector::arm(&proxy, seed, &spread, connections.clamp(1_000, 100_000));
        fault_injector.release_what_is_held(&proxy, clients.ended.subscribe());
    }
    if clients.plan.kills {
        let killer = connect(url).await?;
        fault_injector.kill_sessions(&proxy, seed, killer, clients.ended.subscribe());
    }
    let (outages, ended) = (clients.plan.outages, clients.ended.subscribe());
    fault_injector.make_outages(&proxy, seed, outages, ended);
    let begun = brave(&clients, &fault_injector).await;
    let (kills, outages) = fault_injector.calm_down().await;
    proxy.disarm();
    let faults = proxy.all_fired();
    let unanswered = bring_home(&clients, begun).await;
    all_sessions_end(proxy, url).await?;

    let history = Arc::clone(&clients.history);
    history.saw_times("fault", u64::try_from(faults.len()).unwrap_or(u64::MAX));
    history.saw_times("kill", kills);
    history.saw_times("outage", outages);
    let mut effects = Effect::read(url, &query).await?;
    effects.retain(|effect| !earlier.contains(&effect.intent));
    let coverage = clients.plan.coverage.clone();
    let coverage = coverage.or_require("fault", u64::from(clients.plan.cuts) * (1 + begun / 10));
    let coverage = coverage.or_require("kill", u64::from(clients.plan.kills));
    let coverage = coverage.or_require("outage", clients.plan.outages.0);
    let mut verdict = checker::check_covering(&history, &effects, &coverage);
    for (number, last) in unanswered {
        let what = format!("no success without faults; the last outcome was {last:?}");
        verdict.add(Kind::NeverAnswered, &clients.intent(number), what, &history);
    }
    Ok(Report {
        trials: verdict.attempts,
        verdict,
        faults,
        kills,
        seed,
        took: began.elapsed(),
        history,
    })
}

/// Maximum number of calls before the storm, until one succeeds.
const REHEARSALS: usize = 5;

/// A handler that does not work without faults would make a storm meaningless.
async fn rehearse<H, F>(clients: &Clients<H>) -> Result<()>
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Outcome> + Send + 'static,
{
    let payload = (clients.plan.payload)(0);
    let mut outcomes = Vec::new();
    // A busy machine may be too slow for a handler's own time limits; a retry is what a client would do.
    while outcomes.len() < REHEARSALS {
        match clients.call(&clients.intent(0), &payload).await {
            Outcome::Success(_) => return Ok(()),
            other => outcomes.push(other),
        }
    }
    let why = format!("expected success without any fault, the outcomes were {outcomes:?}");
    Err(refused("call the handler before the storm", why))
}

/// Asks for all intents while the time lasts, and for more until all outages are over; says how many were begun.
async fn brave<H, F>(clients: &Arc<Clients<H>>, fault_injector: &FaultInjector) -> u64
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Outcome> + Send + 'static,
{
    let until = Instant::now() + clients.plan.at_most;
    let mut under_way = JoinSet::new();
    let mut begun = 0;
    let plan = &clients.plan;
    let is_over = |begun| begun >= plan.intents && fault_injector.outages() >= plan.outages.0;
    while !is_over(begun) && Instant::now() < until {
        if under_way.len() >= plan.at_once {
            under_way.join_next().await;
        }
        begun += 1;
        // Number 0 was the rehearsal.
        under_way.spawn(Arc::clone(clients).ask_for(begun, until));
    }
    while under_way.join_next().await.is_some() {}
    begun
}

/// Asks once more for each intent that was begun: now all must get success. Gives those
/// that are not, with what they got as answers.
async fn bring_home<H, F>(clients: &Arc<Clients<H>>, begun: u64) -> Vec<(u64, Option<Outcome>)>
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Outcome> + Send + 'static,
{
    let until = Instant::now() + clients.plan.recovery_timeout;
    let mut under_way = JoinSet::new();
    let mut lost = Vec::new();
    let mut note = |home: (u64, Option<Outcome>)| {
        if !matches!(home.1, Some(Outcome::Success(_))) {
            lost.push(home);
        }
    };
    for number in 0..=begun {
        if under_way.len() >= clients.plan.at_once {
            under_way
                .join_next()
                .await
                .and_then(Result::ok)
                .map(&mut note);
        }
        let clients = Arc::clone(clients);
        under_way.spawn(async move {
            let payload = (clients.plan.payload)(number);
            let outcome = clients
                .insist(&clients.intent(number), &payload, u32::MAX, until)
                .await;
            (number, outcome)
        });
    }
    while let Some(home) = under_way.join_next().await {
        home.ok().map(&mut note);
    }
    lost
}

/// A session whose client has gone may still be at work, and commit later.
async fn all_sessions_end(proxy: Arc<CuttingProxy>, url: &str) -> Result<()> {
    let client = connect(url).await?;
    proxy.cut_all();
    let sessions = proxy.sessions();
    drop(proxy);
    let what = "the sessions of clients that were cut off to end";
    let mut deadline = Deadline::new(what, SESSIONS_TIMEOUT);
    loop {
        let busy = client
            .query_one(
                "select count(*) from pg_catalog.pg_stat_activity
                 where pid = any ($1) and datname = pg_catalog.current_database()",
                &[&sessions],
            )
            .await?;
        if busy.try_get::<_, i64>(0)? == 0 {
            return Ok(());
        }
        deadline.pause().await?;
    }
}

fn refused(what: &str, why: impl Into<String>) -> Error {
    Error::Io {
        what: what.to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidInput, why.into()),
    }
}
