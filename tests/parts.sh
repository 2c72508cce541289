# The commands of the parts of tests/run, and their lists. Uses its variables and `closing_line`.
# shellcheck shell=bash disable=SC2034,SC2154

# --- parts: each ends its output with the closing line that count_part adds up ---

# They take their names from `chosen`, and the options of the runner as arguments.

part_unit() {
    local preset=asan name programs=()
    [[ $quick == no ]] || preset=release
    passed=0 failed=0 skipped=0
    for name in "${chosen[@]}"; do
        if [[ $name == *.* ]]; then run_unit_test "$preset" "$name"; else programs+=("$name"); fi
    done
    if [[ ${#chosen[@]} == 0 || ${#programs[@]} != 0 ]]; then
        chosen=("${programs[@]}")
        run_ctest "$preset" "$@"
    fi
    closing_line
    [[ $failed == 0 ]]
}

# run_unit_test PRESET PROGRAM.TEST
run_unit_test() {
    # Catch2 succeeds if there is no test of the name.
    if tests/unit/list | grep -qxF -- "$2" && (cd "build/$1/tests/unit" && "./${2%%.*}" "${2#*.}"); then
        passed=$((passed + 1))
        echo "ok $2"
    else
        failed=$((failed + 1))
        echo "FAILED $2"
    fi
}

# ctest's result as numbers; a preset whose programs are not registered at all is a failure.
run_ctest() {
    local report=$logs/unit-$1.xml status=0 tests bad left_out only=()
    rm -f "$report"
    [[ ${#chosen[@]} == 0 ]] || only=(--tests-regex "^($(IFS='|'; echo "${chosen[*]}"))\$")
    ctest --preset "$1" --no-tests=error -j2 --output-junit "$report" "${only[@]}" "${@:2}" || status=$?
    tests=$(attribute tests "$report") bad=$(attribute failures "$report")
    left_out=$(($(attribute skipped "$report") + $(attribute disabled "$report")))
    if [[ $status != 0 && $bad == 0 ]]; then bad=1 tests=$((tests + 1)); fi
    passed=$((passed + tests - bad - left_out)) failed=$((failed + bad)) skipped=$((skipped + left_out))
}

attribute() {
    local value
    value=$(grep -oPm 1 "\\b$1=\"\\K[0-9]+" "$2" 2>/dev/null | head -n 1) || true
    echo "${value:-0}"
}

part_architecture() { tests/architecture/run "$@" "${chosen[@]}"; }

part_privileged() { tests/privileged/run "$@" "${chosen[@]}"; }

part_images() {
    local layouts
    [[ ${#chosen[@]} != 0 ]] || chosen=(base layers-40)
    layouts=$(tests/images/build "${chosen[@]}") || return
    # shellcheck disable=SC2086
    tests/images/check $layouts
}

part_cluster() { tests/cluster/selftest "${chosen[@]}"; }
part_layers() { tests/layers/run "$@" "${chosen[@]}"; }
part_registry() { tests/registry/run "$@" "${chosen[@]}"; }
part_tool() { tests/tool/run "$@" "${chosen[@]}"; }

part_hostile() {
    [[ ${#chosen[@]} != 0 ]] || chosen=(invariants kills errno disk power messages)
    tests/hostile/run --minutes 1 "$@" "${chosen[@]}"
}

# Three clusters take longer to start than few tests take.
part_suites() {
    local clusters=3
    [[ ${#chosen[@]} == 0 && $# == 0 ]] || clusters=1
    tests/suites/run --clusters $clusters $([[ $quick == no ]] || echo --quick) "$@" "${chosen[@]}"
}

# It leaves what runs beside it the processor.
part_pytorch() { renice -n 5 "$BASHPID" >/dev/null && tests/pytorch/run "$@" "${chosen[@]}"; }
part_tutorials() { renice -n 5 "$BASHPID" >/dev/null && tests/tutorials/run "$@" "${chosen[@]}"; }
part_slurm() { tests/slurm-versions/run --plain "$@" 24.11 "${chosen[@]/#/24.11.plain.}"; }
part_packages() { tests/packages/run "$@" "${chosen[@]}"; }
part_distributions() { tests/distributions/run "$@" "${chosen[@]}"; }

# Its clock does not depend on how long its instructions take here: what runs beside it makes no case fail.
part_guest() {
    if [[ ${#chosen[@]} == 0 ]]; then tests/guests/run --short "$@"; else tests/guests/run --kernel 6.12 --counted "$@" "${chosen[@]}"; fi
}

part_guests() { tests/guests/run --kernel all "$@" "${chosen[@]}"; }
part_arm64() { tests/arm64/run; }

part_mpi-versions() {
    local row rows=()
    for row in "${chosen[@]}"; do rows+=(--row "$row"); done
    tests/mpi-versions/run "$@" "${rows[@]}"
}

part_versions() { tests/slurm-versions/run "$@" "${chosen[@]}"; }
part_pods() { tests/pods/run "$@" "${chosen[@]}"; }
part_fuzz() { tests/fuzz/run "$@" "${chosen[@]}"; }
part_hardware() { tests/hardware/run --rehearse "${chosen[@]}"; }

# --- lists: a line PART.SUITE.TEST for each test that a part tells apart ---

list_of() {
    local part=$1
    case $part in
        unit) tests/unit/list && tests/fuzz/run --list | sed 's/^/fuzz_/' ;;
        images) printf '%s\n' base layers-40 ;;
        cluster) tests/cluster/selftest --list ;;
        slurm) tests/slurm-versions/run --list | sed -n 's/^24\.11\.plain\.//p' ;;
        versions) tests/slurm-versions/run --list ;;
        guest | guests) tests/guests/run --list ;;
        mpi-versions) tests/mpi-versions/run --list | sed 's/:.*//; s/^slurm-[0-9.]*\.[a-z0-9]*\.//' | sort -u ;;
        arm64) echo all ;;
        hardware) grep -oP '^checks=\(\K[^)]+' tests/hardware/run | tr ' ' '\n' ;;
        *) "tests/$part/run" --list ;;
    esac
}

list_parts() {
    local part
    for part in "${parts[@]}"; do
        list_of "$part" | while IFS= read -r test; do
            [[ -z ${names[$part]:-} ]] || is_named "$test" "${names[$part]}" || continue
            echo "$part.$test"
        done
    done
}

# Whether a test is one of these names or in a suite of them.
is_named() {
    local name
    while IFS= read -r name; do
        [[ -n $name && ($1 == "$name" || $1 == "$name".*) ]] && return 0
    done <<<"$2"
    return 1
}
