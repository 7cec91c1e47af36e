//! What people may do: each act is one call of SQL, which records who (the setting `pgonce.person`) and why.

use crate::access::Role;

/// An act: who may do it, what it needs, and the call. Fields are its parameters, in order.
#[derive(Debug)]
pub(crate) struct Act {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    /// The word that must be typed to confirm it, where it cannot be undone.
    pub(crate) confirm: &'static str,
    pub(crate) fields: &'static [&'static str],
    /// Those without which it would mean another thing, or all of them.
    pub(crate) needs: &'static [&'static str],
    /// In SQL; empty for what this process does step by step.
    pub(crate) call: &'static str,
    /// The page to go back to, and the fields that name its subject.
    pub(crate) back: (&'static str, &'static [&'static str]),
}

const INTENT: (&str, &[&str]) = ("/intent", &["tenant", "scope", "key"]);
const NAMES: &[&str] = &["tenant", "scope", "key", "reason", "force", "before"];
const INTENT_NEEDS: &[&str] = &["scope", "key", "reason"];

pub(crate) const ACTS: &[Act] = &[
    Act {
        name: "settle",
        role: Role::Operator,
        confirm: "",
        fields: &[
            "tenant", "scope", "key", "reason", "force", "before", "answer",
        ],
        needs: INTENT_NEEDS,
        call: "pgonce.intervene('settle', $2, $3, $4, coalesce($5, '') = 'on', nullif($7, '')::jsonb, p_tenant => coalesce($1, ''), p_before => nullif($6, '')::jsonb)",
        back: INTENT,
    },
    Act {
        name: "fail",
        role: Role::Operator,
        confirm: "",
        fields: &[
            "tenant", "scope", "key", "reason", "force", "before", "code", "message",
        ],
        needs: &["scope", "key", "reason", "code"],
        call: "pgonce.intervene('fail', $2, $3, $4, coalesce($5, '') = 'on', p_code => $7, p_message => nullif($8, ''), p_tenant => coalesce($1, ''), p_before => nullif($6, '')::jsonb)",
        back: INTENT,
    },
    Act {
        name: "release",
        role: Role::Operator,
        confirm: "",
        fields: NAMES,
        needs: INTENT_NEEDS,
        call: "pgonce.intervene('release', $2, $3, $4, coalesce($5, '') = 'on', p_tenant => coalesce($1, ''), p_before => nullif($6, '')::jsonb)",
        back: INTENT,
    },
    Act {
        name: "retry",
        role: Role::Operator,
        confirm: "",
        fields: NAMES,
        needs: INTENT_NEEDS,
        call: "pgonce.intervene('retry', $2, $3, $4, coalesce($5, '') = 'on', p_tenant => coalesce($1, ''), p_before => nullif($6, '')::jsonb)",
        back: INTENT,
    },
    Act {
        name: "evict",
        role: Role::Admin,
        confirm: "evict",
        fields: NAMES,
        needs: INTENT_NEEDS,
        call: "pgonce.intervene('evict', $2, $3, $4, coalesce($5, '') = 'on', p_tenant => coalesce($1, ''), p_before => nullif($6, '')::jsonb)",
        back: INTENT,
    },
    Act {
        name: "redrive",
        role: Role::Operator,
        confirm: "",
        fields: &["subscription", "subject", "tenant"],
        needs: &["subscription", "subject"],
        call: "pgonce.redrive($1, $2, p_tenant => coalesce($3, ''), p_reason => 'console')",
        back: ("/outbox", &["subscription"]),
    },
    Act {
        name: "redrive-all",
        role: Role::Operator,
        confirm: "redrive",
        fields: &["subscription", "reason"],
        needs: &["subscription", "reason"],
        call: "pgonce.redrive($1, p_reason => $2)",
        back: ("/outbox", &["subscription"]),
    },
    Act {
        name: "skip",
        role: Role::Operator,
        confirm: "skip",
        fields: &["subscription", "seq", "reason"],
        needs: &["subscription", "seq", "reason"],
        call: "pgonce.skip($1, $2::text::bigint, $3)",
        back: ("/outbox", &["subscription"]),
    },
    Act {
        name: "retry-messages",
        role: Role::Operator,
        confirm: "",
        fields: &["consumer", "seq", "reason"],
        needs: &["consumer", "seq", "reason"],
        call: "pgonce.retry_messages($1, $2::text::bigint, $3)",
        back: ("/inbox", &["consumer"]),
    },
    Act {
        name: "retry-all-messages",
        role: Role::Operator,
        confirm: "retry",
        fields: &["consumer", "reason"],
        needs: &["consumer", "reason"],
        call: "pgonce.retry_messages($1, null, $2)",
        back: ("/inbox", &["consumer"]),
    },
    Act {
        name: "skip-message",
        role: Role::Operator,
        confirm: "skip",
        fields: &["consumer", "seq", "reason"],
        needs: &["consumer", "seq", "reason"],
        call: "pgonce.skip_message($1, $2::text::bigint, $3)",
        back: ("/inbox", &["consumer"]),
    },
    Act {
        name: "retry-jobs",
        role: Role::Operator,
        confirm: "",
        fields: &["tenant", "id", "queue", "reason"],
        needs: &["queue", "id", "reason"],
        call: "pgonce.retry_jobs($3, $2::text::bigint, $4, coalesce($1, ''))",
        back: ("/queue", &["queue"]),
    },
    Act {
        name: "retry-all-jobs",
        role: Role::Operator,
        confirm: "retry",
        fields: &["queue", "reason"],
        needs: &["queue", "reason"],
        call: "pgonce.retry_jobs($1, null, $2)",
        back: ("/queue", &["queue"]),
    },
    Act {
        name: "cancel-job",
        role: Role::Operator,
        confirm: "cancel",
        fields: &["tenant", "id", "queue", "reason"],
        needs: &["id", "reason"],
        // A job of another queue than the one that is named is another job.
        call: "case when coalesce($3, '') = '' or exists (select from pgonce.job j where j.tenant = coalesce($1, '') and j.id = $2::text::bigint and j.queue = $3) \
               then pgonce.cancel_job($2::text::bigint, $4, coalesce($1, '')) else false end",
        back: ("/queue", &["queue"]),
    },
    Act {
        name: "pause-queue",
        role: Role::Operator,
        confirm: "",
        fields: &["queue"],
        needs: &["queue"],
        call: "pgonce.define_queue($1, p_paused => true)",
        back: ("/queue", &["queue"]),
    },
    Act {
        name: "resume-queue",
        role: Role::Operator,
        confirm: "",
        fields: &["queue"],
        needs: &["queue"],
        call: "pgonce.define_queue($1, p_paused => false)",
        back: ("/queue", &["queue"]),
    },
    Act {
        name: "settle-call",
        role: Role::Operator,
        confirm: "settle",
        fields: &[
            "tenant",
            "effect_key",
            "outcome",
            "reason",
            "force",
            "reference",
            "response",
            "answer",
            "code",
            "before",
        ],
        needs: &["effect_key", "outcome", "reason"],
        call: "pgonce.external_settle($2::text::uuid, $3, $4, coalesce($5, '') = 'on', nullif($6, ''), nullif($7, '')::jsonb, nullif($8, '')::jsonb, nullif($9, ''), p_tenant => coalesce($1, ''), p_before => nullif($10, '')::jsonb)",
        back: ("/call", &["tenant", "effect_key"]),
    },
    Act {
        name: "cancel-import",
        role: Role::Operator,
        confirm: "",
        fields: &["tenant", "job", "number"],
        needs: &["job"],
        call: "pgonce.import_cancel($2, coalesce($1, ''))",
        back: ("/import", &["tenant", "job", "number"]),
    },
    Act {
        name: "bulk",
        role: Role::Operator,
        confirm: "",
        fields: &[
            "op", "tenant", "scope", "key", "failure", "code", "reason", "confirm",
        ],
        needs: &["op", "scope", "reason", "confirm"],
        call: "",
        back: ("/operations", &[]),
    },
    Act {
        name: "cancel-bulk",
        role: Role::Operator,
        confirm: "",
        fields: &["id"],
        needs: &["id"],
        call: "",
        back: ("/operations", &[]),
    },
    Act {
        name: "purge",
        role: Role::Admin,
        confirm: "",
        fields: &[],
        needs: &[],
        call: "pgonce.purge(10000, p_reason => 'console')",
        back: ("/", &[]),
    },
];
