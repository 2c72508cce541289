# shellcheck shell=bash disable=SC2154,SC2317
# The checks of tests/hardware/run that look at the node alone, and the fake node of its rehearsal. Sourced by it; everything that is looked at is
# below $node.

names_in() { find "$node$1" -mindepth 1 -maxdepth 1 -name "${2:-*}" -printf '%f\n' 2>/dev/null | sort -V; }
driver_of() { basename "$(readlink "$node/sys/class/infiniband/$1/device/driver" 2>/dev/null)" 2>/dev/null; }
adapters() { # of the kernel's modules: adapters NOT|IS WORD
    local name
    for name in $(names_in /sys/class/infiniband); do
        case $(driver_of "$name") in efa) [[ $1 == efa ]] ;; hfi1) [[ $1 == opa ]] ;; *) [[ $1 == verbs ]] ;; esac && echo "$name"
    done
}
glibc_of() { readelf -V "$1" 2>/dev/null | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -1; }
needs_of() { readelf -d "$1" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }
soname_of() { readelf -d "$1" 2>/dev/null | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p'; }

check_found() {
    local kind list missing=yes
    say_found() { [[ -z $2 ]] || { missing=no; notes "found: $1: $(tr '\n' ' ' <<<"$2")"; }; }
    say_found NVIDIA "$(names_in /dev 'nvidia[0-9]*')"
    say_found MIG "$(names_in /dev/nvidia-caps 'nvidia-cap[0-9]*' | grep -vx 'nvidia-cap[12]')" # those two configure and watch
    [[ ! -e $node/dev/kfd ]] || say_found AMD "$(names_in /dev/dri 'renderD*')"
    say_found InfiniBand "$(adapters verbs)"
    say_found EFA "$(adapters efa)"
    say_found Slingshot "$(names_in /sys/class/cxi)"
    say_found Omni-Path "$(adapters opa)"
    for kind in /dev/xpmem /dev/knem /dev/gdrdrv /dev/nvidia-nvswitchctl /dev/nvidia-caps-imex-channels; do
        [[ ! -e $node$kind ]] || notes "found: $kind"
    done
    list=$(cd "$node/dev" && ls -ldL nvidia* nvidia-caps/* nvidia-caps-imex-channels/* dri/* kfd infiniband/* hfi1_* cxi* xpmem knem gdrdrv 2>/dev/null)
    printf '%s\n' "$list"
    if [[ $missing == yes ]]; then skips 'found: neither GPU nor fabric'; else passes 'found: see above'; fi
}

# Anybody must be able to open what is a GPU or an adapter; 0660 of a group hides it from containers, too.
check_modes() {
    local file mode minor wrong='' any=no
    for file in $(cd "$node/dev" && compgen -G 'nvidia[0-9]*'; cd "$node/dev" && compgen -G 'infiniband/uverbs*'; cd "$node/dev" && compgen -G 'hfi1_[0-9]*'; cd "$node/dev" && compgen -G 'cxi[0-9]*'); do
        any=yes mode=$(stat -Lc %a "$node/dev/$file")
        [[ $mode == *66 ]] || wrong+=" $file:$mode"
    done
    for file in "$node"/proc/driver/nvidia/capabilities/gpu*/mig/gi*/access "$node"/proc/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access; do
        [[ -r $file ]] || continue
        any=yes minor=$(sed -n 's/^DeviceFileMinor: //p' "$file") mode=$(stat -Lc %a "$node/dev/nvidia-caps/nvidia-cap$(sed -n 's/^DeviceFileMinor: //p' "$file")" 2>/dev/null)
        notes "modes: nvidia-cap$minor: ${mode:-missing}, DeviceFileMode $(printf '%o' "$(sed -n 's/^DeviceFileMode: //p' "$file")")"
        [[ $mode == 444 ]] || wrong+=" nvidia-cap$minor:${mode:-missing}"
    done
    [[ $any == yes ]] || { skips 'modes: no device nodes'; return; }
    if [[ $any == yes && -n $(compgen -G "$node/dev/nvidia-caps/nvidia-cap*") && -z $node ]] && command -v strace >/dev/null && command -v nvidia-smi >/dev/null; then
        notes "modes: opened by nvidia-smi -L: $(strace -f -e trace=openat nvidia-smi -L 2>&1 | grep -oE 'nvidia-cap[0-9]+", [A-Z_|]+' | sort -u | tr '\n' ' ')"
    fi
    if [[ -z $wrong ]]; then passes 'modes: users can open all nodes'; else fails "modes: not as expected (0666, MIG 0444):$wrong"; fi
}

check_order() {
    local file minors uuids
    minors=$(for file in "$node"/proc/driver/nvidia/gpus/*/information; do [[ ! -r $file ]] || sed -n 's/^Device Minor:[[:space:]]*//p' "$file"; done)
    [[ -n $minors ]] || { skips 'order: no NVIDIA GPU'; return; }
    uuids=$(cat "$node"/proc/driver/nvidia/gpus/*/information | grep -c 'GPU UUID:.*?')
    notes "order: minors along the PCI bus: $(tr '\n' ' ' <<<"$minors"); $uuids GPUs have no UUID yet (hint: nvidia-persistenced)"
    if [[ $minors == "$(sort -n <<<"$minors")" ]]; then
        passes 'order: minors follow the PCI bus'
    else
        passes 'order: minors do not follow the PCI bus: gpu_numbers in config.toml matters without ConstrainDevices'
    fi
    if [[ -e $node/dev/nvidiactl && ! -e $node/dev/nvidia-uvm ]]; then fails 'order: /dev/nvidia-uvm is missing (hint: nvidia-modprobe -u -c0)'; fi
}

check_manager() {
    local traces
    [[ -e $node/dev/nvidia-nvswitchctl ]] || { skips 'manager: no NVSwitch'; return; }
    traces=$(names_in /run/nvidia-fabricmanager)
    notes "manager: in /run/nvidia-fabricmanager: $(tr '\n' ' ' <<<"${traces:-nothing}")"
    [[ -n $node ]] || notes "manager: port 6666: $( (exec 3<>/dev/tcp/127.0.0.1/6666) 2>/dev/null && echo open || echo closed), process: $(pgrep -x nv-fabricmanage || echo none)"
    if [[ -n $traces ]]; then passes 'manager: it leaves traces'; else fails 'manager: no trace; is it running? If so, tell where it is seen'; fi
}

check_amd() {
    local file kinds=''
    [[ -e $node/dev/kfd ]] || { skips 'amd: no /dev/kfd'; return; }
    for file in $(names_in /dev/dri 'renderD*'); do
        kinds+=" $file:$(basename "$(readlink -f "$node/sys/class/drm/$file/device" 2>/dev/null)" 2>/dev/null):$(cat "$node/sys/class/drm/$file/device/vendor" 2>/dev/null || echo no-vendor)"
    done
    notes "amd: render nodes, devices, vendors:$kinds"
    notes "amd: partitions: $(cat "$node"/sys/class/drm/card*/device/current_compute_partition 2>/dev/null | sort | uniq -c | tr '\n' ' ')"
    passes 'amd: see above'
}

check_verbs() {
    local name layer state wrong=''
    [[ -n $(adapters verbs)$(adapters efa) ]] || { skips 'verbs: neither InfiniBand nor EFA'; return; }
    for name in $(adapters verbs) $(adapters efa); do
        layer=$(cat "$node/sys/class/infiniband/$name/ports/1/link_layer" 2>/dev/null) state=$(cat "$node/sys/class/infiniband/$name/ports/1/state" 2>/dev/null)
        notes "verbs: $name: driver $(driver_of "$name"), link layer ${layer:-unknown}, ${state:-state unknown}, board $(cat "$node/sys/class/infiniband/$name/board_id" 2>/dev/null)"
        grep -qsx "$name" "$node"/sys/class/infiniband_verbs/uverbs*/ibdev || wrong+=" $name"
    done
    if command -v ibv_devinfo >/dev/null; then ibv_devinfo 2>&1 | head -200; fi
    if command -v strace >/dev/null && command -v ibv_devices >/dev/null && [[ -z $node ]]; then
        notes "verbs: providers loaded by libibverbs: $(strace -f -e trace=openat ibv_devices 2>&1 | grep -v ENOENT | grep -oE '[^"]*-rdmav[0-9]+\.so' | sort -u | tr '\n' ' ')"
    fi
    if [[ -z $wrong ]]; then passes 'verbs: each adapter has a node'; else fails "verbs: without a node in /dev/infiniband:$wrong"; fi
}

check_cxi() {
    local name file wrong=''
    [[ -n $(names_in /sys/class/cxi) ]] || { skips 'cxi: no Slingshot'; return; }
    for name in $(names_in /sys/class/cxi); do [[ -e $node/dev/$name ]] || wrong+=" $name"; done
    for file in "$node"/usr/lib64/libcxi.so.1 "$node"/opt/cray/libfabric/*/lib64/libfabric.so.1 "$node"/opt/cray/pe/mpich/*/ofi/*/*/lib-abi-mpich/libmpi.so.12; do
        [[ ! -e $file ]] || notes "cxi: ${file#"$node"}: soname $(soname_of "$file"), $(glibc_of "$file"), needs $(needs_of "$file" | tr '\n' ' ')"
    done
    notes "cxi: variables of the step: $(env | grep -oE '^(SLINGSHOT|PALS|FI_CXI|PMI)[A-Z_]*' | sort | tr '\n' ' ')"
    [[ -z $node ]] && command -v fi_info >/dev/null && fi_info -p cxi 2>&1 | head -40
    if [[ -z $wrong ]]; then passes 'cxi: each adapter has a node'; else fails "cxi: without a node (hint: modprobe cxi-user):$wrong"; fi
}

check_opa() {
    local name wrong=''
    [[ -n $(adapters opa) ]] || { skips 'opa: no Omni-Path'; return; }
    for name in $(adapters opa); do
        [[ -e $node/dev/$name ]] || wrong+=" $name"
        notes "opa: $name: link layer $(cat "$node/sys/class/infiniband/$name/ports/1/link_layer" 2>/dev/null), contexts $(cat "$node/sys/class/infiniband/$name/nctxts" 2>/dev/null)"
    done
    [[ -z $node ]] && command -v fi_info >/dev/null && { fi_info -p opx; fi_info -p psm2; } 2>&1 | head -40
    if [[ -z $wrong ]]; then passes 'opa: each adapter has a node'; else fails "opa: without a node (hint: modprobe hfi1):$wrong"; fi
}

# Prints libraries for config.toml: fabric_libraries, mpi_libraries and fallback_libraries.
check_libraries() {
    local file found=no
    command -v readelf >/dev/null || { skips 'libraries: there is no readelf (hint: binutils)'; return; }
    for file in "$node"/usr/lib64/lib{ibverbs,rdmacm,psm2,fabric,cxi,mlx5,efa}.so.1 "$node"/usr/lib64/libpsm2.so.2 "$node"/usr/lib/*-linux-gnu/lib{ibverbs,rdmacm,fabric,mlx5,efa}.so.1 \
        "$node"/opt/amazon/efa/lib64/libfabric.so.1 "$node"/opt/amazon/ofi-nccl/lib64/libnccl-*.so "$node"/usr/lib64/libpmi2.so.0 "$node"/usr/lib/*-linux-gnu/libpmi2.so.0; do
        [[ -e $file ]] || continue
        found=yes
        notes "libraries: ${file#"$node"}: $(basename "$(readlink -f "$file")"), $(glibc_of "$file"), needs $(needs_of "$file" | tr '\n' ' ')"
        [[ -n $node ]] || ldd "$file" 2>/dev/null | grep -F 'not found'
    done
    [[ -n $node ]] || notes "libraries: the node's C library is $(getconf GNU_LIBC_VERSION 2>/dev/null): an image with an older one can have none that needs it"
    if [[ $found == yes ]]; then passes 'libraries: see above'; else skips 'libraries: none of a fabric'; fi
}

# Devices that a step can open in a container and outside: never more, and at least one. Without ConstrainDevices it is less, as Slurm allocated.
check_step() {
    local see outside inside more
    [[ -n ${STEP_IMAGE:-} ]] || { skips 'step: no image was given (hint: in an allocation: STEP_IMAGE=NAME STEP_OPTIONS="--gpus=1")'; return; }
    command -v srun >/dev/null || { skips 'step: there is no srun'; return; }
    # shellcheck disable=SC2016
    see='for node in /dev/nvidia[0-9]* /dev/nvidia-caps/* /dev/nvidia-caps-imex-channels/* /dev/dri/renderD* /dev/infiniband/uverbs* /dev/cxi[0-9]* /dev/hfi1_*; do
             (: <"$node") 2>/dev/null && echo "$node"; done
         nvidia-smi -L 2>/dev/null; env | grep -E "^(SLURM_(STEP|JOB)_GPUS|CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|SLINGSHOT_VNIS)=" | sed "s/^/variable /"; true'
    # shellcheck disable=SC2086
    outside=$(srun -n1 ${STEP_OPTIONS:-} sh -c "$see") || { fails 'step: it does not run outside a container'; return; }
    # shellcheck disable=SC2086
    inside=$(srun -n1 ${STEP_OPTIONS:-} --container-image="$STEP_IMAGE" sh -c "$see") || { fails 'step: it does not run in a container'; return; }
    printf 'outside:\n%s\ncontainer:\n%s\n' "$outside" "$inside"
    more=$(comm -13 <(grep -v '^variable ' <<<"$outside" | grep . | sort) <(grep -v '^variable ' <<<"$inside" | grep . | sort) | tr '\n' ' ')
    notes "step: not in the container: $(comm -23 <(sort <<<"$outside") <(sort <<<"$inside") | tr '\n' ' ')"
    if [[ -n $more ]]; then fails "step: only in the container: $more"
    elif [[ -n $outside && -z $inside ]]; then fails 'step: nothing can be opened in the container'
    else passes "step: $(grep -c '^/dev' <<<"$inside") nodes of $(grep -c '^/dev' <<<"$outside")"; fi
}

# A fake node: files where the kernel would have its own. No kinder than the hardware: MIG nodes are 0444, minors are not in the order of the bus,
# EFA's link layer is unknown, the fabric manager has no socket.
make_fake_node() {
    local name=$1/fake-node at i
    mkdir -p "$name"/{dev/{dri,infiniband,nvidia-caps},run/nvidia-fabricmanager,sys/class/{infiniband,infiniband_verbs,cxi},usr/lib64}
    i=0
    for at in 0000:1b:00.0 0000:3d:00.0; do
        mkdir -p "$name/proc/driver/nvidia/gpus/$at"
        printf 'Model: \t\t fake GPU\nGPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t %s\n' $((1 - i)) >"$name/proc/driver/nvidia/gpus/$at/information"
        install -m 666 /dev/null "$name/dev/nvidia$i"
        i=$((i + 1))
    done
    install -m 666 /dev/null "$name/dev/nvidiactl"
    install -m 666 /dev/null "$name/dev/nvidia-uvm"
    mkdir -p "$name/proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0"
    printf 'DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 1\n' >"$name/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access"
    install -m 444 /dev/null "$name/dev/nvidia-caps/nvidia-cap12"
    touch "$name/dev/nvidia-nvswitchctl" "$name/run/nvidia-fabricmanager/nv-fabricmanager.pid" "$name/dev/kfd"
    install -m 666 /dev/null "$name/dev/dri/renderD128"
    mkdir -p "$name/sys/class/drm/renderD128"
    ln -s ../../../devices/platform/amdgpu_xcp_1 "$name/sys/class/drm/renderD128/device"
    i=0
    for at in mlx5_0:mlx5_core:InfiniBand rdmap16s27:efa:Unknown hfi1_0:hfi1:InfiniBand; do
        IFS=: read -r device module layer <<<"$at"
        mkdir -p "$name/sys/class/infiniband/$device/"{ports/1,device} "$name/sys/class/infiniband_verbs/uverbs$i"
        ln -s "../../../bus/pci/drivers/$module" "$name/sys/class/infiniband/$device/device/driver"
        echo "$layer" >"$name/sys/class/infiniband/$device/ports/1/link_layer"
        echo '4: ACTIVE' >"$name/sys/class/infiniband/$device/ports/1/state"
        echo "$device" >"$name/sys/class/infiniband_verbs/uverbs$i/ibdev"
        install -m 666 /dev/null "$name/dev/infiniband/uverbs$i"
        i=$((i + 1))
    done
    install -m 666 /dev/null "$name/dev/hfi1_0"
    mkdir -p "$name/sys/class/cxi/cxi0"
    install -m 666 /dev/null "$name/dev/cxi0"
    if command -v cc >/dev/null; then
        echo 'int fake;' | cc -shared -fPIC -x c - -Wl,-soname,libcxi.so.1 -o "$name/usr/lib64/libcxi.so.1"
    fi
    node=$name
}
