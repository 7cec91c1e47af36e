"""The calls to the SQL functions of pgonce.

Everything travels as text or bytes, so that no library's own mapping of types can change it.
"""

from __future__ import annotations

from functools import lru_cache

CLAIM = (
    "select outcome, fence::text, answer::text, ref_type, ref_id, attempts::text, failure_code, failure_message, "
    "(extract(epoch from retry_after))::text "
    "from pgonce.claim(:scope::text, :key::text, :fingerprint::bytea, :lease::text::interval, :owner::text, "
    ":tenant::text, :correlation::text)"
)
# The claim of an intent without a record, or its answer; null where the full claim has to say.
LOOK = (
    "select outcome, fence::text, answer::text, ref_type, ref_id, attempts::text, null::text, null::text, null::text "
    "from pgonce._claim_fast(:scope::text, :key::text, :fingerprint::bytea, :tenant::text)"
)
# What follows the effect of a command of one statement. The claim comes first: its row asks for the effect.
EXECUTE = (
    ", claimed as materialized (select fence from pgonce.claim_first(:scope::text, :key::text, :fingerprint::bytea, "
    ":tenant::text)), answer as materialized (select c.fence, coalesce(case when c.fence is not null "
    "then (select pg_catalog.to_jsonb(e.*) from effect e) end, pgonce._raise_no_row()) as value from claimed c) "
    "select a.value::text from answer a, pgonce.succeed(:scope::text, :key::text, :fingerprint::bytea, a.fence, a.value, "
    "null, null, :tenant::text, :correlation::text, :owner::text)"
)
EFFECT = " select coalesce((select pg_catalog.to_jsonb(e.*) from effect e), pgonce._raise_no_row())::text"
SUCCEED = (
    "select 'done' from pgonce.succeed(:scope::text, :key::text, :fingerprint::bytea, :fence::text::bigint, "
    ":answer::text::jsonb, :ref_type::text, :ref_id::text, :tenant::text, :correlation::text, :owner::text, "
    ":keep::text::interval)"
)
SUCCEED_HERE = SUCCEED + " where pgonce._assert_same_transaction()"
FAIL = (
    "select 'done' from pgonce.fail(:scope::text, :key::text, :fingerprint::bytea, :fence::text::bigint, "
    ":retryable::text::boolean, :code::text, :message::text, :answer::text::jsonb, :tenant::text, "
    ":correlation::text, :owner::text, :keep::text::interval)"
)
HEARTBEAT = (
    "select 'done' from pgonce.heartbeat(:scope::text, :key::text, :fence::text::bigint, "
    ":lease::text::interval, :tenant::text)"
)
GUARD = "select 'done' from pgonce.guard(:scope::text, :key::text, :fence::text::bigint, :tenant::text)"
RELEASE = "select 'done' from pgonce.release(:scope::text, :key::text, :fence::text::bigint, :tenant::text)"
FORGET = RELEASE[:-1] + ", true)"
WAIT = "select pgonce.wait(:scope::text, :key::text, :timeout::text::interval, :tenant::text)::text"
CONTRACT = (
    "select busy::text, (extract(epoch from wait_timeout))::text, (extract(epoch from lease))::text, "
    "(extract(epoch from retention))::text from pgonce._contract(:tenant::text, :scope::text)"
)
PUBLISH = (
    "select pgonce.publish(:topic::text, :type::text, :subject::text, :payload::text::jsonb, "
    ":message_id::text::uuid, :headers::text::jsonb, :deliver_at::text::timestamptz, :tenant::text)::text"
)
ACCEPT = (
    "select pgonce.accept(:consumer::text, :source::text, :message_id::text, :hash::bytea, :tenant::text)::text"
)
# The lists travel as JSON: arrays are what libraries differ in most.
ACCEPT_BATCH = (
    "select pgonce.accept_batch(:consumer::text, :source::text, "
    "array(select i.value from jsonb_array_elements_text(:ids::text::jsonb) with ordinality i (value, n) "
    "order by i.n), "
    "array(select decode(h.value, 'hex') from jsonb_array_elements_text(:hashes::text::jsonb) "
    "with ordinality h (value, n) order by h.n), :tenant::text)"
)


@lru_cache(maxsize=256)
def in_schema(sql: str, schema: str) -> str:
    """A statement for the schema that pgonce is installed in."""
    return sql if schema == "pgonce" else sql.replace("pgonce.", f"{schema}.")
