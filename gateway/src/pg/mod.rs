//! pg
pub mod copytext;
pub mod pgoutput;
