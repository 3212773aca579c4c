//! What the loader is to know of the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = |part| std::env::var(part).expect("cargo sets it");
    // Versions 0.x may change the interface with x, later ones with the first number.
    let soname = match version("CARGO_PKG_VERSION_MAJOR").as_str() {
        "0" => format!("libvmm.so.0.{}", version("CARGO_PKG_VERSION_MINOR")),
        major => format!("libvmm.so.{major}"),
    };
    if version("CARGO_CFG_TARGET_OS") == "linux" {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
        // A pool's thread may still run its code when a plug-in is closed: the library stays.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    println!("cargo::rustc-env=VMM_SONAME={soname}");
}
