
-- The gateway's own: what it saw and nobody announced. Relations as they are now, or that they are gone; their tables are
-- copied anew from this transaction on.
DECLARE
    seen text := pg_current_snapshot()::text;
    here oid[] := ARRAY(SELECT c.oid FROM pg_class c WHERE c.oid = ANY(relations));
    shown oid[] := ARRAY(SELECT c.oid FROM unnest(rindle._concerned(here, '{}', '{}', '{}')) AS c(oid)
        UNION SELECT h.oid FROM unnest(here) AS h(oid));
    made int8;
BEGIN
    made := rindle._append(rindle._facts('RETELL', shown, seen)
        || jsonb_build_object('resync', (SELECT coalesce(jsonb_agg(h.oid::int8), '[]') FROM unnest(here) AS h(oid)))
        || jsonb_build_object('dropped', (SELECT coalesce(jsonb_agg(r.oid::int8), '[]') FROM unnest(relations) AS r(oid)
            WHERE r.oid <> ALL(here))));
    IF made IS NULL THEN
        RAISE EXCEPTION 'this database is a copy of one that was prepared'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Run rindle pg prepare.';
    END IF;
    RETURN made;
END
