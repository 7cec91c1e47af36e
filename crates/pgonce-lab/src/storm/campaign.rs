//! A storm over one configuration: every message of every path, every action, then chance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pgonce_testkit::{Action, CuttingProxy, Direction, Fault, FaultPlan, History, Message, Trial};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};

use super::config::{Config, Isolation};
use super::driver_ext::DriverExt;
use super::fixture::{Fixture, Server};
use super::oracle::{self, Findings};
use super::path::Path;
use super::screen::Screen;
use super::trial::{self, Trialed};
use super::{Plan, Result, migrate};

/// How often a walk is begun that ends before it shows anything.
const TRIES: usize = 5;

/// What a configuration's storm found.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) config: Config,
    pub(super) trialed: Vec<Trialed>,
    pub(super) random: usize,
    pub(super) findings: Findings,
    pub(super) took: Duration,
}

type Transcripts = BTreeMap<Path, Vec<Message>>;

pub(super) async fn storm<D: DriverExt>(
    server: &Server,
    config: Config,
    plan: &Arc<Plan>,
    screen: &Arc<Screen>,
) -> Result<Outcome> {
    let began = Instant::now();
    let history = match &plan.history {
        Some(folder) => History::in_file(folder.join(format!("{}.jsonl", config.name())))?,
        None => History::new(),
    };
    let fixture = Arc::new(Fixture::<D>::prepare(server, config, history, plan.sabotage).await?);
    let transcripts = rehearse(&fixture, plan).await?;
    let trials = enumerate(&transcripts, plan, config);
    let migrations = migrate::trials(&fixture, plan).await?;
    screen.begin(&config, trials.len() + migrations.len());

    let mut trialed = enumerated(&fixture, trials, plan, screen).await?;
    trialed.extend(migrate::storm(&fixture, migrations, plan, screen).await?);
    let random = by_chance(&fixture, &transcripts, plan, screen).await?;
    let chances = random.len();
    trialed.extend(random);
    screen.end();
    let findings = oracle::judge(&fixture, &trialed, plan).await?;
    Ok(Outcome {
        config,
        trialed,
        random: chances,
        findings,
        took: began.elapsed(),
    })
}

/// Every path once without a fault: it must work, and shows its messages.
async fn rehearse<D: DriverExt>(fixture: &Fixture<D>, plan: &Plan) -> Result<Transcripts> {
    let proxy = fixture.proxy()?;
    let mut transcripts = Transcripts::new();
    // Relays and consumers have the isolation that they need, whatever that of others: once is enough.
    let here = fixture.config.isolation == Isolation::ReadCommitted;
    let brokers = plan
        .broker_paths()
        .filter(|path| here && path.is_possible_with(fixture.config.driver));
    for path in plan.intent_paths().chain(brokers) {
        // The first time the server is cold, and a lease may need more heartbeats.
        rehearse_path(fixture, &proxy, path).await?;
        let second = rehearse_path(fixture, &proxy, path).await?;
        let third = rehearse_path(fixture, &proxy, path).await?;
        // A slow walk has more messages, at which the others would meet no fault.
        let shorter = if third.len() < second.len() {
            third
        } else {
            second
        };
        transcripts.insert(path, shorter);
    }
    Ok(transcripts)
}

/// One path without a fault. The leases are so short that one may run out on a busy machine (P4012): they are
/// doubled then. Serializable transactions of others may end this one (40001). Both are tried again, and
/// nothing else is.
async fn rehearse_path<D: DriverExt>(
    fixture: &Fixture<D>,
    proxy: &CuttingProxy,
    path: Path,
) -> Result<Vec<Message>> {
    for _ in 1..TRIES {
        match trial::dry_run(fixture, proxy, path, fixture.next()).await {
            Err(error) if error.to_string().contains("P4012") => fixture.lengthen_leases().await?,
            Err(error) if error.to_string().contains("40001") => {}
            ended => return ended,
        }
    }
    trial::dry_run(fixture, proxy, path, fixture.next()).await
}

/// All trials, in an order that mixes the paths.
fn enumerate(transcripts: &Transcripts, plan: &Plan, config: Config) -> Vec<(Path, Trial)> {
    let mut trials: Vec<(Path, Trial)> = transcripts
        .iter()
        .flat_map(|(path, messages)| {
            let all = match &plan.fault {
                Some(trial) => vec![trial.clone()],
                None => FaultPlan::every(messages, plan.actions()).trials,
            };
            all.into_iter().map(|trial| (*path, trial))
        })
        .collect();
    let mut chance = StdRng::seed_from_u64(plan.seed ^ u64::from(config.major));
    trials.shuffle(&mut chance);
    trials.truncate(plan.sample.unwrap_or(usize::MAX));
    trials
}

