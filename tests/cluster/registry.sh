# The cluster's registry: one store, served plain, with TLS, and with a password. Uses `state` and `source_dir`.

registry_store() {
    echo "${SPC_CACHE:-${HOME:-/root}/.cache/spank-container-tests}/registry"
}

# The store itself is on the host, so that images outlive the cluster; `registry` in the state directory points there.
write_registry_configuration() {
    local directory=$state/etc/spank-container-cluster
    mkdir -p "$(registry_store)"
    ln -s "$(realpath "$(registry_store)")" "$state/registry"
    mkdir -m 700 "$directory"
    write_certificates "$directory"
    htpasswd -Bbc "$directory/htpasswd" alice wonderland 2>/dev/null
    write_registry_yml 5000 >"$directory/registry-5000.yml"
    write_registry_yml 5443 >"$directory/registry-5443.yml"
    cat >>"$directory/registry-5443.yml" <<END
  tls:
    certificate: /etc/spank-container-cluster/server.crt
    key: /etc/spank-container-cluster/server.key
END
    write_registry_yml 5001 >"$directory/registry-5001.yml"
    cat >>"$directory/registry-5001.yml" <<END
auth:
  htpasswd:
    realm: spank-container tests
    path: /etc/spank-container-cluster/htpasswd
END
    write_client_configuration "$state/etc/spank-container"
}

write_registry_yml() {
    cat <<END
version: 0.1
log:
  level: warn
storage:
  filesystem:
    rootdirectory: /var/lib/docker-registry
  delete:
    enabled: true
http:
  addr: :$1
  secret: only-for-tests
END
}

# An authority of its own for every cluster, and a server certificate it signed.
write_certificates() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=test authority" \
        -addext keyUsage=critical,keyCertSign -keyout "$1/ca.key" -out "$1/ca.crt" 2>/dev/null
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=registry" \
        -keyout "$1/server.key" -out "$1/server.csr" 2>/dev/null
    openssl x509 -req -in "$1/server.csr" -CA "$1/ca.crt" -CAkey "$1/ca.key" -CAcreateserial -days 30 -out "$1/server.crt" \
        -extfile <(printf '%s\n' "subjectAltName=DNS:registry,DNS:head,IP:$network.1" authorityKeyIdentifier=keyid) 2>/dev/null
}

write_client_configuration() {
    install -D -m 644 "$state/etc/spank-container-cluster/ca.crt" "$1/certs.d/registry:5443/ca.crt"
    if ! grep -qsF '"registry:5000"' "$1/config.toml"; then
        cat >>"$1/config.toml" <<END
[registries."registry:5000"]
insecure = true
[registries."registry:5001"]
insecure = true
[registries."registry:5443"]
ca = "/etc/spank-container/certs.d/registry:5443/ca.crt"
END
    fi
}

registries_answer() {
    in_network head python3 -I -S "$source_dir/registry_client" ping \
        "http://$network.1:5000" "https://$network.1:5443" "http://$network.1:5001"
}

push() {
    [[ $# == 2 || $# == 3 ]] || refuse_usage "\"push\" needs a directory with an OCI image and a name"
    need_root
    need_machine head
    local directory name=$2 format=${3:-oci} server="$network.1:5000"
    directory=$(realpath -e "${1%%:*}" 2>/dev/null) || die "no such directory: \"${1%%:*}\""
    [[ -f $directory/index.json ]] || die "\"$directory\" is no OCI image: it has no index.json"
    [[ $1 != *:* ]] || directory+=:${1#*:}
    [[ $name =~ ^[^:@]+:[^:@/]+$ ]] || refuse_usage "an image name has the form NAME:TAG, not \"$name\""
    [[ $format == oci || $format == v2s2 ]] || refuse_usage "an image format is oci or v2s2, not \"$format\""
    if in_network head python3 -I -S "$source_dir/registry_client" has "http://$server" "$name" "$format" "$directory"; then
        echo "cluster: registry has $name"
        return
    fi
    # skopeo notes in /var/lib/containers which blobs it has seen; nothing of that may stay on this machine.
    in_network head unshare --mount bash -c 'mount -t tmpfs skopeo /var/lib && exec skopeo "$@"' skopeo \
        --insecure-policy copy --quiet --format "$format" --multi-arch all --dest-tls-verify=false \
        "oci:$directory" "docker://$server/$name"
    echo "cluster: pushed $name"
}
