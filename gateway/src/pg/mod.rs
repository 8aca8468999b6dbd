//! pg
pub mod conn;
pub mod copytext;
pub mod endpoint;
pub mod pgoutput;
pub mod tls;
pub mod walsender;
