-- Removes views, triggers and functions before they are loaded again on Citus, in the same transaction: it distributes no
-- table that they depend on, and replaces none that others depend on. Those that policies depend on stay.
do $$
declare
    v_schema   oid := (select c.relnamespace from pg_class c where c.oid = 'pgonce.intent'::regclass);
    v_existing text;
begin
    select string_agg(c.oid::regclass::text, ', ') into v_existing from pg_class c where c.relnamespace = v_schema and c.relkind = 'v';
    if v_existing is not null then
        execute 'drop view ' || v_existing;
    end if;
    for v_existing in select format('drop trigger %I on %s', t.tgname, t.tgrelid::regclass) from pg_trigger t
        join pg_class c on c.oid = t.tgrelid where c.relnamespace = v_schema and not t.tgisinternal and not c.relispartition
    loop
        execute v_existing;
    end loop;
    select string_agg(p.oid::regprocedure::text, ', ') into v_existing from pg_proc p
     where p.pronamespace = v_schema and p.proname not in ('_tenant_is_allowed', 'now');
    if v_existing is not null then
        execute 'drop function ' || v_existing;
    end if;
end $$;
