-- 0008_reference: what other systems call things.
-- breaking: no

create table pgonce.external_reference (
    tenant    text collate "C" not null,
    system    text collate "C" not null,
    kind      text collate "C" not null,
    reference text collate "C" not null,
    id        text not null,
    at        timestamptz not null,
    constraint one_thing_per_reference primary key (tenant, system, kind, reference)
);
