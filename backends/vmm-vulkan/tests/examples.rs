//! The example runs, and the compiled shaders are those of their sources.

mod common;
#[path = "../examples/compute.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example is a program")]
mod compute;

use std::path::Path;
use std::process::Command;

#[test]
fn the_compute_example_runs() {
    let Some(device) = common::device(common::options()) else { return };
    compute::run(&device).expect("the example succeeds");
    common::expect_silence(&device);
}

/// What the shaders in the repository were compiled with. Others may put the same into other words.
const COMPILER: &str = "Glslang Version: 11:12.0.0";

#[test]
fn compiled_shaders_are_up_to_date() {
    let version = Command::new("glslangValidator").arg("--version").output();
    let Ok(version) = version else {
        println!("skipped: glslangValidator is not installed (Debian: glslang-tools, spirv-tools)");
        return;
    };
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let found = version.lines().next().unwrap_or_default();
    if found != COMPILER {
        println!("skipped: the shaders were compiled with {COMPILER}, and this is {found}");
        return;
    }
    let shaders = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let out = std::env::temp_dir().join(format!("vmm-shaders-{}", std::process::id()));
    std::fs::create_dir_all(&out).expect("a folder");
    let built = Command::new(shaders.join("build.sh")).arg(&out).output().expect("a shell");
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");
    for name in ["fill", "check", "spin", "compute", "compute_descriptor"] {
        let read = |folder: &Path| std::fs::read(folder.join(format!("{name}.spv")));
        let (old, new) = (read(&shaders).expect("a shader"), read(&out).expect("a shader"));
        assert!(old == new, "{name}.spv is older than its source: run shaders/build.sh");
    }
    std::fs::remove_dir_all(&out).expect("a folder of this test");
}
