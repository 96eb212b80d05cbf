//! Compiles the project's own route_guide.proto, with protox in place of protoc.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../proto/examples");
    let file = protos.join("route_guide.proto");
    println!("cargo:rerun-if-changed={}", file.display());
    let descriptors = protox::compile([&file], [&protos])?;
    tonic_prost_build::configure()
        .build_client(false)
        .compile_fds(descriptors)?;
    Ok(())
}
