// Command sluice-driver runs on every GPU node as a DaemonSet. It offers the
// node's cards to the cluster through Dynamic Resource Allocation and makes
// what was allocated usable in containers.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
)

func main() {
	os.Exit(cli.Run(newCommand()))
}
