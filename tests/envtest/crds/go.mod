module harvester-cloud-provider/tests/envtest/crds

go 1.26.0

require (
	github.com/k3s-io/helm-controller v0.17.9
	github.com/kubernetes-csi/external-snapshotter/client/v8 v8.7.0
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
