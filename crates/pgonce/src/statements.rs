//! The calls to the SQL core, written for the schema it is installed in.

use std::sync::Arc;

use crate::driver::Statement;
use crate::error::ErrorDetail;
use crate::{Error, Result};

/// The schema pgonce lives in unless told otherwise.
pub const DEFAULT_SCHEMA: &str = "pgonce";

/// Checks the name of a schema: small letters, digits and underscores, so that it needs no quotes
/// anywhere and can stand in every function's body.
pub(crate) fn schema_name(name: &str) -> Result<&str> {
    let ok = !name.is_empty()
        && name.len() <= 63
        && !name.starts_with("pg_")
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if ok {
        Ok(name)
    } else {
        Err(Error::Invalid(ErrorDetail::new(
            "22023",
            format!("{name:?} cannot be the name of pgonce's schema"),
            "Use at most 63 small letters, digits and underscores, beginning with a letter and not with pg_.",
        )))
    }
}

/// An event's columns, as the drivers can read them.
const EVENT: &str =
    "lane, cursor, seq, act, message_id, tenant, topic, type, subject, headers, payload, ";
/// Its time, where columns come in the binary format; and where they come as text.
const TIME: &str = "created_at";
const TIME_TEXT: &str =
    "to_char(created_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";

#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) schema: String,
    pub(crate) glance: Statement,
    pub(crate) hold: Statement,
    pub(crate) claim: Statement,
    pub(crate) answer_of: Statement,
    /// Looks the contract up, and says how long successes are kept if it is plain.
    pub(crate) insert_success: Statement,
    pub(crate) insert_kept: Statement,
    pub(crate) succeed: Statement,
    pub(crate) succeed_lease: Statement,
    pub(crate) fail: Statement,
    pub(crate) heartbeat: Statement,
    pub(crate) guard: Statement,
    pub(crate) release: Statement,
    pub(crate) wait: Statement,
    pub(crate) contract: Statement,
    pub(crate) _count_suppressed: Statement,
    pub(crate) try_lock: Statement,
    pub(crate) lock: Statement,
    pub(crate) purge: Statement,
    /// For a commit without a last word.
    pub(crate) nothing: Statement,
    pub(crate) insert_or_fetch: Statement,
    pub(crate) publish: Statement,
    pub(crate) publish_as: Statement,
    pub(crate) claim_lanes: Statement,
    pub(crate) has_new_events: Statement,
    pub(crate) read_lanes: Statement,
    pub(crate) due_parked: Statement,
    pub(crate) settle_lane: Statement,
    pub(crate) advance_lanes: Statement,
    pub(crate) leave_lanes: Statement,
    pub(crate) _create_outbox_partitions: Statement,
    pub(crate) _drop_outbox_partitions: Statement,
    /// For a commit that must survive a crash.
    pub(crate) durably: Statement,
    /// Opens a consumer's batch; what ends it insists on that.
    pub(crate) begin_batch: String,
    pub(crate) end_batch: Statement,
    pub(crate) accept: Statement,
    pub(crate) accept_batch: Statement,
    pub(crate) mark: Statement,
    pub(crate) _blocked_keys: Statement,
    pub(crate) store_message: Statement,
    pub(crate) claim_messages: Statement,
    pub(crate) finish_messages: Statement,
    pub(crate) fail_message: Statement,
    pub(crate) release_messages: Statement,
    pub(crate) take_partition: Statement,
    pub(crate) move_partition: Statement,
    pub(crate) leave_partition: Statement,
    pub(crate) advance_projection: Statement,
    pub(crate) project: Statement,
}

