#!/usr/bin/env bash
# Runs what the bundle holds on a machine with a GPU. Nothing is installed, nothing leaves the folder
# but what is written to the output folder.
#
#   ./run.sh [-o OUT] [PART ...]
#
# Parts, all of them by default, in this order:
#   tests      every test program; ruled-out cases count as skipped
#   probe      what the command says about the card
#   traces     replays every trace with --check, and beside it what the mock device predicts with the
#              costs that the probe measured
#   vulkan     what the command says about the best Vulkan device, its binds, and the traces on it
#   memcheck   a short replay under compute-sanitizer
#   c          the C example, on the card
#   load       what waits under a kernel of 200 ms
#   cycles     a thousand pools, one after the other
#   table      allocators side by side (needs a C++ compiler and PyTorch for some of its rows)
# The environment: TRACES, a folder of traces [default: those of the bundle]; PYTHON [python3].
# The last line is "N passed, N failed, N skipped"; the exit status is 1 if something failed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$PWD
if [ "${1:-}" = -o ]; then
    out=$2
    shift 2
fi
mkdir -p "$out"
traces=${TRACES:-$here/traces}
python=${PYTHON:-python3}
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(tests probe traces vulkan memcheck c load cycles table)
passed=0 failed=0 skipped=0

say() { echo "== $*"; }

# step NAME COMMAND...: one step that passes or fails.
step() {
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        echo "FAILED: $name (exit status $?)"
        failed=$((failed + 1))
    fi
}

skip() {
    echo "skipped: $1: $2"
    skipped=$((skipped + 1))
}

