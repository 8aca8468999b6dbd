SELECT jsonb_build_object('oid', c.oid::int8, 'schema', n.nspname, 'namespace', n.oid::int8, 'name', c.relname,
    'kind', c.relkind, 'persistence', c.relpersistence, 'replident', c.relreplident,
    'parent', (SELECT i.inhparent::int8 FROM pg_inherits i WHERE c.relispartition AND i.inhrelid = c.oid LIMIT 1),
    'owner', pg_get_userbyid(c.relowner), 'row_security', c.relrowsecurity,
    'force_row_security', c.relforcerowsecurity, 'filenode', c.relfilenode::int8,
    'pages', greatest(c.relpages, 0),
    'columns', coalesce((
        SELECT jsonb_agg(jsonb_build_object('attnum', a.attnum, 'name', a.attname,
            'type_oid', a.atttypid::int8, 'type_name', format_type(a.atttypid, a.atttypmod),
            'typmod', a.atttypmod, 'not_null', a.attnotnull, 'generated', a.attgenerated,
            'toastable', a.attstorage <> 'p', 'typtype', t.typtype,
            'missing', CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END,
            'element', CASE WHEN e.oid IS NOT NULL
                THEN jsonb_build_array(e.oid::int8, e.typdelim) END) ORDER BY a.attnum)
        FROM pg_attribute a
        JOIN pg_type t ON t.oid = a.atttypid
        LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typlen = -1
            AND t.typsubscript = 'array_subscript_handler'::regproc
            AND t.typoutput = 'array_out'::regproc
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '[]'),
    'indexes', coalesce((
        SELECT jsonb_agg(jsonb_build_object('oid', i.indexrelid::int8, 'name', ic.relname,
            'method', am.amname, 'columns', to_jsonb(k.columns),
            'not_null', NOT EXISTS (
                SELECT FROM unnest(k.columns) AS key(attnum)
                LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = key.attnum
                WHERE a.attnotnull IS NOT TRUE),
            'unique', i.indisunique, 'primary', i.indisprimary, 'immediate', i.indimmediate,
            'plain', i.indexprs IS NULL AND i.indpred IS NULL,
            'valid', i.indisvalid AND i.indislive, 'identity', i.indisreplident)
            ORDER BY i.indexrelid)
        FROM pg_index i
        JOIN pg_class ic ON ic.oid = i.indexrelid
        JOIN pg_am am ON am.oid = ic.relam
        CROSS JOIN LATERAL (SELECT (string_to_array(i.indkey::text, ' ')::int2[])
            [1:i.indnkeyatts::int] AS columns) k
        WHERE i.indrelid = c.oid), '[]'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
-- In a transaction with an old snapshot one that others altered and then it shows twice: its own comes first.
WHERE c.oid = ANY($1) ORDER BY c.oid, age(c.xmin)
