//! rindle-gateway
