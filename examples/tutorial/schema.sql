create table if not exists orders (
    id   bigint generated always as identity primary key,
    item text not null,
    qty  integer not null
);
create table if not exists stock (
    item text primary key,
    qty  integer not null
);
insert into stock values ('book', 100) on conflict do nothing;
