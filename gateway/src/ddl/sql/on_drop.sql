
-- Whether what is gone was published cannot be asked any more: it is told when it may have been.
DECLARE
    seen text := pg_current_snapshot()::text;
    tables oid[];
    indexes oid[];
    stripped oid[];
    spaces text[];
    publications boolean;
    shown oid[] := '{}';
    facts jsonb;
    dropped oid[];
BEGIN
    IF current_setting('wal_level') <> 'logical' THEN
        RETURN;
    END IF;
    SELECT array_agg(d.objid) FILTER (WHERE d.objsubid = 0 AND d.object_type = 'table'),
        -- ddl_command_end tells the indexes and columns that ALTER TABLE drops, together with those that it makes: a primary
        -- key that one command drops and adds is never gone. Columns that went with a type, only this tells.
        array_agg(d.objid) FILTER (WHERE d.objsubid = 0 AND d.object_type = 'index' AND tg_tag <> 'ALTER TABLE'),
        array_agg(DISTINCT d.objid) FILTER (WHERE d.objsubid > 0 AND tg_tag <> 'ALTER TABLE'),
        array_agg(DISTINCT d.schema_name) FILTER (WHERE d.objsubid = 0 AND d.object_type IN ('table', 'index')),
        bool_or(d.classid <> 'pg_class'::regclass)
    INTO tables, indexes, stripped, spaces, publications
    FROM pg_event_trigger_dropped_objects() d
    WHERE d.classid IN ('pg_publication'::regclass, 'pg_publication_rel'::regclass,
            'pg_publication_namespace'::regclass)
        OR d.classid = 'pg_class'::regclass AND NOT d.is_temporary
            AND d.schema_name NOT IN ('rindle', 'pg_toast', 'pg_catalog', 'information_schema');
    IF publications IS NULL THEN
        RETURN;
    END IF;
    IF stripped IS NOT NULL THEN
        shown := ARRAY(SELECT r.oid FROM rindle._reach(stripped, '{}') AS r(oid));
        shown := ARRAY(SELECT p.oid FROM rindle._published(shown, '{}') AS p(oid));
    END IF;
    dropped := coalesce(tables, '{}') || coalesce(indexes, '{}');
    IF cardinality(dropped) > 0 AND NOT publications AND NOT rindle._may_have_been_published(tables IS NOT NULL, spaces) THEN
        dropped := '{}';
    END IF;
    IF NOT publications AND cardinality(shown) = 0 AND cardinality(dropped) = 0 THEN
        RETURN;
    END IF;
    facts := rindle._facts(tg_tag, shown, seen);
    IF cardinality(dropped) > 0 THEN
        facts := facts || jsonb_build_object('dropped', (SELECT jsonb_agg(d.oid::int8 ORDER BY d.oid)
            FROM unnest(dropped) AS d(oid)));
    END IF;
    IF publications THEN
        facts := facts || rindle._all_publications();
    END IF;
    PERFORM rindle._append(facts);
END
