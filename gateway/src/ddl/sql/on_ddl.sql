
-- Tells what a command may have changed of what is published. Works from what the command names, takes no lock and
-- reads no table of ours, so that it fails and waits nowhere that the command itself would not.
DECLARE
    -- The first that is looked at: what follows shows no less.
    seen text := pg_current_snapshot()::text;
    named oid[];
    altered oid[];
    created oid[];
    types oid[];
    retyped oid[];
    constraints oid[];
    schemas oid[];
    extensions oid[];
    publications oid[];
    everything boolean;
    added_relations oid[];
    added_schemas oid[];
    new_publications oid[];
    shown oid[] := '{}';
    facts jsonb;
BEGIN
    IF current_setting('wal_level') <> 'logical' THEN
        RETURN;
    END IF;
    SELECT array_agg(DISTINCT d.objid) FILTER (WHERE d.classid = 'pg_class'::regclass),
        array_agg(DISTINCT d.objid) FILTER (WHERE d.classid = 'pg_class'::regclass AND d.command_tag = 'ALTER TABLE'),
        array_agg(DISTINCT d.objid) FILTER (WHERE d.classid = 'pg_class'::regclass AND d.object_type = 'table'
            AND d.command_tag IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO')),
        array_agg(DISTINCT d.objid) FILTER (WHERE d.classid = 'pg_type'::regclass),
        array_agg(DISTINCT d.objid) FILTER (WHERE d.classid = 'pg_type'::regclass AND d.command_tag = 'ALTER TYPE'),
        array_agg(DISTINCT d.objid) FILTER (WHERE d.classid = 'pg_constraint'::regclass),
        array_agg(DISTINCT d.objid) FILTER (WHERE d.classid = 'pg_namespace'::regclass AND d.command_tag = 'ALTER SCHEMA'),
        array_agg(DISTINCT d.objid) FILTER (WHERE d.classid = 'pg_extension'::regclass
            AND d.command_tag = 'ALTER EXTENSION'),
        array_agg(DISTINCT d.objid) FILTER (WHERE d.classid = 'pg_publication'::regclass),
        array_agg(DISTINCT d.objid) FILTER (WHERE d.classid = 'pg_publication'::regclass
            AND d.command_tag = 'CREATE PUBLICATION'),
        array_agg(DISTINCT d.objid) FILTER (WHERE d.classid = 'pg_publication_rel'::regclass),
        array_agg(DISTINCT d.objid) FILTER (WHERE d.classid = 'pg_publication_namespace'::regclass),
        bool_or(d.classid = 'pg_publication'::regclass AND d.command_tag = 'COMMENT')
    INTO named, altered, created, types, retyped, constraints, schemas, extensions, publications, new_publications,
        added_relations, added_schemas, everything
    FROM pg_event_trigger_ddl_commands() d
    WHERE d.schema_name IS DISTINCT FROM 'pg_temp'
        AND (d.classid = 'pg_publication'::regclass OR d.command_tag NOT IN ('COMMENT', 'SECURITY LABEL'));
    IF everything THEN
        PERFORM rindle._append(rindle._everything(tg_tag));
        RETURN;
    END IF;
    named := coalesce(named, '{}');
    altered := coalesce(altered, '{}');
    types := coalesce(types, '{}');
    IF cardinality(named) > 0 THEN
        -- An index changes its table. Sequences and the like change nothing.
        named := ARRAY(SELECT c.oid FROM pg_class c WHERE c.oid = ANY(named) AND c.relkind IN ('r', 'p', 'c', 'v', 'm', 'f')
            UNION SELECT i.indrelid FROM pg_index i WHERE i.indexrelid = ANY(named));
    END IF;
    IF constraints IS NOT NULL THEN
        named := named || ARRAY(SELECT c.conrelid FROM pg_constraint c WHERE c.oid = ANY(constraints) AND c.conrelid <> 0);
    END IF;
    IF schemas IS NOT NULL OR extensions IS NOT NULL THEN
        -- Renamed with everything in it, or moved with all its members.
        named := named || ARRAY(SELECT c.oid FROM pg_class c
            WHERE c.relnamespace = ANY(schemas) AND c.relkind IN ('r', 'p', 'c', 'v', 'm', 'f')
            UNION SELECT d.objid FROM pg_depend d WHERE d.refclassid = 'pg_extension'::regclass
                AND d.refobjid = ANY(extensions) AND d.classid = 'pg_class'::regclass);
        types := types || ARRAY(SELECT t.oid FROM pg_type t WHERE t.typnamespace = ANY(schemas)
            UNION SELECT d.objid FROM pg_depend d WHERE d.refclassid = 'pg_extension'::regclass
                AND d.refobjid = ANY(extensions) AND d.classid = 'pg_type'::regclass);
    END IF;
    IF added_relations IS NOT NULL OR added_schemas IS NOT NULL OR new_publications IS NOT NULL THEN
        -- CREATE PUBLICATION names itself only.
        named := named || ARRAY(SELECT r.prrelid FROM pg_publication_rel r
            WHERE r.oid = ANY(added_relations) OR r.prpubid = ANY(new_publications)
            UNION SELECT c.oid FROM pg_class c WHERE c.relkind IN ('r', 'p')
                AND (EXISTS (SELECT FROM pg_publication p WHERE p.oid = ANY(new_publications) AND p.puballtables)
                    OR c.relnamespace IN (SELECT s.pnnspid FROM pg_publication_namespace s
                        WHERE s.oid = ANY(added_schemas) OR s.pnpubid = ANY(new_publications))));
    END IF;
    IF cardinality(named) + cardinality(types) > 0 THEN
        shown := rindle._concerned(named, types, altered, coalesce(created, '{}'));
    END IF;
    IF current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable')
        AND NOT EXISTS (SELECT FROM pg_publication) THEN
        schemas := NULL;
        retyped := NULL;
    END IF;
    IF cardinality(shown) = 0 AND publications IS NULL AND added_relations IS NULL AND added_schemas IS NULL
        AND schemas IS NULL AND retyped IS NULL THEN
        RETURN;
    END IF;
    facts := rindle._facts(tg_tag, shown, seen);
    -- A transaction that is not seen yet may publish a table in such a schema, or one with a column of such a type.
    IF schemas IS NOT NULL THEN
        facts := facts || jsonb_build_object('schemas', (SELECT jsonb_agg(jsonb_build_array(n.oid::int8, n.nspname)
            -- A snapshot of before shows what others replaced beside what replaced that: the last one is this transaction's.
            ORDER BY n.oid, age(n.xmin) DESC) FROM pg_namespace n WHERE n.oid = ANY(schemas)));
    END IF;
    IF retyped IS NOT NULL THEN
        facts := facts || jsonb_build_object('retyped', (SELECT jsonb_agg(t.oid::int8) FROM unnest(retyped) AS t(oid)));
    END IF;
    created := ARRAY(SELECT c.oid FROM unnest(created) AS c(oid) WHERE c.oid = ANY(shown) ORDER BY c.oid);
    IF cardinality(created) > 0 THEN
        facts := facts || jsonb_build_object('created', (SELECT jsonb_agg(c.oid::int8) FROM unnest(created) AS c(oid)));
    END IF;
    IF publications IS NOT NULL OR added_relations IS NOT NULL OR added_schemas IS NOT NULL THEN
        facts := facts || rindle._all_publications();
    END IF;
    PERFORM rindle._append(facts);
END
