//! rindle-gateway
pub mod pg;
