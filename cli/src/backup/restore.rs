//! `rindle backup restore`

use std::path::PathBuf;

use jiff::Timestamp;
use rindle_producer::restore::{At, Restored, Wanted, restore};
use rindle_proto::body::PgMicros;
use rindle_proto::ids::{Generation, Lsn};
use serde_json::json;

use super::producer::stop_on_signal;
use super::progress;
use crate::args::{SourceArgs, StoreArgs, UsageError};
use crate::outcome::Outcome;

/// Microseconds from 1970 to 2000, where Postgres begins to count.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// A position such as 0/15E68D8: each transaction that ended at or before it. Or a time with its offset, such as
    /// 2026-11-30T07:00:00Z: as it was before the first commit that is later [default: the newest commit].
    #[arg(long, value_name = "LSN|TIME", value_parser = parse_at)]
    at: Option<At>,
    /// The file; it must not exist.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// One generation [default: the current one].
    #[arg(long, value_name = "ID")]
    generation: Option<Generation>,
}

fn parse_at(text: &str) -> Result<At, UsageError> {
    if let Ok(lsn) = text.parse::<Lsn>() {
        return Ok(At::Lsn(lsn));
    }
    // A time without its offset is somebody's: nobody here knows whose.
    match text.parse::<Timestamp>() {
        Ok(time) => Ok(At::Time(PgMicros(time.as_microsecond() - POSTGRES_EPOCH))),
        Err(error) => Err(UsageError(format!(
            "{text:?} is neither a position such as 0/15E68D8 nor a time with its offset such as 2026-11-30T07:00:00Z ({error})"
        ))),
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let wanted = Wanted {
        archive: args.store.open(&args.source.source).await?,
        source: args.source.source,
        generation: args.generation,
        at: args.at.unwrap_or(At::Newest),
        out: args.out.clone(),
    };
    let restored = restore(wanted, progress::watch(), stop_on_signal()?).await?;
    let Restored {
        cursor,
        is_newest,
        image,
        replayed,
        tables,
        rows,
    } = &restored;
    let time = cursor.commit_time.map(written);
    let commit = time.as_ref().map_or_else(
        || "the first copy".to_owned(),
        |time| format!("the commit of {time}"),
    );
    let text = format!(
        "{}: as of {} ({commit}{}), {tables} tables, {rows} rows; from {}, {} rows replayed",
        args.out.display(),
        cursor.end_lsn,
        if *is_newest {
            ", the archive holds nothing later"
        } else {
            ""
        },
        image
            .as_ref()
            .map_or_else(|| "the first frame".to_owned(), |id| format!("image {id}")),
        replayed.rows
    );
    let json = json!({
        "file": args.out,
        "generation": cursor.generation,
        "lsn": cursor.end_lsn,
        "commitTime": time,
        "frame": cursor.position.seq,
        "isNewest": is_newest,
        "image": image,
        "tables": tables,
        "rows": rows,
        "replayedRows": replayed.rows,
    });
    Ok(Outcome::done(text, json))
}

fn written(time: PgMicros) -> String {
    let micros = time.0.saturating_add(POSTGRES_EPOCH);
    Timestamp::from_microsecond(micros).map_or_else(|_far| micros.to_string(), |it| it.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_position_or_a_time_with_its_offset() {
        assert_eq!(parse_at("1/A").unwrap(), At::Lsn(Lsn((1 << 32) + 10)));
        let noon = At::Time(PgMicros(43_200_000_000));
        for text in [
            "2000-01-01T12:00:00Z",
            "2000-01-01 13:00:00+01:00",
            "2000-01-01T12:00:00.000000Z",
        ] {
            assert_eq!(parse_at(text).unwrap(), noon, "{text}");
        }
        for bad in [
            "",
            "yesterday",
            "2000-01-01",
            "2000-01-01T12:00:00",
            "12:00",
            "1/",
            "/1",
            "G/1",
        ] {
            assert!(parse_at(bad).is_err(), "{bad}");
        }
        assert_eq!(written(PgMicros(43_200_000_000)), "2000-01-01T12:00:00Z");
    }
}
