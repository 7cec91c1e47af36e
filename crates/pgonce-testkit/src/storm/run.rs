use std::{collections::BTreeSet, sync::Arc};

use tokio::{sync::watch, task::JoinSet, time::Instant};

use super::{
    Call, Plan, Report,
    crew::Crew,
    target::Target,
    weather::{self, Weather},
};
use crate::{
    Error, Result,
    checker::{self, Effect, Kind},
    cut::CuttingProxy,
    history::{History, Told},
    wait::{Patience, connect},
};

/// A dead client's session may have to finish a statement first.
const SESSIONS_END_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);

pub(super) async fn run<H, F>(handler: H, plan: Plan, url: &str) -> Result<Report>
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Told> + Send + 'static,
{
    let began = Instant::now();
    let query = plan.effects.clone().ok_or_else(|| {
        refused(
            "begin the storm",
            "call `.effects(\"select … as intent from …\")` first",
        )
    })?;
    let target = Target::read(url)?;
    // What is there from before is not ours to judge; and a wrong query is told at once.
    let earlier = Effect::read(url, &query).await?;
    let earlier: BTreeSet<_> = earlier.into_iter().map(|effect| effect.intent).collect();

    let seed = plan.seed.unwrap_or_else(rand::random);
    let proxy = Arc::new(CuttingProxy::start(target.server())?);
    let crew = Arc::new(Crew {
        handler: Arc::new(handler),
        plan,
        url: target.through(proxy.addr()),
        history: Arc::new(History::new()),
        ended: watch::Sender::default(),
        run: rand::random(),
    });

    rehearse(&crew).await?;
    let spread = weather::spread(&proxy.transcript());
    proxy.start_over();
    let mut weather = Weather::new();
    if crew.plan.cuts {
        let connections = crew.plan.intents.saturating_mul(crew.plan.duplicates * 8);
        weather::arm(&proxy, seed, &spread, connections.clamp(1_000, 100_000));
        weather.release_what_is_held(&proxy, crew.ended.subscribe());
    }
    if crew.plan.kills {
        let killer = connect(url).await?;
        weather.kill_sessions(&proxy, seed, killer, crew.ended.subscribe());
    }
    let begun = brave(&crew).await;
    let kills = weather.calm_down().await;
    proxy.disarm();
    let faults = proxy.all_fired();
    let unanswered = bring_home(&crew, begun).await;
    all_sessions_end(proxy, url).await?;

    let history = Arc::clone(&crew.history);
    history.saw_times("fault", u64::try_from(faults.len()).unwrap_or(u64::MAX));
    history.saw_times("kill", kills);
    let mut effects = Effect::read(url, &query).await?;
    effects.retain(|effect| !earlier.contains(&effect.intent));
    let coverage = crew.plan.coverage.clone();
    let coverage = coverage.or_require("fault", u64::from(crew.plan.cuts) * (1 + begun / 10));
    let coverage = coverage.or_require("kill", u64::from(crew.plan.kills));
    let mut verdict = checker::check_covering(&history, &effects, &coverage);
    for (number, last) in unanswered {
        let told = format!("no success in calm weather, the last attempt was told {last:?}");
        verdict.add(Kind::NeverAnswered, &crew.intent(number), told, &history);
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

/// A handler that does not work in calm weather would make a storm meaningless.
async fn rehearse<H, F>(crew: &Crew<H>) -> Result<()>
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Told> + Send + 'static,
{
    let payload = (crew.plan.payload)(0);
    match crew.call(&crew.intent(0), &payload).await {
        Told::Success(_) => Ok(()),
        other => {
            let why = format!("expected success without any fault, it was told {other:?}");
            Err(refused("call the handler once before the storm", why))
        }
    }
}

/// Asks for all intents while the time lasts; says how many were begun.
async fn brave<H, F>(crew: &Arc<Crew<H>>) -> u64
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Told> + Send + 'static,
{
    let until = Instant::now() + crew.plan.at_most;
    let mut under_way = JoinSet::new();
    let mut begun = 0;
    while begun < crew.plan.intents && Instant::now() < until {
        if under_way.len() >= crew.plan.at_once {
            under_way.join_next().await;
        }
        begun += 1;
        // Number 0 was the rehearsal.
        under_way.spawn(Arc::clone(crew).ask_for(begun, until));
    }
    while under_way.join_next().await.is_some() {}
    begun
}

/// Asks once more for each intent that was begun: now all must be told success. Gives those
/// that are not, with what they were told.
async fn bring_home<H, F>(crew: &Arc<Crew<H>>, begun: u64) -> Vec<(u64, Option<Told>)>
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Told> + Send + 'static,
{
    let until = Instant::now() + crew.plan.calm_at_most;
    let mut under_way = JoinSet::new();
    let mut lost = Vec::new();
    let mut note = |home: (u64, Option<Told>)| {
        if !matches!(home.1, Some(Told::Success(_))) {
            lost.push(home);
        }
    };
    for number in 0..=begun {
        if under_way.len() >= crew.plan.at_once {
            under_way
                .join_next()
                .await
                .and_then(Result::ok)
                .map(&mut note);
        }
        let crew = Arc::clone(crew);
        under_way.spawn(async move {
            let payload = (crew.plan.payload)(number);
            let told = crew
                .insist(&crew.intent(number), &payload, u32::MAX, until)
                .await;
            (number, told)
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
    let mut patience = Patience::new(what, SESSIONS_END_WITHIN);
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
        patience.pause().await?;
    }
}

fn refused(what: &str, why: impl Into<String>) -> Error {
    Error::Io {
        what: what.to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidInput, why.into()),
    }
}
