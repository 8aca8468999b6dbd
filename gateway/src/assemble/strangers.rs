//! Relations that send rows in a transaction that nothing has named by its end.

use std::collections::BTreeMap;

use rindle_proto::ids::{EndLsn, FinalLsn, Oid};

use super::{Assembled, Assembler, damaged};
use crate::ddl::introduce::{Introduced, Unknown};
use crate::halt::HaltReason;

impl Assembler {
    /// Relations that sent rows in this transaction, and nothing said what they are; with their names.
    pub(super) fn unknown(&self) -> BTreeMap<Oid, (String, String)> {
        let strangers = self.open.iter().flat_map(|txn| &txn.strangers);
        let facts = &self.believed.facts;
        strangers
            .filter(|oid| facts.top(**oid).is_none())
            .map(|oid| (*oid, self.relations.name(*oid)))
            .collect()
    }

    pub(super) fn ended(
        &mut self,
        commit_lsn: FinalLsn,
        end_lsn: EndLsn,
    ) -> Result<Assembled, HaltReason> {
        self.settle()?;
        let relations = self.unknown();
        match self.open.as_mut() {
            Some(txn) if !relations.is_empty() => {
                txn.ended = Some((commit_lsn, end_lsn));
                let xid = txn.start.xid;
                Ok(Assembled::Strange(Unknown { xid, relations }))
            }
            Some(_) | None => self.commit(commit_lsn, end_lsn),
        }
    }

    /// Takes in what the last [`Assembled::Strange`] asks for, and ends the transaction.
    ///
    /// # Errors
    /// As [`Assembler::take`].
    pub fn introduced(&mut self, found: Introduced) -> Result<Assembled, HaltReason> {
        let txn = self.open.as_mut();
        let txn = txn.ok_or_else(|| damaged("a relation is looked up outside a transaction"))?;
        let ended = txn.ended.take();
        let (commit_lsn, end_lsn) =
            ended.ok_or_else(|| damaged("a relation is looked up before its transaction ends"))?;
        txn.strangers.retain(|oid| !found.gone.contains(oid));
        self.dropped.extend(&found.dropped);
        self.provisional = true;
        self.learn(found.patch, BTreeMap::new(), found.unsure)?;
        self.settle()?;
        self.commit(commit_lsn, end_lsn)
    }
}