# Counts one report of the standard test harness. Tests that were skipped or ruled out print a line
# that says so, and pass.
count() {
    local log=$1 status=$2 result ok bad ignored hidden
    result=$(grep '^test result: ' "$log" | tail -n 1)
    if [ -z "$result" ]; then
        echo "FAILED: $(basename "$log") ended without a result (exit status $status)"
        failed=$((failed + 1))
        return
    fi
    ok=$(sed -E 's/.* ([0-9]+) passed.*/\1/' <<<"$result")
    bad=$(sed -E 's/.* ([0-9]+) failed.*/\1/' <<<"$result")
    ignored=$(sed -E 's/.* ([0-9]+) ignored.*/\1/' <<<"$result")
    # The standard harness shows what passing tests print under their names, at the end: one for each
    # test there, however many lines it prints. Other programs print as they go, one line a test.
    hidden=$(awk '
        /^---- .* stdout ----$/ { sections = 1; test = $2; next }
        /^(test .* \.\.\. )?(skipped|ruled out): / { if (!sections) n++; else if (test != "") { n++; test = "" } }
        END { print n + 0 }' "$log")
    [ "$hidden" -le "$ok" ] || hidden=$ok
    passed=$((passed + ok - hidden))
    failed=$((failed + bad))
    skipped=$((skipped + ignored + hidden))
    echo "$(basename "$log" .log): $((ok - hidden)) passed, $bad failed, $((ignored + hidden)) skipped"
}

tests() {
    local program log status
    for program in "$here"/tests/*; do
        log=$out/$(basename "$program").log
        # One at a time: some take all of the card's memory.
        timeout "${TEST_TIMEOUT:-400}" "$program" --test-threads=1 --show-output >"$log" 2>&1
        status=$?
        count "$log" "$status"
        grep -aE '^test .*FAILED|panicked at|^(skipped|ruled out): ' "$log" | sort -u | head -n 40
        grep -aA 3 'panicked at' "$log" | head -n 60
    done
}

probe() {
    step "probe" "$here/bin/vmm" probe
    "$here/bin/vmm" probe --json >"$out/probe.json"
}

traces() {
    local limit=(--limit 1.03x --no-progress)
    [ -s "$out/probe.json" ] || "$here/bin/vmm" probe --json >"$out/probe.json"
    step "replay on the card" "$here/bin/vmm" replay "$traces" --device cuda --check --limit 1.10x --no-progress
    "$here/bin/vmm" replay "$traces" --device cuda "${limit[@]}" --json >"$out/replay-cuda.json"
    "$here/bin/vmm" replay "$traces" --device mock --costs "$out/probe.json" "${limit[@]}" --json >"$out/replay-mock.json"
    step "prediction" "$python" "$here/src/tables.py" prediction "$out/replay-mock.json" "$out/replay-cuda.json"
}

vulkan() {
    local replay=("$here/bin/vmm" replay "$traces" --device vulkan --limit 1.10x --no-progress)
    "$here/bin/vmm" probe --device vulkan --json >"$out/probe-vulkan.json"
    if grep -q '"virtual_memory": null' "$out/probe-vulkan.json"; then
        skip vulkan "$(grep -a '"unavailable"' "$out/probe-vulkan.json")"
        return
    fi
    step "probe of Vulkan" "$here/bin/vmm" probe --device vulkan
    step "binds" "$here/bin/bind_table"
    step "replay on Vulkan" "${replay[@]}" --check
    "${replay[@]}" --json >"$out/replay-vulkan.json"
}

memcheck() {
    local tool=compute-sanitizer
    command -v $tool >/dev/null || tool=/usr/local/cuda/bin/compute-sanitizer
    if ! command -v $tool >/dev/null; then
        skip memcheck "compute-sanitizer is not installed"
        return
    fi
    step memcheck timeout "${TEST_TIMEOUT:-400}" $tool --tool memcheck --error-exitcode 9 --log-file "$out/memcheck.log" \
        "$here/bin/vmm" replay "$traces"/${MEMCHECK_TRACE:-frag_grow.pickle.gz} --device cuda --check --no-progress
    tail -n 3 "$out/memcheck.log"
}

c() {
    if ! command -v gcc >/dev/null; then
        skip c "gcc is not installed"
        return
    fi
    gcc -std=c11 -Wall -Wextra -Werror -I"$here/include" "$here/src/pool.c" -L"$here/lib" -lvmm -Wl,-rpath,"$here/lib" -o "$out/pool" &&
        step "C example" "$out/pool" cuda "$out/pool.pickle"
}

load() { step "under load" "$here/bin/under_load"; }

cycles() {
    step "a thousand pools" env VMM_CYCLES=1000 "$here/tests/vmm-cuda.device" --test-threads=1 --show-output --exact cycles_leave_nothing
}

table() {
    local csv=$out/allocators.csv torch
    echo "allocator,case,median,mean" >"$csv"
    step "table: Rust" "$here/bin/allocator_table" >>"$csv"
    torch=$("$python" -c 'import torch, os; print(os.path.dirname(torch.__file__))' 2>/dev/null)
    local nvcc=nvcc
    command -v nvcc >/dev/null || nvcc=/usr/local/cuda/bin/nvcc
    if ! command -v $nvcc >/dev/null || [ -z "$torch" ]; then
        skip table "nvcc or PyTorch is missing"
        return
    fi
    local abi
    abi=$("$python" -c 'import torch; print(int(torch._C._GLIBCXX_USE_CXX11_ABI))')
    $nvcc -O2 -std=c++17 -D_GLIBCXX_USE_CXX11_ABI="$abi" -I"$here/include" -I"$torch/include" "$here/src/allocators.cpp" \
        -L"$here/lib" -lvmm -L"$torch/lib" -lc10 -lc10_cuda -lcuda -Xlinker -rpath,"$here/lib:$torch/lib" -o "$out/allocators" ||
        { echo "FAILED: table: the compiler"; failed=$((failed + 1)); return; }
    local which
    for which in vmm-c cudaMalloc cudaMallocAsync torch-native torch-expandable; do
        step "table: $which" "$out/allocators" $which >>"$csv"
    done
    step "table" "$python" "$here/src/tables.py" allocators "$csv"
}

for part in "${parts[@]}"; do
    case $part in
    tests | probe | traces | vulkan | memcheck | c | load | cycles | table)
        say "$part"
        $part
        ;;
    *)
        echo "no such part: $part (see the head of $0)" >&2
        exit 2
        ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
