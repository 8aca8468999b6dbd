//! Why a gateway stopped working on its source. `/readyz`, documents and drills print these words.

use rindle_proto::ids::{Epoch, Generation, Lsn, Timeline};

/// A reason that only an operator, or a changed condition of the source, can clear. Halted means: nothing is
/// acknowledged, nothing deleted, what there is is still served (I10).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HaltReason {
    /// The slot is gone.
    #[error("SlotMissing: slot {slot:?} does not exist on the source; mint a new generation")]
    SlotMissing {
        /// Its name.
        slot: String,
    },
    /// The generation was ended for good.
    #[error(
        "GenerationRetired: generation {generation} was retired; set generation to one that is not, or mint a new one"
    )]
    GenerationRetired {
        /// The generation.
        generation: Generation,
    },
    /// Postgres invalidated the slot.
    #[error("SlotLost: slot {slot:?} was invalidated by Postgres ({why}); mint a new generation")]
    SlotLost {
        /// Its name.
        slot: String,
        /// What Postgres says.
        why: String,
    },
    /// The server is another cluster.
    #[error(
        "OtherCluster: the server's system identifier is {found}, generation {generation} was minted on {minted}; \
         point the gateway at the cluster it was minted on, or mint a new generation"
    )]
    OtherCluster {
        /// The generation.
        generation: Generation,
        /// As minted.
        minted: String,
        /// As found.
        found: String,
    },
    /// The server's history left the archive's before the archive's end.
    #[error(
        "SourceLostArchived: the archive holds transactions up to {archived}, timeline {timeline} ended at \
         {switched}: the promoted server lacks {switched} to {archived}; mint a new generation"
    )]
    SourceLostArchived {
        /// Timeline of the last archived transaction.
        timeline: Timeline,
        /// Where that timeline ended.
        switched: Lsn,
        /// End of the last archived transaction.
        archived: Lsn,
    },
    /// The server holds less WAL, or another transaction, than the archive.
    #[error(
        "SourceHistoryDiffers: {detail}; the source was set back or restored; mint a new generation"
    )]
    SourceHistoryDiffers {
        /// What differs.
        detail: String,
    },
    /// The server is on an older timeline than the archive's last writer saw.
    #[error(
        "TimelineBehind: the server is on timeline {found}, the archive was written from timeline {archived}: \
         this is a returned old primary; point the gateway at the promoted server"
    )]
    TimelineBehind {
        /// Of the server.
        found: Timeline,
        /// Of the archive's tail.
        archived: Timeline,
    },
    /// Postgres may have deleted WAL that the archive does not hold.
    #[error(
        "ArchiveBehindSlot: the slot was acknowledged up to {confirmed}, the archive reaches {archived}: \
         archive objects are missing; restore them or mint a new generation"
    )]
    ArchiveBehindSlot {
        /// Of the slot.
        confirmed: Lsn,
        /// Of the archive.
        archived: Lsn,
    },
    /// The stream shows a table in a shape that no schema change announced.
    #[error(
        "SchemaChanged: table {table}: {detail}; rindle pg preflight tells why it was not announced; mint a new \
         generation"
    )]
    SchemaChanged {
        /// Name in Postgres.
        table: String,
        /// What changed.
        detail: String,
    },
    /// A migration made something that no mirror follows.
    #[error(
        "SchemaRefused: {object}: {detail}; the stream stops before the transaction that did it: mint a new generation, \
         and cut over to it"
    )]
    SchemaRefused {
        /// What it is about.
        object: String,
        /// What was changed.
        detail: String,
    },
    /// A row that the mirror could only guess at.
    #[error("UnusableRow: table {table}: {detail}; then mint a new generation")]
    UnusableRow {
        /// Name in Postgres.
        table: String,
        /// What is wrong and what to do.
        detail: String,
    },
    /// A condition of the source that an operator can mend; it is looked at again every 30 s.
    #[error("SourceRefused: {detail}")]
    SourceRefused {
        /// What is wrong and what to do.
        detail: String,
    },
    /// An object of the archive is damaged, missing, or not what this program writes.
    #[error("ArchiveDamaged: {detail}")]
    ArchiveDamaged {
        /// Which object, and what is wrong.
        detail: String,
    },
    /// The stream holds bytes that are no pgoutput.
    #[error(
        "StreamDamaged: {detail}; nothing after it was taken; report this with the server's version"
    )]
    StreamDamaged {
        /// What was read.
        detail: String,
    },
    /// Another gateway took over.
    #[error("Fenced: a gateway with epoch {newer} took over from epoch {mine}")]
    Fenced {
        /// This gateway's.
        mine: Epoch,
        /// At least this.
        newer: Epoch,
    },
}

impl HaltReason {
    /// True where the condition lies in the source's settings and may clear without an operator of ours.
    pub fn clears_by_itself(&self) -> bool {
        matches!(
            self,
            HaltReason::SourceRefused { .. } | HaltReason::TimelineBehind { .. }
        )
    }

    /// The first word of the text: stable, for metrics and tests.
    pub fn name(&self) -> String {
        self.to_string()
            .split(':')
            .next()
            .unwrap_or_default()
            .to_owned()
    }
}
