//! Drills: each module keeps one promise of the product against the real programs.

mod oracle;
