-- pgonce.release(p_scope, p_key, p_fence, p_tenant, p_forget): gives a lease back; the work was not done.
-- answers  nothing
-- locks    the intent's row
-- writes   the row under this fence: failed_retryable with code 'released', so the next claim gets it, as a takeover where an
--          earlier holder vanished. With
--          p_forget the row of a first attempt is deleted: the key is free, also for another request
-- raises   P4012 this fence does not hold the intent any more
-- example  select fence from pgonce.claim('mail.send', 'mail-12', '\x5e88', '30 seconds') \gset
--          select pgonce.release('mail.send', 'mail-12', :fence);
drop function if exists pgonce.release(text, text, bigint, text);
create or replace function pgonce.release(p_scope text, p_key text, p_fence bigint, p_tenant text default '',
    p_forget boolean default false)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz;
begin
    perform pgonce.guard(p_scope, p_key, p_fence, p_tenant);
    if p_forget then
        delete from pgonce.intent i
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C"
           and i.attempts = 1;
        if found then
            return;
        end if;
    end if;
    v_now := pgonce.now();
    update pgonce.intent i
       set status = 'failed_retryable', lease_until = null, last_at = v_now,
           failure_code = 'released', failure_message = 'the holder gave the lease back'
     where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
end
$$;
