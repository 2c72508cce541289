# Functions that enroot's hooks call, with the same names and meaning; to be sourced by bash.

if [ -n "${_SPC_COMMON_SH-}" ]; then return 0; fi
readonly _SPC_COMMON_SH=1

# Variables by which hooks decide on coloured output. Output goes to the job's log, which has no
# colours.
if [ -t 2 ]; then readonly TTY_ON=y; else readonly TTY_OFF=y; fi

common::fmt() { printf '%s' "${2-}"; }

# log LEVEL MESSAGE|- [NL]: writes a message, or with - its standard input.
common::log() {
    local line
    [ -n "${2-}" ] || return 0
    if [ "$2" != "-" ]; then
        printf '%s %b\n' "${1:+[$1]}" "$2" >&2
        return 0
    fi
    while IFS= read -r line; do
        printf '%s %b\n' "${1:+[$1]}" "${line}" >&2
    done
}

common::err() {
    common::log ERROR "${1-}"
    exit 1
}

common::checkcmd() {
    local name
    for name; do
        type -P -- "${name}" > /dev/null || type -t -- "${name}" > /dev/null || common::err "Command not found: ${name}"
    done
}

common::rmall() {
    local -a remove=(rm -rf --one-file-system --preserve-root --)
    "${remove[@]}" "$1" 2> /dev/null && return
    chmod -fR u+rwX -- "$1" || :
    "${remove[@]}" "$1"
}

common::mktmpdir() (
    umask 077
    mktemp -d -p "${ENROOT_TEMP_PATH:-${TMPDIR:-/tmp}}" "$1.XXXXXXXXXX"
)

# read and readarray that succeed at the end of the input.
common::read() { read "$@" || return 0; }
common::readstrarray() {
    local -n _spc_array="$1"
    local _spc_line
    _spc_array=()
    while IFS= read -r _spc_line || [ -n "${_spc_line}" ]; do
        _spc_array+=("${_spc_line}")
    done
}

common::chdir() { cd -- "$1" 2> /dev/null || common::err "Could not change directory: $1"; }

common::realpath() {
    local path
    path=$(readlink -f -- "$1" 2> /dev/null) || common::err "No such file or directory: $1"
    printf '%s' "${path}"
}

# Prints the mount point of the path.
common::mountpoint() {
    local path
    path=$(common::realpath "${1:-.}") || exit 1
    stat -c %m -- "${path}"
}

# Replaces each ${NAME} in the file by that variable.
common::envsubst() {
    local line rest
    while IFS= read -r line || [ -n "${line}" ]; do
        rest=""
        while [[ "${line}" =~ ^(.*)\$\{([A-Za-z_][A-Za-z0-9_]*)\}(.*)$ ]]; do
            line="${BASH_REMATCH[1]}"
            local name="${BASH_REMATCH[2]}"
            rest="${!name-}${BASH_REMATCH[3]}${rest}"
        done
        printf '%s%s\n' "${line}" "${rest}"
    done < "$1"
}

# Keeps only NAME=VALUE lines of the file, without ENROOT_* and without quotes around a value.
common::envfmt() {
    local line kept=""
    while IFS= read -r line || [ -n "${line}" ]; do
        line="${line#"${line%%[![:space:]]*}"}"
        [[ "${line}" =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || continue
        [[ "${line}" != ENROOT_* ]] || continue
        if [[ "${line}" =~ ^([A-Za-z_][A-Za-z0-9_]*)=[\"\'](.*)[\"\'][[:space:]]*$ ]]; then
            line="${BASH_REMATCH[1]}=${BASH_REMATCH[2]}"
        fi
        kept+="${line}"$'\n'
    done < "$1"
    printf '%s' "${kept}" > "$1"
}

# runparts list|exec SUFFIX DIRECTORY
common::runparts() {
    local file
    for file in "$3"/*"$2"; do
        [ -f "${file}" ] || continue
        case "$1" in
        list) printf '%s\n' "${file}" ;;
        exec) [ ! -x "${file}" ] || "${file}" || common::err "${file} exited with return code $?" ;;
        esac
    done
}

# Grants the user the missing permissions in the user's own tree.
common::fixperms() {
    find "$1" -maxdepth 5 -type d ! -perm -u=rwx -exec chmod -f u+rwx {} + -o -type f ! -perm -u=r -exec chmod -f u+r {} + || :
}

# Prints the host's passwd entry of the user.
common::getpwent() {
    local inside outside rest
    read -r inside outside rest < /proc/self/uid_map
    getent passwd "$(( EUID - inside + outside ))"
}
common::getgrent() {
    local inside outside rest
    read -r inside outside rest < /proc/self/gid_map
    getent group "$(( $(id -g) - inside + outside ))"
}

common::jq() { jq "$@" || common::err "Could not process JSON"; }

# Runs curl so that it fails on an error response, unless CURL_IGNORE has the code.
common::curl() {
    local status=0 code ignored
    { code=$(curl -o /dev/fd/9 -w '%{http_code}' "$@") || status=$?; } 9>&1
    if [ "${code:-0}" -ge 400 ]; then
        for ignored in ${CURL_IGNORE-}; do
            [ "${code}" -ne "${ignored}" ] || return 0
        done
        common::err "URL ${*: -1} returned error code: ${code}"
    fi
    return "${status}"
}

# debarch [MACHINE]: prints the name of the architecture in Debian and OCI.
common::debarch() {
    case "${1:-$(uname -m)}" in
    x86_64) printf 'amd64' ;;
    aarch64) printf 'arm64' ;;
    i?86) printf 'i386' ;;
    armv7l) printf 'armhf' ;;
    ppc64le) printf 'ppc64el' ;;
    *) printf '%s' "${1:-$(uname -m)}" ;;
    esac
}

# evalnetrc FILE: prints the file with each password's `$...` expanded, as in enroot's .credentials.
common::evalnetrc() {
    local line
    while IFS= read -r line || [ -n "${line}" ]; do
        [[ "${line}" =~ ^(.*[[:space:]]password[[:space:]]+)(\$.*)$ ]] && line="${BASH_REMATCH[1]}$(eval "printf '%s' ${BASH_REMATCH[2]}")"
        printf '%s\n' "${line}"
    done < "$1"
}
