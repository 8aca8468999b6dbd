//! `rindled`: the follower program.

fn main() {}
