
-- The row says what and proves it; the message says where in the transaction. Appending waits for nobody.
DECLARE
    made int8;
BEGIN
    -- A table that somebody dropped must not fail his migrations; the gateway finds that it is gone.
    IF NOT rindle._is_home() OR to_regclass('rindle.published_schema') IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO rindle.published_schema AS new (xid, facts) VALUES (pg_current_xact_id(), document)
    RETURNING new.id INTO made;
    PERFORM pg_logical_emit_message(true, 'rindle', made::text);
    RETURN made;
END
