#!/bin/sh
# Makes the limited kubeconfig ("cloud-config") by which a guest cluster reaches Harvester: an account, its rights in one
# namespace, its token. KUBECONFIG names the Harvester cluster, as an administrator. kubectl and jq are enough. May be piped
# into sh. docs/credentials.md says more.
#
# generate_addon.sh, generate_addon_csi.sh and generate_kubeconfig.sh are one program but for the next line.
script=generate_kubeconfig
# What it prints, and makes, changes only together with this number, which the binary has too.
revision=3

usage() {
    echo "description: $script.sh makes an account in the Harvester cluster for $what of a guest cluster, and prints its kubeconfig. It needs kubectl and jq."
    if [ "$part" = csi ]; then
        echo "usage: $script.sh <service_account_name> <namespace> [RKE1|RKE2|K3s] [options]"
        echo "  RKE1: a block for the cluster's YAML (default); RKE2, K3s: user data for cloud-init"
    else
        echo "usage: $script.sh <service_account_name> <namespace> [options]"
    fi
    echo "  <namespace>           the namespace of the guest cluster's VMs"
    echo "  --format FORMAT       cloud-init (kubeconfig, then user data), rke-addon (block for RKE1), kubeconfig (nothing else)"
    echo "  --server URL          the address of Harvester that the guest cluster shall use"
    echo "  --least               CSI driver: in no namespace of others the rights that no other namespace needs"
    echo "  --keep                keep the kubeconfig in ./tmp/kube too"
    echo "  --no-check            do not try address, certificate and token before they are printed"
}

die() {
    # the echo of some shells takes a backslash in a name for more
    printf '%s.sh: %s\n' "$script" "$*" >&2
    exit 1
}

note() {
    printf '%s.sh: note: %s\n' "$script" "$*" >&2
}

# Prints a secret. printf is a program in some shells, and everybody sees the arguments of a program.
line() {
    cat <<EOF
$1
EOF
}

is_name() {
    case $1 in
    '' | *[!a-z0-9.-]* | [!a-z0-9]* | *[!a-z0-9]) return 1 ;;
    esac
}

read_arguments() {
    account='' namespace='' target='' format='' server='' least='' keep='' check=1 words=0
    while [ $# -gt 0 ]; do
        case $1 in
        --help | -h)
            usage
            exit 0
            ;;
        --least) least=1 ;;
        --keep) keep=1 ;;
        --no-check) check='' ;;
        --format=*) format=${1#*=} ;;
        --server=*) server=${1#*=} ;;
        --format | --server)
            [ $# -ge 2 ] || die "$1 needs a value"
            if [ "$1" = --format ]; then format=$2; else server=$2; fi
            shift
            ;;
        -?*) die "unknown option $1; see --help" ;;
        *)
            # an empty word is one too; further words are ignored, as they always were
            words=$((words + 1))
            case $words in
            1) account=$1 ;;
            2) namespace=$1 ;;
            3) target=$1 ;;
            esac
            ;;
        esac
        shift
    done
    if [ -z "$account" ] || [ -z "$namespace" ]; then
        usage
        exit 1
    fi
    is_name "$account" || die "\"$account\" is no name of a service account: use a-z, 0-9, - and ."
    { is_name "$namespace" && [ "${namespace#*.}" = "$namespace" ]; } || die "\"$namespace\" is no name of a namespace: use a-z, 0-9 and -"
    default=cloud-init
    path=/etc/kubernetes/cloud-config
    if [ "$part" = csi ]; then
        case $target in
        '' | RKE1 | rke1) default=rke-addon ;;
        RKE2 | rke2 | K3S | K3s | k3s) ;;
        *)
            printf 'Target %s is not supported, please use RKE1, RKE2 or K3S\n' "$target"
            exit 1
            ;;
        esac
        path=/var/lib/rancher/rke2/etc/config-files/cloud-provider-config
    elif [ -n "$least" ]; then
        die "--least is for the CSI driver; the cloud provider has rights in $namespace alone"
    fi
    format=${format:-$default}
    case $format in
    cloud-init | rke-addon | kubeconfig) ;;
    *) die "unknown format \"$format\": use cloud-init, rke-addon or kubeconfig" ;;
    esac
    case $server in
    '') ;;
    *[!]A-Za-z0-9._~:/%@[-]*) die "\"$server\" is no address: write it as https://192.0.2.1:6443" ;;
    https://?*) ;;
    *) die "\"$server\" is no address: write it as https://192.0.2.1:6443" ;;
    esac
}

