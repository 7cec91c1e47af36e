-- The commit guard: before a transaction commits, every atomic claim that it made in a scope with a guard must have its
-- outcome, recorded in this transaction. An early return would otherwise commit an effect that nobody remembers, and the
-- next attempt would make it again.
-- writes   deletes the row of pgonce.open_claim that fired it
-- raises   P4013 the claim has no outcome
-- note     a record counts where this transaction wrote it, a subtransaction included: a row that is to be seen and whose
--          writer is in progress. One that another attempt has committed meanwhile is not ours
create or replace function pgonce._assert_claim_settled()
returns trigger
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := coalesce(current_setting('pgonce.tenant', true), '');
    v_own    bigint := pg_current_xact_id()::text::bigint;
    v_after  bigint;
begin
    -- A session that acts for one tenant after another may have gone on to the next one.
    if v_tenant <> new.tenant collate "C" then
        perform set_config('pgonce.tenant', new.tenant, true);
    end if;
    delete from pgonce.open_claim o
     where o.tenant = new.tenant collate "C" and o.scope = new.scope collate "C" and o.key = new.key collate "C";
    -- By how much the writer's id is after ours: xmin has the lower half of it only.
    select (i.xmin::text::bigint - v_own) & 4294967295 into v_after from pgonce.intent i
     where i.tenant = new.tenant collate "C" and i.scope = new.scope collate "C" and i.key = new.key collate "C"
       and i.status <> 'processing';
    if v_tenant <> new.tenant collate "C" then
        perform set_config('pgonce.tenant', v_tenant, true);
    end if;
    if v_after is null or v_after >= 2147483648
       or pg_xact_status((v_own + v_after)::text::xid8) is distinct from 'in progress' collate "C" then
        raise exception 'the transaction has an open claim without an outcome and cannot be committed' using errcode = 'P4013',
            detail = format('scope %s, SHA-256 of the key %s.', new.scope, encode(sha256(convert_to(new.key, 'UTF8')), 'hex')),
            hint = 'Call pgonce.succeed before the commit, on every way out; or roll back and claim again. '
                'A claim in autocommit is a transaction of its own: begin one around claim, work and success.';
    end if;
    return null;
end
$$;
-- A constraint trigger cannot be replaced, and its function is found by its name.
do $$ begin
    if not exists (select from pg_catalog.pg_trigger t where t.tgrelid = 'pgonce.open_claim'::pg_catalog.regclass
                   and t.tgname = 'every_claim_is_settled') then
        create constraint trigger every_claim_is_settled after insert on pgonce.open_claim
            deferrable initially deferred for each row execute function pgonce._assert_claim_settled();
    end if;
end $$;
