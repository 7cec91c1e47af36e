-- The shop's own table. pgonce keeps its records and the outbox in a schema of its own.
create table if not exists orders (
    id     bigint generated always as identity primary key,
    item   text not null,
    status text not null default 'placed'
);
