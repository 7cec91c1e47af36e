//! `pgonce transition`: state machines, and what happened to an entity.

use clap::Subcommand;

use crate::database::Target;
use crate::exit::Result;
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
    /// Move an entity to a state, once for each command.
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

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    let tenant = Some(&*args.tenant);
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
            "No command was sent to it.",
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
    let rows = database.rows(query, &params).await?;
    output::rows(database.format, &rows, nothing)
}