impl Statements {
    pub(crate) fn new(schema: &str, keep: bool) -> Result<Arc<Self>> {
        let schema = schema_name(schema)?.to_owned();
        let make = |sql: &str| Statement {
            sql: sql.replace("pgonce.", &format!("{schema}.")).into(),
            keep,
        };
        let time = if keep { TIME } else { TIME_TEXT };
        Ok(Arc::new(Self {
            glance: make("select * from pgonce._claim_fast($1, $2, $3, $4)"),
            hold: make(
                "select case when holds then 'fresh' end from pgonce._claim_optimistic($1, $2, $3, $4)",
            ),
            claim: make(
                "select outcome, fence, answer, ref_type, ref_id, attempts, failure_code, failure_message, \
                 ceil(extract(epoch from retry_after) * 1000)::bigint \
                 from pgonce.claim($1, $2, $3, $4::text::interval, $5, $6, $7)",
            ),
            answer_of: make("select * from pgonce.answer_of($1, $2, $3, $4)"),
            insert_success: make(
                "insert into pgonce.intent select * from \
                 pgonce._success_row($1, $2, $3, $4, $5, $6, $7, $8, $9) where pgonce._assert_same_transaction() \
                 returning pgonce._simple_retention($7, $1)",
            ),
            insert_kept: make(
                "insert into pgonce.intent select * from \
                 pgonce._success_row_with_retention($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::interval) \
                 where pgonce._assert_same_transaction()",
            ),
            succeed: make(
                "select 'done' from pgonce.succeed($1, $2, $3, $4::text::bigint, $5, $6, $7, $8, $9, $10, $11::text::interval) \
                 where pgonce._assert_same_transaction()",
            ),
            succeed_lease: make(
                "select 'done' from pgonce.succeed($1, $2, $3, $4::text::bigint, $5, $6, $7, $8, $9, $10, \
                 $11::text::interval)",
            ),
            fail: make(
                "select 'done' from pgonce.fail($1, $2, $3, $4::text::bigint, $5::text::boolean, $6, $7, \
                 $8, $9, $10, $11, $12::text::interval)",
            ),
            heartbeat: make(
                "select 'done' from pgonce.heartbeat($1, $2, $3::text::bigint, $4::text::interval, $5)",
            ),
            guard: make("select 'done' from pgonce.guard($1, $2, $3::text::bigint, $4)"),
            release: make("select 'done' from pgonce.release($1, $2, $3::text::bigint, $4)"),
            wait: make("select w::text from pgonce.wait($1, $2, $3::text::interval, $4) w"),
            contract: make(
                "select busy, ceil(extract(epoch from wait_timeout) * 1000)::bigint::text, \
                 ceil(extract(epoch from lease) * 1000)::bigint::text, \
                 floor(extract(epoch from pgonce._retention_for(c, null)) * 1000)::bigint::text \
                 from pgonce._contract($1, $2) c",
            ),
            _count_suppressed: make(
                "select 'done' from pgonce._count_suppressed($1, $2::text::bigint, $3::text::bigint, \
                 $4::text::bigint, $5::text::bigint, $6)",
            ),
            try_lock: make("select held::text from pgonce.try_lock($1, $2) held"),
            lock: make("select held::text from pgonce.lock($1, $2::text::interval, $3) held"),
            insert_or_fetch: make(
                "select made_now::text, stored::text from pgonce.insert_or_fetch($1::text::regclass, $2::text::jsonb)",
            ),
            // The event was checked; the usual one has no id and no time of its own.
            publish: make(
                "insert into pgonce.outbox select * from pgonce._event_row($1, $2, $3, $4, null, $5, null, $6, \
                 coalesce(pg_column_size($4::jsonb), 0) + pg_column_size($5::jsonb)) returning message_id",
            ),
            publish_as: make(
                "insert into pgonce.outbox select * from pgonce._event_row($1, $2, $3, $4, $7::text::uuid, $5, \
                 to_timestamp($8::text::double precision), $6, \
                 coalesce(pg_column_size($4::jsonb), 0) + pg_column_size($5::jsonb)) returning message_id",
            ),
            claim_lanes: make(
                "select lane::integer, epoch, cursor, surplus::text \
                 from pgonce._claim_lanes($1, $2, $3::text::interval)",
            ),
            has_new_events: make("select pgonce._has_new_events($1::text::text[])::text"),
            read_lanes: make(&format!(
                "select {EVENT}{time} from pgonce._read_lanes($1, $2, $3::text::integer, $4::text::integer)"
            )),
            due_parked: make(&format!(
                "select {EVENT}{time} from pgonce._due_parked($1, $2, $3::text::integer, $4::text::integer)"
            )),
            settle_lane: make(
                "select pgonce._settle_lane($1, $2::text::integer, $3::text::bigint, $4, $5)",
            ),
            advance_lanes: make(
                "select l::integer from pgonce._advance_lanes($1, $2, $3::text::boolean) l",
            ),
            leave_lanes: make("select pgonce._release_lanes($1, $2)"),
            _create_outbox_partitions: make("select pgonce._create_outbox_partitions()"),
            _drop_outbox_partitions: make("select pgonce._drop_outbox_partitions()"),
            nothing: make("select 'done'"),
            durably: make("select 'done' where pgonce._force_durable_commit()"),
            begin_batch: format!(
                "begin isolation level read committed read write; set local \"{schema}\".batch = 'open'"
            ),
            end_batch: make(
                "select 'done' where pgonce._assert_same_batch() and pgonce._force_durable_commit()",
            ),
            accept: make("select pgonce.accept($1, $2, $3, $4, $5)::text"),
            accept_batch: make(
                "select pgonce.accept_batch($1, $2, $3::text::text[], $4::text::bytea[], $5)",
            ),
            mark: make(
                "select ordinal, verdict from pgonce._insert_markers($1, $2, $3::text::text[], $4::text::bytea[], $5)",
            ),
            _blocked_keys: make("select pgonce._blocked_keys($1, $2::text::text[], $3)"),
            store_message: make(
                "select pgonce.store_message($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::bigint, $13)",
            ),
            claim_messages: make(
                "select tenant, seq, fence, attempts, source, message_id, key, type, headers, encode(payload, 'hex') \
                 from pgonce.claim_messages($1, $2, $3::text::interval, $4::text::integer)",
            ),
            finish_messages: make(
                "select pgonce.finish_messages($1, $2) where pgonce._assert_same_batch()",
            ),
            fail_message: make(
                "select pgonce.fail_message($1, $2::text::bigint, $3::text::bigint, $4::text::boolean, $5, $6, $7)",
            ),
            release_messages: make("select pgonce.release_messages($1, $2)"),
            take_partition: make(
                "select epoch, \"position\", minor from pgonce._lease_partition($1, $2, $3, $4, $5::text::interval)",
            ),
            move_partition: make(
                "select 'done' from pgonce._advance_partition($1, $2, $3, $4::text::bigint, $5::text::bigint, $6::text::bigint, \
                 $7::text::bigint, $8::text::bigint, $9::text::interval) where pgonce._assert_same_batch()",
            ),
            leave_partition: make(
                "select pgonce._release_partition($1, $2, $3, $4::text::bigint)::text",
            ),
            advance_projection: make(
                "select pgonce.advance_projection($1, $2, $3::text::bigint, $4)::text",
            ),
            project: make("select pgonce.project($1, $2, $3, $4, $5, $6, $7)::text"),
            purge: make("select n::text from pgonce.purge($1::text::integer) n"),
            schema,
        }))
    }
}
