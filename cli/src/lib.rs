//! rindle-cli
