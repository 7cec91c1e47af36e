-- pgonce._define_projection(..., p_table, p_function): pgonce.define_projection, once the names are found.
-- writes   as pgonce.define_projection
-- raises   as pgonce.define_projection
create or replace function pgonce._define_projection(p_projection text, p_into text, p_apply text, p_gate text,
    p_topics text[], p_from_consumer text, p_tenant text, p_table oid, p_function oid)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_before jsonb := (select to_jsonb(p) from pgonce.projection p
        where p.tenant = p_tenant collate "C" and p.projection = p_projection collate "C");
begin
    if p_table is null then
        raise exception 'there is no table %', quote_nullable(p_into) using errcode = '42P01',
            hint = 'Name it with its schema, such as ''public.balance''.';
    elsif p_function is null then
        raise exception 'there is no function %(regclass, pgonce.projected)', coalesce(p_apply, 'null') using errcode = '42883',
            hint = 'Name it with its schema, such as ''public.apply_balance''; it gets the table to write to and the event.';
    elsif not exists (select from pg_catalog.pg_index i where i.indrelid = p_table and i.indisprimary) then
        raise exception 'table % has no primary key', p_into using errcode = '42P10',
            hint = 'A projection is compared and replaced row by row: give it one.';
    elsif v_before is not null and not pg_has_role(session_user, current_user, 'member') and exists (
        select from (select c.relowner as owner from pg_catalog.pg_class c where c.oid = p_table
                     union all select f.proowner from pg_catalog.pg_proc f where f.oid = p_function) n
         where not pg_has_role(n.owner, current_user, 'member') and n.owner not in (
            select c.relowner from pg_catalog.pg_class c join pg_catalog.pg_namespace s on s.oid = c.relnamespace
             where format('%I.%I', s.nspname, c.relname) collate "C" = v_before ->> 'into_table'
            union all
            select f.proowner from pg_catalog.pg_proc f join pg_catalog.pg_namespace s on s.oid = f.pronamespace
             where format('%I.%I', s.nspname, f.proname) collate "C" = v_before ->> 'apply'
               and f.proargtypes[0] = 'regclass'::regtype and f.proargtypes[1] = 'pgonce.projected'::regtype)) then
        -- Consumers that name it would run the code of somebody whom they did not choose.
        raise exception 'projection "%" has a table and a function of other owners', p_projection using errcode = '42501',
            detail = 'Consumers run the function, and what hangs on the table, with their own rights.',
            hint = 'Keep to the owners that its table and function have, or let the owner of pgonce define it.';
    end if;
    insert into pgonce.projection as p (tenant, projection, into_table, apply, gate, from_consumer, topics, begins_after, defined_at)
    values (p_tenant, p_projection, (select format('%I.%I', n.nspname, c.relname) from pg_catalog.pg_class c
            join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = p_table),
        (select format('%I.%I', n.nspname, f.proname) from pg_catalog.pg_proc f
            join pg_catalog.pg_namespace n on n.oid = f.pronamespace where f.oid = p_function),
        p_gate, p_from_consumer, pgonce._like_patterns(p_topics),
        pgonce._projection_gone(p_from_consumer), pgonce.now())
    on conflict on constraint one_row_per_projection do update
        set into_table = excluded.into_table, apply = excluded.apply, gate = excluded.gate,
            from_consumer = excluded.from_consumer, topics = excluded.topics, defined_at = excluded.defined_at,
            begins_after = case when p.from_consumer is distinct from excluded.from_consumer then excluded.begins_after
                else p.begins_after end;
    perform pgonce._audit_rules('projection ' || p_projection, v_before, (select to_jsonb(p) from pgonce.projection p
        where p.tenant = p_tenant collate "C" and p.projection = p_projection collate "C"), p_tenant => p_tenant);
    if p_gate collate "C" = 'marker' then
        -- A replay may come at any time: what was applied is known for ever.
        perform pgonce.define_inbox('projection:' || p_projection, null);
    end if;
end
$$;
