//! rindle-drills
