//! rindle-archive
