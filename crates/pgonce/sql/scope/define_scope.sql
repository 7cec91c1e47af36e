-- pgonce.define_scope(p_scope, p_retention, ...): creates the contract of a scope, or replaces it.
-- answers  the contract now in force
-- locks    the contract's row
-- writes   one row of pgonce.scope; where it changes, one of pgonce.operator_act; records that exist keep the expiry they were given. The first contract of a scope
--          with a commit guard: the body of pgonce._guarded_scopes
-- raises   P4000 scope missing; 22023 a field that breaks a rule of contracts, named in the detail, or scope "*" in strict mode
-- note     p_probe, "schema.function", looks for the effect of work whose holder vanished, before anything else is decided about it:
--          f(scope text, key text, tenant text) returns table (answer jsonb, ref_type text, ref_id text), security definer with
--          its own search_path. A row: it happened; no row: it did not; an error: not known. With p_retry_queue recovery enqueues a
--          job for what is safe to retry, up to p_max_attempts attempts
-- note     with p_tenant the contract is for that tenant only. The contract of scope "*", for scopes without
--          one of their own, is for all tenants
-- example  select pgonce.define_scope('orders.create', '7 days', p_busy => 'wait', p_client_retry => '1 day');
create or replace function pgonce.define_scope(
    p_scope          text,
    p_retention      interval,
    p_lease          interval default interval '30 seconds',
    p_busy           text default 'reject',
    p_wait_timeout   interval default interval '5 seconds',
    p_storage        text default 'answer',
    p_after_expiry   text default 'rerun',
    p_tombstone_for  interval default null,
    p_stale          text default 'takeover',
    p_key_source     text default 'client',
    p_boundary       text default 'database',
    p_client_retry   interval default interval '0',
    p_redelivery     interval default interval '0',
    p_reconciliation interval default interval '0',
    p_audit          interval default interval '0',
    p_max_answer     integer default 1048576,
    p_max_keys       bigint default null,
    p_commit_guard   boolean default false,
    p_probe          text default null,
    p_retry_queue    text default null,
    p_max_attempts   integer default 10,
    p_keep_attempts  integer default 20,
    p_note           text default null,
    p_tenant         text default ''
)
returns pgonce.scope
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_contract pgonce.scope;
    v_before   jsonb;
    v_rule     text collate "C";
    v_message  text;
    v_now      timestamptz := pgonce.now();
begin
    if coalesce(p_scope, '') collate "C" = '' then
        raise exception 'the scope is missing' using errcode = 'P4000',
            hint = 'Name a bounded kind of command, such as ''orders.create''.';
    elsif p_tenant is null or p_tenant collate "C" <> '' and p_scope collate "C" = '*' or p_scope collate "C" = '*off' then
        raise exception 'a contract for scope "%" and tenant % would never be used', p_scope, coalesce(quote_literal(p_tenant), 'null')
            using errcode = '22023',
            hint = 'Leave the tenant out, or pass the empty text, for all tenants; a tenant has contracts for its own scopes only.';
    end if;
    if p_scope collate "C" = '*' then
        -- Locked, so that it is not put aside meanwhile.
        perform from pgonce.scope s where s.tenant = '' and s.scope in ('*', '*off') order by s.scope for update;
        if exists (select from pgonce.scope s where s.tenant = '' and s.scope = '*off') then
            raise exception 'in strict mode there is no contract for scopes that nobody defined' using errcode = '22023',
                hint = 'Turn it off first: select pgonce.set_strict(false), or `pgonce strict off`.';
        end if;
    end if;
    if p_commit_guard then
        perform pgonce._guard_scopes(array[p_scope]);
    end if;
    select to_jsonb(s) into v_before from pgonce.scope s where s.tenant = p_tenant collate "C" and s.scope = p_scope collate "C";
    insert into pgonce.scope as s (tenant, scope, retention, lease, busy, wait_timeout, storage,
        after_expiry, tombstone_for, stale, key_source, boundary, client_retry, redelivery,
        reconciliation, audit, max_answer, max_keys, commit_guard, probe, retry_queue,
        max_attempts, keep_attempts, note, defined_at)
    values (p_tenant, p_scope, pgonce._fixed_length(p_retention), pgonce._fixed_length(p_lease), p_busy, pgonce._fixed_length(p_wait_timeout),
        p_storage, p_after_expiry, pgonce._fixed_length(p_tombstone_for), p_stale, p_key_source, p_boundary,
        pgonce._fixed_length(p_client_retry), pgonce._fixed_length(p_redelivery), pgonce._fixed_length(p_reconciliation), pgonce._fixed_length(p_audit),
        p_max_answer, p_max_keys, p_commit_guard, pgonce._probe_name(p_probe), p_retry_queue, p_max_attempts, p_keep_attempts, p_note, v_now)
    on conflict (tenant, scope) do update
       set retention = excluded.retention, lease = excluded.lease, busy = excluded.busy,
           wait_timeout = excluded.wait_timeout, storage = excluded.storage,
           after_expiry = excluded.after_expiry, tombstone_for = excluded.tombstone_for,
           stale = excluded.stale, key_source = excluded.key_source, boundary = excluded.boundary,
           client_retry = excluded.client_retry, redelivery = excluded.redelivery,
           reconciliation = excluded.reconciliation, audit = excluded.audit,
           max_answer = excluded.max_answer, max_keys = excluded.max_keys, commit_guard = excluded.commit_guard,
           probe = excluded.probe,
           retry_queue = excluded.retry_queue, max_attempts = excluded.max_attempts, keep_attempts = excluded.keep_attempts,
           note = excluded.note, defined_at = excluded.defined_at
    returning s.* into v_contract;
    perform pgonce._audit_rules('scope ' || p_scope, v_before, to_jsonb(v_contract), p_tenant => p_tenant);
    return v_contract;
exception
    when check_violation or not_null_violation then
        -- The constraints are the rules; here they only get words that an operator can act on.
        get stacked diagnostics v_rule = constraint_name, v_message = message_text;
        raise exception 'the contract of scope "%" breaks a rule: %', p_scope,
            coalesce(nullif(replace(v_rule, '_', ' '), ''), v_message)
            using errcode = '22023',
            detail = format('retention %s; client_retry %s, redelivery %s, reconciliation %s, audit %s; '
                'lease %s, busy %s, wait_timeout %s, storage %s, after_expiry %s, tombstone_for %s, '
                'stale %s, key_source %s, boundary %s, max_answer %s, max_keys %s, commit_guard %s, '
                'retry_queue %s, max_attempts %s, keep_attempts %s',
                p_retention, p_client_retry, p_redelivery, p_reconciliation, p_audit, p_lease, p_busy,
                p_wait_timeout, p_storage, p_after_expiry, p_tombstone_for, p_stale, p_key_source, p_boundary, p_max_answer, p_max_keys,
                p_commit_guard, p_retry_queue, p_max_attempts, p_keep_attempts),
            hint = 'busy: reject, wait, accept. storage: answer, reference, status, error. '
                'after_expiry: rerun, gone. stale: takeover, hold, refuse. key_source: client, derived, '
                'message, file. boundary: database, external, messages. Retention is at least every '
                'horizon; intervals and limits are positive.';
end
$$;