# The binary, if it is there and does the very same. It takes the context from the same kubectl.
use_binary() {
    program=${HARVESTER_CLOUD_PROVIDER-harvester-cloud-provider}
    [ -n "$program" ] && command -v "$program" >/dev/null 2>&1 || return 0
    same=$("$program" cloud-config generate --revision </dev/null 2>/dev/null) || return 0
    [ "$same" = "cloud-config generate $revision" ] || return 0
    set -- --for "$part" --program "$script.sh" --format "$format" ${server:+--server "$server"} ${least:+--least} ${keep:+--keep}
    [ -n "$check" ] || set -- "$@" --no-check
    if command -v kubectl >/dev/null 2>&1; then
        config=$(kubectl config view --raw --minify --flatten -o json </dev/null) || no_context
        line "$config" | "$program" cloud-config generate --kubeconfig - "$@" "$account" "$namespace"
    else
        "$program" cloud-config generate "$@" "$account" "$namespace"
    fi
    exit $?
}

no_context() {
    die "kubectl has no current context: set KUBECONFIG to a kubeconfig of the Harvester cluster, such as /etc/rancher/rke2/rke2.yaml of a management node"
}

# For jq: a text that others have written, without what steers a terminal or turns the text after it round.
clean='def clean: gsub("[\\t\\n\\r]"; " ") | gsub("[\\p{Cc}\\p{Cf}]"; "\uFFFD");'

# The object as JSON; nothing where it does not exist.
object() {
    kubectl get "$@" --ignore-not-found -o json </dev/null
}

# Makes the object on stdin, whose kind and name kubectl prints.
create() {
    kubectl create -f -
}

of_context() {
    line "$config" | jq -r "$1 // \"\""
}

read_context() {
    config=$(kubectl config view --raw --minify --flatten -o json </dev/null) || no_context
    context=$(of_context '.["current-context"]')
    cluster=$(of_context '.clusters[0].name')
    address=$(of_context '.clusters[0].cluster.server')
    context_ca=$(of_context '.clusters[0].cluster["certificate-authority-data"]')
    server_name=$(of_context '.clusters[0].cluster["tls-server-name"]')
    # an administrator's credentials need not stay here any longer
    config=''
    [ -n "$address" ] || no_context
    set -- harvesterhci.io:cloudprovider
    [ "$part" != csi ] || set -- "$@" harvesterhci.io:csi-driver
    for role in "$@"; do
        found=$(object clusterrole "$role") || die "the cluster of context $context cannot be read at $address"
        [ -n "$found" ] || die "the cluster of context $context has no ClusterRole $role: is it Harvester, and not the guest cluster?"
    done
    if [ -n "$server" ]; then
        address=$server
    elif [ "$part" = csi ]; then
        vip=$(virtual_ip)
        [ -n "$vip" ] || die "ConfigMap harvester-system/vip names no address of Harvester: give it by --server https://ADDRESS:6443"
        address=$vip
        server_name=''
    else
        case $address in
        *//127.* | *//localhost* | *//0.0.0.0* | *'//[::1]'*)
            vip=$(virtual_ip) || vip=''
            note "the guest cluster does not reach $address, which is this machine itself: run this again with --server ${vip:-https://ADDRESS:6443}"
            ;;
        esac
    fi
}

virtual_ip() {
    map=$(object configmap vip --namespace harvester-system) || return 1
    printf '%s\n' "$map" | jq -r '.data.ip // "" | if test("^[0-9A-Fa-f:.]+$") | not then "" elif contains(":") then "https://[" + . + "]:6443" else "https://" + . + ":6443" end'
}

ensure_account() {
    printf 'Creating a service account in %s namespace: %s\n' "$namespace" "$account"
    found=$(object serviceaccount "$account" --namespace "$namespace")
    if [ -z "$found" ]; then
        printf '{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "%s", "namespace": "%s"}}' "$account" "$namespace" | create
        found=$(object serviceaccount "$account" --namespace "$namespace")
    else
        echo "serviceaccount/$account unchanged"
    fi
    uid=$(printf '%s\n' "$found" | jq -r .metadata.uid)
}

