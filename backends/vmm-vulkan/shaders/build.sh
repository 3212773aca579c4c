#!/usr/bin/env bash
# Compiles the shaders. The results are in the repository, so that nobody needs the compiler to build;
# a test says if they are older than their sources.
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-.}
compile() {
    local source=$1 target=$out/$2.spv
    shift 2
    glslangValidator --quiet -V --target-env vulkan1.2 "$@" -o "$target" "$source.comp"
    spirv-opt --strip-debug "$target" -o "$target"
    spirv-val --target-env vulkan1.2 "$target"
}
compile fill fill
compile check check
compile spin spin
compile compute compute
compile compute compute_descriptor -DDESCRIPTOR
