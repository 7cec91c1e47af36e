-- pgonce.ledger_repair on Citus: not there.
-- raises   P4105, always
create or replace function pgonce.ledger_repair(p_reason text, p_tenant text default null)
returns table (tenant text, account text, shard smallint, repaired boolean)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'accounts are not repaired on Citus' using errcode = 'P4105',
        detail = 'What was done to an account by hand is not recorded there.',
        hint = 'pgonce.ledger_verify says what is wrong.';
end
$$;