# kind (RoleBinding, ClusterRoleBinding), its name, its namespace or nothing, kind and name of the role
ensure_binding() {
    resource=rolebinding
    [ "$1" = RoleBinding ] || resource=clusterrolebinding
    if [ -n "$3" ]; then
        printf '\nCreating a %s in %s namespace: %s\n' "$resource" "$3" "$2"
    else
        printf '\nCreating a %s: %s\n' "$resource" "$2"
    fi
    found=$(object "$resource.rbac.authorization.k8s.io" "$2" ${3:+--namespace "$3"})
    desired=$(jq -cn --arg kind "$1" --arg name "$2" --arg place "$3" --arg role_kind "$4" --arg role "$5" --arg account "$account" --arg namespace "$namespace" --arg uid "$uid" '
        {apiVersion: "rbac.authorization.k8s.io/v1", kind: $kind, metadata: {name: $name},
         roleRef: {apiGroup: "rbac.authorization.k8s.io", kind: $role_kind, name: $role},
         subjects: [{kind: "ServiceAccount", name: $account, namespace: $namespace}]}
        | if $place == "" then . else .metadata.namespace = $place end
        | if $place == $namespace then .metadata.ownerReferences = [{apiVersion: "v1", kind: "ServiceAccount", name: $account, uid: $uid}] else . end')
    if [ -z "$found" ]; then
        printf '%s\n' "$desired" | create
        return
    fi
    verdict=$(printf '%s\n%s\n' "$found" "$desired" | jq -rs "$clean"'
        .[0] as $found | .[1] as $desired
        | if ($found.roleRef | {kind, name}) != ($desired.roleRef | {kind, name}) then "other role " + ($found.roleRef.name | clean)
          elif any($found.subjects[]?; {kind, name, namespace} == $desired.subjects[0]) then "unchanged"
          else "add" end')
    case $verdict in
    unchanged) echo "$resource.rbac.authorization.k8s.io/$2 unchanged" ;;
    # somebody else is in it, whose rights stay
    add)
        others=$(printf '%s\n' "$found" | jq -r "$clean"'[.subjects[]? | .kind + " " + (if .namespace then .namespace + "/" else "" end) + .name] | join(", ") | clean')
        [ -z "$others" ] || note "$resource.rbac.authorization.k8s.io/$2 is for $others too: take this account back by its subject alone"
        printf '%s\n%s\n' "$found" "$desired" | jq -cs '.[0].subjects += .[1].subjects | .[0]' | kubectl replace -f -
        ;;
    *) die "$1 $2 is there and grants the ${verdict#other }: if nothing needs it, delete it, then run this again: kubectl delete $resource $2${3:+ --namespace $3}" ;;
    esac
}

