//! Compiles the protocol of the Container Storage Interface, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/csi.proto");
    let files = protox::compile(["proto/csi.proto"], ["proto"])?;
    tonic_prost_build::configure().build_client(true).build_server(true).compile_fds(files)?;
    Ok(())
}
