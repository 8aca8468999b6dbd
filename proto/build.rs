//! Generates the gRPC types without a system protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=rindle/v1/frames.proto");
    let files = protox::compile(["rindle/v1/frames.proto"], ["."])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".")
        .compile_fds(files)?;
    Ok(())
}