# kind (Role, ClusterRole), its namespace or nothing, its rules
ensure_role() {
    resource=role
    [ "$1" = Role ] || resource=clusterrole
    printf '\nCreating a %s%s: %s\n' "$resource" "${2:+ in $2 namespace}" "$shared"
    found=$(object "$resource.rbac.authorization.k8s.io" "$shared" ${2:+--namespace "$2"})
    if [ -n "$found" ]; then
        why=$(printf '%s\n' "$found" | jq -r --argjson rules "$3" "$clean"'
            def rights: [.[]? | (.verbs // [])[] as $verb
                | ((.apiGroups // [])[] as $group | (.resources // [])[] as $resource
                    | (if (.resourceNames // []) == [] then "" else .resourceNames[] end) as $name
                    | [$verb, $group, $resource, $name]),
                  ((.nonResourceURLs // [])[] as $path | [$verb, "", $path, ""])] | unique;
            def title: .[0] + " " + .[2] + (if .[3] == "" then "" else " " + .[3] end) | clean;
            (.rules | rights) as $found | ($rules | rights) as $wanted
            | if $found - $wanted != [] then "grants " + ($found - $wanted | .[0] | title) + " too"
              elif $wanted - $found != [] then "lacks " + ($wanted - $found | .[0] | title)
              else "" end')
        [ -z "$why" ] || die "$1 $shared is there and $why: if nothing needs it, delete it, then run this again: kubectl delete $resource $shared${2:+ --namespace $2}"
        echo "$resource.rbac.authorization.k8s.io/$shared unchanged"
        return
    fi
    jq -cn --arg kind "$1" --arg name "$shared" --arg place "$2" --argjson rules "$3" '
        {apiVersion: "rbac.authorization.k8s.io/v1", kind: $kind, metadata: {name: $name}, rules: $rules}
        | if $place == "" then . else .metadata.namespace = $place end' | create
}

ensure_rights() {
    wide=$namespace-$account
    ensure_binding RoleBinding "$wide" "$namespace" ClusterRole harvesterhci.io:cloudprovider
    if [ "$part" = csi ] && [ -z "$least" ]; then
        ensure_binding ClusterRoleBinding "$wide" '' ClusterRole harvesterhci.io:csi-driver
    elif [ "$part" = csi ]; then
        # the role of Harvester in the VMs' namespace alone, and what the driver needs elsewhere; no account's name has a colon
        shared=harvester-csi-driver-least
        ensure_binding RoleBinding "$wide:csi-driver" "$namespace" ClusterRole harvesterhci.io:csi-driver
        ensure_role ClusterRole '' '[
            {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get", "list"]},
            {"apiGroups": ["snapshot.storage.k8s.io"], "resources": ["volumesnapshotclasses"], "verbs": ["get"]},
            {"apiGroups": ["harvesterhci.io"], "resources": ["settings"],
             "resourceNames": ["csi-driver-config"], "verbs": ["get"]},
            {"apiGroups": ["harvesterhci.io"], "resources": ["volumeremotebackups"], "verbs": ["get"]}]'
        ensure_binding ClusterRoleBinding "$wide:csi-driver" '' ClusterRole "$shared"
        ensure_role Role harvester-system '[
            {"apiGroups": ["harvesterhci.io"], "resources": ["networkfilesystems"],
             "verbs": ["get", "list", "watch", "create", "patch", "delete"]}]'
        ensure_binding RoleBinding "$wide:csi-driver" harvester-system Role "$shared"
        found=$(object namespace longhorn-system)
        if [ -n "$found" ]; then
            ensure_role Role longhorn-system '[{"apiGroups": ["longhorn.io"], "resources": ["volumes"], "verbs": ["get"]}]'
            ensure_binding RoleBinding "$wide:csi-driver" longhorn-system Role "$shared"
        fi
        tell_of_wide "$wide" harvesterhci.io:csi-driver
    fi
    # what the Go program's script made
    tell_of_wide "$account" harvesterhci.io:cloudprovider
}

tell_of_wide() {
    found=$(object clusterrolebinding.rbac.authorization.k8s.io "$1")
    [ -n "$found" ] || return 0
    is_wide=$(printf '%s\n' "$found" | jq -r --arg role "$2" --arg account "$account" --arg namespace "$namespace" '
        .roleRef.name == $role and any(.subjects[]?; .name == $account and .namespace == $namespace)')
    [ "$is_wide" = false ] || note "ClusterRoleBinding $1 still grants $2 in all namespaces; when nothing needs that: kubectl delete clusterrolebinding $1"
}

ensure_token() {
    secret=$account-token
    printf '\nGetting uid of service account %s on %s\n' "$account" "$namespace"
    printf 'Service Account uid: %s\n' "$uid"
    printf '\nCreating a user token secret in %s namespace: %s\n' "$namespace" "$secret"
    found=$(object secret "$secret" --namespace "$namespace")
    if [ -z "$found" ]; then
        jq -cn --arg name "$secret" --arg namespace "$namespace" --arg account "$account" --arg uid "$uid" '
            {apiVersion: "v1", kind: "Secret", type: "kubernetes.io/service-account-token",
             metadata: {name: $name, namespace: $namespace,
                annotations: {"kubernetes.io/service-account.name": $account, "kubernetes.io/service-account.uid": $uid},
                ownerReferences: [{apiVersion: "v1", kind: "ServiceAccount", name: $account, uid: $uid}]}}' | create
    else
        owner=$(line "$found" | jq -r '.type + " " + .metadata.annotations["kubernetes.io/service-account.uid"]')
        [ "$owner" = "kubernetes.io/service-account-token $uid" ] ||
            die "Secret $secret is there and is not of this account: if nothing needs it, delete it, then run this again: kubectl delete secret $secret --namespace $namespace"
        echo "secret/$secret unchanged"
    fi
    echo "Secret name: $secret"
    printf '\nExtracting ca.crt from secret...'
    left=30
    while :; do
        found=$(object secret "$secret" --namespace "$namespace")
        filled=$(line "$found" | jq -r '(.data["ca.crt"] // "") != "" and (.data.token // "") != ""')
        [ "$filled" != true ] || break
        [ "$(line "$found" | jq -r .immutable)" != true ] || { echo failed; die "Secret $secret is there and is immutable, so that Harvester puts no token into it: if nothing needs it, delete it, then run this again: kubectl delete secret $secret --namespace $namespace"; }
        left=$((left - 1))
        [ $left -gt 0 ] || { echo failed; die "Harvester has put no token into Secret $secret of namespace $namespace for 30 s: run this again, and look at kube-controller-manager of Harvester"; }
        sleep 1
    done
    echo 'done'
    echo 'Getting user token from secret...done'
    secret_ca=$(line "$found" | jq -r '.data["ca.crt"]')
}

# The kubeconfig with this certificate authority. The token reaches jq by a pipe.
kubeconfig() {
    line "$found" | jq -r --arg ca "$1" --arg server "$address" --arg server_name "$server_name" \
        --arg cluster "$cluster" --arg user "$user" --arg namespace "$namespace" '
        def is_plain: test("^(https://[A-Za-z0-9._~:/%@\\[\\]-]*[A-Za-z0-9/]|[A-Za-z][A-Za-z0-9._/@+=-]*)$")
            and (test("^(true|false|null|yes|no|on|off|y|n)$"; "i") | not);
        def scalar: if is_plain then . else tojson end;
        "apiVersion: v1",
        "clusters:",
        "- cluster:",
        (if $ca == "" then empty else "    certificate-authority-data: " + ($ca | scalar) end),
        "    server: " + ($server | scalar),
        (if $server_name == "" then empty else "    tls-server-name: " + ($server_name | scalar) end),
        "  name: " + ($cluster | scalar),
        "contexts:",
        "- context:",
        "    cluster: " + ($cluster | scalar),
        "    namespace: " + ($namespace | scalar),
        "    user: " + ($user | scalar),
        "  name: " + ($user | scalar),
        "current-context: " + ($user | scalar),
        "kind: Config",
        "preferences: {}",
        "users:",
        "- name: " + ($user | scalar),
        "  user:",
        "    token: " + (.data.token | @base64d | scalar)'
}

# Asks the server, with what will be printed, whether the account may do its work. Tries the authority of the account, the one
# of the administrator's kubeconfig (Rancher stands before Harvester), and the system's. --raw would leave out the path that
# Rancher's address has (https://github.com/kubernetes/kubectl/issues/1676).
make_kubeconfig() {
    user=$account-$namespace-$cluster
    if [ -z "$check" ]; then
        result=$(kubeconfig "$secret_ca")
        return
    fi
    printf '\nChecking address, certificate and token...'
    folder=$(umask 077 && mktemp -d "${TMPDIR:-/tmp}/cloud-config.XXXXXX")
    trap 'rm -rf "$folder"' EXIT
    trap 'exit 1' HUP INT TERM
    resource='"group": "loadbalancer.harvesterhci.io", "resource": "loadbalancers"'
    [ "$part" != csi ] || resource='"resource": "persistentvolumeclaims"'
    for ca in "$secret_ca" "$context_ca" ''; do
        result=$(kubeconfig "$ca")
        (umask 077 && line "$result" >"$folder/config")
        left=5
        while :; do
            if answer=$(printf '{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {"namespace": "%s", "verb": "create", %s}}}' "$namespace" "$resource" |
                kubectl --kubeconfig "$folder/config" create --validate=false -o json -f - 2>"$folder/error"); then
                allowed=$(printf '%s\n' "$answer" | jq -r .status.allowed)
                [ "$allowed" != true ] || break 2
            fi
            # rights and tokens take a moment to be known everywhere; nothing else changes by waiting
            left=$((left - 1))
            case $(cat "$folder/error") in
            '' | *Unauthorized* | *orbidden* | *'provide credentials'*) ;;
            *) left=0 ;;
            esac
            [ $left -gt 0 ] || break
            sleep 1
        done
        [ -z "$answer" ] || break
        case $(cat "$folder/error") in
        *x509* | *certificate* | *tls:*) ;;
        *) break ;;
        esac
    done
    if [ -z "$answer" ]; then
        echo 'failed'
        # the last line says what the others come from
        why=$(sed -n '$p' "$folder/error" | sed 's/[[:cntrl:]]/?/g')
        die "Harvester cannot be used at $address with this account: $why (another address: --server URL; without this check: --no-check)"
    fi
    echo 'done'
    [ "$allowed" = true ] || note "the account $account may not create ${resource##*: } in namespace $namespace: ClusterRole harvesterhci.io:cloudprovider of this Harvester does not grant it"
    rm -rf "$folder"
}

tell_kubeconfig() {
    printf '\nPreparing k8s-%s-%s-conf\n' "$account" "$namespace"
    printf 'Setting a cluster entry in kubeconfig...Cluster "%s" set.\n' "$cluster"
    printf 'Setting token credentials entry in kubeconfig...User "%s" set.\n' "$user"
    printf 'Setting a context entry in kubeconfig...Context "%s" created.\n' "$user"
    printf 'Setting the current-context in the kubeconfig file...Switched to context "%s".\n' "$user"
}

keep_kubeconfig() {
    printf 'Creating target directory to hold files in ./tmp/kube...'
    mkdir -p ./tmp/kube
    [ -z "$(find ./tmp ./tmp/kube -prune ! -user "$(id -u)")" ] || die "./tmp/kube belongs to another user, who could take what is put there"
    file=./tmp/kube/k8s-$account-$namespace-conf
    # a file that is there keeps its mode, and a link that somebody puts there meanwhile would be followed
    rm -f "$file"
    (set -C && umask 077 && line "$result" >"$file") || die "$file was put there by somebody else meanwhile"
    echo 'done'
}

print_addon() {
    if [ "$part" = csi ]; then
        printf '\n========RKE-ADDON-CONFIGURATION-FOR-HARVESTER_CSI_DRIVER==========\n'
        name=harvester-csi-config key=cloud-provider-config
        set -- https://raw.githubusercontent.com/harvester/harvester-csi-driver/master/deploy/manifests/deployment.yaml
    else
        printf '\n========RKE-ADDON-CONFIGURATION-FOR-CLOUD-PROVIDER==========\n'
        name=cloud-config key=cloud-config
        repository=https://raw.githubusercontent.com/harvester/cloud-provider-harvester/master/deploy/manifests
        set -- "$repository/rbac.yaml" "$repository/deployment.yaml"
    fi
    printf '  addons: |-\n    ---\n    apiVersion: v1\n    kind: Secret\n    metadata:\n'
    printf '      name: %s\n      namespace: kube-system\n    type: Opaque\n    stringData:\n      %s: |\n' $name $key
    line "$result" | sed 's/^/        /'
    printf '  addons_include:\n'
    printf '  - %s\n' "$@"
}

print_cloud_init() {
    if [ "$part" = csi ]; then
        echo '########## cloud-config ############'
    else
        echo '########## cloud config ############'
    fi
    line "$result"
    echo
    echo '########## cloud-init user data ############'
    content=$(line "$result" | jq -Rrs @base64)
    line "write_files:
- encoding: b64
  content: $content
  owner: root:root
  path: $path
  permissions: '0644'"
}

# all is read before anything is done: a download that breaks off does nothing
main() {
    set -eu
    LC_ALL=C
    export LC_ALL
    part=cloud-provider what='the cloud provider'
    [ "$script" != generate_addon_csi ] || part=csi what='the CSI driver'
    read_arguments "$@"
    use_binary
    for tool in kubectl jq; do
        command -v $tool >/dev/null 2>&1 || die "$tool is not installed"
    done
    # with this format nothing else is printed
    exec 3>&1
    [ "$format" != kubeconfig ] || exec >&2
    read_context
    if [ "$part" = csi ]; then
        printf '\nNOTE: for RKE2 or K3s, use: %s.sh <service_account_name> <namespace> rke2|k3s\n\n' "$script"
    fi
    ensure_account
    ensure_rights
    ensure_token
    printf 'Setting current context to: %s\nCluster name: %s\nEndpoint: %s\n' "$context" "$cluster" "$address"
    make_kubeconfig
    tell_kubeconfig
    [ -z "$keep" ] || keep_kubeconfig
    case $format in
    rke-addon) print_addon ;;
    cloud-init) print_cloud_init ;;
    kubeconfig) line "$result" >&3 ;;
    esac
}

main "$@"
