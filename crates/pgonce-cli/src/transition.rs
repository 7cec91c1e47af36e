//! `pgonce transition`: state machines, and what happened to an entity.

use clap::Subcommand;

use crate::database::Target;
use crate::exit::{self, CliError, Result};
use crate::output;

/// What to do with state machines.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// The tenant; empty where there are none.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    tenant: String,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the transitions that are allowed.
    Rules,
    /// Show the timeline of an entity: every command, applied or rejected.
    Show(Entity),
    /// Move an entity to a state, once for each command; exit code 1 where it is not applied.
    Move(Move),
    /// Let due timers move their entities.
    Fire,
}

#[derive(Debug, clap::Args)]
struct Entity {
    /// The state machine.
    machine: String,
    /// The entity.
    entity: String,
}

#[derive(Debug, clap::Args)]
struct Move {
    #[command(flatten)]
    of: Entity,
    /// The state to move it to.
    to: String,
    /// The id of this command.
    #[arg(long)]
    command: String,
    /// The state that it must be in.
    #[arg(long, value_name = "STATE")]
    expected: Option<String>,
}

fn unknown(what: String) -> CliError {
    CliError::new(
        exit::NOT_FOUND,
        what,
        "`pgonce transition rules` lists the machines; --tenant names the tenant.",
    )
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    let tenant = Some(&*args.tenant);
    match &args.action {
        Action::Rules | Action::Fire => {}
        Action::Show(of) => {
            let known = "exists (select from pgonce.transition_command c where c.machine = $1 and c.entity = $2 and c.tenant = $3)";
            let params = [Some(&*of.machine), Some(&*of.entity), tenant];
            let unknown = || {
                unknown(format!(
                    "no command was sent to entity {:?} of machine {:?}",
                    of.entity, of.machine
                ))
            };
            database.require(known, &params, unknown).await?;
        }
        // The first command makes its entity, but no machine.
        Action::Move(to) => {
            let known = "exists (select from pgonce.transition_rule r where r.machine = $1)";
            let unknown = || unknown(format!("there is no machine {:?}", to.of.machine));
            database
                .require(known, &[Some(&*to.of.machine)], unknown)
                .await?;
        }
    }
    let (query, params, nothing) = match &args.action {
        Action::Rules => (
            "select machine, from_state, to_state, guard, topic from pgonce.transition_rule order by 1, 2, 3",
            vec![],
            "No transition is defined here.",
        ),
        Action::Show(of) => (
            "select command, from_state, to_state, outcome, version, who, at from pgonce.timelines \
             where machine = $1 and entity = $2 and tenant = $3 order by seq",
            vec![Some(&*of.machine), Some(&*of.entity), tenant],
            "",
        ),
        Action::Move(to) => (
            "select * from pgonce.transition($1, $2, $3, $4, $5, p_tenant => $6)",
            vec![
                Some(&*to.of.machine),
                Some(&*to.of.entity),
                Some(&*to.to),
                Some(&*to.command),
                to.expected.as_deref(),
                tenant,
            ],
            "",
        ),
        Action::Fire => (
            "select * from pgonce.fire_timers(1000)",
            vec![],
            "No timer is due.",
        ),
    };
    let rows = match &args.action {
        Action::Rules | Action::Show(_) => database.read(query, &params).await?,
        Action::Move(_) | Action::Fire => database.rows(query, &params).await?,
    };
    exit::before_verdict(output::rows(database.format, &rows, nothing))?;
    // A command that was applied before has the same outcome.
    let is_applied = |row: &String| row.contains(r#""outcome":"applied""#);
    match args.action {
        Action::Move(_) if !rows.iter().all(is_applied) => Err(CliError::quiet(exit::FAILED)),
        _ => Ok(()),
    }
}
