//! rindle-follower
