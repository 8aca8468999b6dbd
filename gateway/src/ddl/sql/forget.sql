
-- The gateway's own: rows of transactions below xid `through`, which had ended at a position that every slot is past; ids
-- are in the order of writing, and one that is open for long writes low ones late. The newest stay for a day, for a gateway that starts again reads the
-- last transactions once more.
DECLARE
    gone int8;
BEGIN
    DELETE FROM rindle.published_schema p
    WHERE p.xid::text::int8 < through AND p.made_at < now() - interval '1 day';
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