async fn enumerated<D: DriverExt>(
    fixture: &Arc<Fixture<D>>,
    trials: Vec<(Path, Trial)>,
    plan: &Plan,
    screen: &Arc<Screen>,
) -> Result<Vec<Trialed>> {
    let (trials, next) = (Arc::new(trials), Arc::new(AtomicUsize::new(0)));
    let one_by_one = plan.fault.is_some();
    run_clients(fixture, plan, move |fixture, proxy, _| {
        let (trials, next, screen) = (Arc::clone(&trials), Arc::clone(&next), Arc::clone(screen));
        async move {
            let mut done = Vec::new();
            while let Some((path, trial)) = trials.get(next.fetch_add(1, Relaxed)) {
                let mut tried = trial::run(&fixture, &proxy, *path, trial, fixture.next()).await;
                // A walk may end before it comes to its fault: on a busy machine, or where a serializable transaction beside it ended it.
                for _ in 1..TRIES {
                    if tried.fired > 0 || tried.stuck.is_some() || one_by_one {
                        break;
                    }
                    tried.repeated = true;
                    done.push(tried);
                    tried = trial::run(&fixture, &proxy, *path, trial, fixture.next()).await;
                }
                done.push(tried);
                screen.step();
            }
            done
        }
    })
    .await
}

/// Several faults in one trial, anywhere, as long as the time lasts: the later ones meet a client that
/// comes back.
async fn by_chance<D: DriverExt>(
    fixture: &Arc<Fixture<D>>,
    transcripts: &Transcripts,
    plan: &Plan,
    screen: &Arc<Screen>,
) -> Result<Vec<Trialed>> {
    let Some(time) = plan.random.filter(|_| !transcripts.is_empty()) else {
        return Ok(Vec::new());
    };
    let until = Instant::now() + time;
    let transcripts = Arc::new(transcripts.clone());
    let seed = plan.seed;
    run_clients(fixture, plan, move |fixture, proxy, worker| {
        let (transcripts, screen) = (Arc::clone(&transcripts), Arc::clone(screen));
        async move {
            let mut chance = StdRng::seed_from_u64(seed.wrapping_mul(31).wrapping_add(worker));
            let paths: Vec<_> = transcripts.iter().collect();
            let mut done = Vec::new();
            while Instant::now() < until {
                let Some((path, trial)) = draw(&paths, &mut chance) else {
                    break;
                };
                done.push(trial::run(&fixture, &proxy, path, &trial, fixture.next()).await);
                screen.step();
            }
            done
        }
    })
    .await
}

/// One fault at a message that the path has, one or two early on the connections after it.
fn draw(paths: &[(&Path, &Vec<Message>)], chance: &mut StdRng) -> Option<(Path, Trial)> {
    const ACTIONS: [Action; 4] = [
        Action::CutBefore,
        Action::CutAfter,
        Action::DropReply,
        Action::SecondClientBetween,
    ];
    let (path, messages) = paths.choose(chance)?;
    let first = Fault::at(messages.choose(chance)?, *ACTIONS.choose(chance)?);
    let mut faults = vec![first];
    for after in 1..=chance.random_range(1..=2) {
        let direction = match chance.random_bool(0.5) {
            true => Direction::ToServer,
            false => Direction::ToClient,
        };
        faults.push(Fault {
            connection: first.connection + after,
            direction,
            message: chance.random_range(0..12),
            action: *ACTIONS.choose(chance)?,
        });
    }
    Some((**path, Trial { faults }))
}

/// Several workers at once, each with a proxy of its own.
pub(super) async fn run_clients<D, W, F>(
    fixture: &Arc<Fixture<D>>,
    plan: &Plan,
    work: W,
) -> Result<Vec<Trialed>>
where
    D: DriverExt,
    W: Fn(Arc<Fixture<D>>, CuttingProxy, u64) -> F,
    F: Future<Output = Vec<Trialed>> + Send + 'static,
{
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..plan.workers {
        workers.spawn(work(Arc::clone(fixture), fixture.proxy()?, worker));
    }
    let mut all = Vec::new();
    while let Some(done) = workers.join_next().await {
        all.extend(done?);
    }
    Ok(all)
}
