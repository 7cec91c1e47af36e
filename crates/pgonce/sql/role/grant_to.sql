-- pgonce.grant_to(p_role): lets a role use pgonce: claim, settle, define scopes, purge, watch. Owner only.
-- answers  nothing
-- locks    the catalogue rows of what it grants; callers take turns
-- writes   grants: the schema, its types and sequences, its functions but the owner's own, its views to read,
--          its tables as far as the functions touch them with the caller's rights
-- raises   22023 no role given; 42704 there is no such role
-- note     calling it again changes nothing; `migrate up` calls it again for every role that was granted
--          access, so that new tables and functions are covered
-- example  create role pgonce_example;
--          select pgonce.grant_to('pgonce_example');
create or replace function pgonce.grant_to(p_role name)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    -- What changes pgonce itself, for everyone, stays with the owner.
    c_owners_own constant text[] := array['grant_to', 'set_strict', '_set_clock', '_move_clock', '_reset_clock',
        '_set_wal_publication', 'intervene'];
    v_schema     pg_catalog.pg_namespace;
    v_what       text;
begin
    if p_role is null then
        raise exception 'pgonce.grant_to needs a role' using errcode = '22023',
            hint = 'Name the role that the application logs in as.';
    elsif not exists (select from pg_catalog.pg_roles r where r.rolname = p_role) then
        raise exception 'there is no role "%"', p_role using errcode = '42704',
            hint = format('Create it first: create role %I login.', p_role);
    end if;

    select n.* into strict v_schema from pg_catalog.pg_namespace n
      join pg_catalog.pg_class c on c.relnamespace = n.oid
     where c.oid = 'pgonce.intent'::regclass;
    -- One at a time, and none beside a migration: PostgreSQL fails where two change one object's rights.
    perform pg_advisory_xact_lock(20260102, hashtext(v_schema.nspname::text));
    execute format('grant usage on schema %I to %I', v_schema.nspname, p_role);
    for v_what in
        select 'execute on function ' || p.oid::regprocedure from pg_catalog.pg_proc p
         where p.pronamespace = v_schema.oid and p.prokind = 'f' and p.proname <> all (c_owners_own)
        union all
        select 'usage on type ' || t.oid::regtype from pg_catalog.pg_type t
          left join pg_catalog.pg_class c on c.oid = t.typrelid
         where t.typnamespace = v_schema.oid and (t.typtype in ('e', 'd') or c.relkind = 'c')
        union all
        select case c.relkind when 'v' then 'select on ' else 'usage on sequence ' end || c.oid::regclass
          from pg_catalog.pg_class c where c.relnamespace = v_schema.oid and c.relkind in ('v', 'S')
        union all values
            ('select, insert, update, delete on pgonce.intent'),
            ('select, insert, update, delete on pgonce.scope'),
            ('select on pgonce.installation'),
            ('select, insert, update on pgonce.suppressed'),
            ('select, insert, update on pgonce.sweep'),
            ('select, insert on pgonce.outbox'),
            ('select, insert, update, delete on pgonce.outbox_subscription'),
            ('select, insert, update, delete on pgonce.outbox_cursor'),
            ('select, insert, update, delete on pgonce.outbox_relay'),
            ('select, insert, delete on pgonce.outbox_watermark'),
            ('select, update on pgonce.outbox_state'),
            ('select on pgonce.outbox_partition'),
            ('select, insert, update, delete on pgonce.parked'),
            ('select, insert, delete on pgonce.outbox_skipped'),
            ('select, insert, update on pgonce.inbox_contract'),
            ('select, insert on pgonce.inbox_marker'),
            ('select, insert, update on pgonce.inbox_cursor'),
            ('select, insert, update on pgonce.inbox_message'),
            ('select, insert on pgonce.inbox_audit'),
            ('select, insert, update on pgonce.projection'),
            ('select, insert, update, delete on pgonce.projection_gate'),
            ('select, insert, update, delete on pgonce.projection_build'),
            ('select, insert, update, delete on pgonce.projection_build_gate'),
            ('select on pgonce.ledger_entry'),
            ('select on pgonce.ledger_audit'),
            ('select, insert, update on pgonce.transition_rule'),
            ('select, insert, update on pgonce.transition_entity'),
            ('select, insert on pgonce.transition_command'),
            ('select, insert, update on pgonce.transition_timer'),
            ('select on pgonce.migration'),
            ('select on pgonce.routines')
    loop
        execute format('grant %s to %I', v_what, p_role);
    end loop;
end
$$;
revoke execute on function pgonce.grant_to(name) from public;
