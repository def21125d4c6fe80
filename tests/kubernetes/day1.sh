#!/bin/sh
# The steps of "Day 1 on Kubernetes" of docs/deploy.md, on the cluster that kubectl reaches, from the
# repository's root:
#
#     sh tests/kubernetes/day1.sh secrets install ask rotate upgrade drain
#
# KIND      Deployment, or RayService where KubeRay's operator is
# VALUES    of the release
# TAG       of the image that the upgrade brings
# URL       where the service answers once its port is forwarded
# PATIENCE  seconds, of each wait
set -eu
KIND=${KIND:-Deployment} VALUES=${VALUES:-tests/kubernetes/values.yaml} TAG=${TAG:-next-cpu}
URL=${URL:-http://127.0.0.1:8000} PATIENCE=${PATIENCE:-600}
CLIENT='{"apiVersion": "v1", "spec": {"nodeName": "kind-control-plane"}}' # which is not drained

# A command, each second until it succeeds.
patiently() {
    left=$PATIENCE
    until "$@"; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || { echo "not within $PATIENCE s: $*" >&2; return 1; }
        sleep 1
    done
}

secrets() {
    mkdir -p secrets
    printf 'team-a:%s\nprometheus:%s metrics\n' $(openssl rand -hex 24) $(openssl rand -hex 24) > secrets/keys
    kubectl create namespace headlight
    kubectl --namespace headlight create secret generic keys --from-file secrets/keys
    kubectl --namespace headlight create secret generic prometheus-key \
        --from-literal key=$(sed -n 's/^prometheus:\(.*\) metrics$/\1/p' secrets/keys)
}

install() {
    if [ "$KIND" = Deployment ]; then
        helm install headlight deploy/helm/headlight --namespace headlight --values "$VALUES"
    else
        helm install headlight deploy/helm/headlight --namespace headlight \
            --values deploy/helm/examples/rayservice.yaml --values "$VALUES"
    fi
    await
}

await() {
    if [ "$KIND" = Deployment ]; then
        kubectl --namespace headlight rollout status deployment headlight --timeout "${PATIENCE}s"
    else
        kubectl --namespace headlight wait --for=condition=Ready --timeout "${PATIENCE}s" rayservice headlight
    fi
}

# Whether a request with a key is answered with a status.
answers() {
    kubectl --namespace headlight port-forward service/headlight-serve-svc 8000 > port-forward.log 2>&1 &
    forward=$!
    found=$(curl "$URL/v1/embeddings" --header 'Content-Type: application/json' \
        --header "Authorization: Bearer $1" \
        --data '{"model": "all-MiniLM-L6-v2", "input": "All is well"}' \
        --silent --output answer.json --write-out '%{http_code}' \
        --retry 10 --retry-connrefused --retry-delay 1) || true
    kill "$forward"
    wait "$forward" || true
    [ "$found" = "$2" ]
}

key() {
    sed -n s/^team-a://p secrets/keys
}

ask() {
    patiently answers "$(key)" 200
    grep -q '"embedding":' answer.json
}

put() {
    kubectl --namespace headlight create secret generic keys --from-file secrets/keys --dry-run=client --output=yaml | kubectl apply --filename=-
}

# A second key is let in, then the first is not.
rotate() {
    old=$(key) new=$(openssl rand -hex 24)
    echo "team-a:$new" >> secrets/keys
    put
    patiently answers "$new" 200
    patiently answers "$old" 200
    sed -i "/^team-a:$old$/d" secrets/keys
    put
    patiently answers "$old" 401
    patiently answers "$new" 200
}

upgrade() {
    helm upgrade headlight deploy/helm/headlight --namespace headlight --reset-then-reuse-values --set image.cpu.tag="$TAG"
    await
    patiently upgraded
    ask
}

# Whether all pods run the new image.
upgraded() {
    images=$(kubectl --namespace headlight get pods --selector app=headlight-ray \
        --output=jsonpath='{.items[*].spec.containers[?(@.name!="autoscaler")].image}')
    [ -n "$images" ] && for image in $images; do
        case $image in *":$TAG") ;; *) return 1 ;; esac
    done
}

# No request of a client in the cluster fails while a worker's node, but not the head's, is emptied.
drain() {
    head=$(kubectl --namespace headlight get pods --selector app=headlight-ray,role=head \
        --output=jsonpath='{.items[*].spec.nodeName}')
    node=$(kubectl --namespace headlight get pods --selector app=headlight-ray,role=worker \
        --field-selector "spec.nodeName!=$head" --output=jsonpath='{.items[0].spec.nodeName}')
    kubectl create namespace gateway
    kubectl --namespace gateway run client --image "localhost/headlight:$TAG" --image-pull-policy Never \
        --restart Never --env "KEY=$(key)" --overrides "$CLIENT" \
        --command -- sh -c 'while wget --quiet --tries 1 --timeout 20 --output-document /dev/null \
            --header "Authorization: Bearer $KEY" http://headlight-serve-svc.headlight:8000/v1/models
            do sleep 0.2; done; exit 1'
    kubectl --namespace gateway wait --for=condition=Ready --timeout "${PATIENCE}s" pod client
    kubectl drain "$node" --ignore-daemonsets --delete-emptydir-data --timeout "${PATIENCE}s"
    await
    kubectl uncordon "$node"
    [ "$(kubectl --namespace gateway get pod client --output=jsonpath='{.status.phase}')" = Running ]
    ask
}

for step in "$@"; do
    echo "== $step"
    "$step"
done
