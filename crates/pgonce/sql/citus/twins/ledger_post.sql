-- pgonce.ledger_post on Citus: as ledger/ledger_post.sql, delegated.
create or replace function pgonce.ledger_post(p_source text, p_operation text, p_entries jsonb, p_memo jsonb default null,
    p_fence bigint default null, p_tenant text default '')
returns table (made_now boolean, state text, recorded_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text collate "default" := coalesce(p_tenant, '');
    v_lines  record;
begin
    v_lines := pgonce._ledger_lines(p_entries);
    select r.made_now, r.state, r.recorded_at into made_now, state, recorded_at
      from pgonce._ledger_record(v_tenant, p_source collate "C", p_operation, v_lines.accounts, v_lines.amounts,
        v_lines.currencies, p_memo, p_fence, null, null) r;
    return next;
end
$$;
