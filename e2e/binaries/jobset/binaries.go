//go:build binaries

// Package jobset pins the controller of JobSets that scenarios run.
package jobset

import _ "sigs.k8s.io/jobset"
