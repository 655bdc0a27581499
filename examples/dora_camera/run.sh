#!/usr/bin/env bash
# Runs the camera with a pool, and with dora's own outputs for comparison.
#
#   examples/dora_camera/run.sh [--frames N] [--bars] [--lossy] [TRANSPORT...]
#
#   TRANSPORT   pool     the camera writes into blocks of a pool, and dora passes tokens
#               plain    dora passes the frames, with its defaults
#               tuned    dora passes the frames, with enough shared memory for them
#               adopted  as tuned, and the viewer registers dora's shared memory where it is
#               tensor-pool
#                        the camera copies to the GPU by dora's tensor pool, which needs a GPU, and a
#                        dora with that feature in target/dora_camera
#               rust     as pool, with a viewer in Rust, which is built first; takes minutes
#               faults   no transport: kills, restarts and stops nodes of a dataflow whose broker is a
#                        node, half a minute (faults.py)
#               pool, plain, tuned and adopted by default
#   --frames N  play N frames (default 300) at 30 Hz
#   --bars      end with an error if the ratios of the times miss their bars, for benchmarks
#   --lossy     let the pool lose some frames: dora drops inputs of a node that a busy machine slows
#               down
#
# It makes a virtual environment in target/dora_camera from PyPI (dora-rs 1.1), and installs there
# the wheel of scripts/build-python (target/wheels). It needs python3 with venv. The broker is the
# one that HOSTBUF_POOL names, or is started (`auto`), which needs the command hostbuf. A GPU is used
# if the environment has PyTorch with CUDA. Exit status: 0 if no frame of the pool is lost, none is
# torn and no fault leaves anything, 77 if PyPI cannot be reached.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")"

fail() {
    echo "run.sh: $1" >&2
    exit "${2:-1}"
}

frames=300 options=() transports=() faults=''
while [[ $# -gt 0 ]]; do
    case $1 in
        --help)
            sed -n '2,/^[^#]/ s/^# \{0,1\}//p' run.sh
            exit
            ;;
        --frames)
            [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || fail "--frames needs a number" 2
            frames=$2
            shift
            ;;
        --bars | --lossy) options+=("$1") ;;
        pool | plain | tuned | adopted | tensor-pool | rust) transports+=("$1") ;;
        faults) faults=yes ;;
        *) fail "unexpected argument '$1': expected --frames, --bars, --lossy, pool, plain, tuned, adopted, tensor-pool, rust or faults" 2 ;;
    esac
    shift
done
[[ ${#transports[@]} -gt 0 || -n $faults ]] || transports=(pool plain tuned adopted)

target=$(realpath ../..)/target
environment=$target/dora_camera
wheels=("$target"/wheels/hostbuf-*.whl)
[[ -e ${wheels[0]} ]] || fail "there is no wheel in target/wheels: run scripts/build-python"
[[ -x $environment/bin/dora ]] || {
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check dora-rs==1.1.0 dora-rs-cli==1.1.0 numpy pyarrow ||
        fail "dora-rs 1.1 cannot be installed from PyPI" 77
}
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "${wheels[0]}"

PATH=$environment/bin:$target/release:$PATH
FRAMES=$frames
HOSTBUF_POOL=${HOSTBUF_POOL:-auto}
export PATH FRAMES HOSTBUF_POOL
logs=()
for transport in ${transports[@]+"${transports[@]}"}; do
    file=$transport.yml
    [[ $transport == pool ]] && file=dataflow.yml
    [[ $transport == rust ]] && (cd ../../integration && cargo build --quiet --package dora-consumer)
    log=$environment/$transport.log
    # The frames, a second before and after them, and the start of the nodes.
    timeout $((frames / 5 + 60)) dora run "$file" >"$log" 2>&1 || fail "the dataflow $file failed: see $log"
    logs+=("$log")
done
[[ ${#logs[@]} == 0 ]] || python3 report.py ${options[@]+"${options[@]}"} "$frames" "${logs[@]}"
[[ -z $faults ]] || python3 faults.py "$environment/faults"
