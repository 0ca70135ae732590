// Prints the objects of a KubeVirt installation, as a List, from the constructors that its operator uses.
package main

import (
	"encoding/json"
	"log"
	"os"

	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/rbac"
)

const namespace = "kubevirt"

var definitions = []func() (*extv1.CustomResourceDefinition, error){
	components.NewVirtualMachineInstanceCrd,
	components.NewVirtualMachineCrd,
	components.NewPresetCrd,
	components.NewReplicaSetCrd,
	components.NewVirtualMachineInstanceMigrationCrd,
	components.NewKubeVirtCrd,
	components.NewVirtualMachinePoolCrd,
	components.NewVirtualMachineSnapshotCrd,
	components.NewVirtualMachineSnapshotContentCrd,
	components.NewVirtualMachineRestoreCrd,
	components.NewVirtualMachineExportCrd,
	components.NewVirtualMachineInstancetypeCrd,
	components.NewVirtualMachineClusterInstancetypeCrd,
	components.NewVirtualMachinePreferenceCrd,
	components.NewVirtualMachineClusterPreferenceCrd,
	components.NewMigrationPolicyCrd,
	components.NewVirtualMachineCloneCrd,
}

func main() {
	var items []any
	for _, definition := range definitions {
		crd, err := definition()
		if err != nil {
			log.Fatalf("cannot make a custom resource definition: %v", err)
		}
		items = append(items, crd)
	}
	for _, roles := range [][]runtime.Object{
		rbac.GetAllCluster(),
		rbac.GetAllApiServer(namespace),
		rbac.GetAllController(namespace),
		rbac.GetAllHandler(namespace),
	} {
		for _, object := range roles {
			items = append(items, object)
		}
	}
	items = append(items,
		components.NewKubeVirtPriorityClassCR(),
		components.NewVirtAPIMutatingWebhookConfiguration(namespace),
		components.NewVirtAPIValidatingWebhookConfiguration(namespace),
	)
	for _, service := range components.NewVirtAPIAPIServices(namespace) {
		items = append(items, service)
	}
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
	if err := json.NewEncoder(os.Stdout).Encode(list); err != nil {
		log.Fatalf("cannot print the objects: %v", err)
	}
}
