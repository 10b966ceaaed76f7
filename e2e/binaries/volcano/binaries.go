//go:build binaries

// Package volcano pins the controller of Volcano's Jobs that tests run.
package volcano

import _ "volcano.sh/volcano/cmd/controller-manager"
