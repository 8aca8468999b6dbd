//! Generated gRPC types of `rindle/v1/frames.proto`.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]

tonic::include_proto!("rindle.v1");
