-- A schema with a twin of every public function that hands its texts on under a collation which finds `a` equal to `A`, as a
-- column of that collation would.
create collation loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false);
create schema loose;
do $$
declare
    v record;
begin
    for v in
        select p.proname, pg_get_function_arguments(p.oid) as arguments, pg_get_function_result(p.oid) as result,
               (select string_agg(case when p.provariadic <> 0 and a.n = p.pronargs then 'variadic ' else '' end
                   || a.name || case when t.typcollation <> 0 then ' collate public.loose' else '' end, ', ' order by a.n)
                  from unnest(p.proargnames[1 : p.pronargs], p.proargtypes::oid[]) with ordinality as a (name, type, n)
                  join pg_type t on t.oid = a.type) as call
          from pg_proc p where p.pronamespace = 'pgonce'::regnamespace and p.proname !~ '^_'
    loop
        execute format('create function loose.%I(%s) returns %s language sql as %L', v.proname, v.arguments, v.result,
            format('select * from pgonce.%I(%s)', v.proname, v.call));
    end loop;
end $$;

-- Names are compared where there is something to compare with: a row of everything that the examples look for.
select pgonce.define_scope('seed', '7 days'), pgonce.define_inbox('seed'), pgonce.create_subscription('seed');
begin;
select pgonce.claim('seed', 'seed', '\x01');
select pgonce.succeed('seed', 'seed', '\x01', 1, '1');
commit;
select pgonce.claim('seed', 'leased', '\x01', '1 hour');
select pgonce.publish('seed', 'seed', 'seed', '{}'), pgonce.accept('seed', 'seed', 'seed'), pgonce.store_message('seed', 'seed', '2', '\x00', p_key => 'k');
select pgonce._lease_partition('seed', 'seed', '0', 'seed', '1 hour');
select pgonce.ledger_open('seed', 'EUR', 'debit'), pgonce.ledger_open('seeds', 'EUR', 'debit');
select pgonce.ledger_post('seed', 'seed', '[{"account": "seed", "debit": 1}, {"account": "seeds", "credit": 1}]', p_fence => 1);
select pgonce.ledger_settle('seed', 'seed', 'posted', 1), pgonce.ledger_reverse('seed', 'undo', 'seed', 'seed');
select pgonce.define_transition('seed', '', 'open'), pgonce.transition('seed', '1', 'open', 'c'), pgonce.set_timer('seed', '1', 'sla', 'late', '1 hour');
