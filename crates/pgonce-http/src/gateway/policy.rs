//! The layer's policy of a route, from what the file says.

use http::Method;
use pgonce::scope;

use super::config::values::{Principal, Print};
use super::config::{self, AfterExpiry, Busy, Needed, Outcomes, Oversize, Scope, Stale};
use super::pattern::Pattern;
use super::scopes::DEFAULT_WAIT_TIMEOUT;
use crate::{ApiVersion, Caller, Policy, ReplayHeaders, RequestPrint};

/// The policy of one method of a route: the operation is the method and the pattern, so that one
/// key on two paths of a pattern is a conflict, and on two routes is two requests.
pub(crate) fn policy(
    config: &config::Tables,
    path: &Pattern,
    method: &Method,
    once: &config::Once,
    scope: &Scope,
) -> Policy {
    let mut policy = Policy::new(once.scope.get_ref(), caller(once.principal.get_ref()))
        .operation(format!("{method} {path}"))
        .methods([method.clone()])
        .tenant(caller(once.tenant.get_ref()))
        .key_required(once.key == Needed::Required)
        .lint_keys(once.lint_keys)
        .outcomes(outcomes(once.outcomes))
        .fingerprint(print(&once.fingerprint))
        .with_query(once.with_query)
        .max_body(once.max_body.get_ref().0)
        .max_response(once.max_response.get_ref().0)
        .oversize(match once.oversize {
            Oversize::Refuse => crate::Oversize::Refuse,
            Oversize::Pass => crate::Oversize::PassUnkept,
        })
        .replay_headers(ReplayHeaders::usual_and(
            once.replay_headers.iter().map(|name| name.0.clone()),
        ))
        .fail_open(once.fail_open)
        .body_timeout(config.listen.body_timeout.0)
        .database_timeout(config.database.timeout());
    for (status, disposition) in once.statuses.all() {
        policy = policy.on_status([status.get_ref().0], disposition);
    }
    if let Some(name) = &config.log.correlation {
        policy = policy.correlation(name.0.clone());
    }
    if let Some(name) = &once.key_header {
        policy = policy.header(name.0.clone());
    }
    if let Some(name) = &once.version_header {
        policy = policy.version(ApiVersion::Header(name.0.clone()));
    }
    contract(policy, scope)
}

/// What the policy repeats of the scope's contract.
fn contract(policy: Policy, scope: &Scope) -> Policy {
    let wait_timeout = scope
        .wait_timeout
        .as_ref()
        .map_or(DEFAULT_WAIT_TIMEOUT, |wait| wait.get_ref().0);
    policy
        .retention(scope.retention.get_ref().0)
        .lease(scope.lease.get_ref().0)
        .wait_timeout(wait_timeout)
        .busy(match scope.busy {
            Busy::Reject => scope::Busy::Reject,
            Busy::Wait => scope::Busy::Wait,
        })
        .stale(match scope.stale {
            Stale::Takeover => scope::Stale::Takeover,
            Stale::Hold => scope::Stale::Hold,
            Stale::Refuse => scope::Stale::Refuse,
        })
        .after_expiry(match scope.after_expiry {
            AfterExpiry::Rerun => scope::AfterExpiry::Rerun,
            AfterExpiry::Gone => scope::AfterExpiry::Gone(
                scope
                    .tombstone_for
                    .as_ref()
                    .map(|length| length.get_ref().0),
            ),
        })
}

fn caller(principal: &Principal) -> Caller {
    match principal {
        Principal::None => Caller::None,
        Principal::Header(name) => Caller::Header(name.clone()),
    }
}

fn outcomes(outcomes: Outcomes) -> crate::Outcomes {
    match outcomes {
        Outcomes::Freeze => crate::Outcomes::Freeze,
        Outcomes::Final => crate::Outcomes::Final,
        Outcomes::Finish => crate::Outcomes::Finish,
    }
}

fn print(print: &Print) -> RequestPrint {
    match print {
        Print::ByContentType => RequestPrint::ByContentType,
        Print::Bytes => RequestPrint::Bytes,
        Print::Json => RequestPrint::Json,
        Print::Multipart => RequestPrint::Multipart,
        Print::Only(pointers) => RequestPrint::Only(pointers.clone()),
        Print::Except(pointers) => RequestPrint::Except(pointers.clone()),
    }
}
