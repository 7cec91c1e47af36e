-- pgonce.succeed(p_scope, p_key, p_fingerprint, p_fence, p_answer, p_ref_type, p_ref_id, p_tenant, ...):
--          records that the work is done, with its answer.
-- answers  nothing
-- locks    the intent's row
-- writes   atomic mode: the finished row, inserted once. Leased mode: the row of this fence. Exactly one row,
--          or it raises
-- raises   2D000 an atomic claim was made in another transaction; P4010 nothing to record it on, or another
--          attempt finished first; P4012 a newer attempt holds the intent, or its lease ran out and may not
--          be used any more; P4002 it belongs to another request; P4040 the answer is
--          too large; P4044 the tenant has too many keys; P4000 P4001 P4003 22023 bad input, and an atomic
--          success whose p_ref_id or p_correlation has more than 1000 bytes: those of a lease are left out, with a warning, since its
--          work is done
-- note     p_keep keeps this answer for longer or shorter than the contract's retention
-- example  select fence from pgonce.claim('mail.send', 'mail-8', '\x5e88', '30 seconds') \gset
--          -- the work happens here, outside of any transaction
--          select pgonce.succeed('mail.send', 'mail-8', '\x5e88', :fence, '{"sent": true}');
create or replace function pgonce.succeed(
    p_scope text, p_key text, p_fingerprint bytea, p_fence bigint, p_answer jsonb default null,
    p_ref_type text default null, p_ref_id text default null, p_tenant text default '',
    p_correlation text default null, p_owner text default null, p_keep interval default null
)
returns void
language plpgsql volatile
as $$
begin
    if p_keep is null and (p_ref_id is null or pg_catalog.octet_length(p_ref_id) operator(pg_catalog.<=) 1000)
       and pgonce._is_first(p_fence) and pgonce._is_marked(p_tenant, p_scope, p_key, p_fingerprint)
       and pgonce._force_durable_commit() then
        insert into pgonce.intent
        select r.* from pgonce.scope s, pgonce._success_row_with_retention(p_scope, p_key, p_fingerprint, p_answer,
            p_ref_type, p_ref_id, p_tenant, p_correlation, p_owner, s.retention) r
         where s.tenant operator(pg_catalog.=) p_tenant collate "C" and s.scope operator(pg_catalog.=) p_scope collate "C"
           and s.storage operator(pg_catalog.=) 'answer' and s.max_keys is null
           and coalesce(pg_catalog.octet_length(p_answer::pg_catalog.text), 0) operator(pg_catalog.<=) s.max_answer
        on conflict do nothing;
        if found then
            return;
        end if;
        -- The contract of scopes that nobody defined.
        insert into pgonce.intent
        select r.* from pgonce.scope s, pgonce._success_row_with_retention(p_scope, p_key, p_fingerprint, p_answer,
            p_ref_type, p_ref_id, p_tenant, p_correlation, p_owner, s.retention) r
         where s.tenant operator(pg_catalog.=) '' collate "C" and s.scope operator(pg_catalog.=) '*' collate "C"
           and s.storage operator(pg_catalog.=) 'answer' and s.max_keys is null
           and coalesce(pg_catalog.octet_length(p_answer::pg_catalog.text), 0) operator(pg_catalog.<=) s.max_answer
           and not exists (select from pgonce.scope o where o.tenant operator(pg_catalog.=) p_tenant collate "C"
               and o.scope operator(pg_catalog.=) p_scope collate "C")
           and not exists (select from pgonce.scope o where o.tenant operator(pg_catalog.=) '' collate "C"
               and o.scope operator(pg_catalog.=) p_scope collate "C")
        on conflict do nothing;
        if found then
            return;
        end if;
    elsif p_keep is null and pgonce._is_lease(p_fence) and pgonce._succeed_lease(p_scope, p_key, p_fingerprint, p_fence,
        p_answer, p_ref_type, p_ref_id, p_tenant, p_correlation, p_owner) then
        return;
    end if;
    perform pgonce._succeed_full(p_scope, p_key, p_fingerprint, p_fence, p_answer, p_ref_type, p_ref_id, p_tenant,
        p_correlation, p_owner, p_keep);
end
$$;
