//! rindle-producer
